//! Prepares that wait inside the kubelet's call for what passes by itself, and what ends the wait.

use std::fs;
use std::time::{Duration, Instant};

use fake_node::kubelet::{ClaimRef, Phase};

use crate::node::{TestNode, terminate};

/// What the plugin says when a prepare begins to wait.
const WAITING: &str = "waiting for what may pass";

/// What a prepare waits at most. A test that ends before did not wait for that.
const BUDGET: Duration = Duration::from_secs(30);

/// A pod with a claim that exists by itself.
fn pod_with(claim: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: pod}}, spec: {{containers: [{{name: main, image: none}}], \
         resourceClaims: [{{name: gpu, resourceClaimName: {claim}}}]}}}}"
    )
}

/// A claim that holds the node's GPU, and another one that wants it.
async fn rivals(node: &TestNode) -> [ClaimRef; 2] {
    let claims = ["holder", "waiting"].map(|name| node.allocated_claim(name, "gpu-0"));
    node.prepare(&claims[0]).await.unwrap();
    claims
}

#[tokio::test]
async fn a_pod_whose_gpu_a_terminating_pod_still_holds_starts_without_another_try_of_the_kubelet() {
    let node = TestNode::start("dgx-h100").await;
    let mut plugin = node.ready_plugin().await;
    node.allocated_claim("holder", "gpu-3");
    node.allocated_claim("waiting", "gpu-3");
    let holder = node.run_prepared_pod(&pod_with("holder"), "holder").await.unwrap();

    let waiting = node.run_pod(&pod_with("waiting"), "waiting").unwrap();
    let line = plugin.wait_for_log(WAITING).await.unwrap();
    assert!(line.contains("gpu-3 is in use by claim default/holder"), "{line}");
    assert_eq!((node.records().len(), node.specs().len()), (1, 1), "who waits leaves nothing on disk");

    node.end_pod(holder).await.unwrap();
    waiting.pod.wait_prepared().await.unwrap();
    assert_eq!(waiting.pod.events(), [], "the first try of the kubelet succeeds");
    assert_eq!(node.specs().len(), 1);
    assert!(node.spec(&waiting.claim_uids()[0]).to_string().contains("/dev/nvidia3"));
    node.end_pod(waiting).await.unwrap();
    assert!(node.specs().is_empty() && node.records().is_empty());
    terminate(plugin).await;
}

#[tokio::test]
async fn a_device_node_that_is_made_a_moment_later_is_found() {
    let node = TestNode::start("one-gpu").await;
    let mut plugin = node.ready_plugin().await;
    node.host.lose_node(0).unwrap();
    let claim = node.allocated_claim("early", "gpu-0");
    let udev = async {
        let line = plugin.wait_for_log(WAITING).await.unwrap();
        assert!(line.contains("the container would not have its GPU gpu-0"), "{line}");
        assert!(node.records().is_empty() && node.specs().is_empty());
        // As long as udev may take on a busy machine.
        tokio::time::sleep(Duration::from_secs(2)).await;
        node.host.restore_node(0).unwrap();
    };
    let (ids, ()) = tokio::join!(node.prepare(&claim), udev);
    assert_eq!(ids.map(|ids| ids.len()), Ok(1));
    assert!(node.spec(&claim.uid).to_string().contains("/dev/nvidia0"));
    terminate(plugin).await;
}

#[tokio::test]
async fn an_unprepare_ends_the_wait_of_its_claim_at_once() {
    let node = TestNode::start("one-gpu").await;
    let mut plugin = node.ready_plugin().await;
    let [holder, waiting] = rivals(&node).await;
    let start = Instant::now();
    let delete = async {
        plugin.wait_for_log(WAITING).await.unwrap();
        node.unprepare(&waiting).await
    };
    let (answer, unprepared) = tokio::join!(node.prepare(&waiting), delete);
    assert_eq!(answer, Err("the claim was unprepared before it was prepared".to_owned()));
    assert_eq!(unprepared, Ok(()));
    assert!(start.elapsed() < BUDGET, "{:?}", start.elapsed());
    node.unprepare(&holder).await.unwrap();
    assert!(node.specs().is_empty() && node.records().is_empty(), "nobody takes the GPU that has become free");
    terminate(plugin).await;
}

#[tokio::test]
async fn sigterm_ends_the_wait_and_the_next_plugin_prepares_the_claim() {
    let node = TestNode::start("one-gpu").await;
    let mut plugin = node.ready_plugin().await;
    let [holder, waiting] = rivals(&node).await;
    let start = Instant::now();
    let end = async {
        plugin.wait_for_log(WAITING).await.unwrap();
        terminate(plugin).await;
    };
    let (answer, ()) = tokio::join!(node.prepare(&waiting), end);
    assert!(start.elapsed() < BUDGET, "{:?}", start.elapsed());
    // The kubelet may see the socket go before it reads the answer.
    assert!(answer.is_err(), "{answer:?}");
    let log = fs::read_to_string(node.plugin_log()).unwrap();
    assert!(log.contains("the GPU plugin is stopping; the next one on this node will prepare the claim"), "{log}");
    assert!(!log.contains("still at work"), "{log}");

    let plugin = node.ready_plugin().await;
    node.until_registered().await;
    node.unprepare(&holder).await.unwrap();
    assert_eq!(node.prepare(&waiting).await.map(|ids| ids.len()), Ok(1));
    terminate(plugin).await;
}

#[tokio::test]
async fn a_claim_goes_from_one_pod_to_the_next() {
    let node = TestNode::start("one-gpu").await;
    let plugin = node.ready_plugin().await;
    let claim = node.allocated_claim("shared", "gpu-0");
    let mut devices = Vec::new();
    for name in ["first", "second"] {
        let pod = node.run_prepared_pod(&pod_with("shared"), name).await.unwrap();
        assert_eq!((pod.pod.phase(), pod.claim_uids()), (Phase::Running, vec![claim.uid.clone()]));
        devices.push(node.cdi_ids(&claim.uid));
        node.end_pod(pod).await.unwrap();
        assert!(node.specs().is_empty() && node.records().is_empty());
    }
    assert_eq!(devices[0], devices[1]);
    terminate(plugin).await;
}
