//! A fake node for tests of the real binary: starts it, waits for what it does, and looks at what it leaves on disk.

#![allow(dead_code, reason = "each test target uses its part of it")]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fake_node::api::Gate;
use fake_node::host::Layout;
use fake_node::kubelet::{ClaimRef, Clock, Kubelet};
use fake_node::node::{self, DRIVER, NODE, Settings};
use fake_node::plugin::{Plugin, PluginSettings};
use fake_node::release::Release;
use serde_json::{Value, json};
use tempfile::TempDir;
use topology::Topology;

/// The binary under test.
const PLUGIN: &str = env!("CARGO_BIN_EXE_gpu-dra-plugin");

/// How fast the kubelet's time runs, if a test does not say: the 60 to 90 s after a failed prepare are 3 to 4.5 s.
const SCALE: f64 = 20.0;

/// How long a test waits before it fails. Machines that run tests can be very slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often what tells of no change is looked at again.
const LOOK: Duration = Duration::from_millis(20);

/// What DaemonSets grant between SIGTERM and SIGKILL by default.
const GRACE: Duration = Duration::from_secs(30);

/// Says what node to make.
pub(crate) struct Machine {
    topology: Topology,
    release: Release,
    gates: Vec<Gate>,
    layout: Layout,
    clock: Clock,
}

/// A node in a temporary directory.
pub(crate) struct TestNode {
    node: node::Node,
    _directory: TempDir,
}

// === impl Machine ===

impl Machine {
    /// One of the built-in machines.
    pub(crate) fn new(topology: &'static str) -> Self {
        Self::of(Topology::builtin(topology).unwrap())
    }

    pub(crate) fn of(topology: Topology) -> Self {
        let clock = Clock::scaled(SCALE);
        Self { topology, release: Release::V1_36, gates: Vec::new(), layout: Layout::Debian, clock }
    }

    pub(crate) fn release(self, release: Release) -> Self {
        Self { release, ..self }
    }

    /// Turns a feature gate on.
    pub(crate) fn gate(mut self, gate: Gate) -> Self {
        self.gates.push(gate);
        self
    }

    /// How the driver is installed.
    pub(crate) fn layout(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }

    pub(crate) fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Builds it, and starts a cluster and a kubelet on it, but no plugin.
    pub(crate) async fn start(self) -> TestNode {
        // Sockets are bound below it, so its path must be short.
        let directory = tempfile::Builder::new().prefix("node-").tempdir().unwrap();
        let settings = Settings {
            release: self.release,
            gates: self.gates,
            layout: self.layout,
            clock: self.clock,
            plugin: PLUGIN.into(),
            // Cargo puts the library of a dependency beside the test.
            library: std::env::current_exe().unwrap().with_file_name("libmock_nvml.so"),
            ..Settings::new(self.topology, Path::new(""))
        };
        let node = node::Node::start(settings, directory.path()).await.unwrap();
        TestNode { node, _directory: directory }
    }
}

// === impl TestNode ===

impl TestNode {
    /// A started node with this machine.
    pub(crate) async fn start(topology: &'static str) -> Self {
        Machine::new(topology).start().await
    }

    /// Starts the plugin and waits until it is ready.
    pub(crate) async fn ready_plugin(&self) -> Plugin {
        self.node.start_ready_plugin().await.unwrap()
    }

    /// Starts the plugin and waits until the kubelet has registered it; devices and slices may be missing.
    pub(crate) async fn registered_plugin(&self) -> Plugin {
        let mut plugin = self.node.start_plugin().unwrap();
        plugin.wait_for_log("the kubelet registered the plugin").await.unwrap();
        self.until_registered().await;
        plugin
    }

    /// Settings of a plugin that runs in a pod of its own, beside others.
    pub(crate) fn settings_of_pod(&self, uid: &str) -> PluginSettings {
        let mut settings = self.node.plugin_settings();
        settings.args.push(format!("--pod-uid={uid}"));
        settings.log = self.node.dir().join(format!("plugin-{uid}.log"));
        settings
    }

    /// Waits for a state of the kubelet.
    pub(crate) async fn until<T>(&self, what: &str, look: impl Fn(&Kubelet) -> Option<T>) -> T {
        within(what, self.node.kubelet.wait_until(look)).await
    }

    /// Waits until the plugin is registered and connected.
    pub(crate) async fn until_registered(&self) {
        within("the plugin is registered", self.node.kubelet.wait_for_plugin(DRIVER)).await;
    }

    /// Waits until no plugin is registered.
    pub(crate) async fn until_deregistered(&self) {
        self.until("no plugin is registered", |kubelet| kubelet.plugins().is_empty().then_some(())).await;
    }

    /// Waits for a state of the plugin's slices.
    pub(crate) async fn until_slices<T>(&self, what: &str, look: impl Fn(&[Value]) -> Option<T>) -> T {
        within(what, self.node.api.until(|_| look(&self.node.slices()))).await
    }

