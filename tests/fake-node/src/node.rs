//! A whole node: host tree, API server, kubelet, and the plugin as a process on all of that.
//!
//! ```text
//!  Node::start ──▶ host, api, kubelet, DeviceClasses        ready for any plugin
//!  start_plugin ─▶ a process; several at once if a scenario wants that
//!  run_pod ──────▶ claims from templates ─▶ allocator ─▶ status ─▶ kubelet prepares
//!  end_pod ──────▶ kubelet unprepares ─▶ claims deallocated and deleted
//! ```

mod source;
mod workload;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use topology::Topology;

use crate::allocator::{AllocateError, InvalidTemplate};
use crate::api::{self, ApiError, ApiServer, Failure, Gate, GateError, Gates, Kind};
use crate::host::{self, DeviceNodes, Host, HostBuilder, Layout};
use crate::kubelet::{self, Clock, Kubelet};
use crate::manifest::{self, NotYaml};
use crate::plugin::{Plugin, PluginError, PluginSettings};
use crate::release::Release;

pub use workload::Workload;

/// The name of the node, and of the plugin's pool.
pub const NODE: &str = "fake-node";

/// The driver name.
pub const DRIVER: &str = "gpu.nvidia.com";

/// What node to make.
pub struct Settings {
    /// The machine.
    pub topology: Topology,
    /// The Kubernetes release.
    pub release: Release,
    /// Feature gates that are on beside those that the release has on by default.
    pub gates: Vec<Gate>,
    /// How the NVIDIA driver is installed.
    pub layout: Layout,
    /// Whether the module `nvidia-drm` is loaded: GPUs have DRM nodes then.
    pub drm: bool,
    /// How fast the kubelet's time runs.
    pub clock: Clock,
    /// The plugin's binary.
    pub plugin: PathBuf,
    /// The built mock NVML.
    pub library: PathBuf,
}

/// A running node in a directory that stays when this is dropped.
pub struct Node {
    /// Its file tree and devices.
    pub host: Host,
    /// Its cluster.
    pub api: ApiServer,
    /// Its kubelet.
    pub kubelet: Kubelet,
    plugin: PathBuf,
}

