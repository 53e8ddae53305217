//! kube-rs, as a driver uses it, against the fake API server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail the test")]

use std::time::Duration;

use fake_node::api::{ApiServer, Failure, FailureRule, Gate, Gates, Kind, Matching, Options, Verb, Version};
use fake_node::release::Release;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::{
    Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent, WatchParams,
};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Config, ResourceExt};
use serde_json::{Value, json};

const NODE: &str = "node-1";

async fn start(release: Release) -> (ApiServer, Client) {
    start_with(Options::new(release, NODE)).await
}

async fn start_with(options: Options) -> (ApiServer, Client) {
    // Which providers rustls is built with depends on what else is built; only the first of the tests installs one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = ApiServer::start(options).await.unwrap();
    let mut config = Config::new(server.url().parse().unwrap());
    config.default_namespace = "default".into();
    (server, Client::try_from(config).unwrap())
}

fn slice(name: &str, devices: &[&str]) -> Value {
    let devices: Vec<_> = devices.iter().map(|device| json!({"name": device})).collect();
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
        "spec": {"driver": "gpu.example.com", "nodeName": NODE, "devices": devices,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1}}})
}

fn typed(slice: Value) -> ResourceSlice {
    serde_json::from_value(slice).unwrap()
}

/// A claim with two devices allocated to it, one of each driver.
fn allocated_claim(server: &ApiServer) -> Value {
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "claim", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "all", "exactly": {"deviceClassName": "gpu", "count": 2}}]}}});
    let mut claim = server.create(claim).unwrap();
    let result = |driver: &str| json!({"request": "all", "driver": driver, "pool": NODE, "device": "gpu-0"});
    claim["status"] =
        json!({"allocation": {"devices": {"results": [result("a.example.com"), result("b.example.com")]}}});
    server.update_status(claim).unwrap()
}

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        other => panic!("not an answer of the API server: {other}"),
    }
}

#[tokio::test]
async fn slices_are_created_replaced_and_deleted() {
    let (server, client) = start(Release::V1_36).await;
    let slices: Api<ResourceSlice> = Api::all(client);
    let mut new = typed(slice("", &["gpu-0"]));
    new.metadata.name = None;
    new.metadata.generate_name = Some(format!("00000-gpu.example.com-{}-", "n".repeat(60)));

    let created = slices.create(&PostParams::default(), &new).await.unwrap();
    assert_eq!(created.name_any().len(), 63, "{}", created.name_any());
    assert!(created.name_any().starts_with("00000-gpu.example.com-nnn"));
    assert!(created.uid().is_some() && created.metadata.creation_timestamp.is_some());
    assert_eq!(created.metadata.generation, Some(1));

    let mut changed = created.clone();
    changed.spec.pool.generation = 2;
    let replaced = slices.replace(&created.name_any(), &PostParams::default(), &changed).await.unwrap();
    assert_eq!(replaced.metadata.generation, Some(2));
    assert_ne!(replaced.resource_version(), created.resource_version());

    let stale = slices.replace(&created.name_any(), &PostParams::default(), &changed).await.unwrap_err();
    assert_eq!(code(&stale), 409);
    let again = slices.replace(&replaced.name_any(), &PostParams::default(), &replaced).await.unwrap();
    assert_eq!(again.resource_version(), replaced.resource_version(), "a write that changes nothing is none");
    let absent = slices.replace("absent", &PostParams::default(), &typed(slice("absent", &[]))).await.unwrap_err();
    assert_eq!(code(&absent), 404);

    let wrong = Preconditions { resource_version: created.resource_version(), uid: None };
    let refused = slices.delete(&created.name_any(), &DeleteParams::default().preconditions(wrong)).await.unwrap_err();
    assert_eq!(code(&refused), 409);
    let right = Preconditions { resource_version: replaced.resource_version(), uid: replaced.uid() };
    slices.delete(&created.name_any(), &DeleteParams::default().preconditions(right)).await.unwrap();
    assert_eq!(server.list(Kind::ResourceSlice), Vec::<Value>::new());
}

