//! API servers that speak other versions, new versions, or not at all of ResourceSlices.

use fake_node::api::{ApiServer, Kind, Verb, Version};
use fake_node::node::NODE;

use crate::scaled::PAUSES;
use crate::scene::{Scene, readiness, uid, watches};

/// Paths of all requests about slices begin with this.
fn base(version: Version) -> String {
    format!("/apis/resource.k8s.io/{}/resourceslices", version.name())
}

fn paths(api: &ApiServer) -> Vec<String> {
    let requests = api.requests().into_iter().filter(|request| request.kind == Some(Kind::ResourceSlice));
    // The kubelet wipes in a version of its own.
    requests.filter(|request| request.verb != Some(Verb::DeleteCollection)).map(|request| request.path).collect()
}

#[tokio::test]
async fn each_version_served_alone_is_spoken() {
    for version in [Version::V1, Version::V1Beta2, Version::V1Beta1] {
        let scene = Scene::new("one-gpu").await;
        scene.api().serve_versions(&[version]);
        let _plugin = scene.ready_plugin().await;
        let slice = scene.slice();
        assert_eq!(slice["spec"]["nodeName"], NODE);
        assert_eq!(slice["spec"]["devices"][0]["attributes"]["type"]["string"], "gpu", "{slice}");
        assert!(paths(scene.api()).iter().all(|path| path.starts_with(&base(version))));
        // A slice that reads back as it was written is left alone.
        scene.delete(&slice);
        scene.until_replaced(&slice).await;
        let slices = scene.count(Verb::Create);
        assert_eq!((slices, scene.count(Verb::Update)), (2, 0));
    }
}

#[tokio::test]
async fn a_server_that_is_upgraded_or_rolled_back_is_followed_without_a_write() {
    let scene = Scene::new("one-gpu").await;
    scene.api().serve_versions(&[Version::V1Beta1]);
    let mut plugin = scene.ready_plugin_with(&[PAUSES]).await;
    let slice = scene.slice();
    // With v1 on offer, the old one is still served for some releases; it is better to go with the time.
    for (served, expected) in
        [(&[Version::V1, Version::V1Beta1][..], Version::V1), (&[Version::V1Beta2], Version::V1Beta2)]
    {
        scene.api().stop().await;
        scene.api().serve_versions(served);
        scene.api().forget_requests();
        scene.api().restart().await.unwrap();
        let watch = base(expected) + "?watch";
        let look = |api: &ApiServer| paths(api).iter().any(|path| path.starts_with(&watch)).then_some(());
        scene.until(&format!("a watch of {expected:?}"), look).await;
        assert_eq!(scene.api().writes().len(), 0);
        assert_eq!(uid(&scene.slice()), uid(&slice));
    }
    // A version that goes away under a running server.
    scene.api().serve_versions(&[Version::V1]);
    scene.delete(&slice);
    scene.until_replaced(&slice).await;
    plugin.wait_until_ready().await.unwrap();
}

#[tokio::test]
async fn a_cluster_without_dynamic_resource_allocation_is_the_reason_until_it_has_it() {
    let scene = Scene::new("one-gpu").await;
    scene.api().serve_versions(&[]);
    let mut plugin = scene.node.start_plugin().unwrap();
    plugin.wait_for_log("cannot keep this node's ResourceSlices up to date").await.unwrap();
    let (ready, line) = readiness(&mut plugin).await;
    let reason = "wait slices: not published: the API server does not serve resource.k8s.io: it needs Kubernetes 1.34";
    assert!(!ready && line.starts_with(reason), "{line}");
    assert_eq!(scene.events("ResourceSlicesNotPublished").len(), 1);
    assert_eq!(scene.api().count(&watches()), 0);
    scene.api().serve_versions(&[Version::V1]);
    plugin.wait_until_ready().await.unwrap();
    assert_eq!(scene.node.devices().len(), 1);
}
