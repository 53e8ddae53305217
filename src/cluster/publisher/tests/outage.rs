//! Servers that refuse, are busy, or are away.

use super::*;

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
