//! Event sets, through the raw bindings: the wrapper drops instance ids.

use std::ptr;
use std::thread;

use nvml_wrapper_sys::bindings::{NvmlLib, nvmlEventData_t, nvmlEventSet_t};
use topology::Event;

use crate::machine::{Machine, handle};

/// `nvmlEventTypeXidCriticalError` and `nvmlEventTypeDoubleBitEccError`.
const XID: u64 = 8;
const DOUBLE_BIT: u64 = 2;

/// Longer than any test should take.
const LONG: u32 = 30_000;

/// `NVML_ERROR_TIMEOUT`.
const TIMEOUT: u32 = 10;

#[test]
fn events_arrive_once_in_order_with_their_instance_ids() {
    let machine = Machine::with_gpus(2);
    let lib = initialised(&machine);
    let set = create(&lib);
    register(&lib, 1, XID, set);
    let mig = Event { gpu_instance: 7, compute_instance: 0, ..Event::xid(1, 43) };
    for event in [&mig, &Event::xid(0, 79), &Event::xid(1, 94)] {
        machine.node.send(event).expect("sent");
    }
    let first = wait(&lib, set, LONG).expect("an event");
    assert_eq!((first.eventType, first.eventData), (XID, 43));
    assert_eq!((first.gpuInstanceId, first.computeInstanceId), (7, 0));
    assert_eq!(first.device, handle(&lib, 1));
    let second = wait(&lib, set, LONG).expect("an event");
    assert_eq!(second.eventData, 94);
    assert_eq!((second.gpuInstanceId, second.computeInstanceId), (u32::MAX, u32::MAX));
    assert_eq!(wait(&lib, set, 0).map(|event| event.eventData), Err(TIMEOUT));
}

#[test]
fn events_before_registration_are_not_recorded() {
    let machine = Machine::one_gpu();
    let lib = initialised(&machine);
    let set = create(&lib);
    machine.node.send(&Event::xid(0, 31)).expect("sent");
    register(&lib, 0, XID, set);
    machine.node.send(&Event::xid(0, 48)).expect("sent");
    assert_eq!(wait(&lib, set, LONG).expect("an event").eventData, 48);
}

#[test]
fn types_that_were_not_asked_for_stay_away() {
    let machine = Machine::one_gpu();
    let lib = initialised(&machine);
    let set = create(&lib);
    register(&lib, 0, DOUBLE_BIT, set);
    machine.node.send(&Event::xid(0, 13)).expect("sent");
    assert_eq!(wait(&lib, set, 0).map(|event| event.eventData), Err(TIMEOUT));
}

#[test]
fn a_waiting_program_wakes_up_for_an_event() {
    let machine = Machine::one_gpu();
    let lib = initialised(&machine);
    let set = create(&lib);
    register(&lib, 0, XID, set);
    thread::scope(|scope| {
        let set = set.addr();
        let lib = &lib;
        let waiting =
            scope.spawn(move || wait(lib, ptr::without_provenance_mut(set), LONG).map(|event| event.eventData));
        machine.node.send(&Event::xid(0, 119)).expect("sent");
        assert_eq!(waiting.join().expect("no panic"), Ok(119));
    });
}

#[test]
fn a_lost_gpu_ends_the_wait_after_its_last_event() {
    let machine = Machine::one_gpu();
    let lib = initialised(&machine);
    let set = create(&lib);
    register(&lib, 0, XID, set);
    machine.node.send(&Event::xid(0, 79)).expect("sent");
    machine.update(|state| state.gpus.entry(0).or_default().lost = true);
    assert_eq!(wait(&lib, set, LONG).expect("the last event").eventData, 79);
    assert_eq!(wait(&lib, set, LONG).map(|event| event.eventData), Err(15));
}

#[test]
fn every_set_sees_the_event() {
    let machine = Machine::one_gpu();
    let lib = initialised(&machine);
    let sets = [create(&lib), create(&lib)];
    for set in sets {
        register(&lib, 0, XID, set);
    }
    machine.node.send(&Event::xid(0, 62)).expect("sent");
    for set in sets {
        assert_eq!(wait(&lib, set, LONG).expect("an event").eventData, 62);
    }
}

#[test]
fn bad_sets_and_types_are_refused() {
    let machine = Machine::one_gpu();
    let lib = initialised(&machine);
    let set = create(&lib);
    // SAFETY: a stray set is never followed; the other pointers are handles.
    unsafe {
        let device = handle(&lib, 0);
        assert_eq!(lib.nvmlDeviceRegisterEvents(device, 1 << 40, set), 3);
        assert_eq!(lib.nvmlDeviceRegisterEvents(device, XID, ptr::null_mut()), 2);
        assert_eq!(lib.nvmlEventSetFree(set), 0);
        assert_eq!(lib.nvmlEventSetFree(set), 2);
    }
    assert_eq!(wait(&lib, set, 0).map(|event| event.eventData), Err(2));
}

fn initialised(machine: &Machine) -> NvmlLib {
    let lib = machine.raw();
    // SAFETY: the function takes no arguments.
    assert_eq!(unsafe { lib.nvmlInit_v2() }, 0);
    lib
}

fn create(lib: &NvmlLib) -> nvmlEventSet_t {
    let mut set = ptr::null_mut();
    // SAFETY: the pointer is to a local.
    assert_eq!(unsafe { lib.nvmlEventSetCreate(&raw mut set) }, 0);
    set
}

fn register(lib: &NvmlLib, gpu: u32, types: u64, set: nvmlEventSet_t) {
    // SAFETY: both are handles of this library.
    assert_eq!(unsafe { lib.nvmlDeviceRegisterEvents(handle(lib, gpu), types, set) }, 0);
}

fn wait(lib: &NvmlLib, set: nvmlEventSet_t, timeout_ms: u32) -> Result<nvmlEventData_t, u32> {
    // SAFETY: all-zero is a value of this struct of integers and a pointer, and the pointer is to a local.
    unsafe {
        let mut data: nvmlEventData_t = std::mem::zeroed();
        match lib.nvmlEventSetWait_v2(set, &raw mut data, timeout_ms) {
            0 => Ok(data),
            code => Err(code),
        }
    }
}
