use proptest::prelude::*;

use super::*;
use crate::cluster::fake::{DRIVER, NODE};
use crate::device::{DeviceName, attribute};
use crate::slice::{CounterSet, Device, Effect, Taint, fallback};

pub(in crate::cluster) fn owner() -> Owner {
    Owner { driver: DRIVER.into(), node: NODE.into(), node_uid: "node-uid-1".into() }
}

/// A GPU with an attribute of each type.
pub(in crate::cluster) fn gpu(number: u32) -> Device {
    Device {
        name: DeviceName::gpu(number),
        attributes: BTreeMap::from([
            ("driverVersion", attribute::Value::Version(semver::Version::new(580, 65, 6))),
            ("migCapable", attribute::Value::Bool(false)),
            ("profile", attribute::Value::String(String::new())),
            ("resource.kubernetes.io/numaNode", attribute::Value::Int(i64::from(number))),
        ]),
        capacity: BTreeMap::from([("memory", "80Gi".to_owned())]),
        consumes_counters: BTreeMap::new(),
        taints: Vec::new(),
    }
}

/// A pool with these GPUs in each slice.
pub(in crate::cluster) fn pool(slices: &[&[u32]]) -> Pool {
    let slice = |gpus: &&[u32]| Slice { devices: gpus.iter().copied().map(gpu).collect(), ..Slice::default() };
    Pool { name: NODE.into(), slices: slices.iter().map(slice).collect() }
}

pub(in crate::cluster) fn a_pool() -> Pool {
    pool(&[&[0, 1]])
}

/// A pool with everything that not all servers keep: a GPU that is offered whole and in parts, one that is well, and one
/// that is sick.
pub(in crate::cluster) fn pool_with_extras() -> Pool {
    let slice_0 = || BTreeMap::from([("slice-0".to_owned(), 1)]);
    let gpu_0 = CounterSet { name: "gpu-0".to_owned(), counters: slice_0() };
    let taint = |value: &str, effect| Taint { key: format!("{DRIVER}/unhealthy"), value: value.to_owned(), effect };
    let gpu = |number: u32| {
        let mut gpu = gpu(number);
        gpu.attributes.insert("resource.kubernetes.io/numaNode", attribute::Value::Ints(vec![number.into(), 9]));
        gpu.attributes.insert("nvlinkCliques", attribute::Value::Strings(vec!["a".to_owned(), "b".to_owned()]));
        gpu
    };
    let consumes_counters = BTreeMap::from([("gpu-0".to_owned(), slice_0())]);
    let whole =
        Device { consumes_counters: consumes_counters.clone(), taints: vec![taint("", Effect::None)], ..gpu(0) };
    let part = Device { name: DeviceName::parse("gpu-0-mig-0").unwrap(), consumes_counters, ..gpu(0) };
    let sick = Device { taints: vec![taint("xid-79", Effect::NoSchedule), taint("", Effect::None)], ..gpu(2) };
    let counters = Slice { shared_counters: vec![gpu_0], ..Slice::default() };
    let devices = Slice { devices: vec![whole, part, gpu(1), sick], ..Slice::default() };
    Pool { name: NODE.into(), slices: vec![counters, devices] }
}

pub(in crate::cluster) fn desired_for(pool: &Pool) -> Vec<Value> {
    desired(pool, &owner())
}

/// A pool as the server has it, at a generation.
fn stored(pool: &Pool, generation: u64) -> Vec<Value> {
    let store = |(index, mut slice): (usize, Value)| {
        slice["metadata"]["name"] = format!("{index:05x}-{DRIVER}-{NODE}-{generation}").into();
        slice["metadata"]["uid"] = format!("uid-{index}").into();
        slice["metadata"]["resourceVersion"] = format!("{generation}{index}").into();
        slice["spec"]["pool"]["generation"] = generation.into();
        slice
    };
    desired_for(pool).into_iter().enumerate().map(store).collect()
}

