//! When two slices say the same.
//!
//! The API server does not store a slice letter by letter as it was sent. It rewrites quantities, leaves out what is
//! empty, and stamps taints with a time. None of that is a change, and taking it for one would write slices for ever.
//! Both sides are brought into one form, which is for comparing alone and is never sent.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::quantity::nanos;

/// Parts of a slice's spec that its content is not about: the pool's generation is decided when slices are compared.
const NOT_CONTENT: [&str; 1] = ["pool"];

/// The content of a slice's `spec`, in a form in which equal content is equal.
pub(super) fn content(spec: &Value) -> Value {
    let Value::Object(spec) = spec else {
        return Value::Null;
    };
    let parts = spec.iter().filter(|(key, _)| !NOT_CONTENT.contains(&key.as_str()));
    let parts = parts.map(|(key, value)| match key.as_str() {
        "devices" => (key, each(value, device)),
        "sharedCounters" => (key, each(value, counters)),
        _ => (key, value.clone()),
    });
    pruned(&parts.map(|(key, value)| (key.clone(), value)).collect::<Map<_, _>>().into())
}

/// Paths of what was sent and was not stored so: `devices.taints`. List positions are left out, so that many devices
/// with one fault make one path.
pub(super) fn differences(sent: &Value, stored: &Value) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    collect(sent, stored, "", &mut paths);
    paths
}

fn collect(sent: &Value, stored: &Value, path: &str, paths: &mut BTreeSet<String>) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match (sent, stored) {
        (Value::Object(sent), Value::Object(stored)) => {
            for key in sent.keys().chain(stored.keys()) {
                let value = |of: &Map<String, Value>| of.get(key).cloned().unwrap_or_default();
                collect(&value(sent), &value(stored), &below(key), paths);
            }
        }
        (Value::Array(sent), Value::Array(stored)) if sent.len() == stored.len() => {
            sent.iter().zip(stored).for_each(|(sent, stored)| collect(sent, stored, path, paths));
        }
        _ if sent != stored => {
            paths.insert(path.to_owned());
        }
        _ => {}
    }
}

fn device(fields: &Map<String, Value>) -> Value {
    let field = |(key, value): (&String, &Value)| {
        let value = match key.as_str() {
            "capacity" => quantities(value),
            "consumesCounters" => each(value, counters),
            "taints" => each(value, taint),
            _ => value.clone(),
        };
        (key.clone(), value)
    };
    fields.iter().map(field).collect::<Map<_, _>>().into()
}

fn counters(fields: &Map<String, Value>) -> Value {
    let field = |(key, value): (&String, &Value)| {
        (key.clone(), if key == "counters" { quantities(value) } else { value.clone() })
    };
    fields.iter().map(field).collect::<Map<_, _>>().into()
}

/// A time that the server set belongs to the taint, and one that we would set is not worth a write.
fn taint(fields: &Map<String, Value>) -> Value {
    fields
        .iter()
        .filter(|(key, _)| *key != "timeAdded")
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect::<Map<_, _>>()
        .into()
}

/// In capacities and counters every text is a quantity, those of request policies too.
fn quantities(value: &Value) -> Value {
    match value {
        Value::String(text) => nanos(text).map_or_else(|| value.clone(), |nanos| format!("{nanos}n").into()),
        // JSON allows a quantity without quotes.
        Value::Number(number) => quantities(&number.to_string().into()),
        Value::Array(items) => items.iter().map(quantities).collect(),
        Value::Object(fields) => fields.iter().map(|(k, v)| (k.clone(), quantities(v))).collect::<Map<_, _>>().into(),
        other => other.clone(),
    }
}

fn each(list: &Value, convert: impl Fn(&Map<String, Value>) -> Value) -> Value {
    match list {
        Value::Array(items) => {
            items.iter().map(|item| item.as_object().map_or_else(|| item.clone(), &convert)).collect()
        }
        other => other.clone(),
    }
}

