//! `meta.k8s.io/v1 Table`: the columns that `kubectl get` prints.
//!
//! Source: `pkg/printers/internalversion/printers.go`.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::codec::Codec;
use super::kind::Kind;

/// A column: its title, and whether only `-o wide` shows it.
type Column = (&'static str, bool);

/// Objects as rows.
pub(super) fn table(codec: Codec, objects: &[&Value], meta: &Value) -> Value {
    let columns: Vec<_> = columns(codec.kind)
        .iter()
        .map(|(name, wide)| {
            json!({"name": name, "type": "string", "format": if *name == "Name" { "name" } else { "" },
                "description": "", "priority": i32::from(*wide)})
        })
        .collect();
    let rows: Vec<_> = objects
        .iter()
        .map(|object| {
            let metadata = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                "metadata": object["metadata"]});
            json!({"cells": cells(codec.kind, object), "object": metadata})
        })
        .collect();
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": meta, "columnDefinitions": columns,
        "rows": rows})
}

fn columns(kind: Kind) -> &'static [Column] {
    const NAME: Column = ("Name", false);
    const AGE: Column = ("Age", false);
    match kind {
        Kind::Namespace => &[NAME, ("Status", false), AGE],
        Kind::Node => &[NAME, ("Status", false), ("Roles", false), AGE, ("Version", false), ("Internal-IP", true)],
        Kind::Pod => {
            &[NAME, ("Ready", false), ("Status", false), ("Restarts", false), AGE, ("IP", true), ("Node", true)]
        }
        Kind::Event => &[
            ("Last Seen", false),
            ("Type", false),
            ("Reason", false),
            ("Object", false),
            ("Source", true),
            ("Message", false),
            ("Count", true),
            ("Name", true),
        ],
        Kind::DeviceClass | Kind::ResourceClaimTemplate => &[NAME, AGE],
        Kind::ResourceClaim => &[NAME, ("State", false), AGE],
        Kind::ResourceSlice => &[NAME, ("Node", false), ("Driver", false), ("Pool", false), AGE],
    }
}

fn cells(kind: Kind, object: &Value) -> Vec<Value> {
    let text = |pointer: &str| json!(object.pointer(pointer).and_then(Value::as_str).unwrap_or_default());
    let name = text("/metadata/name");
    let age = json!(since(&object["metadata"]["creationTimestamp"]));
    match kind {
        Kind::Namespace => vec![name, text("/status/phase"), age],
        Kind::Node => {
            let version = text("/status/nodeInfo/kubeletVersion");
            vec![name, json!(node_status(object)), json!(node_roles(object)), age, version, json!(internal_ip(object))]
        }
        Kind::Pod => {
            let (containers, ready, restarts) = containers(object);
            let terminating = object["metadata"]["deletionTimestamp"].is_string();
            let status = if terminating { json!("Terminating") } else { text("/status/phase") };
            let (ip, node) = (or_none(&text("/status/podIP")), or_none(&text("/spec/nodeName")));
            vec![name, json!(format!("{ready}/{containers}")), status, json!(restarts), age, ip, node]
        }
        Kind::Event => {
            let seen = [&object["lastTimestamp"], &object["eventTime"], &object["metadata"]["creationTimestamp"]];
            let seen = seen.into_iter().find(|time| time.is_string()).unwrap_or(&Value::Null);
            let about = &object["involvedObject"];
            let about = format!("{}/{}", lower(&about["kind"]), about["name"].as_str().unwrap_or_default());
            let source = [text("/source/component"), text("/reportingComponent")];
            let source = source.into_iter().find(|source| source != "").unwrap_or_default();
            let count = object["count"].as_i64().unwrap_or(1);
            let (kind, reason) = (text("/type"), text("/reason"));
            vec![json!(since(seen)), kind, reason, json!(about), source, text("/message"), json!(count), name]
        }
        Kind::DeviceClass | Kind::ResourceClaimTemplate => vec![name, age],
        Kind::ResourceClaim => vec![name, json!(claim_state(object)), age],
        Kind::ResourceSlice => {
            vec![name, text("/spec/nodeName"), text("/spec/driver"), text("/spec/pool/name"), age]
        }
    }
}

