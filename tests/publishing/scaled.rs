//! What takes minutes and hours, with time that runs faster.

use std::time::Duration;

use fake_node::api::{ApiServer, Failure, FailureRule, Kind, Matching, Request, Verb, Version};
use fake_node::node::NODE;
use serde_json::{Value, json};

use crate::proxy::Proxy;
use crate::scene::{Scene, generation, name, owner_uid, readiness, uid, watches};

/// A minute is a second.
const MINUTES: &str = "--time-scale=60";

/// An hour is three seconds.
const HOURS: &str = "--time-scale=1200";
const HOUR: Duration = Duration::from_secs(3);

/// What the plugin asked for.
fn ours(api: &ApiServer) -> Vec<Request> {
    api.requests().into_iter().filter(|request| request.user_agent.starts_with("gpu-dra-plugin")).collect()
}

#[tokio::test]
async fn what_a_watch_that_was_lost_does_not_tell_is_found_within_minutes() {
    let scene = Scene::new("one-gpu").await;
    let proxy = Proxy::before(&scene).await;
    let _plugin = scene.ready_plugin_with(&[MINUTES]).await;
    let slice = scene.slice();
    proxy.freeze_watches();
    scene.delete(&slice);
    let again = scene.until_replaced(&slice).await;
    assert_eq!(again["spec"]["devices"], slice["spec"]["devices"]);
}

#[tokio::test]
async fn a_node_created_anew_becomes_the_owner_of_slices_that_outlived_the_old_one() {
    let scene = Scene::new("one-gpu").await;
    let proxy = Proxy::before(&scene).await;
    let _plugin = scene.ready_plugin_with(&[MINUTES]).await;
    let slice = scene.slice();
    // Nobody tells of the slice, and what has no owner does not go with the old Node.
    proxy.freeze_watches();
    let mut orphan = slice.clone();
    orphan["metadata"]["ownerReferences"] = json!([]);
    scene.api().update(orphan).unwrap();
    let node = scene.api().recreate_node(NODE).unwrap();
    let owned = |_: &ApiServer| Some(scene.slice()).filter(|slice| slice["metadata"]["ownerReferences"].is_array());
    let owned = scene.until("an owner", owned).await;
    assert_eq!(owner_uid(&owned), node);
    assert_eq!((uid(&owned), generation(&owned)), (uid(&slice), 1), "nothing else had changed");
}

#[tokio::test]
async fn a_proxy_that_cuts_watches_costs_one_request_each_time_and_hides_nothing() {
    let scene = Scene::new("one-gpu").await;
    let proxy = Proxy::before(&scene).await;
    let _plugin = scene.ready_plugin().await;
    let slice = scene.slice();
    // The first two may be an upgrade of the server.
    for _ in 0..3 {
        scene.api().forget_requests();
        proxy.cut_watches();
        scene.until("another watch", |api| (api.count(&watches()) > 0).then_some(())).await;
    }
    let requests = ours(scene.api());
    assert_eq!(requests.len(), 1, "{requests:?}");
    // What happens while there is no watch is found too.
    scene.api().forget_requests();
    proxy.cut_watches();
    scene.delete(&slice);
    scene.until_replaced(&slice).await;
}

#[tokio::test]
async fn an_upgrade_that_ends_no_watch_is_noticed_within_minutes() {
    let scene = Scene::new("one-gpu").await;
    scene.api().serve_versions(&[Version::V1Beta1]);
    let _plugin = scene.ready_plugin_with(&[MINUTES]).await;
    scene.api().forget_requests();
    scene.api().serve_versions(&[Version::V1, Version::V1Beta1]);
    let watch = "/apis/resource.k8s.io/v1/resourceslices?watch";
    let look = |api: &ApiServer| ours(api).iter().any(|request| request.path.starts_with(watch)).then_some(());
    scene.until("a watch of v1", look).await;
    assert!(ours(scene.api()).iter().all(|request| !request.is_write()), "{:?}", ours(scene.api()));
}

#[tokio::test]
async fn hours_without_a_server_end_by_themselves_and_with_one_write() {
    let scene = Scene::new("one-gpu").await;
    let mut plugin = scene.ready_plugin_with(&[HOURS]).await;
    let (pid, slice) = (plugin.pid(), scene.slice());
    scene.api().stop().await;
    scene.delete(&slice);
    tokio::time::sleep(HOUR).await;
    // It is there again, and at its limits.
    let failure = Failure { retry_after: None, ..Failure::injected(503, "apiserver is starting") };
    scene.api().fail(FailureRule { requests: Matching::any().kind(Kind::ResourceSlice), failure, times: None });
    scene.api().compact();
    scene.api().forget_requests();
    scene.api().restart().await.unwrap();
    plugin.wait_for_log("503: apiserver is starting").await.unwrap();
    tokio::time::sleep(HOUR).await;
    let lists = scene.count(Verb::List);
    // The plugin's pauses are half a minute at least by then.
    assert!((1..=140).contains(&lists), "{lists} lists in an hour and a bit");
    assert_eq!(ours(scene.api()).iter().filter(|request| request.is_write()).count(), 0);
    let (ready, line) = readiness(&mut plugin).await;
    assert!(!ready && line.contains("503"), "{line}");

    scene.api().clear_failures();
    let again = scene.until_replaced(&slice).await;
    plugin.wait_until_ready().await.unwrap();
    assert_eq!(again["spec"]["devices"], slice["spec"]["devices"]);
    assert_eq!(ours(scene.api()).iter().filter(|request| request.is_write()).count(), 1);
    assert_eq!(plugin.pid(), pid, "the same process");
}

#[tokio::test]
async fn an_idle_node_makes_no_write_and_at_most_a_request_a_minute() {
    const MINUTES_LISTENED: usize = 15;
    let scene = Scene::new("one-gpu").await;
    let _plugin = scene.ready_plugin_with(&[MINUTES]).await;
    scene.api().forget_requests();
    tokio::time::sleep(Duration::from_secs(MINUTES_LISTENED as u64)).await;
    let requests = ours(scene.api());
    assert!((1..=MINUTES_LISTENED).contains(&requests.len()), "{requests:?}");
    assert!(requests.iter().all(|request| !request.is_write()), "{requests:?}");
}

#[tokio::test]
async fn somebody_who_deletes_every_slice_at_once_gets_less_than_twenty_writes_a_minute() {
    const MINUTES_FOUGHT: usize = 6;
    let scene = Scene::new("one-gpu").await;
    let _plugin = scene.ready_plugin_with(&[MINUTES]).await;
    let api = scene.api().clone();
    let deletes = tokio::spawn(async move {
        loop {
            let slice: Value = api.until(|api| api.list(Kind::ResourceSlice).pop()).await;
            // It may be gone by itself.
            let _ = api.delete(Kind::ResourceSlice, "", name(&slice));
        }
    });
    scene.api().forget_requests();
    tokio::time::sleep(Duration::from_secs(MINUTES_FOUGHT as u64)).await;
    let writes = scene.count(Verb::Create);
    assert!((1..20 * (MINUTES_FOUGHT + 1)).contains(&writes), "{writes} writes in {MINUTES_FOUGHT} minutes");
    deletes.abort();
    scene.until_devices(1).await;
}
