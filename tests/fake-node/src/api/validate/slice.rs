//! ResourceSlices: the pool, who may use it, and the counters. Devices have a file of their own.

use serde_json::Value;

use super::list::{Errors, entries, items, text};
use super::{Rules, device, names, node};
use crate::release::Release;

/// Devices in a slice.
const DEVICES: usize = 128;
/// Devices in a slice in which one has taints, counters or lists; such devices may be large.
const ADVANCED_DEVICES: usize = 64;
/// Counter sets in a slice.
const COUNTER_SETS: usize = 8;
/// Counters in a set; before 1.35 in all sets of the slice together.
pub(super) const COUNTERS: usize = 32;
/// Counters that the devices of a slice consume together, before 1.35.
const CONSUMED_COUNTERS: usize = 1024;

pub(super) fn check(spec: &Value, old: Option<&Value>, rules: Rules<'_>, errors: &mut Errors) {
    names::driver(errors, "spec.driver", text(spec, "driver"));
    pool(errors, &spec["pool"]);
    if let Some(old) = old {
        errors.immutable("spec.pool.name", &spec["pool"]["name"], &old["pool"]["name"]);
        errors.immutable("spec.driver", &spec["driver"], &old["driver"]);
        errors.immutable("spec.nodeName", &spec["nodeName"], &old["nodeName"]);
    }
    node_selection(errors, spec, rules);

    let separate_counters = rules.release >= Release::V1_35;
    if separate_counters && spec["sharedCounters"].is_array() && spec["devices"].is_array() {
        errors.invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed");
    }
    let devices = items(spec, "devices");
    let advanced = separate_counters && devices.iter().any(|device| is_advanced(device, rules.release));
    let most = if advanced { ADVANCED_DEVICES } else { DEVICES };
    if errors.max_items("spec.devices", devices.len(), most) {
        for (i, device) in devices.iter().enumerate() {
            let old = old.and_then(|old| items(old, "devices").iter().find(|old| old["name"] == device["name"]));
            device::check(errors, &format!("spec.devices[{i}]"), device, old, spec, rules);
        }
        errors.unique("spec.devices", devices.iter().map(|device| device["name"].clone()));
    }
    counter_sets(errors, spec, rules);
    if let Some(attribute) = spec["partitionTypeAttribute"].as_str() {
        partition_type(errors, spec, attribute);
    }
    skipped_operations(errors, "spec.skipNodeOperations", spec);
}

fn pool(errors: &mut Errors, pool: &Value) {
    names::pool(errors, "spec.pool.name", text(pool, "name"));
    if pool["resourceSliceCount"].as_i64().unwrap_or_default() <= 0 {
        let count = pool["resourceSliceCount"].as_i64().unwrap_or_default();
        errors.invalid("spec.pool.resourceSliceCount", count, "must be greater than zero");
    }
    if pool["generation"].as_i64().unwrap_or_default() < 0 {
        let generation = pool["generation"].clone();
        errors.invalid("spec.pool.generation", generation, "must be greater than or equal to zero");
    }
}

fn node_selection(errors: &mut Errors, spec: &Value, rules: Rules<'_>) {
    let mut set = node::selection(errors, "spec", spec, "must be either unset or set to a non-empty string");
    if spec["nodeSelector"].is_object() && items(&spec["nodeSelector"], "nodeSelectorTerms").len() != 1 {
        let terms = spec["nodeSelector"]["nodeSelectorTerms"].clone();
        errors.invalid("spec.nodeSelector.nodeSelectorTerms", terms, "must have exactly one node selector term");
    }
    if node::flag(errors, "spec", spec, "perDeviceNodeSelection") {
        set.push("`perDeviceNodeSelection`");
    }
    let choices = match rules.release {
        Release::V1_32 => "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required",
        _ => "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required",
    };
    match set.len() {
        0 => errors.required("spec", choices),
        1 => {}
        _ => {
            let found = format!("{{{}}}", set.join(", "));
            errors.invalid("spec", found, format!("{choices}, but multiple fields are set"));
        }
    }
}

