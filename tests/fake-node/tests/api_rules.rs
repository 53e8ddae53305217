//! Every limit and format of ResourceSlices and claims: what just passes, and what just does not.
//!
//! A row changes a valid object in one place and says which field the server then complains about, if any.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail the test")]

use fake_node::api::{Gate, Gates, Kind, Part, Rules, validate};
use fake_node::release::Release::{self, V1_32, V1_33, V1_34, V1_35, V1_36, V1_37};
use serde_json::{Value, json};

/// A change: the path of a field, and its new value.
type Change = (&'static str, Value);

/// The fields that the server complains about, with the reasons.
#[track_caller]
fn complaints(release: Release, kind: Kind, object: &Value, old: Option<&Value>, part: Part) -> Vec<(String, String)> {
    let mut gates = Gates::new(release);
    for gate in Gate::all() {
        gates = gates.clone().with(gate, true).unwrap_or(gates);
    }
    let rules = Rules { release, gates: &gates, admin_namespace: false };
    let errors = validate(kind, object, old, part, rules);
    errors.into_iter().map(|error| (error.field, error.problem.to_string())).collect()
}

fn changed(mut object: Value, changes: &[Change]) -> Value {
    for (path, value) in changes {
        let (parent, key) = path.rsplit_once('/').unwrap();
        let parent = object.pointer_mut(parent).unwrap_or_else(|| panic!("no {parent} to change"));
        match (parent, value) {
            (Value::Object(parent), Value::Null) => drop(parent.remove(key)),
            (Value::Object(parent), value) => drop(parent.insert(key.to_owned(), value.clone())),
            (parent, value) => parent[key.parse::<usize>().unwrap()] = value.clone(),
        }
    }
    object
}

#[track_caller]
fn passes(release: Release, kind: Kind, base: &Value, changes: &[Change]) {
    let object = changed(base.clone(), changes);
    assert_eq!(complaints(release, kind, &object, None, Part::Main), [], "{release}: {changes:?}");
}

#[track_caller]
fn fails(release: Release, kind: Kind, base: &Value, changes: &[Change], field: &str, why: &str) {
    let object = changed(base.clone(), changes);
    let complaints = complaints(release, kind, &object, None, Part::Main);
    let found = complaints.iter().any(|(f, problem)| f == field && problem.contains(why));
    assert!(found, "{release}: {changes:?}\nshould complain about {field} ({why}), but says {complaints:#?}");
}

fn slice() -> Value {
    json!({"metadata": {"name": "slice"}, "spec": {"driver": "gpu.example.com", "nodeName": "node-1",
        "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", "attributes": {"model": {"string": "A100"}},
            "capacity": {"memory": {"value": "40Gi"}}}]}})
}

fn devices(count: usize, device: &Value) -> Value {
    (0..count)
        .map(|i| {
            let mut device = device.clone();
            device["name"] = json!(format!("gpu-{i}"));
            device
        })
        .collect()
}

fn attributes(count: usize) -> Value {
    Value::Object((0..count).map(|i| (format!("a{i}"), json!({"int": i}))).collect())
}

fn counters(count: usize) -> Value {
    Value::Object((0..count).map(|i| (format!("c{i}"), json!({"value": "1"}))).collect())
}

fn sets(count: usize, each: usize) -> Value {
    (0..count).map(|i| json!({"name": format!("set-{i}"), "counters": counters(each)})).collect()
}

fn taints(count: usize) -> Value {
    (0..count).map(|i| json!({"key": format!("k{i}"), "effect": "NoSchedule"})).collect()
}

#[test]
fn a_plain_slice_passes_in_every_release() {
    for release in Release::ALL {
        passes(release, Kind::ResourceSlice, &slice(), &[]);
        passes(release, Kind::ResourceSlice, &slice(), &[("/spec/devices", Value::Null)]);
        passes(release, Kind::ResourceSlice, &slice(), &[("/spec/devices", json!([]))]);
    }
}

