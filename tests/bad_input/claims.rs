//! Claims that cannot be prepared: an error for that claim alone, in the words of the pod's events, and nothing on disk.

use std::collections::BTreeMap;
use std::iter;

use fake_node::kubelet::ClaimRef;
use fake_node::manifest;
use fake_node::node::{DRIVER, NODE};
use fake_node::plugin::Plugin;
use serde_json::{Value, json};

use super::liar;
use super::machine::{Machine, reference, result};

/// The UID of no claim.
const STRANGER: &str = "00000000-0000-4000-8000-000000000000";

/// Longer than this nobody reads an event.
const LONGEST: usize = 300;

fn config(kind: &str, fields: Value) -> Value {
    let mut parameters = fields;
    parameters["apiVersion"] = "resource.nvidia.com/v1beta1".into();
    parameters["kind"] = kind.into();
    json!({"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}})
}

/// A claim for a GPU with one configuration.
fn configured(machine: &Machine, name: &str, config: Value) -> ClaimRef {
    machine.allocated_claim(name, &[result("r0", DRIVER, NODE, "gpu-7")], &[config])
}

/// Has a batch of good and bad claims prepared, and looks at what became of all.
async fn prepare_among_good_ones(machine: &Machine, good: &[ClaimRef], bad: &[(ClaimRef, String)]) {
    let claims: Vec<_> = bad.iter().map(|(claim, _)| claim).chain(good).cloned().collect();
    let answers = machine.prepare(&claims).await;
    for ((claim, expected), answer) in bad.iter().zip(&answers) {
        let error = answer.as_ref().unwrap_err();
        assert_eq!(error, expected, "{claim:?}");
        assert!(error.len() <= LONGEST && !error.contains("default"), "{error}");
    }
    for (claim, answer) in good.iter().zip(&answers[bad.len()..]) {
        assert_eq!(*answer, Ok(()), "{claim:?}");
    }
    let mut uids: Vec<_> = good.iter().map(|claim| claim.uid.clone()).collect();
    uids.sort();
    assert_eq!(machine.on_disk(), [uids.clone(), uids]);
    assert_eq!(Machine::files(machine.claims_dir()).len(), good.len(), "no temporary files, no quarantine");
}

#[tokio::test]
async fn each_bad_claim_of_a_batch_gets_its_own_error_and_the_others_their_gpus() {
    let machine = Machine::builtin("dgx-h100").await;
    let _plugin = machine.start_ready().await;
    let other = "nic.example.com";
    let garbage_of_another = json!({"source": "FromClaim", "opaque": {"driver": other, "parameters": {"kind": 1}}});
    let good = [
        machine.claim("one", &["gpu-0"]),
        machine.claim("two", &["gpu-1", "gpu-2"]),
        machine.allocated_claim(
            "mixed",
            &[result("r0", other, "elsewhere", "port-1"), result("r1", DRIVER, NODE, "gpu-3")],
            &[garbage_of_another],
        ),
        configured(&machine, "plain", config("GpuConfig", json!({}))),
    ];

    let unallocated = reference(&machine.unallocated_claim("unallocated", 1));
    let renewed = machine.claim("renewed", &["gpu-6"]);
    let renewed = ClaimRef { uid: STRANGER.to_owned(), ..renewed };
    let sharing = |strategy: &str| config("GpuConfig", json!({"sharing": {"strategy": strategy}}));
    let of_request = |mut config: Value| {
        config["requests"] = json!(["r0"]);
        config
    };
    let known = "known are GpuConfig, MigDeviceConfig and VfioDeviceConfig of resource.nvidia.com/v1beta1";
    let has = "it has gpu-0, gpu-1, gpu-2, gpu-3, gpu-4, gpu-5, gpu-6, gpu-7";
    let traversal = "../../../../../../tmp/evil";
    let bad = [
        (
            ClaimRef::new("default", "gone", "11111111-0000-4000-8000-000000000000"),
            "claim gone does not exist any more; delete the pod so that it is created again".to_owned(),
        ),
        (
            renewed,
            "claim renewed was replaced by another of the same name; delete the pod so that it is created again"
                .to_owned(),
        ),
        (unallocated, "claim unallocated is not allocated; delete the pod so that it is scheduled again".to_owned()),
        (
            machine.allocated_claim("foreign", &[result("r0", other, "elsewhere", "port-1")], &[]),
            "claim foreign has no device of driver gpu.nvidia.com".to_owned(),
        ),
        (machine.claim("ninth", &["gpu-8"]), format!("the node has no device gpu-8; {has}")),
        (
            // None of it is given, although the first exists.
            machine.claim("half", &["gpu-4", "gpu-0-mig-1g5gb-19-0"]),
            "the MIG device gpu-0-mig-1g5gb-19-0 is gone from the node; make it again, or delete the pod so that it is given \
             another"
                .to_owned(),
        ),
        (
            machine.allocated_claim("elsewhere", &[result("r0", DRIVER, "node-b", "gpu-5")], &[]),
            "gpu-5 was allocated from the pool node-b, but this node's pool is fake-node".to_owned(),
        ),
        (
            configured(&machine, "unknown-kind", config("GpuConfiguration", json!({}))),
            format!("configuration 1 of the claim: resource.nvidia.com/v1beta1 GpuConfiguration is not known; {known}"),
        ),
        (
            configured(&machine, "unknown-field", config("GpuConfig", json!({"sharng": {}}))),
            "configuration 1 of the claim: GpuConfig: sharng: unknown field `sharng`, expected `sharing`".to_owned(),
        ),
        (
            configured(
                &machine,
                "no-kind",
                json!({"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": {"sharing": {}}}}),
            ),
            "configuration 1 of the claim: apiVersion: missing".to_owned(),
        ),
        (
            configured(&machine, "mig", of_request(config("MigDeviceConfig", json!({})))),
            "configuration 1 of the claim: MigDeviceConfig names the request r0, which was given the whole GPU gpu-7"
                .to_owned(),
        ),
        (
            configured(&machine, "time-slicing", sharing("TimeSlicing")),
            "gpu-7: sharing with the strategy TimeSlicing is not supported by this version of the driver".to_owned(),
        ),
        (
            configured(&machine, "mps", sharing("MPS")),
            "gpu-7: sharing with the strategy MPS is not supported by this version of the driver".to_owned(),
        ),
        (ClaimRef::new("default", "one", traversal), format!("{traversal:?} is not a claim UID")),
        (ClaimRef::new("default", "one", ""), "\"\" is not a claim UID".to_owned()),
        (
            ClaimRef::new("../../nodes", "one", "22222222-0000-4000-8000-000000000000"),
            "claim one does not exist any more; delete the pod so that it is created again".to_owned(),
        ),
        (
            ClaimRef::new("default", "one?watch=true", "33333333-0000-4000-8000-000000000000"),
            "claim one?watch=true does not exist any more; delete the pod so that it is created again".to_owned(),
        ),
    ];
    prepare_among_good_ones(&machine, &good, &bad).await;

    // The kubelet takes everything back that it has asked for, whatever came of it.
    let possible = bad.iter().map(|(claim, _)| claim).filter(|claim| claim.uid.len() == STRANGER.len());
    for claim in good.iter().chain(possible) {
        machine.unprepare_one(claim).await.unwrap();
    }
    assert_eq!(machine.on_disk(), [const { Vec::<String>::new() }; 2]);
}

#[tokio::test]
async fn a_claim_whose_last_pod_is_gone_is_not_prepared_by_a_call_that_comes_late() {
    let machine = Machine::builtin("one-gpu").await;
    let _plugin = machine.start_ready().await;
    let claim = machine.claim("late", &["gpu-0"]);
    machine.end_reservations(&claim);
    let expected = "claim late is not reserved for any pod any more; delete the pod so that it is scheduled again";
    assert_eq!(machine.prepare_one(&claim).await, Err(expected.to_owned()));
    assert_eq!(machine.on_disk(), [const { Vec::<String>::new() }; 2]);
}

#[tokio::test]
async fn a_gpu_goes_to_one_of_two_claims_and_the_other_is_told_which() {
    let machine = Machine::builtin("one-gpu").await;
    let _plugin = machine.start_ready().await;
    let [first, second] = ["first", "second"].map(|name| machine.claim(name, &["gpu-0"]));
    let mut answers = machine.prepare(&[first.clone(), second.clone()]).await;
    let (holder, loser) = if answers[0].is_ok() { (first, second) } else { (second, first) };
    answers.sort();
    let in_use =
        format!("gpu-0 is in use by claim default/{} until that claim's pods are gone from this node", holder.name);
    assert_eq!(answers, [Ok(()), Err(in_use)]);
    assert_eq!(machine.on_disk(), [[holder.uid.clone()], [holder.uid.clone()]]);
    machine.unprepare_one(&holder).await.unwrap();
    assert_eq!(machine.prepare_one(&loser).await, Ok(()));
}

#[tokio::test]
async fn a_pod_with_a_bad_claim_shows_its_author_the_field_and_can_be_ended() {
    let machine = Machine::builtin("one-gpu").await;
    let _plugin = machine.start_ready().await;
    let class = "            deviceClassName: gpu.nvidia.com\n";
    let config = "      config:\n        - opaque:\n            driver: gpu.nvidia.com\n            parameters:\n              \
                  apiVersion: resource.nvidia.com/v1beta1\n              kind: GpuConfig\n              sharing: {stategy: MPS}\n";
    assert!(manifest::ONE_GPU.contains(class));
    let pod = machine.node.run_pod(&manifest::ONE_GPU.replace(class, &format!("{class}{config}")), "wrong").unwrap();
    let name = pod.claims[0]["metadata"]["name"].as_str().unwrap().to_owned();
    pod.pod.wait_error().await;
    let event = pod.pod.events().remove(0);
    assert_eq!(event.reason, "FailedPrepareDynamicResources");
    let expected = format!(
        "NodePrepareResources failed for ResourceClaim {name}: configuration 1 of the claim: GpuConfig: sharing.stategy: \
         unknown field `stategy`, expected one of `strategy`, `timeSlicingConfig`, `mpsConfig`"
    );
    assert!(event.message.ends_with(&expected), "{}", event.message);
    assert_eq!(machine.on_disk(), [const { Vec::<String>::new() }; 2]);
    machine.node.end_pod(pod).await.unwrap();
}

#[tokio::test]
async fn what_no_api_server_should_answer_is_an_error_of_that_claim() {
    let machine = Machine::builtin("dgx-h100").await;
    let uid = |number: usize| format!("{number:08}-0000-4000-8000-000000000000");
    let document = |uid: &str, allocation: &Value| {
        let status = json!({"allocation": allocation, "reservedFor": [{"resource": "pods", "name": "a", "uid": "a"}]});
        json!({"metadata": {"uid": uid}, "status": status}).to_string()
    };
    let ours = |device: &str| result("gpu", DRIVER, NODE, device);
    let with = |change: &dyn Fn(&mut Value)| {
        let mut result = ours("gpu-7");
        change(&mut result);
        json!({"devices": {"results": [result]}})
    };
    let with_config = |config: Value| json!({"devices": {"results": [ours("gpu-7")], "config": [config]}});
    let large = "x".repeat(64 << 10);
    let allocations = [
        (json!("all of them"), "invalid type: string \"all of them\", expected struct Allocation"),
        (json!({"devices": []}), ""),
        (json!({"devices": {"results": {}}}), "invalid type: map, expected a sequence"),
        (json!({"devices": {"results": vec![ours("gpu-7"); 33]}}), "33 devices, 32 are allowed"),
        (with(&|result| result["device"] = 7.into()), "results[0]: invalid type: integer `7`, expected a string"),
        (with(&|result| drop(result.as_object_mut().unwrap().remove("pool"))), "results[0]: missing field `pool`"),
        (
            with(&|result| result["adminAccess"] = "yes".into()),
            "results[0]: invalid type: string \"yes\", expected a boolean",
        ),
        (with(&|result| result["device"] = "../../etc/passwd".into()), "results[0].device: not a name"),
        (with(&|result| result["pool"] = "fake-node\n{}".into()), "results[0].pool: not a name"),
        (with(&|result| result["request"] = large.as_str().into()), "results[0].request: not a name"),
        (
            with_config(json!({"source": "FromSpace", "opaque": {"driver": DRIVER, "parameters": {}}})),
            "config[0]: unknown variant",
        ),
        (
            with_config(json!({"source": "FromClaim", "opaque": {"driver": DRIVER}})),
            "config[0]: missing field `parameters`",
        ),
        (
            with_config(json!({"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": {"a": large}}})),
            "config[0].opaque.parameters: more than 10240 bytes",
        ),
    ];
    let whole = [
        (String::new(), "the API server's answer is not JSON"),
        ("<html>Please log in</html>".to_owned(), "the API server's answer is not JSON"),
        ("[".repeat(100_000), "the API server's answer is not JSON"),
        ("[]".to_owned(), "has an allocation that cannot be read"),
        (r#"{"metadata": {}}"#.to_owned(), "has an allocation that cannot be read: missing field `uid`"),
    ];

    let mut answers = BTreeMap::new();
    let mut expected = Vec::new();
    let documents =
        allocations.into_iter().enumerate().map(|(at, (allocation, words))| (document(&uid(at), &allocation), words));
    for (at, (body, words)) in documents.chain(whole).enumerate() {
        answers.insert(format!("c{at}"), body);
        expected.push((ClaimRef::new("default", format!("c{at}"), uid(at)), words));
    }
    let good = ClaimRef::new("default", "good", uid(99));
    let allocation = json!({"devices": {"results": [ours("gpu-0")], "config": null}, "unheardOf": [1]});
    answers.insert("good".to_owned(), document(&good.uid, &allocation));

    let kubeconfig = machine.node.dir().join("liar");
    liar::write_kubeconfig(liar::start(answers).await, &kubeconfig);
    let settings = machine.settings(&[&format!("--kubeconfig={}", kubeconfig.display())]);
    let mut plugin = Plugin::start(&settings).unwrap();
    let claims: Vec<_> = expected.iter().map(|(claim, _)| claim).chain(iter::once(&good)).cloned().collect();
    let mut results = machine.prepare(&claims).await;
    assert_eq!(results.pop().unwrap(), Ok(()));
    for ((claim, words), result) in expected.iter().zip(results) {
        let error = result.unwrap_err();
        assert!(error.contains(words) && error.contains(&claim.name), "{words:?} is not in: {error}");
        assert!(error.len() <= LONGEST && !error.contains("default") && !error.contains('\n'), "{error}");
    }
    assert_eq!(machine.on_disk(), [[good.uid.clone()], [good.uid.clone()]]);
    assert!(plugin.get("/healthz").await.unwrap().0 == 200);
}