fn is_advanced(device: &Value, release: Release) -> bool {
    let lists = || {
        entries(device, "attributes")
            .any(|(_, value)| ["ints", "bools", "strings", "versions"].iter().any(|list| value[*list].is_array()))
    };
    !items(device, "taints").is_empty()
        || !items(device, "consumesCounters").is_empty()
        || (release >= Release::V1_36 && lists())
}

fn counter_sets(errors: &mut Errors, spec: &Value, rules: Rules<'_>) {
    let sets = items(spec, "sharedCounters");
    let count = |sets: &[Value]| sets.iter().map(|set| entries(set, "counters").count()).sum::<usize>();
    if rules.release >= Release::V1_35 {
        if !errors.max_items("spec.sharedCounters", sets.len(), COUNTER_SETS) {
            return;
        }
    } else {
        let all = count(sets);
        if all > COUNTERS {
            let why = format!("the total number of shared counters must not exceed {COUNTERS}");
            errors.invalid("spec.sharedCounters", all, why);
        }
        let consumed: usize =
            items(spec, "devices").iter().map(|device| count(items(device, "consumesCounters"))).sum();
        if consumed > CONSUMED_COUNTERS {
            let why = format!("the total number of counters in devices must not exceed {CONSUMED_COUNTERS}");
            errors.invalid("spec.devices", consumed, why);
        }
    }
    for (i, set) in sets.iter().enumerate() {
        let path = format!("spec.sharedCounters[{i}]");
        match text(set, "name") {
            "" => errors.required(&format!("{path}.name"), ""),
            name => names::label(errors, &format!("{path}.name"), name),
        }
        counters(errors, &path, set);
    }
    errors.unique("spec.sharedCounters", sets.iter().map(|set| set["name"].clone()));
}

/// The counters of a set, or those that a device consumes of one.
pub(super) fn counters(errors: &mut Errors, path: &str, set: &Value) {
    let path = format!("{path}.counters");
    let count = entries(set, "counters").count();
    if count == 0 {
        errors.required(&path, "");
    } else if errors.max_items(&path, count, COUNTERS) {
        entries(set, "counters").for_each(|(name, _)| names::label(errors, &path, name));
    }
}

fn partition_type(errors: &mut Errors, spec: &Value, attribute: &str) {
    let consumers = |device: &&Value| !items(device, "consumesCounters").is_empty();
    if items(spec, "devices").iter().filter(consumers).count() == 0 {
        let why = "may only be set on a slice which declares devices that consume counters";
        return errors.invalid("spec.partitionTypeAttribute", attribute, why);
    }
    names::fully_qualified_name(errors, "spec.partitionTypeAttribute", attribute);
    let own = attribute.strip_prefix(text(spec, "driver")).and_then(|rest| rest.strip_prefix('/'));
    for (i, device) in items(spec, "devices").iter().enumerate().filter(|(_, device)| consumers(device)) {
        let path = format!("spec.devices[{i}].attributes[{attribute}]");
        let found = device["attributes"].get(attribute).or_else(|| device["attributes"].get(own?));
        match found {
            None => {
                let why =
                    "device consumes counters and `partitionTypeAttribute` names this attribute, so it must be set";
                errors.required(&path, why);
            }
            Some(value) if !value["string"].is_string() => {
                let why = "must be a string value because `partitionTypeAttribute` names this attribute";
                errors.invalid(&path, value.clone(), why);
            }
            Some(_) => {}
        }
    }
}

/// Preparing can only be skipped together with unpreparing.
pub(super) fn skipped_operations(errors: &mut Errors, path: &str, object: &Value) {
    let skipped = items(object, "skipNodeOperations");
    let has = |operation: &str| skipped.iter().any(|skipped| skipped == operation);
    for (i, operation) in skipped.iter().enumerate() {
        let known = ["*", "NodePrepareResources", "NodeUnprepareResources"];
        errors.one_of(&format!("{path}[{i}]"), operation.as_str().unwrap_or_default(), &known);
    }
    if has("NodePrepareResources") && !has("NodeUnprepareResources") && !has("*") {
        let why = "NodePrepareResources cannot be skipped unless NodeUnprepareResources is also skipped";
        errors.invalid(path, Value::from(skipped.to_vec()), why);
    }
}
