//! From what is on the host to what a container gets.
//!
//! ```text
//!  Sources ──look──▶ Found ──spec──▶ Spec
//!  where things      what is there    of one claim
//!  can be            right now
//! ```
//!
//! A spec is whole or an error. A container that starts with half a driver fails in ways that nobody can read, so what is
//! missing is named here, and the kubelet tries again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::hooks::{Hooks, Link};
use super::spec::{ContainerEdits, Device, DeviceNode, Kind, Mount, Spec};
use crate::device::{GpuUuid, MigUuid, PciAddress};
use crate::host::capability::CapabilityError;
use crate::host::driver_root::{self, DriverFiles, DriverRoot, Kernel, Library, Mapped, NoLibraries, NotFound};
use crate::host::node::{self, Devices, NodeError};
use crate::host::pci;

/// The driver's own nodes, which NVIDIA lists as required beside that of each GPU. Programs open the first two; the third
/// is for tools (profilers, debuggers), and NVIDIA's driver gives it to every container too.
const CONTROL_NODES: &[&str] = &["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"];

/// The node of nvidia-modeset: a kernel module of its own, which machines without a display may lack.
const MODESET_NODE: &str = "nvidia-modeset";

/// Read and write. A container has no use for making more nodes (`m`): the runtime made those it gets.
const NODE_PERMISSIONS: &str = "rw";

/// How files are mounted: nothing in them runs with more rights or becomes a device, and nobody changes the host's copy.
const FILE_OPTIONS: &[&str] = &["ro", "nosuid", "nodev", "rbind", "rprivate"];

/// How sockets are mounted: connecting to one needs write access.
const SOCKET_OPTIONS: &[&str] = &["nosuid", "nodev", "noexec", "rbind", "rprivate"];

/// Where everything that a spec speaks of can be.
#[derive(Debug, Clone)]
pub struct Sources {
    /// Device nodes.
    pub devices: Devices,
    /// Candidates, best first; looked through each time.
    pub driver_roots: Vec<DriverRoot>,
    /// `/sys`, for what the kernel says of the driver and of its DRM nodes.
    pub sys: PathBuf,
    /// Who finishes containers.
    pub hooks: Hooks,
    /// Whether containers get what the driver has for graphics.
    pub graphics: bool,
}

/// A GPU, or a MIG device of it, that becomes a CDI device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Name of the CDI device.
    pub name: String,
    /// The name that it is published under.
    pub device: String,
    /// The identity of the GPU.
    pub uuid: GpuUuid,
    /// `<minor>` of `/dev/nvidia<minor>`.
    pub minor: u32,
    /// By which its DRM nodes are found.
    pub pci: PciAddress,
    /// The part of it that is given, where that is not all.
    pub mig: Option<MigTarget>,
}

/// A MIG device, by the ids that its capabilities have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigTarget {
    /// Of the GPU instance.
    pub gpu_instance: u32,
    /// Of the compute instance in it.
    pub compute_instance: u32,
    /// Its identity.
    pub uuid: MigUuid,
}

/// What every device of every claim shares, as it is on the host now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    devices: Devices,
    common: ContainerEdits,
    drm: BTreeMap<PciAddress, Vec<node::DeviceNode>>,
    hooks: Hooks,
}