#[test]
fn slices_name_driver_pool_and_nodes() {
    let fails =
        |changes: &[Change], field: &str, why: &str| fails(V1_36, Kind::ResourceSlice, &slice(), changes, field, why);
    let passes = |changes: &[Change]| passes(V1_36, Kind::ResourceSlice, &slice(), changes);
    fails(&[("/spec/driver", Value::Null)], "spec.driver", "Required");
    fails(&[("/spec/driver", json!("gpu/example"))], "spec.driver", "RFC 1123 subdomain");
    fails(&[("/spec/driver", json!("d".repeat(64)))], "spec.driver", "may not be more than 63 bytes");
    fails(&[("/spec/pool/name", json!(""))], "spec.pool.name", "Required");
    fails(&[("/spec/pool/name", json!("Node-1"))], "spec.pool.name", "RFC 1123 subdomain");
    fails(&[("/spec/pool/name", json!("a/".repeat(127)))], "spec.pool.name", "may not be more than 253 bytes");
    passes(&[("/spec/pool/name", json!("node-1/rack.a"))]);
    fails(&[("/spec/pool/generation", json!(-1))], "spec.pool.generation", "greater than or equal to zero");
    passes(&[("/spec/pool/generation", json!(0))]);
    fails(&[("/spec/pool/resourceSliceCount", json!(0))], "spec.pool.resourceSliceCount", "greater than zero");

    fails(&[("/spec/nodeName", Value::Null)], "spec", "exactly one of `nodeName`");
    fails(&[("/spec/nodeName", json!(""))], "spec.nodeName", "non-empty string");
    fails(&[("/spec/allNodes", json!(true))], "spec", "multiple fields are set");
    fails(&[("/spec/allNodes", json!(false))], "spec.allNodes", "unset or set to true");
    passes(&[("/spec/nodeName", Value::Null), ("/spec/allNodes", json!(true))]);
    let term = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]});
    let selector =
        |terms: Value| [("/spec/nodeName", Value::Null), ("/spec/nodeSelector", json!({"nodeSelectorTerms": terms}))];
    passes(&selector(json!([term])));
    fails(&selector(json!([term, term])), "spec.nodeSelector.nodeSelectorTerms", "exactly one node selector term");
    fails(&selector(json!([])), "spec.nodeSelector.nodeSelectorTerms", "at least one");
}

#[test]
fn the_identity_of_a_slice_never_changes() {
    let old = slice();
    let updated =
        |changes: &[Change]| complaints(V1_36, Kind::ResourceSlice, &changed(slice(), changes), Some(&old), Part::Main);
    for (path, value, field) in [
        ("/spec/driver", json!("other.example.com"), "spec.driver"),
        ("/spec/pool/name", json!("node-2"), "spec.pool.name"),
        ("/spec/nodeName", json!("node-2"), "spec.nodeName"),
        ("/metadata/name", json!("other"), "metadata.name"),
    ] {
        assert!(updated(&[(path, value)]).iter().any(|(f, why)| f == field && why.contains("immutable")), "{field}");
    }
    assert_eq!(updated(&[("/spec/pool/generation", json!(0)), ("/spec/devices", json!([]))]), []);
}

#[test]
fn a_slice_has_128_devices_or_64_large_ones() {
    let plain = json!({});
    let with = |field: &str, value: Value| json!({field: value});
    let tainted = with("taints", taints(1));
    let listed = with("attributes", json!({"a": {"strings": ["x"]}}));
    let counting = with("consumesCounters", json!([{"counterSet": "set", "counters": counters(1)}]));
    for (release, device, most) in [
        (V1_32, &plain, 128),
        (V1_36, &plain, 128),
        (V1_34, &tainted, 128),
        (V1_35, &tainted, 64),
        (V1_36, &tainted, 64),
        (V1_35, &counting, 64),
        (V1_36, &listed, 64),
    ] {
        let sized = |count| [("/spec/devices", devices(count, device))];
        passes(release, Kind::ResourceSlice, &slice(), &sized(most));
        let why = format!("must have at most {most} items");
        fails(release, Kind::ResourceSlice, &slice(), &sized(most + 1), "spec.devices", &why);
    }
    let twice = [("/spec/devices", json!([{"name": "a"}, {"name": "b"}, {"name": "a"}]))];
    fails(V1_36, Kind::ResourceSlice, &slice(), &twice, "spec.devices[2]", "Duplicate value: \"a\"");
}

