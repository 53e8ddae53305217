//! Devices of a ResourceSlice.

use serde_json::{Value, json};

use super::list::{Errors, entries, items, text};
use super::slice::{COUNTERS, counters};
use super::{Rules, names, node, policy};
use crate::release::Release;

/// Attributes and capacities of a device together.
const ATTRIBUTES_AND_CAPACITIES: usize = 32;
/// Values of all attributes of a device, entries of lists counted one by one. From 1.36 on.
const ATTRIBUTE_VALUES: usize = 48;
/// Bytes of a string or version.
const VALUE_BYTES: usize = 64;
/// Counter sets that a device may consume from, from 1.35 on.
const CONSUMED_SETS: usize = 2;
/// Taints of a device, from 1.35 on.
const TAINTS: usize = 16;
/// Taints of a device in 1.33 and 1.34.
const TAINTS_AT_FIRST: usize = 4;
/// Binding conditions, and binding failure conditions.
const BINDING_CONDITIONS: usize = 4;

const LISTS: [&str; 4] = ["ints", "bools", "strings", "versions"];

pub(super) fn check(
    errors: &mut Errors,
    path: &str,
    device: &Value,
    old: Option<&Value>,
    spec: &Value,
    rules: Rules<'_>,
) {
    names::label(errors, &format!("{path}.name"), text(device, "name"));
    attributes_and_capacity(errors, path, device, old, rules);
    if old.is_none_or(|old| old["taints"] != device["taints"]) {
        taints(errors, &format!("{path}.taints"), items(device, "taints"), rules);
    }
    consumption(errors, path, device, spec, rules);
    node_selection(errors, path, device, spec);
    binding(errors, path, device);
}

fn attributes_and_capacity(errors: &mut Errors, path: &str, device: &Value, old: Option<&Value>, rules: Rules<'_>) {
    let total = entries(device, "attributes").count() + entries(device, "capacity").count();
    if total > ATTRIBUTES_AND_CAPACITIES {
        let why = format!("the total number of attributes and capacities must not exceed {ATTRIBUTES_AND_CAPACITIES}");
        errors.invalid(path, total, why);
    }
    let values: usize = entries(device, "attributes").map(|(_, value)| values_of(value)).sum();
    if rules.release >= Release::V1_36 && values > ATTRIBUTE_VALUES {
        let why = format!("the total number of attribute values must not exceed {ATTRIBUTE_VALUES}");
        errors.invalid(path, values, why);
    }
    for (name, value) in entries(device, "attributes") {
        names::qualified_name(errors, &format!("{path}.attributes"), name);
        attribute(errors, &format!("{path}.attributes[{name}]"), value);
    }
    if old.is_some_and(|old| old["capacity"] == device["capacity"]) {
        return;
    }
    for (name, capacity) in entries(device, "capacity") {
        names::qualified_name(errors, &format!("{path}.capacity"), name);
        if capacity["requestPolicy"].is_object() {
            let path = format!("{path}.capacity[{name}].requestPolicy");
            if device["allowMultipleAllocations"] == true {
                policy::check(errors, &path, capacity, rules);
            } else {
                errors.forbidden(&path, "allowMultipleAllocations must be true");
            }
        }
    }
}

fn values_of(attribute: &Value) -> usize {
    let listed: usize = LISTS.iter().map(|list| items(attribute, list).len()).sum();
    listed.max(1)
}

fn attribute(errors: &mut Errors, path: &str, attribute: &Value) {
    let short = |errors: &mut Errors, path: &str, value: &Value| {
        errors.max_bytes(path, value.as_str().unwrap_or_default(), VALUE_BYTES);
    };
    let version = |errors: &mut Errors, path: &str, value: &Value| {
        names::version(errors, path, value.as_str().unwrap_or_default());
        errors.max_bytes(path, value.as_str().unwrap_or_default(), VALUE_BYTES);
    };
    if attribute["string"].is_string() {
        short(errors, &format!("{path}.string"), &attribute["string"]);
    }
    if attribute["version"].is_string() {
        version(errors, &format!("{path}.version"), &attribute["version"]);
    }
    for list in LISTS {
        if attribute[list].as_array().is_some_and(Vec::is_empty) {
            errors.invalid(&format!("{path}.{list}"), json!([]), "must not be empty if specified");
        }
        for (i, value) in items(attribute, list).iter().enumerate() {
            match list {
                "strings" => short(errors, &format!("{path}.strings[{i}]"), value),
                "versions" => version(errors, &format!("{path}.versions[{i}]"), value),
                _ => {}
            }
        }
    }
    match attribute.as_object().map_or(0, serde_json::Map::len) {
        0 => errors.invalid(path, "", "exactly one value must be specified"),
        1 => {}
        _ => errors.invalid(path, attribute.clone(), "exactly one value must be specified"),
    }
}

