//! GPUs whose MIG mode cannot be switched while they are in use, that cannot be partitioned, and API servers that do not
//! count.

use fake_node::release::Release;
use topology::Topology;

use crate::node::{Machine, terminate};
use crate::scene::{Scene, part};

fn names(scene: &Scene) -> Vec<String> {
    scene.node.devices().iter().map(|device| device["name"].as_str().unwrap().to_owned()).collect()
}

/// An A100 in MIG mode beside a T4.
fn a100_and_t4() -> Machine {
    let mut topology = Topology::builtin("a100-and-t4").unwrap();
    topology.gpus[0].mig_enabled = true;
    Machine::of(topology)
}

#[tokio::test]
async fn a_gpu_that_needs_a_reset_for_its_mode_is_offered_whole_and_never_switched() {
    let scene = Scene::new("dgx-a100-40gb").await;
    let plugin = scene.plugin().await;
    assert_eq!(names(&scene), (0..8).map(|gpu| format!("gpu-{gpu}")).collect::<Vec<_>>());
    let claim = scene.claim("part", &[&part(0, "mig-3g20gb-9-4")]);
    let work = async {
        let error = scene.node.prepare(&claim).await.unwrap_err();
        scene.node.unprepare(&claim).await.unwrap();
        error
    };
    let (error, calls) = scene.calls(work).await;
    assert!(error.starts_with("the MIG device gpu-0-mig-3g20gb-9-4 is gone from the node; make it"), "{error}");
    assert!(!calls.iter().any(|call| call.contains("SetMigMode")), "{calls:?}");
    assert_eq!(scene.left(), None);
    terminate(plugin).await;
}

#[tokio::test]
async fn a_gpu_whose_mode_is_turned_off_under_its_parts_is_not_switched_on() {
    let scene = Scene::of(a100_and_t4()).await;
    let plugin = scene.plugin().await;
    scene.nvml().switch_mig(0, false).unwrap();
    scene.nvml().reset(0).unwrap();
    let claim = scene.claim("part", &[&part(0, "mig-3g40gb-9-4")]);
    let (error, calls) = scene.calls(scene.node.prepare(&claim)).await;
    let error = error.unwrap_err();
    // Whether or not a look has seen it yet.
    assert!(error.contains("needs a reset of the GPU") || error.contains("is gone from the node"), "{error}");
    assert!(!calls.iter().any(|call| call.contains("SetMigMode")), "{calls:?}");
    assert!(scene.records().is_empty());
    terminate(plugin).await;
}

#[tokio::test]
async fn a_gpu_that_cannot_be_partitioned_is_simply_whole_beside_one_that_is() {
    let scene = Scene::of(a100_and_t4()).await;
    let plugin = scene.plugin().await;
    let offered = names(&scene);
    assert!(offered.contains(&"gpu-1".to_owned()) && !offered.contains(&"gpu-0".to_owned()), "{offered:?}");
    assert_eq!(offered.iter().filter(|name| name.starts_with("gpu-1")).count(), 1);
    assert_eq!(offered.len(), 1 + 25);
    let claim = scene.claim("both", &["gpu-1", &part(0, "mig-3g40gb-9-4")]);
    assert_eq!(scene.node.prepare(&claim).await.unwrap().len(), 2);
    assert_eq!((scene.existing(), scene.count()), (scene.recorded(), 1));
    scene.node.unprepare(&claim).await.unwrap();
    assert_eq!(scene.left(), None);
    assert!(scene.mode(0), "as it was found");
    terminate(plugin).await;
}

#[tokio::test]
async fn where_nobody_counts_nothing_is_offered_that_overlaps() {
    let scene = Scene::of(a100_and_t4().release(Release::V1_35)).await;
    let plugin = scene.plugin().await;
    let only = || (names(&scene) == ["gpu-1"]).then_some(());
    crate::node::eventually("only the T4 is offered", only).await;
    terminate(plugin).await;
}
