//! Claims that are late, or beside one that hangs.

use std::time::Duration;

use fake_node::api::{Kind, Matching, Verb};
use fake_node::kubelet::Clock;
use fake_node::manifest::ONE_GPU;
use fake_node::node::DRIVER;

use crate::node::{Machine, TestNode, eventually, terminate};

fn reads_of(claim: &str) -> Matching {
    Matching::any().verb(Verb::Get).kind(Kind::ResourceClaim).name(claim)
}

#[tokio::test]
async fn a_prepare_that_the_kubelet_gave_up_on_goes_on_and_its_next_try_finds_the_result() {
    // The kubelet's 45 s are 3 s.
    let clock = Clock { scale_deadlines: true, ..Clock::scaled(15.0) };
    let node = Machine::new("one-gpu").clock(clock).start().await;
    let mut plugin = node.ready_plugin().await;
    let claim = node.allocated_claim("slow", "gpu-0");

    let stall = node.api.stall(reads_of("slow"));
    let error = node.prepare(&claim).await.unwrap_err();
    assert!(error.contains("DeadlineExceeded"), "{error}");
    assert!(node.records().is_empty());

    drop(stall);
    let done = plugin.wait_for_log("claim prepared").await.unwrap();
    assert!(done.contains(&claim.uid), "{done}");
    assert_eq!((node.records().len(), node.specs().len()), (1, 1), "nobody asked again");
    let specs = node.specs();
    assert_eq!(node.prepare(&claim).await.map(|ids| ids.len()), Ok(1));
    assert_eq!(node.specs(), specs);
    terminate(plugin).await;
}

#[tokio::test]
async fn a_call_reads_eight_of_its_claims_at_once() {
    let node = TestNode::start("one-gpu").await;
    let plugin = node.ready_plugin().await;
    // Which is answered as soon as they are read.
    let claims: Vec<_> = (0..12).map(|number| node.allocated_claim(&format!("{number}"), "gpu-9")).collect();
    node.api.forget_requests();
    let reads = Matching::any().verb(Verb::Get).kind(Kind::ResourceClaim);
    let stall = node.api.stall(reads.clone());
    let others = async {
        eventually("claims are read", || (node.api.count(&reads) >= 8).then_some(())).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(node.api.count(&reads), 8);
        drop(stall);
    };
    let (answer, ()) = tokio::join!(node.kubelet.prepare_once(DRIVER, &claims), others);
    let answer = answer.unwrap();
    assert!(answer.len() == 12 && answer.values().all(Result::is_err), "{answer:?}");
    assert_eq!(node.api.count(&reads), 12);
    terminate(plugin).await;
}

#[tokio::test]
async fn claims_on_other_gpus_do_not_wait_for_one_that_is_stalled() {
    let node = TestNode::start("dgx-h100").await;
    let plugin = node.ready_plugin().await;
    let stalled = node.allocated_claim("stalled", "gpu-7");
    let stall = node.api.stall(reads_of("stalled"));
    let others = async {
        eventually("the stalled claim is read", || (node.api.count(&reads_of("stalled")) > 0).then_some(())).await;
        for name in ["first", "second"] {
            let pod = node.run_prepared_pod(ONE_GPU, name).await.unwrap();
            node.end_pod(pod).await.unwrap();
        }
        assert!(node.records().is_empty(), "the first claim still waits");
        drop(stall);
    };
    let (ids, ()) = tokio::join!(node.prepare(&stalled), others);
    assert_eq!(ids.map(|ids| ids.len()), Ok(1));
    assert_eq!(node.unprepare(&stalled).await, Ok(()));
    assert!(node.specs().is_empty() && node.records().is_empty());
    terminate(plugin).await;
}
