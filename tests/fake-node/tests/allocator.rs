//! What the scenario allocator gives to claims.
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "the helpers of tests are tests")]

use fake_node::allocator::{AllocateError, Cluster};
use serde_json::{Value, json};

const DRIVER: &str = "gpu.example.com";

/// A cluster in the making.
struct World {
    slices: Vec<Value>,
    classes: Vec<Value>,
    claims: Vec<Value>,
}

impl World {
    /// One pool with these devices in one slice, and the class `gpu` of all GPUs of the driver.
    fn with(devices: Vec<Value>) -> Self {
        let expression = r#"device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].type == "gpu""#;
        Self { slices: vec![slice("0", 1, devices)], classes: vec![class("gpu", expression)], claims: Vec::new() }
    }

    fn allocate(&self, devices: Value) -> Result<Value, AllocateError> {
        let claim = json!({"metadata": {"name": "c", "namespace": "default"}, "spec": {"devices": devices}});
        let World { slices, classes, claims } = self;
        Cluster { node: "node", slices, classes, claims }.allocate(&claim)
    }

    /// `request=device` of all results.
    fn devices(&self, devices: Value) -> Result<Vec<String>, AllocateError> {
        let allocation = self.allocate(devices)?;
        let results = allocation["devices"]["results"].as_array().unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        Ok(results.iter().map(|r| format!("{}={}", text(&r["request"]), text(&r["device"]))).collect())
    }

    fn in_use(&mut self, device: &str) {
        let result = json!({"request": "r", "driver": DRIVER, "pool": "node", "device": device});
        self.claims.push(json!({
            "metadata": {"name": format!("uses-{device}")},
            "status": {"allocation": {"devices": {"results": [result]}}},
        }));
    }
}

fn slice(name: &str, count: usize, devices: Vec<Value>) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "driver": DRIVER,
            "nodeName": "node",
            "pool": {"name": "node", "generation": 1, "resourceSliceCount": count},
            "devices": devices,
        },
    })
}

fn class(name: &str, expression: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}})
}

/// GPU `index` on a NUMA node.
fn gpu(index: i64, numa: i64) -> Value {
    json!({
        "name": format!("gpu-{index}"),
        "attributes": {
            "type": {"string": "gpu"},
            "index": {"int": index},
            "resource.kubernetes.io/numaNode": {"int": numa},
        },
        "capacity": {"memory": {"value": if index == 0 { "40Gi" } else { "80Gi" }}},
    })
}

fn four_gpus() -> World {
    World::with(vec![gpu(0, 0), gpu(1, 1), gpu(2, 0), gpu(3, 1)])
}

fn exactly(name: &str, mut spec: Value) -> Value {
    spec["deviceClassName"] = "gpu".into();
    json!({"name": name, "exactly": spec})
}

fn one(spec: Value) -> Value {
    json!({"requests": [exactly("r", spec)]})
}

fn selector(expression: &str) -> Value {
    json!([{"cel": {"expression": expression}}])
}

#[test]
fn the_first_devices_that_fit_are_taken_in_the_order_of_slice_names() {
    let mut world = World::with(Vec::new());
    world.slices = vec![slice("b", 2, vec![gpu(2, 0)]), slice("a", 2, vec![gpu(1, 0), gpu(0, 0)])];
    assert_eq!(world.devices(one(json!({"count": 2}))).unwrap(), ["r=gpu-1", "r=gpu-0"]);
    assert_eq!(world.devices(one(json!({"count": 3}))).unwrap(), ["r=gpu-1", "r=gpu-0", "r=gpu-2"]);
    let error = world.devices(one(json!({"count": 4}))).unwrap_err();
    assert_eq!(error.to_string(), "the devices of node node cannot satisfy claim c");
}

#[test]
fn an_allocation_looks_as_the_api_has_it() {
    let mut world = four_gpus();
    world.classes[0]["spec"]["config"] = json!([{"opaque": {"driver": DRIVER, "parameters": {"from": "class"}}}]);
    let claim = json!({
        "requests": [exactly("a", json!({})), exactly("b", json!({}))],
        "config": [{"requests": ["b"], "opaque": {"driver": DRIVER, "parameters": {"from": "claim"}}}],
    });
    assert_eq!(
        world.allocate(claim).unwrap(),
        json!({
            "devices": {
                "results": [
                    {"request": "a", "driver": DRIVER, "pool": "node", "device": "gpu-0"},
                    {"request": "b", "driver": DRIVER, "pool": "node", "device": "gpu-1"},
                ],
                "config": [
                    {
                        "source": "FromClass",
                        "requests": ["a", "b"],
                        "opaque": {"driver": DRIVER, "parameters": {"from": "class"}},
                    },
                    {
                        "source": "FromClaim",
                        "requests": ["b"],
                        "opaque": {"driver": DRIVER, "parameters": {"from": "claim"}},
                    },
                ],
            },
            "nodeSelector": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node"]}]},
            ]},
        })
    );
}