#[tokio::test]
async fn a_collection_is_deleted_by_driver_and_node() {
    let (server, client) = start(Release::V1_36).await;
    let mut other = slice("other", &[]);
    other["spec"]["driver"] = json!("other.example.com");
    for slice in [slice("a", &[]), slice("b", &[]), other] {
        server.create(slice).unwrap();
    }
    let slices: Api<ResourceSlice> = Api::all(client);
    let ours = ListParams::default().fields(&format!("spec.nodeName={NODE},spec.driver=gpu.example.com"));
    assert_eq!(slices.list(&ours).await.unwrap().items.len(), 2);
    slices.delete_collection(&DeleteParams::default(), &ours).await.unwrap();
    let left: Vec<_> = slices.list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect();
    assert_eq!(left, ["other"]);
}

#[tokio::test]
async fn long_lists_come_in_parts_that_fit_together() {
    let (server, client) = start(Release::V1_36).await;
    for i in 0..5 {
        server.create(slice(&format!("slice-{i}"), &[])).unwrap();
    }
    let slices: Api<ResourceSlice> = Api::all(client);
    let first = slices.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!((first.items.len(), first.metadata.remaining_item_count), (2, Some(3)));
    server.delete(Kind::ResourceSlice, "", "slice-4").unwrap();

    let token = first.metadata.continue_.unwrap();
    let rest = slices.list(&ListParams::default().continue_token(&token)).await.unwrap();
    let names: Vec<_> = rest.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["slice-2", "slice-3", "slice-4"], "all parts are of one moment");
    assert_eq!(rest.metadata.resource_version, first.metadata.resource_version);

    let first = slices.list(&ListParams::default().limit(2)).await.unwrap();
    server.compact();
    let token = first.metadata.continue_.unwrap();
    let expired = slices.list(&ListParams::default().continue_token(&token)).await.unwrap_err();
    assert_eq!(code(&expired), 410);
}

#[tokio::test]
async fn a_watch_tells_what_enters_changes_and_leaves_its_selection() {
    let (server, client) = start(Release::V1_36).await;
    let before = server.create(slice("old", &["gpu-0"])).unwrap();
    let version = before["metadata"]["resourceVersion"].as_str().unwrap();
    let slices: Api<ResourceSlice> = Api::all(client);
    let selected = WatchParams::default().labels("colour=green");
    let mut watch = slices.watch(&selected, version).await.unwrap().boxed();

    let mut object = slice("new", &["gpu-0"]);
    object["metadata"]["labels"] = json!({"colour": "green"});
    let created = server.create(object.clone()).unwrap();
    object["spec"]["pool"]["generation"] = json!(7);
    server.update(object.clone()).unwrap();
    object["metadata"]["labels"] = json!({"colour": "red"});
    server.update(object).unwrap();

    let WatchEvent::Added(added) = watch.try_next().await.unwrap().unwrap() else { panic!("not added") };
    assert_eq!(added.resource_version().as_deref(), created["metadata"]["resourceVersion"].as_str());
    let WatchEvent::Modified(modified) = watch.try_next().await.unwrap().unwrap() else { panic!("not modified") };
    assert_eq!(modified.spec.pool.generation, 7);
    let WatchEvent::Deleted(deleted) = watch.try_next().await.unwrap().unwrap() else { panic!("not deleted") };
    assert_eq!(deleted.labels()["colour"], "green", "the last state that was selected");
}

