//! The kubelet finds the plugin, whichever release it is and whatever happens to either of them.

use std::fs;

use fake_node::kubelet::{Kubelet, Service};
use fake_node::manifest::ONE_GPU;
use fake_node::node::DRIVER;
use fake_node::plugin::Plugin;
use fake_node::release::Release;
use serde_json::Value;

use crate::node::{Machine, TestNode, claim_ref, terminate, within};

/// Pods of an old and a new plugin.
const PODS: [&str; 2] = ["0a1b2c3d-0000-4000-8000-000000000001", "0a1b2c3d-0000-4000-8000-000000000002"];

#[tokio::test]
async fn every_release_registers_the_plugin_and_calls_the_version_that_it_knows_best() {
    for release in Release::ALL {
        let node = Machine::new("one-gpu").release(release).start().await;
        let plugin = node.ready_plugin().await;
        let registered = within("registration", node.kubelet.wait_for_plugin(DRIVER)).await;
        let expected = if release < Release::V1_34 { Service::V1Beta1 } else { Service::V1 };
        assert_eq!(registered.service, expected, "{release}");
        assert_eq!(registered.endpoint, node.dra_socket(), "{release}");
        assert_eq!(node.kubelet.registration_errors().len(), 0, "{release}");

        let pod = node.run_prepared_pod(ONE_GPU, "one").await.unwrap();
        assert_eq!((pod.devices(), node.specs().len()), (vec!["gpu-0".to_owned()], 1), "{release}");
        node.end_pod(pod).await.unwrap();
        assert!(node.specs().is_empty() && node.records().is_empty(), "{release}");
        terminate(plugin).await;
    }
}

#[tokio::test]
async fn a_kubelet_that_restarts_finds_the_plugin_again_and_gets_the_slices_back_that_it_wiped() {
    let node = TestNode::start("one-gpu").await;
    let plugin = node.ready_plugin().await;
    let pod = node.run_prepared_pod(ONE_GPU, "one").await.unwrap();
    let claim = claim_ref(&pod.claims[0]);
    let (ids, wiped) = (node.cdi_ids(&claim.uid), uids(&node.slices()));

    node.kubelet.restart().await;
    node.until_registered().await;
    let fresh = |slices: &[Value]| slices.iter().any(|slice| !wiped.contains(&uid(slice))).then_some(());
    node.until_slices("new slices", fresh).await;
    assert_eq!(node.prepare(&claim).await.unwrap(), ids);
    node.end_pod(pod).await.unwrap();
    terminate(plugin).await;
}

#[tokio::test]
async fn a_registry_that_was_deleted_and_made_again_gets_a_socket_again() {
    let node = TestNode::start("one-gpu").await;
    let plugin = node.ready_plugin().await;
    fs::remove_dir_all(node.registry()).unwrap();
    node.until_deregistered().await;
    fs::create_dir_all(node.registry()).unwrap();
    node.until_registered().await;
    terminate(plugin).await;
    assert!(!node.registrar_socket().exists(), "the new one is unlinked as well");
}

#[tokio::test]
async fn a_rolling_update_from_pod_to_pod_leaves_no_moment_without_a_plugin() {
    // 1.33 takes the last one, later releases the last one that is connected.
    for release in [Release::V1_33, Release::V1_36] {
        let node = Machine::new("one-gpu").release(release).start().await;
        let mut old = Plugin::start(&node.settings_of_pod(PODS[0])).unwrap();
        old.wait_until_ready().await.unwrap();
        let pod = node.run_prepared_pod(ONE_GPU, "one").await.unwrap();
        let (ids, slices) = (node.cdi_ids(&pod.claim_uids()[0]), uids(&node.slices()));

        let update = async {
            let mut new = Plugin::start(&node.settings_of_pod(PODS[1])).unwrap();
            new.wait_until_ready().await.unwrap();
            node.until("both are registered", |kubelet| (connected(kubelet) == 2).then_some(())).await;
            terminate(old).await;
            node.until("the old one is gone", |kubelet| (kubelet.plugins().len() == 1).then_some(())).await;
            new
        };
        let gap = node.kubelet.wait_until(|kubelet| (connected(kubelet) == 0).then_some(()));
        let new = tokio::select! {
            new = update => new,
            () = gap => panic!("{release}: no plugin was registered for a moment"),
        };

        let [left] = node.kubelet.plugins().try_into().unwrap();
        assert_eq!(left.endpoint, node.plugin_dir().join(format!("dra-{}.sock", PODS[1])), "{release}");
        assert_eq!(node.prepare(&claim_ref(&pod.claims[0])).await.unwrap(), ids, "{release}");
        assert_eq!(uids(&node.slices()), slices, "{release}: nobody took the slices away");
        node.end_pod(pod).await.unwrap();
        assert!(node.specs().is_empty() && node.records().is_empty(), "{release}");
        terminate(new).await;
        assert_eq!(fs::read_dir(node.registry()).unwrap().count(), 0, "{release}: each unlinks its own socket");
    }
}

fn connected(kubelet: &Kubelet) -> usize {
    kubelet.plugins().into_iter().filter(|plugin| plugin.connected).count()
}

fn uids(slices: &[Value]) -> Vec<String> {
    slices.iter().map(uid).collect()
}

fn uid(slice: &Value) -> String {
    slice["metadata"]["uid"].as_str().unwrap().to_owned()
}