#[test]
fn attributes_hold_one_value_of_a_known_form() {
    const PATH: &str = "spec.devices[0].attributes[model]";
    let attribute = |value: Value| [("/spec/devices/0/attributes/model", value)];
    let passes = |release, value| passes(release, Kind::ResourceSlice, &slice(), &attribute(value));
    let fails = |value, field: &str, why: &str| {
        fails(V1_36, Kind::ResourceSlice, &slice(), &attribute(value), &format!("{PATH}{field}"), why);
    };
    for value in [json!({"int": -1}), json!({"bool": false}), json!({"string": ""}), json!({"version": "1.2.3"})] {
        passes(V1_32, value);
    }
    for value in
        [json!({"ints": [1, 2]}), json!({"bools": [true]}), json!({"strings": ["a"]}), json!({"versions": ["1.0.0"]})]
    {
        passes(V1_36, value);
    }
    passes(V1_36, json!({"string": "x".repeat(64)}));
    fails(json!({"string": "x".repeat(65)}), ".string", "may not be more than 64 bytes");
    fails(json!({"string": "ü".repeat(33)}), ".string", "may not be more than 64 bytes");
    fails(json!({"version": "550.54"}), ".version", "semver.org");
    fails(json!({"version": "570.086.10"}), ".version", "semver.org");
    fails(json!({"version": format!("1.0.0-{}", "a".repeat(60))}), ".version", "may not be more than 64 bytes");
    fails(json!({"strings": []}), ".strings", "must not be empty if specified");
    fails(json!({"strings": ["a", "x".repeat(65)]}), ".strings[1]", "may not be more than 64 bytes");
    fails(json!({"versions": ["12.4"]}), ".versions[0]", "semver.org");
    fails(json!({}), "", "exactly one value must be specified");
    fails(json!({"int": 1, "string": "1"}), "", "exactly one value must be specified");
}

#[test]
fn attributes_and_capacities_are_few_and_well_named() {
    let with =
        |changes: &[Change], field: &str, why: &str| fails(V1_36, Kind::ResourceSlice, &slice(), changes, field, why);
    passes(V1_36, Kind::ResourceSlice, &slice(), &[("/spec/devices/0/attributes", attributes(31))]);
    with(
        &[("/spec/devices/0/attributes", attributes(32))],
        "spec.devices[0]",
        "attributes and capacities must not exceed 32",
    );
    let list = |length: usize| [("/spec/devices/0/attributes", json!({"list": {"ints": vec![1; length]}}))];
    passes(V1_36, Kind::ResourceSlice, &slice(), &list(48));
    with(&list(49), "spec.devices[0]", "attribute values must not exceed 48");
    for name in ["product-name", "1st", "a b", "/x", "x/", "UPPER_dash.com/x", "a/b/c"] {
        let named =
            |map: &str| json!({name: if map == "attributes" { json!({"int": 1}) } else { json!({"value": "1"}) }});
        with(&[("/spec/devices/0/attributes", named("attributes"))], "spec.devices[0].attributes", "");
        with(&[("/spec/devices/0/capacity", named("capacity"))], "spec.devices[0].capacity", "");
    }
    let long = |name: String| [("/spec/devices/0/attributes", json!({name: {"int": 1}}))];
    passes(V1_36, Kind::ResourceSlice, &slice(), &long("a".repeat(32)));
    with(&long("a".repeat(33)), "spec.devices[0].attributes", "may not be more than 32 bytes");
    with(&[("/spec/devices/0/name", json!("GPU_0"))], "spec.devices[0].name", "RFC 1123 label");
}

