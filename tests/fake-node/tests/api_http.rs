//! The fake API server as HTTP: codes, headers and forms that clients depend on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail the test")]

use fake_node::api::{ApiServer, Kind, Options};
use fake_node::release::Release;
use http::{Method, Request};
use kube::client::Body;
use kube::{Client, Config};
use serde_json::{Value, json};

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";

struct Http {
    server: ApiServer,
    client: Client,
}

/// An answer: code, body, `Warning` headers.
type Answer = (u16, Value, Vec<String>);

impl Http {
    async fn start(release: Release) -> Self {
        // Which providers rustls is built with depends on what else is built; only the first of the tests installs one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = ApiServer::start(Options::new(release, "node-1")).await.unwrap();
        let mut config = Config::new(server.url().parse().unwrap());
        // Answers are looked at, not recovered from.
        config.default_retry = false;
        let client = Client::try_from(config).unwrap();
        Self { server, client }
    }

    async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.as_bytes().to_vec())).unwrap();
        let (parts, body) = self.client.send(request).await.unwrap().into_parts();
        let body = body.collect_bytes().await.unwrap();
        let lines = String::from_utf8(body.to_vec()).unwrap();
        let body = serde_json::from_str(&lines).unwrap_or_else(|_| {
            // A watch: one event a line.
            lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|_| json!(line))).collect()
        });
        let warnings =
            parts.headers.get_all("warning").iter().map(|value| value.to_str().unwrap().to_owned()).collect();
        (parts.status.as_u16(), body, warnings)
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], "").await
    }

    async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, &[("content-type", "application/json")], &body.to_string()).await
    }

    async fn patch(&self, path: &str, media_type: &str, body: &Value) -> Answer {
        self.send(Method::PATCH, path, &[("content-type", media_type)], &body.to_string()).await
    }
}

fn slice(name: &str) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
        "spec": {"driver": "gpu.example.com", "nodeName": "node-1",
            "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1}}})
}

#[tokio::test]
async fn methods_paths_and_media_types_that_do_not_exist_are_refused() {
    let http = Http::start(Release::V1_36).await;
    let one = format!("{SLICES}/one");
    let json = [("content-type", "application/json")];
    http.server.create(slice("one")).unwrap();
    for (method, path, headers, code, reason) in [
        (Method::GET, "/apis/apps/v1/deployments", &[][..], 404, "NotFound"),
        (Method::GET, "/apis/resource.k8s.io/v1beta1/resourceslices", &[], 404, "NotFound"),
        (Method::GET, &format!("{one}/status"), &[], 404, "NotFound"),
        (Method::GET, &format!("{SLICES}/two"), &[], 404, "NotFound"),
        (Method::POST, &one, &json, 405, "MethodNotAllowed"),
        (Method::PUT, SLICES, &json, 405, "MethodNotAllowed"),
        (Method::DELETE, "/api/v1/namespaces", &[], 405, "MethodNotAllowed"),
        (Method::POST, "/apis/resource.k8s.io/v1/resourceclaims", &json, 405, "MethodNotAllowed"),
        (Method::GET, &one, &[("accept", "application/vnd.kubernetes.protobuf")], 406, "NotAcceptable"),
        (Method::POST, SLICES, &[("content-type", "application/yaml")], 415, "UnsupportedMediaType"),
        (Method::PATCH, &one, &json, 415, "UnsupportedMediaType"),
        (Method::POST, SLICES, &json, 400, "BadRequest"),
        (Method::GET, &format!("{SLICES}?fieldSelector=spec.pool.name%3Dp"), &[], 400, "BadRequest"),
    ] {
        let (found, status, _) = http.send(method.clone(), path, headers, "").await;
        assert_eq!((found, status["reason"].as_str()), (code, Some(reason)), "{method} {path}: {status}");
        assert_eq!((&status["kind"], &status["code"]), (&json!("Status"), &json!(code)));
    }
    assert_eq!(http.get("/readyz").await.0, 200);
}

