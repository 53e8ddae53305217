//! GPUs that the plugin partitions: the counters of their parts, and instances that are somebody else's.

use std::time::Instant;

use fake_node::api::{ApiServer, Kind, Verb};
use fake_node::node::DRIVER;
use fake_node::plugin::Plugin;
use fake_node::release::Release;
use serde_json::{Value, json};
use topology::{Gpu, Topology};

use crate::node::Machine;
use crate::repair::SOON;
use crate::scaled::PAUSES;
use crate::scene::{Scene, generation, metric, name, readiness, slice_count, uid, version, watches};

const DYNAMIC: &str = "--dynamic-mig=all";

/// A GPU that an administrator has put into MIG mode, and an instance there: the first seventh.
const TAKEN: usize = 2;
const SEVENTH: u32 = 19;

async fn start(machine: Machine) -> (Scene, Plugin) {
    let scene = Scene::of(machine).await;
    let plugin = scene.ready_plugin_with(&[DYNAMIC]).await;
    (scene, plugin)
}

fn counter_sets(slice: &Value) -> usize {
    slice["spec"]["sharedCounters"].as_array().map_or(0, Vec::len)
}

/// Name, UID and resource version of each slice.
fn versions(slices: &[Value]) -> Vec<[&str; 3]> {
    slices.iter().map(|slice| [name(slice), uid(slice), version(slice)]).collect()
}

/// Slices of which one is expected to change, without that one.
fn others(scene: &Scene, is_one: impl Fn(&Value) -> bool) -> Vec<Value> {
    scene.node.slices().into_iter().filter(|slice| !is_one(slice)).collect()
}

/// Names of devices and their taints.
fn taints(slice: &Value) -> Vec<(&str, &Value)> {
    let devices = slice["spec"]["devices"].as_array().into_iter().flatten();
    devices.filter(|device| device["taints"].is_array()).map(|d| (d["name"].as_str().unwrap(), &d["taints"])).collect()
}

fn is_of_taken(slice: &Value) -> bool {
    slice["spec"]["devices"][0]["name"].as_str().is_some_and(|name| name.starts_with(&format!("gpu-{TAKEN}-mig-")))
}

/// The slice of the GPU with the instance.
fn taken(scene: &Scene) -> Value {
    scene.node.slices().into_iter().find(is_of_taken).unwrap()
}

async fn an_instance_comes_and_goes(release: Release) {
    let scene = Scene::of(Machine::new("dgx-h100").release(release)).await;
    let host = scene.node.host.node();
    host.switch_mig(TAKEN, true).unwrap();
    let instance = host.create_instance(TAKEN, SEVENTH, Some(0)).unwrap();
    let _plugin = scene.ready_plugin_with(&[DYNAMIC]).await;
    let before = taken(&scene);
    assert!(taints(&before).is_empty(), "seen once, it may be of a claim that is just released");
    let rest = others(&scene, is_of_taken);
    scene.api().forget_requests();

    // What a claim makes changes no slice.
    let claim = scene.node.allocated_claim("part", "gpu-0-mig-1g10gb-19-6");
    scene.node.prepare(&claim).await.unwrap();
    let look = |_: &ApiServer| Some(taken(&scene)).filter(|slice| !taints(slice).is_empty());
    let tainted = scene.until("a taint", look).await;
    assert_eq!((uid(&tainted), generation(&tainted)), (uid(&before), 1));
    for (device, taints) in taints(&tainted) {
        let [taint] = taints.as_array().unwrap().as_slice() else { panic!("{device}: {taints}") };
        assert_eq!(taint["key"], format!("{DRIVER}/foreign-instance"), "{device}");
        assert_eq!(taint["effect"], "NoSchedule", "{device}");
        assert!(taint["timeAdded"].is_string(), "{device}");
    }
    let devices: Vec<_> = taints(&tainted).into_iter().map(|(device, _)| device.to_owned()).collect();
    for (start, is_covered) in [(0, true), (1, false)] {
        assert_eq!(devices.contains(&format!("gpu-{TAKEN}-mig-1g10gb-{SEVENTH}-{start}")), is_covered, "{devices:?}");
    }

    // Written again it says what it said before.
    let mut edited = tainted.clone();
    for device in edited["spec"]["devices"].as_array_mut().unwrap() {
        device.as_object_mut().unwrap().remove("capacity");
        for taint in device.get_mut("taints").and_then(Value::as_array_mut).into_iter().flatten() {
            taint["timeAdded"] = "2026-01-01T00:00:00Z".into();
        }
    }
    scene.api().update(edited).unwrap();
    let look = |_: &ApiServer| Some(taken(&scene)).filter(|s| s["spec"]["devices"][0]["capacity"].is_object());
    let repaired = scene.until("capacities", look).await;
    let of = |slice| taints(slice).into_iter().map(|(device, _)| device).collect::<Vec<_>>();
    assert_eq!(of(&repaired), devices);
    assert!(taints(&repaired).iter().all(|(_, taints)| taints[0]["timeAdded"] == "2026-01-01T00:00:00Z"));

    host.destroy_instance(TAKEN, instance.gpu_instance).unwrap();
    let look = |_: &ApiServer| Some(taken(&scene)).filter(|slice| taints(slice).is_empty());
    let after = scene.until("no taint", look).await;
    assert_eq!(after["spec"], before["spec"]);
    assert_eq!(versions(&others(&scene, is_of_taken)), versions(&rest), "after three looks, {release}");
    assert_eq!(scene.writes(), 3, "{release}");
}

