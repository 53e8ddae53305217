//! Allocation → plan: which GPUs a claim gets, and whether it may have them.
//!
//! ```text
//!  Claim ──wanted──▶ [Wanted] ──plan, with the node's GPUs──▶ Plan ──admit, with other claims──▶ carried out
//!                    what was     names become UUIDs,               nobody else has
//!                    allocated    configs are checked               these GPUs
//! ```
//!
//! The steps are apart because of what happens between them: a repeated prepare needs only the first, and the GPUs are
//! locked before the last.

mod admission;
mod configs;
mod error;
mod find;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

pub use self::admission::{Holder, Holders};
pub use self::error::PlanError;
use super::{AllocationResult, Claim};
use crate::device::mig::Placement;
use crate::device::{GpuUuid, MigUuid, Node};

/// What is to be done for a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Each device of the claim once, or once for each share of it, in the order of the allocation.
    pub devices: Vec<Planned>,
}

/// A device of a claim, found on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    /// What the allocation says.
    #[serde(flatten)]
    pub wanted: Wanted,
    /// Which GPU that is, or is a part of. The name may move to another GPU, the claim does not.
    pub gpu: GpuUuid,
    /// Which part of it; `None` is all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
}

/// A part of a GPU that a claim gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    /// Its profile's id on this GPU.
    pub profile: u32,
    /// Where it is.
    #[serde(flatten)]
    pub placement: Placement,
    /// The MIG device that an administrator made. `None`: this plugin makes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<MigUuid>,
}

/// A device of a claim, as the allocation names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wanted {
    /// The pool it was allocated from.
    pub pool: String,
    /// Its name in the pool.
    pub device: String,
    /// Which share, where the device can be allocated several times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_id: Option<String>,
    /// The requests it satisfies, by the names that pods know them by.
    pub requests: Vec<String>,
    /// In which way.
    pub usage: Usage,
}

/// How a claim uses a device; the stronger the later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Usage {
    /// With admin access: to look, beside whoever uses it.
    Admin,
    /// A share of it, beside other shares.
    Shared,
    /// Alone.
    Exclusive,
}

// === impl Plan ===

impl Plan {
    /// The GPUs of which the claim has something to itself. At others it only looks, which changes nothing.
    pub fn gpus(&self) -> BTreeSet<GpuUuid> {
        self.devices.iter().filter(|device| device.uses_gpu()).map(|device| device.gpu.clone()).collect()
    }
}

// === impl Planned ===

impl Planned {
    /// Whether the claim does more with the GPU than look at it.
    pub fn uses_gpu(&self) -> bool {
        self.wanted.usage != Usage::Admin
    }
}

// === impl Usage ===

impl Usage {
    fn of(result: &AllocationResult) -> Self {
        match (result.admin_access, &result.share_id) {
            (true, _) => Self::Admin,
            (false, Some(_)) => Self::Shared,
            (false, None) => Self::Exclusive,
        }
    }
}

/// Plans a claim against the devices of this node's pool.
pub fn plan(claim: &Claim, pool: &str, node: &Node) -> Result<Plan, PlanError> {
    let configs = configs::read(claim)?;
    let wanted = wanted(claim);
    if wanted.is_empty() {
        return Err(PlanError::Nothing);
    }
    let devices: Result<Vec<_>, _> = wanted.into_iter().map(|wanted| find::find(wanted, pool, node)).collect();
    let plan = Plan { devices: devices? };
    admission::refuse_overlap(&plan.devices)?;
    configs::check(&configs, claim, &plan)?;
    Ok(plan)
}

