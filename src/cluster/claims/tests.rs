use serde_json::json;

use super::*;
use crate::cluster::fake::{DRIVER, Fake, Fault};

/// For reading a claim.
const BUDGET: Duration = Duration::from_secs(20);

const PATH: &str = "namespaces/team-a/resourceclaims/two-gpus";

fn name() -> ClaimName {
    ClaimName { namespace: "team-a".into(), name: "two-gpus".into() }
}

fn uid() -> ClaimUid {
    ClaimUid::parse("4f1c0f5e-9a3b-4a43-8f0c-2f9f1f0a7b11").unwrap()
}

fn with_devices(devices: &Value) -> Value {
    let consumers = json!([{"resource": "pods", "name": "a", "uid": "pod-uid"}]);
    let status = json!({"allocation": {"devices": devices}, "reservedFor": consumers});
    json!({"metadata": {"name": "two-gpus", "uid": uid().as_str()}, "status": status})
}

fn result_of(driver: &str, device: &str) -> Value {
    json!({"request": "gpus", "driver": driver, "pool": "node-a", "device": device})
}

fn a_claim() -> Value {
    with_devices(&json!({"results": [result_of(DRIVER, "gpu-0")]}))
}

fn read(document: &Value) -> Result<Claim, ClaimError> {
    read_text(&document.to_string())
}

fn read_text(document: &str) -> Result<Claim, ClaimError> {
    parse(serde_json::from_str(document).unwrap(), &name(), &uid(), DRIVER)
}

fn soon() -> Instant {
    Instant::now() + BUDGET
}

async fn fetch(fake: &Fake) -> Result<Claim, ClaimError> {
    fake.cluster().claim(&name(), &uid(), soon()).await
}

#[test]
fn only_what_names_our_driver_is_kept_in_the_order_of_the_allocation() {
    let claim = read(&with_devices(&json!({
        "fieldOfTomorrow": {},
        "results": [
            {"request": "main/small", "driver": DRIVER, "pool": "node-a/gpu", "device": "gpu-3", "tolerations": []},
            {"request": 5, "driver": "nic.example.com"},
            {"request": "look", "driver": DRIVER, "pool": "node-a", "device": "gpu-1", "adminAccess": true,
             "shareID": "0b6f8a2e-1111-4222-8333-444455556666"},
        ],
    })))
    .unwrap();
    let devices: Vec<_> = claim.results.iter().map(|result| result.device.as_str()).collect();
    assert_eq!(devices, ["gpu-3", "gpu-1"]);
    assert_eq!((claim.results[0].request.as_str(), claim.results[0].pool.as_str()), ("main/small", "node-a/gpu"));
    assert_eq!((claim.results[0].admin_access, &claim.results[0].share_id), (false, &None));
    assert!(claim.results[1].admin_access);
    assert_eq!(claim.results[1].share_id.as_deref(), Some("0b6f8a2e-1111-4222-8333-444455556666"));
    assert!(claim.configs.is_empty());
}

#[test]
fn what_the_status_says_of_our_devices_is_kept_and_what_it_says_of_others_is_not() {
    let mut document = a_claim();
    let ours = json!({"driver": DRIVER, "device": "gpu-0", "data": {"fieldOfTomorrow": 1}});
    document["status"]["devices"] = json!([{"driver": "nic.example.com"}, ours, 3, null]);
    assert_eq!(read(&document).unwrap().statuses, [ours]);
    document["status"]["devices"] = json!(null);
    assert!(read(&document).unwrap().statuses.is_empty());
}

