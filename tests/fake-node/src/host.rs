//! The host tree of a machine without a GPU: everything that a plugin, a container runtime or a person reads from the
//! file system of a machine with GPUs, in one directory.
//!
//! ```text
//!  Topology ──▶ HostBuilder ──▶ <dir>/sys      PCI, IOMMU, NUMA, modules                      Host::sys
//!                               <dir>/proc     driver, devices, boot id                       Host::proc
//!                               <dir>/dev      device nodes, or placeholders                  Host::dev
//!                               <dir>/…        libraries, binaries, firmware (see `Layout`)   Host::driver_root
//!                               <dir>/nvml     a link into the driver root: the mock's state   Host::node
//!                               <dir>/var/run  what a reboot empties                          Host::cdi_dir
//!                               <dir>/kubelet  the kubelet's own directory                    Host::kubelet_root
//! ```
//!
//! A scenario then changes the machine under the plugin: it loses a device node, gets another driver, is rebooted.
//! What only NVML knows (a lost GPU, a dead link, an XID) is changed through [`Host::node`].

mod devfs;
mod driver_root;
mod elf;
mod guard;
mod layout;
mod procfs;
mod smi;
mod sysfs;
mod tree;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use topology::{CapabilityNodes, Gpu, HostFiles, NodeDir, Topology};

pub use self::devfs::{CAPS_MAJOR, DRIVER_MAJOR, DeviceNodes, UVM_MAJOR};
pub use self::guard::{RealDriver, refuse_real_driver};
pub use self::layout::Layout;

use self::driver_root::{DriverRoot, Transform};
use self::tree::{Tree, file};

/// Bytes of a socket's path that Linux takes (`sun_path` less its final zero).
const SOCKET_PATH: usize = 107;
/// The longest path below the tree that a plugin may bind: its DRA socket during a rolling update, which carries the
/// pod's UID.
const LONGEST_SOCKET: &str = "/kubelet/plugins/gpu.nvidia.com/dra-00000000-0000-0000-0000-000000000000.sock";

/// Says what machine to build.
pub struct HostBuilder {
    topology: Topology,
    mock_library: PathBuf,
    transform: Option<Transform>,
    layout: Layout,
    drm: bool,
}

/// A machine in a directory. The directory stays when this is dropped.
pub struct Host {
    dir: PathBuf,
    topology: Topology,
    node: NodeDir,
    sys: Tree,
    proc: Tree,
    dev: Tree,
    driver_dev: Tree,
    driver: DriverRoot,
    driver_version: String,
    device_nodes: DeviceNodes,
}

/// Why a machine could not be built or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system said no.
    #[error("cannot {act} {}", path.display())]
    File {
        /// What was tried: "write", "remove", "create the directory".
        act: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The directory has something in it that the tree could overwrite.
    #[error("{} is not empty: name a new directory for the machine", path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// Unix sockets in the tree would not fit.
    #[error(
        "{} is too long: sockets below it need paths of at most {SOCKET_PATH} bytes, which leaves {longest} for the \
         directory; take a shorter one, for example /tmp/node",
        path.display()
    )]
    TooLong {
        /// The directory.
        path: PathBuf,
        /// How many bytes it may have.
        longest: usize,
    },
    /// The mock NVML's directory could not be written.
    #[error("cannot set up the state of the mock NVML")]
    Node(#[source] topology::Error),
    /// No such GPU.
    #[error("this machine has no GPU {0}")]
    NoGpu(String),
}

// === impl HostBuilder ===

impl HostBuilder {
    /// A machine of this topology with a Debian driver. `mock_library` is the built `mock-nvml`; it is copied.
    pub fn new(topology: Topology, mock_library: impl Into<PathBuf>) -> Self {
        Self { topology, mock_library: mock_library.into(), transform: None, layout: Layout::Debian, drm: false }
    }

    /// How the driver is installed.
    pub fn layout(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }

    /// Adds DRM nodes to `/sys` and `/dev`, as where the module `nvidia-drm` is loaded.
    pub fn drm(self) -> Self {
        Self { drm: true, ..self }
    }

    /// Changes the bytes of the mock library each time it is installed, for example to hide symbols from it.
    pub fn transform_library(self, transform: impl Fn(&mut Vec<u8>) + Send + Sync + 'static) -> Self {
        Self { transform: Some(Box::new(transform)), ..self }
    }

