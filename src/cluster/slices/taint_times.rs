//! Since when a device is tainted.
//!
//! The API server stamps a taint that comes without a time, on every write. People and the controller that evicts pods
//! count from there, so a taint that is written again for another reason must say what it said before.

use std::collections::BTreeMap;

use serde_json::Value;

/// The fields that make two taints of a device the same one.
const IDENTITY: [&str; 3] = ["key", "value", "effect"];

/// When the taints of existing slices were added, by device and taint.
pub(super) struct TaintTimes<'a>(BTreeMap<[&'a str; 4], &'a Value>);

// === impl TaintTimes ===

impl<'a> TaintTimes<'a> {
    pub(super) fn of(slices: impl Iterator<Item = &'a Value>) -> Self {
        let taints = slices.flat_map(|slice| list(&slice["spec"]["devices"])).flat_map(|device| {
            let timed = list(&device["taints"]).iter().filter(|taint| taint["timeAdded"].is_string());
            timed.map(|taint| (identity(&device["name"], taint), &taint["timeAdded"]))
        });
        Self(taints.collect())
    }

    /// Gives the taints of a slice the times that they had.
    pub(super) fn keep(&self, slice: &mut Value) {
        let Some(Value::Array(devices)) = slice.pointer_mut("/spec/devices") else { return };
        for device in devices {
            let name = device["name"].clone();
            let Some(Value::Array(taints)) = device.get_mut("taints") else { continue };
            for taint in taints {
                if let Some(time) = self.0.get(&identity(&name, taint)) {
                    taint["timeAdded"] = (*time).clone();
                }
            }
        }
    }
}

fn identity<'a>(name: &'a Value, taint: &'a Value) -> [&'a str; 4] {
    let [key, value, effect] = IDENTITY.map(|field| taint[field].as_str().unwrap_or_default());
    [name.as_str().unwrap_or_default(), key, value, effect]
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
