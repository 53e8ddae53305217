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

mod configs;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::config::{ConfigError, SharingStrategy};
use super::{AllocationResult, Claim, ClaimName, ClaimUid};
use crate::device::{DeviceName, GpuUuid, Node};

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
    /// Which GPU that is. The name may move to another GPU, the claim does not.
    pub gpu: GpuUuid,
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

/// Who holds which GPU.
pub type Holders = BTreeMap<GpuUuid, Vec<Holder>>;

/// A claim that holds a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its identity.
    pub uid: ClaimUid,
    /// Its name, for people. `None` if nobody knows it any more.
    pub name: Option<ClaimName>,
    /// How it uses the GPU.
    pub usage: Usage,
}

/// Why a claim cannot be prepared as it is. Trying again does not help until the claim, the node or another claim changes;
/// [`InUse`](Self::InUse) and [`Absent`](Self::Absent) are those where that may happen by itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No result names our driver.
    #[error("nothing in the claim's allocation is from this driver")]
    Nothing,
    /// Allocated from a pool that is another node's, or from one of an earlier name.
    #[error("{device} was allocated from the pool {pool}, but this node's pool is {ours}")]
    Pool {
        /// The device.
        device: String,
        /// The pool it was allocated from.
        pool: String,
        /// The pool of this node.
        ours: String,
    },
    /// The node has no such device.
    #[error("the node has no device {device}; it has {}", list(has))]
    Unknown {
        /// The name in the allocation.
        device: String,
        /// What there is.
        has: Vec<DeviceName>,
    },
    /// The node had it, and may have it again.
    #[error("the GPU {device} is gone from the node; bring it back, or delete the pod so that it is given another")]
    Absent {
        /// The name in the allocation.
        device: String,
    },
    /// The GPU is partitioned.
    #[error("{device} cannot be used as a whole GPU: MIG mode is on")]
    Partitioned {
        /// The device.
        device: DeviceName,
    },
    /// Another claim has it.
    #[error("{device} is in use by claim {holder} until that claim's pods are gone from this node")]
    InUse {
        /// The device.
        device: String,
        /// The claim that holds it.
        holder: Holder,
    },
    /// A configuration cannot be read.
    #[error("configuration {number} of the claim: {error}")]
    Config {
        /// Position among those addressed to this driver, from 1.
        number: usize,
        /// What is wrong with it.
        error: ConfigError,
    },
    /// A configuration is for another type of device than its request was given.
    #[error(
        "configuration {number} of the claim: {kind} names the request {request}, which was given the whole GPU {device}"
    )]
    WrongKind {
        /// Position among those addressed to this driver, from 1.
        number: usize,
        /// Its kind.
        kind: &'static str,
        /// The request it names.
        request: String,
        /// What that request was given.
        device: String,
    },
    /// A configuration asks for something that this driver does not do.
    #[error("{device}: sharing with the strategy {strategy} is not supported by this version of the driver")]
    Sharing {
        /// The device.
        device: String,
        /// What was asked for.
        strategy: SharingStrategy,
    },
}

// === impl Plan ===

impl Plan {
    /// The GPUs of the claim.
    pub fn gpus(&self) -> BTreeSet<GpuUuid> {
        self.devices.iter().map(|device| device.gpu.clone()).collect()
    }

    /// Whether the claim may have its GPUs beside those who hold them now. This is about silicon, not about names: the
    /// scheduler allocates names, and after a force-deleted pod or a lost name its books and the machine can differ.
    pub fn admit(&self, uid: &ClaimUid, holders: &Holders) -> Result<(), PlanError> {
        for device in &self.devices {
            let others = holders.get(&device.gpu).into_iter().flatten().filter(|holder| holder.uid != *uid);
            for other in others {
                if !device.wanted.usage.goes_with(other.usage) {
                    let device = device.wanted.device.clone();
                    return Err(PlanError::InUse { device, holder: other.clone() });
                }
            }
        }
        Ok(())
    }
}

// === impl Holder ===

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => name.fmt(f),
            None => write!(f, "with the UID {}", self.uid),
        }
    }
}

// === impl Usage ===

impl Usage {
    fn goes_with(self, other: Self) -> bool {
        matches!((self, other), (Self::Admin, _) | (_, Self::Admin) | (Self::Shared, Self::Shared))
    }

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
    configs::check(claim)?;
    let wanted = wanted(claim);
    if wanted.is_empty() {
        return Err(PlanError::Nothing);
    }
    let devices: Result<_, _> = wanted.into_iter().map(|wanted| find(wanted, pool, node)).collect();
    Ok(Plan { devices: devices? })
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

fn find(wanted: Wanted, pool: &str, node: &Node) -> Result<Planned, PlanError> {
    if wanted.pool != pool {
        return Err(PlanError::Pool { device: wanted.device, pool: wanted.pool, ours: pool.to_owned() });
    }
    let Some(gpu) = node.gpus.iter().find(|gpu| gpu.name.as_str() == wanted.device) else {
        let device = wanted.device;
        if node.absent.iter().any(|name| name.as_str() == device) {
            return Err(PlanError::Absent { device });
        }
        let has = node.gpus.iter().map(|gpu| gpu.name.clone()).collect();
        return Err(PlanError::Unknown { device, has });
    };
    if gpu.mig.enabled && wanted.usage != Usage::Admin {
        return Err(PlanError::Partitioned { device: gpu.name.clone() });
    }
    Ok(Planned { wanted, gpu: gpu.uuid.clone() })
}

fn list(names: &[DeviceName]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names.iter().map(DeviceName::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::example::{POOL, mk_claim, mk_node, mk_uid, mk_uuid};
    use super::*;

    fn refusal(claim: &Claim) -> String {
        plan(claim, POOL, &mk_node(2)).unwrap_err().to_string()
    }

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
    fn a_gpu_goes_to_two_claims_only_as_shares_or_with_admin_access() {
        use Usage::{Admin, Exclusive, Shared};
        let cases = [
            (Exclusive, Exclusive, false),
            (Exclusive, Shared, false),
            (Shared, Exclusive, false),
            (Shared, Shared, true),
            (Admin, Exclusive, true),
            (Exclusive, Admin, true),
        ];
        for (mine, theirs, legal) in cases {
            let mut plan = plan(&mk_claim("a", &[("main", "gpu-0")]), POOL, &mk_node(1)).unwrap();
            plan.devices[0].wanted.usage = mine;
            let name = ClaimName { namespace: "team".into(), name: "b".into() };
            let holders =
                Holders::from([(mk_uuid(0), vec![Holder { uid: mk_uid("b"), name: Some(name), usage: theirs }])]);
            assert_eq!(plan.admit(&mk_uid("a"), &holders).is_ok(), legal, "{mine:?} beside {theirs:?}");
            assert!(plan.admit(&mk_uid("b"), &holders).is_ok(), "a claim is not in its own way");
        }
    }

    #[test]
    fn a_refusal_names_the_claim_that_holds_the_gpu() {
        let plan = plan(&mk_claim("a", &[("main", "gpu-0")]), POOL, &mk_node(1)).unwrap();
        let name = ClaimName { namespace: "team".into(), name: "b".into() };
        let holder = Holder { uid: mk_uid("b"), name: Some(name), usage: Usage::Exclusive };
        let error = plan.admit(&mk_uid("a"), &Holders::from([(mk_uuid(0), vec![holder])])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "gpu-0 is in use by claim team/b until that claim's pods are gone from this node"
        );
    }
}
