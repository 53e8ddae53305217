//! What takes minutes and hours, with time that runs faster.

use std::time::{Duration, Instant};

use fake_node::api::{ApiServer, Failure, FailureRule, Kind, Matching, Request, Verb, Version};
use fake_node::node::NODE;
use serde_json::{Value, json};

use crate::proxy::Proxy;
use crate::scene::{Scene, generation, name, owner_uid, readiness, uid, watches};

/// A minute is a quarter of a second, so that the shortest watch, of four minutes, lasts one.
const MINUTES: &str = "--time-scale=240";

/// A minute is four seconds, in which a plugin that does not hold back writes many more slices than it may.
const MINUTE: Duration = Duration::from_secs(4);
const SECONDS: &str = "--time-scale=15";

/// Short pauses, and watches that do not end by themselves during a test: they last 24 seconds.
pub(crate) const PAUSES: &str = "--time-scale=10";

/// An hour is six seconds, and the half minute between two attempts longer than one takes.
const HOURS: &str = "--time-scale=600";
const HOUR: Duration = Duration::from_secs(6);

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
    let _plugin = scene.ready_plugin_with(&[PAUSES]).await;
    let slice = scene.slice();
    let cut = async |cuts: usize| {
        scene.api().forget_requests();
        for _ in 0..cuts {
            let answered = proxy.answered();
            proxy.cut_watches();
            proxy.until_answered(answered + 1).await;
        }
        ours(scene.api())
    };
    proxy.until_answered(1).await;
    // The first, the second and the fourth may be an upgrade of the server.
    let looks = cut(2).await;
    assert_eq!(looks.len(), 2 * 3, "groups, list and watch: {looks:?}");
    let requests = cut(1).await;
    assert_eq!(requests.len(), 1, "{requests:?}");
    // What happens while there is no watch is found too.
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
async fn an_hour_without_a_server_ends_by_itself_and_with_one_write() {
    /// The plugin pauses for half a minute at least after each list, but for the first ones: 1, 2, 4, 8 and 16 s.
    const GROWING: usize = 5;
    let scene = Scene::new("one-gpu").await;
    let mut plugin = scene.ready_plugin_with(&[HOURS]).await;
    let (pid, slice) = (plugin.pid(), scene.slice());
    scene.api().stop().await;
    scene.delete(&slice);
    tokio::time::sleep(HOUR / 2).await;
    // It is there again, and at its limits.
    let failure = Failure { retry_after: None, ..Failure::injected(503, "apiserver is starting") };
    scene.api().fail(FailureRule { requests: Matching::any().kind(Kind::ResourceSlice), failure, times: None });
    scene.api().compact();
    scene.api().forget_requests();
    let start = Instant::now();
    scene.api().restart().await.unwrap();
    plugin.wait_for_log("503: apiserver is starting").await.unwrap();
    tokio::time::sleep(HOUR / 2).await;
    let lists = scene.count(Verb::List);
    let pauses = u32::try_from(lists.saturating_sub(GROWING)).unwrap();
    assert!(lists > 0 && start.elapsed() >= pauses * (HOUR / 120), "{lists} lists in {:?}", start.elapsed());
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
    const WATCHES: usize = 4;
    let scene = Scene::new("one-gpu").await;
    let _plugin = scene.ready_plugin_with(&[MINUTES]).await;
    scene.api().forget_requests();
    scene.until("watches", |api| (api.count(&watches()) >= WATCHES).then_some(())).await;
    let requests = ours(scene.api());
    // A watch lasts four minutes at least.
    assert!(requests.len() <= 4 * WATCHES, "{requests:?}");
    assert!(requests.iter().all(|request| !request.is_write()), "{requests:?}");
    let watches = requests.iter().filter(|request| request.verb == Some(Verb::Watch));
    for watch in watches {
        assert!(watch.path.contains("&timeoutSeconds=1&"), "{watch:?}");
    }
}

#[tokio::test]
async fn somebody_who_deletes_every_slice_at_once_gets_less_than_twenty_writes_a_minute() {
    let scene = Scene::new("one-gpu").await;
    let _plugin = scene.ready_plugin_with(&[SECONDS]).await;
    let api = scene.api().clone();
    let deletes = tokio::spawn(async move {
        loop {
            let slice: Value = api.until(|api| api.list(Kind::ResourceSlice).pop()).await;
            // It may be gone by itself.
            let _ = api.delete(Kind::ResourceSlice, "", name(&slice));
        }
    });
    scene.api().forget_requests();
    let start = Instant::now();
    scene.until("a write", |_| (scene.count(Verb::Create) > 0).then_some(())).await;
    tokio::time::sleep(MINUTE).await;
    let writes = scene.count(Verb::Create);
    let minutes = u32::try_from((writes - 1) / 20).unwrap();
    assert!(start.elapsed() >= minutes * MINUTE, "{writes} writes in {:?}", start.elapsed());
    deletes.abort();
    scene.until_devices(1).await;
}
