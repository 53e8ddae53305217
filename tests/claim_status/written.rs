//! Entries come with the prepare, go with the unprepare, and are not written in between.

use fake_node::api::Matching;
use fake_node::manifest::TWO_GPUS_ONE_NVLINK_DOMAIN;
use fake_node::node::{DRIVER, NODE};
use fake_node::release::Release;
use serde_json::json;

use crate::node::{Machine, TestNode, claim_ref, terminate};
use crate::scene::{entries, patches, published_uuid, stored, until_entries};

#[tokio::test]
async fn a_prepared_claim_says_which_gpus_it_has_until_it_is_unprepared() {
    let node = TestNode::start("dgx-h100").await;
    let plugin = node.ready_plugin().await;
    let claim = node.allocated_claim("one", "gpu-3");
    node.prepare(&claim).await.unwrap();
    let [entry] = until_entries(&node, &claim, 1).await.try_into().unwrap();
    assert_eq!((&entry["pool"], &entry["device"]), (&json!(NODE), &json!("gpu-3")));
    assert_eq!(entry["data"], json!({"uuid": published_uuid(&node, "gpu-3")}));
    let condition = &entry["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"], &condition["reason"]),
        (&json!("Ready"), &json!("True"), &json!("Prepared"))
    );
    node.unprepare(&claim).await.unwrap();
    until_entries(&node, &claim, 0).await;
    let left = stored(&node, &claim);
    assert!(left["status"]["allocation"].is_object() && left["status"]["reservedFor"].is_array(), "{left}");
    let owners = left["metadata"]["managedFields"].as_array().unwrap();
    assert!(owners.iter().all(|owner| owner["operation"] != "Apply"), "it owns nothing any more: {owners:?}");

    let pod = node.run_prepared_pod(TWO_GPUS_ONE_NVLINK_DOMAIN, "two").await.unwrap();
    let two = until_entries(&node, &claim_ref(&pod.claims[0]), 2).await;
    for (entry, device) in two.iter().zip(pod.devices()) {
        assert_eq!(
            (&entry["device"], &entry["data"]["uuid"]),
            (&json!(device), &json!(published_uuid(&node, &device)))
        );
    }
    node.end_pod(pod).await.unwrap();
    terminate(plugin).await;
}

#[tokio::test]
async fn a_restart_and_a_repeated_prepare_write_nothing() {
    let node = TestNode::start("dgx-h100").await;
    let plugin = node.ready_plugin().await;
    let [old, new] = [("old", "gpu-0"), ("new", "gpu-1")].map(|(name, device)| node.allocated_claim(name, device));
    node.prepare(&old).await.unwrap();
    let before = until_entries(&node, &old, 1).await;
    plugin.kill().await.unwrap();

    let plugin = node.ready_plugin().await;
    node.until_registered().await;
    node.prepare(&old).await.unwrap();
    // What would be written for the first would be written before this.
    node.prepare(&new).await.unwrap();
    until_entries(&node, &new, 1).await;
    let of = |name: &str| -> Matching { patches().name(name) };
    assert_eq!((node.api.count(&of("old")), node.api.count(&of("new"))), (1, 1));
    assert_eq!(entries(&stored(&node, &old), DRIVER), before);

    // What the first process has written, the second removes.
    node.unprepare(&old).await.unwrap();
    until_entries(&node, &old, 0).await;
    terminate(plugin).await;
}

#[tokio::test]
async fn older_servers_are_written_to_in_their_version() {
    let node = Machine::new("one-gpu").release(Release::V1_33).start().await;
    let plugin = node.ready_plugin().await;
    let claim = node.allocated_claim("one", "gpu-0");
    node.prepare(&claim).await.unwrap();
    until_entries(&node, &claim, 1).await;
    let requests = node.api.requests();
    let patch = requests.iter().find(|request| patches().matches(request)).unwrap();
    assert!(patch.path.contains("/apis/resource.k8s.io/v1beta"), "{}", patch.path);
    node.unprepare(&claim).await.unwrap();
    until_entries(&node, &claim, 0).await;
    terminate(plugin).await;
}

#[tokio::test]
async fn a_server_that_keeps_no_status_of_devices_is_told_once_for_each_prepare() {
    // The gate DRAResourceClaimDeviceStatus is off by default.
    let node = Machine::new("one-gpu").release(Release::V1_32).start().await;
    let mut plugin = node.ready_plugin().await;
    let claim = node.allocated_claim("one", "gpu-0");
    node.prepare(&claim).await.unwrap();
    plugin.wait_for_log("the feature gate DRAResourceClaimDeviceStatus is off").await.unwrap();
    assert!(entries(&stored(&node, &claim), DRIVER).is_empty());
    node.prepare(&claim).await.unwrap();
    node.unprepare(&claim).await.unwrap();
    terminate(plugin).await;
    let said = std::fs::read_to_string(node.plugin_log()).unwrap();
    assert_eq!(said.matches("DRAResourceClaimDeviceStatus").count(), 1, "{said}");
    assert!(node.api.count(&patches()) <= 3);
}