/// Why a spec cannot be complete.
#[derive(Debug, thiserror::Error)]
pub enum Incomplete {
    /// No driver anywhere.
    #[error("the container would have no CUDA")]
    Driver(#[source] NotFound),
    /// A driver without libcuda of its version.
    #[error("the container would have no CUDA")]
    Cuda(#[source] NoLibraries),
    /// One of the driver's own nodes that containers must have.
    #[error("the container would have no /dev/{name}")]
    ControlNode {
        /// Which one.
        name: &'static str,
        /// What is wrong with it.
        #[source]
        source: NodeError,
    },
    /// The node of a GPU.
    #[error("the container would not have its GPU {device}")]
    Gpu {
        /// Which one.
        device: String,
        /// What is wrong with its node.
        #[source]
        source: NodeError,
    },
    /// The capabilities of a MIG device.
    #[error("the container could not open its MIG device {device}")]
    Mig {
        /// Which one.
        device: String,
        /// What is wrong with them.
        #[source]
        source: CapabilityError,
    },
}

// === impl Incomplete ===

impl Incomplete {
    /// Whether what is missing may appear with nobody's help: a driver may be about to be installed, a module to be loaded,
    /// and udev makes device nodes when the kernel tells it of them.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Driver(_) | Self::Cuda(_) => true,
            Self::ControlNode { source, .. } | Self::Gpu { source, .. } => source.may_pass(),
            Self::Mig { source, .. } => source.may_pass(),
        }
    }
}

// === impl Sources ===

impl Sources {
    /// Looks for the driver's files and the control nodes. Touches the disk.
    pub fn look(&self, driver_version: Option<&str>) -> Result<Found, Incomplete> {
        let kernel = Kernel::read(&self.devices.proc, &self.sys);
        let found = driver_root::find(&self.driver_roots, kernel.driver_version.as_deref());
        let root = found.map_err(Incomplete::Driver)?.root;
        let files = root.files(driver_version, &kernel, self.graphics).map_err(Incomplete::Cuda)?;
        tracing::debug!(root = %root.host().display(), version = files.version, absent = ?files.absent, "found the driver");

        let mut common = ContainerEdits { env: environment(&files), ..ContainerEdits::default() };
        for &name in CONTROL_NODES {
            let node = self.devices.node(name).map_err(|source| Incomplete::ControlNode { name, source })?;
            common.add_node(node);
        }
        match self.devices.node(MODESET_NODE) {
            Ok(node) => common.add_node(node),
            Err(error) => tracing::debug!(%error, "containers get no modeset node"),
        }
        common.hooks = self.hooks.of(&files);
        common.mounts = mounts(files, self.hooks.mount_names());
        let drm = if self.graphics { self.drm() } else { BTreeMap::new() };
        Ok(Found { devices: self.devices.clone(), common, drm, hooks: self.hooks.clone() })
    }

    /// The DRM nodes of all GPUs. Those that are not there are left out: compute does without.
    fn drm(&self) -> BTreeMap<PciAddress, Vec<node::DeviceNode>> {
        let node = |name: &String| match self.devices.node(&format!("{}{name}", node::DRM)) {
            Ok(node) => Some(node),
            Err(error) => {
                tracing::debug!(%error, "containers do not get a DRM node");
                None
            }
        };
        pci::drm_names(&self.sys).iter().map(|(gpu, names)| (*gpu, names.iter().filter_map(node).collect())).collect()
    }
}

// === impl Found ===

impl Found {
    /// The spec of one claim. Targets with one name are one device.
    pub fn spec(&self, kind: Kind, targets: &[Target]) -> Result<Spec, Incomplete> {
        let mut devices: Vec<Device> = Vec::new();
        let mut common = self.common.clone();
        for target in targets {
            if devices.iter().any(|device| device.name == target.name) {
                continue;
            }
            let name = format!("nvidia{}", target.minor);
            let node = self.devices.node(&name);
            let node = node.map_err(|source| Incomplete::Gpu { device: target.device.clone(), source })?;
            let variable = target.device.to_ascii_uppercase().replace('-', "_");
            let uuid = target.mig.as_ref().map_or(target.uuid.as_str(), |mig| mig.uuid.as_str());
            let env = vec![format!("DRA_{variable}_UUID={uuid}")];
            let mut container_edits = ContainerEdits { env, ..ContainerEdits::default() };
            container_edits.add_node(node);
            if let Some(mig) = &target.mig {
                let nodes = self.devices.capabilities(target.minor, mig.gpu_instance, mig.compute_instance);
                let nodes = nodes.map_err(|source| Incomplete::Mig { device: target.device.clone(), source })?;
                for node in nodes {
                    container_edits.add_node(node);
                }
            }
            let mut links = Vec::new();
            // A part of a GPU draws nothing, and the GPU's DRM nodes would reach all of it.
            let drm = self.drm.get(&target.pci).filter(|_| target.mig.is_none());
            for node in drm.into_iter().flatten() {
                links.extend(by_path(target.pci, &node.name).filter(|link| self.devices.has(&link.path)));
                container_edits.add_node(node.clone());
            }
            self.hooks.add_links(&links, &mut common.hooks, &mut container_edits.hooks);
            devices.push(Device { name: target.name.clone(), container_edits });
        }
        Ok(Spec::new(kind, devices, common))
    }
}

