//! A node whose GPUs can be partitioned, and what a test asks of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use fake_node::kubelet::ClaimRef;
use fake_node::node::{DRIVER, NODE};
use fake_node::plugin::{Plugin, PluginSettings};
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use serde_json::{Value, json};
use topology::mig::GpuInstance;
use topology::{Fault, GpuState, NodeDir, Topology};

use crate::node::{Machine, TestNode, eventually};

/// Has the plugin partition all GPUs that it can.
pub(crate) const DYNAMIC: &str = "--dynamic-mig=all";

/// Parts of an H100 with 80 GB.
pub(crate) const THREE_AT_4: &str = "mig-3g40gb-9-4";
pub(crate) const THREE_AT_0: &str = "mig-3g40gb-9-0";
pub(crate) const FOUR: &str = "mig-4g40gb-5-0";
pub(crate) const ALL: &str = "mig-7g80gb-0-0";

/// A node that claims come to.
pub(crate) struct Scene {
    pub(crate) node: TestNode,
    /// What the GPUs are like before any claim.
    found: BTreeMap<usize, bool>,
}

/// A part of a GPU by its record, or by NVML.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Made {
    pub(crate) gpu: usize,
    pub(crate) gpu_instance: u32,
    pub(crate) compute_instance: u32,
    pub(crate) uuid: String,
}

// === impl Scene ===

impl Scene {
    /// Starts everything but the plugin.
    pub(crate) async fn new(topology: &'static str) -> Self {
        Self::of(Machine::new(topology)).await
    }

    /// The first GPUs of a DGX H100, so that a look at them takes few calls.
    pub(crate) async fn h100(gpus: usize) -> Self {
        let mut topology = Topology::builtin("dgx-h100").unwrap();
        topology.gpus.truncate(gpus);
        Self::of(Machine::of(topology)).await
    }

    pub(crate) async fn of(machine: Machine) -> Self {
        let mut scene = Self { node: machine.start().await, found: BTreeMap::new() };
        scene.settle();
        scene
    }

    /// Takes MIG modes as they are now for those that the machine was found with.
    pub(crate) fn settle(&mut self) {
        self.found = self.modes();
    }

    /// Settings of a plugin that partitions GPUs.
    pub(crate) fn settings(&self) -> PluginSettings {
        let mut settings = self.node.plugin_settings();
        settings.args.push(DYNAMIC.to_owned());
        settings
    }

    /// Starts such a plugin, and waits until it is ready and registered.
    pub(crate) async fn plugin(&self) -> Plugin {
        self.plugin_with(&self.settings()).await
    }

    /// The same, once something else is done that it need not wait for to become ready.
    pub(crate) async fn plugin_after(&self, event: impl Future<Output = ()>) -> Plugin {
        let mut plugin = Plugin::start(&self.settings()).unwrap();
        event.await;
        plugin.wait_until_ready().await.unwrap();
        self.node.until_registered().await;
        plugin
    }

    pub(crate) async fn plugin_with(&self, settings: &PluginSettings) -> Plugin {
        let mut plugin = Plugin::start(settings).unwrap();
        plugin.wait_until_ready().await.unwrap();
        self.node.until_registered().await;
        plugin
    }

    pub(crate) fn nvml(&self) -> &NodeDir {
        self.node.host.node()
    }

    /// What NVML says of a GPU.
    pub(crate) fn gpu(&self, index: usize) -> GpuState {
        self.nvml().state().unwrap().gpus.remove(&index).unwrap_or_default()
    }

    pub(crate) fn instances(&self, gpu: usize) -> Vec<GpuInstance> {
        self.gpu(gpu).mig.gpu_instances
    }

    /// How many GPU instances there are on all GPUs.
    pub(crate) fn count(&self) -> usize {
        self.gpus().map(|gpu| self.instances(gpu).len()).sum()
    }

    /// Whether MIG mode is on.
    pub(crate) fn mode(&self, gpu: usize) -> bool {
        self.gpu(gpu).mig_on(&self.node.host.topology().gpus[gpu])
    }

    fn gpus(&self) -> impl Iterator<Item = usize> + use<> {
        0..self.node.host.topology().gpus.len()
    }

    fn modes(&self) -> BTreeMap<usize, bool> {
        self.gpus().map(|gpu| (gpu, self.mode(gpu))).collect()
    }

    /// What NVML has, of all GPUs; only whole MIG devices.
    pub(crate) fn existing(&self) -> BTreeSet<Made> {
        let devices = |gpu| {
            let instances = self.instances(gpu).into_iter();
            instances.flat_map(move |instance| {
                let id = instance.id;
                let made = move |(compute_instance, uuid)| Made { gpu, gpu_instance: id, compute_instance, uuid };
                instance.compute_instances.into_iter().map(|compute| (compute.id, compute.uuid)).map(made)
            })
        };
        self.gpus().flat_map(devices).collect()
    }

    /// What records say was made.
    pub(crate) fn recorded(&self) -> BTreeSet<Made> {
        let mut made = BTreeSet::new();
        for record in self.records() {
            for device in record["devices"].as_array().unwrap().iter().filter(|device| !device["made"].is_null()) {
                let id = |name: &str| u32::try_from(device["made"][name].as_u64().unwrap()).unwrap();
                let gpu = self.node.host.topology().gpus.iter().position(|gpu| device["gpu"] == *gpu.uuid).unwrap();
                made.insert(Made {
                    gpu,
                    gpu_instance: id("gpuInstance"),
                    compute_instance: id("computeInstance"),
                    uuid: device["made"]["uuid"].as_str().unwrap().to_owned(),
                });
            }
        }
        made
    }

