//! `metadata`: what every object must have, and must not change.

use serde_json::Value;

use super::super::kind::Kind;
use super::list::{Errors, entries, items, text};
use super::names;

/// All annotations of an object together.
const ANNOTATION_BYTES: usize = 256 << 10;

pub(super) fn check(kind: Kind, object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let meta = &object["metadata"];
    let name = text(meta, "name");
    if name.is_empty() {
        errors.required("metadata.name", "name or generateName is required");
    } else if kind == Kind::Namespace {
        names::label(errors, "metadata.name", name);
    } else {
        names::subdomain(errors, "metadata.name", name);
    }
    for (key, value) in entries(meta, "labels") {
        names::label_name(errors, "metadata.labels", key);
        names::label_value(errors, "metadata.labels", value.as_str().unwrap_or_default());
    }
    let mut bytes = 0;
    for (key, value) in entries(meta, "annotations") {
        names::label_name(errors, "metadata.annotations", &key.to_lowercase());
        bytes += key.len() + value.as_str().map_or(0, str::len);
    }
    errors.max_bytes_of("metadata.annotations", bytes, ANNOTATION_BYTES);
    for finalizer in items(meta, "finalizers") {
        names::label_name(errors, "metadata.finalizers", finalizer.as_str().unwrap_or_default());
    }
    owners(meta, errors);
    if let Some(old) = old {
        for field in ["name", "namespace", "uid", "creationTimestamp"] {
            errors.immutable(&format!("metadata.{field}"), &meta[field], &old["metadata"][field]);
        }
    }
}

fn owners(meta: &Value, errors: &mut Errors) {
    let owners = items(meta, "ownerReferences");
    for owner in owners {
        let unset = "must not be empty";
        for field in ["apiVersion", "kind", "name", "uid"] {
            if text(owner, field).is_empty() {
                errors.invalid(&format!("metadata.ownerReferences.{field}"), "", unset);
            }
        }
    }
    if owners.iter().filter(|owner| owner["controller"] == true).count() > 1 {
        let message = "Only one reference can have Controller set to true";
        errors.invalid("metadata.ownerReferences", Value::from(owners.to_vec()), message);
    }
}
