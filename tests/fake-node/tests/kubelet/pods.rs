//! What happens to the claims of pods.

use std::time::Duration;

use fake_node::kubelet::{ClaimRef, Clock, Phase, Pod};
use fake_node::release::Release;
use serde_json::{Value, json};

use crate::node::{DRIVER, Node};
use crate::plugin::{Answer, Plugin};

fn pod(uid: &str) -> Pod {
    Pod::new(uid, "default", format!("pod-{uid}")).claim("c")
}

fn count(plugin: &Plugin, call: &str) -> usize {
    plugin.calls().iter().filter(|made| *made == call).count()
}

#[tokio::test]
async fn a_pod_gets_its_devices_and_gives_them_back() {
    let node = Node::start(Release::V1_36);
    let plugin = node.plugin("gpu").await;
    node.api.add("c", "uid", &["p"]);
    let pod = node.kubelet.run_pod(pod("p"));
    pod.wait_prepared().await.unwrap();

    let claim = node.kubelet.prepared_claim("default", "c").unwrap();
    assert!(claim.prepared);
    assert_eq!(claim.cdi_ids(Some("gpu")), ["example.com/gpu=uid"]);
    assert_eq!(claim.devices[0].share_id.as_deref(), Some("share"));
    assert_eq!(pod.events(), []);

    node.kubelet.stop_pod(&pod);
    pod.wait_terminated().await;
    assert_eq!(node.kubelet.prepared_claims(), []);
    assert_eq!(count(&plugin, "unprepare uid"), 1);
    node.kubelet.stop().await;
}

#[tokio::test]
async fn v1beta1_has_no_share_id() {
    let node = Node::start(Release::V1_33);
    let _plugin = node.plugin("gpu").await;
    let claims = node.kubelet.prepare_once(DRIVER, &[ClaimRef::new("default", "c", "uid")]).await.unwrap();
    assert_eq!(claims["uid"].as_ref().unwrap()[0].share_id, None);
}

#[tokio::test]
async fn claims_that_are_not_in_order_never_reach_the_plugin() {
    let node = Node::start(Release::V1_36);
    let plugin = node.plugin("gpu").await;
    let error = async |uid: &str| node.kubelet.run_pod(pod(uid)).wait_error().await;

    let expected = "fetch ResourceClaim c: resourceclaims.resource.k8s.io \"c\" not found";
    assert_eq!(error("1").await, format!("prepare dynamic resources: {expected}"));
    node.api.add("c", "uid", &["somebody-else"]);
    let expected = "pod pod-2 (2) is not allowed to use ResourceClaim c (uid)";
    assert_eq!(error("2").await, format!("prepare dynamic resources: {expected}"));
    node.api.add("c", "uid", &["3"]);
    node.api.change("c", |claim| claim["status"]["allocation"] = Value::Null);
    node.api.change("c", |claim| _ = claim["status"].as_object_mut().unwrap().remove("allocation"));
    assert_eq!(error("3").await, "prepare dynamic resources: ResourceClaim c: not allocated");
    node.api.add("c", "uid", &["4"]);
    node.api.change("c", |claim| claim["status"]["allocation"]["devices"]["results"][0]["driver"] = json!("other"));
    assert_eq!(error("4").await, "prepare dynamic resources: DRA driver other is not registered");

    assert_eq!(plugin.calls().iter().filter(|call| call.starts_with("prepare")).count(), 0);
    assert_eq!(node.kubelet.prepared_claims(), []);
}

#[tokio::test]
async fn a_template_claim_must_belong_to_the_pod() {
    let node = Node::start(Release::V1_36);
    let _plugin = node.plugin("gpu").await;
    node.api.add("c", "uid", &["p"]);
    let pod = node.kubelet.run_pod(Pod::new("p", "default", "pod").template_claim("c"));
    let expected = "ResourceClaim default/c was not created for pod default/pod (pod is not owner)";
    assert_eq!(pod.wait_error().await, format!("prepare dynamic resources: {expected}"));
    node.api.change("c", |claim| claim["metadata"]["ownerReferences"] = json!([{"uid": "p", "controller": true}]));
    pod.wait_prepared().await.unwrap();
}

#[tokio::test]
async fn a_pod_group_may_stand_for_its_pods_where_the_gate_is_on() {
    for on in [true, false] {
        let node = Node::start_with(Release::V1_37, |options| options.pod_groups = on);
        let _plugin = node.plugin("gpu").await;
        node.api.add("c", "uid", &[]);
        node.api.change("c", |claim| claim["status"]["reservedFor"] = json!([{"resource": "podgroups", "name": "g"}]));
        let pod = node.kubelet.run_pod(Pod { group: Some("g".into()), ..pod("p") });
        if on {
            pod.wait_prepared().await.unwrap();
        } else {
            let error = pod.wait_error().await;
            assert!(error.contains("is not allowed to use ResourceClaim c"), "{error}");
        }
    }
}

#[tokio::test]
async fn answers_must_be_about_the_claims_that_were_asked_for() {
    for (answer, expected) in [
        (Answer::Missing, "NodePrepareResources skipped 1 ResourceClaims"),
        (Answer::Unasked, "NodePrepareResources returned result for unknown claim UID unasked"),
        (Answer::Error("no such GPU"), "NodePrepareResources failed for ResourceClaim c: no such GPU"),
        (Answer::Fail("NVML is gone"), "NodePrepareResources: rpc error: code = Unknown desc = NVML is gone"),
    ] {
        let node = Node::start(Release::V1_36);
        let plugin = node.plugin("gpu").await;
        node.api.add("c", "uid", &["p"]);
        plugin.behaviour().answers.push_back(answer);
        let pod = node.kubelet.run_pod(pod("p"));
        assert_eq!(pod.wait_error().await, format!("prepare dynamic resources: {expected}"));

        // The next try succeeds.
        pod.wait_prepared().await.unwrap();
        let events = pod.events();
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].reason, "FailedPrepareDynamicResources");
        assert_eq!(
            events[0].message,
            format!("Failed to prepare dynamic resources: prepare dynamic resources: {expected}")
        );
        assert_eq!(count(&plugin, "prepare uid"), 2);
    }
}

