//! Calls that fail, hang or are slow, and GPUs that are lost or absent.

use std::fs;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use topology::Fault;

use crate::machine::{Machine, code};

/// How long a call must not have returned to count as hanging.
const A_WHILE: Duration = Duration::from_millis(100);

#[test]
fn a_fault_answers_any_code_and_ends_with_the_state_file() {
    let machine = Machine::with_gpus(2);
    let nvml = machine.nvml().expect("init");
    let [first, second] = [0, 1].map(|index| nvml.device_by_index(index).expect("a device"));
    for injected in [3, 15, 25, 28, 999] {
        machine.fault(Fault {
            call: "nvmlDeviceGetName".into(),
            gpu: Some(1),
            code: Some(injected),
            ..Fault::default()
        });
        assert_eq!(code(second.name()), injected);
        assert_eq!(code(first.name()), 0);
        assert_eq!(code(second.uuid()), 0);
    }
    machine.update(|state| state.faults.clear());
    assert_eq!(code(second.name()), 0);
}

#[test]
fn a_fault_of_one_gpu_bites_the_look_up_of_that_gpu() {
    let machine = Machine::with_gpus(2);
    let nvml = machine.nvml().expect("init");
    machine.fault(Fault {
        call: "nvmlDeviceGetHandleByIndex".into(),
        gpu: Some(1),
        code: Some(999),
        ..Fault::default()
    });
    assert_eq!(code(nvml.device_by_index(0)), 0);
    assert_eq!(code(nvml.device_by_index(1)), 999);
}

#[test]
fn init_fails_as_often_as_it_is_told_and_then_recovers() {
    let machine = Machine::one_gpu();
    // The library must stay loaded in between: its counters live as long as it does.
    let _loaded = machine.raw();
    machine.fault(Fault { call: "nvmlInit".into(), code: Some(9), times: Some(2), ..Fault::default() });
    assert_eq!([(); 3].map(|()| code(machine.nvml())), [9, 9, 0]);
}

#[test]
fn a_slow_call_takes_its_time_and_succeeds() {
    let machine = Machine::one_gpu();
    let nvml = machine.nvml().expect("init");
    machine.fault(Fault { call: "nvmlDeviceGetCount".into(), delay_ms: 50, ..Fault::default() });
    let start = Instant::now();
    assert_eq!(nvml.device_count().expect("a count"), 1);
    assert!(start.elapsed() >= Duration::from_millis(50));
}

#[test]
fn a_hanging_call_blocks_nobody_else_and_returns_when_released() {
    let machine = Machine::one_gpu();
    let nvml = machine.nvml().expect("init");
    let hang = Fault { call: "nvmlDeviceGetName".into(), hang: true, ..Fault::default() };
    machine.fault(hang);
    thread::scope(|scope| {
        let (done, returned) = mpsc::channel();
        let nvml = &nvml;
        scope.spawn(move || done.send(nvml.device_by_index(0).and_then(|gpu| gpu.name())));
        assert!(returned.recv_timeout(A_WHILE).is_err(), "the call returned although it should hang");
        assert_eq!(nvml.device_count().expect("a count"), 1);
        machine.update(|state| state.faults.clear());
        returned.recv().expect("an answer").expect("a name");
    });
}

#[test]
fn a_late_fault_lets_the_call_do_its_work_and_says_otherwise() {
    let machine = Machine::one_gpu();
    let nvml = machine.nvml().expect("init");
    let gpu = nvml.device_by_index(0).expect("a device");
    let set = |late| Fault { call: "nvmlDeviceSetMigMode".into(), code: Some(999), late, ..Fault::default() };
    machine.fault(set(false));
    assert_eq!(code(gpu.set_mig_mode(true).map(drop)), 999);
    assert_eq!(gpu.mig_mode().expect("a mode").current, 0);
    machine.fault(set(true));
    assert_eq!(code(gpu.set_mig_mode(true).map(drop)), 999);
    assert_eq!(gpu.mig_mode().expect("a mode").current, 1);
}

#[test]
fn a_late_fault_of_one_gpu_bites_the_look_up_of_that_gpu() {
    let machine = Machine::with_gpus(2);
    let nvml = machine.nvml().expect("init");
    let call = "nvmlDeviceGetHandleByIndex".into();
    machine.fault(Fault { call, gpu: Some(1), code: Some(999), late: true, ..Fault::default() });
    assert_eq!([0, 1].map(|index| code(nvml.device_by_index(index).map(drop))), [0, 999]);
}

#[test]
fn a_lost_gpu_is_counted_and_answers_nothing() {
    let machine = Machine::with_gpus(2);
    let nvml = machine.nvml().expect("init");
    let gpu = nvml.device_by_index(1).expect("a device");
    machine.update(|state| state.gpus.entry(1).or_default().lost = true);
    assert_eq!(nvml.device_count().expect("a count"), 2);
    assert_eq!(code(gpu.uuid()), 15);
    assert_eq!(code(nvml.device_by_index(1)), 15);
    assert_eq!(code(nvml.device_by_index(0)), 0);
}

#[test]
fn an_absent_gpu_is_not_enumerated_after_the_next_init() {
    let machine = Machine::with_gpus(3);
    let nvml = machine.nvml().expect("init");
    machine.update(|state| state.gpus.entry(0).or_default().absent = true);
    assert_eq!(nvml.device_count().expect("a count"), 3, "enumeration happens at init");
    drop(nvml);

    let nvml = machine.nvml().expect("init");
    assert_eq!(nvml.device_count().expect("a count"), 2);
    let first = nvml.device_by_index(0).expect("a device");
    assert_eq!(first.uuid().expect("uuid"), machine.topology.gpus[1].uuid);
    assert_eq!(first.index().expect("index"), 0);
}

#[test]
fn an_unsupported_call_is_so_on_one_gpu_only() {
    let machine = Machine::with_gpus(2);
    let nvml = machine.nvml().expect("init");
    machine.update(|state| {
        state.gpus.entry(0).or_default().unsupported.insert("nvmlDeviceGetBrand".into());
    });
    assert_eq!(code(nvml.device_by_index(0).and_then(|gpu| gpu.brand())), 3);
    assert_eq!(code(nvml.device_by_index(1).and_then(|gpu| gpu.brand())), 0);
}

#[test]
fn calls_are_logged_once_a_test_asks_for_it() {
    let machine = Machine::with_gpus(2);
    let nvml = machine.nvml().expect("init");
    let gpu = nvml.device_by_index(1).expect("a device");
    fs::write(machine.node.calls_path(), "").expect("an empty log");
    gpu.minor_number().expect("minor");
    nvml.device_count().expect("a count");
    let log = fs::read_to_string(machine.node.calls_path()).expect("the log");
    assert_eq!(log, "nvmlDeviceGetMinorNumber 1\nnvmlDeviceGetCount_v2\n");
}
