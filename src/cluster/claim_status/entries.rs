//! One entry of `status.devices` for each device. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::device::{GpuUuid, MigUuid};

/// What makes two entries the same one.
const KEYS: [&str; 4] = ["driver", "pool", "device", "shareID"];

/// The condition of a device that containers can use, with its reason.
const READY: &str = "Ready";
const PREPARED: &str = "Prepared";

/// A prepared device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceStatus {
    /// Pool and name it was allocated by.
    pub pool: String,
    /// See `pool`.
    pub device: String,
    /// Which share, where a device is allocated several times.
    pub share_id: Option<String>,
    /// The GPU that it is, or is a part of.
    pub gpu: GpuUuid,
    /// The MIG device that it is, if it is a part.
    pub mig: Option<MigUuid>,
}

// === impl DeviceStatus ===

impl DeviceStatus {
    /// The entry, and whether it is among the `known` ones. What is said there already keeps its time.
    pub(super) fn entry(&self, driver: &str, node: &str, known: &[Value], now: Timestamp) -> (Value, bool) {
        let mut entry = json!({
            "driver": driver, "pool": self.pool, "device": self.device,
            "conditions": [{
                "type": READY, "status": "True", "reason": PREPARED,
                "message": format!("containers on node {node} can use it"),
                "lastTransitionTime": Time(now),
            }],
            "data": self.data(),
        });
        if let Some(share) = &self.share_id {
            entry["shareID"] = json!(share);
        }
        let Some(known) = known.iter().find(|known| is_same(known, &entry)) else { return (entry, false) };
        let Some(condition) = ready(known).filter(|condition| condition["status"] == "True") else {
            return (entry, false);
        };
        let is_right = condition["reason"] == PREPARED && known["data"] == entry["data"];
        entry["conditions"][0]["lastTransitionTime"] = condition["lastTransitionTime"].clone();
        (entry, is_right)
    }

    /// By the names that the attributes of slices have. Nothing that changes while a claim is prepared: a minor does with
    /// a reboot.
    fn data(&self) -> Value {
        match &self.mig {
            None => json!({"uuid": self.gpu.as_str()}),
            Some(mig) => json!({"uuid": mig.as_str(), "parentUUID": self.gpu.as_str()}),
        }
    }
}

/// Whether a claim's status has all these entries.
pub(super) fn are_in(claim: &Value, entries: &[Value]) -> bool {
    let kept = claim["status"]["devices"].as_array().map_or(&[][..], Vec::as_slice);
    entries.iter().all(|entry| kept.iter().any(|kept| is_same(kept, entry)))
}

fn is_same(one: &Value, other: &Value) -> bool {
    KEYS.iter().all(|key| one[key] == other[key])
}

fn ready(entry: &Value) -> Option<&Value> {
    entry["conditions"].as_array()?.iter().find(|condition| condition["type"] == READY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::example::mk_uuid;

    fn gpu() -> DeviceStatus {
        DeviceStatus {
            pool: "node-a".to_owned(),
            device: "gpu-0".to_owned(),
            share_id: None,
            gpu: mk_uuid(0),
            mig: None,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn entry(status: &DeviceStatus, known: &[Value], second: i64) -> (Value, bool) {
        status.entry("gpu.nvidia.com", "node-a", known, at(second))
    }

    #[test]
    fn a_gpu_is_known_by_its_uuid_and_a_part_by_its_own_and_its_parents() {
        let (whole, is_known) = entry(&gpu(), &[], 0);
        assert_eq!(
            whole,
            json!({
                "driver": "gpu.nvidia.com", "pool": "node-a", "device": "gpu-0",
                "conditions": [{
                    "type": "Ready", "status": "True", "reason": "Prepared",
                    "message": "containers on node node-a can use it", "lastTransitionTime": "1970-01-01T00:00:00Z",
                }],
                "data": {"uuid": mk_uuid(0).as_str()},
            })
        );
        assert!(!is_known);
        let mig = MigUuid::parse("MIG-c7384736-a75d-5afc-978f-d2f1294409fd").unwrap();
        let part = DeviceStatus { share_id: Some("share".to_owned()), mig: Some(mig.clone()), ..gpu() };
        let (part, _) = entry(&part, &[], 0);
        assert_eq!(part["data"], json!({"uuid": mig.as_str(), "parentUUID": mk_uuid(0).as_str()}));
        assert_eq!(part["shareID"], "share");
    }

    #[test]
    fn what_is_said_already_is_right_and_keeps_its_time() {
        let (first, _) = entry(&gpu(), &[], 7);
        let others = [
            json!({"driver": "other.example.com", "pool": "node-a", "device": "gpu-0"}),
            json!({"driver": "gpu.nvidia.com", "pool": "node-a", "device": "gpu-0", "shareID": "share"}),
            json!(3),
        ];
        let known: Vec<_> = others.iter().cloned().chain([first.clone()]).collect();
        assert_eq!(entry(&gpu(), &known, 9), (first.clone(), true));
        assert!(!entry(&gpu(), &others, 9).1);

        let other_gpu = DeviceStatus { gpu: mk_uuid(1), ..gpu() };
        let (moved, is_known) = entry(&other_gpu, &known, 9);
        assert!(!is_known, "its UUID is another");
        assert_eq!(moved["conditions"], first["conditions"]);

        let mut unready = first.clone();
        unready["conditions"][0]["status"] = json!("False");
        let (back, is_known) = entry(&gpu(), &[unready], 9);
        assert!(!is_known);
        assert_eq!(back["conditions"][0]["lastTransitionTime"], "1970-01-01T00:00:09Z");
    }

    #[test]
    fn entries_that_a_server_dropped_are_missed() {
        let (ours, _) = entry(&gpu(), &[], 0);
        assert!(are_in(&json!({}), &[]));
        assert!(are_in(&json!({"status": {"devices": [ours]}}), std::slice::from_ref(&ours)));
        for kept in [json!({}), json!({"status": {"devices": [{"driver": "other.example.com"}]}})] {
            assert!(!are_in(&kept, std::slice::from_ref(&ours)), "{kept}");
        }
    }
}