#[tokio::test]
async fn a_body_must_say_what_the_path_says() {
    let http = Http::start(Release::V1_36).await;
    http.server.create(slice("one")).unwrap();
    let put = async |body: Value| {
        let path = format!("{SLICES}/one");
        http.send(Method::PUT, &path, &[("content-type", "application/json")], &body.to_string()).await
    };
    let (code, status, _) = put(slice("two")).await;
    assert_eq!((code, status["reason"].as_str()), (400, Some("BadRequest")));
    let mut other = slice("one");
    other["apiVersion"] = json!("resource.k8s.io/v1beta1");
    let (code, status, _) = put(other).await;
    assert!(code == 400 && status["message"].as_str().unwrap().contains("does not match the expected API version"));
    let mut other = slice("one");
    other["metadata"]["uid"] = json!("11111111-0000-4000-8000-000000000000");
    let (code, status, _) = put(other).await;
    assert!(code == 409 && status["message"].as_str().unwrap().contains("UID in precondition"), "{status}");

    let claim = json!({"metadata": {"name": "c", "namespace": "other"}, "spec": {}});
    assert_eq!(http.post(CLAIMS, &claim).await.0, 400);
    let (code, status, _) = http.post(&CLAIMS.replace("default", "absent"), &json!({"metadata": {"name": "c"}})).await;
    assert_eq!((code, status["message"].as_str()), (404, Some("namespaces \"absent\" not found")));
    let (code, status, _) = http.post(SLICES, &slice("one")).await;
    assert_eq!((code, status["reason"].as_str()), (409, Some("AlreadyExists")));
}

#[tokio::test]
async fn unknown_fields_are_pruned_with_a_warning_or_refused() {
    let http = Http::start(Release::V1_34).await;
    let mut object = slice("one");
    object["spec"]["skipNodeOperations"] = json!(["*"]);
    let (code, stored, warnings) = http.post(SLICES, &object).await;
    assert_eq!(code, 201);
    assert!(stored["spec"].get("skipNodeOperations").is_none());
    assert_eq!(warnings, ["299 - \"unknown field \\\"spec.skipNodeOperations\\\"\""]);
    let (_, _, warnings) =
        http.post(&format!("{SLICES}?fieldValidation=Ignore&dryRun=All"), &changed_name(&object)).await;
    assert!(warnings.is_empty());

    let (code, status, _) = http.post(&format!("{SLICES}?fieldValidation=Strict"), &changed_name(&object)).await;
    let message = status["message"].as_str().unwrap();
    assert!(
        code == 400 && message.contains("strict decoding error: unknown field \"spec.skipNodeOperations\""),
        "{message}"
    );
    object["spec"]["devices"] = json!([{"name": "gpu-0", "capacity": {"memory": {"value": "40 GB"}}}]);
    let (code, status, _) = http.post(SLICES, &object).await;
    assert!(code == 400 && status["message"].as_str().unwrap().contains("quantities must match"), "{status}");
}

fn changed_name(object: &Value) -> Value {
    let mut object = object.clone();
    object["metadata"]["name"] = json!("two");
    object
}

#[tokio::test]
async fn a_dry_run_goes_through_all_rules_and_stores_nothing() {
    let http = Http::start(Release::V1_36).await;
    let (code, object, _) = http.post(&format!("{SLICES}?dryRun=All"), &slice("one")).await;
    assert!(code == 201 && object["metadata"]["uid"].is_string());
    let mut bad = slice("one");
    bad["spec"]["driver"] = json!("");
    assert_eq!(http.post(&format!("{SLICES}?dryRun=All"), &bad).await.0, 422);
    assert_eq!(http.server.get(Kind::ResourceSlice, "", "one"), None);

    http.server.create(slice("one")).unwrap();
    assert_eq!(http.send(Method::DELETE, &format!("{SLICES}/one?dryRun=All"), &[], "").await.0, 200);
    assert!(http.server.get(Kind::ResourceSlice, "", "one").is_some());
}

#[tokio::test]
async fn apply_creates_owns_and_lets_go() {
    const APPLY: &str = "application/apply-patch+yaml";
    let http = Http::start(Release::V1_36).await;
    let path = format!("{SLICES}/one?fieldManager=driver");
    let mut config = slice("one");
    config["metadata"]["labels"] = json!({"a": "1", "b": "2"});
    let (code, object, _) = http.patch(&path, APPLY, &config).await;
    assert_eq!(code, 201, "{object}");
    let entry = &object["metadata"]["managedFields"][0];
    assert_eq!((&entry["manager"], &entry["operation"]), (&json!("driver"), &json!("Apply")));
    assert_eq!(entry["fieldsV1"]["f:metadata"]["f:labels"], json!({"f:a": {}, "f:b": {}}));

    let (_, again, _) = http.patch(&path, APPLY, &config).await;
    assert_eq!(again["metadata"]["resourceVersion"], object["metadata"]["resourceVersion"], "nothing changed");
    config["metadata"]["labels"] = json!({"a": "1"});
    let (_, object, _) = http.patch(&path, APPLY, &config).await;
    assert_eq!(object["metadata"]["labels"], json!({"a": "1"}));

    let (code, ..) = http.patch(&format!("{SLICES}/one"), APPLY, &config).await;
    assert_eq!(code, 422, "an apply names its manager");
    let (code, ..) = http.patch(&format!("{SLICES}/one?force=true"), "application/merge-patch+json", &config).await;
    assert_eq!(code, 422, "force is for applies");
    let (code, ..) = http.patch(&format!("{SLICES}/absent"), "application/merge-patch+json", &json!({})).await;
    assert_eq!(code, 404, "other patches do not create");
}

