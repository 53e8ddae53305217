//! A fake node in a directory of its own, and the real plugin on it.

use std::path::PathBuf;
use std::time::Duration;

use fake_node::api::Kind;
use fake_node::kubelet::ClaimRef;
use fake_node::node::{DRIVER, NODE, Node, Settings};
use fake_node::plugin::{Plugin, PluginSettings};
use serde_json::{Value, json};
use tempfile::TempDir;
use topology::{Fault, Topology};

/// Longer than two looks of the plugin at its machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A node that vanishes with this.
pub(crate) struct Machine {
    pub(crate) node: Node,
    _directory: TempDir,
}

// === impl Machine ===

impl Machine {
    pub(crate) async fn builtin(topology: &str) -> Self {
        Self::new(Topology::builtin(topology).unwrap()).await
    }

    pub(crate) async fn new(topology: Topology) -> Self {
        // Sockets are bound below it, so it cannot be wherever TMPDIR says.
        let directory = tempfile::tempdir_in("/tmp").unwrap();
        let settings = Settings {
            plugin: env!("CARGO_BIN_EXE_gpu-dra-plugin").into(),
            library: mock_library(),
            ..Settings::new(topology, &PathBuf::new())
        };
        Self { node: Node::start(settings, directory.path()).await.unwrap(), _directory: directory }
    }

    /// The plugin's command line with other values for some of its flags.
    pub(crate) fn settings(&self, other: &[&str]) -> PluginSettings {
        let mut settings = self.node.plugin_settings();
        for flag in other {
            let (name, _) = flag.split_once('=').unwrap();
            settings.args.retain(|argument| argument.split_once('=').is_none_or(|(known, _)| known != name));
            settings.args.push((*flag).to_owned());
        }
        settings
    }

    pub(crate) fn start(&self) -> Plugin {
        self.node.start_plugin().unwrap()
    }

    pub(crate) async fn start_ready(&self) -> Plugin {
        self.node.start_ready_plugin().await.unwrap()
    }

    /// Makes NVML calls fail, and no others any more.
    pub(crate) fn fail(&self, faults: &[Fault]) {
        self.node.host.node().update(|state| state.faults = faults.to_vec()).unwrap();
    }

    /// Creates a claim with one request for each of these devices, which are its allocation.
    pub(crate) fn claim(&self, name: &str, devices: &[&str]) -> ClaimRef {
        let results = devices.iter().enumerate().map(|(at, device)| result(&format!("r{at}"), DRIVER, NODE, device));
        self.allocated_claim(name, &results.collect::<Vec<_>>(), &[])
    }

    /// Creates a claim with this allocation, reserved for a pod that does not exist.
    pub(crate) fn allocated_claim(&self, name: &str, results: &[Value], config: &[Value]) -> ClaimRef {
        let mut claim = self.unallocated_claim(name, results.len());
        claim["status"] = json!({
            "allocation": {"devices": {"results": results, "config": config}},
            "reservedFor": [{"resource": "pods", "name": "nobody", "uid": "nobody"}],
        });
        reference(&self.node.api.update_status(claim).unwrap())
    }

    /// Takes all pods off the list of a claim, as when the last one that used it is gone.
    pub(crate) fn end_reservations(&self, claim: &ClaimRef) {
        let mut claim = self.node.api.get(Kind::ResourceClaim, &claim.namespace, &claim.name).unwrap();
        claim["status"]["reservedFor"] = json!([]);
        self.node.api.update_status(claim).unwrap();
    }

    /// Creates a claim that the scheduler has not seen.
    pub(crate) fn unallocated_claim(&self, name: &str, requests: usize) -> Value {
        let request = |at| json!({"name": format!("r{at}"), "exactly": {"deviceClassName": DRIVER}});
        let requests: Vec<_> = (0..requests.max(1)).map(request).collect();
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": {"devices": {"requests": requests}}});
        self.node.create(claim).unwrap()
    }

