mod limits;
mod outage;
mod reduced;
mod repair;
mod superseded;
mod versions;

use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::*;
use crate::cluster::fake::{Fake, Fault, PATIENCE, State};
use crate::cluster::slices::tests::{a_pool, pool};

/// A publisher at work.
struct Rig {
    fake: Fake,
    wanted: watch::Sender<Option<Pool>>,
    published: watch::Receiver<Published>,
    metrics: Metrics,
    task: JoinHandle<()>,
}

// === impl Rig ===

impl Rig {
    fn start(fake: &Fake, wanted: Option<Pool>) -> Self {
        let (wanted, receiver) = watch::channel(wanted);
        let metrics = Metrics::default();
        let (work, published) = Publisher::new(fake.cluster(), receiver, metrics.clone());
        let task = tokio::spawn(work.run());
        Self { fake: fake.clone(), wanted, published, metrics, task }
    }

    async fn accepted(&mut self) -> u64 {
        let accepted = |published: &Published| matches!(published, Published::Accepted { .. });
        let published = timeout(PATIENCE, self.published.wait_for(accepted)).await.expect("it never was");
        match *published.unwrap() {
            Published::Accepted { generation, .. } => generation,
            _ => unreachable!(),
        }
    }

    /// Waits for a settled pool that shows these devices.
    async fn shows(&mut self, devices: &[&str]) {
        self.fake.until(|state| shown(state) == devices).await;
        self.accepted().await;
    }

    fn writes(&self, verb: Verb, result: Outcome) -> u64 {
        self.metrics.writes.get_or_create(&Write { verb, result }).get()
    }
}

/// Names of the devices of all slices, in the shape of `v1beta1` too.
fn shown(state: &State) -> Vec<&str> {
    let devices = state.slices.values().filter_map(|slice| slice["spec"]["devices"].as_array()).flatten();
    devices.filter_map(|device| device["name"].as_str()).collect()
}

fn generations(state: &State) -> Vec<u64> {
    state.slices.values().map(|slice| slice["spec"]["pool"]["generation"].as_u64().unwrap()).collect()
}