fn claim_state(claim: &Value) -> String {
    let deleted = claim["metadata"]["deletionTimestamp"].is_string();
    let allocated = claim["status"]["allocation"].is_object();
    let reserved = claim["status"]["reservedFor"].as_array().is_some_and(|consumers| !consumers.is_empty());
    let states = [
        (deleted, "deleted"),
        (!allocated && !deleted, "pending"),
        (allocated, "allocated"),
        (allocated && reserved, "reserved"),
    ];
    states.iter().filter(|(holds, _)| *holds).map(|(_, state)| *state).collect::<Vec<_>>().join(",")
}

fn node_status(node: &Value) -> String {
    let conditions = node["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
    let ready = match ready.map(|ready| ready["status"] == "True") {
        Some(true) => "Ready",
        Some(false) => "NotReady",
        None => "Unknown",
    };
    let cordoned = if node["spec"]["unschedulable"] == true { ",SchedulingDisabled" } else { "" };
    format!("{ready}{cordoned}")
}

fn node_roles(node: &Value) -> String {
    let labels = node["metadata"]["labels"].as_object();
    let roles: Vec<_> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/").filter(|role| !role.is_empty()))
        .collect();
    if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") }
}

fn internal_ip(node: &Value) -> String {
    let addresses = node["status"]["addresses"].as_array().map_or(&[][..], Vec::as_slice);
    let address = addresses.iter().find(|address| address["type"] == "InternalIP");
    address.and_then(|address| address["address"].as_str()).unwrap_or("<none>").to_owned()
}

/// Containers of a pod, how many are ready, and how often they restarted.
fn containers(pod: &Value) -> (usize, usize, i64) {
    let list = |pointer: &str| pod.pointer(pointer).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let statuses = list("/status/containerStatuses");
    let ready = statuses.iter().filter(|status| status["ready"] == true).count();
    let restarts = statuses.iter().filter_map(|status| status["restartCount"].as_i64()).sum();
    (list("/spec/containers").len(), ready, restarts)
}

fn or_none(text: &Value) -> Value {
    if text == "" { json!("<none>") } else { text.clone() }
}

fn lower(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_lowercase()
}

/// How long ago, in the largest unit or two, like `duration.HumanDuration`.
fn since(time: &Value) -> String {
    let Some(Ok(then)) = time.as_str().map(str::parse::<Timestamp>) else { return "<unknown>".to_owned() };
    human(Timestamp::now().as_second() - then.as_second())
}

fn human(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |large: i64, unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{small_unit}"),
    };
    match seconds {
        ..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        _ => format!("{days}d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let table = [
            (5, "5s"),
            (119, "119s"),
            (130, "2m10s"),
            (660, "11m"),
            (11_100, "3h5m"),
            (180_000, "2d2h"),
            (864_000, "10d"),
        ];
        for (seconds, shown) in table {
            assert_eq!(human(seconds), shown);
        }
    }

    #[test]
    fn every_row_has_a_cell_for_every_column() {
        for kind in Kind::ALL {
            assert_eq!(cells(kind, &json!({"metadata": {"name": "x"}})).len(), columns(kind).len(), "{kind}");
        }
    }

    #[test]
    fn the_state_of_a_claim_follows_its_status() {
        let state = |claim| claim_state(&claim);
        assert_eq!(state(json!({})), "pending");
        assert_eq!(state(json!({"status": {"allocation": {}}})), "allocated");
        assert_eq!(state(json!({"status": {"allocation": {}, "reservedFor": [{}]}})), "allocated,reserved");
        assert_eq!(state(json!({"metadata": {"deletionTimestamp": "x"}, "status": {}})), "deleted");
    }
}
