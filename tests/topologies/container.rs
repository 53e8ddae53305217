//! What a container gets: the CDI specs on the node, read and injected by an implementation of CDI that is not ours.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use container_device_interface::cache::Cache;
use container_device_interface::spec::read_spec;
use fake_node::host::{CAPS_MAJOR, DRIVER_MAJOR, UVM_MAJOR};
use serde_json::Value;
use topology::mig::GpuInstance;

/// Path, major and minor of a device node.
pub(crate) type Node = (String, u64, u64);

/// What every container with a GPU needs beside it.
pub(crate) fn control_nodes() -> BTreeSet<Node> {
    let node = |name: &str, major: u32, minor| (format!("/dev/{name}"), u64::from(major), minor);
    BTreeSet::from([
        node("nvidiactl", DRIVER_MAJOR, 255),
        node("nvidia-modeset", DRIVER_MAJOR, 254),
        node("nvidia-uvm", UVM_MAJOR, 0),
        node("nvidia-uvm-tools", UVM_MAJOR, 1),
    ])
}

/// The node of a GPU.
pub(crate) fn gpu_node(minor: u32) -> Node {
    (format!("/dev/nvidia{minor}"), u64::from(DRIVER_MAJOR), u64::from(minor))
}

/// The nodes that open a GPU instance of a GPU and its compute instances, which the driver numbers in `/proc`.
pub(crate) fn capability_nodes(proc: &Path, gpu_minor: u32, instance: &GpuInstance) -> BTreeSet<Node> {
    let directory = proc.join(format!("driver/nvidia/capabilities/gpu{gpu_minor}/mig/gi{}", instance.id));
    let compute = instance.compute_instances.iter().map(|compute| directory.join(format!("ci{}/access", compute.id)));
    let node = |file: PathBuf| {
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let minor = text.lines().find_map(|line| line.strip_prefix("DeviceFileMinor: ")).unwrap().parse().unwrap();
        (format!("/dev/nvidia-caps/nvidia-cap{minor}"), u64::from(CAPS_MAJOR), minor)
    };
    compute.chain([directory.join("access")]).map(node).collect()
}

/// Reads every spec of a CDI directory against the schema and the rules of its version, gives the devices to a container
/// that has nothing yet, and answers what that is then, in the words of the OCI runtime specification.
pub(crate) fn inject(cdi_dir: &Path, devices: Vec<String>) -> Value {
    for entry in fs::read_dir(cdi_dir).unwrap() {
        let path = entry.unwrap().path();
        if let Err(error) = read_spec(&path, 0) {
            panic!("a runtime refuses {}: {error:#}", path.display());
        }
    }
    let mut cache = Cache { spec_dirs: vec![cdi_dir.display().to_string()], ..Cache::default() };
    cache.refresh().unwrap();
    #[expect(clippy::default_trait_access, reason = "the type is of a crate that this project does not depend on")]
    let mut container = Default::default();
    cache.inject_devices(Some(&mut container), devices).unwrap();
    serde_json::to_value(&container).unwrap()
}

/// The device nodes of a container.
pub(crate) fn nodes(container: &Value) -> BTreeSet<Node> {
    let devices = container["linux"]["devices"].as_array().cloned().unwrap_or_default();
    devices.iter().map(node).collect()
}

/// The groups that its process joins.
pub(crate) fn groups(container: &Value) -> BTreeSet<u64> {
    let groups = container["process"]["user"]["additionalGids"].as_array().cloned().unwrap_or_default();
    groups.iter().map(|group| group.as_u64().unwrap()).collect()
}

fn node(device: &Value) -> Node {
    assert_eq!(device["type"], "c", "{device}");
    let number = |name: &str| device[name].as_u64().unwrap();
    (device["path"].as_str().unwrap().to_owned(), number("major"), number("minor"))
}