#[test]
fn taints_are_few_labels_with_a_known_effect() {
    const PATH: &str = "spec.devices[0].taints[0]";
    let set = |taints: Value| [("/spec/devices/0/taints", taints)];
    let one = |key: &str, value: &str, effect: &str| set(json!([{"key": key, "value": value, "effect": effect}]));
    for (release, most) in [(V1_33, 4), (V1_34, 4), (V1_35, 16), (V1_36, 16)] {
        passes(release, Kind::ResourceSlice, &slice(), &set(taints(most)));
        let why = format!("must have at most {most} items");
        fails(release, Kind::ResourceSlice, &slice(), &set(taints(most + 1)), "spec.devices[0].taints", &why);
    }
    let refused = |release, changes: &[Change], field: &str, why: &str| {
        fails(release, Kind::ResourceSlice, &slice(), changes, &format!("{PATH}.{field}"), why);
    };
    passes(V1_36, Kind::ResourceSlice, &slice(), &one("gpu.example.com/xid", "xid-79", "None"));
    refused(V1_36, &one("gpu.example.com/xid", "Xid 79", "NoSchedule"), "value", "a valid label");
    refused(V1_36, &one("", "", "NoSchedule"), "key", "name part must be non-empty");
    refused(V1_36, &one("k", "", ""), "effect", "Required");
    refused(V1_36, &one("k", "", "Evict"), "effect", "supported values: \"NoExecute\", \"NoSchedule\", \"None\"");
    refused(V1_34, &one("k", "", "None"), "effect", "supported values: \"NoExecute\", \"NoSchedule\"");
}

#[test]
fn counter_sets_have_slices_of_their_own_from_1_35_on() {
    let both = [("/spec/sharedCounters", sets(1, 1))];
    passes(V1_34, Kind::ResourceSlice, &slice(), &both);
    for release in [V1_35, V1_36, V1_37] {
        let why = "only one of `sharedCounters` or `devices` is allowed";
        fails(release, Kind::ResourceSlice, &slice(), &both, "spec", why);
        let empty_devices = [("/spec/sharedCounters", sets(1, 1)), ("/spec/devices", json!([]))];
        fails(release, Kind::ResourceSlice, &slice(), &empty_devices, "spec", why);
        fails(release, Kind::ResourceSlice, &slice(), &[("/spec/sharedCounters", json!([]))], "spec", why);
        passes(
            release,
            Kind::ResourceSlice,
            &slice(),
            &[("/spec/sharedCounters", sets(1, 1)), ("/spec/devices", Value::Null)],
        );
    }
}

#[test]
fn counters_have_limits_and_names() {
    let only = |sets: Value| [("/spec/sharedCounters", sets), ("/spec/devices", Value::Null)];
    let passes = |release, sets| passes(release, Kind::ResourceSlice, &slice(), &only(sets));
    let fails =
        |release, sets, field: &str, why: &str| fails(release, Kind::ResourceSlice, &slice(), &only(sets), field, why);
    passes(V1_36, sets(8, 32));
    fails(V1_36, sets(9, 1), "spec.sharedCounters", "must have at most 8 items");
    fails(V1_36, sets(1, 33), "spec.sharedCounters[0].counters", "must have at most 32 items");
    fails(V1_36, sets(1, 0), "spec.sharedCounters[0].counters", "Required");
    passes(V1_34, sets(9, 3));
    fails(V1_34, sets(2, 17), "spec.sharedCounters", "shared counters must not exceed 32");
    let twice = json!([{"name": "s", "counters": counters(1)}, {"name": "s", "counters": counters(1)}]);
    fails(V1_36, twice, "spec.sharedCounters[1]", "Duplicate");
    fails(V1_36, json!([{"name": "Set_0", "counters": counters(1)}]), "spec.sharedCounters[0].name", "RFC 1123 label");
    let named = json!([{"name": "s", "counters": {"memorySlices": {"value": "1"}}}]);
    fails(V1_36, named, "spec.sharedCounters[0].counters", "RFC 1123 label");
}

