//! API servers that do not keep lists, counters or taints.

use std::collections::BTreeMap;

use fake_node::api::{ApiServer, Gate, Gates, Kind, Options};
use fake_node::node::{DRIVER, NODE};
use fake_node::plugin::Plugin;
use fake_node::release::Release;
use gpu_dra_plugin::cluster::{Clock, Cluster, Metrics, Published, Publisher, Settings};
use gpu_dra_plugin::device::DeviceName;
use gpu_dra_plugin::device::attribute::Value as Attribute;
use gpu_dra_plugin::slice::{CounterSet, Device, Effect, Pool, Slice, Taint};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::node::{Machine, within};
use crate::scene::{Scene, metric, readiness, watches};

const NUMA: &str = "resource.kubernetes.io/numaNode";

/// A plugin that publishes lists, as far as the server lets it.
async fn with_lists(machine: Machine, webhook: Option<fn(&mut Value)>) -> (Scene, Plugin) {
    let scene = Scene::of(machine).await;
    if let Some(webhook) = webhook {
        scene.api().mutate(Kind::ResourceSlice, webhook);
    }
    let mut settings = scene.node.plugin_settings();
    settings.args.push("--list-attributes".to_owned());
    let mut plugin = Plugin::start(&settings).unwrap();
    plugin.wait_until_ready().await.unwrap();
    scene.until("it watches", |api| (api.count(&watches()) > 0).then_some(())).await;
    (scene, plugin)
}

#[tokio::test]
async fn lists_are_published_where_the_server_keeps_them() {
    let (scene, mut plugin) = with_lists(Machine::new("dgx-h100").gate(Gate::ListTypeAttributes), None).await;
    for device in scene.node.devices() {
        assert!(device["attributes"][NUMA]["ints"].is_array(), "{device}");
        assert!(device["attributes"]["nvlinkCliques"]["strings"].is_array(), "{device}");
    }
    assert_eq!(scene.writes(), 1);
    assert_eq!(metric(&mut plugin, "slices_reduced{without=\"lists\"}").await, "0");
    assert!(scene.events("ResourceSlicesReduced").is_empty());
}

/// What no server does, but a webhook may: the attributes are simply gone.
fn drop_lists(slice: &mut Value) {
    for device in slice["spec"]["devices"].as_array_mut().into_iter().flatten() {
        let attributes = device["attributes"].as_object_mut().unwrap();
        attributes.retain(|_, value| value.get("ints").is_none() && value.get("strings").is_none());
    }
}

#[tokio::test]
async fn a_server_that_refuses_or_drops_lists_gets_one_value_each() {
    for (machine, webhook) in [
        (Machine::new("dgx-h100"), None),
        // It does not know them at all.
        (Machine::new("dgx-h100").release(Release::V1_34), None),
        (Machine::new("dgx-h100").gate(Gate::ListTypeAttributes), Some(drop_lists as fn(&mut Value))),
    ] {
        let (scene, mut plugin) = with_lists(machine, webhook).await;
        for device in scene.node.devices() {
            assert!(device["attributes"][NUMA]["int"].is_i64(), "{device}");
            assert!(device["attributes"].get("nvlinkCliques").is_none(), "{device}");
        }
        assert_eq!(scene.node.devices().len(), 8);
        assert_eq!(readiness(&mut plugin).await, (true, "ok   slices: generation 1 accepted".to_owned()));
        assert_eq!(scene.writes(), 1);
        for (extra, reduced) in [("lists", "1"), ("counters", "0"), ("taints", "0")] {
            assert_eq!(metric(&mut plugin, &format!("slices_reduced{{without=\"{extra}\"}}")).await, reduced);
        }
        let [event] = scene.events("ResourceSlicesReduced").try_into().unwrap();
        assert!(event["message"].as_str().unwrap().contains("DRAListTypeAttributes"), "{event}");
        scene.api().drop_watches();
        plugin.wait_until_ready().await.unwrap();
        assert_eq!(plugin.log().unwrap().matches("publishing less than there is").count(), 1);
        plugin.kill().await.unwrap();

        // Without the flag the slice is the same.
        scene.api().forget_requests();
        let _plugin = scene.ready_plugin().await;
        assert_eq!(scene.writes(), 0);
    }
}

