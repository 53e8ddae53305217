//! What happens to an object between the request and the store: defaults, the server's own fields, dropped fields,
//! rules.
//!
//! ```text
//!  decoded ─▶ defaults ─▶ server's metadata, other half from the old object ─▶ drop ─▶ validate ─▶ compact
//! ```

use serde_json::{Value, json};

use super::failure::Failure;
use super::ids;
use super::kind::Kind;
use super::schema;
use super::validate::{Part, Rules, validate};

/// Metadata that a client cannot set, and that updates keep.
const SERVER_SET: [&str; 4] = ["generation", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields"];

/// Fills in what the API's defaulting functions fill in when an object is read.
pub(super) fn default(kind: Kind, object: &mut Value, now: &str) {
    match kind {
        Kind::ResourceSlice => {
            for device in each(object.pointer_mut("/spec/devices")) {
                for taint in each(device.get_mut("taints")) {
                    if taint.is_object() && taint["timeAdded"].is_null() {
                        taint["timeAdded"] = json!(now);
                    }
                }
            }
        }
        Kind::ResourceClaim => {
            default_requests(object.pointer_mut("/spec/devices/requests"));
            for result in each(object.pointer_mut("/status/allocation/devices/results")) {
                default_tolerations(result);
            }
        }
        Kind::ResourceClaimTemplate => default_requests(object.pointer_mut("/spec/spec/devices/requests")),
        Kind::DeviceClass | Kind::Namespace | Kind::Node | Kind::Pod | Kind::Event => {}
    }
}

fn default_requests(requests: Option<&mut Value>) {
    for request in each(requests) {
        if let Some(exactly) = request.get_mut("exactly") {
            default_ask(exactly);
        }
        each(request.get_mut("firstAvailable")).for_each(default_ask);
    }
}

fn default_ask(ask: &mut Value) {
    if !ask.is_object() {
        return;
    }
    if ask["allocationMode"].as_str().unwrap_or_default().is_empty() {
        ask["allocationMode"] = json!("ExactCount");
    }
    if ask["allocationMode"] == "ExactCount" && ask["count"].as_i64().unwrap_or_default() == 0 {
        ask["count"] = json!(1);
    }
    default_tolerations(ask);
}

fn default_tolerations(object: &mut Value) {
    for toleration in each(object.get_mut("tolerations")) {
        if toleration.is_object() && toleration["operator"].as_str().unwrap_or_default().is_empty() {
            toleration["operator"] = json!("Equal");
        }
    }
}

fn each(list: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    list.and_then(Value::as_array_mut).into_iter().flatten()
}

/// Makes a new object fit to be stored, or says why it is not.
pub(super) fn create(kind: Kind, object: &mut Value, rules: Rules<'_>, now: &str) -> Result<(), Failure> {
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    let meta = &mut object["metadata"];
    if meta["resourceVersion"].as_str().is_some_and(|version| !version.is_empty()) {
        return Err(Failure::bad_request("resourceVersion should not be set on objects to be created"));
    }
    if let Some(meta) = meta.as_object_mut() {
        meta.retain(|key, _| !SERVER_SET.contains(&key.as_str()) && key != "selfLink" && key != "resourceVersion");
    }
    let base = meta["generateName"].as_str().unwrap_or_default();
    if meta["name"].as_str().unwrap_or_default().is_empty() && !base.is_empty() {
        meta["name"] = json!(ids::generate_name(base));
    }
    meta["uid"] = json!(ids::uid());
    meta["creationTimestamp"] = json!(now);
    if kind.has_generation() {
        meta["generation"] = json!(1);
    }
    match kind {
        Kind::Namespace => {
            object["spec"] = json!({"finalizers": ["kubernetes"]});
            object["status"] = json!({"phase": "Active"});
        }
        Kind::Pod => object["status"] = json!({"phase": "Pending"}),
        Kind::ResourceClaim => object["status"] = json!({}),
        // A kubelet registers its node with its status.
        _ => {}
    }
    finish(kind, object, None, Part::Main, rules)
}

/// Makes the successor of `old` fit to be stored, or says why it is not.
pub(super) fn update(kind: Kind, part: Part, object: &mut Value, old: &Value, rules: Rules<'_>) -> Result<(), Failure> {
    let name = old["metadata"]["name"].as_str().unwrap_or_default();
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    let meta = &mut object["metadata"];
    let asked = |field: &str| meta[field].as_str().filter(|text| !text.is_empty());
    if let Some(uid) = asked("uid").filter(|uid| old["metadata"]["uid"] != **uid) {
        let stored = old["metadata"]["uid"].as_str().unwrap_or_default();
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: {name}, ResourceVersion: 0, AdditionalErrorMsg: \
            Precondition failed: UID in precondition: {uid}, UID in object meta: {stored}"
        );
        return Err(Failure::conflict(kind, name, &why));
    }
    if asked("resourceVersion").is_some_and(|version| old["metadata"]["resourceVersion"] != *version) {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        return Err(Failure::conflict(kind, name, why));
    }
    for field in ["uid", "creationTimestamp", "resourceVersion"] {
        if asked_nothing(meta, field) {
            meta[field] = old["metadata"][field].clone();
        }
    }
    for field in SERVER_SET {
        match &old["metadata"][field] {
            Value::Null => drop(meta.as_object_mut().and_then(|meta| meta.remove(field))),
            stored => meta[field] = stored.clone(),
        }
    }
    match part {
        Part::Status => {
            let status = object["status"].take();
            *object = old.clone();
            object["status"] = status;
            if kind == Kind::ResourceClaim {
                forget_deallocated(object, old);
            }
        }
        Part::Main if kind.has_status() => object["status"] = old["status"].clone(),
        Part::Main => {}
    }
    if kind.has_generation() && spec_differs(kind, object, old) {
        // Counted before fields are dropped: sending a dropped field again and again counts again and again.
        object["metadata"]["generation"] = json!(old["metadata"]["generation"].as_i64().unwrap_or_default() + 1);
    }
    finish(kind, object, Some(old), part, rules)
}

