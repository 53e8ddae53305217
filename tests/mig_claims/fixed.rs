//! GPUs that an administrator partitions.

use std::collections::BTreeSet;

use fake_node::node::NodeError;
use serde_json::json;

use crate::node::{Machine, claim_ref, eventually, terminate};
use crate::scene::{Scene, part};

/// Profiles of an A100 and their names.
const THREE: (u32, &str) = (9, "mig-3g20gb-9-4");
const ONE: (u32, &str) = (19, "mig-1g5gb-19-0");

/// A pod with one MIG device.
fn manifest() -> String {
    let request = json!({"name": "mig", "exactly": {"deviceClassName": "mig.nvidia.com"}});
    let template = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "one-mig-device"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one-mig-device"},
        "spec": {
            "containers": [{"name": "main", "image": "none"}],
            "resourceClaims": [{"name": "mig", "resourceClaimTemplateName": "one-mig-device"}],
        },
    });
    format!("{template}\n---\n{pod}\n")
}

/// Four A100, the first in MIG mode with nothing in it.
async fn scene() -> Scene {
    let mut topology = topology::Topology::builtin("hgx-a100-4gpu").unwrap();
    topology.gpus[0].mig_enabled = true;
    Scene::of(Machine::of(topology)).await
}

#[tokio::test]
async fn what_the_administrator_makes_and_destroys_is_offered_and_withdrawn_without_a_restart() {
    let scene = scene().await;
    let mut plugin = scene.plugin_with(&scene.node.plugin_settings()).await;
    let empty = "MIG mode is on, and it has no GPU instance";
    plugin.wait_for_log(empty).await.unwrap();
    let offered = || -> BTreeSet<String> {
        let devices = scene.node.devices();
        devices.iter().map(|device| device["name"].as_str().unwrap().to_owned()).collect()
    };
    let until = async |names: &[String]| {
        let expected: BTreeSet<_> = names.iter().cloned().chain((1..4).map(|gpu| format!("gpu-{gpu}"))).collect();
        eventually(&format!("{expected:?} is offered"), || (offered() == expected).then_some(())).await;
    };
    until(&[]).await;
    let three = scene.nvml().create_instance(0, THREE.0, Some(4)).unwrap();
    let one = scene.nvml().create_instance(0, ONE.0, Some(0)).unwrap();
    let [name_of_three, name_of_one] = [THREE.1, ONE.1].map(|name| part(0, name));
    until(&[name_of_three.clone(), name_of_one.clone()]).await;
    let log = plugin.log().unwrap();
    assert_eq!(log.lines().filter(|line| line.contains(empty)).count(), 1, "{log}");

    let first = scene.node.run_prepared_pod(&manifest(), "first").await.unwrap();
    let second = scene.node.run_prepared_pod(&manifest(), "second").await.unwrap();
    assert_eq!((first.devices(), second.devices()), (vec![name_of_one.clone()], vec![name_of_three.clone()]));
    let claim = claim_ref(&first.claims[0]);
    assert_eq!(scene.given(&claim), BTreeSet::from([one.uuid.clone()]));
    assert_eq!(scene.given(&claim_ref(&second.claims[0])), BTreeSet::from([three.uuid.clone()]));

    // What is in its place now is not what the pod has.
    scene.nvml().destroy_instance(0, one.gpu_instance).unwrap();
    until(std::slice::from_ref(&name_of_three)).await;
    eventually("its spec is gone", || (scene.node.specs().len() == 1).then_some(())).await;
    let gone = scene.node.prepare(&claim).await.unwrap_err();
    assert!(gone.contains("was given as") && gone.contains(&one.uuid) && gone.contains("is gone"), "{gone}");
    scene.nvml().create_instance(0, ONE.0, Some(0)).unwrap();
    until(&[name_of_three, name_of_one.clone()]).await;
    assert!(scene.node.prepare(&claim).await.unwrap_err().contains("is gone"));
    let error = scene.node.run_pod(&manifest(), "third").unwrap_err();
    assert!(matches!(error, NodeError::Allocate(_)), "the first claim has the name: {error}");

    let before = scene.existing();
    for pod in [first, second] {
        scene.node.end_pod(pod).await.unwrap();
    }
    let again = scene.node.run_prepared_pod(&manifest(), "again").await.unwrap();
    assert_eq!(again.devices(), [name_of_one]);
    scene.node.end_pod(again).await.unwrap();
    assert_eq!(scene.existing(), before, "what an administrator made stays");
    assert!(scene.records().is_empty() && scene.node.specs().is_empty());
    terminate(plugin).await;
}