/// Without nulls, empty lists and empty maps inside maps. In a list everything keeps its place.
fn pruned(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().map(|(key, value)| (key.clone(), pruned(value)));
            kept.filter(|(_, value)| !is_empty(value)).collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.iter().map(pruned).collect(),
        other => other.clone(),
    }
}

/// Whether a value says nothing.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of_device(device: &Value) -> Value {
        content(&json!({ "devices": [device] }))
    }

    #[test]
    fn what_the_server_rewrites_is_no_change() {
        for (sent, stored) in [
            (json!({"capacity": {"memory": {"value": "1024Mi"}}}), json!({"capacity": {"memory": {"value": "1Gi"}}})),
            (json!({"capacity": {"slices": {"value": 7}}}), json!({"capacity": {"slices": {"value": "7"}}})),
            (
                json!({"capacity": {"m": {"value": "8Gi", "requestPolicy": {"validRange": {"min": "1024Mi"}}}}}),
                json!({"capacity": {"m": {"value": "8Gi", "requestPolicy": {"validRange": {"min": "1Gi"}}}}}),
            ),
            (
                json!({"consumesCounters": [{"counterSet": "g", "counters": {"memory": {"value": "1000m"}}}]}),
                json!({"consumesCounters": [{"counterSet": "g", "counters": {"memory": {"value": "1"}}}]}),
            ),
            (json!({"attributes": {}, "taints": [], "nodeName": null}), json!({})),
            (
                json!({"taints": [{"key": "k", "effect": "NoSchedule"}]}),
                json!({"taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": "2026-12-01T00:00:00Z"}]}),
            ),
        ] {
            assert_eq!(of_device(&sent), of_device(&stored), "{sent}");
        }
        let shared = |value: &str| content(&json!({"sharedCounters": [{"counters": {"memory": {"value": value}}}]}));
        assert_eq!(shared("1024Mi"), shared("1Gi"));
        assert_eq!(content(&json!({"devices": []})), content(&json!({})));
    }

    #[test]
    fn what_says_something_else_is_a_change() {
        for (one, other) in [
            (json!({"attributes": {"a": {"string": "1Gi"}}}), json!({"attributes": {"a": {"string": "1024Mi"}}})),
            (json!({"attributes": {"a": {"string": ""}}}), json!({"attributes": {}})),
            (json!({"attributes": {"a": {"bool": false}}}), json!({})),
            (json!({"attributes": {"a": {"int": 1}}}), json!({"attributes": {"a": {"string": "1"}}})),
            (
                json!({"attributes": {"capacity": {"string": "1k"}}}),
                json!({"attributes": {"capacity": {"string": "1000"}}}),
            ),
            (json!({"capacity": {"memory": {"value": "1Gi"}}}), json!({"capacity": {"memory": {"value": "1G"}}})),
            (json!({"taints": [{"key": "k"}]}), json!({"taints": [{"key": "k", "effect": "NoExecute"}]})),
            (json!({"fieldOfTomorrow": true}), json!({})),
        ] {
            assert_ne!(of_device(&one), of_device(&other), "{one}");
        }
        let two = |first, second| content(&json!({"devices": [{"name": first}, {"name": second}]}));
        assert_ne!(two("gpu-0", "gpu-1"), two("gpu-1", "gpu-0"), "order is preference");
    }

    #[test]
    fn a_field_that_the_server_dropped_is_named_once_however_many_devices_had_it() {
        let sent =
            json!({"devices": [{"name": "a", "taints": [{"key": "k"}]}, {"name": "b", "taints": [{"key": "k"}]}]});
        let stored = json!({"devices": [{"name": "a"}, {"name": "b"}]});
        let paths = differences(&content(&sent), &content(&stored));
        assert_eq!(paths.into_iter().collect::<Vec<_>>(), ["devices.taints"]);
        assert!(differences(&sent, &sent).is_empty());
    }
}
