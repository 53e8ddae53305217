//! A machine of its own for each test: a directory with a copy of the library and the node directory beside it.

use std::env;
use std::fs;
use std::path::PathBuf;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t, nvmlReturn_t};
use tempfile::TempDir;
use topology::{Fault, Gpu, NodeDir, State, Topology};

/// The machine, gone when dropped.
pub(crate) struct Machine {
    temp: TempDir,
    pub(crate) node: NodeDir,
    pub(crate) topology: Topology,
}

// === impl Machine ===

impl Machine {
    /// The machine of `one-h100-pcie.json`.
    pub(crate) fn one_gpu() -> Self {
        Self::new(one_gpu())
    }

    /// Several GPUs of the board in `one-h100-pcie.json`.
    pub(crate) fn with_gpus(count: u32) -> Self {
        Self::new(gpus(count))
    }

    pub(crate) fn new(topology: Topology) -> Self {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let node = NodeDir::create(temp.path().join("mock-nvml"), &topology).expect("a node directory");
        let machine = Self { temp, node, topology };
        machine.install();
        machine
    }

    /// Where the library is.
    pub(crate) fn library(&self) -> PathBuf {
        self.temp.path().join("libnvidia-ml.so.1")
    }

    /// Puts a fresh copy of the library in place, under a new inode as a package manager does.
    pub(crate) fn install(&self) {
        let fresh = self.temp.path().join("fresh");
        fs::copy(built_library(), &fresh).expect("a copy of the library");
        fs::rename(fresh, self.library()).expect("the library in place");
    }

    /// Loads and initialises the library.
    pub(crate) fn nvml(&self) -> Result<Nvml, NvmlError> {
        Nvml::builder().lib_path(self.library().as_os_str()).init()
    }

    /// Loads the library without initialising it.
    pub(crate) fn raw(&self) -> NvmlLib {
        // SAFETY: the mock runs no code when it is loaded.
        unsafe { NvmlLib::new(self.library()) }.expect("the library loads")
    }

    /// Changes what happened to the machine.
    pub(crate) fn update(&self, change: impl FnOnce(&mut State)) {
        self.node.update(change).expect("the state file");
    }

    /// Lets one fault loose.
    pub(crate) fn fault(&self, fault: Fault) {
        self.update(|state| state.faults = vec![fault]);
    }

    /// Whether a library is mapped into this process from this machine's path.
    pub(crate) fn is_loaded(&self) -> bool {
        let maps = fs::read_to_string("/proc/self/maps").expect("the maps of this process");
        maps.contains(self.library().to_str().expect("a path in UTF-8"))
    }
}

/// The topology of `one-h100-pcie.json`.
pub(crate) fn one_gpu() -> Topology {
    Topology::parse(include_str!("one-h100-pcie.json")).expect("a valid topology")
}

/// The topology of `one-h100-pcie.json` with its GPU repeated.
pub(crate) fn gpus(count: u32) -> Topology {
    let mut topology = one_gpu();
    let first = topology.gpus.remove(0);
    topology.gpus.extend((0..count).map(|minor| Gpu {
        uuid: format!("GPU-00000000-0000-0000-0000-{minor:012}"),
        bus_id: format!("0000:{:02x}:00.0", 0x10 + minor),
        bridges: Vec::new(),
        pcie_root: None,
        minor,
        ..first.clone()
    }));
    topology
}

/// The handle of a GPU through the raw bindings.
pub(crate) fn handle(lib: &NvmlLib, index: u32) -> nvmlDevice_t {
    let mut device = std::ptr::null_mut();
    // SAFETY: the pointer is to a local.
    assert_eq!(unsafe { lib.nvmlDeviceGetHandleByIndex_v2(index, &raw mut device) }, 0);
    device
}

/// The code behind an error of the wrapper.
pub(crate) fn code<T>(result: Result<T, NvmlError>) -> nvmlReturn_t {
    match result {
        Ok(_) => 0,
        Err(NvmlError::Uninitialized) => 1,
        Err(NvmlError::InvalidArg) => 2,
        Err(NvmlError::NotSupported) => 3,
        Err(NvmlError::DriverNotLoaded) => 9,
        Err(NvmlError::GpuLost) => 15,
        Err(NvmlError::LibRmVersionMismatch) => 18,
        Err(NvmlError::Unknown) => 999,
        Err(NvmlError::UnexpectedVariant(code)) => code,
        Err(other) => panic!("unexpected error: {other}"),
    }
}

fn built_library() -> PathBuf {
    env::current_exe().expect("the path of this test").with_file_name("libmock_nvml.so")
}
