//! One machine, several processes.

use std::env;
use std::ffi::OsStr;
use std::process::Command;

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::ComputeMode;

use crate::machine::Machine;

/// Tells the other process which library to load.
const LIBRARY: &str = "MOCK_NVML_TEST_LIBRARY";

#[test]
fn what_one_process_sets_another_one_sees() {
    let machine = Machine::one_gpu();
    let nvml = machine.nvml().expect("init");
    let gpu = nvml.device_by_index(0).expect("a device");
    assert_eq!(gpu.compute_mode().expect("a mode"), ComputeMode::Default);

    let status = Command::new(env::current_exe().expect("the path of this test"))
        .args(["--ignored", "--exact", "processes::the_other_process"])
        .env(LIBRARY, machine.library())
        .status()
        .expect("started");
    assert!(status.success());
    assert_eq!(gpu.compute_mode().expect("a mode"), ComputeMode::ExclusiveProcess);
}

#[test]
#[ignore = "the other process of what_one_process_sets_another_one_sees"]
fn the_other_process() {
    let library = env::var_os(LIBRARY).unwrap_or_default();
    let nvml = Nvml::builder().lib_path(OsStr::new(&library)).init().expect("init");
    let mut gpu = nvml.device_by_index(0).expect("a device");
    gpu.set_compute_mode(ComputeMode::ExclusiveProcess).expect("set");
}
