//! A small machine for tests: a driver root, and a device tree of placeholders that any user can make.

use std::fs;
use std::path::{Path, PathBuf};

use container_device_interface::spec::{Spec, read_spec};

use super::{Hooks, Sources};
use crate::host::driver_root::example::{Tree, temporary_directory};
use crate::host::node::Devices;

pub(crate) struct Machine {
    pub(crate) driver: Tree,
    directory: tempfile::TempDir,
}

// === impl Machine ===

impl Machine {
    /// A driver, all control nodes, and the nodes of two GPUs.
    pub(crate) fn new() -> Self {
        let directory = temporary_directory();
        let machine = Self { driver: Tree::debian(), directory };
        fs::create_dir(machine.dev()).unwrap();
        fs::create_dir(machine.proc()).unwrap();
        fs::create_dir(machine.state("")).unwrap();
        machine.load_uvm_as(510);
        for name in ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia0", "nvidia1"] {
            fs::write(machine.dev().join(name), "").unwrap();
        }
        machine
    }

    pub(crate) fn dev(&self) -> PathBuf {
        self.directory.path().join("dev")
    }

    pub(crate) fn proc(&self) -> PathBuf {
        self.directory.path().join("proc")
    }

    pub(crate) fn sys(&self) -> PathBuf {
        self.directory.path().join("sys")
    }

    /// As if the module of nvidia-uvm were loaded anew, and the kernel had given it this major.
    pub(crate) fn load_uvm_as(&self, major: u32) {
        let drivers = "195 nvidia\n195 nvidiactl\n195 nvidia-modeset\n226 drm\n511 nvidia-caps";
        let table = format!("Character devices:\n{drivers}\n{major} nvidia-uvm\n\nBlock devices:\n");
        fs::write(self.proc().join("devices"), table).unwrap();
    }

    /// As if there were a GPU instance with one compute instance, with the capabilities that the driver lists for them.
    pub(crate) fn make_instance(&self, gpu_minor: u32, gpu_instance: u32) {
        let directory = format!("driver/nvidia/capabilities/gpu{gpu_minor}/mig/gi{gpu_instance}/ci0");
        let directory = self.proc().join(directory);
        fs::create_dir_all(&directory).unwrap();
        let minor = 3 + 135 * gpu_minor + 9 * gpu_instance;
        let text = |minor| format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
        fs::write(directory.with_file_name("access"), text(minor)).unwrap();
        fs::write(directory.join("access"), text(minor + 1)).unwrap();
    }

    /// Where claims and specs go.
    pub(crate) fn state(&self, name: &str) -> PathBuf {
        self.directory.path().join("state").join(name)
    }

    pub(crate) fn sources(&self) -> Sources {
        Sources {
            devices: Devices {
                local: self.dev(),
                host: "/dev".into(),
                elsewhere: vec![],
                proc: self.proc(),
                placeholders: true,
            },
            driver_roots: vec![self.driver.root()],
            sys: self.sys(),
            hooks: Hooks::None,
            graphics: true,
        }
    }
}

/// Reads a spec as a container runtime does: against the schema, its version's rules, and for each device.
pub(crate) fn read_as_runtime(path: &Path) -> Spec {
    match read_spec(&path.to_owned(), 0) {
        Ok(spec) => spec,
        Err(error) => panic!("a runtime refuses {}: {error:#}", path.display()),
    }
}
