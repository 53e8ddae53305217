//! Init, shutdown, loading and unloading.

use std::ffi::CStr;
use std::fs;
use std::path::PathBuf;
use std::ptr;
use std::thread;

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::InitFlags;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::error::NvmlError;
use topology::{CapabilityNodes, Fault, HostFiles};

use crate::machine::{Machine, code, gpus};

#[test]
fn calls_before_init_are_uninitialized() {
    let machine = Machine::one_gpu();
    let lib = machine.raw();
    let mut count = 0;
    // SAFETY: the pointer is to a local.
    unsafe {
        assert_eq!(lib.nvmlDeviceGetCount_v2(&raw mut count), 1);
        assert_eq!(lib.nvmlShutdown(), 1);
    }
}

#[test]
fn the_library_stays_initialised_until_the_last_shutdown() {
    let machine = Machine::one_gpu();
    let lib = machine.raw();
    let mut count = 0;
    // SAFETY: the pointer is to a local.
    unsafe {
        assert_eq!(lib.nvmlInit_v2(), 0);
        assert_eq!(lib.nvmlInitWithFlags(0), 0);
        assert_eq!(lib.nvmlShutdown(), 0);
        assert_eq!(lib.nvmlDeviceGetCount_v2(&raw mut count), 0);
        assert_eq!(lib.nvmlShutdown(), 0);
        assert_eq!(lib.nvmlDeviceGetCount_v2(&raw mut count), 1);
    }
}

#[test]
fn a_library_without_a_machine_has_no_driver() {
    let machine = Machine::one_gpu();
    fs::remove_dir_all(machine.node.path()).expect("removed");
    assert_eq!(code(machine.nvml()), 9);
}

#[test]
fn init_fails_without_gpus_unless_the_program_allows_it() {
    let machine = Machine::new(gpus(0));
    assert_eq!(code(machine.nvml()), 28);
    let allowed = Nvml::builder().lib_path(machine.library().as_os_str()).flags(InitFlags::NO_GPUS).init();
    assert_eq!(allowed.expect("init").device_count().expect("a count"), 0);
}

#[test]
fn the_library_unloads_and_a_replaced_file_is_loaded() {
    let machine = Machine::one_gpu();
    let nvml = machine.nvml().expect("init");
    nvml.device_by_index(0).and_then(|gpu| gpu.name()).expect("a name");
    assert!(machine.is_loaded());
    drop(nvml);
    assert!(!machine.is_loaded(), "the library is still mapped after dlclose");

    machine.update(|state| state.driver_version = Some("590.11.02".into()));
    machine.install();
    let nvml = machine.nvml().expect("init of the new library");
    assert_eq!(nvml.sys_driver_version().expect("a version"), "590.11.02");
}

#[test]
fn nothing_that_was_called_keeps_the_library_loaded_or_crashes_the_thread_that_called_it() {
    let mut topology = gpus(2);
    // Too large to count in bytes: the mock panics over it.
    topology.boards.values_mut().for_each(|board| board.memory_mib = u64::MAX);
    let machine = Machine::new(topology);
    let [proc, dev, smi] = ["../proc", "../dev", "../smi"].map(PathBuf::from);
    let files = HostFiles { proc, dev, smi, major: 237, nodes: CapabilityNodes::Placeholders };
    machine.node.set_host_files(&files).expect("the host's files");
    let calls = || {
        let nvml = machine.nvml().expect("init");
        let gpu = nvml.device_by_index(0).expect("a device");
        assert_eq!(code(gpu.memory_info()), 999, "a panic is an unknown error");
        gpu.set_mig_mode(true).expect("set");
        let (mut parent, mut child) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the pointers are to locals.
        unsafe {
            assert_eq!(nvml.lib().nvmlDeviceCreateGpuInstance(gpu.handle(), 9, &raw mut parent), 0);
            assert_eq!(nvml.lib().nvmlGpuInstanceCreateComputeInstance(parent, 2, &raw mut child), 0);
            assert_eq!(nvml.lib().nvmlComputeInstanceDestroy(child), 0);
        }
        let mut events = nvml.create_event_set().expect("an event set");
        events = gpu.register_events(EventTypes::CRITICAL_XID_ERROR, events).expect("registered");
        assert!(matches!(events.wait(1), Err(NvmlError::Timeout)));
        machine.fault(Fault { call: "nvmlDeviceGetUUID".into(), delay_ms: 1, ..Fault::default() });
        gpu.uuid().expect("uuid");
    };
    thread::scope(|scope| scope.spawn(calls).join().expect("no panic in the program"));
    assert!(!machine.is_loaded(), "the library is still mapped after dlclose");
}

#[test]
fn a_driver_change_makes_the_loaded_library_useless_until_it_is_loaded_again() {
    let machine = Machine::one_gpu();
    let nvml = machine.nvml().expect("init");
    let before = nvml.sys_driver_version().expect("a version");
    assert_eq!(before, machine.topology.system.driver_version);

    machine.update(|state| state.driver_version = Some("590.11.02".into()));
    assert_eq!(code(nvml.device_count()), 18);
    assert_eq!(code(machine.nvml()), 18, "a second init in the same loaded library");
    drop(nvml);

    let nvml = machine.nvml().expect("init after reload");
    assert_eq!(nvml.sys_driver_version().expect("a version"), "590.11.02");
    let library_version = nvml.sys_nvml_version().expect("a version");
    assert!(library_version.ends_with(".590.11.02"), "{library_version}");
}

#[test]
fn a_damaged_state_file_is_not_taken_for_a_healthy_machine() {
    let machine = Machine::one_gpu();
    let nvml = machine.nvml().expect("init");
    fs::write(machine.node.state_path(), "{ \"faulst\": [] }").expect("written");
    assert_eq!(code(nvml.device_count()), 999);
}

#[test]
fn every_code_has_a_text() {
    let machine = Machine::one_gpu();
    let lib = machine.raw();
    // SAFETY: the function returns a static string for every number.
    let text = |code| unsafe { CStr::from_ptr(lib.nvmlErrorString(code)) };
    assert_eq!(text(0), c"Success");
    assert_eq!(text(15), c"GPU is lost");
    assert_eq!(text(12345), c"Unknown Error");
}
