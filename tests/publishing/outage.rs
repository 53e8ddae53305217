//! An API server that refuses, is overloaded, or is away.

use fake_node::api::{ApiServer, Verb};
use serde_json::json;

use crate::scaled::PAUSES;
use crate::scene::{Scene, generation, metric, readiness, uid};

#[tokio::test]
async fn a_lost_race_an_overloaded_and_a_broken_server_only_cost_time() {
    let scene = Scene::new("one-gpu").await;
    let mut plugin = scene.ready_plugin_with(&[PAUSES]).await;
    let right = scene.slice();
    for code in [409, 429, 500] {
        scene.fail(Verb::Update, code, Some(1));
    }
    let mut edited = right.clone();
    edited["spec"]["devices"] = json!([{"name": "made-up"}]);
    scene.api().update(edited).unwrap();
    let look = |_: &ApiServer| (scene.slice()["spec"]["devices"] == right["spec"]["devices"]).then_some(());
    scene.until("the devices that there are", look).await;
    assert_eq!(scene.count(Verb::Update), 4);
    plugin.wait_until_ready().await.unwrap();
    for (result, count) in [("conflict", "1"), ("failed", "2"), ("ok", "1")] {
        let name = format!("slice_writes_total{{verb=\"update\",result=\"{result}\"}}");
        assert_eq!(metric(&mut plugin, &name).await, count, "{result}");
    }
}

#[tokio::test]
async fn a_node_is_not_ready_while_the_server_cannot_answer_and_ready_as_soon_as_it_can() {
    let (scene, mut plugin) = Scene::ready("one-gpu").await;
    let slice = scene.slice();
    scene.fail(Verb::List, 503, None);
    scene.api().drop_watches();
    plugin.wait_for_log("cannot keep this node's ResourceSlices up to date").await.unwrap();
    let (ready, line) = readiness(&mut plugin).await;
    assert!(!ready && line.contains("generation 1 was accepted, and since then: ") && line.contains("503"), "{line}");
    scene.api().clear_failures();
    plugin.wait_until_ready().await.unwrap();
    assert_eq!(scene.slice(), slice);
    assert_eq!(scene.count(Verb::Create) + scene.count(Verb::Update), 1, "nothing had changed");
}

#[tokio::test]
async fn a_node_that_changes_while_the_server_is_away_is_published_with_one_write_when_it_is_back() {
    let (scene, mut plugin) = Scene::ready("dgx-h100").await;
    let slice = scene.slice();
    scene.api().stop().await;
    scene.lose([3]);
    plugin.wait_for_log("cannot keep this node's ResourceSlices up to date").await.unwrap();
    // After hours, no resource version is young enough to go on from.
    scene.api().compact();
    scene.api().forget_requests();
    scene.api().restart().await.unwrap();
    scene.until_devices(7).await;
    plugin.wait_until_ready().await.unwrap();
    let after = scene.slice();
    assert_eq!((uid(&after), generation(&after)), (uid(&slice), 1));
    assert_eq!(scene.api().writes().len(), 1);
}

#[tokio::test]
async fn what_the_server_refuses_is_the_reason_in_readiness_metrics_and_an_event() {
    let scene = Scene::new("one-gpu").await;
    scene.fail(Verb::Create, 422, None);
    let mut plugin = scene.node.start_plugin().unwrap();
    let event = scene.until("an Event", |_| scene.events("ResourceSlicesNotPublished").pop()).await;
    assert!(event["message"].as_str().unwrap().contains("422"), "{event}");
    assert_eq!(event["type"], "Warning");
    let (ready, line) = readiness(&mut plugin).await;
    assert!(!ready && line.starts_with("wait slices: not published: ") && line.contains("422"), "{line}");
    assert_ne!(metric(&mut plugin, "slice_writes_total{verb=\"create\",result=\"refused\"}").await, "");
    assert_eq!(metric(&mut plugin, "slice_accepted_generation").await, "0");
    scene.api().clear_failures();
    plugin.wait_until_ready().await.unwrap();
}
