//! Names of an allocation → GPUs and parts of GPUs.

use super::{Part, PlanError, Planned, Usage, Wanted};
use crate::device::mig::Placement;
use crate::device::{DeviceName, Gpu, Node, Partition};

/// Finds what a name of our pool stands for. A part that an administrator made must exist; one that is made on demand must
/// be a place of its GPU.
pub(super) fn find(wanted: Wanted, pool: &str, node: &Node) -> Result<Planned, PlanError> {
    if wanted.pool != pool {
        return Err(PlanError::Pool { device: wanted.device, pool: wanted.pool, ours: pool.to_owned() });
    }
    let is_gpu = |gpu: &&Gpu| gpu.name.as_str() == wanted.device;
    let is_parent = |name: &DeviceName| name.is_parent_of(&wanted.device);
    if let Some(gpu) = node.gpus.iter().find(is_gpu) {
        return whole(gpu, wanted);
    }
    if let Some(gpu) = node.gpus.iter().find(|gpu| is_parent(&gpu.name)) {
        return part(gpu, wanted);
    }
    if let Some(name) = node.absent.iter().find(|name| name.as_str() == wanted.device || is_parent(name)) {
        return Err(PlanError::Absent { device: name.to_string() });
    }
    let has = node.gpus.iter().map(|gpu| gpu.name.clone()).collect();
    Err(PlanError::Unknown { device: wanted.device, has })
}

fn whole(gpu: &Gpu, wanted: Wanted) -> Result<Planned, PlanError> {
    if wanted.usage != Usage::Admin {
        if !gpu.is_offered_whole() {
            return Err(PlanError::Partitioned { device: gpu.name.to_string() });
        }
        refuse_foreign(gpu, &gpu.name, None)?;
    }
    Ok(Planned { wanted, gpu: gpu.uuid.clone(), part: None })
}

fn part(gpu: &Gpu, wanted: Wanted) -> Result<Planned, PlanError> {
    let Some(found) = Partition::all(gpu).into_iter().find(|part| part.name.as_str() == wanted.device) else {
        return Err(PlanError::Gone { device: wanted.device });
    };
    refuse_foreign(gpu, &found.name, Some(found.placement))?;
    let part = Part { profile: found.profile.id, placement: found.placement, uuid: found.uuid.cloned() };
    Ok(Planned { wanted, gpu: gpu.uuid.clone(), part: Some(part) })
}

