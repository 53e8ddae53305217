//! Claims and nodes for tests.

use serde_json::{Value, json};

use super::{AllocationResult, Claim, ClaimName, ClaimUid, OpaqueConfig};
use crate::device::{DeviceName, Driver, Gpu, GpuUuid, Mig, Node, Partitioning, PciAddress, Place};

pub(crate) const POOL: &str = "node-a";

pub(crate) fn mk_uuid(number: u32) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b{number}")).unwrap()
}

/// `gpu-<number>` with the minor of the same number.
pub(crate) fn mk_gpu(number: u32) -> Gpu {
    Gpu {
        name: DeviceName::gpu(number),
        uuid: mk_uuid(number),
        minor: number,
        pci: PciAddress { domain: 0, bus: 0x1b, device: 0, function: 0 },
        product_name: None,
        brand: None,
        architecture: None,
        cuda_compute_capability: None,
        memory_bytes: None,
        addressing_mode: None,
        mig: Mig::default(),
        partitioning: Partitioning::Static,
        links: Vec::new(),
        fabric: None,
        place: Place::default(),
        has_node: true,
    }
}

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
    }
}

pub(crate) fn mk_config(requests: &[&str], kind: &str, mut fields: Value) -> OpaqueConfig {
    fields["apiVersion"] = json!("resource.nvidia.com/v1beta1");
    fields["kind"] = json!(kind);
    OpaqueConfig { requests: requests.iter().map(ToString::to_string).collect(), parameters: fields.to_string() }
}
