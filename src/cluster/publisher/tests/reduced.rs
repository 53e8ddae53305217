//! Servers that do not keep lists, counters or taints.

use super::*;
use crate::cluster::publisher::metrics::{Extra, Reduced};
use crate::cluster::slices::tests::pool_with_extras;

/// The devices of [`pool_with_extras`].
const ALL: [&str; 4] = ["gpu-0", "gpu-0-mig-0", "gpu-1", "gpu-2"];

fn each_device(slice: &mut Value, change: impl Fn(&mut serde_json::Map<String, Value>)) {
    let devices = slice["spec"]["devices"].as_array_mut().into_iter().flatten();
    devices.filter_map(Value::as_object_mut).for_each(change);
}

/// With the gate DRAPartitionableDevices off.
fn drop_counters(slice: &mut Value) {
    slice["spec"].as_object_mut().unwrap().remove("sharedCounters");
    each_device(slice, |device| drop(device.remove("consumesCounters")));
}

/// With the gate DRADeviceTaints off.
fn drop_taints(slice: &mut Value) {
    each_device(slice, |device| drop(device.remove("taints")));
}

/// With the gate DRAListTypeAttributes off: what is left of the attribute is then refused.
fn hollow_lists(slice: &mut Value) {
    each_device(slice, |device| {
        for value in device["attributes"].as_object_mut().unwrap().values_mut().filter_map(Value::as_object_mut) {
            value.retain(|kind, _| kind != "ints" && kind != "strings");
        }
    });
}

/// As no server does it, but a webhook might.
fn drop_lists(slice: &mut Value) {
    hollow_lists(slice);
    each_device(slice, |device| device["attributes"].as_object_mut().unwrap().retain(|_, value| *value != json!({})));
}

fn drop_all(slice: &mut Value) {
    drop_counters(slice);
    drop_taints(slice);
    hollow_lists(slice);
}

/// As every server does it.
fn refuse_hollow(slice: &Value) -> Option<String> {
    let devices = slice["spec"]["devices"].as_array()?;
    let hollow = devices.iter().enumerate().find_map(|(index, device)| {
        let attributes = device["attributes"].as_object()?;
        let (name, _) = attributes.iter().find(|(_, value)| **value == json!({}))?;
        Some(format!("spec.devices[{index}].attributes[{name}]"))
    });
    let why = "Invalid value: \"\": exactly one value must be specified";
    Some(format!("ResourceSlice.resource.k8s.io \"x\" is invalid: {}: {why}", hollow?))
}

/// As 1.33 and 1.34 do it with DRAPartitionableDevices on.
fn refuse_counters_elsewhere(slice: &Value) -> Option<String> {
    let consumes = slice["spec"]["devices"].as_array()?.iter().any(|device| device["consumesCounters"].is_array());
    let why = "must reference a counterSet defined in the ResourceSlice sharedCounters";
    consumes.then(|| format!("spec.devices[0].consumesCounters[0].counterSet: Invalid value: \"gpu-0\": {why}"))
}

