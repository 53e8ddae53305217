//! Pods with parts and with whole GPUs come and go, in any order, while the plugin is stopped, killed and started.

use std::cell::Cell;
use std::time::{Duration, SystemTime};

use fake_node::kubelet::Clock;
use fake_node::manifest::{MIG_3G_AND_4G_ON_ONE_GPU, ONE_GPU};
use fake_node::node::{NodeError, Workload};
use fake_node::plugin::Plugin;
use serde_json::json;
use tokio::time::sleep;
use topology::Topology;

use crate::node::{Machine, claim_ref, eventually, terminate, within};
use crate::scene::Scene;

const GPUS: usize = 3;
const STEPS: usize = 60;

/// The variable that takes the same decisions as a run that failed. What comes of them also depends on the machine.
const SEED: &str = "MIG_SEED";

/// Decides.
struct Dice(Cell<u64>);

// === impl Dice ===

impl Dice {
    /// A seed that is new, or that of the environment.
    fn new() -> Self {
        let now = || SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos().into();
        let seed = std::env::var(SEED).map_or_else(|_| now(), |seed| seed.parse().unwrap());
        println!("{SEED}={seed}");
        Self(Cell::new(seed))
    }

    /// A number below this one, by Steele's SplitMix64.
    fn below(&self, limit: usize) -> usize {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut mixed = self.0.get();
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % u64::try_from(limit).unwrap()).unwrap()
    }
}

/// A pod with a part of two slices and one of one.
fn small_parts() -> String {
    let expression = |profile| format!("device.attributes['gpu.nvidia.com'].profile.startsWith('{profile}g.')");
    let request = |name: &str, slices: u32| {
        let selectors = json!([{"cel": {"expression": expression(slices)}}]);
        json!({"name": name, "exactly": {"deviceClassName": "mig.nvidia.com", "selectors": selectors}})
    };
    let template = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "small-parts"},
        "spec": {"spec": {"devices": {"requests": [request("two", 2), request("one", 1)]}}},
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "small-parts"},
        "spec": {
            "containers": [{"name": "main", "image": "none"}],
            "resourceClaims": [{"name": "parts", "resourceClaimTemplateName": "small-parts"}],
        },
    });
    format!("{template}\n---\n{pod}\n")
}

/// Another process, after the end of this one by chance.
async fn replace(scene: &Scene, dice: &Dice, plugin: Plugin) -> Plugin {
    if dice.below(3) == 0 {
        terminate(plugin).await;
    } else {
        plugin.kill().await.unwrap();
    }
    if dice.below(2) == 0 {
        return scene.plugin().await;
    }
    Plugin::start(&scene.settings()).unwrap()
}

/// Every pod has what it was given, and there is nothing else.
async fn check(scene: &Scene, running: &[Workload]) {
    for workload in running {
        within("a pod runs", workload.pod.wait_prepared()).await.unwrap();
    }
    eventually("nothing that no claim has", || (scene.existing() == scene.recorded()).then_some(())).await;
    assert_eq!(scene.count(), scene.existing().len());
    let mut given = Vec::new();
    for claim in running.iter().flat_map(|workload| &workload.claims) {
        given.extend(scene.given(&claim_ref(claim)));
    }
    let parts = given.iter().filter(|uuid| uuid.starts_with("MIG-")).count();
    let all = given.len();
    given.sort();
    given.dedup();
    assert_eq!((given.len(), parts), (all, scene.count()), "no part and no GPU is given twice");
}

#[tokio::test]
async fn after_any_sequence_of_claims_and_restarts_nothing_is_left_and_all_can_be_allocated() {
    let dice = Dice::new();
    let mut topology = Topology::builtin("hgx-h200").unwrap();
    topology.gpus.truncate(GPUS);
    // The 60 to 90 s until the kubelet tries again are half a second.
    let scene = Scene::of(Machine::of(topology).clock(Clock::scaled(150.0))).await;
    let mut plugin = scene.plugin().await;
    let manifests = [ONE_GPU, MIG_3G_AND_4G_ON_ONE_GPU, &small_parts()].map(str::to_owned);
    let mut running = Vec::new();
    let (mut ran, mut replaced) = (0, 0);
    for step in 0..STEPS {
        match dice.below(7) {
            0..3 => match scene.node.run_pod(&manifests[dice.below(3)], &format!("pod-{step}")) {
                Ok(workload) => running.push(workload),
                Err(NodeError::Allocate(_)) => {}
                Err(error) => panic!("step {step}: {error}"),
            },
            3 | 4 if !running.is_empty() => {
                let workload = running.swap_remove(dice.below(running.len()));
                within("a pod ends", scene.node.end_pod(workload)).await.unwrap();
                ran += 1;
            }
            5 => {
                plugin = replace(&scene, &dice, plugin).await;
                replaced += 1;
            }
            6 if dice.below(4) == 0 => check(&scene, &running).await,
            _ => sleep(Duration::from_millis(u64::try_from(dice.below(100)).unwrap())).await,
        }
    }
    check(&scene, &running).await;
    println!("{ran} pods ended meanwhile, {replaced} processes were replaced");
    for workload in running {
        within("a pod ends", scene.node.end_pod(workload)).await.unwrap();
    }
    // What a killed process was writing.
    scene.until_as_found("in the end").await;
    for gpu in 0..GPUS {
        scene.node.run_prepared_pod(ONE_GPU, &format!("whole-{gpu}")).await.unwrap();
    }
    terminate(plugin).await;
}
