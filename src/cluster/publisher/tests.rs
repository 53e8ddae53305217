mod reduced;

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
async fn wiped_and_edited_slices_come_back_within_seconds() {
    let fake = Fake::new();
    let mut rig = Rig::start(&fake, Some(a_pool()));
    rig.accepted().await;
    let edit = |state: &mut State| {
        let (name, mut slice) = state.slices.first_key_value().map(|(k, v)| (k.clone(), v.clone())).unwrap();
        slice["spec"]["devices"] = json!([{"name": "stranger"}]);
        state.store(&name, slice);
    };
    for disturb in [State::wipe, edit, State::wipe, edit, State::wipe, edit] {
        hours(1).await;
        let start = Instant::now();
        fake.change(disturb);
        rig.shows(&["gpu-0", "gpu-1"]).await;
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
    assert!(!rig.task.is_finished());
}

#[tokio::test(start_paused = true)]
async fn somebody_who_wipes_for_ever_is_not_fought() {
    for after in [0, 5] {
        let fake = Fake::new();
        let mut rig = Rig::start(&fake, Some(a_pool()));
        rig.accepted().await;
        let server = fake.clone();
        let wipes = tokio::spawn(async move {
            loop {
                server.until(|state| !state.slices.is_empty()).await;
                sleep(Duration::from_secs(after)).await;
                server.change(State::wipe);
            }
        });
        hours(1).await;
        let writes = fake.look(State::writes);
        assert!(writes < 150, "{writes} writes in an hour");
        if after == 0 {
            let status = rig.published.borrow().clone();
            assert!(matches!(&status, Published::Failing { reason, .. } if reason.contains("at once")), "{status:?}");
            assert_eq!(fake.look(|state| state.events.len()), 1, "said once");
        }
        wipes.abort();
        rig.shows(&["gpu-0", "gpu-1"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_generation_goes_out_in_one_go_even_when_little_may_be_written() {
    let fake = Fake::new();
    let mut rig = Rig::start(&fake, Some(pool(&[&[0], &[1], &[2], &[3]])));
    rig.accepted().await;
    for number in 100..113 {
        rig.wanted.send_replace(Some(pool(&[&[number], &[1], &[2], &[3]])));
        fake.until(|state| shown(state).contains(&&*format!("gpu-{number}"))).await;
    }
    let start = Instant::now();
    rig.wanted.send_replace(Some(pool(&[&[4], &[5], &[6], &[7]])));
    fake.until(|state| generations(state).contains(&2)).await;
    assert!(start.elapsed() > Duration::from_secs(30), "the budget was not spent");
    let start = Instant::now();
    rig.shows(&["gpu-4", "gpu-5", "gpu-6", "gpu-7"]).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
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
async fn a_server_that_never_keeps_anything_gets_few_writes() {
    let fake = Fake::new();
    // What a list shows is never what a write returned.
    fake.on_request(|_, line| {
        let body = r#"{"metadata": {"resourceVersion": "1"}, "items": []}"#;
        line.starts_with("GET /apis/resource.k8s.io/v1/resourceslices").then_some(Fault::Answer {
            code: 200,
            headers: &[],
            body,
        })
    });
    let _rig = Rig::start(&fake, Some(pool(&[&[0], &[1], &[2], &[3]])));
    let mut writes = 0;
    for _ in 0..30 {
        sleep(Duration::from_secs(60)).await;
        let now = fake.look(State::writes);
        assert!(now - writes < 26, "{} writes in a minute", now - writes);
        writes = now;
    }
    assert!(writes > 0);
}

#[tokio::test(start_paused = true)]
async fn the_owner_is_looked_up_again_when_slices_go_with_their_node() {
    let fake = Fake::new();
    let mut rig = Rig::start(&fake, Some(a_pool()));
    rig.accepted().await;
    fake.change(|state| {
        state.node_uid = "node-uid-2".into();
        state.wipe();
    });
    rig.shows(&["gpu-0", "gpu-1"]).await;
    fake.look(|state| {
        let slice = state.slices.values().next().unwrap();
        assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], "node-uid-2");
    });
}

#[tokio::test(start_paused = true)]
async fn a_node_created_anew_becomes_the_owner_even_if_the_cluster_is_slow_to_delete_what_the_old_one_owned() {
    let fake = Fake::new();
    let mut rig = Rig::start(&fake, Some(a_pool()));
    rig.accepted().await;
    let start = Instant::now();
    fake.change(|state| state.node_uid = "node-uid-2".into());
    fake.until(|state| {
        let slice = state.slices.values().next().unwrap();
        slice["metadata"]["ownerReferences"][0]["uid"] == "node-uid-2"
    })
    .await;
    assert!(start.elapsed() < Duration::from_secs(7 * 60), "{:?}", start.elapsed());
    fake.look(|state| assert_eq!((state.writes(), generations(state)), (2, vec![1])));
}

#[tokio::test(start_paused = true)]
async fn watches_that_always_break_keep_nobody_from_repairing_soon() {
    for seconds in [40, 300] {
        let fake = Fake::new();
        let mut rig = Rig::start(&fake, Some(a_pool()));
        rig.accepted().await;
        for _ in 0..20 {
            sleep(Duration::from_secs(seconds)).await;
            fake.change(State::cut_watches);
            let start = Instant::now();
            fake.change(|state| state.slices.clear());
            rig.shows(&["gpu-0", "gpu-1"]).await;
            assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn watches_that_end_at_once_are_not_begun_again_and_again() {
    let fake = Fake::new();
    let mut rig = Rig::start(&fake, Some(a_pool()));
    rig.accepted().await;
    let server = fake.clone();
    tokio::spawn(async move {
        loop {
            server.until(State::is_watched).await;
            server.change(State::cut_watches);
        }
    });
    hours(1).await;
    let requests = fake.look(|state| state.log.len());
    assert!(requests < 3 * 3600 / 20, "{requests} requests in an hour");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_upgraded_is_asked_for_its_versions_although_it_still_serves_the_old_one() {
    let fake = Fake::new();
    fake.change(|state| state.served = vec!["v1beta1"]);
    let mut rig = Rig::start(&fake, Some(a_pool()));
    rig.accepted().await;
    fake.change(|state| {
        state.served = vec!["v1", "v1beta1"];
        state.cut_watches();
        state.wipe();
    });
    rig.shows(&["gpu-0", "gpu-1"]).await;
    fake.look(|state| assert_eq!(state.count("POST /apis/resource.k8s.io/v1/"), 1));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_asks_for_patience_gets_it_within_reason() {
    let fake = Fake::new();
    fake.on_request(|_, line| {
        let headers = &[("retry-after", "86400")];
        line.starts_with("POST /apis/resource").then_some(Fault::Answer { code: 429, headers, body: "busy" })
    });
    let mut rig = Rig::start(&fake, Some(a_pool()));
    hours(1).await;
    assert!((55..=61).contains(&fake.look(State::writes)), "{} writes", fake.look(State::writes));
    assert!(matches!(&*rig.published.borrow(), Published::Never { reason } if reason.contains("busy")));
    assert!(fake.look(|state| state.events.is_empty()), "a server that is busy gets no Events");
    fake.on_request(|_, _| None);
    rig.accepted().await;
}

#[tokio::test(start_paused = true)]
async fn a_pause_ends_when_something_else_is_wanted_unless_the_server_asked_for_it() {
    let refusals: [(u16, &'static [(&str, &str)]); 2] = [(422, &[]), (429, &[("retry-after", "50")])];
    for (code, headers) in refusals {
        let fake = Fake::new();
        fake.on_request(move |_, line| {
            line.starts_with("POST /apis/resource").then_some(Fault::Answer { code, headers, body: "no" })
        });
        let mut rig = Rig::start(&fake, Some(a_pool()));
        hours(1).await;
        let before = fake.look(State::writes);
        fake.until(|state| state.writes() > before).await;
        sleep(Duration::from_millis(500)).await;
        fake.on_request(|_, _| None);
        let start = Instant::now();
        rig.wanted.send_replace(Some(pool(&[&[5]])));
        rig.shows(&["gpu-5"]).await;
        let seconds = if headers.is_empty() { 0..1 } else { 49..51 };
        assert!(seconds.contains(&start.elapsed().as_secs()), "{code}: {:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn new_wishes_while_the_server_refuses_make_no_more_writes_than_the_budget_has() {
    let fake = Fake::new();
    fake.on_request(|_, line| {
        line.starts_with("POST /apis/resource").then_some(Fault::Answer { code: 422, headers: &[], body: "no" })
    });
    let rig = Rig::start(&fake, Some(a_pool()));
    for number in 0..600 {
        sleep(Duration::from_secs(1)).await;
        rig.wanted.send_replace(Some(pool(&[&[number % 50]])));
    }
    let writes = fake.look(State::writes);
    assert!((100..=11 * 24).contains(&writes), "{writes} writes in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn somebody_who_labels_slices_all_the_time_does_not_slow_their_repair() {
    let fake = Fake::new();
    let mut rig = Rig::start(&fake, Some(a_pool()));
    rig.accepted().await;
    for round in 0..90 {
        sleep(Duration::from_secs(40)).await;
        fake.change(|state| {
            let (name, mut slice) = state.slices.first_key_value().map(|(k, v)| (k.clone(), v.clone())).unwrap();
            slice["metadata"]["labels"] = json!({ "round": round.to_string() });
            state.store(&name, slice);
        });
    }
    sleep(Duration::from_secs(20)).await;
    let start = Instant::now();
    fake.change(State::wipe);
    rig.shows(&["gpu-0", "gpu-1"]).await;
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
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
async fn an_outage_of_hours_ends_by_itself() {
    let fake = Fake::new();
    fake.on_request(|_, _| Some(Fault::Refuse));
    let mut rig = Rig::start(&fake, Some(a_pool()));
    hours(3).await;
    assert!(matches!(&*rig.published.borrow(), Published::Never { reason } if reason.contains("cannot be reached")));
    assert!(fake.look(|state| state.log.len()) < 3 * 3600 / 20);
    fake.on_request(|_, _| None);
    rig.accepted().await;

    fake.on_request(|_, _| Some(Fault::Answer { code: 503, headers: &[], body: "apiserver is shutting down" }));
    rig.wanted.send_replace(Some(pool(&[&[5]])));
    rig.published.wait_for(|published| matches!(published, Published::Failing { .. })).await.unwrap();
    let status = rig.published.borrow().clone();
    let Published::Failing { reason, generation, .. } = status else { unreachable!() };
    assert!(reason.contains("503") && reason.contains("shutting down"), "{reason}");
    assert_eq!(generation, 1);
    fake.on_request(|_, _| None);
    rig.shows(&["gpu-5"]).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_accepted_counts_for_a_few_seconds_when_something_else_is_wanted() {
    let fake = Fake::new();
    let mut rig = Rig::start(&fake, Some(a_pool()));
    rig.accepted().await;
    hours(1).await;
    rig.published.mark_unchanged();
    rig.wanted.send_replace(Some(pool(&[&[5]])));
    fake.until(|state| shown(state) == ["gpu-5"]).await;
    sleep(Duration::from_secs(60)).await;
    assert!(!rig.published.has_changed().unwrap(), "accepted soon: {:?}", rig.published.borrow());

    fake.on_request(|_, line| line.starts_with("PUT").then_some(Fault::Hang));
    rig.wanted.send_replace(Some(pool(&[&[6]])));
    sleep(Duration::from_secs(4)).await;
    assert!(!rig.published.has_changed().unwrap(), "{:?}", rig.published.borrow());
    sleep(Duration::from_secs(2)).await;
    let status = rig.published.borrow().clone();
    assert!(matches!(&status, Published::Failing { reason, .. } if reason.contains("being written")), "{status:?}");
    sleep(Duration::from_secs(4)).await;
    let status = rig.published.borrow().clone();
    assert!(matches!(&status, Published::Failing { reason, .. } if reason.contains("in time")), "{status:?}");
    fake.on_request(|_, _| None);
    rig.shows(&["gpu-6"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_race_is_run_again_and_is_no_failure() {
    let fake = Fake::new();
    let mut rig = Rig::start(&fake, Some(a_pool()));
    rig.accepted().await;
    fake.on_request(|state, line| {
        let fault = Fault::Answer { code: 409, headers: &[], body: r#"{"message": "the object has been modified"}"# };
        (line.starts_with("PUT") && state.count("PUT") == 1).then_some(fault)
    });
    rig.published.mark_unchanged();
    rig.wanted.send_replace(Some(pool(&[&[7]])));
    fake.until(|state| shown(state) == ["gpu-7"]).await;
    hours(1).await;
    assert!(!rig.published.has_changed().unwrap(), "{:?}", rig.published.borrow());
    assert_eq!((rig.writes(Verb::update, Outcome::conflict), rig.writes(Verb::update, Outcome::ok)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn what_the_server_refuses_is_the_reason_and_is_not_hammered() {
    let fake = Fake::new();
    fake.on_request(|_, line| {
        let body = r#"{"code": 422, "message": "spec.devices[0].name: Invalid value", "details": {"name": "x"}}"#;
        line.starts_with("POST /apis/resource").then_some(Fault::Answer { code: 422, headers: &[], body })
    });
    let mut rig = Rig::start(&fake, Some(a_pool()));
    hours(1).await;
    assert!(matches!(&*rig.published.borrow(), Published::Never { reason } if reason.contains("Invalid value")));
    fake.look(|state| {
        let [event] = state.events.as_slice() else { panic!("{:?}", state.events) };
        assert_eq!(event["reason"], "ResourceSlicesNotPublished");
        assert!(event["note"].as_str().unwrap().contains("Invalid value"), "{event}");
    });
    assert!(fake.look(State::writes) < 3600 / 20);
    assert!(rig.writes(Verb::create, Outcome::refused) > 1);
    fake.on_request(|_, _| None);
    rig.accepted().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_no_news_because_the_server_made_up_another_name() {
    let fake = Fake::new();
    fake.change(|state| state.refuse = |_| Some("spec.devices[0].name: Invalid value".into()));
    let mut rig = Rig::start(&fake, Some(a_pool()));
    fake.until(|state| state.events.len() == 1).await;
    rig.published.mark_unchanged();
    hours(1).await;
    assert!(!rig.published.has_changed().unwrap(), "{:?}", rig.published.borrow());
    assert_eq!(fake.look(|state| state.count("POST /apis/events") + state.count("PATCH")), 1);
    assert!(fake.look(State::writes) > 30);
    // Another refusal is news, though the Event about the first is not a minute old.
    fake.change(|state| state.refuse = |_| Some("spec.pool.name: Invalid value".into()));
    fake.until(|state| state.events.len() == 2).await;
    fake.change(|state| state.refuse = |_| Some("spec.driver: Invalid value".into()));
    rig.wanted.send_replace(Some(pool(&[&[5]])));
    fake.until(|state| state.events.len() == 3).await;
    let notes = fake.look(|state| state.events.iter().map(|event| event["note"].to_string()).collect::<Vec<_>>());
    for (note, field) in notes.iter().zip(["devices[0].name", "pool.name", "spec.driver"]) {
        assert!(note.contains(field), "{field}: {notes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_version_is_published_and_an_upgrade_of_the_server_is_followed() {
    let fake = Fake::new();
    fake.change(|state| state.served = vec!["v1beta1"]);
    let mut rig = Rig::start(&fake, Some(a_pool()));
    rig.accepted().await;
    fake.look(|state| {
        let slice = state.slices.values().next().unwrap();
        assert!(slice["spec"]["devices"][0]["basic"]["attributes"].is_object(), "{slice}");
    });
    fake.change(|state| {
        state.served = vec!["v1", "v1beta2"];
        // A real server converts what is stored; this one just forgets it.
        state.wipe();
    });
    rig.shows(&["gpu-0", "gpu-1"]).await;
    fake.look(|state| {
        let slice = state.slices.values().next().unwrap();
        assert!(slice["spec"]["devices"][0]["attributes"].is_object(), "{slice}");
    });
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_reports_nothing_is_made_up_for_by_listing() {
    let fake = Fake::new();
    let mut rig = Rig::start(&fake, Some(a_pool()));
    rig.accepted().await;
    sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    // Gone without an event.
    fake.change(|state| state.slices.clear());
    rig.shows(&["gpu-0", "gpu-1"]).await;
    assert!(start.elapsed() < Duration::from_secs(7 * 60), "{:?}", start.elapsed());
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