#[test]
fn parameters_are_kept_as_they_are_written() {
    let parameters = r#"{"sharing": null, "sharing":{"strategy":1e999, "deep": [[[]]]}}"#;
    let config = |driver: &str, parameters: &str| {
        format!(r#"{{"source": "FromClaim", "opaque": {{"parameters": {parameters}, "driver": "{driver}"}}}}"#)
    };
    let deep = "[".repeat(1000) + &"]".repeat(1000);
    let configs = [config("other", &deep), config(DRIVER, parameters), config(DRIVER, &deep)].join(", ");
    let whole = with_devices(&json!({"results": [result_of(DRIVER, "gpu-0")], "config": "HERE"})).to_string();
    let claim = read_text(&whole.replace(r#""HERE""#, &format!("[{configs}]"))).unwrap();
    let kept: Vec<_> = claim.configs.iter().map(|config| config.parameters.as_str()).collect();
    assert_eq!(kept, [parameters, &deep]);
}

#[test]
fn configs_of_the_class_come_before_those_of_the_claim() {
    let config = |source: &str, driver: &str, id: u32| {
        let opaque = json!({"driver": driver, "parameters": {"id": id}});
        json!({"source": source, "requests": ["gpus"], "opaque": opaque})
    };
    let claim = read(&with_devices(&json!({
        "results": [result_of(DRIVER, "gpu-0")],
        "config": [
            config("FromClaim", DRIVER, 1), config("FromClass", "other", 2), config("FromClass", DRIVER, 3),
            {"source": "FromClaim", "kindOfTomorrow": {}}, config("FromClaim", DRIVER, 4),
        ],
    })))
    .unwrap();
    let parameters: Vec<_> = claim.configs.iter().map(|config| config.parameters.as_str()).collect();
    assert_eq!(parameters, [r#"{"id":3}"#, r#"{"id":1}"#, r#"{"id":4}"#]);
    assert_eq!(claim.configs[0].requests, ["gpus"]);
}

#[test]
fn what_is_wrong_with_a_claim_is_said_in_one_line_without_its_namespace() {
    let result = |device: &Value| {
        with_devices(&json!({"results": [{"request": "r", "driver": DRIVER, "pool": "p", "device": device}]}))
    };
    let config = |entry: Value| with_devices(&json!({"results": [result_of(DRIVER, "gpu-0")], "config": [entry]}));
    let opaque =
        |parameters: Value| json!({"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}});
    let many = |entry: Value, count: usize| vec![entry; count];
    let mut replaced = a_claim();
    replaced["metadata"]["uid"] = "another".into();
    let reserved_for = |consumers: Value| {
        let mut claim = a_claim();
        claim["status"]["reservedFor"] = consumers;
        claim
    };
    for (document, expected) in [
        (replaced, "was replaced by another"),
        (json!({"metadata": {"uid": uid().as_str()}}), "is not allocated"),
        (json!({"metadata": {"uid": uid().as_str()}, "status": {"allocation": null}}), "is not allocated"),
        (reserved_for(json!(null)), "is not reserved for any pod any more; delete the pod"),
        (reserved_for(json!([])), "is not reserved for any pod any more"),
        (reserved_for(json!("everybody")), "cannot be read"),
        (with_devices(&json!({})), "has no device of driver gpu.nvidia.com"),
        (with_devices(&json!({"results": [result_of("other", "gpu-0")]})), "has no device of driver gpu.nvidia.com"),
        (json!([]), "cannot be read"),
        (json!({"metadata": {"uid": 3}}), "invalid type: integer `3`, expected a string"),
        (with_devices(&json!({"results": 7})), "cannot be read"),
        (result(&json!(null)), "results[0]: invalid type: null"),
        (result(&json!("../gpu-0")), "results[0].device: not a name"),
        (result(&json!("gpu\n0")), "results[0].device: not a name"),
        (result(&json!("g".repeat(300))), "results[0].device: not a name"),
        (with_devices(&json!({"results": many(result_of("other", "x"), 33)})), "33 devices, 32 are allowed"),
        (with_devices(&json!({"results": [result_of(DRIVER, "gpu-0")], "config": many(json!({}), 65)})), "65 configs"),
        (config(opaque(json!({"x": "y".repeat(10_240)}))), "config[0].opaque.parameters: more than 10240 bytes"),
        (config(json!({"opaque": {"driver": DRIVER, "parameters": {}}})), "config[0]: missing field `source`"),
        (config(json!({"source": "y".repeat(5000), "opaque": {"driver": DRIVER, "parameters": {}}})), "config[0]"),
    ] {
        let text = document.to_string();
        let error = read(&document).unwrap_err();
        let message = error.to_string();
        assert!(message.contains(expected), "{text:.80}: {message}");
        assert!(message.starts_with("claim two-gpus ") && !message.contains("team-a"), "{message}");
        assert!(message.len() < 300 && message.lines().count() == 1, "{message}");
        assert_eq!(error.cause(), "claim", "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_read_in_the_version_that_the_server_speaks() {
    for version in ["v1", "v1beta2", "v1beta1"] {
        let fake = Fake::new();
        fake.change(|state| {
            state.served = vec!["v1alpha3", version];
            state.claims.insert(PATH.into(), a_claim());
        });
        let cluster = fake.cluster();
        cluster.claim(&name(), &uid(), soon()).await.unwrap();
        cluster.clone().claim(&name(), &uid(), soon()).await.unwrap();
        let read = format!("GET /apis/resource.k8s.io/{version}/{PATH}");
        assert_eq!(fake.look(|state| state.log.clone()), ["GET /apis/resource.k8s.io".to_owned(), read.clone(), read]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_changes_its_version_is_asked_again() {
    let fake = Fake::new();
    fake.change(|state| {
        state.served = vec!["v1beta1"];
        state.claims.insert(PATH.into(), a_claim());
    });
    let cluster = fake.cluster();
    cluster.claim(&name(), &uid(), soon()).await.unwrap();
    fake.change(|state| state.served = vec!["v1"]);
    cluster.claim(&name(), &uid(), soon()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_does_not_exist_is_an_answer_and_no_reason_to_ask_again() {
    let fake = Fake::new();
    let error = fetch(&fake).await.unwrap_err();
    assert!(matches!(error, ClaimError::NotFound { .. }) && error.cause() == "claim", "{error}");
    assert_eq!(fake.look(|state| state.log.len()), 2);
}

#[tokio::test(start_paused = true)]
async fn names_that_would_lead_elsewhere_are_not_asked_for() {
    let fake = Fake::new();
    for text in ["", "..", "a/b", "x?watch=true", "a b", "%2e"] {
        let name = ClaimName { namespace: "default".into(), name: text.into() };
        let error = fake.cluster().claim(&name, &uid(), soon()).await.unwrap_err();
        assert!(matches!(error, ClaimError::NotFound { .. }), "{error}");
    }
    assert!(fake.look(|state| state.log.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn what_passes_by_itself_is_waited_out() {
    let faults: [fn() -> Fault; 5] = [
        || Fault::Refuse,
        || Fault::Hang,
        || Fault::Answer { code: 500, headers: &[], body: "{}" },
        || Fault::Answer { code: 503, headers: &[], body: "upstream connect error" },
        || Fault::Answer { code: 429, headers: &[], body: "" },
    ];
    for path in ["/apis/resource.k8s.io", PATH] {
        for fault in faults {
            let fake = Fake::new();
            fake.change(|state| _ = state.claims.insert(PATH.into(), a_claim()));
            fake.on_request(move |state, line| (line.ends_with(path) && state.count(line) == 1).then(fault));
            fetch(&fake).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_that_the_server_asks_for_is_kept() {
    let fake = Fake::new();
    fake.change(|state| _ = state.claims.insert(PATH.into(), a_claim()));
    fake.on_request(|state, line| {
        let headers = &[("retry-after", "7")];
        (state.count(line) == 1 && line.ends_with(PATH)).then_some(Fault::Answer { code: 429, headers, body: "" })
    });
    let start = Instant::now();
    fetch(&fake).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 7);
}

#[tokio::test(start_paused = true)]
async fn an_outage_ends_within_the_budget_and_says_that_it_may_pass() {
    let refuse: fn() -> Fault = || Fault::Refuse;
    for fault in [refuse, || Fault::Hang, || Fault::Answer { code: 429, headers: &[("retry-after", "60")], body: "" }] {
        let fake = Fake::new();
        fake.on_request(move |_, _| Some(fault()));
        let start = Instant::now();
        let error = fetch(&fake).await.unwrap_err();
        assert!(start.elapsed() <= BUDGET);
        assert_eq!(error.cause(), "api_server", "{error}");
        assert!(error.to_string().ends_with("; the kubelet will try again"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_stays_wrong_is_not_asked_again() {
    for (code, body, expected) in [
        (
            403,
            r#"{"message": "User \"x\" cannot get resource in the namespace \"team-a\""}"#,
            "grant the driver get on resourceclaims",
        ),
        (401, "Unauthorized", "the API server answered 401 Unauthorized"),
        (200, "<html>", "not JSON"),
        (200, "[1]", "cannot be read"),
    ] {
        let fake = Fake::new();
        fake.on_request(move |_, line| line.ends_with(PATH).then_some(Fault::Answer { code, headers: &[], body }));
        let error = fetch(&fake).await.unwrap_err();
        assert!(error.to_string().contains(expected) && !error.to_string().contains("team-a"), "{error}");
        assert!(!error.to_string().contains("will try again"), "{error}");
        assert_eq!(fake.look(|state| state.count("GET")), 2, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_the_api_group_is_told_apart() {
    let fake = Fake::new();
    fake.change(|state| state.served = vec![]);
    let error = fetch(&fake).await.unwrap_err();
    assert!(error.to_string().contains("does not serve resource.k8s.io: it needs Kubernetes 1.34"), "{error}");
    fake.change(|state| state.served = vec!["v1alpha3"]);
    let error = fetch(&fake).await.unwrap_err();
    assert!(error.to_string().contains("only in v1alpha3"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_end_is_cut_off() {
    let fake = Fake::new();
    let body: &str = Box::leak(" ".repeat(9 << 20).into_boxed_str());
    fake.on_request(move |_, line| line.ends_with(PATH).then_some(Fault::Answer { code: 200, headers: &[], body }));
    let error = fetch(&fake).await.unwrap_err();
    assert!(error.to_string().contains("longer than"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_gone_only_if_the_server_says_so_of_this_very_claim() {
    let with = |field: &str, value: Value| {
        let mut claim = a_claim();
        claim["metadata"][field] = value;
        Some(claim)
    };
    for (stored, expected) in [
        (Some(a_claim()), Some(false)),
        // Not allocated, but there.
        (Some(json!({"metadata": a_claim()["metadata"]})), Some(false)),
        (None, Some(true)),
        (with("uid", json!("another")), Some(true)),
        (with("uid", json!("")), None),
        (with("uid", json!(null)), None),
        (with("name", json!("another")), None),
        (Some(json!({"kind": "Status"})), None),
    ] {
        let fake = Fake::new();
        let text = format!("{stored:?}");
        fake.change(|state| state.claims.extend(stored.map(|claim| (PATH.to_owned(), claim))));
        assert_eq!(fake.cluster().is_gone(&name(), &uid()).await.ok(), expected, "{text}");
        assert_eq!(fake.look(|state| state.count("GET")), 2, "once, and the versions: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_failure_makes_a_claim_gone() {
    let faults: [fn() -> Fault; 7] = [
        || Fault::Refuse,
        || Fault::Hang,
        || Fault::Answer { code: 500, headers: &[], body: "{}" },
        || Fault::Answer { code: 403, headers: &[], body: r#"{"kind": "Status", "details": {"name": "two-gpus"}}"# },
        || Fault::Answer { code: 404, headers: &[], body: "404 page not found\n" },
        || Fault::Answer { code: 404, headers: &[], body: r#"{"kind": "Status", "details": {}}"# },
        || Fault::Answer { code: 410, headers: &[], body: r#"{"kind": "Status", "details": {"name": "two-gpus"}}"# },
    ];
    for path in ["/apis/resource.k8s.io", PATH] {
        for (number, fault) in faults.iter().enumerate() {
            let fake = Fake::new();
            let fault = *fault;
            fake.on_request(move |_, line| line.ends_with(path).then(fault));
            assert!(fake.cluster().is_gone(&name(), &uid()).await.is_err(), "fault {number} of {path}");
        }
    }
    let fake = Fake::new();
    fake.change(|state| state.served = vec![]);
    assert!(fake.cluster().is_gone(&name(), &uid()).await.is_err());
    let elsewhere = ClaimName { namespace: "..".into(), ..name() };
    assert!(!fake.cluster().is_gone(&elsewhere, &uid()).await.unwrap());
}