#[tokio::test]
async fn a_watcher_recovers_from_expired_versions_dropped_watches_and_an_outage() {
    let (server, client) = start(Release::V1_36).await;
    server.create(slice("first", &[])).unwrap();
    let slices: Api<ResourceSlice> = Api::all(client);
    let events = watcher(slices, watcher::Config::default()).default_backoff().applied_objects();
    let mut events = std::pin::pin!(events.filter_map(async |event| event.ok()).map(|slice| slice.name_any()));
    assert_eq!(events.next().await.as_deref(), Some("first"));

    server.drop_watches();
    server.create(slice("second", &[])).unwrap();
    assert_eq!(events.next().await.as_deref(), Some("second"));

    server.expire_watches();
    server.create(slice("third", &[])).unwrap();
    let mut relisted: Vec<_> = events.by_ref().take(3).collect().await;
    relisted.sort();
    assert_eq!(relisted, ["first", "second", "third"], "everything is listed again after 410");

    server.stop().await;
    server.create(slice("fourth", &[])).unwrap();
    server.restart().await.unwrap();
    assert!(events.by_ref().any(async |name| name == "fourth").await);
}

#[tokio::test]
async fn a_watcher_can_stream_its_first_list() {
    let (server, client) = start(Release::V1_36).await;
    server.create(slice("first", &[])).unwrap();
    let slices: Api<ResourceSlice> = Api::all(client);
    let mut events = watcher(slices, watcher::Config::default().streaming_lists()).boxed();
    assert!(matches!(events.next().await, Some(Ok(watcher::Event::Init))));
    assert!(matches!(events.next().await, Some(Ok(watcher::Event::InitApply(slice))) if slice.name_any() == "first"));
    assert!(matches!(events.next().await, Some(Ok(watcher::Event::InitDone))));
    assert_eq!(server.count(&Matching::any().verb(Verb::List)), 0);
}

#[tokio::test]
async fn two_drivers_apply_their_part_of_a_claims_status() {
    let (server, client) = start(Release::V1_36).await;
    allocated_claim(&server);
    let claims: Api<ResourceClaim> = Api::default_namespaced(client);
    let status = |driver: &str, device: &str, uuid: &str| {
        Patch::Apply(json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "claim"},
            "status": {"devices": [{"driver": driver, "pool": NODE, "device": device, "data": {"uuid": uuid},
                "conditions": [{"type": "Ready", "status": "True", "reason": "Prepared", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]}]}}))
    };
    let by = |driver: &str| PatchParams::apply(driver);
    for driver in ["a.example.com", "b.example.com"] {
        claims.patch_status("claim", &by(driver), &status(driver, "gpu-0", "1")).await.unwrap();
    }
    let claim =
        claims.patch_status("claim", &by("a.example.com"), &status("a.example.com", "gpu-0", "2")).await.unwrap();
    let claim = serde_json::to_value(&claim).unwrap();
    let devices = claim["status"]["devices"].as_array().unwrap();
    let seen: Vec<_> =
        devices.iter().map(|d| (d["driver"].as_str().unwrap(), d["data"]["uuid"].as_str().unwrap())).collect();
    assert_eq!(seen, [("a.example.com", "2"), ("b.example.com", "1")]);
    assert!(claim["status"]["allocation"].is_object(), "what others wrote is untouched");

    let conflict =
        claims.patch_status("claim", &by("third"), &status("a.example.com", "gpu-0", "3")).await.unwrap_err();
    assert_eq!(code(&conflict), 409);
    claims.patch_status("claim", &by("third").force(), &status("a.example.com", "gpu-0", "3")).await.unwrap();

    let unknown = claims.patch_status("claim", &by("a.example.com"), &status("a.example.com", "gpu-7", "1")).await;
    let unknown = unknown.unwrap_err();
    assert_eq!(code(&unknown), 422);
    assert!(unknown.to_string().contains("must be an allocated device in the claim"), "{unknown}");

    let none = |uid: &Value| {
        Patch::Apply(json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"uid": uid}}))
    };
    let other = claims.patch_status("claim", &by("b.example.com"), &none(&json!("another"))).await.unwrap_err();
    assert!(code(&other) == 422 && other.to_string().contains("metadata.uid: Invalid value"), "{other}");
    let left = claims.patch_status("claim", &by("b.example.com"), &none(&claim["metadata"]["uid"])).await.unwrap();
    let left = serde_json::to_value(&left).unwrap();
    let owners = left["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(left["status"]["devices"].as_array().unwrap().len(), 1);
    assert!(owners.iter().all(|owner| owner["manager"] != "b.example.com"), "who applies nothing owns nothing");
}

