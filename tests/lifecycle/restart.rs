//! Claims outlive the plugin's process, its specs, and the boot of the machine.

use std::fs;

use fake_node::manifest::{ONE_GPU, TWO_GPUS_ONE_NVLINK_DOMAIN};
use fake_node::node::Workload;
use fake_node::plugin::Plugin;
use serde_json::Value;
use topology::Fault;

use crate::node::{TestNode, claim_ref, eventually, terminate};

/// What the plugin says when it has written the spec of a claim that was prepared before.
const RESTORED: &str = "restored the CDI spec of a prepared claim";

/// Two pods with claims, one GPU and two.
async fn two_pods(node: &TestNode) -> [Workload; 2] {
    let one = node.run_prepared_pod(ONE_GPU, "one").await.unwrap();
    let two = node.run_prepared_pod(TWO_GPUS_ONE_NVLINK_DOMAIN, "two").await.unwrap();
    [one, two]
}

/// Takes two claims through a restart of the plugin.
async fn claims_survive(end: impl AsyncFnOnce(&TestNode, Plugin)) {
    let node = TestNode::start("dgx-h100").await;
    let plugin = node.ready_plugin().await;
    let pods = two_pods(&node).await;
    let specs = node.specs();
    assert_eq!((specs.len(), node.records().len()), (2, 2));

    end(&node, plugin).await;
    assert_eq!(node.specs(), specs, "containers that restart meanwhile find their devices");

    let plugin = node.ready_plugin().await;
    node.until_registered().await;
    assert_eq!(node.specs(), specs);
    for claim in pods.iter().flat_map(|pod| &pod.claims) {
        let claim = claim_ref(claim);
        assert_eq!(node.prepare(&claim).await.unwrap(), node.cdi_ids(&claim.uid));
    }
    assert_eq!(node.specs(), specs);

    for pod in pods {
        node.end_pod(pod).await.unwrap();
    }
    assert!(node.specs().is_empty() && node.records().is_empty());
    terminate(plugin).await;
}

#[tokio::test]
async fn two_claims_survive_a_restart_by_sigterm_and_unprepare_to_nothing() {
    claims_survive(async |node, plugin| {
        terminate(plugin).await;
        node.until_deregistered().await;
    })
    .await;
}

#[tokio::test]
async fn two_claims_survive_a_restart_by_sigkill_and_unprepare_to_nothing() {
    claims_survive(async |_, plugin| {
        plugin.kill().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn specs_are_put_right_before_the_kubelet_can_find_the_plugin_and_those_of_others_are_left_alone() {
    let node = TestNode::start("dgx-h100").await;
    let plugin = node.ready_plugin().await;
    let [one, two] = two_pods(&node).await;
    let specs = node.specs();
    node.kubelet.stop().await;
    plugin.kill().await.unwrap();

    let lost = specs.keys().find(|name| name.contains(&one.claim_uids()[0])).unwrap();
    fs::remove_file(node.host.cdi_dir().join(lost)).unwrap();
    let orphan = "k8s.gpu.nvidia.com-claim_00000000-0000-4000-8000-000000000000.json";
    let strangers = ["nvidia.yaml", "k8s.gpu.example.com-claim_00000000-0000-4000-8000-000000000000.json"];
    for name in [orphan].into_iter().chain(strangers) {
        fs::write(node.host.cdi_dir().join(name), "not even a spec").unwrap();
    }

    // The kubelet would find the socket earlier than NVML answers.
    fs::remove_file(node.registrar_socket()).unwrap();
    node.set_nvml_faults(vec![Fault { call: "nvmlDeviceGetCount".to_owned(), delay_ms: 100, ..Fault::default() }]);
    let mut plugin = node.start_plugin().unwrap();
    eventually("the registrar listens", || node.registrar_socket().exists().then_some(())).await;
    let mut found = node.specs();
    plugin.wait_for_log(RESTORED).await.unwrap();
    for name in strangers {
        assert_eq!(found.remove(name).as_deref(), Some("not even a spec"));
    }
    assert_eq!(found, specs, "the lost spec is back as it was, and the orphan is gone");

    node.kubelet.restart().await;
    node.until_registered().await;
    for pod in [one, two] {
        node.end_pod(pod).await.unwrap();
    }
    assert_eq!(node.specs().into_keys().collect::<Vec<_>>(), [strangers[1], strangers[0]]);
    terminate(plugin).await;
}

#[tokio::test]
async fn a_claim_follows_its_gpu_through_a_reboot_that_swaps_minors() {
    let mut node = TestNode::start("dgx-h100").await;
    let plugin = node.ready_plugin().await;
    let pod = node.run_prepared_pod(ONE_GPU, "one").await.unwrap();
    let [uid] = pod.claim_uids().try_into().unwrap();
    let (ids, before) = (node.cdi_ids(&uid), node.spec(&uid));
    assert_eq!((pod.devices(), device_nodes(&before)), (vec!["gpu-0".to_owned()], vec!["/dev/nvidia0".to_owned()]));

    node.kubelet.stop().await;
    plugin.kill().await.unwrap();
    node.host.swap_minors(0, 1).unwrap();
    node.host.reboot().unwrap();
    assert!(node.specs().is_empty(), "a reboot empties /var/run");

    // The container runtime may start containers before the kubelet runs.
    let mut plugin = node.start_plugin().unwrap();
    plugin.wait_for_log(RESTORED).await.unwrap();
    let after = node.spec(&uid);
    assert_eq!(device_nodes(&after), ["/dev/nvidia1"]);
    assert_eq!(env(&after), env(&before), "the GPU is the same");

    node.kubelet.restart().await;
    node.until_registered().await;
    assert_eq!(node.prepare(&claim_ref(&pod.claims[0])).await.unwrap(), ids);
    assert_eq!(node.spec(&uid), after);
    node.end_pod(pod).await.unwrap();
    assert!(node.specs().is_empty() && node.records().is_empty());
    terminate(plugin).await;
}

/// The nodes of a spec's first device, by their paths in the container.
fn device_nodes(spec: &Value) -> Vec<String> {
    let nodes = spec["devices"][0]["containerEdits"]["deviceNodes"].as_array().unwrap();
    nodes.iter().map(|node| node["path"].as_str().unwrap().to_owned()).collect()
}

/// The environment of a spec's first device.
fn env(spec: &Value) -> &Value {
    let env = &spec["devices"][0]["containerEdits"]["env"];
    assert!(env.to_string().contains("GPU-"), "it names the GPU: {env}");
    env
}