/// Why a node or something on it failed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The host tree.
    #[error("cannot build the machine")]
    Host(#[source] host::Error),
    /// The API server's address or kubeconfig.
    #[error("cannot start the cluster")]
    Api(#[source] ApiError),
    /// A feature gate that the release has not.
    #[error("cannot set up the cluster")]
    Gate(#[source] GateError),
    /// The API server refused an object.
    #[error("the API server refused {what}: {reason}")]
    Refused {
        /// Which object.
        what: String,
        /// Its answer.
        reason: String,
    },
    /// The plugin's process.
    #[error("the plugin failed")]
    Plugin(#[source] PluginError),
    /// A manifest.
    #[error("cannot use a manifest")]
    Manifest(#[source] NotYaml),
    /// A manifest without something that a scenario needs.
    #[error("the manifest has no {0}")]
    Missing(&'static str),
    /// A template.
    #[error("cannot make a claim")]
    Template(#[source] InvalidTemplate),
    /// The claim got no devices.
    #[error(transparent)]
    Allocate(AllocateError),
    /// The kubelet could not prepare a pod.
    #[error("the kubelet cannot prepare the pod: {0}")]
    Prepare(String),
}

// === impl Settings ===

impl Settings {
    /// The file name of the built mock NVML.
    pub const LIBRARY: &str = "libmock_nvml.so";

    /// A node of this machine with the newest defaults; both binaries are looked for beside the running program.
    pub fn new(topology: Topology, directory_of_binaries: &Path) -> Self {
        Self {
            topology,
            release: Release::V1_36,
            gates: Vec::new(),
            layout: Layout::Debian,
            drm: false,
            clock: Clock::REAL,
            plugin: directory_of_binaries.join("gpu-dra-plugin"),
            library: directory_of_binaries.join(Self::LIBRARY),
        }
    }
}

// === impl Node ===

impl Node {
    /// Builds the machine in `dir`, which must be new or empty, and starts a cluster and a kubelet.
    pub async fn start(settings: Settings, dir: &Path) -> Result<Self, NodeError> {
        let Settings { topology, release, gates, layout, drm, clock, plugin, library } = settings;
        let gates = gates.into_iter().try_fold(Gates::new(release), |gates, gate| gates.with(gate, true));
        let gates = gates.map_err(NodeError::Gate)?;
        let builder = HostBuilder::new(topology, library).layout(layout);
        let builder = if drm { builder.drm() } else { builder };
        let host = builder.build(dir).map_err(NodeError::Host)?;
        let options = api::Options { gates, ..api::Options::new(release, NODE) };
        let api = ApiServer::start(options).await.map_err(NodeError::Api)?;
        api.write_kubeconfig(&kubeconfig(&host)).map_err(NodeError::Api)?;
        let claims = Arc::new(source::ApiClaims { address: api.address(), release });
        let options = kubelet::Options::new(release, host.kubelet_root(), NODE, claims);
        let kubelet = Kubelet::start(kubelet::Options { clock, ..options });
        let node = Self { host, api, kubelet, plugin };
        node.apply(manifest::DEVICE_CLASSES)?;
        Ok(node)
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        self.host.dir()
    }

    /// For kubectl.
    pub fn kubeconfig(&self) -> PathBuf {
        kubeconfig(&self.host)
    }

    /// Where the plugin's log is.
    pub fn plugin_log(&self) -> PathBuf {
        self.dir().join("plugin.log")
    }

    /// The directory that the plugin keeps its state in.
    pub fn plugin_dir(&self) -> PathBuf {
        self.host.kubelet_root().join("plugins").join(DRIVER)
    }

    /// The plugin's command line for this node.
    pub fn plugin_settings(&self) -> PluginSettings {
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let mut args = vec![
            format!("--node-name={NODE}"),
            format!("--driver-name={DRIVER}"),
            flag("kubeconfig", &self.kubeconfig()),
            flag("kubelet-root", &self.host.kubelet_root()),
            flag("cdi-root", &self.host.cdi_dir()),
            flag("driver-root", self.host.driver_root()),
            flag("sys-root", self.host.sys()),
            flag("proc-root", self.host.proc()),
            flag("dev-root", self.host.dev()),
            "--http-endpoint=127.0.0.1:0".to_owned(),
        ];
        if let DeviceNodes::Placeholders { .. } = self.host.device_nodes() {
            args.push("--placeholder-devices".to_owned());
        }
        PluginSettings { binary: self.plugin.clone(), args, log: self.plugin_log() }
    }

    /// Starts the plugin.
    pub fn start_plugin(&self) -> Result<Plugin, NodeError> {
        Plugin::start(&self.plugin_settings()).map_err(NodeError::Plugin)
    }

    /// Starts the plugin and waits until it says that the node can be used.
    pub async fn start_ready_plugin(&self) -> Result<Plugin, NodeError> {
        let mut plugin = self.start_plugin()?;
        plugin.wait_until_ready().await.map_err(NodeError::Plugin)?;
        Ok(plugin)
    }

    /// Creates the objects of a manifest, in namespace `default` where they name none.
    pub fn apply(&self, yaml: &str) -> Result<Vec<Value>, NodeError> {
        let objects = manifest::objects(yaml).map_err(NodeError::Manifest)?;
        objects.into_iter().map(|object| self.create(object)).collect()
    }

    /// Creates an object, in namespace `default` where it names none.
    pub fn create(&self, mut object: Value) -> Result<Value, NodeError> {
        let what = format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]));
        let cluster_wide = matches!(text(&object["kind"]), "DeviceClass" | "ResourceSlice" | "Node" | "Namespace");
        if !cluster_wide && object["metadata"]["namespace"].is_null() {
            object["metadata"]["namespace"] = "default".into();
        }
        self.api.create(object).map_err(|failure| refused(what, &failure))
    }

    /// The plugin's slices, in the order of their names.
    pub fn slices(&self) -> Vec<Value> {
        let ours = |slice: &Value| slice["spec"]["driver"] == DRIVER;
        self.api.list(Kind::ResourceSlice).into_iter().filter(ours).collect()
    }

    /// The devices in the plugin's slices, in the order in which they are offered.
    pub fn devices(&self) -> Vec<Value> {
        let devices = |slice: Value| slice["spec"]["devices"].as_array().cloned().unwrap_or_default();
        self.slices().into_iter().flat_map(devices).collect()
    }
}

fn kubeconfig(host: &Host) -> PathBuf {
    host.dir().join("kubeconfig")
}

fn refused(what: String, failure: &Failure) -> NodeError {
    NodeError::Refused { what, reason: failure.to_string() }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