/// A GPU that is offered whole and in parts, one that is well, and one that is sick. No machine is published so yet.
fn pool_with_extras() -> Pool {
    let device = |name: &str| Device {
        name: DeviceName::parse(name).unwrap(),
        attributes: BTreeMap::from([(NUMA, Attribute::Ints(vec![0, 1]))]),
        capacity: BTreeMap::new(),
        consumes_counters: BTreeMap::new(),
        taints: Vec::new(),
    };
    let counters = BTreeMap::from([("slice-0".to_owned(), 1)]);
    let consumer = |name: &str| Device {
        consumes_counters: BTreeMap::from([("gpu-0".to_owned(), counters.clone())]),
        ..device(name)
    };
    let taint = |effect| Taint { key: format!("{DRIVER}/unhealthy"), value: "xid-79".to_owned(), effect };
    let sick = Device { taints: vec![taint(Effect::NoSchedule)], ..device("gpu-2") };
    let noted = Device { taints: vec![taint(Effect::None)], ..device("gpu-3") };
    let sets = vec![CounterSet { name: "gpu-0".to_owned(), counters: counters.clone() }];
    let devices = vec![consumer("gpu-0"), consumer("gpu-0-mig-0"), device("gpu-1"), sick, noted];
    let slices = [Slice { shared_counters: sets, ..Slice::default() }, Slice { devices, ..Slice::default() }];
    Pool { name: NODE.to_owned(), slices: slices.to_vec() }
}

/// The devices that a server shows in the end, each with what it says beside its name.
async fn published(release: Release, gates: Gates) -> String {
    let api = ApiServer::start(Options { gates, ..Options::new(release, NODE) }).await.unwrap();
    let kubeconfig = tempfile::NamedTempFile::new().unwrap();
    api.write_kubeconfig(kubeconfig.path()).unwrap();
    let settings = Settings {
        kubeconfig: Some(kubeconfig.path().to_owned()),
        driver: DRIVER.to_owned(),
        node: NODE.to_owned(),
        clock: Clock::REAL,
    };
    let cluster = Cluster::connect(&settings).await.unwrap();
    let (_wanted, wanted) = watch::channel(Some(pool_with_extras()));
    let (work, mut acceptance) = Publisher::new(cluster, wanted, Metrics::default());
    let work = tokio::spawn(work.run());
    let accepted = acceptance.wait_for(|published| matches!(published, Published::Accepted { .. }));
    within("the pool is accepted", accepted).await.unwrap();
    work.abort();
    let devices =
        api.list(Kind::ResourceSlice).into_iter().filter_map(|slice| slice["spec"]["devices"].as_array().cloned());
    let short = |device: Value| {
        let marks = [
            ("[]", device["attributes"][NUMA]["ints"].is_array()),
            ("#", device["consumesCounters"].is_array()),
            ("!", device["taints"][0]["effect"] == json!("NoSchedule")),
            ("?", device["taints"][0]["effect"] == json!("None")),
        ];
        let marks: String = marks.iter().filter(|(_, is_marked)| *is_marked).map(|(mark, _)| *mark).collect();
        format!("{}{marks}", device["name"].as_str().unwrap())
    };
    devices.flatten().map(short).collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn every_release_shows_only_what_cannot_be_misunderstood() {
    let extras = [Gate::PartitionableDevices, Gate::DeviceTaints, Gate::ListTypeAttributes];
    for release in Release::ALL {
        let default = Gates::new(release);
        // As many of them as the release has.
        let all =
            extras.into_iter().fold(default.clone(), |gates, gate| gates.clone().with(gate, true).unwrap_or(gates));
        let none =
            extras.into_iter().fold(default.clone(), |gates, gate| gates.clone().with(gate, false).unwrap_or(gates));
        let reduced = "gpu-1 gpu-3";
        let without_lists = "gpu-0# gpu-0-mig-0# gpu-1 gpu-2! gpu-3?";
        let with_all = match release {
            // From 1.33 on it has counters, but in the slice of the devices, and taints, but none that only inform.
            Release::V1_32 | Release::V1_33 | Release::V1_34 => reduced,
            Release::V1_35 => without_lists,
            Release::V1_36 | Release::V1_37 => "gpu-0[]# gpu-0-mig-0[]# gpu-1[] gpu-2[]! gpu-3[]?",
        };
        let by_default = if release >= Release::V1_36 { without_lists } else { reduced };
        for (gates, expected) in [(none, reduced), (default, by_default), (all, with_all)] {
            assert_eq!(published(release, gates.clone()).await, expected, "{release} {gates:?}");
        }
    }
}