#[test]
fn devices_consume_counters_within_limits() {
    const PATH: &str = "spec.devices[0].consumesCounters";
    let consuming = |count: usize, each: usize| -> Value {
        (0..count).map(|i| json!({"counterSet": format!("set-{i}"), "counters": counters(each)})).collect()
    };
    let device = |consumed: Value| [("/spec/devices/0/consumesCounters", consumed)];
    passes(V1_36, Kind::ResourceSlice, &slice(), &device(consuming(2, 32)));
    fails(V1_36, Kind::ResourceSlice, &slice(), &device(consuming(3, 1)), PATH, "must have at most 2 items");
    let field = format!("{PATH}[0].counters");
    fails(V1_36, Kind::ResourceSlice, &slice(), &device(consuming(1, 33)), &field, "must have at most 32 items");
    fails(V1_36, Kind::ResourceSlice, &slice(), &device(consuming(1, 0)), &field, "Required");

    let same_slice =
        |consumed, shared| [("/spec/devices/0/consumesCounters", consumed), ("/spec/sharedCounters", shared)];
    passes(V1_34, Kind::ResourceSlice, &slice(), &same_slice(consuming(1, 2), sets(1, 2)));
    let unknown_set = same_slice(consuming(2, 1), sets(1, 1));
    fails(
        V1_34,
        Kind::ResourceSlice,
        &slice(),
        &unknown_set,
        &format!("{PATH}[1].counterSet"),
        "must reference a counterSet",
    );
    let unknown_counter = same_slice(consuming(1, 2), sets(1, 1));
    fails(V1_34, Kind::ResourceSlice, &slice(), &unknown_counter, &field, "must reference a counter defined");
}

#[test]
fn nodes_are_chosen_per_device_only_where_the_slice_says_so() {
    let per_device = |device: Value| {
        let mut changes = vec![("/spec/nodeName", Value::Null), ("/spec/perDeviceNodeSelection", json!(true))];
        changes.push(("/spec/devices", json!([device])));
        changes
    };
    let spec =
        |changes: &[Change], field: &str, why: &str| fails(V1_36, Kind::ResourceSlice, &slice(), changes, field, why);
    passes(V1_36, Kind::ResourceSlice, &slice(), &per_device(json!({"name": "a", "nodeName": "n"})));
    spec(
        &per_device(json!({"name": "a"})),
        "spec.devices[0]",
        "exactly one of `nodeName`, `nodeSelector`, or `allNodes`",
    );
    spec(&per_device(json!({"name": "a", "nodeName": "n", "allNodes": true})), "spec.devices[0]", "exactly one of");
    spec(&[("/spec/devices/0/nodeName", json!("n"))], "spec.devices[0]", "can only be set if `perDeviceNodeSelection`");
}

#[test]
fn binding_conditions_come_in_pairs() {
    let conditions = |conditions: Value, failures: Value| {
        [("/spec/devices/0/bindingConditions", conditions), ("/spec/devices/0/bindingFailureConditions", failures)]
    };
    let fails = |c: Value, f: Value, field: &str, why: &str| {
        fails(V1_36, Kind::ResourceSlice, &slice(), &conditions(c, f), &format!("spec.devices[0].{field}"), why);
    };
    passes(V1_36, Kind::ResourceSlice, &slice(), &conditions(json!(["a", "b", "c", "d"]), json!(["x/e"])));
    fails(json!(["a"]), Value::Null, "bindingFailureConditions", "are required to use bindingConditions");
    fails(Value::Null, json!(["a"]), "bindingConditions", "are required to use bindingFailureConditions");
    fails(json!(["a", "b", "c", "d", "e"]), json!(["f"]), "bindingConditions", "must have at most 4 items");
    fails(json!(["a", "a"]), json!(["f"]), "bindingConditions[1]", "Duplicate");
    fails(json!(["a"]), json!(["a"]), "bindingFailureConditions[0]", "must not overlap");
    fails(json!(["not a label"]), json!(["f"]), "bindingConditions[0]", "name part must consist");
}