/// What the allocation gives the claim: results for one device, or for one share of it, are one.
pub fn wanted(claim: &Claim) -> Vec<Wanted> {
    let mut all: Vec<Wanted> = Vec::new();
    for result in &claim.results {
        let AllocationResult { request: _, pool, device, share_id, admin_access: _ } = result;
        let (request, usage) = (result.base_request(), Usage::of(result));
        let same = |wanted: &&mut Wanted| (&wanted.pool, &wanted.device, &wanted.share_id) == (pool, device, share_id);
        if let Some(wanted) = all.iter_mut().find(same) {
            wanted.usage = wanted.usage.max(usage);
            if !wanted.requests.iter().any(|known| known == request) {
                wanted.requests.push(request.to_owned());
            }
        } else {
            let (pool, device, share_id) = (pool.clone(), device.clone(), share_id.clone());
            all.push(Wanted { pool, device, share_id, requests: vec![request.to_owned()], usage });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::example::{POOL, mk_claim, mk_node, mk_uuid};
    use super::*;

    #[test]
    fn names_become_gpus_and_requests_become_base_names() {
        let plan = plan(&mk_claim("a", &[("main/big", "gpu-1"), ("other", "gpu-0")]), POOL, &mk_node(2)).unwrap();
        let devices: Vec<_> = plan.devices.iter().map(|d| (d.wanted.requests[0].as_str(), d.gpu.clone())).collect();
        assert_eq!(devices, [("main", mk_uuid(1)), ("other", mk_uuid(0))]);
    }

    #[test]
    fn one_device_for_two_requests_is_one_device_with_two_requests() {
        let results = [("a", "gpu-0"), ("b", "gpu-0"), ("b", "gpu-0")];
        let plan = plan(&mk_claim("a", &results), POOL, &mk_node(2)).unwrap();
        assert_eq!(plan.devices.len(), 1);
        assert_eq!(plan.devices[0].wanted.requests, ["a", "b"]);
    }

    #[test]
    fn two_shares_of_one_device_stay_two() {
        let mut claim = mk_claim("a", &[("a", "gpu-0"), ("b", "gpu-0")]);
        claim.results[0].share_id = Some("one".into());
        claim.results[1].share_id = Some("two".into());
        assert_eq!(plan(&claim, POOL, &mk_node(2)).unwrap().devices.len(), 2);
    }

    #[test]
    fn results_are_one_if_pool_device_and_share_are_the_same() {
        let result = |pool: &str, device: &str, share: Option<&str>| {
            let mut result = mk_claim("a", &[("main", device)]).results.remove(0);
            (result.pool, result.share_id) = (pool.to_owned(), share.map(str::to_owned));
            result
        };
        let whole = result("a", "gpu-0", None);
        let cases = [
            (result("a", "gpu-0", None), 1),
            (result("b", "gpu-0", None), 2),
            (result("a", "gpu-1", None), 2),
            (result("a", "gpu-0", Some("one")), 2),
        ];
        for (other, expected) in cases {
            let claim = Claim { results: vec![whole.clone(), other.clone(), whole.clone()], ..mk_claim("a", &[]) };
            let wanted = wanted(&claim);
            assert_eq!(wanted.len(), expected, "{other:?}");
            assert!(wanted.iter().all(|wanted| wanted.requests == ["main"]), "{other:?}");
        }
    }

    #[test]
    fn real_use_outweighs_admin_access_to_the_same_device() {
        let mut claim = mk_claim("a", &[("a", "gpu-0"), ("b", "gpu-0")]);
        claim.results[0].admin_access = true;
        assert_eq!(wanted(&claim)[0].usage, Usage::Exclusive);
    }

    #[test]
    fn what_was_recorded_before_there_were_parts_is_a_whole_gpu() {
        let plan = plan(&mk_claim("a", &[("main", "gpu-0")]), POOL, &mk_node(1)).unwrap();
        let whole = &plan.devices[0];
        let written = serde_json::to_value(whole).unwrap();
        assert!(written.get("part").is_none(), "and is written as it was: {written}");
        assert_eq!(serde_json::from_value::<Planned>(written.clone()).unwrap(), *whole);
        let placement = Placement { start: 4, size: 4 };
        for uuid in [None, Some(MigUuid::parse("MIG-c7384736-a75d-5afc-978f-d2f1294409fd").unwrap())] {
            let planned = Planned { part: Some(Part { profile: 9, placement, uuid }), ..whole.clone() };
            let written = serde_json::to_value(&planned).unwrap();
            assert_eq!((&written["part"]["profile"], &written["part"]["start"]), (&9.into(), &4.into()));
            assert_eq!(serde_json::from_value::<Planned>(written).unwrap(), planned);
        }
    }
}
