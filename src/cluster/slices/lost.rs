//! What of a slice the server did not keep, as far as it changes what the rest of the slice means.
//!
//! Whatever else differs only says less or more than was sent, and is [`Adopted`](super::Adopted). A device that is not
//! stored at all cannot be misunderstood.

use serde_json::Value;

use super::canonical;
use crate::slice::fallback::Extras;

/// The kinds of attributes that are lists, as far as this driver sends them.
const LISTS: [&str; 2] = ["ints", "strings"];

/// Compares a slice that was sent with what the server made of it, both in the shape of `v1`. What came back in other
/// words, or has more than was sent, is kept.
pub fn lost(sent: &Value, stored: &Value) -> Extras {
    let [sent, stored] = [sent, stored].map(|slice| canonical::content(&slice["spec"]));
    let all_there = |sent: &Value, stored: &Value| {
        let stored = items(stored);
        items(sent).iter().all(|item| stored.contains(item))
    };
    let mut lost = Extras { counters: !all_there(&sent["sharedCounters"], &stored["sharedCounters"]), ..Extras::NONE };
    for device in items(&sent["devices"]) {
        let Some(stored) = items(&stored["devices"]).iter().find(|stored| stored["name"] == device["name"]) else {
            continue;
        };
        lost.counters |= !all_there(&device["consumesCounters"], &stored["consumesCounters"]);
        lost.taints |= !all_there(&device["taints"], &stored["taints"]);
        let attributes = device["attributes"].as_object().into_iter().flatten();
        let mut lists = attributes.flat_map(|(name, value)| LISTS.map(|list| (name, list, &value[list])));
        lost.lists |= lists.any(|(name, list, sent)| sent.is_array() && !stored["attributes"][name][list].is_array());
    }
    lost
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::slices::tests::{desired_for, pool_with_extras};

    /// What is lost of the second slice if its devices come back changed.
    fn after(change: impl Fn(&mut Value)) -> Extras {
        let sent = desired_for(&pool_with_extras()).remove(1);
        let mut stored = sent.clone();
        stored["spec"]["devices"].as_array_mut().unwrap().iter_mut().for_each(change);
        lost(&sent, &stored)
    }

    fn without(field: &'static str) -> impl Fn(&mut Value) {
        move |device| drop(device.as_object_mut().unwrap().remove(field))
    }

    #[test]
    fn what_is_dropped_is_lost() {
        assert_eq!(after(without("taints")), Extras { taints: true, ..Extras::NONE });
        assert_eq!(after(without("consumesCounters")), Extras { counters: true, ..Extras::NONE });
        assert_eq!(after(without("attributes")), Extras { lists: true, ..Extras::NONE });
        let hollow = |device: &mut Value| device["attributes"]["nvlinkCliques"] = json!({});
        assert_eq!(after(hollow), Extras { lists: true, ..Extras::NONE });
        let sets = desired_for(&pool_with_extras()).remove(0);
        let bare = json!({"spec": {"pool": sets["spec"]["pool"]}});
        assert_eq!(lost(&sets, &bare), Extras { counters: true, ..Extras::NONE });
        assert_eq!(lost(&sets, &sets), Extras::NONE);
    }

    #[test]
    fn counters_and_taints_that_come_back_changed_are_lost() {
        let edited = |pointer: &'static str, value: &'static str| {
            move |device: &mut Value| {
                if let Some(old) = device.pointer_mut(pointer) {
                    *old = value.into();
                }
            }
        };
        let cheaper = edited("/consumesCounters/0/counters/slice-0/value", "0");
        assert_eq!(after(cheaper), Extras { counters: true, ..Extras::NONE });
        let milder = edited("/taints/0/effect", "None");
        assert_eq!(after(milder), Extras { taints: true, ..Extras::NONE });
    }

    #[test]
    fn other_words_additions_and_devices_that_are_not_stored_are_no_loss() {
        let other_words = |device: &mut Value| {
            if let Some(value) = device.pointer_mut("/consumesCounters/0/counters/slice-0/value") {
                *value = "1000m".into();
            }
            for taint in device.get_mut("taints").and_then(Value::as_array_mut).into_iter().flatten() {
                taint["timeAdded"] = "2027-01-01T00:00:00Z".into();
            }
        };
        assert_eq!(after(other_words), Extras::NONE);
        let more = |device: &mut Value| {
            let theirs = json!({"key": "theirs", "effect": "NoSchedule"});
            if let Some(taints) = device.get_mut("taints").and_then(Value::as_array_mut) {
                taints.insert(0, theirs);
            }
        };
        assert_eq!(after(more), Extras::NONE);
        assert_eq!(after(|device| device["name"] = "another".into()), Extras::NONE);
        assert_eq!(after(without("capacity")), Extras::NONE);
        for odd in [json!(null), json!({"spec": 3}), json!({"spec": {"devices": [1, null]}})] {
            assert_eq!(lost(&odd, &odd), Extras::NONE);
        }
    }
}