// === impl ContainerEdits ===

impl ContainerEdits {
    pub(super) fn add_node(&mut self, node: node::DeviceNode) {
        let node::DeviceNode { name, host, major, minor, mode, uid, gid } = node;
        let path = Path::new("/dev").join(name);
        let open_to_all = mode & 0o006 == 0o006;
        if !open_to_all && gid != 0 && !self.additional_gids.contains(&gid) {
            self.additional_gids.push(gid);
        }
        self.device_nodes.push(DeviceNode {
            host_path: (host != path).then_some(host),
            path,
            r#type: "c",
            major,
            minor,
            file_mode: mode,
            permissions: NODE_PERMISSIONS,
            uid: (uid != 0).then_some(uid),
            gid: (gid != 0).then_some(gid),
        });
    }
}

/// The name that udev, where there is one, gives to a DRM node by its GPU's place, which programs choose it by.
fn by_path(gpu: PciAddress, name: &str) -> Option<Link> {
    let name = name.strip_prefix(node::DRM)?;
    let role = if name.starts_with("render") { "render" } else { "card" };
    let path = format!("/dev/{}by-path/pci-{gpu}-{role}", node::DRM);
    Some(Link { target: Path::new("..").join(name), path: path.into() })
}

fn environment(files: &DriverFiles) -> Vec<String> {
    let cuda = files.libraries.iter().filter(|library| library.is_cuda());
    let directories: BTreeSet<_> = cuda.filter_map(|library| library.file.container.parent()).collect();
    let directories: Vec<_> = directories.into_iter().map(|directory| directory.to_string_lossy()).collect();
    vec!["NVIDIA_VISIBLE_DEVICES=void".to_owned(), format!("NVIDIA_CTK_LIBCUDA_DIR={}", directories.join(":"))]
}

/// All mounts; of several files that would appear at one path in the container, the first found.
fn mounts(files: DriverFiles, names: bool) -> Vec<Mount> {
    let DriverFiles { version: _, libraries, data, links, binaries, firmware, sockets, absent: _ } = files;
    let links = links.into_iter().filter(|_| names).filter_map(|(container, name)| {
        let target = container.with_file_name(name);
        let host = data.iter().find(|file| file.container == target)?.host.clone();
        Some(Mapped { host, container })
    });
    let links: Vec<_> = links.collect();
    let libraries = libraries.into_iter().flat_map(|Library { file, soname: _, aliases }| {
        let names = aliases.into_iter().filter(|_| names).map({
            let host = file.host.clone();
            move |container| Mapped { host: host.clone(), container }
        });
        [file.clone()].into_iter().chain(names).collect::<Vec<_>>()
    });
    let readable = libraries.chain(binaries).chain(firmware).chain(data).chain(links).map(|file| (file, FILE_OPTIONS));
    let sockets = sockets.into_iter().map(|file| (file, SOCKET_OPTIONS));
    let mut taken = BTreeSet::new();
    let unique = readable.chain(sockets).filter(|(file, _)| taken.insert(file.container.clone()));
    unique
        .map(|(Mapped { host, container }, options)| Mount { host_path: host, container_path: container, options })
        .collect()
}
