//! Claims, and what their status says.

use fake_node::api::{Kind, Matching, Verb};
use fake_node::kubelet::ClaimRef;
use fake_node::node::DRIVER;
use serde_json::Value;

use crate::node::{TestNode, within};

/// Requests that write the status of a claim by a patch.
pub(crate) fn patches() -> Matching {
    Matching::any().verb(Verb::Patch).kind(Kind::ResourceClaim).subresource("status")
}

/// A claim as the API server has it.
pub(crate) fn stored(node: &TestNode, claim: &ClaimRef) -> Value {
    node.api.get(Kind::ResourceClaim, "default", &claim.name).unwrap()
}

/// The entries of a driver in a claim's status.
pub(crate) fn entries(claim: &Value, driver: &str) -> Vec<Value> {
    let entries = claim["status"]["devices"].as_array().into_iter().flatten();
    entries.filter(|entry| entry["driver"] == driver).cloned().collect()
}

/// Waits until the status of a claim has so many entries of the plugin.
pub(crate) async fn until_entries(node: &TestNode, claim: &ClaimRef, count: usize) -> Vec<Value> {
    let look = |_: &_| Some(entries(&stored(node, claim), DRIVER)).filter(|entries| entries.len() == count);
    within(&format!("{count} entries"), node.api.until(look)).await
}

/// The UUID by which a device is published.
pub(crate) fn published_uuid(node: &TestNode, device: &str) -> String {
    let devices = node.devices();
    let device = devices.iter().find(|found| found["name"] == device).unwrap();
    device["attributes"]["uuid"]["string"].as_str().unwrap().to_owned()
}
