//! Between the versions on the wire and the one stored form, which is shaped like v1.
//!
//! | served version             | difference from the stored form                                         |
//! |----------------------------|-------------------------------------------------------------------------|
//! | resource.k8s.io/v1beta2    | none                                                                    |
//! | resource.k8s.io/v1beta1    | devices under `basic`; requests without `exactly`; plain node fields    |
//! | events.k8s.io/v1           | other names for the fields of a v1 Event                                |

use serde_json::{Map, Value, json};

use super::kind::{Group, GroupVersion, Kind, Version};

/// Names in events.k8s.io/v1 and in the stored v1 Event.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// Fields of a v1beta1 request that v1 has under `exactly`.
const FLAT_FIELDS: [&str; 8] = [
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
    "derivedAttributes",
];

/// From the version on the wire to the stored form. Also right for the partial objects of server-side apply.
pub(super) fn to_stored(kind: Kind, version: GroupVersion, object: &mut Value) {
    if object.is_object() {
        object["apiVersion"] = json!(kind.stored_as().to_string());
    }
    match (kind, version) {
        (Kind::Event, GroupVersion { group: Group::Events, .. }) => rename(object, |(wire, stored)| (wire, stored)),
        (_, GroupVersion { version: Version::V1Beta1, .. }) => match kind {
            Kind::ResourceSlice => slice_from_v1beta1(object),
            Kind::ResourceClaim => each(object.pointer_mut(REQUESTS), request_from_v1beta1),
            Kind::ResourceClaimTemplate => each(object.pointer_mut(TEMPLATE_REQUESTS), request_from_v1beta1),
            _ => {}
        },
        _ => {}
    }
}

/// From the stored form to the version on the wire.
pub(super) fn to_wire(kind: Kind, version: GroupVersion, object: &mut Value) {
    object["apiVersion"] = json!(version.to_string());
    match (kind, version) {
        (Kind::Event, GroupVersion { group: Group::Events, .. }) => rename(object, |(wire, stored)| (stored, wire)),
        (_, GroupVersion { version: Version::V1Beta1, .. }) => match kind {
            Kind::ResourceSlice => each(object.pointer_mut("/spec/devices"), device_to_v1beta1),
            Kind::ResourceClaim => each(object.pointer_mut(REQUESTS), request_to_v1beta1),
            Kind::ResourceClaimTemplate => each(object.pointer_mut(TEMPLATE_REQUESTS), request_to_v1beta1),
            _ => {}
        },
        _ => {}
    }
}

const REQUESTS: &str = "/spec/devices/requests";
const TEMPLATE_REQUESTS: &str = "/spec/spec/devices/requests";

fn slice_from_v1beta1(slice: &mut Value) {
    if let Some(spec) = slice.get_mut("spec").and_then(Value::as_object_mut) {
        // Plain values there: empty and false mean "not set".
        spec.retain(|key, value| {
            !(key == "nodeName" && *value == json!("") || key == "allNodes" && *value == json!(false))
        });
    }
    each(slice.pointer_mut("/spec/devices"), |device| {
        let basic = device.remove("basic");
        device.retain(|key, _| key == "name");
        if let Some(Value::Object(basic)) = basic {
            device.extend(basic.into_iter().filter(|(key, _)| key != "name"));
        }
    });
}

fn device_to_v1beta1(device: &mut Map<String, Value>) {
    let name = device.remove("name");
    let basic = std::mem::take(device);
    device.insert("name".into(), name.unwrap_or_default());
    device.insert("basic".into(), Value::Object(basic));
}

fn request_from_v1beta1(request: &mut Map<String, Value>) {
    request.remove("exactly");
    let flat: Map<_, _> = FLAT_FIELDS.iter().filter_map(|key| request.remove_entry(*key)).collect();
    let alternatives = request.get("firstAvailable").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    if !flat.is_empty() || !alternatives {
        request.insert("exactly".into(), Value::Object(flat));
    }
}

fn request_to_v1beta1(request: &mut Map<String, Value>) {
    if let Some(Value::Object(exactly)) = request.remove("exactly") {
        request.extend(exactly);
    }
}

fn rename(event: &mut Value, pick: impl Fn((&'static str, &'static str)) -> (&'static str, &'static str)) {
    let Some(event) = event.as_object_mut() else { return };
    for (from, to) in EVENT_FIELDS.map(pick) {
        if let Some(value) = event.remove(from) {
            event.insert(to.to_owned(), value);
        }
    }
}

fn each(list: Option<&mut Value>, change: impl Fn(&mut Map<String, Value>)) {
    let items = list.and_then(Value::as_array_mut).into_iter().flatten();
    items.filter_map(Value::as_object_mut).for_each(change);
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1BETA1: GroupVersion = GroupVersion { group: Group::Resource, version: Version::V1Beta1 };

    #[track_caller]
    fn both_ways(kind: Kind, version: GroupVersion, wire: &Value, stored: &Value) {
        let mut object = wire.clone();
        to_stored(kind, version, &mut object);
        assert_eq!(object, *stored);
        to_wire(kind, version, &mut object);
        assert_eq!(object, *wire);
    }

    #[test]
    fn devices_of_v1beta1_have_their_fields_under_basic() {
        let wire = json!({"apiVersion": "resource.k8s.io/v1beta1", "spec": {"driver": "d", "devices": [
            {"name": "a", "basic": {"attributes": {"x": {"int": 1}}}}]}});
        let stored = json!({"apiVersion": "resource.k8s.io/v1", "spec": {"driver": "d", "devices": [
            {"name": "a", "attributes": {"x": {"int": 1}}}]}});
        both_ways(Kind::ResourceSlice, V1BETA1, &wire, &stored);
    }

    #[test]
    fn requests_of_v1beta1_are_flat() {
        let wire = json!({"apiVersion": "resource.k8s.io/v1beta1", "spec": {"devices": {"requests": [
            {"name": "one", "deviceClassName": "gpu", "count": 2},
            {"name": "either", "firstAvailable": [{"name": "a", "deviceClassName": "gpu"}]}]}}});
        let stored = json!({"apiVersion": "resource.k8s.io/v1", "spec": {"devices": {"requests": [
            {"name": "one", "exactly": {"deviceClassName": "gpu", "count": 2}},
            {"name": "either", "firstAvailable": [{"name": "a", "deviceClassName": "gpu"}]}]}}});
        both_ways(Kind::ResourceClaim, V1BETA1, &wire, &stored);
    }

    #[test]
    fn fields_of_the_other_version_do_not_leak_through() {
        let mut slice =
            json!({"spec": {"nodeName": "", "allNodes": false, "devices": [{"name": "a", "attributes": {}}]}});
        to_stored(Kind::ResourceSlice, V1BETA1, &mut slice);
        assert_eq!(slice["spec"], json!({"devices": [{"name": "a"}]}));
    }

    #[test]
    fn events_have_other_names_in_their_own_group() {
        let version = GroupVersion { group: Group::Events, version: Version::V1 };
        let wire = json!({"apiVersion": "events.k8s.io/v1", "regarding": {"kind": "Node"}, "note": "n", "reason": "r"});
        let stored = json!({"apiVersion": "v1", "involvedObject": {"kind": "Node"}, "message": "n", "reason": "r"});
        both_ways(Kind::Event, version, &wire, &stored);
    }
}
