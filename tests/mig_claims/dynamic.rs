//! Parts that come and go with their claims, on GPUs that nobody has partitioned.

use std::collections::BTreeSet;
use std::fs;

use fake_node::manifest::{MIG_3G_AND_4G_ON_ONE_GPU, ONE_GPU};
use fake_node::node::NodeError;
use futures::future::join_all;
use topology::Fault;

use crate::node::{claim_ref, eventually, terminate};
use crate::scene::{ALL, FOUR, Scene, THREE_AT_0, THREE_AT_4, part};

#[tokio::test]
async fn two_parts_and_a_whole_gpu_beside_are_made_and_leave_no_trace() {
    let scene = Scene::new("dgx-h100").await;
    let plugin = scene.plugin().await;
    let slices = scene.node.slices();
    assert_eq!(slices.len(), 8 + 1, "one for each GPU, and one for the counters");

    let parts = scene.node.run_prepared_pod(MIG_3G_AND_4G_ON_ONE_GPU, "parts").await.unwrap();
    let whole = scene.node.run_prepared_pod(ONE_GPU, "whole").await.unwrap();
    assert_eq!(parts.devices(), [part(0, FOUR), part(0, THREE_AT_4)]);
    assert_eq!(whole.devices(), ["gpu-1"]);
    assert!(scene.mode(0) && !scene.mode(1));
    let made = scene.existing();
    assert_eq!((made.len(), scene.count()), (2, 2));
    assert_eq!(made, scene.recorded());
    let uuids: BTreeSet<_> = made.into_iter().map(|made| made.uuid).collect();
    let claim = claim_ref(&parts.claims[0]);
    assert_eq!(scene.given(&claim), uuids);
    assert_eq!(
        scene.given(&claim_ref(&whole.claims[0])),
        BTreeSet::from([scene.node.host.topology().gpus[1].uuid.clone()])
    );
    assert_eq!(scene.node.prepare(&claim).await.unwrap(), scene.node.cdi_ids(&claim.uid), "and again");
    assert_eq!(scene.existing(), scene.recorded());

    for pod in [parts, whole] {
        scene.node.end_pod(pod).await.unwrap();
    }
    assert_eq!(scene.left(), None);
    assert_eq!(scene.node.slices(), slices, "what is offered is the same all the time");
    terminate(plugin).await;
}

#[tokio::test]
async fn a_whole_gpu_and_its_parts_exclude_each_other_whatever_the_scheduler_says() {
    let scene = Scene::new("dgx-h100").await;
    let plugin = scene.plugin().await;
    let [whole, three, four, all, other] =
        [("whole", "gpu-2"), ("three", THREE_AT_4), ("four", FOUR), ("all", ALL), ("other", THREE_AT_0)]
            .map(|(name, of)| scene.claim(name, &[&if of == "gpu-2" { of.to_owned() } else { part(2, of) }]));
    let of_whole = scene.claim("of-whole", &["gpu-3"]);
    let parts_of_it = [("one-of-it", FOUR), ("all-of-it", ALL)].map(|(name, of)| scene.claim(name, &[&part(3, of)]));

    for claim in [&three, &four, &of_whole] {
        scene.node.prepare(claim).await.unwrap();
    }
    assert!(scene.mode(2) && !scene.mode(3));
    let made = scene.existing();
    let claims = [&whole, &all, &other].into_iter().chain(&parts_of_it);
    // Each waits until the budget of a prepare is over.
    let (errors, calls) = scene.calls(join_all(claims.map(|claim| scene.node.prepare(claim)))).await;
    for error in errors.into_iter().map(Result::unwrap_err) {
        assert!(error.contains("is in use by claim default/"), "{error}");
    }
    let changes = ["Create", "Destroy", "SetMigMode"];
    assert!(!calls.iter().any(|call| changes.iter().any(|change| call.contains(change))), "{calls:?}");
    assert_eq!(scene.existing(), made);

    for claim in [&three, &four, &of_whole] {
        scene.node.unprepare(claim).await.unwrap();
    }
    for claim in [&whole, &all, &other].into_iter().chain(&parts_of_it) {
        scene.node.prepare(claim).await.unwrap();
        scene.node.unprepare(claim).await.unwrap();
    }
    assert_eq!(scene.left(), None);
    terminate(plugin).await;
}

