//! GPU instances that somebody else makes on GPUs that the plugin partitions.

use crate::node::{eventually, terminate};
use crate::scene::{ALL, FOUR, Scene, THREE_AT_0, THREE_AT_4, part};

/// Profiles of an H100.
const THREE: u32 = 9;
const ONE: u32 = 19;

#[tokio::test]
async fn what_an_administrator_made_is_not_touched_and_keeps_claims_from_what_it_covers() {
    let mut scene = Scene::h100(2).await;
    let mut plugin = scene.plugin().await;
    let clean = scene.node.devices();
    scene.nvml().switch_mig(0, true).unwrap();
    let theirs = [scene.nvml().create_instance(0, THREE, Some(4)), scene.nvml().create_instance(0, ONE, Some(0))];
    let theirs = theirs.map(Result::unwrap);
    let before = scene.instances(0);

    // At once, though no look has seen it.
    for (name, device) in [("same", THREE_AT_4), ("small", "mig-1g10gb-19-0"), ("all", ALL)] {
        let claim = scene.claim(name, &[&part(0, device)]);
        let error = scene.node.prepare(&claim).await.unwrap_err();
        assert!(error.contains("cannot be had while the GPU has the GPU instance"), "{error}");
        assert_eq!(scene.instances(0), before, "{name}");
        scene.node.unprepare(&claim).await.unwrap();
        assert_eq!(scene.instances(0), before, "{name}");
    }
    let whole = scene.claim("whole", &["gpu-0"]);
    scene.node.prepare(&whole).await.unwrap_err();
    scene.node.unprepare(&whole).await.unwrap();
    let beside = scene.claim("beside", &[&part(0, "mig-1g10gb-19-1"), &part(1, FOUR)]);
    scene.node.prepare(&beside).await.unwrap();

    plugin.wait_for_log("a GPU instance is not ours").await.unwrap();
    let names = [THREE_AT_4, THREE_AT_0, ALL, "mig-1g10gb-19-0", "mig-1g10gb-19-5"].map(|device| part(0, device));
    let tainted = || names.iter().all(|name| scene.is_tainted(name));
    eventually("what it covers is tainted", || tainted().then_some(())).await;
    for name in [part(0, "mig-1g10gb-19-1"), part(0, "mig-1g10gb-19-3"), part(1, ALL), "gpu-1".to_owned()] {
        assert!(!scene.is_tainted(&name), "{name}");
    }
    let claim = scene.claim("later", &[&part(0, THREE_AT_4)]);
    let error = scene.node.prepare(&claim).await.unwrap_err();
    assert!(error.contains("which this driver did not make"), "{error}");
    scene.node.unprepare(&beside).await.unwrap();
    assert_eq!(scene.instances(0), before);

    for device in theirs {
        scene.nvml().destroy_instance(0, device.gpu_instance).unwrap();
    }
    scene.settle();
    let names = || scene.node.devices().into_iter().filter(|device| device["taints"].is_array()).count();
    eventually("no taint", || (names() == 0).then_some(())).await;
    assert_eq!(clean.len(), scene.node.devices().len() + 1, "the GPU in MIG mode is not whole");
    scene.node.prepare(&claim).await.unwrap();
    scene.node.unprepare(&claim).await.unwrap();
    assert_eq!(scene.left(), None);
    terminate(plugin).await;
}

#[tokio::test]
async fn one_that_takes_the_place_of_a_claims_part_is_not_taken_for_it() {
    let scene = Scene::h100(1).await;
    let plugin = scene.plugin().await;
    let claim = scene.claim("lost", &[&part(0, THREE_AT_4)]);
    scene.node.prepare(&claim).await.unwrap();
    let [ours] = scene.instances(0).try_into().unwrap();
    scene.nvml().destroy_instance(0, ours.id).unwrap();
    scene.nvml().create_instance(0, THREE, Some(4)).unwrap();
    let theirs = scene.instances(0);

    eventually("the spec of the claim is gone", || scene.node.specs().is_empty().then_some(())).await;
    let error = scene.node.prepare(&claim).await.unwrap_err();
    assert!(error.contains("which this driver did not make"), "{error}");
    assert_eq!(scene.instances(0), theirs);
    scene.node.unprepare(&claim).await.unwrap();
    assert_eq!(scene.instances(0), theirs);
    assert!(scene.mode(0) && scene.records().is_empty());
    terminate(plugin).await;
}