    /// Has the kubelet call the plugin for these claims, once: what it says of each, in their order.
    pub(crate) async fn prepare(&self, claims: &[ClaimRef]) -> Vec<Result<(), String>> {
        self.node.kubelet.wait_for_plugin(DRIVER).await;
        let mut answers = self.node.kubelet.prepare_once(DRIVER, claims).await.unwrap();
        let answer = |claim: &ClaimRef| answers.remove(&claim.uid).expect("an entry for every claim").map(drop);
        let in_order = claims.iter().map(answer).collect();
        assert!(answers.is_empty(), "no entries for others: {answers:?}");
        in_order
    }

    /// As [`prepare`](Self::prepare), for one claim.
    pub(crate) async fn prepare_one(&self, claim: &ClaimRef) -> Result<(), String> {
        self.prepare(std::slice::from_ref(claim)).await.remove(0)
    }

    pub(crate) async fn unprepare_one(&self, claim: &ClaimRef) -> Result<(), String> {
        let claims = std::slice::from_ref(claim);
        self.node.kubelet.unprepare_once(DRIVER, claims).await.unwrap().remove(&claim.uid).unwrap()
    }

    /// Where the record of a claim is.
    pub(crate) fn record(&self, claim: &ClaimRef) -> PathBuf {
        self.claims_dir().join(format!("{}.json", claim.uid))
    }

    pub(crate) fn claims_dir(&self) -> PathBuf {
        self.node.plugin_dir().join("claims")
    }

    /// The names of all that is in a directory, sorted.
    pub(crate) fn files(directory: PathBuf) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The claims with a record, and those with a CDI spec: by their UIDs, sorted.
    pub(crate) fn on_disk(&self) -> [Vec<String>; 2] {
        let uid = |name: &String| name.strip_suffix(".json").map(|name| name.rsplit('_').next().unwrap().to_owned());
        [self.claims_dir(), self.node.host.cdi_dir()].map(|dir| Self::files(dir).iter().filter_map(uid).collect())
    }

    /// The names of the devices that are offered; `None` as long as there is no slice at all.
    pub(crate) fn offered(&self) -> Option<Vec<String>> {
        let devices = || self.node.devices().iter().map(|device| text(&device["name"])).collect();
        (!self.node.slices().is_empty()).then(devices)
    }

    /// Waits until exactly this many devices are offered.
    pub(crate) async fn wait_for_devices(&self, count: usize) {
        let look = |_: &_| self.offered().filter(|devices| devices.len() == count);
        let waited = tokio::time::timeout(PATIENCE, self.node.api.until(look)).await;
        waited.unwrap_or_else(|_| panic!("{count} devices are not offered, but {:?}", self.offered()));
    }
}

/// Waits until `/readyz` contains all of these texts, and gives its status.
pub(crate) async fn wait_for_readyz(plugin: &mut Plugin, texts: &[&str]) -> u16 {
    let mut last = String::new();
    let look = async {
        loop {
            let (status, text) = plugin.get("/readyz").await.unwrap();
            if texts.iter().all(|expected| text.contains(expected)) {
                return status;
            }
            last = text;
            // Nothing tells when an HTTP answer would be another one.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    if let Ok(status) = tokio::time::timeout(PATIENCE, look).await {
        return status;
    }
    panic!("{texts:?} are not in /readyz:\n{last}\nlog:\n{}", plugin.log().unwrap())
}

/// A device of an allocation.
pub(crate) fn result(request: &str, driver: &str, pool: &str, device: &str) -> Value {
    json!({"request": request, "driver": driver, "pool": pool, "device": device})
}

/// A call that fails: of one GPU, by index, or of all.
pub(crate) fn fault(call: &str, gpu: Option<usize>, code: u32) -> Fault {
    Fault { call: call.to_owned(), gpu, code: Some(code), ..Fault::default() }
}

/// How the kubelet names a claim.
pub(crate) fn reference(claim: &Value) -> ClaimRef {
    let metadata = &claim["metadata"];
    ClaimRef::new(text(&metadata["namespace"]), text(&metadata["name"]), text(&metadata["uid"]))
}

/// Cargo puts the library of a dependency beside the test.
pub(crate) fn mock_library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libmock_nvml.so")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}