#[test]
fn request_policies_divide_a_shared_capacity() {
    const PATH: &str = "spec.devices[0].capacity[memory].requestPolicy";
    let shared = |policy: Value| {
        [
            ("/spec/devices/0/allowMultipleAllocations", json!(true)),
            ("/spec/devices/0/capacity/memory/requestPolicy", policy),
        ]
    };
    let passes = |release, policy| passes(release, Kind::ResourceSlice, &slice(), &shared(policy));
    let fails = |release, policy, field: &str, why: &str| {
        fails(release, Kind::ResourceSlice, &slice(), &shared(policy), &format!("{PATH}{field}"), why);
    };
    let range = |default: &str, range: Value| json!({"default": default, "validRange": range});
    passes(V1_36, range("1Gi", json!({"min": "1Gi", "max": "40Gi", "step": "1Gi"})));
    passes(V1_36, json!({"default": "10Gi", "validValues": ["5Gi", "10Gi", "40Gi"]}));
    passes(V1_36, json!({}));
    fails(V1_36, range("1Gi", json!({"max": "40Gi"})), ".validRange.min", "Required");
    fails(V1_36, range("1Gi", json!({"min": "2Gi"})), ".validRange.default", "default is less than min: 2Gi");
    fails(
        V1_36,
        range("1Gi", json!({"min": "1Gi", "max": "41Gi"})),
        ".validRange.max",
        "max is larger than capacity value: 40Gi",
    );
    fails(V1_36, range("3Gi", json!({"min": "1Gi", "max": "2Gi"})), ".validRange.default", "default is more than max");
    fails(V1_36, range("2Gi", json!({"min": "1Gi", "step": "40Gi"})), ".validRange.step", "one step 41Gi is larger");
    fails(
        V1_36,
        range("2Gi", json!({"min": "1Gi", "step": "3Gi"})),
        ".validRange.step",
        "not a multiple of a given step",
    );
    fails(V1_36, range("1Gi", json!({"min": "1Gi", "step": "0"})), ".validRange.step", "must be greater than zero");
    fails(V1_36, json!({"validRange": {"min": "1Gi"}}), ".default", "required when validRange");
    fails(V1_36, json!({"default": "1Gi", "validValues": ["2Gi"]}), ".validValues", "default value is not valid");
    fails(V1_36, json!({"default": "2Gi", "validValues": ["2Gi", "1Gi"]}), ".validValues[1]", "ascending order");
    fails(V1_36, json!({"default": "2Gi", "validValues": ["2Gi", "41Gi"]}), ".validValues[1]", "larger than capacity");
    fails(
        V1_36,
        json!({"default": "1Gi", "validValues": vec!["1Gi"; 11]}),
        ".validValues",
        "must have at most 10 items",
    );
    fails(
        V1_36,
        json!({"default": "1Gi", "validValues": ["1Gi"], "validRange": {"min": "1Gi"}}),
        "",
        "exactly one policy",
    );

    let halves = || range("1500m", json!({"min": "500m", "step": "500m"}));
    passes(V1_37, halves());
    passes(V1_37, range("1", json!({"min": "500m", "step": "500m"})));
    fails(V1_37, range("750m", json!({"min": "500m", "step": "500m"})), ".validRange.step", "not a multiple");
    // Integers, rounded up: 1 - 1 is a multiple of 1.
    passes(V1_36, range("750m", json!({"min": "500m", "step": "500m"})));

    let exclusive = [("/spec/devices/0/capacity/memory/requestPolicy", halves())];
    let why = "allowMultipleAllocations must be true";
    crate::fails(V1_36, Kind::ResourceSlice, &slice(), &exclusive, PATH, why);
}

fn claim() -> Value {
    json!({"metadata": {"name": "claim", "namespace": "default"}, "spec": {"devices": {
        "requests": [
            {"name": "one", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}},
            {"name": "any", "firstAvailable": [{"name": "big", "deviceClassName": "gpu", "allocationMode": "All"}]}],
        "constraints": [{"matchAttribute": "gpu.example.com/clique", "requests": ["one", "any/big"]}],
        "config": [{"requests": ["one"], "opaque": {"driver": "gpu.example.com", "parameters": {"kind": "X"}}}]}}})
}