fn asked_nothing(meta: &Value, field: &str) -> bool {
    meta[field].as_str().unwrap_or_default().is_empty()
}

fn spec_differs(kind: Kind, object: &Value, old: &Value) -> bool {
    let mut new = object.clone();
    schema::compact(&mut new, schema::of(kind));
    new["spec"] != old["spec"]
}

/// The server forgets the state of devices whose allocation a status update takes away.
fn forget_deallocated(claim: &mut Value, old: &Value) {
    let ids = |claim: &Value| -> Vec<[Value; 3]> {
        let results = claim.pointer("/status/allocation/devices/results").and_then(Value::as_array);
        results.into_iter().flatten().map(id).collect()
    };
    let (before, after) = (ids(old), ids(claim));
    if let Some(devices) = claim.pointer_mut("/status/devices").and_then(Value::as_array_mut) {
        devices.retain(|device| !before.contains(&id(device)) || after.contains(&id(device)));
    }
}

fn id(device: &Value) -> [Value; 3] {
    ["driver", "pool", "device"].map(|field| device[field].clone())
}

fn finish(kind: Kind, object: &mut Value, old: Option<&Value>, part: Part, rules: Rules<'_>) -> Result<(), Failure> {
    object["apiVersion"] = json!(kind.stored_as().to_string());
    object["kind"] = json!(kind.name());
    schema::drop_disabled(kind, object, old, rules.gates);
    // Slices are checked before empty lists go: an empty list of devices beside counters is refused.
    if kind != Kind::ResourceSlice {
        schema::compact(object, schema::of(kind));
    }
    let errors = validate(kind, object, old, part, rules);
    if !errors.is_empty() {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        return Err(Failure::invalid(kind, name, &errors));
    }
    schema::compact(object, schema::of(kind));
    Ok(())
}
