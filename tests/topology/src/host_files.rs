//! What the kernel shows of MIG instances: access files in `/proc`, and device nodes; and what `nvidia-smi` lists.
//!
//! ```text
//!  <proc>/driver/nvidia/capabilities/gpu<minor>/mig/gi<g>/access           DeviceFileMinor: <m>
//!                                                        /ci<c>/access     DeviceFileMinor: <m + 1 + c>
//!  <dev>/nvidia-caps/nvidia-cap<m>                                         a node for each of them
//!  <smi>/mig-<gpu>                                                         what nvidia-smi -L says of each GPU
//! ```
//!
//! On a real machine the driver makes the files before the call that created an instance returns. Here everybody does so
//! who changes the state of a node directory that has a host tree.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde::{Deserialize, Serialize};

use crate::node_dir::{file, replace};
use crate::{Error, State, Topology};

/// Minors of the driver's static table: `config` and `monitor`, then for each GPU 15 GPU instances of 8 compute instances.
const FIRST_MINOR: u32 = 3;
const PER_GPU: u32 = 15 * PER_GPU_INSTANCE;
const PER_GPU_INSTANCE: u32 = 1 + 8;

/// Everybody may read: 0444, in procfs as a decimal number.
const MODE: u32 = 0o444;

/// Where the files of a machine are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostFiles {
    /// `/proc`, absolute or from the node directory, without links on the way up.
    pub proc: PathBuf,
    /// The driver's `/dev`, likewise.
    pub dev: PathBuf,
    /// The data of the `nvidia-smi` stand-in, likewise.
    pub smi: PathBuf,
    /// Major of `nvidia-caps`.
    pub major: u32,
    /// What is made below `/dev`.
    pub nodes: CapabilityNodes,
}

/// How `/dev/nvidia-caps` follows the instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CapabilityNodes {
    /// Character devices.
    Real,
    /// Regular files with a line `c <major>:<minor>`.
    Placeholders,
    /// Not at all, as on machines where no tool of the driver makes them.
    None,
}

/// One thing to which the kernel gives access: a GPU instance or a compute instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Capability {
    /// GPU by index.
    pub(crate) gpu: usize,
    gpu_instance: u32,
    compute_instance: Option<u32>,
}

// === impl Capability ===

impl Capability {
    /// Those of all instances.
    pub(crate) fn of(state: &State) -> BTreeSet<Self> {
        let mut found = BTreeSet::new();
        for (&gpu, of_gpu) in &state.gpus {
            for gi in &of_gpu.mig.gpu_instances {
                found.insert(Self { gpu, gpu_instance: gi.id, compute_instance: None });
                let inside = gi.compute_instances.iter().map(|ci| Some(ci.id));
                found.extend(inside.map(|compute_instance| Self { gpu, gpu_instance: gi.id, compute_instance }));
            }
        }
        found
    }

    /// The minor of its device node.
    fn minor(self, gpu_minor: u32) -> u32 {
        let access = FIRST_MINOR + PER_GPU * gpu_minor + PER_GPU_INSTANCE * self.gpu_instance;
        self.compute_instance.map_or(access, |id| access + 1 + id)
    }

    /// The directory of its access file, below `/proc`.
    fn dir(self, gpu_minor: u32) -> String {
        let gi = format!("driver/nvidia/capabilities/gpu{gpu_minor}/mig/gi{}", self.gpu_instance);
        self.compute_instance.map_or(gi.clone(), |id| format!("{gi}/ci{id}"))
    }
}

// === impl HostFiles ===

impl HostFiles {
    pub(crate) fn add(&self, node_dir: &Path, topology: &Topology, capability: Capability) -> Result<(), Error> {
        let Some(gpu_minor) = topology.gpus.get(capability.gpu).map(|gpu| gpu.minor) else { return Ok(()) };
        let minor = capability.minor(gpu_minor);
        self.make_node(node_dir, minor)?;
        let dir = node_dir.join(&self.proc).join(capability.dir(gpu_minor));
        fs::create_dir_all(&dir).map_err(file("create", &dir))?;
        let content = format!("DeviceFileMinor: {minor}\nDeviceFileMode: {MODE}\nDeviceFileModify: 1\n");
        replace(&dir.join("access"), &content)
    }

    pub(crate) fn remove(&self, node_dir: &Path, topology: &Topology, capability: Capability) -> Result<(), Error> {
        let Some(gpu_minor) = topology.gpus.get(capability.gpu).map(|gpu| gpu.minor) else { return Ok(()) };
        let dir = node_dir.join(&self.proc).join(capability.dir(gpu_minor));
        absent_is_fine(fs::remove_dir_all(&dir)).map_err(file("remove", &dir))?;
        let node = self.node(node_dir, capability.minor(gpu_minor));
        absent_is_fine(fs::remove_file(&node)).map_err(file("remove", &node))
    }

    /// Writes what `nvidia-smi -L` says below a GPU.
    pub(crate) fn list(&self, node_dir: &Path, topology: &Topology, state: &State, gpu: usize) -> Result<(), Error> {
        let (Some(facts), Some(state)) = (topology.gpus.get(gpu), state.gpus.get(&gpu)) else { return Ok(()) };
        let mut text = String::new();
        if let Some(table) = topology.mig_table(topology.board(facts)) {
            for (gi, ci) in state.mig.devices() {
                let name =
                    gi.compute_profile(table, ci.profile).map_or_else(|_| "?".to_owned(), |profile| profile.name);
                let _ = writeln!(text, "  MIG {name:15} Device {:2}: (UUID: {})", ci.index, ci.uuid);
            }
        }
        let dir = node_dir.join(&self.smi);
        fs::create_dir_all(&dir).map_err(file("create", &dir))?;
        replace(&dir.join(format!("mig-{gpu}")), &text)
    }

    fn make_node(&self, node_dir: &Path, minor: u32) -> Result<(), Error> {
        let path = self.node(node_dir, minor);
        let parent = path.parent().unwrap_or(node_dir);
        fs::create_dir_all(parent).map_err(file("create", parent))?;
        match self.nodes {
            CapabilityNodes::None => Ok(()),
            CapabilityNodes::Placeholders => replace(&path, &format!("c {}:{minor}\n", self.major)),
            CapabilityNodes::Real => {
                absent_is_fine(fs::remove_file(&path)).map_err(file("replace", &path))?;
                let device = makedev(self.major, minor);
                let made = mknodat(CWD, &path, FileType::CharacterDevice, Mode::from_raw_mode(MODE), device);
                made.map_err(io::Error::from).map_err(file("make the device node", &path))?;
                // The umask has cut the mode of mknod.
                fs::set_permissions(&path, Permissions::from_mode(MODE)).map_err(file("set the mode of", &path))
            }
        }
    }

    fn node(&self, node_dir: &Path, minor: u32) -> PathBuf {
        node_dir.join(&self.dev).join(format!("nvidia-caps/nvidia-cap{minor}"))
    }
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minors_are_those_of_the_drivers_table() {
        let minor = |gpu_minor, gpu_instance, compute_instance| {
            Capability { gpu: 0, gpu_instance, compute_instance }.minor(gpu_minor)
        };
        assert_eq!([minor(0, 2, None), minor(0, 2, Some(0))], [21, 22]);
        assert_eq!([minor(0, 3, None), minor(0, 3, Some(0))], [30, 31]);
        assert_eq!([minor(1, 0, None), minor(1, 14, Some(7))], [138, 138 + 9 * 14 + 8]);
    }
}
