//! Servers that speak other versions.

use super::*;

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
async fn an_upgrade_in_the_last_seconds_of_a_watch_is_found_too() {
    let fake = Fake::new();
    fake.change(|state| state.served = vec!["v1beta1"]);
    let mut rig = Rig::start(&fake, Some(a_pool()));
    rig.accepted().await;
    sleep(Duration::from_secs(1)).await;
    // The watch ends by itself, as it would have anyway, and nothing else tells.
    fake.change(|state| state.served = vec!["v1", "v1beta1"]);
    let start = Instant::now();
    fake.until(|state| state.count("GET /apis/resource.k8s.io/v1/") > 0).await;
    assert!(start.elapsed() < Duration::from_secs(7 * 60), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_too_far_back_has_the_versions_asked_for() {
    let fake = Fake::new();
    fake.change(|state| state.served = vec!["v1beta1"]);
    let mut rig = Rig::start(&fake, Some(a_pool()));
    rig.accepted().await;
    fake.on_request(|state, line| {
        let gone = Fault::Answer { code: 410, headers: &[], body: r#"{"code": 410, "message": "too old"}"# };
        (line.ends_with("v1beta1/resourceslices") && state.count("GET /apis/resource.k8s.io/v1beta1/") > 2)
            .then_some(gone)
    });
    fake.change(|state| state.served = vec!["v1", "v1beta1"]);
    fake.change(State::cut_watches);
    let start = Instant::now();
    fake.until(|state| state.count("GET /apis/resource.k8s.io/v1/") > 0).await;
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}
