//! Events. Those of the old style (no `eventTime`) get few checks; new ones must be complete.
//!
//! Source: `pkg/apis/core/validation/events.go`.

use serde_json::Value;

use super::list::{Errors, text};

const REASON_BYTES: usize = 128;
const ACTION_BYTES: usize = 128;
const INSTANCE_BYTES: usize = 128;
const NOTE_BYTES: usize = 1024;

pub(super) fn check(event: &Value, old: Option<&Value>, errors: &mut Errors) {
    let namespace = text(&event["metadata"], "namespace");
    let about = text(&event["involvedObject"], "namespace");
    // Events about objects outside namespaces live in the default one.
    if about != namespace && !(about.is_empty() && namespace == "default") {
        errors.invalid("involvedObject.namespace", about, "does not match event.namespace");
    }
    if event["eventTime"].is_null() || old.is_some() {
        return;
    }
    for (field, max) in [
        ("reportingComponent", 253),
        ("reportingInstance", INSTANCE_BYTES),
        ("action", ACTION_BYTES),
        ("reason", REASON_BYTES),
    ] {
        let value = text(event, field);
        if value.is_empty() {
            errors.required(field, "");
        }
        errors.max_bytes(field, value, max);
    }
    errors.max_bytes("message", text(event, "message"), NOTE_BYTES);
    if !["Normal", "Warning"].contains(&text(event, "type")) {
        errors.invalid("type", "", format!("has invalid value: {}", text(event, "type")));
    }
}
