//! The driver is replaced while claims are prepared.

use fake_node::manifest::ONE_GPU;
use serde_json::Value;

use crate::node::{TestNode, eventually, terminate};

const NEW: &str = "595.91.07";

/// What a spec mounts, by the paths on the host.
fn mounts(spec: &Value) -> Vec<String> {
    let mounts = spec["containerEdits"]["mounts"].as_array().unwrap();
    mounts.iter().map(|mount| mount["hostPath"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_driver_that_is_replaced_under_a_running_plugin_is_what_prepared_and_new_claims_get() {
    let mut node = TestNode::start("dgx-h100").await;
    let plugin = node.ready_plugin().await;
    let before = node.run_prepared_pod(ONE_GPU, "before").await.unwrap();
    let [uid] = before.claim_uids().try_into().unwrap();
    let old = node.host.driver_version().to_owned();
    assert!(mounts(&node.spec(&uid)).iter().any(|path| path.ends_with(&format!("libcuda.so.{old}"))));

    node.host.upgrade_driver(NEW).unwrap();
    let new = eventually("the spec of the prepared claim has the files of the new driver", || {
        let mounts = mounts(&node.spec(&uid));
        mounts.iter().any(|path| path.ends_with(&format!("libcuda.so.{NEW}"))).then_some(mounts)
    })
    .await;
    assert!(new.iter().all(|path| !path.contains(&old) && std::path::Path::new(path).exists()), "{new:?}");

    let after = node.run_prepared_pod(ONE_GPU, "after").await.unwrap();
    let [uid] = after.claim_uids().try_into().unwrap();
    assert_eq!(mounts(&node.spec(&uid)), new);
    for pod in [before, after] {
        node.end_pod(pod).await.unwrap();
    }
    terminate(plugin).await;
}