    /// The socket that the kubelet finds the plugin by.
    pub(crate) fn registrar_socket(&self) -> PathBuf {
        self.registry().join(format!("{DRIVER}-reg.sock"))
    }

    /// The socket that the kubelet calls.
    pub(crate) fn dra_socket(&self) -> PathBuf {
        self.node.plugin_dir().join("dra.sock")
    }

    /// The directory that the kubelet watches.
    pub(crate) fn registry(&self) -> PathBuf {
        self.node.host.kubelet_root().join("plugins_registry")
    }

    /// Names and contents of all files in the CDI directory.
    pub(crate) fn specs(&self) -> BTreeMap<String, String> {
        files(&self.node.host.cdi_dir())
    }

    /// The CDI spec of a claim.
    pub(crate) fn spec(&self, uid: &str) -> Value {
        let specs = self.specs();
        let (_, spec) = specs.iter().find(|(name, _)| name.contains(uid)).expect("the claim has a CDI spec");
        serde_json::from_str(spec).unwrap()
    }

    /// Names and contents of all claim records.
    pub(crate) fn records(&self) -> BTreeMap<String, String> {
        files(&self.node.plugin_dir().join("claims"))
    }

    /// What the kubelet knows of the devices of a claim: the CDI ids that containers get.
    pub(crate) fn cdi_ids(&self, uid: &str) -> Vec<String> {
        let claims = self.node.kubelet.prepared_claims();
        let claim = claims.iter().find(|claim| claim.uid == uid).expect("the kubelet knows the claim");
        claim.cdi_ids(None).into_iter().map(str::to_owned).collect()
    }

    /// Has a claim prepared by a call past the kubelet's memory: the CDI ids, or why not.
    pub(crate) async fn prepare(&self, claim: &ClaimRef) -> Result<Vec<String>, String> {
        let answer = within("prepare", self.node.kubelet.prepare_once(DRIVER, std::slice::from_ref(claim))).await?;
        let devices = answer.get(&claim.uid).expect("every claim is answered").clone()?;
        Ok(devices.into_iter().flat_map(|device| device.cdi_ids).collect())
    }

    /// Has a claim unprepared by a call past the kubelet's memory.
    pub(crate) async fn unprepare(&self, claim: &ClaimRef) -> Result<(), String> {
        let answer = within("unprepare", self.node.kubelet.unprepare_once(DRIVER, std::slice::from_ref(claim))).await?;
        answer.get(&claim.uid).expect("every claim is answered").clone()
    }

    /// Creates a claim that was allocated a device, whoever else was, and reserved for a pod that does not exist.
    pub(crate) fn allocated_claim(&self, name: &str, device: &str) -> ClaimRef {
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}},
        });
        let mut claim = self.node.create(claim).unwrap();
        claim["status"]["allocation"] = json!({
            "devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": NODE, "device": device}]},
        });
        claim["status"]["reservedFor"] = json!([{"resource": "pods", "name": "nobody", "uid": "nobody"}]);
        let claim = self.node.api.update_status(claim).unwrap();
        ClaimRef::new("default", name, claim["metadata"]["uid"].as_str().unwrap())
    }

    /// Has calls of NVML go wrong from now on; none do if there are no faults.
    pub(crate) fn set_nvml_faults(&self, faults: Vec<topology::Fault>) {
        self.node.host.node().update(|state| state.faults = faults).unwrap();
    }
}

impl Deref for TestNode {
    type Target = node::Node;

    fn deref(&self) -> &node::Node {
        &self.node
    }
}

impl DerefMut for TestNode {
    fn deref_mut(&mut self) -> &mut node::Node {
        &mut self.node
    }
}

/// A claim of a pod, for calls.
pub(crate) fn claim_ref(claim: &Value) -> ClaimRef {
    let text = |field: &str| claim["metadata"][field].as_str().unwrap();
    ClaimRef::new(text("namespace"), text("name"), text("uid"))
}

/// Ends the plugin with SIGTERM and checks that it neither needs to be killed nor complains.
pub(crate) async fn terminate(plugin: Plugin) {
    let end = tokio::time::timeout(GRACE, plugin.terminate()).await;
    let status = end.expect("the plugin ends in the time that a DaemonSet grants").unwrap();
    assert!(status.success(), "the plugin ended with {status}");
}

/// Waits for something that tells when it happens, but not for ever.
pub(crate) async fn within<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

/// Waits for something that tells nobody when it happens.
pub(crate) async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    within(what, async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            tokio::time::sleep(LOOK).await;
        }
    })
    .await
}

/// Names and contents of the regular files in a directory, which need not be there. Files come and go meanwhile.
fn files(directory: &Path) -> BTreeMap<String, String> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries.map(Result::unwrap),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return BTreeMap::new(),
        Err(error) => panic!("cannot read {}: {error}", directory.display()),
    };
    let mut files = BTreeMap::new();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file())) {
        match fs::read_to_string(entry.path()) {
            Ok(content) => drop(files.insert(entry.file_name().into_string().unwrap(), content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => panic!("cannot read {}: {error}", entry.path().display()),
        }
    }
    files
}
