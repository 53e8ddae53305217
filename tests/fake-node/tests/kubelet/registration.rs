//! How plugins come and go.

use std::time::Duration;

use fake_node::kubelet::{Authority, ClaimRef, Clock, Options, Service};
use fake_node::release::Release;

use crate::node::{DRIVER, Node};
use crate::plugin::{Setup, VERSIONS};

#[tokio::test]
async fn stock_tonic_cannot_register() {
    let node = Node::start(Release::V1_36);
    let plugin = Setup { tolerant: false, ..node.setup("gpu") }.start();
    let error = node.wait_registration_error(&plugin).await;
    assert!(error.contains("failed to get plugin info using RPC GetInfo"), "{error}");
    // h2's words for PROTOCOL_ERROR.
    assert!(error.contains("unspecific protocol error detected"), "{error}");
    assert_eq!(plugin.calls(), [""; 0]);
    node.kubelet.stop().await;
}

#[tokio::test]
async fn every_release_registers_a_good_plugin_on_one_connection_and_picks_its_service() {
    for release in Release::ALL {
        let node = Node::start(release);
        let plugin = node.plugin("gpu").await;
        let expected = if release < Release::V1_34 { Service::V1Beta1 } else { Service::V1 };
        assert_eq!(node.kubelet.plugins()[0].service, expected, "{release}");
        node.until(|_| plugin.calls().contains(&"registered".to_owned()).then_some(())).await;
        assert_eq!(plugin.behaviour().registrar_connections, 1, "{release}");
        node.kubelet.stop().await;
    }
}

#[tokio::test]
async fn a_plugin_without_a_known_service_is_told_so_and_tried_again() {
    let node = Node::start(Release::V1_36);
    let plugin = Setup { versions: &["1.0.0"], ..node.setup("gpu") }.start();
    let error = node.wait_registration_error(&plugin).await;
    assert!(
        error.starts_with("RegisterPlugin error -- plugin validation failed with err: invalid supported"),
        "{error}"
    );
    assert_eq!(plugin.calls()[0], error);
    plugin.behaviour().versions = VERSIONS.iter().map(ToString::to_string).collect();
    node.wait_registered(&plugin).await;
}

#[tokio::test]
async fn old_kubelets_take_an_unknown_service_for_one_that_is_not_there() {
    let node = Node::start(Release::V1_33);
    let _plugin = Setup { versions: &["v1.DRAPlugin"], ..node.setup("gpu") }.start();
    assert_eq!(node.kubelet.wait_for_plugin(DRIVER).await.service, Service::Alpha4);
    let error = node.kubelet.prepare_once(DRIVER, &[]).await.unwrap_err();
    assert!(error.starts_with("rpc error: code = Unimplemented"), "{error}");
}

#[tokio::test]
async fn get_info_must_answer_within_a_second() {
    let node = Node::start(Release::V1_36);
    let plugin = node.setup("gpu").start_with(|behaviour| behaviour.info_delay = Duration::from_secs(60));
    let error = node.wait_registration_error(&plugin).await;
    assert!(error.contains("DeadlineExceeded"), "{error}");
    plugin.behaviour().info_delay = Duration::ZERO;
    node.wait_registered(&plugin).await;
}

#[tokio::test]
async fn a_plugin_that_refuses_its_registration_stays_registered_until_1_35() {
    let node = Node::start(Release::V1_35);
    let plugin = node.setup("gpu").start_with(|behaviour| behaviour.notify_fails = true);
    node.wait_registration_error(&plugin).await;
    node.wait_registered(&plugin).await;
}

#[tokio::test]
async fn a_plugin_that_refuses_its_registration_is_deregistered_from_1_36_on() {
    let node = Node::start(Release::V1_36);
    let plugin = node.setup("gpu").start_with(|behaviour| behaviour.notify_fails = true);
    let error = node.wait_registration_error(&plugin).await;
    assert!(error.contains("failed to send registration status"), "{error}");
    node.wait_gone(&plugin).await;
    plugin.behaviour().notify_fails = false;
    node.wait_registered(&plugin).await;
}

#[tokio::test]
async fn one_plugin_cannot_take_the_endpoint_of_another() {
    let node = Node::start(Release::V1_36);
    let first = node.plugin("first").await;
    let endpoint = first.endpoint.display().to_string();
    let second = node.setup("second").start_with(|behaviour| behaviour.endpoint.clone_from(&endpoint));
    let error = node
        .until(|kubelet| {
            kubelet.registration_errors().remove(&second.registrar).filter(|error| error.contains("already"))
        })
        .await;
    let expected = format!("endpoint {endpoint} already registered for DRA driver plugin {DRIVER}");
    assert_eq!(error, format!("RegisterPlugin error -- plugin registration failed with err: {expected}"));
}