#[tokio::test]
async fn a_watch_from_too_far_back_says_gone() {
    let http = Http::start(Release::V1_36).await;
    http.server.create(slice("one")).unwrap();
    let old = http.get(SLICES).await.1["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    http.server.compact();
    let (code, events, _) = http.get(&format!("{SLICES}?watch=true&resourceVersion={old}&timeoutSeconds=5")).await;
    assert_eq!((code, &events["type"]), (200, &json!("ERROR")), "{events}");
    assert_eq!((&events["object"]["code"], &events["object"]["reason"]), (&json!(410), &json!("Expired")));
    let (code, status, _) = http.get(&format!("{SLICES}?resourceVersion=999999")).await;
    assert_eq!((code, status["reason"].as_str()), (504, Some("Timeout")));
}

#[tokio::test]
async fn a_watch_that_ends_in_time_leaves_a_bookmark() {
    let http = Http::start(Release::V1_36).await;
    http.server.create(slice("one")).unwrap();
    let path = format!("{SLICES}?watch=true&allowWatchBookmarks=true&timeoutSeconds=1");
    let (_, events, _) = http.get(&path).await;
    let types: Vec<_> = events.as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["ADDED", "BOOKMARK"]);
    let current = http.get(SLICES).await.1["metadata"]["resourceVersion"].clone();
    assert_eq!(events[1]["object"]["metadata"]["resourceVersion"], current);

    let initial = format!("{path}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
    let (_, events, _) = http.get(&initial).await;
    assert_eq!(events[1]["object"]["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
    assert_eq!(http.get(&format!("{path}&sendInitialEvents=true")).await.0, 422);
}

#[tokio::test]
async fn kubectl_gets_tables_and_others_metadata() {
    let http = Http::start(Release::V1_36).await;
    http.server.create(slice("one")).unwrap();
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let (_, table, _) = http.send(Method::GET, SLICES, &[("accept", table)], "").await;
    let names: Vec<_> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["Name", "Node", "Driver", "Pool", "Age"]);
    assert_eq!(
        table["rows"][0]["cells"].as_array().unwrap()[..4],
        [json!("one"), json!("node-1"), json!("gpu.example.com"), json!("node-1")]
    );

    let metadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let (_, list, _) = http.send(Method::GET, SLICES, &[("accept", metadata)], "").await;
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert!(list["items"][0]["metadata"]["uid"].is_string() && list["items"][0].get("spec").is_none());
}

#[tokio::test]
async fn events_of_both_groups_are_one() {
    let http = Http::start(Release::V1_36).await;
    let event = json!({"metadata": {"generateName": "claim-"}, "regarding": {"kind": "ResourceClaim", "name": "c",
        "namespace": "default"}, "type": "Warning", "reason": "PrepareFailed", "action": "Prepare",
        "note": "no such device", "reportingController": "gpu.example.com", "reportingInstance": "node-1",
        "eventTime": "2026-01-01T00:00:00.000001Z"});
    let path = "/apis/events.k8s.io/v1/namespaces/default/events";
    let (code, created, _) = http.post(path, &event).await;
    assert_eq!((code, &created["note"]), (201, &json!("no such device")), "{created}");
    let selected = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dc,reason%3DPrepareFailed";
    let (_, list, _) = http.get(selected).await;
    assert_eq!(list["items"][0]["message"], "no such device");
    assert_eq!(list["items"][0]["reportingComponent"], "gpu.example.com");

    let mut incomplete = event.clone();
    incomplete["reportingInstance"] = json!("");
    assert_eq!(http.post(path, &incomplete).await.0, 422);
    let mut elsewhere = event;
    elsewhere["regarding"]["namespace"] = json!("kube-system");
    assert_eq!(http.post(path, &elsewhere).await.0, 422);
}

#[tokio::test]
async fn nodes_are_patched_and_keep_their_status_apart() {
    let http = Http::start(Release::V1_36).await;
    let taint = json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}, "status": {"phase": "x"}});
    let (code, node, _) = http.patch("/api/v1/nodes/node-1", "application/strategic-merge-patch+json", &taint).await;
    assert_eq!((code, &node["spec"]["taints"][0]["key"]), (200, &json!("k")));
    assert!(node["status"].get("phase").is_none());
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let path = "/api/v1/nodes/node-1/status";
    let (_, node, _) = http.patch(path, "application/strategic-merge-patch+json", &ready).await;
    assert_eq!(node["status"]["conditions"][0]["status"], "False");
    assert_eq!(node["status"]["conditions"][0]["reason"], "KubeletReady", "merged by type");

    let moved = json!([{"op": "test", "path": "/metadata/name", "value": "node-2"}]);
    assert_eq!(http.patch("/api/v1/nodes/node-1", "application/json-patch+json", &moved).await.0, 422);
    let (code, status, _) = http.send(Method::DELETE, "/api/v1/nodes/node-1", &[], "").await;
    assert_eq!((code, &status["status"]), (200, &json!("Success")));
}

