//! SIGTERM ends the process in time whatever it is at, and SIGKILL leaves nothing that stops the next one.

use std::fs;

use fake_node::api::{Kind, Matching, Verb};
use fake_node::kubelet::Health;
use fake_node::node::{DRIVER, NODE};
use fake_node::plugin::Plugin;
use topology::Fault;

use crate::node::{TestNode, eventually, terminate};

/// The claim of a prepare that does not get done.
const CLAIM: &str = "late";

fn assert_no_sockets(node: &TestNode) {
    assert!(!node.registrar_socket().exists() && !node.dra_socket().exists(), "both sockets are unlinked");
}

#[tokio::test]
async fn sigterm_ends_it_while_the_kubelet_keeps_its_health_stream_open() {
    let node = TestNode::start("one-gpu").await;
    let plugin = node.ready_plugin().await;
    let healthy = |health: Health| (health == Health::Healthy).then_some(());
    node.until("a report over the stream", |kubelet| healthy(kubelet.health(DRIVER, NODE, "gpu-0").health)).await;
    terminate(plugin).await;
    assert_no_sockets(&node);
    node.until_deregistered().await;
}

#[tokio::test]
async fn sigterm_ends_it_while_nvml_hangs_and_a_prepare_waits_for_it() {
    let node = TestNode::start("one-gpu").await;
    node.set_nvml_faults(vec![Fault { call: "nvmlDeviceGetCount".to_owned(), hang: true, ..Fault::default() }]);
    let calls = node.host.node().calls_path();
    fs::write(&calls, "").unwrap();
    let plugin = node.registered_plugin().await;
    let called = || fs::read_to_string(&calls).unwrap().contains("nvmlDeviceGetCount").then_some(());
    eventually("a call that hangs", called).await;
    sigterm_during_a_prepare(&node, plugin).await;
}

#[tokio::test]
async fn sigterm_ends_it_while_the_api_server_stalls_and_a_prepare_waits_for_it() {
    let node = TestNode::start("one-gpu").await;
    let plugin = node.ready_plugin().await;
    let _stall = node.api.stall(reads());
    sigterm_during_a_prepare(&node, plugin).await;
    let log = fs::read_to_string(node.plugin_log()).unwrap();
    assert!(log.contains("the GPU plugin is stopping"), "{log}");
}

/// Ends the plugin while it works on a claim that it cannot get done.
async fn sigterm_during_a_prepare(node: &TestNode, plugin: Plugin) {
    let claim = node.allocated_claim(CLAIM, "gpu-0");
    let end = async {
        eventually("the plugin reads the claim", || (node.api.count(&reads()) > 0).then_some(())).await;
        terminate(plugin).await;
    };
    let (answer, ()) = tokio::join!(node.prepare(&claim), end);
    assert!(answer.is_err(), "{answer:?}");
    assert_no_sockets(node);
    assert!(node.specs().is_empty() && node.records().is_empty());
    let log = fs::read_to_string(node.plugin_log()).unwrap();
    assert!(
        log.contains("cannot prepare the claim") && !log.contains("still at work"),
        "it was given up at once: {log}"
    );
}

fn reads() -> Matching {
    Matching::any().verb(Verb::Get).kind(Kind::ResourceClaim).name(CLAIM)
}

#[tokio::test]
async fn sockets_that_sigkill_leaves_behind_are_replaced_by_the_next_start() {
    let node = TestNode::start("one-gpu").await;
    node.ready_plugin().await.kill().await.unwrap();
    assert!(node.registrar_socket().exists() && node.dra_socket().exists(), "nobody removed them");
    let plugin = node.registered_plugin().await;
    assert_eq!(node.prepare(&node.allocated_claim("after", "gpu-0")).await.map(|ids| ids.len()), Ok(1));
    terminate(plugin).await;
    assert_no_sockets(&node);
}
