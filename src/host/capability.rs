//! The device nodes that give a process access to a MIG device: one for its GPU instance, one for its compute instance.
//!
//! ```text
//!  <proc>/driver/nvidia/capabilities/gpu<minor>/mig/gi<id>/access        DeviceFileMinor: 21
//!                                                  └────/ci<id>/access   DeviceFileMinor: 22
//!  <proc>/devices                                                        237 nvidia-caps
//!                                  ──▶ /dev/nvidia-caps/nvidia-cap21, -cap22: 237:21, 237:22
//! ```
//!
//! The numbers say all that a container runtime needs to make a node in a container. Whether the host has the node as well
//! does not matter: it is there only if somebody has run `nvidia-modprobe` since the instance was made.

use std::fs;
use std::io;
use std::path::PathBuf;

use super::node::{DeviceNode, Devices, major};

/// The driver whose major these nodes have, in `/proc/devices`.
const DRIVER: &str = "nvidia-caps";

/// Why a container cannot be given access to a MIG device.
#[derive(Debug, thiserror::Error)]
pub enum CapabilityError {
    /// The kernel does not tell of the instance.
    #[error("cannot read {}, which says the device node of a MIG instance", path.display())]
    Access {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The kernel tells something else.
    #[error("{} does not say a DeviceFileMinor", path.display())]
    NoMinor {
        /// The file.
        path: PathBuf,
    },
    /// The table of majors cannot be read.
    #[error("cannot read {}", path.display())]
    Majors {
        /// The table.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The driver has no such nodes.
    #[error("{} has no major for {DRIVER}", path.display())]
    NoMajor {
        /// The table.
        path: PathBuf,
    },
}

// === impl Devices ===

impl Devices {
    /// The nodes of a MIG device: by the minor of its GPU, the id of its GPU instance, and that of its compute instance.
    pub fn capabilities(
        &self,
        gpu: u32,
        gpu_instance: u32,
        compute_instance: u32,
    ) -> Result<[DeviceNode; 2], CapabilityError> {
        let instance = self.proc.join(format!("driver/nvidia/capabilities/gpu{gpu}/mig/gi{gpu_instance}"));
        let table = self.proc.join("devices");
        let majors =
            fs::read_to_string(&table).map_err(|source| CapabilityError::Majors { path: table.clone(), source })?;
        let major = major(&majors, DRIVER).ok_or(CapabilityError::NoMajor { path: table })?;
        let compute = instance.join(format!("ci{compute_instance}/access"));
        Ok([self.capability(instance.join("access"), major)?, self.capability(compute, major)?])
    }

    fn capability(&self, path: PathBuf, major: u32) -> Result<DeviceNode, CapabilityError> {
        let access = match fs::read_to_string(&path) {
            Ok(access) => access,
            Err(source) => return Err(CapabilityError::Access { path, source }),
        };
        let value = |key: &str| {
            let mut values = access.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            values.find_map(|value| value.trim().parse::<u32>().ok())
        };
        let Some(minor) = value("DeviceFileMinor") else { return Err(CapabilityError::NoMinor { path }) };
        let name = format!("nvidia-caps/nvidia-cap{minor}");
        let host = self.host.join(&name);
        // In decimal: 292 is 0444.
        let mode = value("DeviceFileMode").map_or(0o444, |mode| mode & 0o777);
        Ok(DeviceNode { name, host, major, minor, mode, uid: 0, gid: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(proc: &std::path::Path) -> Devices {
        Devices {
            local: "/nowhere".into(),
            host: "/dev".into(),
            elsewhere: vec![],
            proc: proc.to_owned(),
            placeholders: false,
        }
    }

    fn write(proc: &std::path::Path, name: &str, text: &str) {
        let path = proc.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_mig_device_has_the_nodes_that_the_kernel_says() {
        let directory = tempfile::tempdir().unwrap();
        let proc = directory.path();
        write(proc, "devices", "Character devices:\n195 nvidia\n237 nvidia-caps\n\nBlock devices:\n");
        let access = |minor: u32| format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
        write(proc, "driver/nvidia/capabilities/gpu3/mig/gi2/access", &access(426));
        write(proc, "driver/nvidia/capabilities/gpu3/mig/gi2/ci0/access", &access(427));
        let nodes = devices(proc).capabilities(3, 2, 0).unwrap();
        let told = nodes.map(|node| (node.host.display().to_string(), node.major, node.minor, node.mode));
        assert_eq!(
            told,
            [
                ("/dev/nvidia-caps/nvidia-cap426".to_owned(), 237, 426, 0o444),
                ("/dev/nvidia-caps/nvidia-cap427".to_owned(), 237, 427, 0o444)
            ]
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let proc = directory.path();
        let message = || devices(proc).capabilities(0, 1, 0).unwrap_err().to_string();
        assert!(message().ends_with("/devices"), "{}", message());
        write(proc, "devices", "Character devices:\n195 nvidia\n");
        assert!(message().ends_with("has no major for nvidia-caps"), "{}", message());
        write(proc, "devices", "Character devices:\n237 nvidia-caps\n");
        assert!(message().contains("capabilities/gpu0/mig/gi1/access, which says"), "{}", message());
        write(proc, "driver/nvidia/capabilities/gpu0/mig/gi1/access", "DeviceFileMinor: x\n");
        assert!(message().ends_with("does not say a DeviceFileMinor"), "{}", message());
    }
}
