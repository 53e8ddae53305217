//! Writes an allocation down as the API has it.

use serde_json::{Map, Value, json};

use super::model::{ClaimConfig, Devices};
use super::request::{Alternative, Request};
use super::search::Choice;

/// The `status.allocation` for the chosen devices.
pub(super) fn allocation(node: &str, spec: &Devices, requests: &[Request<'_>], chosen: &[Choice<'_>]) -> Value {
    let mut devices = Map::new();
    devices.insert("results".into(), chosen.iter().map(device).collect());
    let config = config(spec, requests, chosen);
    if !config.is_empty() {
        devices.insert("config".into(), config.into());
    }
    let mut allocation = Map::from_iter([("devices".to_owned(), devices.into())]);
    if chosen.iter().any(|choice| choice.candidate.local) {
        let term = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]});
        allocation.insert("nodeSelector".into(), json!({"nodeSelectorTerms": [term]}));
    }
    allocation.into()
}

fn device(choice: &Choice<'_>) -> Value {
    let (Choice { alternative, candidate }, spec) = (choice, choice.alternative.spec);
    let id = &candidate.id;
    let mut result = json!({"request": alternative.name, "driver": id.driver, "pool": id.pool, "device": id.device});
    if let Some(admin_access) = spec.admin_access {
        result["adminAccess"] = admin_access.into();
    }
    if !spec.tolerations.is_empty() {
        result["tolerations"] = spec.tolerations.clone().into();
    }
    result
}

/// Configuration of the classes, each once with all requests that use the class, and then of the claim.
fn config(spec: &Devices, requests: &[Request<'_>], chosen: &[Choice<'_>]) -> Vec<Value> {
    let is_chosen =
        |alternative: &&Alternative<'_>| chosen.iter().any(|choice| choice.alternative.name == alternative.name);
    let used: Vec<_> = requests.iter().filter_map(|request| request.alternatives.iter().find(is_chosen)).collect();

    let mut config = Vec::new();
    for (at, alternative) in used.iter().enumerate() {
        let class = alternative.class;
        let same_class = |other: &&&Alternative<'_>| other.class.metadata.name == class.metadata.name;
        if used[..at].iter().any(|other| same_class(&other)) {
            continue;
        }
        let names: Vec<_> = used[at..].iter().filter(same_class).map(|other| other.name.clone()).collect();
        config.extend(class.spec.config.iter().map(|device| entry("FromClass", &names, device)));
    }
    for ClaimConfig { requests: names, device } in &spec.config {
        if names.is_empty() {
            config.push(entry("FromClaim", names, device));
        }
        // Once for each request that it names, as the real allocator does.
        for (request, alternative) in requests.iter().zip(&used) {
            if names.iter().any(|name| name == request.name || *name == alternative.name) {
                config.push(entry("FromClaim", names, device));
            }
        }
    }
    config
}

fn entry(source: &str, requests: &[String], device: &Map<String, Value>) -> Value {
    let mut entry = device.clone();
    entry.insert("source".into(), source.into());
    if !requests.is_empty() {
        entry.insert("requests".into(), requests.into());
    }
    entry.into()
}
