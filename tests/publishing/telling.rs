//! What the plugin says of publishing, and that it keeps quiet when there is nothing to do.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fake_node::api::{Kind, Verb};

use crate::scaled::PAUSES;
use crate::scene::{Scene, metric, readiness, watches};

/// How long an idle node is listened to. A watch lasts four minutes at least, and nothing else asks for anything.
const IDLE: Duration = Duration::from_secs(5);

#[tokio::test]
async fn an_idle_node_asks_for_nothing() {
    let (scene, mut plugin) = Scene::ready("dgx-h100").await;
    scene.api().forget_requests();
    tokio::time::sleep(IDLE).await;
    let requests = scene.api().requests();
    let ours: Vec<_> = requests.iter().filter(|request| request.user_agent.starts_with("gpu-dra-plugin")).collect();
    assert!(ours.is_empty(), "{ours:?}");
    assert!(readiness(&mut plugin).await.0);
}

#[tokio::test]
async fn metrics_say_which_generation_was_accepted_and_when() {
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let (_scene, mut plugin) = Scene::ready("one-gpu").await;
    let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    assert_eq!(metric(&mut plugin, "slice_accepted_generation").await, "1");
    let accepted = metric(&mut plugin, "slice_accepted_timestamp_seconds").await.parse().unwrap();
    assert!((before..=after).contains(&accepted), "{before} {accepted} {after}");
    assert_eq!(metric(&mut plugin, "slice_writes_total{verb=\"create\",result=\"ok\"}").await, "1");
    assert_eq!(readiness(&mut plugin).await, (true, "ok   slices: generation 1 accepted".to_owned()));
}

#[tokio::test]
async fn fields_that_the_server_does_not_store_are_named_once_and_not_written_again() {
    let scene = Scene::new("dgx-h100").await;
    scene.api().mutate(Kind::ResourceSlice, |slice| {
        for device in slice["spec"]["devices"].as_array_mut().into_iter().flatten() {
            device.as_object_mut().unwrap().remove("capacity");
        }
    });
    let mut plugin = scene.ready_plugin_with(&[PAUSES]).await;
    for _ in 0..2 {
        let before = scene.count(Verb::Watch);
        scene.api().drop_watches();
        scene.until("another watch", |api| (api.count(&watches()) > before).then_some(())).await;
    }
    assert_eq!((scene.count(Verb::Create), scene.count(Verb::Update)), (1, 0));
    let log = plugin.log().unwrap();
    assert_eq!(log.matches("does not store these fields of ResourceSlices as sent").count(), 1, "{log}");
    assert_eq!(metric(&mut plugin, "slices_altered").await, "1");
    let [event] = scene.events("ResourceSlicesAltered").try_into().unwrap();
    assert!(event["message"].as_str().unwrap().contains("devices.capacity"), "{event}");
}
