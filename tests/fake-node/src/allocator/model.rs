//! As much of `resource.k8s.io/v1` as allocation looks at. What is absent or null is empty, as for the API server.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

#[derive(Debug, Deserialize)]
pub(super) struct Metadata {
    pub(super) name: String,
}

/// Names a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(super) struct DeviceId {
    pub(super) driver: String,
    pub(super) pool: String,
    pub(super) device: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Slice {
    pub(super) metadata: Metadata,
    pub(super) spec: SliceSpec,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SliceSpec {
    pub(super) driver: String,
    pub(super) pool: Pool,
    pub(super) node_name: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) all_nodes: bool,
    /// Read one by one: each is kept as it is for the expressions.
    #[serde(default, deserialize_with = "or_default")]
    pub(super) devices: Vec<Value>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) shared_counters: Vec<CounterSet>,
}

/// Counters by name, of a slice or taken by a device.
#[derive(Debug, Deserialize)]
pub(super) struct CounterSet {
    #[serde(alias = "counterSet")]
    pub(super) name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) counters: BTreeMap<String, Counter>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Counter {
    pub(super) value: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Pool {
    pub(super) name: String,
    #[serde(default)]
    pub(super) generation: i64,
    pub(super) resource_slice_count: usize,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Device {
    pub(super) name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) attributes: BTreeMap<String, Value>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) capacity: BTreeMap<String, Capacity>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) taints: Vec<Taint>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) consumes_counters: Vec<CounterSet>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) allow_multiple_allocations: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct Capacity {
    pub(super) value: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Taint {
    pub(super) key: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) value: String,
    pub(super) effect: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Toleration {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) key: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) operator: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) value: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) effect: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Class {
    pub(super) metadata: Metadata,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) spec: ClassSpec,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ClassSpec {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) selectors: Vec<Selector>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) config: Vec<serde_json::Map<String, Value>>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Selector {
    pub(super) cel: CelSelector,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct CelSelector {
    pub(super) expression: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Claim {
    pub(super) metadata: Metadata,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) spec: ClaimSpec,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) status: ClaimStatus,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ClaimSpec {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) devices: Devices,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Devices {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) requests: Vec<DeviceRequest>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) constraints: Vec<DeviceConstraint>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) config: Vec<ClaimConfig>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeviceRequest {
    pub(super) name: String,
    pub(super) exactly: Option<Exactly>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) first_available: Vec<SubRequest>,
}

#[derive(Debug, Deserialize)]
pub(super) struct SubRequest {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) exactly: Exactly,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Exactly {
    pub(super) device_class_name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) selectors: Vec<Selector>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) allocation_mode: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) count: usize,
    pub(super) admin_access: Option<bool>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) tolerations: Vec<Value>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) capacity: CapacityRequests,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct CapacityRequests {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) requests: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeviceConstraint {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) requests: Vec<String>,
    pub(super) match_attribute: Option<String>,
    pub(super) distinct_attribute: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ClaimConfig {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) requests: Vec<String>,
    /// The configuration itself: `opaque`.
    #[serde(flatten)]
    pub(super) device: serde_json::Map<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ClaimStatus {
    pub(super) allocation: Option<Allocation>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Allocation {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) devices: AllocatedDevices,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct AllocatedDevices {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) results: Vec<AllocatedDevice>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AllocatedDevice {
    #[serde(flatten)]
    pub(super) id: DeviceId,
    pub(super) admin_access: Option<bool>,
}

// === impl DeviceId ===

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.driver, self.pool, self.device)
    }
}

// === impl Toleration ===

impl Toleration {
    /// Whether a taint does not matter.
    pub(super) fn tolerates(&self, taint: &Taint) -> bool {
        let exists = self.operator == "Exists";
        (self.effect.is_empty() || self.effect == taint.effect)
            && (if self.key.is_empty() { exists } else { self.key == taint.key })
            && (exists || self.value == taint.value)
    }
}

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}
