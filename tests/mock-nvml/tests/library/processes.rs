//! One machine, several processes.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::ComputeMode;
use topology::Fault;

use crate::machine::Machine;

/// Tells the other process which library to load.
const LIBRARY: &str = "MOCK_NVML_TEST_LIBRARY";

#[test]
fn what_one_process_sets_another_one_sees() {
    let machine = Machine::one_gpu();
    let nvml = machine.nvml().expect("init");
    let gpu = nvml.device_by_index(0).expect("a device");
    assert_eq!(gpu.compute_mode().expect("a mode"), ComputeMode::Default);

    assert!(run_the_other_process(&machine).success());
    assert_eq!(gpu.compute_mode().expect("a mode"), ComputeMode::ExclusiveProcess);
}

#[test]
fn a_killing_fault_ends_the_process_before_or_after_the_call_took_effect() {
    for (call, late, mode) in [
        ("nvmlDeviceSetComputeMode", false, ComputeMode::Default),
        ("nvmlDeviceSetComputeMode", true, ComputeMode::ExclusiveProcess),
        ("nvmlShutdown", false, ComputeMode::ExclusiveProcess),
        ("nvmlShutdown", true, ComputeMode::ExclusiveProcess),
        ("nvmlInit", true, ComputeMode::Default),
    ] {
        let machine = Machine::one_gpu();
        machine.fault(Fault { call: call.into(), kill: true, late, ..Fault::default() });
        assert_eq!(run_the_other_process(&machine).signal(), Some(9), "{call}, late: {late}");
        machine.update(|state| state.faults.clear());
        let nvml = machine.nvml().expect("init");
        let gpu = nvml.device_by_index(0).expect("a device");
        assert_eq!(gpu.compute_mode().expect("a mode"), mode, "{call}, late: {late}");
    }
}

#[test]
fn a_process_can_be_killed_at_each_of_its_calls() {
    let machine = Machine::one_gpu();
    fs::write(machine.node.calls_path(), "").expect("an empty log");
    assert!(run_the_other_process(&machine).success());
    let calls = fs::read_to_string(machine.node.calls_path()).expect("the log").lines().count();
    assert!(calls >= 4, "init, look-up, setter, shutdown");
    for after in 0..=calls {
        let after = u64::try_from(after).expect("a small number");
        machine.fault(Fault { call: "*".into(), kill: true, after, ..Fault::default() });
        let killed = run_the_other_process(&machine).signal() == Some(9);
        assert_eq!(killed, after < calls as u64, "after {after} of {calls} calls");
    }
}

fn run_the_other_process(machine: &Machine) -> ExitStatus {
    Command::new(env::current_exe().expect("the path of this test"))
        .args(["--ignored", "--exact", "processes::the_other_process"])
        .env(LIBRARY, machine.library())
        .status()
        .expect("started")
}

#[test]
#[ignore = "the other process of what_one_process_sets_another_one_sees"]
fn the_other_process() {
    let library = env::var_os(LIBRARY).unwrap_or_default();
    let nvml = Nvml::builder().lib_path(OsStr::new(&library)).init().expect("init");
    let mut gpu = nvml.device_by_index(0).expect("a device");
    gpu.set_compute_mode(ComputeMode::ExclusiveProcess).expect("set");
}