    /// GPU instances that no record has a place for.
    pub(crate) fn unknown(&self) -> Vec<(usize, GpuInstance)> {
        let records = self.records();
        let devices: Vec<_> = records.iter().flat_map(|record| record["devices"].as_array().unwrap()).collect();
        let is_known = |gpu: usize, instance: &GpuInstance| {
            let uuid = &self.node.host.topology().gpus[gpu].uuid;
            let part = json!({
                "profile": instance.profile, "start": instance.placement.start, "size": instance.placement.size,
            });
            devices.iter().any(|device| device["gpu"] == **uuid && device["part"] == part)
        };
        let instances =
            self.gpus().flat_map(|gpu| self.instances(gpu).into_iter().map(move |instance| (gpu, instance)));
        instances.filter(|(gpu, instance)| !is_known(*gpu, instance)).collect()
    }

    /// The claim records, not what is beside them: notices, and what a killed process was writing.
    pub(crate) fn records(&self) -> Vec<Value> {
        let records = self
            .node
            .records()
            .into_iter()
            .filter(|(name, _)| name.strip_suffix(".json").is_some() && !name.starts_with('.'));
        records.map(|(_, record)| serde_json::from_str(&record).unwrap()).collect()
    }

    /// The UUIDs in the environments that a claim's devices give to containers.
    pub(crate) fn given(&self, claim: &ClaimRef) -> BTreeSet<String> {
        let spec = self.node.spec(&claim.uid);
        let devices = spec["devices"].as_array().unwrap().iter();
        let env = devices.flat_map(|device| device["containerEdits"]["env"].as_array().unwrap());
        env.filter_map(|line| Some(line.as_str().unwrap().split_once("_UUID=")?.1.to_owned())).collect()
    }

    /// What is left of claims, in words; nothing if the node is as it was found.
    pub(crate) fn left(&self) -> Option<String> {
        let specs = self.node.specs().into_keys().filter(|name| !name.starts_with('.')).collect::<Vec<_>>();
        let left = (self.count(), self.modes() != self.found, self.records().len(), specs.len());
        (left != (0, false, 0, 0)).then(|| {
            let (instances, modes) = (self.existing(), self.modes());
            format!("instances {instances:?}, modes {modes:?}, records {:?}, specs {specs:?}", self.records())
        })
    }

    /// Waits until the node is as it was found.
    pub(crate) async fn until_as_found(&self, what: &str) {
        eventually(&format!("{what}: nothing is left of claims"), || self.left().is_none().then_some(())).await;
    }

    /// Has calls of NVML go wrong from now on.
    pub(crate) fn fault(&self, fault: Fault) {
        self.node.set_nvml_faults(vec![fault]);
    }

    pub(crate) fn mend(&self) {
        self.node.set_nvml_faults(Vec::new());
    }

    /// The calls that NVML gets while something happens.
    pub(crate) fn calls<'a, T: 'a>(
        &'a self,
        event: impl Future<Output = T> + 'a,
    ) -> LocalBoxFuture<'a, (T, Vec<String>)> {
        let log = self.nvml().calls_path();
        async move {
            fs::write(&log, "").unwrap();
            let result = event.await;
            let calls = fs::read_to_string(&log).unwrap();
            fs::remove_file(&log).unwrap();
            (result, calls.lines().map(str::to_owned).collect())
        }
        .boxed_local()
    }

    /// Creates a claim that was allocated these devices, whoever else was.
    pub(crate) fn claim(&self, name: &str, devices: &[&str]) -> ClaimRef {
        let count = devices.len();
        let request = json!({"name": "gpu", "exactly": {"deviceClassName": DRIVER, "count": count}});
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": {"devices": {"requests": [request]}},
        });
        let mut claim = self.node.create(claim).unwrap();
        let result = |device| json!({"request": "gpu", "driver": DRIVER, "pool": NODE, "device": device});
        claim["status"]["allocation"]["devices"]["results"] = devices.iter().map(result).collect();
        claim["status"]["reservedFor"] = json!([{"resource": "pods", "name": "nobody", "uid": "nobody"}]);
        let claim = self.node.api.update_status(claim).unwrap();
        ClaimRef::new("default", name, claim["metadata"]["uid"].as_str().unwrap())
    }

    /// The device of a name in the slices.
    pub(crate) fn device(&self, name: &str) -> Option<Value> {
        self.node.devices().into_iter().find(|device| device["name"] == name)
    }

    /// Whether a device is offered and tainted so that nobody new gets it.
    pub(crate) fn is_tainted(&self, name: &str) -> bool {
        let device = self.device(name).expect("the device is offered");
        device["taints"].as_array().is_some_and(|taints| taints.iter().any(|taint| taint["effect"] == "NoSchedule"))
    }
}

/// The name of a part.
pub(crate) fn part(gpu: usize, part: &str) -> String {
    format!("gpu-{gpu}-{part}")
}
