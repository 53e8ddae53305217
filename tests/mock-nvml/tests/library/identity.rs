//! What a GPU says of itself, and what bad arguments get.

use std::ffi::{c_char, c_ulong};
use std::ptr;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlDeviceAddressingMode_t, nvmlMemory_v2_t};

use crate::machine::{Machine, handle};

#[test]
fn a_gpu_reports_what_its_topology_says() {
    let machine = Machine::one_gpu();
    let (gpu, board) = (&machine.topology.gpus[0], machine.topology.board(&machine.topology.gpus[0]));
    let nvml = machine.nvml().expect("init");
    let device = nvml.device_by_index(0).expect("a device");
    assert_eq!(device.name().expect("name"), board.product_name);
    assert_eq!(device.uuid().expect("uuid"), gpu.uuid);
    assert_eq!(device.minor_number().expect("minor"), gpu.minor);
    assert_eq!(device.memory_info().expect("memory").total, board.memory_mib << 20);
    let pci = device.pci_info().expect("pci");
    assert_eq!(pci.bus_id, format!("0000{}", gpu.bus_id.to_uppercase()));
    assert_eq!(format!("0x{:08X}", pci.pci_device_id), board.pci_device_id);
}

#[test]
fn a_gpu_is_found_by_everything_that_names_it() {
    let machine = Machine::with_gpus(3);
    let gpu = &machine.topology.gpus[2];
    let nvml = machine.nvml().expect("init");
    let found = [
        nvml.device_by_index(2),
        nvml.device_by_uuid(gpu.uuid.as_str()),
        nvml.device_by_pci_bus_id(gpu.bus_id.as_str()),
        nvml.device_by_pci_bus_id(format!("0000{}", gpu.bus_id.to_uppercase())),
    ];
    for device in found {
        assert_eq!(device.expect("found").minor_number().expect("minor"), 2);
    }
    assert!(nvml.device_by_uuid("GPU-unknown").is_err());
    assert!(nvml.device_by_pci_bus_id("0000:ff:00.0").is_err());
    #[expect(deprecated, reason = "the mock answers this call, too")]
    let by_serial = nvml.device_by_serial(gpu.serial.clone().expect("a serial"));
    assert!(by_serial.is_err(), "all GPUs of this machine share one serial number, so it names none");
}

#[test]
fn stray_handles_and_null_pointers_are_invalid_arguments() {
    let machine = Machine::one_gpu();
    let lib = machine.raw();
    let mut local = 0_u32;
    let strays: [nvmlDevice_t; 3] =
        [ptr::null_mut(), (&raw mut local).cast(), handle_after_init(&machine).wrapping_byte_add(1)];
    // SAFETY: a stray handle is never followed, and all other pointers are null or to locals.
    unsafe {
        assert_eq!(lib.nvmlInit_v2(), 0);
        for stray in strays {
            assert_eq!(lib.nvmlDeviceGetMinorNumber(stray, &raw mut local), 2);
        }
        let device = handle(&lib, 0);
        assert_eq!(lib.nvmlDeviceGetMinorNumber(device, ptr::null_mut()), 2);
        assert_eq!(lib.nvmlDeviceGetName(device, ptr::null_mut(), 96), 2);
        assert_eq!(lib.nvmlDeviceGetHandleByUUID(ptr::null(), ptr::null_mut()), 2);
        assert_eq!(lib.nvmlDeviceGetFieldValues(device, 1, ptr::null_mut()), 2);
        assert_eq!(lib.nvmlDeviceGetCpuAffinity(device, 0, ptr::null_mut()), 2);
    }
}

#[test]
fn a_short_buffer_is_left_alone() {
    let machine = Machine::one_gpu();
    let lib = machine.raw();
    let name = &machine.topology.board(&machine.topology.gpus[0]).product_name;
    let mut buffer = [0x55 as c_char; 96];
    let length = u32::try_from(name.len()).expect("a short name");
    // SAFETY: the buffer is longer than every length passed.
    unsafe {
        assert_eq!(lib.nvmlInit_v2(), 0);
        let device = handle(&lib, 0);
        assert_eq!(lib.nvmlDeviceGetName(device, buffer.as_mut_ptr(), length), 7);
        assert_eq!(buffer, [0x55 as c_char; 96]);
        assert_eq!(lib.nvmlDeviceGetName(device, buffer.as_mut_ptr(), length + 1), 0);
        assert_eq!(buffer[name.len()], 0);
    }
}

#[test]
fn versioned_structs_need_their_version_word() {
    let machine = Machine::one_gpu();
    let lib = machine.raw();
    // SAFETY: all-zero is a value of these structs of integers, and the pointers are to locals.
    unsafe {
        let mut memory: nvmlMemory_v2_t = std::mem::zeroed();
        let mut mode: nvmlDeviceAddressingMode_t = std::mem::zeroed();
        assert_eq!(lib.nvmlInit_v2(), 0);
        let device = handle(&lib, 0);
        assert_eq!(lib.nvmlDeviceGetMemoryInfo_v2(device, &raw mut memory), 25);
        memory.version = 0x0200_0028;
        assert_eq!(lib.nvmlDeviceGetMemoryInfo_v2(device, &raw mut memory), 0);
        mode.version = 0x0200_0008;
        assert_eq!(lib.nvmlDeviceGetAddressingMode(device, &raw mut mode), 25);
        mode.version = 0x0100_0008;
        assert_eq!(lib.nvmlDeviceGetAddressingMode(device, &raw mut mode), 0);
    }
}

#[test]
fn cpus_beyond_the_given_set_are_left_out() {
    let machine = Machine::one_gpu();
    let lib = machine.raw();
    let mut set: [c_ulong; 2] = [c_ulong::MAX; 2];
    // SAFETY: the set has the length that is passed.
    unsafe {
        assert_eq!(lib.nvmlInit_v2(), 0);
        assert_eq!(lib.nvmlDeviceGetCpuAffinity(handle(&lib, 0), 1, set.as_mut_ptr()), 0);
    }
    assert_ne!(set[0], c_ulong::MAX, "CPUs near the GPU are some, not all");
    assert_eq!(set[1], c_ulong::MAX, "written beyond the set");
}

/// A valid handle, taken while the library is initialised; handles are the same later.
fn handle_after_init(machine: &Machine) -> nvmlDevice_t {
    let nvml = machine.nvml().expect("init");
    // SAFETY: the handle is not used after the library is unloaded.
    unsafe { nvml.device_by_index(0).expect("a device").handle() }
}
