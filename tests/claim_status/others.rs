//! What others write to the same status stays theirs.

use fake_node::api::{ApiServer, Kind, Options};
use fake_node::kubelet::ClaimRef;
use fake_node::node::{DRIVER, NODE};
use fake_node::release::Release;
use gpu_dra_plugin::claim::{ClaimName, ClaimUid};
use gpu_dra_plugin::cluster::{ClaimStatuses, Clock, Cluster, DeviceStatus, Settings};
use gpu_dra_plugin::device::GpuUuid;
use serde_json::{Value, json};

use crate::node::{TestNode, terminate, within};
use crate::scene::{entries, stored, until_entries};

const OTHER_DRIVER: &str = "nic.example.com";

/// Allocates devices to a claim and reserves it.
fn allocated(api: &ApiServer, name: &str, results: &[Value]) -> Value {
    let request = json!({"name": "all", "exactly": {"deviceClassName": "any", "count": results.len()}});
    let mut claim = api
        .create(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"}, "spec": {"devices": {"requests": [request]}},
        }))
        .unwrap();
    claim["status"] = json!({
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": "nobody", "uid": "nobody"}],
    });
    api.update_status(claim).unwrap()
}

fn result(driver: &str, pool: &str, device: &str) -> Value {
    json!({"request": "all", "driver": driver, "pool": pool, "device": device})
}

#[tokio::test]
async fn the_entries_of_another_driver_the_allocation_and_the_reservations_are_untouched() {
    let node = TestNode::start("one-gpu").await;
    let plugin = node.ready_plugin().await;
    let mut claim = allocated(&node.api, "both", &[result(OTHER_DRIVER, NODE, "gpu-0"), result(DRIVER, NODE, "gpu-0")]);
    claim["status"]["devices"] = json!([{
        "driver": OTHER_DRIVER, "pool": NODE, "device": "gpu-0", "conditions": [],
        "networkData": {"interfaceName": "net1"},
    }]);
    let before = node.api.update_status(claim).unwrap();
    let claim = ClaimRef::new("default", "both", before["metadata"]["uid"].as_str().unwrap());
    let check = |what: &str| {
        let now = stored(&node, &claim);
        assert_eq!(entries(&now, OTHER_DRIVER), entries(&before, OTHER_DRIVER), "{what}");
        for field in ["allocation", "reservedFor"] {
            assert_eq!(now["status"][field], before["status"][field], "{what}");
        }
        assert_eq!(now["spec"], before["spec"], "{what}");
    };

    node.prepare(&claim).await.unwrap();
    until_entries(&node, &claim, 1).await;
    check("prepared");
    node.unprepare(&claim).await.unwrap();
    until_entries(&node, &claim, 0).await;
    check("unprepared");
    terminate(plugin).await;
}

#[tokio::test]
async fn two_nodes_that_share_a_claim_keep_each_others_entries() {
    let directory = tempfile::tempdir().unwrap();
    let api = ApiServer::start(Options::new(Release::V1_36, "node-a")).await.unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    api.write_kubeconfig(&kubeconfig).unwrap();
    let results = ["node-a", "node-b"].map(|node| result(DRIVER, node, "gpu-0"));
    let claim = allocated(&api, "shared", &results);
    let name = ClaimName { namespace: "default".to_owned(), name: "shared".to_owned() };
    let uid = ClaimUid::parse(claim["metadata"]["uid"].as_str().unwrap()).unwrap();
    let pools = |api: &ApiServer| -> Vec<String> {
        let claim = api.get(Kind::ResourceClaim, "default", "shared").unwrap();
        entries(&claim, DRIVER).iter().map(|entry| entry["pool"].as_str().unwrap().to_owned()).collect()
    };
    let until = async |expected: &[&str]| {
        let look = |api: &ApiServer| (pools(api) == expected).then_some(());
        within(&format!("entries of {expected:?}"), api.until(look)).await;
    };

    let mut nodes = Vec::new();
    for node in ["node-a", "node-b"] {
        let (kubeconfig, driver, clock) = (Some(kubeconfig.clone()), DRIVER.to_owned(), Clock::REAL);
        let cluster = Cluster::connect(&Settings { kubeconfig, driver, node: node.to_owned(), clock }).await.unwrap();
        let (sender, is_prepared) = tokio::sync::watch::channel(true);
        let (statuses, task) = ClaimStatuses::new(cluster, move |_| *is_prepared.borrow());
        tokio::spawn(task);
        let gpu = GpuUuid::parse(&format!("GPU-of-{node}")).unwrap();
        let device = DeviceStatus { pool: node.to_owned(), device: "gpu-0".to_owned(), share_id: None, gpu, mig: None };
        statuses.prepared(&name, &uid, &[], &[device]);
        nodes.push((statuses, sender));
        until(&["node-a", "node-b"][..nodes.len()]).await;
    }
    for (gone, left) in nodes.iter().zip([&["node-b"][..], &[]]) {
        gone.1.send_replace(false);
        gone.0.unprepared(&name, &uid);
        until(left).await;
    }
}