async fn hours(count: u64) {
    sleep(Duration::from_secs(count * 3600)).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_node_publishes_its_pool_and_then_leaves_the_server_alone() {
    let fake = Fake::new();
    let mut rig = Rig::start(&fake, Some(a_pool()));
    assert_eq!(rig.accepted().await, 1);
    fake.look(|state| {
        let (name, slice) = state.slices.first_key_value().unwrap();
        assert!(name.starts_with("00000-gpu.nvidia.com-node-a-"), "{name}");
        let owner =
            json!([{"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-uid-1", "controller": true}]);
        assert_eq!(slice["metadata"]["ownerReferences"], owner);
        assert_eq!(slice["spec"]["nodeName"], "node-a");
        assert_eq!(slice["spec"]["pool"], json!({"name": "node-a", "generation": 1, "resourceSliceCount": 1}));
        assert_eq!(shown(state), ["gpu-0", "gpu-1"]);
    });
    hours(24).await;
    fake.look(|state| {
        assert_eq!(state.writes(), 1);
        assert!(state.log.len() < 24 * 60, "{} requests a day", state.log.len());
    });
    assert_eq!(rig.writes(Verb::create, Outcome::ok), 1);
    assert_eq!(rig.metrics.accepted_generation.get(), 1);
    assert!(rig.metrics.accepted_seconds.get() > 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_restarted_plugin_finds_its_slices_and_writes_nothing() {
    let fake = Fake::new();
    let mut first = Rig::start(&fake, Some(pool(&[&[0], &[1]])));
    first.accepted().await;
    first.task.abort();
    let before = fake.look(State::writes);
    let mut second = Rig::start(&fake, Some(pool(&[&[0], &[1]])));
    assert_eq!(second.accepted().await, 1);
    assert_eq!(fake.look(State::writes), before);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_published_or_withdrawn_before_the_devices_are_known() {
    let fake = Fake::new();
    Rig::start(&fake, Some(a_pool())).accepted().await;
    let rig = Rig::start(&fake, None);
    let before = fake.look(State::writes);
    hours(1).await;
    assert!(matches!(&*rig.published.borrow(), Published::Never { reason } if reason.contains("not known yet")));
    assert_eq!(fake.look(State::writes), before);
    let mut rig = rig;
    rig.wanted.send_replace(Some(pool(&[&[2]])));
    rig.shows(&["gpu-2"]).await;
}

#[tokio::test(start_paused = true)]
async fn one_changed_slice_is_one_update_of_the_same_generation() {
    let fake = Fake::new();
    let mut rig = Rig::start(&fake, Some(pool(&[&[0], &[1]])));
    rig.accepted().await;
    rig.wanted.send_replace(Some(pool(&[&[0], &[2]])));
    rig.shows(&["gpu-0", "gpu-2"]).await;
    fake.look(|state| assert_eq!((state.count("PUT"), generations(state)), (1, vec![1, 1])));
    rig.wanted.send_replace(Some(pool(&[&[]])));
    rig.shows(&[]).await;
    fake.look(|state| assert_eq!(state.slices.len(), 1, "an empty node shows that its driver runs"));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_changes_every_slice_is_believed_after_one_write() {
    let fake = Fake::new();
    fake.change(|state| {
        state.mutate = |slice| {
            slice["spec"]["devices"][0].as_object_mut().unwrap().remove("capacity");
            slice["spec"]["devices"][1]["capacity"]["memory"]["value"] = "81920Mi".into();
            slice["spec"]["addedByServer"] = true.into();
        };
    });
    let mut rig = Rig::start(&fake, Some(a_pool()));
    rig.accepted().await;
    assert_eq!(rig.metrics.altered.get(), 1);
    hours(2).await;
    assert_eq!(fake.look(State::writes), 1);
    fake.look(|state| {
        let [event] = state.events.as_slice() else { panic!("{:?}", state.events) };
        assert_eq!((&event["reason"], &event["type"]), (&json!("ResourceSlicesAltered"), &json!("Warning")));
        assert!(event["note"].as_str().unwrap().contains("devices.capacity"), "{event}");
        assert_eq!((&event["regarding"]["kind"], &event["regarding"]["name"]), (&json!("Node"), &json!("node-a")));
    });
    fake.change(|state| state.mutate = |_| {});
    rig.wanted.send_replace(Some(pool(&[&[3]])));
    rig.shows(&["gpu-3"]).await;
    assert_eq!(rig.metrics.altered.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_ours_is_left_alone_even_if_the_selector_is_ignored() {
    let fake = Fake::new();
    let stranger = |driver: &str, node: &str| json!({"spec": {"driver": driver, "nodeName": node, "pool": {}}});
    fake.change(|state| {
        state.store("00000-a", stranger("nic.example.com", "node-a"));
        state.store("00000-b", stranger("gpu.nvidia.com", "node-b"));
    });
    let mut rig = Rig::start(&fake, Some(a_pool()));
    rig.accepted().await;
    fake.look(|state| assert_eq!((state.slices.len(), state.writes()), (3, 1)));
}

#[tokio::test(start_paused = true)]
async fn it_ends_with_the_one_who_says_what_is_wanted_and_withdraws_nothing() {
    let fake = Fake::new();
    let mut rig = Rig::start(&fake, Some(a_pool()));
    rig.accepted().await;
    drop(rig.wanted);
    rig.task.await.unwrap();
    assert_eq!(fake.look(|state| shown(state).len()), 2);
}

#[tokio::test(start_paused = true)]
async fn an_event_about_altered_fields_that_was_not_taken_is_written_later() {
    let fake = Fake::new();
    fake.change(|state| {
        state.mutate = |slice| {
            slice["spec"]["devices"][0].as_object_mut().unwrap().remove("capacity");
        };
    });
    fake.on_request(|state, line| {
        (line.starts_with("POST /apis/events") && state.count("POST /apis/events") == 1).then_some(Fault::Refuse)
    });
    let mut rig = Rig::start(&fake, Some(a_pool()));
    rig.accepted().await;
    fake.until(|state| state.events.len() == 1).await;
    assert_eq!(fake.look(|state| state.events[0]["reason"].clone()), "ResourceSlicesAltered");
    hours(2).await;
    assert_eq!(fake.look(|state| state.count("POST /apis/events") + state.count("PATCH")), 2, "and then no more");
}

#[test]
fn the_metrics_have_names_that_say_what_they_count() {
    let mut registry = prometheus_client::registry::Registry::default();
    let metrics = Metrics::register(&mut registry);
    metrics.writes.get_or_create(&Write { verb: Verb::update, result: Outcome::conflict }).inc();
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(text.contains(r#"slice_writes_total{verb="update",result="conflict"} 1"#), "{text}");
    assert!(text.contains("slice_accepted_generation 0") && text.contains("slice_accepted_timestamp_seconds 0"));
}
