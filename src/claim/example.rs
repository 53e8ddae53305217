//! Claims and nodes for tests.

use serde_json::{Value, json};

use super::{AllocationResult, Claim, ClaimName, ClaimUid, OpaqueConfig};
pub(crate) use crate::device::example::{mk_gpu, mk_uuid};
use crate::device::{Driver, Node};

pub(crate) const POOL: &str = "node-a";

pub(crate) fn mk_node(gpus: u32) -> Node {
    let driver = Driver { version: Some("580.105.08".to_owned()), cuda_version: None };
    Node { driver, gpus: (0..gpus).map(mk_gpu).collect(), absent: Vec::new() }
}

pub(crate) fn mk_uid(text: &str) -> ClaimUid {
    ClaimUid::parse(text).unwrap()
}

/// A claim named after its UID, with one result for each pair of request and device.
pub(crate) fn mk_claim(uid: &str, results: &[(&str, &str)]) -> Claim {
    let result = |&(request, device): &(&str, &str)| AllocationResult {
        request: request.to_owned(),
        pool: POOL.to_owned(),
        device: device.to_owned(),
        share_id: None,
        admin_access: false,
    };
    Claim {
        uid: mk_uid(uid),
        name: ClaimName { namespace: "team".to_owned(), name: uid.to_owned() },
        results: results.iter().map(result).collect(),
        configs: Vec::new(),
        statuses: Vec::new(),
    }
}

pub(crate) fn mk_config(requests: &[&str], kind: &str, mut fields: Value) -> OpaqueConfig {
    fields["apiVersion"] = json!("resource.nvidia.com/v1beta1");
    fields["kind"] = json!(kind);
    OpaqueConfig { requests: requests.iter().map(ToString::to_string).collect(), parameters: fields.to_string() }
}
