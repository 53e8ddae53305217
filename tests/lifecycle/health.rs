//! What the kubelet thinks of the devices.

use fake_node::kubelet::{Clock, Health};
use fake_node::manifest::ONE_GPU;
use fake_node::node::{DRIVER, NODE};
use topology::Fault;

use crate::node::{Machine, TestNode, eventually, terminate};

/// The kubelet's patience with health reports is 15 s instead of 30: longer than the 10 s between two reports, so that
/// only missing ones make a difference.
const IMPATIENT: Clock = Clock { scale: 2.0, scale_deadlines: true };

/// How many looks at the machine a test follows; the last comes 20 s after the first, which is longer than the kubelet
/// believes a report.
const LOOKS: usize = 2;

fn health(node: &TestNode) -> Vec<Health> {
    let devices = node.devices();
    let names = devices.iter().map(|device| device["name"].as_str().unwrap());
    names.map(|device| node.kubelet.health(DRIVER, NODE, device).health).collect()
}

async fn until_all_are(node: &TestNode, wanted: Health) {
    let all = || (!node.devices().is_empty() && health(node).iter().all(|health| *health == wanted)).then_some(());
    eventually(&format!("all devices are {wanted:?}"), all).await;
}

fn hang() -> Vec<Fault> {
    vec![Fault { call: "*".to_owned(), hang: true, ..Fault::default() }]
}

#[tokio::test]
async fn an_unchanged_node_stays_healthy_and_writes_nothing() {
    let node = Machine::new("dgx-h100").clock(IMPATIENT).start().await;
    let plugin = node.ready_plugin().await;
    until_all_are(&node, Health::Healthy).await;
    let calls = node.host.node().calls_path();
    std::fs::write(&calls, "").unwrap();
    node.api.forget_requests();

    let mut looks = 0;
    while looks < LOOKS {
        looks = eventually("another look at the machine", || {
            let log = std::fs::read_to_string(&calls).unwrap();
            let seen = log.lines().filter(|line| line.contains("nvmlDeviceGetCount")).count();
            assert_eq!(health(&node), [Health::Healthy; 8], "after {seen} looks");
            (seen > looks).then_some(seen)
        })
        .await;
    }
    assert_eq!(node.api.writes().len(), 0, "{:?}", node.api.writes());
    terminate(plugin).await;
}

#[tokio::test]
async fn devices_become_unknown_when_nvml_hangs() {
    let node = Machine::new("dgx-h100").clock(IMPATIENT).start().await;
    let plugin = node.ready_plugin().await;
    until_all_are(&node, Health::Healthy).await;
    node.set_nvml_faults(hang());
    until_all_are(&node, Health::Unknown).await;
    terminate(plugin).await;
}

#[tokio::test]
async fn a_plugin_whose_nvml_hangs_from_the_start_registers_and_unprepares_and_reports_no_health() {
    let node = TestNode::start("one-gpu").await;
    let plugin = node.ready_plugin().await;
    let pod = node.run_prepared_pod(ONE_GPU, "one").await.unwrap();
    plugin.kill().await.unwrap();
    node.set_nvml_faults(hang());

    let mut plugin = node.registered_plugin().await;
    assert_eq!(health(&node), [Health::Unknown]);
    let (status, text) = plugin.get("/readyz").await.unwrap();
    assert!(status == 503 && text.contains("wait nvml: has not answered yet\n"), "{status} {text}");
    assert_eq!(node.specs().len(), 1, "what is prepared stays");
    node.end_pod(pod).await.unwrap();
    assert!(node.specs().is_empty() && node.records().is_empty());
    terminate(plugin).await;
}
