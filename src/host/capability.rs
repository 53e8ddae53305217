//! The capabilities of MIG instances: device nodes, of which each opens one GPU instance or one compute instance.
//!
//! ```text
//!  <proc>/driver/nvidia/capabilities/gpu0/mig/gi7/access       DeviceFileMinor: 66      ─┐
//!  <proc>/driver/nvidia/capabilities/gpu0/mig/gi7/ci0/access   DeviceFileMinor: 67       ├─▶ nvidia-caps/nvidia-cap66
//!  <proc>/devices                                              511 nvidia-caps          ─┘
//! ```
//!
//! The driver lists a capability for as long as its instance exists. The node in `/dev` is another matter: a helper that is
//! called by whoever uses MIG first makes it, so a machine may not have it, or one that a driver with another major left.
//! It is not needed: a spec with type and numbers has the runtime make the node in the container. Only runtimes in a user
//! namespace, which may not make nodes, bind the host's.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::node::{DeviceNode, Devices, major};

/// Where the nodes are, below `/dev`.
const CAPABILITIES: &str = "nvidia-caps/nvidia-cap";

/// The driver of the nodes in `<proc>/devices`.
const DRIVER: &str = "nvidia-caps";

/// Readable by all: opening it is the permission, and only who has the node can.
const MODE: u32 = 0o444;

/// Why the node of a capability cannot be described.
#[derive(Debug, thiserror::Error)]
pub enum CapabilityError {
    /// The driver does not list it, or not yet.
    #[error("the driver has no capability {}", path.display())]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// Which one.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The driver lists it without a number.
    #[error("{} names no DeviceFileMinor", path.display())]
    NoMinor {
        /// The file.
        path: PathBuf,
    },
    /// The driver of the nodes is not loaded.
    #[error("{} has no major for {DRIVER}", path.display())]
    NoMajor {
        /// The table that was read.
        path: PathBuf,
    },
}

// === impl Devices ===

impl Devices {
    /// The nodes that a container needs for a compute instance of the GPU with this minor: that of the GPU instance, and its
    /// own. Numbers are the driver's; owner and mode are those of the host's node, where it has one.
    pub fn capabilities(
        &self,
        gpu_minor: u32,
        gpu_instance: u32,
        compute_instance: u32,
    ) -> Result<[DeviceNode; 2], CapabilityError> {
        let gpu = self.proc.join(format!("driver/nvidia/capabilities/gpu{gpu_minor}/mig/gi{gpu_instance}"));
        let table = self.proc.join("devices");
        let majors = read(&table)?;
        let major = major(&majors, DRIVER).ok_or(CapabilityError::NoMajor { path: table })?;
        let node = |access: &Path| Ok(self.capability(major, minor(access)?));
        Ok([node(&gpu.join("access"))?, node(&gpu.join(format!("ci{compute_instance}/access")))?])
    }

    fn capability(&self, major: u32, minor: u32) -> DeviceNode {
        let name = format!("{CAPABILITIES}{minor}");
        let node = DeviceNode { host: Path::new("/dev").join(&name), name, major, minor, mode: MODE, uid: 0, gid: 0 };
        match fs::metadata(self.local.join(&node.name)) {
            Ok(found) if found.file_type().is_char_device() => {
                let host = self.host.join(&node.name);
                DeviceNode { host, mode: found.mode() & 0o777, uid: found.uid(), gid: found.gid(), ..node }
            }
            _ => node,
        }
    }
}

// === impl CapabilityError ===

impl CapabilityError {
    /// Whether it may be there a moment later: the driver lists a capability soon after its instance is made.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::NoMajor { .. })
    }
}

fn minor(access: &Path) -> Result<u32, CapabilityError> {
    let text = read(access)?;
    let mut lines = text.lines().filter_map(|line| line.trim().strip_prefix("DeviceFileMinor:"));
    let minor = lines.next().and_then(|number| number.trim().parse().ok());
    minor.ok_or_else(|| CapabilityError::NoMinor { path: access.to_owned() })
}

fn read(path: &Path) -> Result<String, CapabilityError> {
    let path = path.to_owned();
    fs::read_to_string(&path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => CapabilityError::Missing { path },
        _ => CapabilityError::Unreadable { path, source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(directory: &Path) -> Devices {
        let access = directory.join("driver/nvidia/capabilities/gpu2/mig/gi7/ci0");
        fs::create_dir_all(&access).unwrap();
        let text = |minor| format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
        fs::write(access.with_file_name("access"), text(336)).unwrap();
        fs::write(access.join("access"), text(337)).unwrap();
        fs::write(directory.join("devices"), "Character devices:\n511 nvidia-caps\n").unwrap();
        let (local, proc) = (directory.join("dev"), directory.to_owned());
        Devices { local, host: "/dev".into(), elsewhere: vec![], proc, placeholders: false }
    }

    #[test]
    fn an_instance_has_two_nodes_with_the_numbers_that_the_driver_gave_them() {
        let directory = tempfile::tempdir().unwrap();
        let [gpu, compute] = devices(directory.path()).capabilities(2, 7, 0).unwrap();
        assert_eq!((gpu.name.as_str(), gpu.major, gpu.minor, gpu.mode), ("nvidia-caps/nvidia-cap336", 511, 336, 0o444));
        assert_eq!((compute.minor, compute.host.to_str()), (337, Some("/dev/nvidia-caps/nvidia-cap337")));
    }

    #[test]
    fn what_the_driver_does_not_say_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let devices = devices(directory.path());
        for (gpu, instance, compute, end) in
            [(3, 7, 0, "gpu3/mig/gi7/access"), (2, 8, 0, "gpu2/mig/gi8/access"), (2, 7, 1, "gi7/ci1/access")]
        {
            let error = devices.capabilities(gpu, instance, compute).unwrap_err();
            assert!(error.may_pass() && error.to_string().ends_with(end), "{error}");
        }
        fs::write(directory.path().join("driver/nvidia/capabilities/gpu2/mig/gi7/access"), "DeviceFileMinor: x")
            .unwrap();
        let error = devices.capabilities(2, 7, 0).unwrap_err();
        assert!(matches!(error, CapabilityError::NoMinor { .. }) && !error.may_pass());
        fs::write(directory.path().join("devices"), "Character devices:\n195 nvidia\n").unwrap();
        assert!(matches!(devices.capabilities(2, 7, 0), Err(CapabilityError::NoMajor { .. })));
    }
}
