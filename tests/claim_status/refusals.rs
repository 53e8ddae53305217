//! A status that cannot be written is nobody's trouble.

use fake_node::api::{Failure, FailureRule};
use fake_node::manifest::ONE_GPU;

use crate::node::{TestNode, claim_ref, terminate, within};
use crate::scene::{patches, until_entries};

fn refuse(node: &TestNode, code: u16, times: Option<usize>) {
    node.api.fail(FailureRule { requests: patches(), failure: Failure::injected(code, "not now"), times });
}

#[tokio::test]
async fn without_the_permission_pods_start_and_end_and_the_log_says_once_what_to_grant() {
    let node = TestNode::start("dgx-h100").await;
    let mut plugin = node.ready_plugin().await;
    refuse(&node, 403, None);
    for name in ["first", "second"] {
        let pod = node.run_prepared_pod(ONE_GPU, name).await.unwrap();
        let of_pod = patches().name(claim_ref(&pod.claims[0]).name);
        within("an attempt", node.api.until(|api| (api.count(&of_pod) == 1).then_some(()))).await;
        node.end_pod(pod).await.unwrap();
    }
    let line = plugin.wait_for_log("the API server does not allow to write claims' status").await.unwrap();
    assert!(
        line.contains("patch on resourceclaims/status")
            && line.contains("associated-node:patch on resourceclaims/driver gpu.nvidia.com"),
        "{line}"
    );
    assert!(node.api.count(&patches()) <= 4, "what is not allowed is not tried again");
    node.api.clear_failures();
    let pod = node.run_prepared_pod(ONE_GPU, "third").await.unwrap();
    until_entries(&node, &claim_ref(&pod.claims[0]), 1).await;
    terminate(plugin).await;
    let said = std::fs::read_to_string(node.plugin_log()).unwrap();
    assert_eq!(said.matches("does not allow to write claims' status").count(), 1, "{said}");
}

#[tokio::test]
async fn what_passes_is_tried_again_beside_pods_that_start_all_the_same() {
    let node = TestNode::start("dgx-h100").await;
    let plugin = node.ready_plugin().await;
    for code in [409, 500, 503] {
        refuse(&node, code, Some(1));
        let pod = node.run_prepared_pod(ONE_GPU, &format!("after-{code}")).await.unwrap();
        until_entries(&node, &claim_ref(&pod.claims[0]), 1).await;
    }
    terminate(plugin).await;
}

#[tokio::test]
async fn a_status_that_hangs_holds_up_neither_prepare_nor_unprepare_nor_the_end() {
    let node = TestNode::start("dgx-h100").await;
    let plugin = node.ready_plugin().await;
    let stall = node.api.stall(patches());
    for name in ["a", "b", "c", "d", "e", "f"] {
        let pod = node.run_prepared_pod(ONE_GPU, name).await.unwrap();
        node.end_pod(pod).await.unwrap();
    }
    assert!(node.specs().is_empty() && node.records().is_empty());
    assert!(node.api.count(&patches()) > 0);
    terminate(plugin).await;
    drop(stall);
}