    /// Builds the machine in `dir`, which must be new or empty.
    pub fn build(self, dir: impl AsRef<Path>) -> Result<Host, Error> {
        let Self { topology, mock_library, transform, layout, drm } = self;
        let dir = new_directory(dir.as_ref())?;
        // Joining an empty path would leave a slash at the end.
        let root = if layout.root().is_empty() { dir.clone() } else { dir.join(layout.root()) };
        let tree = Tree::new(&dir);
        for (link, target) in layout.links() {
            let below = Path::new(target).strip_prefix("/").unwrap_or(Path::new(target));
            tree.dir(below)?;
            tree.link(link, target)?;
        }
        let driver = DriverRoot::new(root, layout, mock_library, transform);
        let node = NodeDir::create(driver.state(), &topology).map_err(Error::Node)?;
        let driver_version = topology.system.driver_version.clone();
        driver.install(&topology, &driver_version)?;
        let (sys, proc, dev) = (Tree::new(dir.join("sys")), Tree::new(dir.join("proc")), Tree::new(dir.join("dev")));
        sysfs::build(&sys, &topology, layout, drm)?;
        procfs::build(&proc, &topology)?;
        let driver_dev = Tree::new(dir.join(layout.dev()));
        let device_nodes = devfs::build(&dev, &driver_dev, &topology, drm)?;
        follow_instances(&dir, &node, layout, &driver.smi(), device_nodes.of_capabilities())?;
        // Where people look for it, whatever the layout.
        tree.link("nvml", Path::new(layout.root()).join(layout.libraries()).join(driver_root::STATE))?;
        for name in ["var/run", "kubelet/plugins", "kubelet/plugins_registry"] {
            tree.dir(name)?;
        }
        Ok(Host { dir, topology, node, sys, proc, dev, driver_dev, driver, driver_version, device_nodes })
    }
}

// === impl Host ===

impl Host {
    /// The root of the machine.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The machine as built.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Where the state of the mock NVML is changed.
    pub fn node(&self) -> &NodeDir {
        &self.node
    }

    /// `/sys`
    pub fn sys(&self) -> &Path {
        self.sys.root()
    }

    /// `/proc`
    pub fn proc(&self) -> &Path {
        self.proc.root()
    }

    /// `/dev`
    pub fn dev(&self) -> &Path {
        self.dev.root()
    }

    /// The driver root; the machine's own root in some layouts.
    pub fn driver_root(&self) -> &Path {
        self.driver.root()
    }

    /// The mock NVML, by the name under which a plugin finds it.
    pub fn library(&self) -> PathBuf {
        self.driver.libraries().join("libnvidia-ml.so.1")
    }

    /// Where CDI specs go. It is not there before a plugin makes it, on a new machine as after a reboot.
    pub fn cdi_dir(&self) -> PathBuf {
        self.dir.join("var/run/cdi")
    }

    /// `/var/lib/kubelet` of other machines. Short, because sockets are bound below it.
    pub fn kubelet_root(&self) -> PathBuf {
        self.dir.join("kubelet")
    }

    /// Whether `/dev` has device nodes or placeholders.
    pub fn device_nodes(&self) -> &DeviceNodes {
        &self.device_nodes
    }

    /// The installed driver.
    pub fn driver_version(&self) -> &str {
        &self.driver_version
    }

    /// The UUID of this boot.
    pub fn boot_id(&self) -> Result<String, Error> {
        let path = self.proc.path("sys/kernel/random/boot_id");
        Ok(fs::read_to_string(&path).map_err(file("read", &path))?.trim().to_owned())
    }

    /// The directory of the `nvidia-smi` stand-in's data: `table`, `list`, `version`, `calls`, `fail`.
    pub fn smi_dir(&self) -> PathBuf {
        self.driver.smi()
    }

    /// Arguments of each call of the `nvidia-smi` stand-in, oldest first.
    pub fn smi_calls(&self) -> Result<Vec<String>, Error> {
        let path = self.smi_dir().join("calls");
        match fs::read_to_string(&path) {
            Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(file("read", &path)(error)),
        }
    }

    /// Removes `/dev/nvidia<minor>`.
    pub fn lose_node(&self, minor: u32) -> Result<(), Error> {
        self.gpu_of_minor(minor)?;
        self.remove_node(&devfs::gpu_node(minor))
    }

    /// Makes `/dev/nvidia<minor>` again.
    pub fn restore_node(&self, minor: u32) -> Result<(), Error> {
        self.gpu_of_minor(minor)?;
        self.add_node(&devfs::gpu_node(minor), DRIVER_MAJOR, minor)
    }

    /// Makes any node of the driver, by its name below `/dev`, readable and writable for all.
    pub fn add_node(&self, name: &str, major: u32, minor: u32) -> Result<(), Error> {
        self.device_nodes.add(&self.driver_dev, name, major, minor, 0o666)
    }

    /// Removes any node of the driver, by its name below `/dev`.
    pub fn remove_node(&self, name: &str) -> Result<(), Error> {
        self.driver_dev.remove(name)
    }

