//! Slices that somebody deletes or edits, and watches that do not tell.

use std::time::{Duration, Instant};

use fake_node::api::{ApiServer, Kind, Verb};
use fake_node::node::NODE;
use serde_json::{Value, json};

use crate::scaled::PAUSES;
use crate::scene::{Scene, generation, name, owner_uid, readiness, uid, watches};

/// Users of NVIDIA's driver wait half a minute to a minute. Here it is a second or two, but on a machine that does much else.
pub(crate) const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_slice_deleted_right_after_an_update_is_back_within_seconds() {
    let (scene, _plugin) = Scene::ready("dgx-h100").await;
    let before = scene.slice();
    scene.api().forget_requests();
    scene.lose([7]);
    scene.until_devices(7).await;
    let updated = scene.slice();
    scene.delete(&updated);
    let start = Instant::now();
    // A change of one slice is one write and no new generation.
    assert_eq!((uid(&updated), generation(&updated)), (uid(&before), 1));
    assert_eq!((scene.api().writes().len(), scene.count(Verb::Update)), (1, 1));

    let again = scene.until_replaced(&updated).await;
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!(again["spec"]["devices"], updated["spec"]["devices"]);
}

#[tokio::test]
async fn what_the_kubelet_wipes_when_it_starts_is_back_within_seconds() {
    let (scene, _plugin) = Scene::ready("one-gpu").await;
    let slice = scene.slice();
    let start = Instant::now();
    scene.node.kubelet.restart().await;
    let again = scene.until_replaced(&slice).await;
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!(again["spec"]["devices"], slice["spec"]["devices"]);
}

#[tokio::test]
async fn edits_of_others_are_put_right_and_what_is_theirs_stays() {
    let (scene, _plugin) = Scene::ready("one-gpu").await;
    let right = scene.slice();

    let mut edited = right.clone();
    edited["spec"]["devices"] = json!([{"name": "made-up"}]);
    edited["metadata"]["ownerReferences"] = json!([]);
    edited["metadata"]["labels"] = json!({"team": "a"});
    scene.api().update(edited).unwrap();
    let look = |_: &ApiServer| Some(scene.slice()).filter(|slice| slice["spec"]["devices"] == right["spec"]["devices"]);
    let slice = scene.until("the devices that there are", look).await;
    assert_eq!(uid(&slice), uid(&right), "updated, not created anew");
    assert_eq!(slice["metadata"]["ownerReferences"], right["metadata"]["ownerReferences"]);
    assert_eq!(slice["metadata"]["labels"], json!({"team": "a"}));

    // One that pretends to be of this pool would make it incomplete or offer a device twice.
    let mut stranger = right.clone();
    stranger["metadata"] = json!({"name": "stranger"});
    scene.api().create(stranger).unwrap();
    let gone = |_: &ApiServer| (scene.node.slices().len() == 1).then_some(());
    scene.until("no stranger", gone).await;
    assert_eq!(uid(&scene.slice()), uid(&right));
}

#[tokio::test]
async fn a_node_that_is_created_anew_owns_the_slices() {
    let (scene, _plugin) = Scene::ready("one-gpu").await;
    let slice = scene.slice();
    // The cluster deletes what the old one owned.
    let node = scene.api().recreate_node(NODE).unwrap();
    let start = Instant::now();
    let again = scene.until_replaced(&slice).await;
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_ne!(owner_uid(&slice), node);
    assert_eq!(owner_uid(&again), node);
}

#[tokio::test]
async fn watches_that_end_or_fall_behind_are_begun_anew_and_cost_no_write() {
    let (scene, _plugin) = Scene::ready("one-gpu").await;
    let slice = scene.slice();
    for cut in [ApiServer::drop_watches, ApiServer::expire_watches] {
        let before = scene.count(Verb::Watch);
        cut(scene.api());
        scene.until("another watch", |api| (api.count(&watches()) > before).then_some(())).await;
    }
    assert_eq!(scene.slice(), slice);
    scene.delete(&slice);
    let start = Instant::now();
    scene.until_replaced(&slice).await;
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[tokio::test]
async fn what_a_stalled_watch_does_not_tell_is_found_by_listing() {
    let (scene, _plugin) = Scene::ready("one-gpu").await;
    let slice = scene.slice();
    let before = scene.count(Verb::Watch);
    let _stall = scene.api().stall(watches());
    scene.api().drop_watches();
    scene.until("a watch that is not answered", |api| (api.count(&watches()) > before).then_some(())).await;
    scene.delete(&slice);
    scene.until_replaced(&slice).await;
}

#[tokio::test]
async fn somebody_who_undoes_every_write_makes_the_node_not_ready_and_is_told_of() {
    let scene = Scene::new("one-gpu").await;
    let mut plugin = scene.ready_plugin_with(&[PAUSES]).await;
    let api = scene.api().clone();
    let slices = |api: &ApiServer| -> Vec<Value> { api.list(Kind::ResourceSlice) };
    let deletes = tokio::spawn(async move {
        loop {
            let slice = api.until(|api| slices(api).pop()).await;
            // It may be gone by itself.
            let _ = api.delete(Kind::ResourceSlice, "", name(&slice));
        }
    });
    let event = scene.until("an Event", |_| scene.events("ResourceSlicesNotPublished").pop()).await;
    assert!(event["message"].as_str().unwrap().contains("who else writes"), "{event}");
    let (ready, line) = readiness(&mut plugin).await;
    assert!(!ready && line.contains("changed or deleted at once"), "{line}");

    deletes.abort();
    plugin.wait_until_ready().await.unwrap();
    assert_eq!(generation(&scene.slice()), 1);
}
