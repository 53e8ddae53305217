//! Calls of NVML that fail, are slow, or never return, and programs that do not let a device go.

use std::collections::BTreeSet;

use fake_node::kubelet::ClaimRef;
use topology::Fault;

use crate::node::{eventually, terminate};
use crate::scene::{FOUR, Scene, THREE_AT_4, part};

/// Codes of nvml.h.
const UNKNOWN: u32 = 999;
const IN_USE: u32 = 19;
const INSUFFICIENT_RESOURCES: u32 = 23;

/// Fails each call that a prepare or an unprepare makes once, before and after it has done its work.
async fn whatever_call_fails(code: u32) {
    let scene = Scene::h100(1).await;
    let plugin = scene.plugin().await;
    let claim = scene.claim("one", &[&part(0, FOUR)]);
    let beside = scene.claim("two", &[&part(0, THREE_AT_4)]);
    let (done, prepare) = scene.calls(scene.node.prepare(&claim)).await;
    done.unwrap();
    let (done, unprepare) = scene.calls(scene.node.unprepare(&claim)).await;
    done.unwrap();
    let names = |calls: Vec<String>| -> BTreeSet<String> {
        calls.into_iter().map(|call| call.split(' ').next().unwrap().to_owned()).collect()
    };
    let (prepare, unprepare) = (names(prepare), names(unprepare));
    assert!(prepare.contains("nvmlDeviceSetMigMode") && unprepare.contains("nvmlGpuInstanceDestroy"));
    for (calls, is_prepare) in [(prepare, true), (unprepare, false)] {
        for (call, late) in calls.into_iter().flat_map(|call| [(call.clone(), false), (call, true)]) {
            if late && code == INSUFFICIENT_RESOURCES && call.contains("Create") {
                // Nothing is made where there is no room.
                continue;
            }
            let what = format!("{call} answers {code}, {} its work", if late { "after" } else { "before" });
            if !is_prepare {
                scene.node.prepare(&claim).await.unwrap();
            }
            scene.fault(Fault { call, code: Some(code), late, times: Some(1), ..Fault::default() });
            let result = if is_prepare {
                scene.node.prepare(&claim).await.map(drop)
            } else {
                scene.node.unprepare(&claim).await
            };
            match result {
                Ok(()) if is_prepare => assert_eq!(scene.existing(), scene.recorded(), "{what}"),
                Ok(()) => {}
                Err(error) => assert!(error.contains("cannot") || error.contains("answered"), "{what}: {error}"),
            }
            scene.mend();
            assert_eq!(scene.unknown(), [], "{what}");
            goes_on(&scene, &what, [&claim, &beside]).await;
        }
    }
    terminate(plugin).await;
}

/// Both claims can be prepared, and nothing is left of them.
async fn goes_on(scene: &Scene, what: &str, claims: [&ClaimRef; 2]) {
    for claim in claims {
        scene.node.prepare(claim).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    assert_eq!(scene.existing(), scene.recorded(), "{what}");
    for claim in claims {
        scene.node.unprepare(claim).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    scene.until_as_found(what).await;
}

#[tokio::test]
async fn a_call_that_fails_for_no_reason_leaves_nothing_behind() {
    Box::pin(whatever_call_fails(UNKNOWN)).await;
}

#[tokio::test]
async fn a_call_that_finds_something_in_use_leaves_nothing_behind() {
    Box::pin(whatever_call_fails(IN_USE)).await;
}

#[tokio::test]
async fn a_call_that_finds_too_little_left_leaves_nothing_behind() {
    Box::pin(whatever_call_fails(INSUFFICIENT_RESOURCES)).await;
}

#[tokio::test]
async fn a_device_that_a_program_still_uses_is_waited_for() {
    let scene = Scene::h100(2).await;
    let plugin = scene.plugin().await;
    let claim = scene.claim("busy", &[&part(0, FOUR)]);
    scene.node.prepare(&claim).await.unwrap();
    let device = scene.existing().pop_first().unwrap();
    let occupy = |pids: &[u32]| scene.nvml().occupy(0, device.gpu_instance, device.compute_instance, pids).unwrap();
    occupy(&[4711]);
    let let_go = async {
        eventually("no container can start with it", || scene.node.specs().is_empty().then_some(())).await;
        assert_eq!(scene.count(), 1);
        occupy(&[]);
    };
    let (unprepared, ()) = tokio::join!(scene.node.unprepare(&claim), let_go);
    unprepared.unwrap();
    assert_eq!(scene.left(), None);

    // Who does not let it go keeps it, and the claim keeps the place.
    scene.node.prepare(&claim).await.unwrap();
    let device = scene.existing().pop_first().unwrap();
    let occupy = |pids: &[u32]| scene.nvml().occupy(0, device.gpu_instance, device.compute_instance, pids).unwrap();
    occupy(&[4711]);
    let error = scene.node.unprepare(&claim).await.unwrap_err();
    assert!(error.contains("cannot destroy the GPU instance") && error.contains("IN_USE"), "{error}");
    assert_eq!(scene.unknown(), []);
    occupy(&[]);
    scene.node.unprepare(&claim).await.unwrap();
    assert_eq!(scene.left(), None);
    terminate(plugin).await;
}

#[tokio::test]
async fn slow_calls_make_claims_slow_and_no_more() {
    let scene = Scene::h100(1).await;
    let plugin = scene.plugin().await;
    let [claim, beside] = [("one", FOUR), ("two", THREE_AT_4)].map(|(name, of)| scene.claim(name, &[&part(0, of)]));
    scene.fault(Fault { call: "*".to_owned(), delay_ms: 15, ..Fault::default() });
    goes_on(&scene, "slow", [&claim, &beside]).await;
    terminate(plugin).await;
}

#[tokio::test]
async fn a_gpu_whose_calls_hang_is_refused_in_time_and_the_others_go_on() {
    let scene = Scene::h100(3).await;
    let plugin = scene.plugin().await;
    let [held, whole, other] = [("held", part(0, THREE_AT_4)), ("whole", "gpu-2".to_owned()), ("other", part(1, FOUR))]
        .map(|(name, device)| scene.claim(name, &[&device]));
    let hung = scene.claim("hung", &[&part(0, FOUR)]);
    for claim in [&held, &whole] {
        scene.node.prepare(claim).await.unwrap();
    }
    scene.fault(Fault { call: "*".to_owned(), gpu: Some(0), hang: true, ..Fault::default() });
    let others = async {
        scene.node.prepare(&other).await.unwrap();
        for claim in [&whole, &other] {
            scene.node.unprepare(claim).await.unwrap();
        }
        assert_eq!(scene.instances(1), []);
    };
    // The kubelet gives a call up after 45 s, and then nobody would say why.
    let (error, ()) = tokio::join!(scene.node.prepare(&hung), others);
    let error = error.unwrap_err();
    assert!(error.contains("NVML did not") && error.contains("within"), "{error}");
    scene.mend();
    for claim in [&held, &hung] {
        scene.node.unprepare(claim).await.unwrap();
    }
    scene.until_as_found("after the hang").await;
    goes_on(&scene, "after the hang", [&held, &hung]).await;
    terminate(plugin).await;
}