#[tokio::test]
async fn the_two_halves_of_a_claim_are_written_apart() {
    let (server, client) = start(Release::V1_36).await;
    let claims: Api<ResourceClaim> = Api::default_namespaced(client);
    allocated_claim(&server);
    let merge = |patch: Value| Patch::Merge(patch);
    let change = merge(json!({"status": null, "metadata": {"labels": {"a": "b"}}}));
    let claim = claims.patch("claim", &PatchParams::default(), &change).await.unwrap();
    assert!(claim.status.unwrap().allocation.is_some(), "the status is not for the main resource to change");

    let change = json!({"metadata": {"labels": {"a": "c"}}, "spec": {"devices": null}, "status": {"reservedFor": [
        {"resource": "pods", "name": "p", "uid": "u"}]}});
    let claim = claims.patch_status("claim", &PatchParams::default(), &merge(change)).await.unwrap();
    assert_eq!(claim.labels()["a"], "b");
    assert_eq!(claim.status.unwrap().reserved_for.unwrap().len(), 1);

    let moved = json!({"status": {"allocation": {"devices": {"results": []}}}});
    let refused = claims.patch_status("claim", &PatchParams::default(), &merge(moved)).await.unwrap_err();
    assert!(code(&refused) == 422 && refused.to_string().contains("field is immutable"), "{refused}");
    let change = json!({"spec": {"devices": {"requests": []}}});
    let refused = claims.patch("claim", &PatchParams::default(), &merge(change)).await.unwrap_err();
    assert!(code(&refused) == 422 && refused.to_string().contains("spec: Invalid value"), "{refused}");

    let gone = claims.patch_status("claim", &PatchParams::default(), &merge(json!({"status": null}))).await.unwrap();
    assert!(gone.status.unwrap_or_default().allocation.is_none(), "a claim can be deallocated");
}

#[tokio::test]
async fn finalizers_hold_an_object_until_the_last_is_gone() {
    let (server, client) = start(Release::V1_36).await;
    allocated_claim(&server);
    let claims: Api<ResourceClaim> = Api::default_namespaced(client);
    let finalizers = |names: &[&str]| Patch::Merge(json!({"metadata": {"finalizers": names}}));
    claims.patch("claim", &PatchParams::default(), &finalizers(&["example.com/held"])).await.unwrap();
    let deleted = claims.delete("claim", &DeleteParams::default()).await.unwrap();
    assert!(deleted.left().unwrap().metadata.deletion_timestamp.is_some());
    assert!(server.get(Kind::ResourceClaim, "default", "claim").is_some());

    claims.patch("claim", &PatchParams::default(), &finalizers(&[])).await.unwrap();
    assert!(server.get(Kind::ResourceClaim, "default", "claim").is_none());
}