/// As 1.33 and 1.34 do it with DRADeviceTaints on.
fn refuse_effect(slice: &Value) -> Option<String> {
    let inform = slice.to_string().contains(r#""effect":"None""#);
    inform.then(|| r#"spec.devices[0].taints[1].effect: Unsupported value: "None": supported values"#.to_owned())
}

fn server(mutate: fn(&mut Value), refuse: fn(&Value) -> Option<String>) -> Fake {
    let fake = Fake::new();
    fake.change(|state| (state.mutate, state.refuse) = (mutate, refuse));
    fake
}

fn dry_runs(state: &State) -> usize {
    state.count("DRY ")
}

// === impl Rig ===

impl Rig {
    /// What slices are said to be without.
    fn without(&self) -> [i64; 3] {
        let gauge = |without| self.metrics.reduced.get_or_create(&Reduced { without }).get();
        [Extra::lists, Extra::counters, Extra::taints].map(gauge)
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_keeps_all_is_asked_before_it_gets_it_and_not_again() {
    let fake = Fake::new();
    let mut rig = Rig::start(&fake, Some(pool_with_extras()));
    rig.shows(&ALL).await;
    assert_eq!(fake.look(|state| (dry_runs(state), state.writes())), (2, 2), "for the counters, and for the rest");
    let mut wanted = pool_with_extras();
    wanted.slices[1].devices.pop();
    rig.wanted.send_replace(Some(wanted));
    rig.shows(&ALL[..3]).await;
    fake.look(|state| {
        assert_eq!((dry_runs(state), state.writes()), (2, 3));
        assert!(state.events.is_empty(), "{:?}", state.events);
    });
    assert_eq!((rig.without(), rig.metrics.altered.get()), ([0, 0, 0], 0));
}

#[tokio::test(start_paused = true)]
async fn each_loss_withdraws_what_it_makes_dangerous_before_anybody_could_see_it() {
    let keeps: fn(&Value) -> Option<String> = |_| None;
    for (mutate, refuse, shows, without) in [
        (drop_counters as fn(&mut Value), keeps, &["gpu-1", "gpu-2"][..], [0, 1, 0]),
        (drop_taints, keeps, &["gpu-0", "gpu-0-mig-0", "gpu-1"], [0, 0, 1]),
        (hollow_lists, refuse_hollow, &ALL, [1, 0, 0]),
        (drop_lists, keeps, &ALL, [1, 0, 0]),
        (drop_all, refuse_hollow, &["gpu-1"], [1, 1, 1]),
        (|_| {}, refuse_effect, &["gpu-0", "gpu-0-mig-0", "gpu-1"], [0, 0, 1]),
    ] {
        let fake = server(mutate, refuse);
        let mut rig = Rig::start(&fake, Some(pool_with_extras()));
        rig.accepted().await;
        assert_eq!((fake.look(|state| shown(state).join(" ")), rig.without()), (shows.join(" "), without));
        let writes = fake.look(|state| {
            assert_eq!((state.slices.len(), generations(state)), (2, vec![1, 1]));
            state.count("POST /apis/resource")
        });
        assert_eq!((writes, fake.look(State::writes)), (2, 2), "each slice is written once, {without:?}");
        assert_eq!(rig.metrics.altered.get(), 0);
        fake.look(|state| {
            let [event] = state.events.as_slice() else { panic!("{:?}", state.events) };
            assert_eq!((&event["reason"], &event["type"]), (&json!("ResourceSlicesReduced"), &json!("Warning")));
        });
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_and_why_is_in_the_event() {
    let fake = server(drop_all, refuse_hollow);
    let mut rig = Rig::start(&fake, Some(pool_with_extras()));
    rig.accepted().await;
    let note = fake.look(|state| state.events[0]["note"].as_str().unwrap().to_owned());
    for gate in ["DRAListTypeAttributes", "DRAPartitionableDevices", "DRADeviceTaints"] {
        assert!(note.contains(gate), "{note}");
    }
    assert!(note.ends_with("not offered: gpu-0, gpu-0-mig-0, gpu-2"), "{note}");
    fake.look(|state| {
        let slice = state.slices.values().nth(1).unwrap();
        let attributes = &slice["spec"]["devices"][0]["attributes"];
        assert_eq!(attributes["resource.kubernetes.io/numaNode"], json!({"int": 1}));
        assert!(attributes.get("nvlinkCliques").is_none());
    });
}

#[tokio::test(start_paused = true)]
async fn a_server_that_wants_counters_elsewhere_gets_none() {
    let fake = server(|_| {}, refuse_counters_elsewhere);
    let mut rig = Rig::start(&fake, Some(pool_with_extras()));
    rig.shows(&["gpu-1", "gpu-2"]).await;
    assert_eq!(rig.without(), [0, 1, 0]);
    fake.look(|state| assert!(!state.slices.values().any(|slice| slice.to_string().contains("Counters"))));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_begins_to_drop_taints_shows_a_sick_device_for_one_write_only() {
    let fake = Fake::new();
    let mut rig = Rig::start(&fake, Some(pool_with_extras()));
    rig.accepted().await;
    fake.change(|state| state.mutate = drop_taints);
    let mut wanted = pool_with_extras();
    wanted.slices[1].devices[2].taints = wanted.slices[1].devices[3].taints.clone();
    rig.published.mark_unchanged();
    let start = Instant::now();
    rig.wanted.send_replace(Some(wanted));
    rig.shows(&["gpu-0", "gpu-0-mig-0"]).await;
    assert_eq!(start.elapsed(), Duration::ZERO, "withdrawn at once");
    assert_eq!(fake.look(|state| state.count("PUT")), 2);
    assert!(!rig.published.has_changed().unwrap(), "nobody else was at it: {:?}", rig.published.borrow());
    assert_eq!(rig.without(), [0, 0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_started_anew_is_asked_again_before_it_gets_a_taint() {
    let fake = Fake::new();
    let mut rig = Rig::start(&fake, Some(pool_with_extras()));
    rig.accepted().await;
    fake.change(|state| {
        state.mutate = drop_taints;
        state.cut_watches();
    });
    hours(1).await;
    let mut wanted = pool_with_extras();
    wanted.slices[1].devices[2].taints = wanted.slices[1].devices[3].taints.clone();
    rig.wanted.send_replace(Some(wanted));
    rig.shows(&["gpu-0", "gpu-0-mig-0"]).await;
    assert_eq!(fake.look(|state| state.count("PUT")), 1);
}

#[tokio::test(start_paused = true)]
async fn where_a_webhook_knows_no_dry_runs_the_answer_to_the_write_tells() {
    let fake = server(drop_counters, |_| None);
    fake.on_request(|_, line| {
        let body = r#"{"code": 400, "message": "admission webhook \"x\" does not support dry run"}"#;
        line.starts_with("DRY").then_some(Fault::Answer { code: 400, headers: &[], body })
    });
    let mut rig = Rig::start(&fake, Some(pool_with_extras()));
    rig.shows(&["gpu-1", "gpu-2"]).await;
    assert_eq!(rig.without(), [0, 1, 0]);
    fake.look(|state| {
        // The slice of the counters comes back empty, and the devices are not sent before that is known.
        assert_eq!((state.count("POST /apis/resource"), state.count("PUT"), generations(state)), (2, 0, vec![1, 1]));
    });
    // Only writes could ask again, so nobody does.
    let before = fake.look(State::writes);
    for _ in 0..24 {
        hours(1).await;
        fake.change(State::cut_watches);
    }
    assert_eq!((fake.look(State::writes), rig.without()), (before, [0, 1, 0]));
}

#[tokio::test(start_paused = true)]
async fn a_reduced_node_writes_nothing_and_asks_for_less_than_a_request_a_minute() {
    let fake = server(drop_all, refuse_hollow);
    let mut rig = Rig::start(&fake, Some(pool_with_extras()));
    rig.accepted().await;
    let before = fake.look(State::writes);
    hours(24).await;
    fake.look(|state| {
        assert_eq!((state.writes(), state.events.len()), (before, 1));
        assert!(state.log.len() < 24 * 60, "{} requests a day", state.log.len());
        assert!((20 * 3..=25 * 3).contains(&dry_runs(state)), "{} dry runs a day", dry_runs(state));
    });
    assert!(matches!(&*rig.published.borrow(), Published::Accepted { generation: 1, .. }));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_watches_every_minute_is_not_asked_every_minute() {
    let fake = server(drop_counters, |_| None);
    let mut rig = Rig::start(&fake, Some(pool_with_extras()));
    rig.accepted().await;
    let before = fake.look(State::writes);
    for _ in 0..600 {
        sleep(Duration::from_secs(60)).await;
        fake.change(State::cut_watches);
    }
    fake.look(|state| {
        assert_eq!((state.writes(), state.events.len()), (before, 1));
        assert!((5..=15).contains(&dry_runs(state)), "{} dry runs in ten hours", dry_runs(state));
    });
    assert_eq!(rig.without(), [0, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_keeps_all_after_an_upgrade_gets_all() {
    let upgrade = |state: &mut State| {
        state.mutate = |_| {};
        state.refuse = |_| None;
    };

    let fake = server(drop_all, refuse_hollow);
    let mut rig = Rig::start(&fake, Some(pool_with_extras()));
    rig.accepted().await;
    // A watch that is about to end anyway would tell nothing.
    sleep(Duration::from_secs(9 * 60)).await;
    fake.change(State::cut_watches);
    sleep(Duration::from_secs(2 * 60)).await;
    fake.change(|state| {
        upgrade(state);
        state.cut_watches();
    });
    let start = Instant::now();
    rig.shows(&ALL).await;
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(rig.without(), [0, 0, 0]);

    // Nobody tells.
    let fake = server(drop_all, refuse_hollow);
    let mut rig = Rig::start(&fake, Some(pool_with_extras()));
    rig.accepted().await;
    fake.change(upgrade);
    let start = Instant::now();
    rig.shows(&ALL).await;
    assert!(start.elapsed() < Duration::from_secs(67 * 60), "{:?}", start.elapsed());

    // Another version.
    let fake = server(drop_counters, |_| None);
    fake.change(|state| state.served = vec!["v1beta2"]);
    let mut rig = Rig::start(&fake, Some(pool_with_extras()));
    rig.accepted().await;
    fake.change(|state| {
        upgrade(state);
        state.served = vec!["v1"];
        state.cut_watches();
    });
    let start = Instant::now();
    rig.shows(&ALL).await;
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_device_that_recovers_is_offered_again_and_each_illness_is_told() {
    let fake = server(drop_taints, |_| None);
    let mut sick = pool_with_extras();
    sick.slices[1].devices[0].taints.clear();
    let mut well = sick.clone();
    well.slices[1].devices[3].taints.clear();
    let told = |state: &State| state.count("POST /apis/events") + state.count("PATCH /apis/events");
    let mut rig = Rig::start(&fake, Some(well.clone()));
    rig.shows(&ALL).await;
    for illness in 1..=2 {
        hours(1).await;
        rig.wanted.send_replace(Some(sick.clone()));
        rig.shows(&ALL[..3]).await;
        fake.until(|state| told(state) == illness).await;
        assert_eq!(rig.without(), [0, 0, 1]);
        hours(1).await;
        rig.wanted.send_replace(Some(well.clone()));
        rig.shows(&ALL).await;
    }
    hours(1).await;
    assert_eq!(rig.without(), [0, 0, 0]);
    assert_eq!(fake.look(|state| (state.writes(), generations(state))), (6, vec![1, 1]), "an update each time");
}

#[tokio::test(start_paused = true)]
async fn each_device_that_is_withdrawn_is_told_even_within_a_minute_and_when_an_event_was_not_taken() {
    let fake = server(drop_taints, |_| None);
    let mut wanted = pool_with_extras();
    let mut rig = Rig::start(&fake, Some(wanted.clone()));
    fake.until(|state| state.events.len() == 1).await;
    rig.accepted().await;
    wanted.slices[1].devices[2].taints = wanted.slices[1].devices[3].taints.clone();
    rig.wanted.send_replace(Some(wanted));
    rig.shows(&["gpu-0", "gpu-0-mig-0"]).await;
    fake.on_request(|state, line| {
        (line.starts_with("POST /apis/events") && state.count("POST /apis/events") == 2).then_some(Fault::Refuse)
    });
    let start = Instant::now();
    fake.until(|state| state.events.len() == 2).await;
    assert!(start.elapsed() < Duration::from_secs(15 * 60), "{:?}", start.elapsed());
    let notes = fake.look(|state| [0, 1].map(|event| state.events[event]["note"].as_str().unwrap().to_owned()));
    assert!(notes[0].ends_with("not offered: gpu-2"), "{notes:?}");
    assert!(notes[1].ends_with("not offered: gpu-1, gpu-2"), "{notes:?}");
    hours(1).await;
    assert_eq!(fake.look(|state| state.count("POST /apis/events") + state.count("PATCH")), 3, "and then no more");
}

#[tokio::test(start_paused = true)]
async fn dry_runs_are_no_more_than_may_be_written() {
    let fake = server(|_| {}, |_| Some("spec.devices[0].name: Invalid value".into()));
    let mut wanted = pool_with_extras();
    let rig = Rig::start(&fake, Some(wanted.clone()));
    for round in 0..600 {
        sleep(Duration::from_secs(1)).await;
        wanted.slices[1].devices.rotate_left(1 + round % 2);
        rig.wanted.send_replace(Some(wanted.clone()));
    }
    let sent = fake.look(|state| dry_runs(state) + state.writes());
    assert!((60..=11 * 24).contains(&sent), "{sent} in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_something_else_takes_nothing_away() {
    let fake = server(|_| {}, |_| Some("spec.devices[0].attributes[profile]: Too long: sharedCounters".into()));
    let mut rig = Rig::start(&fake, Some(pool_with_extras()));
    hours(1).await;
    assert!(matches!(&*rig.published.borrow(), Published::Never { reason } if reason.contains("Too long")));
    assert_eq!(rig.without(), [0, 0, 0]);
    fake.change(|state| state.refuse = |_| None);
    rig.shows(&ALL).await;
}