#[tokio::test]
async fn a_prepare_that_takes_too_long_is_cancelled() {
    // The deadline of 45 s is 2.25 s here.
    let clock = Clock { scale: 20.0, scale_deadlines: true };
    let node = Node::start_with(Release::V1_36, |options| options.clock = clock);
    let plugin = node.plugin("gpu").await;
    node.api.add("c", "uid", &["p"]);
    plugin.behaviour().prepare_delay = Duration::from_secs(3600);
    let pod = node.kubelet.run_pod(pod("p"));
    let expected = "NodePrepareResources: rpc error: code = DeadlineExceeded desc = context deadline exceeded";
    assert_eq!(pod.wait_error().await, format!("prepare dynamic resources: {expected}"));
    assert_eq!(count(&plugin, "prepare uid"), 0);
}

#[tokio::test]
async fn a_failed_prepare_is_unprepared_when_the_pod_goes() {
    let node = Node::start(Release::V1_36);
    let plugin = node.plugin("gpu").await;
    node.api.add("c", "uid", &["p"]);
    plugin.behaviour().answers.extend(std::iter::repeat_n(Answer::Error("busy"), 100));
    let pod = node.kubelet.run_pod(pod("p"));
    pod.wait_error().await;
    node.kubelet.stop_pod(&pod);
    pod.wait_terminated().await;
    assert_eq!(count(&plugin, "unprepare uid"), 1);
}

#[tokio::test]
async fn a_shared_claim_is_prepared_once_and_unprepared_with_its_last_pod() {
    let node = Node::start(Release::V1_36);
    let plugin = node.plugin("gpu").await;
    node.api.add("c", "uid", &["a", "b"]);
    let (a, b) = (node.kubelet.run_pod(pod("a")), pod("b"));
    a.wait_prepared().await.unwrap();
    let b = node.kubelet.run_pod(b);
    b.wait_prepared().await.unwrap();
    assert_eq!(count(&plugin, "prepare uid"), 1);

    node.kubelet.stop_pod(&a);
    a.wait_terminated().await;
    assert_eq!(count(&plugin, "unprepare uid"), 0);
    node.kubelet.stop_pod(&b);
    b.wait_terminated().await;
    assert_eq!(count(&plugin, "unprepare uid"), 1);
}

#[tokio::test]
async fn a_restart_prepares_for_new_pods_alone_and_old_kubelets_collect_duplicates() {
    for (release, devices) in [(Release::V1_36, 2), (Release::V1_37, 1)] {
        let node = Node::start(release);
        let plugin = node.plugin("gpu").await;
        node.api.add("c", "uid", &["a", "b"]);
        let a = node.kubelet.run_pod(pod("a"));
        a.wait_prepared().await.unwrap();

        node.kubelet.restart().await;
        node.wait_registered(&plugin).await;
        assert_eq!((a.phase(), count(&plugin, "prepare uid")), (Phase::Running, 1));
        let b = node.kubelet.run_pod(pod("b"));
        b.wait_prepared().await.unwrap();
        assert_eq!(count(&plugin, "prepare uid"), 2);
        assert_eq!(node.kubelet.prepared_claim("default", "c").unwrap().devices.len(), devices, "{release}");
    }
}

#[tokio::test]
async fn a_claim_that_replaces_the_one_of_a_vanished_pod_waits_for_the_reconcile_loop() {
    let node = Node::start(Release::V1_36);
    let plugin = node.plugin("gpu").await;
    node.api.add("c", "old", &["a"]);
    let a = node.kubelet.run_pod(pod("a"));
    a.wait_prepared().await.unwrap();
    node.kubelet.vanish_pod(&a);
    node.api.add("c", "new", &["b"]);
    let b = node.kubelet.run_pod(pod("b"));
    let expected =
        "old ResourceClaim with same name c and different UID old still exists (previous pod force-deleted?!)";
    assert_eq!(b.wait_error().await, format!("prepare dynamic resources: {expected}"));
    b.wait_prepared().await.unwrap();
    assert_eq!(count(&plugin, "unprepare old"), 1);
}

#[tokio::test]
async fn a_pod_stays_until_its_claims_are_unprepared() {
    let node = Node::start(Release::V1_36);
    let mut plugin = node.plugin("gpu").await;
    node.api.add("c", "uid", &["p"]);
    let pod = node.kubelet.run_pod(pod("p"));
    pod.wait_prepared().await.unwrap();
    plugin.behaviour().unprepare_errors.push_back("busy");
    plugin.kill();
    plugin.unlink_registrar();
    node.wait_gone(&plugin).await;

    node.kubelet.stop_pod(&pod);
    let unregistered = "unprepare dynamic resources: DRA driver gpu.example.com is not registered";
    assert_eq!(pod.wait_error().await, unregistered);
    plugin.start_again();
    let failed = "unprepare dynamic resources: NodeUnprepareResources failed for ResourceClaim c: busy";
    node.until(|_| (pod.error().as_deref() == Some(failed)).then_some(())).await;
    assert_eq!(pod.phase(), Phase::Terminating);
    pod.wait_terminated().await;
    assert_eq!(count(&plugin, "unprepare uid"), 2);
}