#[tokio::test]
async fn the_scheduler_keeps_parts_and_whole_gpus_apart() {
    let scene = Scene::h100(1).await;
    let plugin = scene.plugin().await;
    let parts = scene.node.run_prepared_pod(MIG_3G_AND_4G_ON_ONE_GPU, "parts").await.unwrap();
    let error = scene.node.run_pod(ONE_GPU, "whole").unwrap_err();
    assert!(matches!(error, NodeError::Allocate(_)), "{error}");
    scene.node.end_pod(parts).await.unwrap();

    let whole = scene.node.run_prepared_pod(ONE_GPU, "whole-at-last").await.unwrap();
    let error = scene.node.run_pod(MIG_3G_AND_4G_ON_ONE_GPU, "more-parts").unwrap_err();
    assert!(matches!(error, NodeError::Allocate(_)), "{error}");
    scene.node.end_pod(whole).await.unwrap();
    assert_eq!(scene.left(), None);
    terminate(plugin).await;
}

#[tokio::test]
async fn a_mode_that_an_administrator_turned_on_stays_on() {
    let mut scene = Scene::new("dgx-h100").await;
    scene.nvml().switch_mig(3, true).unwrap();
    scene.settle();
    let plugin = scene.plugin().await;
    assert!(scene.device("gpu-3").is_none(), "it is not whole");
    let claim = scene.claim("part", &[&part(3, FOUR)]);
    scene.node.prepare(&claim).await.unwrap();
    assert_eq!(scene.existing(), scene.recorded());
    scene.node.unprepare(&claim).await.unwrap();
    assert!(scene.mode(3));
    assert_eq!(scene.left(), None);
    terminate(plugin).await;
}

#[tokio::test]
async fn one_claim_gets_parts_of_several_gpus_and_a_whole_one() {
    let scene = Scene::new("dgx-h100").await;
    let plugin = scene.plugin().await;
    let claim = scene.claim("mixed", &[&part(4, FOUR), &part(5, ALL), "gpu-6", &part(4, THREE_AT_4)]);
    let ids = scene.node.prepare(&claim).await.unwrap();
    assert_eq!((ids.len(), scene.instances(4).len(), scene.instances(5).len()), (4, 2, 1));
    assert_eq!(scene.existing(), scene.recorded());
    assert_eq!(scene.given(&claim).len(), 4);
    scene.node.unprepare(&claim).await.unwrap();
    assert_eq!(scene.left(), None);
    terminate(plugin).await;
}

#[tokio::test]
async fn a_look_that_the_end_of_a_claim_overtakes_changes_nothing() {
    let scene = Scene::h100(1).await;
    let plugin = scene.plugin().await;
    let slices = scene.node.slices();
    let claim = scene.claim("part", &[&part(0, FOUR)]);
    scene.node.prepare(&claim).await.unwrap();
    // Only a look reads minors, and after MIG.
    let call = "nvmlDeviceGetMinorNumber".to_owned();
    scene.fault(Fault { call: call.clone(), hang: true, ..Fault::default() });
    let log = scene.nvml().calls_path();
    fs::write(&log, "").unwrap();
    let said = |call: &str| fs::read_to_string(&log).unwrap().matches(call).count();
    eventually("a look has read the mode", || (said(&call) > 0).then_some(())).await;
    scene.node.unprepare(&claim).await.unwrap();
    assert!(!scene.mode(0));
    scene.mend();
    let modes = said("nvmlDeviceGetMigMode");
    eventually("the next look", || (said("nvmlDeviceGetMigMode") > modes).then_some(())).await;
    assert_eq!(scene.node.slices(), slices, "the GPU is offered all the time");
    assert_eq!(scene.left(), None);
    terminate(plugin).await;
}