#[tokio::test]
async fn admin_access_needs_a_marked_namespace() {
    let http = Http::start(Release::V1_36).await;
    let claim = json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [
        {"name": "all", "exactly": {"deviceClassName": "gpu", "adminAccess": true, "allocationMode": "All"}}]}}});
    let (code, status, _) = http.post(CLAIMS, &claim).await;
    assert_eq!(
        (code, status["details"]["causes"][0]["reason"].as_str()),
        (422, Some("FieldValueForbidden")),
        "{status}"
    );
    let mut namespace = http.server.get(Kind::Namespace, "", "default").unwrap();
    namespace["metadata"]["labels"]["resource.kubernetes.io/admin-access"] = json!("true");
    http.server.update(namespace).unwrap();
    assert_eq!(http.post(CLAIMS, &claim).await.0, 201);
}

#[tokio::test]
async fn defaults_are_filled_in_and_empty_fields_left_out() {
    let http = Http::start(Release::V1_36).await;
    let claim = json!({"metadata": {"name": "c"}, "spec": {"devices": {"config": [], "requests": [
        {"name": "one", "exactly": {"deviceClassName": "gpu"}}]}}, "status": {"reservedFor": [{"uid": "u"}]}});
    let (_, stored, _) = http.post(CLAIMS, &claim).await;
    let exactly = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1});
    assert_eq!(stored["spec"], json!({"devices": {"requests": [{"name": "one", "exactly": exactly}]}}));
    assert_eq!(stored["status"], json!({}), "a claim is born without a status");

    let mut object = slice("one");
    object["spec"]["devices"] = json!([{"name": "gpu-0", "attributes": {}, "capacity": {"memory": {"value": "40960Mi"}},
        "taints": [{"key": "k", "value": "", "effect": "NoSchedule"}]}]);
    let (_, stored, _) = http.post(SLICES, &object).await;
    let device = &stored["spec"]["devices"][0];
    assert_eq!(device["capacity"]["memory"]["value"], "40Gi");
    assert!(device.get("attributes").is_none() && device["taints"][0].get("value").is_none());
    assert!(device["taints"][0]["timeAdded"].is_string());
}

#[tokio::test]
async fn only_a_known_token_opens_where_tokens_are_asked_for() {
    let http = Http::start(Release::V1_36).await;
    http.server.accept_tokens(&["old", "new"]);
    let with = async |headers: &[(&str, &str)]| http.send(Method::GET, SLICES, headers, "").await;
    for token in ["Bearer old", "Bearer new"] {
        assert_eq!(with(&[("authorization", token)]).await.0, 200, "{token}");
    }
    http.server.accept_tokens(&["new"]);
    let unauthorized = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "Unauthorized", "reason": "Unauthorized", "code": 401});
    for headers in [&[("authorization", "Bearer old")][..], &[("authorization", "new")], &[]] {
        let (code, body, _) = with(headers).await;
        assert_eq!((code, &body), (401, &unauthorized), "{headers:?}");
    }
    assert_eq!(with(&[("authorization", "Bearer new")]).await.0, 200);
}

#[tokio::test]
async fn a_dry_run_answers_as_the_write_would_and_stores_nothing() {
    let http = Http::start(Release::V1_35).await;
    let mut tainted = slice("a");
    tainted["spec"]["devices"] = json!([{"name": "gpu-0", "taints": [{"key": "k", "effect": "NoSchedule"}]}]);
    let (code, body, _) = http.post(&format!("{SLICES}?dryRun=All"), &tainted).await;
    assert_eq!((code, &body["spec"]["devices"]), (201, &json!([{"name": "gpu-0"}])), "the gate is off");
    assert!(http.server.list(Kind::ResourceSlice).is_empty() && http.server.writes().is_empty());
}
