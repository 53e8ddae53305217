//! Devices share the value of an NVLink attribute exactly if the links of the topology file join their GPUs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use topology::{Fabric, Gpu, LinkEnd, Topology};

use crate::Machine;

/// `NVML_GPU_FABRIC_STATE_COMPLETED`: the fabric manager has let the GPU in.
const REGISTERED: u8 = 3;

/// The cluster UUID of GPUs whose fabric ends with their node.
const NO_CLUSTER: &str = "00000000-0000-0000-0000-000000000000";

/// Whether two GPUs of a machine, by index, talk over NVLinks that are up: directly, or through switches of a fabric that
/// has let both in.
pub(crate) fn joined(machine: &Topology, a: usize, b: usize) -> bool {
    let (gpu_a, gpu_b) = (&machine.gpus[a], &machine.gpus[b]);
    let directly = has_link(gpu_a, |end| *end == LinkEnd::Gpu(b)) && has_link(gpu_b, |end| *end == LinkEnd::Gpu(a));
    let on_switch = |gpu: &Gpu| has_link(gpu, |end| !matches!(end, LinkEnd::Gpu(_))) && is_let_in(gpu);
    directly || on_switch(gpu_a) && on_switch(gpu_b) && membership(gpu_a) == membership(gpu_b)
}

/// Whether any two of some GPUs of a machine, by index, talk over NVLink.
pub(crate) fn has_joined(machine: &Topology, gpus: &[usize]) -> bool {
    couples(machine).any(|(a, b)| gpus.contains(&a) && gpus.contains(&b) && joined(machine, a, b))
}

fn has_link(gpu: &Gpu, leads: impl Fn(&LinkEnd) -> bool) -> bool {
    gpu.nvlinks.iter().any(|group| group.active && group.count > 0 && leads(&group.to))
}

/// Boards before Hopper register with no fabric: their switches serve every GPU.
fn is_let_in(gpu: &Gpu) -> bool {
    gpu.fabric.as_ref().is_none_or(|Fabric { state, status, .. }| *state == REGISTERED && *status == 0)
}

/// Cluster and clique of the fabric that a GPU is in.
fn membership(gpu: &Gpu) -> Option<(&str, u32)> {
    let fabric = gpu.fabric.as_ref().filter(|_| is_let_in(gpu))?;
    Some((&fabric.cluster_uuid, fabric.clique_id))
}

/// Two different GPUs each, by index.
fn couples(machine: &Topology) -> impl Iterator<Item = (usize, usize)> {
    let count = machine.gpus.len();
    (0..count).flat_map(move |a| (a + 1..count).map(move |b| (a, b)))
}

fn attribute<'a>(machine: &'a Machine, gpu: usize, name: &str, kind: &str) -> &'a Value {
    &machine.device(&machine.topology.gpus[gpu])["attributes"][name][kind]
}

fn share(machine: &Machine, attribute_name: &str, a: usize, b: usize) -> bool {
    let [value_a, value_b] = [a, b].map(|gpu| attribute(machine, gpu, attribute_name, "string").as_str().unwrap());
    assert!(!value_a.is_empty() && !value_b.is_empty(), "{}: {attribute_name} is empty", machine.name);
    value_a == value_b
}

#[test]
fn devices_share_a_domain_and_a_clique_exactly_if_links_join_their_gpus() {
    for machine in Machine::all() {
        for (a, b) in couples(&machine.topology) {
            let expected = joined(&machine.topology, a, b);
            for attribute in ["nvlinkDomain", "nvlinkClique"] {
                assert_eq!(share(&machine, attribute, a, b), expected, "{}: {attribute} of {a}, {b}", machine.name);
            }
        }
    }
}

/// Domains and cliques are alike on these machines because of this. One with GPUs that reach each other only through a
/// third needs a test of its own.
#[test]
fn on_every_machine_gpus_that_are_joined_to_the_same_gpu_are_joined_to_each_other() {
    for machine in Machine::all() {
        let joined = |a: usize, b: usize| joined(&machine.topology, a, b);
        for (a, b) in couples(&machine.topology) {
            for c in (0..machine.topology.gpus.len()).filter(|c| *c != a && *c != b) {
                assert!(!(joined(a, c) && joined(c, b)) || joined(a, b), "{}: {a}, {b}, {c}", machine.name);
            }
        }
    }
}

#[test]
fn a_pair_is_two_joined_gpus_and_nobody_is_left_who_could_have_a_partner() {
    for machine in Machine::all() {
        let count = machine.topology.gpus.len();
        let partners =
            |gpu: usize| (0..count).filter(|other| *other != gpu && share(&machine, "nvlinkPair", gpu, *other)).count();
        for (a, b) in couples(&machine.topology) {
            let (paired, could) = (share(&machine, "nvlinkPair", a, b), joined(&machine.topology, a, b));
            assert!(!paired || could, "{}: {a} and {b} are a pair without a link", machine.name);
            assert!(!could || partners(a) > 0 || partners(b) > 0, "{}: {a} and {b} are both alone", machine.name);
        }
        assert!((0..count).all(|gpu| partners(gpu) <= 1), "{}: a pair of more than two", machine.name);
    }
}

#[test]
fn links_that_are_up_are_counted_and_have_a_version() {
    for machine in Machine::all() {
        for (index, gpu) in machine.topology.gpus.iter().enumerate() {
            let links: u32 = gpu.nvlinks.iter().filter(|group| group.active).map(|group| group.count).sum();
            let version = gpu.nvlink_version.filter(|_| links > 0).unwrap_or(0);
            assert_eq!(*attribute(&machine, index, "nvlinkLinks", "int"), links, "{}: {index}", machine.name);
            assert_eq!(*attribute(&machine, index, "nvlinkVersion", "int"), version, "{}: {index}", machine.name);
        }
    }
}

#[test]
fn a_domain_that_spans_nodes_is_named_after_its_fabric() {
    let mut seen = 0;
    for machine in Machine::all() {
        for (index, gpu) in machine.topology.gpus.iter().enumerate() {
            if let Some((cluster, clique)) = membership(gpu).filter(|(cluster, _)| *cluster != NO_CLUSTER) {
                let name = format!("{cluster}.{clique}");
                assert_eq!(*attribute(&machine, index, "nvlinkDomain", "string"), *name, "{}", machine.name);
                seen += 1;
            }
        }
    }
    assert!(seen > 0, "no machine has a fabric that spans nodes");
}

#[test]
fn other_machines_never_have_the_same_value() {
    for attribute in ["nvlinkDomain", "nvlinkClique", "nvlinkPair"] {
        let mut owners = BTreeMap::new();
        for machine in Machine::all() {
            let values = machine.devices().map(|device| device["attributes"][attribute]["string"].to_string());
            for value in values.collect::<BTreeSet<_>>() {
                if let Some(other) = owners.insert(value, machine.name) {
                    panic!("{} and {other} share an {attribute}", machine.name);
                }
            }
        }
    }
}
