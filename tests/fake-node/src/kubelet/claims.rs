//! The kubelet's claim cache: which claims of this node are or may be prepared, for which pods, with which devices.
//!
//! Entries are keyed by namespace and name and outlive the claim object. [`ClaimCache::checkpoint`] is the moment where
//! the real kubelet writes its state file; a restarted kubelet starts from the last one, and with nothing marked as
//! prepared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use super::proto::v1;

/// A device as a plugin returned it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedDevice {
    /// The driver that returned it.
    pub driver: String,
    /// The requests that it satisfies; empty means all.
    pub requests: Vec<String>,
    /// Its pool.
    pub pool: String,
    /// Its name.
    pub device: String,
    /// What the container runtime is told: `<vendor>/<class>=<name>`.
    pub cdi_ids: Vec<String>,
    /// Which share of a device that can be allocated several times.
    pub share_id: Option<String>,
}

/// A claim that the kubelet has asked plugins to prepare, as its pod resources API lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedClaim {
    /// Namespace of the claim.
    pub namespace: String,
    /// Name of the claim.
    pub name: String,
    /// UID of the claim.
    pub uid: String,
    /// UIDs of the pods that refer to it.
    pub pods: BTreeSet<String>,
    /// Whether all plugins have prepared it since the kubelet started.
    pub prepared: bool,
    /// What they returned.
    pub devices: Vec<PreparedDevice>,
}

/// An entry of the cache.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClaimInfo {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) pods: BTreeSet<String>,
    pub(crate) drivers: BTreeMap<String, Vec<PreparedDevice>>,
    pub(crate) prepared: bool,
}

type Claims = BTreeMap<(String, String), ClaimInfo>;

/// What survives a restart of the kubelet.
pub(crate) type Checkpoint = Arc<Mutex<Claims>>;

/// All entries of a running kubelet.
#[derive(Debug)]
pub(crate) struct ClaimCache {
    claims: Claims,
    checkpoint: Checkpoint,
}

// === impl ClaimInfo ===

impl ClaimInfo {
    /// From an allocated claim; the error says what is wrong with the claim.
    pub(crate) fn of(claim: &Value) -> Result<Self, &'static str> {
        let results = claim.pointer("/status/allocation").ok_or("not allocated")?.pointer("/devices/results");
        let drivers = results.and_then(Value::as_array).into_iter().flatten().filter_map(|r| r["driver"].as_str());
        let text = |pointer| claim.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(Self {
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name"),
            uid: text("/metadata/uid"),
            drivers: drivers.map(|driver| (driver.to_owned(), Vec::new())).collect(),
            ..Self::default()
        })
    }

    pub(crate) fn request(&self) -> v1::Claim {
        v1::Claim { namespace: self.namespace.clone(), uid: self.uid.clone(), name: self.name.clone() }
    }

    fn devices(&self) -> impl Iterator<Item = &PreparedDevice> {
        self.drivers.values().flatten()
    }
}

// === impl ClaimCache ===

impl ClaimCache {
    /// What the kubelet finds in its state file when it starts.
    pub(crate) fn load(checkpoint: Checkpoint) -> Self {
        let claims = checkpoint.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Self { claims, checkpoint }
    }

    /// Writes the state file.
    pub(crate) fn checkpoint(&self) {
        let mut claims = self.claims.clone();
        for info in claims.values_mut() {
            info.prepared = false;
        }
        *self.checkpoint.lock().unwrap_or_else(PoisonError::into_inner) = claims;
    }

    pub(crate) fn get(&mut self, namespace: &str, name: &str) -> Option<&mut ClaimInfo> {
        self.claims.get_mut(&(namespace.to_owned(), name.to_owned()))
    }

    pub(crate) fn by_uid(&mut self, uid: &str) -> Option<&mut ClaimInfo> {
        self.claims.values_mut().find(|info| info.uid == uid)
    }

    pub(crate) fn add(&mut self, info: ClaimInfo) {
        self.claims.insert((info.namespace.clone(), info.name.clone()), info);
    }

    pub(crate) fn remove(&mut self, namespace: &str, name: &str) {
        self.claims.remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Namespaces and names of the claims that a pod refers to.
    pub(crate) fn of_pod(&self, pod: &str) -> Vec<(String, String)> {
        self.claims.iter().filter(|(_, info)| info.pods.contains(pod)).map(|(key, _)| key.clone()).collect()
    }

    /// UIDs of all pods that any claim is prepared for.
    pub(crate) fn pods(&self) -> BTreeSet<String> {
        self.claims.values().flat_map(|info| info.pods.iter().cloned()).collect()
    }

    pub(crate) fn list(&self) -> Vec<PreparedClaim> {
        let prepared = |info: &ClaimInfo| PreparedClaim {
            namespace: info.namespace.clone(),
            name: info.name.clone(),
            uid: info.uid.clone(),
            pods: info.pods.clone(),
            prepared: info.prepared,
            devices: info.devices().cloned().collect(),
        };
        self.claims.values().map(prepared).collect()
    }
}

// === impl PreparedDevice ===

impl PreparedDevice {
    pub(crate) fn of(driver: &str, device: v1::Device) -> Self {
        Self {
            driver: driver.to_owned(),
            requests: device.request_names,
            pool: device.pool_name,
            device: device.device_name,
            cdi_ids: device.cdi_device_ids,
            share_id: device.share_id,
        }
    }
}

// === impl PreparedClaim ===

impl PreparedClaim {
    /// The CDI ids that a container gets which refers to this claim, or to one of its requests.
    pub fn cdi_ids(&self, request: Option<&str>) -> Vec<&str> {
        let wanted = |device: &&PreparedDevice| match request {
            Some(request) if !device.requests.is_empty() => device.requests.iter().any(|name| name == request),
            _ => true,
        };
        self.devices.iter().filter(wanted).flat_map(|device| &device.cdi_ids).map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn device(requests: &[&str], cdi: &str) -> PreparedDevice {
        PreparedDevice {
            driver: "d".into(),
            requests: requests.iter().map(ToString::to_string).collect(),
            pool: "p".into(),
            device: cdi.into(),
            cdi_ids: vec![cdi.into()],
            share_id: None,
        }
    }

    #[test]
    fn a_claim_without_an_allocation_has_no_entry() {
        assert_eq!(ClaimInfo::of(&json!({"metadata": {"name": "c"}})).unwrap_err(), "not allocated");
    }

    #[test]
    fn a_restart_finds_the_last_checkpoint_and_nothing_prepared() {
        let checkpoint = Checkpoint::default();
        let mut cache = ClaimCache::load(checkpoint.clone());
        cache.add(ClaimInfo { name: "kept".into(), prepared: true, ..ClaimInfo::default() });
        cache.checkpoint();
        cache.add(ClaimInfo { name: "lost".into(), ..ClaimInfo::default() });

        let claims = ClaimCache::load(checkpoint).list();
        assert_eq!(claims.iter().map(|c| (c.name.as_str(), c.prepared)).collect::<Vec<_>>(), [("kept", false)]);
    }

    #[test]
    fn a_container_gets_the_devices_of_its_request_and_those_of_all_requests() {
        let claim = PreparedClaim {
            namespace: String::new(),
            name: String::new(),
            uid: String::new(),
            pods: BTreeSet::new(),
            prepared: true,
            devices: vec![device(&["a"], "1"), device(&["b"], "2"), device(&[], "3")],
        };
        assert_eq!(claim.cdi_ids(Some("a")), ["1", "3"]);
        assert_eq!(claim.cdi_ids(None), ["1", "2", "3"]);
    }
}
