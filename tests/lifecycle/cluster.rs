//! An API server that is away, and slices that somebody touches.

use fake_node::api::{Kind, Request};
use fake_node::manifest::ONE_GPU;
use serde_json::Value;

use crate::node::{TestNode, terminate};

#[tokio::test]
async fn without_an_api_server_the_plugin_registers_and_unprepares_and_publishes_when_it_is_back() {
    let node = TestNode::start("one-gpu").await;
    let plugin = node.ready_plugin().await;
    let pod = node.run_prepared_pod(ONE_GPU, "one").await.unwrap();
    terminate(plugin).await;
    node.until_deregistered().await;
    // The kubelet wipes the slices of a plugin that stays away.
    node.until_slices("no slices", |slices| slices.is_empty().then_some(())).await;

    node.api.stop().await;
    let mut plugin = node.registered_plugin().await;
    plugin.wait_for_log("cannot keep this node's ResourceSlices up to date").await.unwrap();
    let (status, text) = plugin.get("/readyz").await.unwrap();
    assert!(status == 503 && text.contains("wait slices: not published: "), "{status} {text}");
    node.end_pod(pod).await.unwrap();
    assert!(node.specs().is_empty() && node.records().is_empty());
    assert!(node.slices().is_empty());

    node.api.restart().await.unwrap();
    plugin.wait_until_ready().await.unwrap();
    assert_eq!(node.devices().len(), 1);
    terminate(plugin).await;
}

#[tokio::test]
async fn an_api_server_that_comes_back_after_long_finds_the_slices_as_they_were() {
    let node = TestNode::start("one-gpu").await;
    let mut plugin = node.ready_plugin().await;
    let pod = node.run_prepared_pod(ONE_GPU, "one").await.unwrap();
    let slices = node.slices();

    node.api.stop().await;
    plugin.wait_for_log("cannot keep this node's ResourceSlices up to date").await.unwrap();
    let (status, text) = plugin.get("/readyz").await.unwrap();
    assert!(status == 503 && text.contains("wait slices: generation 1 was accepted, and since then: "), "{text}");
    node.end_pod(pod).await.unwrap();
    assert!(node.specs().is_empty() && node.records().is_empty());

    // After hours, no resource version is young enough to go on from.
    node.api.compact();
    node.api.forget_requests();
    node.api.restart().await.unwrap();
    plugin.wait_until_ready().await.unwrap();
    assert_eq!(node.slices(), slices);
    let of_slices = |write: &Request| write.kind == Some(Kind::ResourceSlice);
    let writes: Vec<_> = node.api.writes().into_iter().filter(of_slices).collect();
    assert!(writes.is_empty(), "{writes:?}");
    terminate(plugin).await;
}

#[tokio::test]
async fn slices_that_somebody_deletes_come_back_and_those_that_somebody_changes_are_put_right() {
    let node = TestNode::start("one-gpu").await;
    let plugin = node.ready_plugin().await;
    let [slice] = node.slices().try_into().unwrap();

    node.api.delete(Kind::ResourceSlice, "", slice["metadata"]["name"].as_str().unwrap()).unwrap();
    let again = |slices: &[Value]| slices.first().cloned();
    let mut slice = {
        let returned = node.until_slices("a slice again", again).await;
        assert_ne!(returned["metadata"]["uid"], slice["metadata"]["uid"]);
        assert_eq!(returned["spec"]["devices"], slice["spec"]["devices"]);
        returned
    };

    let devices = slice["spec"]["devices"].take();
    slice["spec"]["devices"] = serde_json::json!([{"name": "made-up"}]);
    node.api.update(slice).unwrap();
    let right = |slices: &[Value]| (slices.first()?["spec"]["devices"] == devices).then_some(());
    node.until_slices("the devices that there are", right).await;
    terminate(plugin).await;
}
