//! The attributes of a part of a GPU: those of the GPU but for what is the part's own.

use std::collections::BTreeMap;

use super::Value;
use crate::device::{Gpu, Partition};

/// Bytes of a GPU's UUID that leave room for a part's numbers in an attribute. Real ones have 40.
const UUID_BYTES: usize = 42;

/// The attributes of a part, from those of its GPU.
///
/// A MIG device has no NVLink, so its groups have values that no other device has. That of a device which this plugin
/// makes on demand does not have its UUID: that is new each time, and the device's slice would be rewritten by each claim.
pub fn of_part(
    whole: &BTreeMap<&'static str, Value>,
    gpu: &Gpu,
    part: &Partition<'_>,
) -> BTreeMap<&'static str, Value> {
    let text = |text: &str| Value::String(text.to_owned());
    let alone = format!("{:.UUID_BYTES$}.{}.{}", gpu.uuid.as_str(), part.profile.id, part.placement.start);
    let mut values = whole.clone();
    values.extend([
        ("type", text("mig")),
        ("uuid", text(part.uuid.map_or("", |uuid| uuid.as_str()))),
        ("profile", text(&part.profile.name)),
        ("migCapable", Value::Bool(true)),
        ("migEnabled", Value::Bool(true)),
        ("nvlinkVersion", Value::Int(0)),
        ("nvlinkLinks", Value::Int(0)),
        ("nvlinkDomain", text(&alone)),
        ("nvlinkClique", text(&alone)),
        ("nvlinkPair", text(&alone)),
    ]);
    if let Some(cliques) = values.get_mut("nvlinkCliques") {
        *cliques = Value::Strings(vec![alone]);
    }
    values
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::device::attribute::{ALL, Form, of_node};
    use crate::device::example::{mk_gpu, mk_instance, mk_mig};
    use crate::device::{Link, Mig, Node, Partitioning, Peer};

    /// The attributes of a GPU and of all its parts.
    fn attributes(gpu: Gpu) -> Vec<BTreeMap<&'static str, Value>> {
        let node = Node { gpus: vec![gpu], ..Node::default() };
        let whole = of_node(&node, Form::List).remove(0).values;
        let parts = Partition::all(&node.gpus[0]);
        let parts: Vec<_> = parts.iter().map(|part| of_part(&whole, &node.gpus[0], part)).collect();
        [vec![whole], parts].concat()
    }

    fn mk_linked(mig: Mig, partitioning: Partitioning) -> Gpu {
        let links = vec![Link { version: Some(3), peer: Peer::Switch }; 12];
        Gpu { mig, partitioning, links, ..mk_gpu(0) }
    }

    #[test]
    fn parts_carry_what_their_gpu_carries_with_the_same_types() {
        let all = attributes(mk_linked(mk_mig(false), Partitioning::Dynamic { whole: true }));
        let types = |set: &BTreeMap<&'static str, Value>| {
            set.iter().map(|(name, value)| (*name, value.kind())).collect::<Vec<_>>()
        };
        assert!(all.len() > 16 && all.iter().all(|set| types(set) == types(&all[0])));
        let [whole, part] = [0, 1].map(|at| all[at].clone());
        let differing: Vec<_> =
            ALL.iter().map(|known| known.name).filter(|name| whole.get(name) != part.get(name)).collect();
        let own = [
            "type",
            "uuid",
            "profile",
            "migEnabled",
            "nvlinkVersion",
            "nvlinkLinks",
            "nvlinkDomain",
            "nvlinkClique",
            "nvlinkPair",
        ];
        assert_eq!(differing, own);
        assert_eq!(
            (&part["uuid"], &part["profile"]),
            (&Value::String(String::new()), &Value::String("1g.5gb".to_owned()))
        );
        assert_eq!((&whole["migEnabled"], &part["migEnabled"]), (&Value::Bool(false), &Value::Bool(true)));
    }

    #[test]
    fn no_two_devices_have_a_group_of_links_in_common_with_a_part() {
        let mut gpu = mk_linked(mk_mig(false), Partitioning::Dynamic { whole: true });
        for uuid in [gpu.uuid.clone(), crate::device::GpuUuid::parse(&format!("GPU-{}", "a".repeat(60))).unwrap()] {
            gpu.uuid = uuid;
            let all = attributes(gpu.clone());
            for name in ["nvlinkDomain", "nvlinkClique", "nvlinkPair", "nvlinkCliques"] {
                let values: BTreeSet<_> = all.iter().map(|set| format!("{:?}", set[name])).collect();
                assert_eq!(values.len(), all.len(), "{name}");
            }
            assert!(all.iter().all(|set| matches!(&set["nvlinkDomain"], Value::String(text) if text.len() <= 64)));
        }
    }

    #[test]
    fn the_mode_that_a_claim_switches_changes_nothing_and_an_administrators_device_has_its_uuid() {
        let dynamic = |enabled| attributes(mk_linked(mk_mig(enabled), Partitioning::Dynamic { whole: true }));
        assert_eq!(dynamic(true), dynamic(false));
        let instance = mk_instance(7, 19, 0, &[1]);
        let uuid = instance.compute[0].uuid.to_string();
        let made = attributes(mk_linked(Mig { instances: vec![instance], ..mk_mig(true) }, Partitioning::Static));
        assert_eq!(made[1]["uuid"], Value::String(uuid));
        assert_eq!(made[1]["parentUUID"], Value::String(mk_gpu(0).uuid.to_string()));
    }
}