#[tokio::test]
async fn of_two_plugins_the_connected_one_added_last_is_called() {
    let node = Node::start(Release::V1_36);
    let first = node.plugin("first").await;
    let mut second = node.plugin("second").await;
    let claim = [ClaimRef::new("default", "c", "uid")];
    node.kubelet.prepare_once(DRIVER, &claim).await.unwrap();
    assert!(!first.calls().contains(&"prepare uid".to_owned()));
    assert!(second.calls().contains(&"prepare uid".to_owned()));

    second.kill();
    node.until(|kubelet| kubelet.plugins().iter().any(|p| p.endpoint == second.endpoint && !p.connected).then_some(()))
        .await;
    node.kubelet.prepare_once(DRIVER, &claim).await.unwrap();
    assert!(first.calls().contains(&"prepare uid".to_owned()));
}

#[tokio::test]
async fn on_1_32_the_exit_of_the_old_plugin_unregisters_the_new_one() {
    let node = Node::start(Release::V1_32);
    let first = node.plugin("first").await;
    let second = node.plugin("second").await;
    assert_eq!(node.kubelet.plugins().len(), 1);
    first.unlink_registrar();
    node.wait_gone(&second).await;
    let error = node.kubelet.prepare_once(DRIVER, &[]).await.unwrap_err();
    assert_eq!(error, "DRA driver gpu.example.com is not registered");
}

#[tokio::test]
async fn a_registrar_socket_created_anew_is_registered_anew() {
    let node = Node::start(Release::V1_36);
    let mut plugin = node.plugin("gpu").await;
    plugin.kill();
    plugin.start_again();
    node.until(|_| (plugin.calls().iter().filter(|call| *call == "registered").count() == 2).then_some(())).await;
    node.wait_registered(&plugin).await;
}

#[tokio::test]
async fn slices_are_wiped_at_start_and_when_the_plugin_stays_away() {
    let node = Node::start(Release::V1_36);
    assert_eq!(node.api.wait_for_wipe(0).await, ["node *"]);
    let mut plugin = node.plugin("gpu").await;
    plugin.kill();
    plugin.unlink_registrar();
    assert_eq!(node.api.wait_for_wipe(1).await, ["node gpu.example.com"]);
    node.kubelet.restart().await;
    assert_eq!(node.api.wait_for_wipe(2).await, ["node *"]);
}

#[tokio::test]
async fn on_1_32_slices_are_wiped_at_once() {
    let node = Node::start_with(Release::V1_32, |options| options.clock = Clock::REAL);
    assert_eq!(node.api.wait_for_wipe(0).await, ["node *"]);
    let plugin = node.plugin("gpu").await;
    plugin.unlink_registrar();
    node.wait_gone(&plugin).await;
    let wipe = tokio::time::timeout(Duration::from_secs(10), node.api.wait_for_wipe(1)).await;
    assert_eq!(wipe.unwrap(), ["node gpu.example.com"]);
}

#[tokio::test]
async fn a_dra_socket_may_be_dialled_with_its_path_as_authority() {
    let stock = |node: &Node| Setup { tolerant: false, ..node.setup("gpu") }.start();
    let dra = |authority| move |options: &mut Options| options.dra_authority = Some(authority);
    for (authority, expected) in [(Authority::Localhost, Ok(())), (Authority::Path, Err("protocol error"))] {
        let node = Node::start_with(Release::V1_36, dra(authority));
        // A tolerant registrar in front of a DRA socket of stock tonic.
        let plugin = stock(&node);
        let endpoint = plugin.endpoint.display().to_string();
        let _registrar = node.setup("registrar").start_with(|behaviour| behaviour.endpoint = endpoint);
        node.wait_registered(&plugin).await;
        let answer = node.kubelet.prepare_once(DRIVER, &[]).await.map(drop);
        assert_eq!(answer.is_ok(), expected.is_ok(), "{authority:?} {answer:?}");
        if let (Err(error), Err(expected)) = (answer, expected) {
            assert!(error.contains(expected), "{error}");
        }
    }
}

#[tokio::test]
async fn a_plugin_that_comes_back_in_time_keeps_its_slices() {
    // Real time: the plugin is back long before the 30 s are over.
    let node = Node::start_with(Release::V1_36, |options| options.clock = Clock::REAL);
    let mut plugin = node.plugin("gpu").await;
    plugin.kill();
    plugin.start_again();
    node.until(|_| (plugin.calls().iter().filter(|call| *call == "registered").count() == 2).then_some(())).await;
    node.wait_registered(&plugin).await;
    assert_eq!(*node.api.wipes.borrow(), ["node *"]);
}

#[tokio::test]
async fn strict_endpoints_lie_inside_the_root() {
    let node = Node::start_with(Release::V1_36, |options| options.strict_endpoints = true);
    let plugin = node.setup("gpu").start_with(|behaviour| behaviour.endpoint = "/run/dra.sock".into());
    let error = node.until(|kubelet| kubelet.registration_errors().remove(&plugin.registrar)).await;
    assert!(error.contains("is not inside the kubelet root"), "{error}");
}