#[test]
fn a_slice_for_all_nodes_needs_no_node_selector() {
    let mut world = World::with(vec![gpu(0, 0)]);
    world.slices[0]["spec"]["nodeName"] = Value::Null;
    world.slices[0]["spec"]["allNodes"] = true.into();
    assert_eq!(world.allocate(one(json!({}))).unwrap().get("nodeSelector"), None);
}

#[test]
fn devices_of_other_claims_are_left_alone_but_for_administrators() {
    let mut world = four_gpus();
    world.in_use("gpu-0");
    assert_eq!(world.devices(one(json!({}))).unwrap(), ["r=gpu-1"]);
    let admin = world.allocate(one(json!({"adminAccess": true, "allocationMode": "All"}))).unwrap();
    assert_eq!(admin["devices"]["results"].as_array().unwrap().len(), 4);
    assert_eq!(admin["devices"]["results"][0]["adminAccess"], true);

    // What an administrator looks at is not in use.
    world.claims = vec![json!({"metadata": {"name": "admin"}, "status": {"allocation": admin}})];
    assert_eq!(world.devices(one(json!({}))).unwrap(), ["r=gpu-0"]);
}

#[test]
fn all_means_all_or_nothing() {
    let mut world = four_gpus();
    let numa_0 = json!({
        "allocationMode": "All",
        "selectors": selector(r#"device.attributes["resource.kubernetes.io"].numaNode == 0"#),
    });
    assert_eq!(world.devices(one(numa_0.clone())).unwrap(), ["r=gpu-0", "r=gpu-2"]);
    world.in_use("gpu-2");
    assert!(matches!(world.devices(one(numa_0)), Err(AllocateError::Unsatisfiable { .. })));
    let none = json!({"allocationMode": "All", "selectors": selector("false")});
    assert!(matches!(world.devices(one(none)), Err(AllocateError::Unsatisfiable { .. })));
}

#[test]
fn capacity_is_a_lower_bound() {
    let world = four_gpus();
    let memory = |amount: &str| one(json!({"capacity": {"requests": {"memory": amount}}}));
    assert_eq!(world.devices(memory("40Gi")).unwrap(), ["r=gpu-0"]);
    assert_eq!(world.devices(memory("41Gi")).unwrap(), ["r=gpu-1"]);
    assert!(matches!(world.devices(memory("81Gi")), Err(AllocateError::Unsatisfiable { .. })));
}

#[test]
fn the_first_alternative_that_can_be_had_is_taken() {
    let mut world = four_gpus();
    let claim = json!({
        "requests": [{
            "name": "gpu",
            "firstAvailable": [
                {"name": "first", "deviceClassName": "gpu",
                 "selectors": selector(r#"device.attributes["gpu.example.com"].index == 0"#)},
                {"name": "any", "deviceClassName": "gpu", "count": 2},
            ],
        }],
        "config": [
            {"requests": ["gpu/first"], "opaque": {"driver": DRIVER, "parameters": {}}},
            {"requests": ["gpu"], "opaque": {"driver": DRIVER, "parameters": {}}},
        ],
    });
    assert_eq!(world.devices(claim.clone()).unwrap(), ["gpu/first=gpu-0"]);
    assert_eq!(world.allocate(claim.clone()).unwrap()["devices"]["config"].as_array().unwrap().len(), 2);
    world.in_use("gpu-0");
    assert_eq!(world.devices(claim.clone()).unwrap(), ["gpu/any=gpu-1", "gpu/any=gpu-2"]);
    let config = world.allocate(claim).unwrap()["devices"]["config"].clone();
    assert_eq!(config.as_array().unwrap().len(), 1);
    assert_eq!(config[0]["requests"], json!(["gpu"]));
}

#[test]
fn matching_attributes_are_found_by_going_back() {
    let mut world = four_gpus();
    world.in_use("gpu-0");
    let mut claim = one(json!({"count": 2}));
    claim["constraints"] = json!([{"matchAttribute": "resource.kubernetes.io/numaNode"}]);
    assert_eq!(world.devices(claim.clone()).unwrap(), ["r=gpu-1", "r=gpu-3"]);
    world.in_use("gpu-3");
    assert!(matches!(world.devices(claim), Err(AllocateError::Unsatisfiable { .. })));
}

#[test]
fn a_constraint_is_about_the_requests_that_it_names() {
    let world = four_gpus();
    let claim = |requests: Value| {
        json!({
            "requests": [exactly("a", json!({})), exactly("b", json!({})), exactly("c", json!({}))],
            "constraints": [{"requests": requests, "matchAttribute": "resource.kubernetes.io/numaNode"}],
        })
    };
    assert_eq!(world.devices(claim(json!(["a", "c"]))).unwrap(), ["a=gpu-0", "b=gpu-1", "c=gpu-2"]);
    // All three on one NUMA node is too much.
    assert!(matches!(world.devices(claim(json!([]))), Err(AllocateError::Unsatisfiable { .. })));
}

#[test]
fn distinct_attributes_differ_pairwise() {
    let world = four_gpus();
    let mut claim = one(json!({"count": 2}));
    claim["constraints"] = json!([{"distinctAttribute": "resource.kubernetes.io/numaNode"}]);
    assert_eq!(world.devices(claim.clone()).unwrap(), ["r=gpu-0", "r=gpu-1"]);
    claim["requests"][0]["exactly"]["count"] = 3.into();
    assert!(matches!(world.devices(claim), Err(AllocateError::Unsatisfiable { .. })));
}

#[test]
fn an_attribute_of_the_driver_needs_no_domain_in_the_slice() {
    let world = four_gpus();
    let mut claim = one(json!({"count": 4}));
    claim["constraints"] = json!([{"matchAttribute": "gpu.example.com/type"}]);
    assert_eq!(world.devices(claim.clone()).unwrap().len(), 4);
    claim["constraints"] = json!([{"matchAttribute": "other.example.com/type"}]);
    assert!(matches!(world.devices(claim), Err(AllocateError::Unsatisfiable { .. })));
}

#[test]
fn taints_keep_away_who_does_not_tolerate_them() {
    let mut world = four_gpus();
    world.slices[0]["spec"]["devices"][0]["taints"] =
        json!([{"key": "gpu.example.com/unhealthy", "value": "xid-79", "effect": "NoSchedule"}]);
    world.slices[0]["spec"]["devices"][1]["taints"] = json!([{"key": "note", "effect": "None"}]);
    assert_eq!(world.devices(one(json!({}))).unwrap(), ["r=gpu-1"]);
    for (toleration, expected) in [
        (json!({"operator": "Exists"}), "gpu-0"),
        (json!({"key": "gpu.example.com/unhealthy", "operator": "Equal", "value": "xid-79"}), "gpu-0"),
        (json!({"key": "gpu.example.com/unhealthy", "operator": "Exists", "effect": "NoExecute"}), "gpu-1"),
        (json!({"key": "gpu.example.com/unhealthy", "value": "xid-48"}), "gpu-1"),
    ] {
        let devices = world.devices(one(json!({"tolerations": [toleration]}))).unwrap();
        assert_eq!(devices, [format!("r={expected}")], "{toleration}");
    }
}

#[test]
fn only_complete_pools_of_the_newest_generation_are_used() {
    let mut world = World::with(Vec::new());
    world.slices = vec![slice("a", 2, vec![gpu(0, 0)]), slice("b", 2, vec![gpu(1, 0)])];
    assert_eq!(world.devices(one(json!({}))).unwrap(), ["r=gpu-0"]);
    world.slices[1]["spec"]["pool"]["generation"] = 2.into();
    assert!(matches!(world.devices(one(json!({}))), Err(AllocateError::Unsatisfiable { .. })));
    let error = world.devices(one(json!({"allocationMode": "All"}))).unwrap_err();
    let expected = "request r: asks for all devices, but resource pool gpu.example.com/node is currently being updated";
    assert_eq!(error.to_string(), expected);
    world.slices[1]["spec"]["pool"]["resourceSliceCount"] = 1.into();
    assert_eq!(world.devices(one(json!({}))).unwrap(), ["r=gpu-1"]);
}

#[test]
fn slices_of_other_nodes_are_of_no_use() {
    let mut world = four_gpus();
    world.slices[0]["spec"]["nodeName"] = "other".into();
    assert!(matches!(world.devices(one(json!({}))), Err(AllocateError::Unsatisfiable { .. })));
}

#[test]
fn a_selector_fails_only_on_devices_that_it_meets() {
    let mut world = four_gpus();
    world.slices[0]["spec"]["devices"][1]["attributes"]["type"] = Value::Null;
    world.slices[0]["spec"]["devices"][1]["attributes"].as_object_mut().unwrap().remove("type");
    assert_eq!(world.devices(one(json!({}))).unwrap(), ["r=gpu-0"]);
    world.in_use("gpu-0");
    let error = world.devices(one(json!({}))).unwrap_err().to_string();
    assert!(error.ends_with("failed on device gpu.example.com/node/gpu-1: CEL runtime error: No such key: type"));
}

#[test]
fn bad_claims_are_refused_with_the_reason() {
    let world = four_gpus();
    let error = |devices: Value| world.devices(devices).unwrap_err().to_string();
    let unknown = json!({"requests": [{"name": "r", "exactly": {"deviceClassName": "tpu"}}]});
    assert_eq!(error(unknown), "request r: could not retrieve device class tpu");
    assert_eq!(
        error(json!({"requests": [{"name": "r"}]})),
        "request r: exactly one of exactly and firstAvailable must be given"
    );
    assert_eq!(error(one(json!({"count": 33}))), "number of requested devices 33 exceeds the claim limit of 32");
    assert!(error(one(json!({"selectors": selector("device.name == \"x\"")}))).contains("undefined field 'name'"));
    let mut unqualified = one(json!({}));
    unqualified["constraints"] = json!([{"matchAttribute": "numaNode"}]);
    assert_eq!(error(unqualified), "constraint #0: the attribute must include a domain");
}

/// A whole GPU, its halves and the second quarter, and what of them is free.
fn one_gpu_in_parts() -> World {
    let counters = |from: usize, to: usize| -> Value {
        (from..to).map(|at| (format!("slice-{at}"), json!({"value": "1"}))).collect::<serde_json::Map<_, _>>().into()
    };
    let part = |name: &str, from, to| {
        let mut device = gpu(0, 0);
        device["name"] = name.into();
        device["consumesCounters"] = json!([{"counterSet": "gpu-0", "counters": counters(from, to)}]);
        device
    };
    let devices = vec![part("whole", 0, 4), part("quarter", 1, 2), part("low", 0, 2), part("high", 2, 4)];
    let mut world = World::with(devices);
    let mut counting = slice("counters", 2, Vec::new());
    counting["spec"]["sharedCounters"] = json!([{"name": "gpu-0", "counters": counters(0, 4)}]);
    world.slices[0]["spec"]["pool"]["resourceSliceCount"] = 2.into();
    world.slices.push(counting);
    world
}

#[test]
fn devices_that_share_counters_are_free_as_long_as_enough_is_left() {
    let mut world = one_gpu_in_parts();
    assert_eq!(world.devices(one(json!({}))).unwrap(), ["r=whole"]);
    assert_eq!(world.devices(one(json!({"count": 2}))).unwrap(), ["r=quarter", "r=high"], "not beside the whole");
    assert!(world.devices(one(json!({"count": 3}))).is_err());
    world.in_use("high");
    assert_eq!(world.devices(one(json!({}))).unwrap(), ["r=quarter"]);
    world.in_use("low");
    assert!(world.devices(one(json!({}))).is_err(), "nothing is left");
    assert!(world.devices(one(json!({"adminAccess": true}))).is_err(), "admin access takes counters too");
}

#[test]
fn a_pool_with_a_device_that_takes_from_an_unknown_counter_cannot_be_used() {
    let mut world = one_gpu_in_parts();
    world.slices[0]["spec"]["devices"][3]["consumesCounters"][0]["counterSet"] = "gpu-9".into();
    let error = world.devices(one(json!({}))).unwrap_err().to_string();
    let expected = "device high consumes slice-2 of gpu-9, which the pool does not have";
    assert_eq!(error, format!("pool gpu.example.com/node is invalid: {expected}"));
}

#[test]
fn what_is_left_out_is_an_error_when_it_is_wanted() {
    let mut world = four_gpus();
    world.slices[0]["spec"]["devices"][1]["allowMultipleAllocations"] = true.into();
    assert_eq!(world.devices(one(json!({}))).unwrap(), ["r=gpu-0"]);
    let error = world.devices(one(json!({"count": 2}))).unwrap_err().to_string();
    assert_eq!(
        error,
        "device gpu.example.com/node/gpu-1 can be allocated several times: the scenario allocator cannot do that"
    );
}

#[test]
fn a_hopeless_search_ends() {
    let mut world = World::with((0..24).map(|index| gpu(index, index)).collect());
    world.classes.push(class("none", "false"));
    let mut requests: Vec<_> = (0..12).map(|at| exactly(&format!("r{at}"), json!({}))).collect();
    requests.push(json!({"name": "none", "exactly": {"deviceClassName": "none"}}));
    assert!(matches!(world.devices(json!({"requests": requests})), Err(AllocateError::TooHard(_))));
}
