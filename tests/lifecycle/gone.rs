//! Claims whose object is gone while they are prepared, as after a deletion by force.

use fake_node::api::{Kind, Matching, Verb};

use crate::node::{TestNode, terminate};

#[tokio::test]
async fn a_holder_that_is_gone_is_found_when_its_gpu_is_wanted_and_left_to_the_kubelet_for_minutes() {
    let node = TestNode::start("one-gpu").await;
    let mut plugin = node.ready_plugin().await;
    let [holder, next] = ["holder", "next"].map(|name| node.allocated_claim(name, "gpu-0"));
    node.prepare(&holder).await.unwrap();
    node.api.delete(Kind::ResourceClaim, "default", "holder").unwrap();
    assert!(node.api.get(Kind::ResourceClaim, "default", "holder").is_none());
    node.api.forget_requests();

    let kubelet = async {
        let line = plugin.wait_for_log("a prepared claim is gone; releasing it unless the kubelet does").await.unwrap();
        assert!(line.contains("claim=default/holder") && line.contains("wait=180s"), "{line}");
        assert_eq!(node.records().len(), 1, "its containers may still be ending");
        let reads = Matching::any().verb(Verb::Get).kind(Kind::ResourceClaim).name("holder");
        assert_eq!(node.api.count(&reads), 1);
        node.unprepare(&holder).await.unwrap();
    };
    let (ids, ()) = tokio::join!(node.prepare(&next), kubelet);
    assert_eq!(ids.map(|ids| ids.len()), Ok(1), "what waits is told of the release");
    assert_eq!(node.unprepare(&holder).await, Ok(()), "once more, of a claim that is not known any more");
    assert_eq!(node.records().len(), 1);
    let (_, metrics) = plugin.get("/metrics").await.unwrap();
    assert!(metrics.contains("nvidia_dra_gone_claims_released_total 0\n"), "{metrics}");
    terminate(plugin).await;
}