#[test]
fn claims_ask_in_a_known_form() {
    const EXACTLY: &str = "spec.devices.requests[0].exactly";
    let fails =
        |changes: &[Change], field: &str, why: &str| fails(V1_36, Kind::ResourceClaim, &claim(), changes, field, why);
    let passes = |changes: &[Change]| passes(V1_36, Kind::ResourceClaim, &claim(), changes);
    passes(&[]);
    let devices = |rest: &str| format!("spec.devices.{rest}");
    fails(&[("/spec/devices/requests/0/exactly", Value::Null)], &devices("requests[0]"), "exactly one of `exactly`");
    fails(
        &[("/spec/devices/requests/0/exactly/deviceClassName", json!(""))],
        &format!("{EXACTLY}.deviceClassName"),
        "Required",
    );
    fails(&[("/spec/devices/requests/0/exactly/count", json!(0))], &format!("{EXACTLY}.count"), "greater than zero");
    fails(
        &[("/spec/devices/requests/0/exactly/allocationMode", json!("Some"))],
        &format!("{EXACTLY}.allocationMode"),
        "supported values: \"All\", \"ExactCount\"",
    );
    fails(
        &[("/spec/devices/requests/0/exactly/adminAccess", json!(true))],
        &format!("{EXACTLY}.adminAccess"),
        "resource.kubernetes.io/admin-access: true",
    );
    fails(
        &[("/spec/devices/requests/0/exactly/selectors", json!([{}]))],
        &format!("{EXACTLY}.selectors[0].cel"),
        "Required",
    );
    fails(&[("/spec/devices/requests/1/name", json!("one"))], &devices("requests[1]"), "Duplicate");
    fails(
        &[("/spec/devices/constraints/0/requests", json!(["two"]))],
        &devices("constraints[0].requests[0]"),
        "must be the name of a request",
    );
    fails(
        &[("/spec/devices/constraints/0/requests", json!(["one/big"]))],
        &devices("constraints[0].requests[0]"),
        "must be the name of a request",
    );
    fails(
        &[("/spec/devices/constraints/0/matchAttribute", json!("clique"))],
        &devices("constraints[0].matchAttribute"),
        "fully qualified",
    );
    fails(&[("/spec/devices/config/0/opaque", Value::Null)], &devices("config[0].opaque"), "Required");
    fails(
        &[("/spec/devices/config/0/opaque/parameters", json!([1]))],
        &devices("config[0].opaque.parameters"),
        "JSON object",
    );
    let large = json!({"x": "x".repeat(10 << 10)});
    fails(
        &[("/spec/devices/config/0/opaque/parameters", large)],
        &devices("config[0].opaque.parameters"),
        "may not be more than 10240 bytes",
    );
    let request = claim()["spec"]["devices"]["requests"][0].clone();
    let many = |count: usize| -> Value {
        (0..count).map(|i| changed(request.clone(), &[("/name", json!(format!("r{i}")))])).collect()
    };
    let only = |count| {
        [
            ("/spec/devices/requests", many(count)),
            ("/spec/devices/constraints", Value::Null),
            ("/spec/devices/config", Value::Null),
        ]
    };
    passes(&only(32));
    fails(&only(33), &devices("requests"), "must have at most 32 items");
}

