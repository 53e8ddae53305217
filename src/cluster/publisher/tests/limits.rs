//! How much is written at most, whatever others do.

use super::*;

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
async fn more_slices_than_may_be_written_in_a_minute_come_in_time_and_nobody_is_suspected() {
    let numbers: Vec<_> = (0..45).map(|number| [number]).collect();
    let of = |numbers: &[[u32; 1]]| pool(&numbers.iter().map(<[u32; 1]>::as_slice).collect::<Vec<_>>());
    let fake = Fake::new();
    let mut rig = Rig::start(&fake, Some(of(&numbers)));
    let mut seen = rig.published.clone();
    let suspected = tokio::spawn(async move {
        let suspects = |published: &Published| format!("{published:?}").contains("who else");
        seen.wait_for(suspects).await.map(drop)
    });
    let at = Instant::now();
    rig.accepted().await;
    assert!(at.elapsed() < Duration::from_secs(5 * 60), "{:?}", at.elapsed());
    let changed: Vec<_> = numbers.iter().map(|[number]| [number + 100]).collect();
    rig.wanted.send_replace(Some(of(&changed)));
    fake.until(|state| shown(state).len() == 45 && generations(state) == vec![2; 45]).await;
    rig.accepted().await;
    assert!(at.elapsed() < Duration::from_secs(15 * 60), "{:?}", at.elapsed());
    assert!(!suspected.is_finished());
    assert!(fake.look(|state| state.events.iter().all(|event| !event.to_string().contains("who else"))));
}

/// A minute is any minute.
#[tokio::test(start_paused = true)]
async fn no_server_and_no_stranger_gets_us_to_write_twenty_times_in_a_minute() {
    const MINUTE: Duration = Duration::from_secs(60);
    type Adversary = fn(&Fake);
    let refuses: Adversary = |fake| {
        let fault = |code: u16| Fault::Answer { code, headers: &[("retry-after", "0")], body: "no" };
        // Errors in turn, each of another kind.
        fake.on_request(move |state, line| {
            let codes = [409, 429, 422, 500, 404, 503, 403];
            let is_write = ["POST", "PUT", "DELETE"].iter().any(|verb| line.starts_with(verb));
            (is_write && line.contains("resourceslices")).then(|| fault(codes[state.writes() % codes.len()]))
        });
    };
    let edits: Adversary = |fake| {
        fake.change(|state| {
            // Another change to each slice, so that nothing can be learnt from it.
            state.mutate = |slice| {
                let stamp = slice["metadata"]["resourceVersion"].to_string();
                slice["spec"]["devices"] = json!([{ "name": format!("x{}", stamp.len()), "attributes": {} }]);
            };
        });
        strangers(fake, |state| {
            let name = state.slices.keys().next().unwrap().clone();
            state.store(&name, json!({"spec": {"driver": "gpu.nvidia.com", "nodeName": "node-a", "pool": {}}}));
        });
    };
    let deletes: Adversary = |fake| strangers(fake, State::wipe);
    for adversary in [refuses, edits, deletes] {
        let fake = Fake::new();
        adversary(&fake);
        let rig = Rig::start(&fake, Some(pool(&[&[0], &[1], &[2], &[3]])));
        let mut wishes = 0;
        let mut times = Vec::new();
        for second in 0..1800_u32 {
            sleep(Duration::from_secs(1)).await;
            if second % 7 == 0 {
                wishes += 1;
                rig.wanted.send_replace(Some(pool(&[&[wishes % 50], &[wishes % 40], &[2], &[3]])));
            }
            times.resize(fake.look(State::writes), second);
        }
        assert!(times.len() > 30, "{} writes in half an hour", times.len());
        for (index, first) in times.iter().enumerate() {
            let minute = u32::try_from(MINUTE.as_secs()).unwrap();
            let writes = times[index..].iter().take_while(|time| **time < first + minute).count();
            assert!(writes < 20, "{writes} writes in the minute from second {first}");
        }
    }
}

/// Does something to slices as soon as there are any.
fn strangers(fake: &Fake, act: fn(&mut State)) {
    let server = fake.clone();
    tokio::spawn(async move {
        loop {
            server.until(|state| !state.slices.is_empty()).await;
            sleep(Duration::from_millis(100)).await;
            server.change(|state| {
                if !state.slices.is_empty() {
                    act(state);
                }
            });
        }
    });
}
