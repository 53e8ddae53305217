//! Slices that are deleted or edited, and watches that do not tell.

use super::*;

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
        for round in 1..=21 {
            sleep(Duration::from_secs(seconds)).await;
            fake.change(State::cut_watches);
            if round % 3 > 0 {
                continue;
            }
            let start = Instant::now();
            fake.change(State::wipe);
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
async fn watches_that_are_cut_every_minute_cost_a_request_each_and_nothing_more() {
    let fake = Fake::new();
    let mut rig = Rig::start(&fake, Some(a_pool()));
    rig.accepted().await;
    let server = fake.clone();
    tokio::spawn(async move {
        loop {
            server.until(State::is_watched).await;
            sleep(Duration::from_secs(60)).await;
            server.change(State::cut_watches);
        }
    });
    hours(3).await;
    let before = fake.look(|state| state.log.len());
    hours(24).await;
    let requests = fake.look(|state| state.log.len()) - before;
    assert!((24 * 50..=24 * 60).contains(&requests), "{requests} requests a day");
    assert_eq!(fake.look(State::writes), 1);
}

#[tokio::test(start_paused = true)]
async fn one_of_several_slices_comes_back_alone() {
    let fake = Fake::new();
    let mut rig = Rig::start(&fake, Some(pool(&[&[0], &[1], &[2]])));
    rig.accepted().await;
    fake.change(|state| {
        let name = state.slices.keys().nth(1).unwrap().clone();
        state.remove(&name);
    });
    rig.shows(&["gpu-0", "gpu-1", "gpu-2"]).await;
    fake.look(|state| assert_eq!((state.writes(), generations(state)), (4, vec![1, 1, 1])));
}