fn taints(errors: &mut Errors, path: &str, taints: &[Value], rules: Rules<'_>) {
    let early = rules.release < Release::V1_35;
    if !errors.max_items(path, taints.len(), if early { TAINTS_AT_FIRST } else { TAINTS }) {
        return;
    }
    for (i, taint) in taints.iter().enumerate() {
        names::label_name(errors, &format!("{path}[{i}].key"), text(taint, "key"));
        names::label_value(errors, &format!("{path}[{i}].value"), text(taint, "value"));
        errors.one_of(&format!("{path}[{i}].effect"), text(taint, "effect"), effects(rules.release));
    }
}

/// What a taint or toleration may do. `None` came in 1.35.
pub(super) fn effects(release: Release) -> &'static [&'static str] {
    if release < Release::V1_35 { &["NoExecute", "NoSchedule"] } else { &["NoExecute", "NoSchedule", "None"] }
}

fn consumption(errors: &mut Errors, path: &str, device: &Value, spec: &Value, rules: Rules<'_>) {
    let path = format!("{path}.consumesCounters");
    let consumed = items(device, "consumesCounters");
    let separate_counters = rules.release >= Release::V1_35;
    if separate_counters && !errors.max_items(&path, consumed.len(), CONSUMED_SETS) {
        return;
    }
    for (i, consumption) in consumed.iter().enumerate() {
        let path = format!("{path}[{i}]");
        match text(consumption, "counterSet") {
            "" => errors.required(&format!("{path}.counterSet"), ""),
            name => names::label(errors, &format!("{path}.counterSet"), name),
        }
        counters(errors, &path, consumption);
        if !separate_counters {
            references(errors, &path, consumption, spec);
        }
    }
    errors.unique(&path, consumed.iter().map(|consumption| consumption["counterSet"].clone()));
    let total: usize = consumed.iter().map(|consumption| entries(consumption, "counters").count()).sum();
    if !separate_counters && total > COUNTERS {
        errors.invalid(&path, total, format!("the total number of counters must not exceed {COUNTERS}"));
    }
}

/// Before 1.35 sets are in the same slice, and what a device consumes must be among them.
fn references(errors: &mut Errors, path: &str, consumption: &Value, spec: &Value) {
    let set = items(spec, "sharedCounters").iter().find(|set| set["name"] == consumption["counterSet"]);
    let Some(set) = set else {
        let why = "must reference a counterSet defined in the ResourceSlice sharedCounters";
        return errors.invalid(&format!("{path}.counterSet"), consumption["counterSet"].clone(), why);
    };
    for (name, _) in entries(consumption, "counters").filter(|(name, _)| set["counters"].get(name).is_none()) {
        let why = "must reference a counter defined in the ResourceSlice sharedCounters";
        errors.invalid(&format!("{path}.counters"), name.as_str(), why);
    }
}

fn node_selection(errors: &mut Errors, path: &str, device: &Value, spec: &Value) {
    let per_device = spec["perDeviceNodeSelection"] == true;
    let any = ["nodeName", "nodeSelector", "allNodes"].iter().any(|field| !device[*field].is_null());
    if per_device {
        let set = node::selection(errors, path, device, "must not be empty");
        let why = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` \
            is set to true in the ResourceSlice spec";
        match set.len() {
            0 => errors.required(path, why),
            1 => {}
            _ => errors.invalid(path, format!("{{{}}}", set.join(", ")), why),
        }
    } else if any {
        let why = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to \
            true in the ResourceSlice spec";
        errors.invalid(path, Value::Null, why);
    }
}

/// Binding conditions of a device, or of an allocated one.
pub(super) fn binding(errors: &mut Errors, path: &str, device: &Value) {
    let (conditions, failures) = (items(device, "bindingConditions"), items(device, "bindingFailureConditions"));
    for (field, list) in [("bindingConditions", conditions), ("bindingFailureConditions", failures)] {
        let path = format!("{path}.{field}");
        if errors.max_items(&path, list.len(), BINDING_CONDITIONS) {
            for (i, name) in list.iter().enumerate() {
                names::label_name(errors, &format!("{path}[{i}]"), name.as_str().unwrap_or_default());
            }
        }
        errors.unique(&path, list.iter().cloned());
    }
    for (i, name) in failures.iter().enumerate().filter(|(_, name)| conditions.contains(name)) {
        let why = "bindingFailureConditions must not overlap with bindingConditions";
        errors.invalid(&format!("{path}.bindingFailureConditions[{i}]"), name.clone(), why);
    }
    match (conditions, failures) {
        ([], [_, ..]) => {
            let why = "bindingConditions are required to use bindingFailureConditions";
            errors.invalid(&format!("{path}.bindingConditions"), Value::Null, why);
        }
        ([_, ..], []) => {
            let why = "bindingFailureConditions are required to use bindingConditions";
            errors.invalid(&format!("{path}.bindingFailureConditions"), Value::Null, why);
        }
        _ => {}
    }
}