/// The plan in short: `-index@generation` by name, `~index@generation`, `+index@generation`.
fn short(existing: &[Value], pool: &Pool) -> (u64, String) {
    let plan = changes(existing, &desired_for(pool), &Adopted::default());
    let generation = |object: &Value| object["spec"]["pool"]["generation"].clone();
    let change = |change: &Change| match change {
        Change::Delete { name, .. } => format!("-{}", name.replace(&format!("-{DRIVER}-{NODE}-"), "@")),
        Change::Update { index, object, .. } => format!("~{index}@{}", generation(object)),
        Change::Create { index, object } => format!("+{index}@{}", generation(object)),
    };
    (plan.generation, plan.changes.iter().map(change).collect::<Vec<_>>().join(" "))
}

#[test]
fn from_one_pool_to_another() {
    let (one, two, three) = (pool(&[&[0]]), pool(&[&[0], &[1]]), pool(&[&[0], &[1], &[2]]));
    for (what, existing, wanted, expected) in [
        ("nothing there", vec![], &two, (1, "+0@1 +1@1")),
        ("nothing to do", stored(&two, 7), &two, (7, "")),
        ("one slice changed", stored(&two, 7), &pool(&[&[0], &[3]]), (7, "~1@7")),
        ("several changed", stored(&two, 7), &pool(&[&[2], &[3]]), (8, "~0@8 ~1@8")),
        ("one of three lost", stored(&three, 7).split_off(1), &three, (7, "+0@7")),
        ("two of three lost", stored(&three, 7).split_off(2), &three, (7, "+0@7 +1@7")),
        ("one lost and one changed", stored(&two, 7).split_off(1), &pool(&[&[0], &[3]]), (8, "~1@8 +0@8")),
        ("a slice more", stored(&one, 7), &two, (8, "~0@8 +1@8")),
        ("a slice less, and one stays", stored(&two, 7), &one, (7, "-00001@7 ~0@7")),
        ("a slice less, and two stay", stored(&three, 7), &two, (8, "-00002@7 ~0@8 ~1@8")),
        ("devices to none", stored(&one, 7), &pool(&[&[]]), (7, "~0@7")),
        ("a leftover of an older generation", [stored(&one, 6), stored(&one, 7)].concat(), &one, (7, "-00000@6")),
        ("the same index twice", [stored(&one, 7), stored(&one, 7)].concat(), &one, (7, "-00000@7")),
        ("the largest generation", stored(&one, i64::MAX.unsigned_abs()), &two, (1, "~0@1 +1@1")),
    ] {
        let (generation, changes) = short(&existing, wanted);
        assert_eq!((generation, changes.as_str()), expected, "{what}");
    }
}

/// A server that does what it is told.
fn apply(existing: &mut Vec<Value>, change: Change) {
    match change {
        Change::Delete { name, .. } => existing.retain(|slice| slice["metadata"]["name"] != *name),
        Change::Update { name, object, .. } => {
            *existing.iter_mut().find(|slice| slice["metadata"]["name"] == *name).unwrap() = object;
        }
        Change::Create { mut object, .. } => {
            let prefix = object["metadata"]["generateName"].as_str().unwrap().to_owned();
            object["metadata"]["name"] = format!("{prefix}{}", object["spec"]["pool"]["generation"]).into();
            existing.push(object);
        }
    }
}