/// Refuses what would need a place that is taken by others, on a GPU that this plugin partitions.
fn refuse_foreign(gpu: &Gpu, device: &DeviceName, place: Option<Placement>) -> Result<(), PlanError> {
    let covers = |other: Placement| place.is_none_or(|place| place.overlaps(other));
    let foreign = gpu.mig.instances.iter().filter(|instance| gpu.is_dynamic() && instance.foreign);
    match foreign.clone().find(|instance| covers(instance.placement)) {
        Some(instance) => Err(PlanError::Foreign { device: device.to_string(), instance: instance.id }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Plan, plan};
    use super::*;
    use crate::claim::Claim;
    use crate::claim::example::{POOL, mk_claim, mk_node, mk_uuid};
    use crate::device::Partitioning;
    use crate::device::example::{mk_instance, mk_mig};

    fn refusal(claim: &Claim) -> String {
        plan(claim, POOL, &mk_node(2)).unwrap_err().to_string()
    }

    /// `gpu-0` has a 3g and a 1g that an administrator made, `gpu-1` is partitioned on demand.
    fn mk_partitioned() -> Node {
        let mut node = mk_node(2);
        node.gpus[0].mig = mk_mig(true);
        node.gpus[0].mig.instances = vec![mk_instance(2, 9, 4, &[3]), mk_instance(7, 19, 0, &[1])];
        (node.gpus[1].mig, node.gpus[1].partitioning) = (mk_mig(true), Partitioning::Dynamic { whole: true });
        node
    }

    fn planned(device: &str, node: &Node) -> Result<Plan, String> {
        plan(&mk_claim("a", &[("main", device)]), POOL, node).map_err(|error| error.to_string())
    }

    #[test]
    fn what_the_node_does_not_have_is_refused() {
        assert_eq!(refusal(&mk_claim("a", &[])), "nothing in the claim's allocation is from this driver");
        let expected = "the node has no device gpu-9; it has gpu-0, gpu-1";
        assert_eq!(refusal(&mk_claim("a", &[("main", "gpu-9")])), expected);
        let error = plan(&mk_claim("a", &[("main", "gpu-0")]), POOL, &Node::default()).unwrap_err();
        assert_eq!(error.to_string(), "the node has no device gpu-0; it has none");
        let node = Node { absent: vec![DeviceName::gpu(0)], ..Node::default() };
        let error = plan(&mk_claim("a", &[("main", "gpu-0")]), POOL, &node).unwrap_err();
        assert!(error.to_string().starts_with("the GPU gpu-0 is gone from the node; bring it back"), "{error}");
        let mut claim = mk_claim("a", &[("main", "gpu-0")]);
        claim.results[0].pool = "node-b".into();
        assert_eq!(refusal(&claim), "gpu-0 was allocated from the pool node-b, but this node's pool is node-a");
    }

    #[test]
    fn a_gpu_in_mig_mode_is_no_whole_gpu() {
        let mut node = mk_node(1);
        node.gpus[0].mig.enabled = true;
        let mut claim = mk_claim("a", &[("main", "gpu-0")]);
        let error = plan(&claim, POOL, &node).unwrap_err();
        assert_eq!(error.to_string(), "gpu-0 cannot be used as a whole GPU: MIG mode is on");
        claim.results[0].admin_access = true;
        assert!(plan(&claim, POOL, &node).is_ok());
    }

    #[test]
    fn a_device_that_an_administrator_made_is_found_with_its_uuid() {
        let node = mk_partitioned();
        let device = planned("gpu-0-mig-3g20gb-9-4", &node).unwrap().devices.remove(0);
        let uuid = node.gpus[0].mig.instances[0].compute[0].uuid.clone();
        let part = Part { profile: 9, placement: Placement { start: 4, size: 4 }, uuid: Some(uuid) };
        assert_eq!((device.gpu, device.part), (mk_uuid(0), Some(part)));
        assert_eq!(planned("gpu-0", &node).unwrap_err(), "gpu-0 cannot be used as a whole GPU: MIG mode is on");
    }

    #[test]
    fn a_device_that_is_made_on_demand_is_found_by_its_place() {
        let node = mk_partitioned();
        let device = planned("gpu-1-mig-1g5gb-19-6", &node).unwrap().devices.remove(0);
        let part = Part { profile: 19, placement: Placement { start: 6, size: 1 }, uuid: None };
        assert_eq!((device.gpu, device.part), (mk_uuid(1), Some(part)));
        let whole = planned("gpu-1", &node).unwrap().devices.remove(0);
        assert_eq!(
            (whole.gpu, whole.part),
            (mk_uuid(1), None),
            "the mode that this plugin turned on is not in the way"
        );
    }

    #[test]
    fn a_part_that_is_no_more_is_refused_in_words() {
        let mut node = mk_partitioned();
        node.gpus[0].mig.instances.remove(1);
        for device in ["gpu-0-mig-1g5gb-19-0", "gpu-1-mig-1g5gb-19-7", "gpu-1-mig-"] {
            let error = planned(device, &node).unwrap_err();
            assert!(error.starts_with(&format!("the MIG device {device} is gone from the node; make it")), "{error}");
        }
        node.absent = vec![DeviceName::gpu(5)];
        let error = planned("gpu-5-mig-1g5gb-19-0", &node).unwrap_err();
        assert!(error.starts_with("the GPU gpu-5 is gone from the node"), "{error}");
        let error = planned("gpu-10-mig-1g5gb-19-0", &node).unwrap_err();
        assert!(error.starts_with("the node has no device gpu-10-mig-1g5gb-19-0"), "{error}");
    }

    #[test]
    fn what_others_made_is_in_the_way_of_what_it_covers() {
        let mut node = mk_partitioned();
        node.gpus[1].mig.instances = vec![mk_instance(7, 19, 0, &[])];
        assert!(planned("gpu-1", &node).is_ok(), "it is this plugin's");
        node.gpus[1].mig.instances[0].foreign = true;
        for device in ["gpu-1", "gpu-1-mig-3g20gb-9-0", "gpu-1-mig-1g5gb-19-0"] {
            let error = planned(device, &node).unwrap_err();
            let expected = "cannot be had while the GPU has the GPU instance 7, which this driver did not make";
            assert!(error.starts_with(&format!("{device} {expected}")), "{error}");
        }
        assert!(planned("gpu-1-mig-3g20gb-9-4", &node).is_ok());
        let mut claim = mk_claim("a", &[("main", "gpu-1")]);
        claim.results[0].admin_access = true;
        assert!(plan(&claim, POOL, &node).is_ok(), "to look is always allowed");
    }
}
