//! `/dev`: character devices where this process may make them, placeholders where it may not.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use topology::{CapabilityNodes, Topology};

use super::tree::{Tree, file};
use super::{Error, guard, sysfs};

/// Fixed major of GPUs, `nvidiactl` and `nvidia-modeset`.
pub const DRIVER_MAJOR: u32 = 195;
/// Major of `nvidia-uvm` and `nvidia-uvm-tools`. Dynamic: the kernel hands these out downwards from 511.
pub const UVM_MAJOR: u32 = 511;
/// Major of the MIG capabilities. Dynamic, from the kernel's older range of 234 to 254.
pub const CAPS_MAJOR: u32 = 237;
const DRM_MAJOR: u32 = 226;
/// Minors of `nvidiactl` and `nvidia-modeset`.
const CONTROL_MINOR: u32 = 255;
const MODESET_MINOR: u32 = 254;

/// What is under `/dev` of a fake machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceNodes {
    /// Character devices with the numbers of the real ones. Nothing answers behind them.
    Real,
    /// Regular files, each with a line `c <major>:<minor>` in it.
    Placeholders {
        /// Why there are no real ones, for people.
        why: String,
    },
}

/// One device to be made.
struct Node {
    name: String,
    major: u32,
    minor: u32,
    mode: u32,
}

// === impl DeviceNodes ===

impl DeviceNodes {
    /// The same for the nodes of MIG instances, which the mock NVML makes.
    pub(super) fn of_capabilities(&self) -> CapabilityNodes {
        match self {
            Self::Real => CapabilityNodes::Real,
            Self::Placeholders { .. } => CapabilityNodes::Placeholders,
        }
    }

    /// Makes one node or its placeholder.
    pub(super) fn add(&self, dev: &Tree, name: &str, major: u32, minor: u32, mode: u32) -> Result<(), Error> {
        dev.remove(name)?;
        match self {
            Self::Placeholders { .. } => dev.file(name, format!("c {major}:{minor}\n")),
            Self::Real => {
                let path = dev.path(name);
                if let Some(parent) = path.parent() {
                    fs::create_dir_all(parent).map_err(file("create the directory", parent))?;
                }
                make_node(&path, major, minor).map_err(file("make the device node", &path))?;
                // The umask has cut the mode of mknod.
                fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(file("set the mode of", &path))
            }
        }
    }

    /// Finds out by trying. Root without `CAP_MKNOD`, as in many sandboxes, is as good as an ordinary user.
    fn probe(dev: &Tree) -> Result<Self, Error> {
        if let Err(real) = guard::refuse_real_driver(Path::new("/proc"), Path::new("/sys")) {
            // A node with these numbers would open a real GPU.
            return Ok(Self::Placeholders { why: real.to_string() });
        }
        let path = dev.path(".probe");
        match make_node(&path, DRIVER_MAJOR, CONTROL_MINOR) {
            Ok(()) => dev.remove(".probe").map(|()| Self::Real),
            Err(error) => Ok(Self::Placeholders { why: format!("this process may not make device nodes ({error})") }),
        }
    }
}

/// Writes the whole of `/dev`, and the driver's nodes where those are.
pub(super) fn build(dev: &Tree, driver: &Tree, topology: &Topology, drm: bool) -> Result<DeviceNodes, Error> {
    dev.dir("")?;
    driver.dir("")?;
    let kind = DeviceNodes::probe(dev)?;
    for Node { name, major, minor, mode } in nodes(topology, drm) {
        // The kernel itself makes those of DRM.
        let tree = if name.starts_with("dri/") { dev } else { driver };
        kind.add(tree, &name, major, minor, mode)?;
    }
    if drm {
        for (index, gpu) in topology.gpus.iter().enumerate() {
            for (name, role) in sysfs::drm_names(index).iter().zip(["card", "render"]) {
                dev.link(format!("dri/by-path/pci-{}-{role}", gpu.bus_id), format!("../{name}"))?;
            }
        }
    }
    Ok(kind)
}

fn nodes(topology: &Topology, drm: bool) -> Vec<Node> {
    let node = |name: &str, major, minor, mode| Node { name: name.to_owned(), major, minor, mode };
    let mut nodes = vec![
        node("nvidiactl", DRIVER_MAJOR, CONTROL_MINOR, 0o666),
        node("nvidia-modeset", DRIVER_MAJOR, MODESET_MINOR, 0o666),
        node("nvidia-uvm", UVM_MAJOR, 0, 0o666),
        node("nvidia-uvm-tools", UVM_MAJOR, 1, 0o666),
    ];
    nodes.extend(topology.gpus.iter().map(|gpu| node(&gpu_node(gpu.minor), DRIVER_MAJOR, gpu.minor, 0o666)));
    if topology.gpus.iter().any(|gpu| topology.board(gpu).mig_capable) {
        nodes.push(node("nvidia-caps/nvidia-cap1", CAPS_MAJOR, 1, 0o400));
        nodes.push(node("nvidia-caps/nvidia-cap2", CAPS_MAJOR, 2, 0o444));
    }
    if drm {
        for index in 0..topology.gpus.len() {
            for name in sysfs::drm_names(index) {
                let minor = name.trim_start_matches(char::is_alphabetic).parse().unwrap_or_default();
                nodes.push(node(&format!("dri/{name}"), DRM_MAJOR, minor, 0o660));
            }
        }
    }
    nodes
}

/// Name of a GPU's node.
pub(super) fn gpu_node(minor: u32) -> String {
    format!("nvidia{minor}")
}

fn make_node(path: &Path, major: u32, minor: u32) -> io::Result<()> {
    Ok(mknodat(CWD, path, FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(major, minor))?)
}
