//! The health stream.

use fake_node::kubelet::proto::health_v1::{DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesResponse};
use fake_node::kubelet::{Health, Kubelet};
use fake_node::release::Release;

use crate::node::{DRIVER, Node};
use crate::plugin::{Behaviour, Plugin, Setup};

fn report(behaviour: &Behaviour, health: HealthStatus) {
    behaviour.health.send_replace(Some(NodeWatchResourcesResponse {
        devices: vec![DeviceHealth {
            device: Some(DeviceIdentifier { pool_name: "node".into(), device_name: "gpu-0".into() }),
            health: health.into(),
            last_updated_time: 0,
            health_check_timeout_seconds: 0,
            message: "as seen".into(),
        }],
    }));
}

async fn wait_for(kubelet: &Kubelet, health: Health) {
    kubelet.wait_until(|kubelet| (kubelet.health(DRIVER, "node", "gpu-0").health == health).then_some(())).await;
}

fn watches(plugin: &Plugin) -> Vec<String> {
    plugin.calls().into_iter().filter(|call| call.starts_with("watch")).collect()
}

#[tokio::test]
async fn reports_are_kept_until_the_stream_ends_and_it_is_opened_again() {
    for (release, watch) in [(Release::V1_36, "watch v1alpha1"), (Release::V1_37, "watch v1")] {
        let node = Node::start(release);
        let plugin = node.setup("gpu").start_with(|behaviour| report(behaviour, HealthStatus::Healthy));
        wait_for(&node.kubelet, Health::Healthy).await;
        assert_eq!(watches(&plugin), [watch], "{release}");
        report(&plugin.behaviour(), HealthStatus::Unhealthy);
        wait_for(&node.kubelet, Health::Unhealthy).await;
        assert_eq!(node.kubelet.health(DRIVER, "node", "gpu-0").message, "as seen");

        plugin.behaviour().health.send_replace(None);
        wait_for(&node.kubelet, Health::Unknown).await;
        report(&plugin.behaviour(), HealthStatus::Healthy);
        wait_for(&node.kubelet, Health::Healthy).await;
        assert!(watches(&plugin).len() > 1);
        node.kubelet.stop().await;
    }
}

#[tokio::test]
async fn health_is_behind_a_gate_in_1_35() {
    let node = Node::start_with(Release::V1_35, |options| options.health = Some(true));
    let _plugin = node.setup("gpu").start_with(|behaviour| report(behaviour, HealthStatus::Healthy));
    wait_for(&node.kubelet, Health::Healthy).await;

    let node = Node::start(Release::V1_35);
    let plugin = node.plugin("gpu").await;
    let claim = fake_node::kubelet::ClaimRef::new("default", "c", "uid");
    node.kubelet.prepare_once(DRIVER, &[claim]).await.unwrap();
    assert_eq!(watches(&plugin), [""; 0]);
}

#[tokio::test]
async fn a_plugin_without_health_is_used_all_the_same() {
    let node = Node::start(Release::V1_36);
    let _plugin = Setup { health: false, ..node.setup("gpu") }.start();
    node.kubelet.wait_for_plugin(DRIVER).await;
    node.kubelet.prepare_once(DRIVER, &[]).await.unwrap();
    assert_eq!(node.kubelet.health(DRIVER, "node", "gpu-0").health, Health::Unknown);
}