#[tokio::test]
async fn a_node_that_comes_back_takes_the_old_slices_with_it() {
    let (server, client) = start(Release::V1_36).await;
    let nodes: Api<Node> = Api::all(client);
    let uid = nodes.get(NODE).await.unwrap().uid().unwrap();
    let owned = |name: &str, uid: &str| {
        let mut slice = slice(name, &[]);
        slice["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid, "controller": true}]);
        slice
    };
    server.create(owned("owned", &uid)).unwrap();
    server.create(slice("free", &[])).unwrap();
    let new_uid = server.recreate_node(NODE).unwrap();
    assert_ne!(new_uid, uid);
    assert_eq!(nodes.get(NODE).await.unwrap().uid().unwrap(), new_uid);
    let names = || {
        server
            .list(Kind::ResourceSlice)
            .iter()
            .map(|s| s["metadata"]["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(), ["free"]);

    server.create(owned("stale", &uid)).unwrap();
    assert_eq!(names(), ["free"], "an owner that is gone is none");
    server.create(owned("owned", &new_uid)).unwrap();
    assert_eq!(names(), ["free", "owned"]);
}

#[tokio::test]
async fn requests_fail_and_stall_as_told_and_are_logged() {
    let (server, client) = start(Release::V1_36).await;
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    let requests = Matching::any().verb(Verb::Create).kind(Kind::ResourceSlice);
    server.fail(FailureRule {
        requests: requests.clone(),
        failure: Failure::injected(500, "etcd is on fire"),
        times: Some(1),
    });

    let failed = slices.create(&PostParams::default(), &typed(slice("a", &[]))).await.unwrap_err();
    assert_eq!(code(&failed), 500);
    slices.create(&PostParams::default(), &typed(slice("a", &[]))).await.unwrap();
    assert_eq!(server.count(&requests), 2);
    assert_eq!(server.writes().len(), 2);
    server.forget_requests();

    let stall = server.stall(Matching::any().kind(Kind::ResourceSlice).name("a"));
    let held = tokio::spawn({
        let slices = slices.clone();
        async move { slices.get("a").await }
    });
    slices.list(&ListParams::default()).await.unwrap();
    assert!(!held.is_finished(), "only what matches is held");
    drop(stall);
    held.await.unwrap().unwrap();
    assert!(server.writes().is_empty() && server.requests().len() == 2);

    server.stop().await;
    assert!(tokio::net::TcpStream::connect(server.url().trim_start_matches("http://")).await.is_err());
    server.restart().await.unwrap();
    tokio::time::timeout(Duration::from_secs(30), slices.get("a")).await.unwrap().unwrap();
}

#[tokio::test]
async fn each_release_serves_its_versions() {
    for (release, versions) in [
        (Release::V1_32, vec!["v1beta1"]),
        (Release::V1_33, vec!["v1beta2", "v1beta1"]),
        (Release::V1_34, vec!["v1"]),
        (Release::V1_37, vec!["v1"]),
    ] {
        let (_server, client) = start(release).await;
        let groups = client.list_api_groups().await.unwrap().groups;
        let group = groups.iter().find(|group| group.name == "resource.k8s.io").unwrap();
        let served: Vec<_> = group.versions.iter().map(|version| version.version.as_str()).collect();
        assert_eq!(served, versions, "{release}");
        let version = client.apiserver_version().await.unwrap();
        assert_eq!(version.git_version, format!("v{release}.0"));
    }

    let mut without = Options::new(Release::V1_33, NODE);
    without.versions.clear();
    let (_server, client) = start_with(without).await;
    assert!(client.list_api_groups().await.unwrap().groups.iter().all(|group| group.name != "resource.k8s.io"));
    let slices: Api<ResourceSlice> = Api::all(client);
    assert_eq!(code(&slices.list(&ListParams::default()).await.unwrap_err()), 404);
}

#[tokio::test]
async fn the_served_versions_can_change_and_go_away() {
    let (server, client) = start(Release::V1_36).await;
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    slices.create(&PostParams::default(), &typed(slice("a", &["gpu-0"]))).await.unwrap();
    server.serve_versions(&[Version::V1Beta1]);
    assert_eq!(code(&slices.get("a").await.unwrap_err()), 404);
    let versions = |group: &kube::discovery::ApiGroup| group.versions().map(str::to_owned).collect::<Vec<_>>();
    let group = kube::discovery::group(&client, "resource.k8s.io").await.unwrap();
    assert_eq!(versions(&group), ["v1beta1"]);
    server.serve_versions(&[]);
    assert!(kube::discovery::group(&client, "resource.k8s.io").await.is_err());
    server.serve_versions(&[Version::V1]);
    assert_eq!(slices.get("a").await.unwrap().name_any(), "a");
}

#[tokio::test]
async fn an_admission_webhook_changes_what_is_written_before_the_rules_look_at_it() {
    let (server, client) = start(Release::V1_36).await;
    server.mutate(Kind::ResourceSlice, |slice| slice["spec"]["devices"][0]["name"] = json!("by-webhook"));
    let slices: Api<ResourceSlice> = Api::all(client);
    let device = |slice: &ResourceSlice| slice.spec.devices.as_ref().unwrap()[0].name.clone();
    let created = slices.create(&PostParams::default(), &typed(slice("a", &["gpu-0"]))).await.unwrap();
    assert_eq!(device(&created), "by-webhook");
    let mut changed = created.clone();
    changed.spec.devices.as_mut().unwrap()[0].name = "gpu-1".to_owned();
    assert_eq!(device(&slices.replace("a", &PostParams::default(), &changed).await.unwrap()), "by-webhook");

    server.mutate(Kind::ResourceSlice, |slice| slice["spec"]["devices"][0]["name"] = json!("Not A Name"));
    let refused = slices.create(&PostParams::default(), &typed(slice("b", &["gpu-0"]))).await.unwrap_err();
    assert_eq!(code(&refused), 422);
}

#[tokio::test]
async fn one_object_is_seen_in_every_served_version() {
    let mut options = Options::new(Release::V1_34, NODE);
    options.versions = vec![Version::V1, Version::V1Beta2, Version::V1Beta1];
    let (server, client) = start_with(options).await;
    server.create(slice("s", &["gpu-0"])).unwrap();
    let get = async |version: &str| {
        let request = format!("/apis/resource.k8s.io/{version}/resourceslices/s");
        client.request::<Value>(http::Request::get(request).body(Vec::new()).unwrap()).await.unwrap()
    };
    assert_eq!(get("v1").await["spec"]["devices"], json!([{"name": "gpu-0"}]));
    assert_eq!(get("v1beta2").await["spec"]["devices"], json!([{"name": "gpu-0"}]));
    let old = get("v1beta1").await;
    assert_eq!(old["spec"]["devices"], json!([{"name": "gpu-0", "basic": {}}]));
    assert_eq!(old["apiVersion"], "resource.k8s.io/v1beta1");
}

#[tokio::test]
async fn a_gate_decides_what_is_kept() {
    let mut tainted = slice("s", &["gpu-0"]);
    tainted["spec"]["devices"][0]["taints"] = json!([{"key": "gpu.example.com/lost", "effect": "NoExecute"}]);
    for (taints, kept) in [(false, false), (true, true)] {
        let mut options = Options::new(Release::V1_35, NODE);
        options.gates = Gates::new(Release::V1_35).with(Gate::DeviceTaints, taints).unwrap();
        let (_server, client) = start_with(options).await;
        let slices: Api<ResourceSlice> = Api::all(client);
        let stored = slices.create(&PostParams::default(), &typed(tainted.clone())).await.unwrap();
        let taints = stored.spec.devices.unwrap().remove(0).taints;
        assert_eq!(taints.is_some(), kept);
        assert!(taints.is_none_or(|taints| taints[0].time_added.is_some()), "the server adds the time");
    }
}

#[tokio::test]
async fn broken_rules_are_named_like_the_server_names_them() {
    let (_server, client) = start(Release::V1_36).await;
    let slices: Api<ResourceSlice> = Api::all(client);
    let refused = slices.create(&PostParams::default(), &typed(slice("s", &["GPU-0"]))).await.unwrap_err();
    let kube::Error::Api(status) = refused else { panic!("{refused}") };
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    let start = "ResourceSlice.resource.k8s.io \"s\" is invalid: spec.devices[0].name: Invalid value: \"GPU-0\": \
        a lowercase RFC 1123 label";
    assert!(status.message.starts_with(start), "{}", status.message);
    let details = status.details.unwrap();
    assert_eq!((details.name.as_str(), details.kind.as_str()), ("s", "ResourceSlice"));
    assert_eq!(
        (details.causes[0].reason.as_str(), details.causes[0].field.as_str()),
        ("FieldValueInvalid", "spec.devices[0].name")
    );
}