#[test]
fn the_status_of_a_claim_fits_its_spec_and_allocation() {
    let result = json!({"request": "one", "driver": "gpu.example.com", "pool": "node-1", "device": "gpu-0"});
    let status = json!({"allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
        "devices": [{"driver": "gpu.example.com", "pool": "node-1", "device": "gpu-0"}]});
    let base = changed(claim(), &[("/status", status)]);
    let pending = changed(claim(), &[("/status", json!({}))]);
    let check = |old: &Value, changes: &[Change]| {
        complaints(V1_36, Kind::ResourceClaim, &changed(base.clone(), changes), Some(old), Part::Status)
    };
    assert_eq!(check(&pending, &[]), []);
    assert_eq!(
        check(
            &base,
            &[
                ("/status/allocation", Value::Null),
                ("/status/reservedFor", Value::Null),
                ("/status/devices", Value::Null)
            ]
        ),
        []
    );

    let condition = |reason: &str| {
        json!([{"type": "Ready", "status": "True", "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}])
    };
    assert_eq!(check(&base, &[("/status/devices/0/conditions", condition("Prepared"))]), []);
    let consumers = |count: usize| -> Value {
        (0..count).map(|i| json!({"resource": "pods", "name": "p", "uid": i.to_string()})).collect()
    };
    let result = "/status/allocation/devices/results/0";
    let requests: Change = ("/status/allocation/devices/results/0/request", json!("three"));
    for (old, change, field, why) in [
        (&base, ("/status/allocation/devices", json!({})), "status.allocation", "field is immutable"),
        (&pending, requests, "status.allocation.devices.results[0].request", "must be the name of a request"),
        (&pending, (result, json!({})), "status.allocation.devices.results[0].driver", "Required"),
        (&base, ("/status/reservedFor", consumers(257)), "status.reservedFor", "must have at most 256 items"),
        (&base, ("/status/allocation", Value::Null), "status.reservedFor", "may not be specified when"),
        (
            &base,
            ("/status/devices/0/device", json!("gpu-1")),
            "status.devices[0]",
            "must be an allocated device in the claim",
        ),
        (
            &base,
            ("/status/devices/0/shareID", json!("0a1b2c3d-0000-4000-8000-00000000000f")),
            "status.devices[0]",
            "must be an allocated",
        ),
        (&base, ("/status/devices/0/data", json!("text")), "status.devices[0].data", "JSON object"),
        (
            &base,
            ("/status/devices/0/data", json!({"x": "x".repeat(10 << 10)})),
            "status.devices[0].data",
            "10240 bytes",
        ),
        (&base, ("/status/devices/0/conditions", condition("")), "status.devices[0].conditions[0].reason", "Required"),
        (
            &base,
            ("/status/devices/0/conditions", condition("not one word")),
            "status.devices[0].conditions[0].reason",
            "condition reason",
        ),
    ] {
        let complaints = check(old, std::slice::from_ref(&change));
        assert!(
            complaints.iter().any(|(f, problem)| f == field && problem.contains(why)),
            "{change:?}: {complaints:#?}"
        );
    }
    assert_eq!(check(&base, &[("/status/reservedFor", consumers(256))]), []);
}

#[test]
fn classes_select_and_may_be_an_extended_resource() {
    let class = json!({"metadata": {"name": "gpu.example.com"}, "spec": {
        "selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}],
        "extendedResourceName": "example.com/gpu"}});
    passes(V1_36, Kind::DeviceClass, &class, &[]);
    let fails = |change: Change, field: &str, why: &str| fails(V1_36, Kind::DeviceClass, &class, &[change], field, why);
    fails(("/metadata/name", json!("GPU")), "metadata.name", "RFC 1123 subdomain");
    fails(("/spec/extendedResourceName", json!("gpu")), "spec.extendedResourceName", "extended resource name");
    fails(
        ("/spec/extendedResourceName", json!("kubernetes.io/gpu")),
        "spec.extendedResourceName",
        "extended resource name",
    );
    fails(("/spec/selectors/0/cel/expression", json!("")), "spec.selectors[0].cel.expression", "compilation failed");
    fails(
        ("/spec/selectors/0/cel/expression", json!("x".repeat(10_241))),
        "spec.selectors[0].cel.expression",
        "10240 bytes",
    );
}

#[test]
fn owners_and_labels_are_well_formed() {
    let owner = |uid: &str| json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": uid, "controller": true});
    let fails =
        |change: Change, field: &str, why: &str| fails(V1_36, Kind::ResourceSlice, &slice(), &[change], field, why);
    passes(V1_36, Kind::ResourceSlice, &slice(), &[("/metadata/ownerReferences", json!([owner("u")]))]);
    fails(("/metadata/ownerReferences", json!([owner("")])), "metadata.ownerReferences.uid", "must not be empty");
    fails(
        ("/metadata/ownerReferences", json!([owner("a"), owner("b")])),
        "metadata.ownerReferences",
        "Only one reference",
    );
    fails(("/metadata/labels", json!({"a b": ""})), "metadata.labels", "name part");
    fails(("/metadata/labels", json!({"a": "x y"})), "metadata.labels", "a valid label");
}