proptest! {
    #[test]
    fn from_any_state_even_a_half_written_one_the_pool_comes_out_complete_and_at_one_generation(
        before in proptest::collection::vec(proptest::collection::vec(0_u32..4, 0..3), 1..5),
        half in proptest::collection::vec(proptest::collection::vec(0_u32..4, 0..3), 1..5),
        after in proptest::collection::vec(proptest::collection::vec(0_u32..4, 0..3), 1..5),
        written in 0_usize..9,
        lost in proptest::collection::vec(0_usize..8, 0..3),
    ) {
        let of = |slices: &[Vec<u32>]| pool(&slices.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let plan = |existing: &[Value], pool: &Pool| changes(existing, &desired_for(pool), &Adopted::default());
        let mut slices = stored(&of(&before), 7);
        // The plugin is killed in the middle of one change, and slices get lost, before it makes another.
        for change in plan(&slices, &of(&half)).changes.into_iter().take(written) {
            apply(&mut slices, change);
        }
        for index in lost {
            if !slices.is_empty() {
                slices.remove(index % slices.len());
            }
        }
        let wanted = of(&after);
        let Plan { generation, changes } = plan(&slices, &wanted);
        for change in changes {
            apply(&mut slices, change);
        }
        let count = wanted.slices.len();
        prop_assert_eq!(slices.len(), count);
        for slice in &slices {
            prop_assert_eq!(&slice["spec"]["pool"]["generation"], generation);
            prop_assert_eq!(&slice["spec"]["pool"]["resourceSliceCount"], count);
        }
        slices.sort_by_key(|slice| slice["metadata"]["name"].to_string());
        for (slice, wanted) in slices.iter().zip(desired_for(&wanted)) {
            prop_assert_eq!(&slice["spec"]["devices"], &wanted["spec"]["devices"]);
        }
        prop_assert_eq!(plan(&slices, &wanted).changes, vec![], "nothing is left to do");
    }
}

#[test]
fn slices_that_are_not_of_the_pool_are_removed() {
    let wanted = pool(&[&[0]]);
    let renamed = Pool { name: "other".into(), ..pool(&[&[0]]) };
    assert_eq!(short(&stored(&renamed, 9), &wanted), (1, "-00000@9 +0@1".into()));
    for name in ["gpu-slice", "0000-short", "0000g-x", "00001-too-large", "+0000-x", "zzzzz", "fffffffffffffffff-x"] {
        let mut stray = stored(&wanted, 7);
        stray[0]["metadata"]["name"] = name.into();
        let (_, changes) = short(&[stored(&wanted, 7), stray].concat(), &wanted);
        assert_eq!(changes, format!("-{name}"));
    }
}

#[test]
fn deleting_names_the_object_that_was_looked_at() {
    let plan = changes(&stored(&pool(&[&[0], &[1]]), 7), &desired_for(&pool(&[&[0]])), &Adopted::default());
    let Change::Delete { options, .. } = &plan.changes[0] else { panic!("{plan:?}") };
    assert_eq!(options["preconditions"], json!({"uid": "uid-1", "resourceVersion": "71"}));
}

#[test]
fn updating_keeps_what_others_wrote_beside_the_spec() {
    let mut existing = stored(&pool(&[&[0]]), 7);
    existing[0]["metadata"]["labels"] = json!({"team": "a"});
    existing[0]["metadata"]["managedFields"] = json!([{"manager": "x"}]);
    existing[0]["spec"]["devices"] = json!([{"name": "gpu-9"}]);
    let plan = changes(&existing, &desired_for(&pool(&[&[0]])), &Adopted::default());
    let Change::Update { name, object, .. } = &plan.changes[0] else { panic!("{plan:?}") };
    assert_eq!(*name, existing[0]["metadata"]["name"]);
    let metadata = &object["metadata"];
    assert_eq!((&metadata["labels"]["team"], &metadata["uid"]), (&json!("a"), &json!("uid-0")));
    assert_eq!(metadata["resourceVersion"], "70");
    assert!(metadata.get("managedFields").is_none());
    assert_eq!(object["spec"]["devices"][0]["name"], "gpu-0");
}

#[test]
fn an_owner_that_is_another_node_object_is_repaired_without_a_new_generation() {
    let wanted = pool(&[&[0], &[1]]);
    let mut existing = stored(&wanted, 7);
    existing[0]["metadata"]["ownerReferences"][0]["uid"] = "node-uid-0".into();
    existing[1]["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    assert_eq!(short(&existing, &wanted), (7, "~0@7 ~1@7".into()));
}

#[test]
fn what_the_server_made_of_a_slice_is_not_written_again() {
    let wanted = desired_for(&pool(&[&[0]]));
    let mut existing = stored(&pool(&[&[0]]), 7);
    existing[0]["spec"]["devices"][0].as_object_mut().unwrap().remove("capacity");
    let mut adopted = Adopted::default();
    assert_eq!(changes(&existing, &wanted, &adopted).changes.len(), 1, "not known yet");

    adopted.compare(0, &wanted[0], &existing[0]);
    adopted.compare(1, &wanted[0], &existing[0]);
    assert_eq!(adopted.altered().into_iter().collect::<Vec<_>>(), ["devices.capacity"], "of all slices together");
    assert!(changes(&existing, &wanted, &adopted).changes.is_empty());

    let other = desired_for(&pool(&[&[1]]));
    assert_eq!(changes(&existing, &other, &adopted).changes.len(), 1, "another wish is another matter");
    adopted.keep(1);
    adopted.compare(0, &wanted[0], &wanted[0]);
    assert!(adopted.altered().is_empty());
    assert_eq!(changes(&existing, &wanted, &adopted).changes.len(), 1, "the server stores it now");
}

#[test]
fn a_slice_without_devices_has_no_list_of_devices() {
    let slice = &desired_for(&pool(&[&[]]))[0];
    assert!(slice["spec"].get("devices").is_none(), "{slice}");
    assert_eq!(slice["spec"]["pool"]["resourceSliceCount"], 1);
}

#[test]
fn a_taint_that_is_written_again_keeps_its_time() {
    let mut wanted = pool_with_extras();
    let mut existing = stored(&wanted, 7);
    for (index, time) in ["2027-01-01T00:00:00Z", "2027-01-02T00:00:00Z"].into_iter().enumerate() {
        existing[1]["spec"]["devices"][3]["taints"][index]["timeAdded"] = time.into();
    }
    assert_eq!(short(&existing, &wanted), (7, String::new()), "a time is no difference");

    let before = wanted.slices[1].devices[3].taints.clone();
    let new = Taint { value: "xid-48".to_owned(), ..before[0].clone() };
    wanted.slices[1].devices[3].taints = vec![new, before[1].clone()];
    wanted.slices[1].devices[2].taints = before;
    let plan = changes(&existing, &desired_for(&wanted), &Adopted::default());
    let [Change::Update { object, .. }] = plan.changes.as_slice() else { panic!("{plan:?}") };
    let times = |device: usize| -> Vec<_> {
        let taints = object["spec"]["devices"][device]["taints"].as_array().unwrap();
        taints.iter().map(|taint| taint["timeAdded"].as_str()).collect()
    };
    assert_eq!(times(3), [None, Some("2027-01-02T00:00:00Z")], "a new one has no time yet");
    assert_eq!(times(2), [None, None], "nor have those of another device");

    // The device moves into another slice.
    existing.swap(0, 1);
    existing[0]["metadata"]["name"] = format!("00002-{DRIVER}-{NODE}-x").into();
    let plan = changes(&existing, &desired_for(&wanted), &Adopted::default());
    let Some(Change::Create { object, .. }) = plan.changes.last() else { panic!("{plan:?}") };
    assert_eq!(object["spec"]["devices"][3]["taints"][1]["timeAdded"], "2027-01-02T00:00:00Z");
}

#[test]
fn the_keys_of_taints_have_a_domain() {
    let mut pool = pool(&[&[0]]);
    let taint = |key: &str| Taint { key: key.to_owned(), value: String::new(), effect: Effect::NoSchedule };
    pool.slices[0].devices[0].taints = ["foreign-instance", "example.com/foreign-instance"].map(taint).to_vec();
    let existing = stored(&pool, 7);
    let taints = &existing[0]["spec"]["devices"][0]["taints"];
    assert_eq!(taints[0]["key"], format!("{DRIVER}/foreign-instance"));
    assert_eq!(taints[1]["key"], "example.com/foreign-instance");
    assert_eq!(lost(&desired_for(&pool)[0], &existing[0]), fallback::Extras::NONE);
    assert_eq!(short(&existing, &pool), (7, String::new()));

    // One that was written without goes.
    let mut bare = existing;
    bare[0]["spec"]["devices"][0]["taints"][0]["key"] = "foreign-instance".into();
    assert_eq!(short(&bare, &pool), (7, "~0@7".into()));
}

#[test]
fn answers_that_are_no_slices_do_no_harm() {
    let odd = [json!(null), json!({}), json!([1]), json!({"metadata": {"name": 3}}), json!({"spec": {"pool": "x"}})];
    assert_eq!(short(&odd, &pool(&[&[0]])), (1, "+0@1".into()));
    let mut hollow = stored(&pool(&[&[0]]), 7);
    hollow[0]["spec"] = json!(null);
    assert_eq!(short(&hollow, &pool(&[&[0]])), (1, "-00000@7 +0@1".into()));
}