    /// Whether the nodes of MIG instances that are created from now on are made in `/dev/nvidia-caps`. They are, unless this
    /// says otherwise; on some real machines no tool does it, and there are only the files in `/proc`.
    pub fn make_capability_nodes(&self, make: bool) -> Result<(), Error> {
        let Some(files) = self.node.host_files().map_err(Error::Node)? else { return Ok(()) };
        let nodes = if make { self.device_nodes.of_capabilities() } else { CapabilityNodes::None };
        self.node.set_host_files(&HostFiles { nodes, ..files }).map_err(Error::Node)
    }

    /// Moves a GPU, by index, to another NUMA node in `/sys`; -1 makes its node unknown.
    pub fn set_numa_node(&self, index: usize, numa_node: i32) -> Result<(), Error> {
        let gpu = self.topology.gpus.get(index).ok_or_else(|| Error::NoGpu(format!("with index {index}")))?;
        sysfs::set_numa_node(&self.sys, &self.topology, index, gpu, numa_node)
    }

    /// Replaces the driver while the machine runs: files, modules, and then what NVML says. A library that was loaded
    /// before answers with a version mismatch from then on.
    pub fn upgrade_driver(&mut self, version: &str) -> Result<(), Error> {
        // The new files first: links never lead nowhere, and no inode of the old library is used again.
        self.driver.install(&self.topology, version)?;
        if version != self.driver_version {
            self.driver.uninstall(&self.driver_version)?;
        }
        procfs::driver_version(&self.proc, version)?;
        sysfs::driver_version(&self.sys, version)?;
        self.node.update(|state| state.driver_version = Some(version.to_owned())).map_err(Error::Node)?;
        version.clone_into(&mut self.driver_version);
        Ok(())
    }

    /// A new boot id, no MIG instances, and nothing left below `/var/run`. Processes are the caller's to stop and start.
    pub fn reboot(&self) -> Result<(), Error> {
        self.node.forget_instances().map_err(Error::Node)?;
        let tree = Tree::new(&self.dir);
        tree.remove_dir("var/run")?;
        tree.dir("var/run")?;
        procfs::new_boot_id(&self.proc)
    }

    /// Has the driver number two GPUs, by index, the other way round, as it may after a reboot with other hardware in the
    /// machine. What runs at this moment keeps seeing the old numbers: call it while nothing does, before
    /// [`reboot`](Self::reboot).
    pub fn swap_minors(&mut self, a: usize, b: usize) -> Result<(), Error> {
        let gpus = &mut self.topology.gpus;
        if let Some(index) = [a, b].into_iter().find(|&index| index >= gpus.len()) {
            return Err(Error::NoGpu(format!("with index {index}")));
        }
        // Their files have the old numbers.
        self.node.forget_instances().map_err(Error::Node)?;
        (gpus[a].minor, gpus[b].minor) = (gpus[b].minor, gpus[a].minor);
        procfs::gpus(&self.proc, &self.topology)?;
        self.node.set_topology(&self.topology).map_err(Error::Node)
    }

    fn gpu_of_minor(&self, minor: u32) -> Result<&Gpu, Error> {
        let gpu = self.topology.gpus.iter().find(|gpu| gpu.minor == minor);
        gpu.ok_or_else(|| Error::NoGpu(format!("with minor {minor}")))
    }
}

/// Tells the mock where the files of MIG instances are: from its own directory, so that a copy of the tree has its own.
fn follow_instances(
    dir: &Path,
    node: &NodeDir,
    layout: Layout,
    smi: &Path,
    nodes: CapabilityNodes,
) -> Result<(), Error> {
    let place = node.path().canonicalize().map_err(file("resolve", node.path()))?;
    let up: PathBuf = place.strip_prefix(dir).unwrap_or(&place).components().map(|_| "..").collect();
    let smi = up.join(smi.strip_prefix(dir).unwrap_or(smi));
    let files = HostFiles { proc: up.join("proc"), dev: up.join(layout.dev()), smi, major: CAPS_MAJOR, nodes };
    node.set_host_files(&files).map_err(Error::Node)
}

/// Makes the directory and gives its absolute path, without links in it.
fn new_directory(dir: &Path) -> Result<PathBuf, Error> {
    // Before anything is made, and again without links.
    short_enough(std::path::absolute(dir).map_err(file("resolve", dir))?)?;
    fs::create_dir_all(dir).map_err(file("create the directory", dir))?;
    let path = short_enough(dir.canonicalize().map_err(file("resolve", dir))?)?;
    if fs::read_dir(&path).map_err(file("read", &path))?.next().is_some() {
        return Err(Error::NotEmpty { path });
    }
    Ok(path)
}

fn short_enough(path: PathBuf) -> Result<PathBuf, Error> {
    let longest = SOCKET_PATH - LONGEST_SOCKET.len();
    if path.as_os_str().len() > longest { Err(Error::TooLong { path, longest }) } else { Ok(path) }
}

#[cfg(test)]
mod tests;