#[tokio::test]
async fn an_instance_of_somebody_else_taints_what_it_covers_as_long_as_it_is_there_and_no_other_slice_changes() {
    tokio::join!(an_instance_comes_and_goes(Release::V1_36), an_instance_comes_and_goes(Release::V1_37));
}

#[tokio::test]
async fn counters_that_somebody_deletes_or_edits_are_put_right_with_one_write() {
    let (scene, mut plugin) = start(Machine::new("dgx-h100")).await;
    let has_counters = |slice: &Value| counter_sets(slice) > 0;
    let slices = scene.node.slices();
    assert_eq!(slices.iter().map(counter_sets).collect::<Vec<_>>(), [8, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert!(slices.iter().all(|slice| (generation(slice), slice_count(slice)) == (1, 9)));
    assert_eq!(metric(&mut plugin, "slices_reduced{without=\"counters\"}").await, "0");
    let (counters, rest) = (&slices[0], &slices[1..]);
    scene.api().forget_requests();

    scene.delete(counters);
    let start = Instant::now();
    let find = |_: &ApiServer| scene.node.slices().into_iter().find(has_counters);
    let again = scene.until("counters", find).await;
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!(again["spec"], counters["spec"]);

    // Whoever has more to give may give one part twice.
    let mut edited = again.clone();
    let counter = edited["spec"]["sharedCounters"][0]["counters"].as_object_mut().unwrap().values_mut().next();
    *counter.unwrap() = json!({"value": "1000"});
    scene.api().update(edited).unwrap();
    let look = |api: &ApiServer| find(api).filter(|slice| slice["spec"] == again["spec"]);
    scene.until("the counters that there are", look).await;
    assert_eq!((scene.count(Verb::Create), scene.count(Verb::Update)), (1, 1));
    assert_eq!(versions(&others(&scene, has_counters)), versions(rest));
}

#[tokio::test]
async fn sixteen_gpus_have_their_counters_in_two_slices() {
    let mut topology = Topology::builtin("dgx-h100").unwrap();
    let another = |gpu: &Gpu| Gpu {
        uuid: gpu.uuid.replacen("GPU-", "GPU-1", 1).chars().take(gpu.uuid.len()).collect(),
        minor: gpu.minor + 8,
        bus_id: format!("0001:{:02x}:00.0", gpu.minor),
        ..gpu.clone()
    };
    let more: Vec<_> = topology.gpus.iter().map(another).collect();
    topology.gpus.extend(more);
    let (scene, _plugin) = start(Machine::of(topology)).await;
    let slices = scene.node.slices();
    assert_eq!(slices.iter().map(counter_sets).collect::<Vec<_>>(), [&[8, 8][..], &[0; 16]].concat());
    assert!(slices.iter().all(|slice| (generation(slice), slice_count(slice)) == (1, 18)));
    assert_eq!(scene.writes(), 18);
}

/// What a server from 1.35 on does with the gate DRAPartitionableDevices off.
fn drop_counters(slice: &mut Value) {
    slice["spec"].as_object_mut().unwrap().remove("sharedCounters");
    for device in slice["spec"]["devices"].as_array_mut().into_iter().flatten() {
        device.as_object_mut().unwrap().remove("consumesCounters");
    }
}

#[tokio::test]
async fn where_counters_are_dropped_what_competes_for_them_is_withdrawn_and_that_is_said_once() {
    let mut topology = Topology::builtin("dgx-h100").unwrap();
    topology.gpus.truncate(2);
    for release in Release::ALL {
        let scene = Scene::of(Machine::of(topology.clone()).release(release)).await;
        if release >= Release::V1_36 {
            // It is on by default.
            scene.api().mutate(Kind::ResourceSlice, drop_counters);
        }
        let mut plugin = scene.ready_plugin_with(&[DYNAMIC, PAUSES]).await;
        assert_eq!(scene.node.devices(), [json!(null); 0], "{release}");
        let slices = scene.node.slices();
        assert_eq!((slices.len(), slices.iter().map(counter_sets).sum::<usize>()), (3, 0), "{release}");
        let before = scene.count(Verb::Watch);
        scene.api().drop_watches();
        scene.until("another watch", |api| (api.count(&watches()) > before).then_some(())).await;
        assert_eq!(readiness(&mut plugin).await, (true, "ok   slices: generation 1 accepted".to_owned()));
        assert_eq!(versions(&scene.node.slices()), versions(&slices), "{release}");
        for (extra, reduced) in [("counters", "1"), ("lists", "0"), ("taints", "0")] {
            assert_eq!(metric(&mut plugin, &format!("slices_reduced{{without=\"{extra}\"}}")).await, reduced);
        }
        let [event] = scene.events("ResourceSlicesReduced").try_into().unwrap();
        let message = event["message"].as_str().unwrap();
        assert!(message.contains("DRAPartitionableDevices") && message.contains("gpu-0-mig-1g10gb-19-6"), "{message}");
        assert_eq!(plugin.log().unwrap().matches("publishing less than there is").count(), 1, "{release}");
    }
}
