//! SIGKILL again and again while pods come and go.
//!
//! ```text
//!  plugin     start ─▶ killed while it starts or works ─▶ start ─▶ … ─▶ start, and stays
//!  users      claim on GPUs that others want too ─▶ pod ─▶ its containers run ─▶ end ─▶ the next claim ─▶ …
//!  runtime    reads the CDI directory at any moment
//! ```

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use fake_node::kubelet::Clock;
use fake_node::node::{DRIVER, NODE};
use fake_node::plugin::Plugin;
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::node::{Machine, TestNode, terminate, within};

/// How long the plugin is killed again and again.
const DURATION: Duration = Duration::from_secs(12);

/// More than there are GPUs, so that they get in each other's way.
const USERS: usize = 6;
const GPUS: u64 = 4;

/// What a runtime takes at most until it reads the directory again.
const LOOK: Duration = Duration::from_millis(5);

/// The variable that takes the same decisions as a run that failed. What comes of them also depends on the machine.
const SEED: &str = "KILL_SEED";

/// Decides.
struct Dice(Cell<u64>);

/// A node on which all this happens.
struct Scene {
    node: TestNode,
    dice: Dice,
    end: Instant,
    /// Which pod's containers have a device node.
    in_use: RefCell<BTreeMap<String, String>>,
    kills: Cell<usize>,
    ran: Cell<usize>,
}

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
    fn below(&self, limit: u64) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut mixed = self.0.get();
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    async fn wait_up_to(&self, milliseconds: u64) {
        sleep(Duration::from_millis(self.below(milliseconds))).await;
    }
}

// === impl Scene ===

impl Scene {
    async fn new() -> Self {
        let dice = Dice::new();
        // The 60 to 90 s until the kubelet tries again are a quarter of a second.
        let node = Machine::new("hgx-a100-4gpu").clock(Clock::scaled(300.0)).start().await;
        let end = Instant::now() + DURATION;
        Self { node, dice, end, in_use: RefCell::default(), kills: Cell::new(0), ran: Cell::new(0) }
    }

    /// Starts the plugin and kills it, until there is one that stays.
    async fn kill(&self) -> Plugin {
        while Instant::now() < self.end {
            let plugin = self.node.start_plugin().unwrap();
            // Some do not get to listen, most do not get to be ready.
            self.dice.wait_up_to(if self.dice.below(3) == 0 { 100 } else { 1200 }).await;
            plugin.kill().await.unwrap();
            self.kills.set(self.kills.get() + 1);
        }
        self.node.ready_plugin().await
    }

    /// One pod after the other, of one user. The last one runs.
    async fn use_gpus(&self, user: usize) {
        for round in 0.. {
            let pod = format!("user-{user}-{round}");
            let first = self.dice.below(GPUS);
            let gpus = if self.dice.below(4) == 0 { vec![first, (first + 1) % GPUS] } else { vec![first] };
            self.create_claim(&pod, &gpus);
            let workload = self.node.run_pod(&manifest(&pod), &pod).unwrap();
            let is_last = Instant::now() >= self.end;
            // Some users change their mind.
            if !is_last && self.dice.below(5) == 0 {
                self.dice.wait_up_to(500).await;
            } else {
                within(&format!("{pod} runs"), workload.pod.wait_prepared()).await.unwrap();
                let devices = self.start_containers(&pod, &workload.claim_uids()[0]);
                assert_eq!(devices.len(), gpus.len());
                self.dice.wait_up_to(300).await;
                self.in_use.borrow_mut().retain(|_, user| *user != pod);
                self.ran.set(self.ran.get() + 1);
            }
            within(&format!("{pod} ends"), self.node.end_pod(workload)).await.unwrap();
            if is_last {
                return;
            }
        }
    }

    /// As the scheduler would not do it: whoever else has these GPUs.
    fn create_claim(&self, name: &str, gpus: &[u64]) {
        let request = json!({"name": "gpu", "exactly": {"deviceClassName": DRIVER, "count": gpus.len()}});
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": {"devices": {"requests": [request]}},
        });
        let mut claim = self.node.create(claim).unwrap();
        let result = |gpu| json!({"request": "gpu", "driver": DRIVER, "pool": NODE, "device": format!("gpu-{gpu}")});
        claim["status"]["allocation"]["devices"]["results"] = gpus.iter().map(result).collect();
        self.node.api.update_status(claim).unwrap();
    }

    /// What the containers of a pod get, which nobody else may have.
    fn start_containers(&self, pod: &str, uid: &str) -> Vec<String> {
        let spec = self.node.spec(uid);
        let kind = spec["kind"].as_str().unwrap();
        let device = |id: &String| {
            let mut devices = spec["devices"].as_array().unwrap().iter();
            let device = devices.find(|device| *id == format!("{kind}={}", device["name"].as_str().unwrap()));
            device.unwrap_or_else(|| panic!("{id} cannot be resolved"))
        };
        // A kubelet that asked twice has them twice.
        let ids: BTreeSet<_> = self.node.cdi_ids(uid).into_iter().collect();
        let node = |id| device(id)["containerEdits"]["deviceNodes"][0]["path"].as_str().unwrap().to_owned();
        let nodes: Vec<_> = ids.iter().map(node).collect();
        for node in &nodes {
            let other = self.in_use.borrow_mut().insert(node.clone(), pod.to_owned());
            assert_eq!(other, None, "{pod} got {node} too");
        }
        nodes
    }

    /// Reads specs as a runtime does, which watches the directory.
    async fn read_specs(&self) {
        loop {
            // It is not there before the first start.
            for entry in fs::read_dir(self.node.host.cdi_dir()).into_iter().flatten().map(Result::unwrap) {
                let path = entry.path();
                if path.extension().is_none_or(|extension| extension != "json") {
                    continue;
                }
                // It may be gone by now.
                let Ok(bytes) = fs::read(&path) else { continue };
                let spec = serde_json::from_slice::<Value>(&bytes);
                assert!(spec.is_ok_and(|spec| spec["devices"].is_array()), "{} is not whole", path.display());
            }
            sleep(LOOK).await;
        }
    }

    /// As if what killed processes were writing were long ago.
    fn age_what_was_half_written(&self) {
        for directory in [self.node.host.cdi_dir(), self.node.plugin_dir().join("claims"), self.node.plugin_dir()] {
            for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
                if entry.file_name().to_string_lossy().starts_with(".gpu-dra-plugin-") {
                    let file = File::options().write(true).open(entry.path()).unwrap();
                    file.set_modified(SystemTime::now() - Duration::from_secs(61)).unwrap();
                }
            }
        }
    }
}

fn manifest(name: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "containers": [{"name": "main", "image": "none"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        },
    })
    .to_string()
}

#[tokio::test]
async fn whenever_it_is_killed_all_pods_run_in_the_end_and_none_gets_what_another_has() {
    let scene = Scene::new().await;
    let all = async { tokio::join!(scene.kill(), join_all((0..USERS).map(|user| scene.use_gpus(user)))) };
    let plugin = tokio::select! {
        (plugin, _) = all => plugin,
        () = scene.read_specs() => unreachable!("a runtime reads for ever"),
    };
    println!("{} kills, {} pods ran", scene.kills.get(), scene.ran.get());
    assert!(scene.kills.get() > 1);

    terminate(plugin).await;
    scene.age_what_was_half_written();
    let plugin = scene.node.ready_plugin().await;
    assert_eq!((scene.node.specs(), scene.node.records()), (BTreeMap::new(), BTreeMap::new()));
    terminate(plugin).await;
}
