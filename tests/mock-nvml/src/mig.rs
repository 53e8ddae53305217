//! MIG mode. No instance can be made yet, so queries about instances find none.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use crate::call::{Device, nvml};
use crate::code::{Code, SUCCESS, require};
use crate::device::{HOPPER, switch};
use crate::out::put;

/// MIG devices that a board with seven compute slices can hold.
const MAX_DEVICES: c_uint = 7;

nvml! {
    fn nvmlDeviceGetMigMode(gpu: Device, current: *mut c_uint, pending: *mut c_uint) {
        require(gpu.board.mig_capable)?;
        put(current, c_uint::from(gpu.mig_on()))?;
        put(pending, c_uint::from(gpu.state.mig_pending.unwrap_or(gpu.mig_on())))
    }

    // Hopper and later change at once. Earlier boards need a reset first, which the test plays by setting `mig_enabled`
    // in the state: the driver cannot reset a GPU in a virtual machine (RESET_REQUIRED), nor one that is open (IN_USE).
    fn nvmlDeviceSetMigMode(gpu: Device, mode: c_uint, activation: *mut nvmlReturn_t) {
        let on = switch(mode)?;
        if activation.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        require(gpu.board.mig_capable)?;
        if gpu.board.architecture >= HOPPER || on == gpu.mig_on() {
            gpu.change(|state| {
                state.mig_enabled = Some(on);
                state.mig_pending = None;
            })?;
            return put(activation, SUCCESS);
        }
        gpu.change(|state| state.mig_pending = Some(on))?;
        let blocked = if gpu.facts.virtualization_mode == 0 { Code::IN_USE } else { Code::RESET_REQUIRED };
        put(activation, blocked.0)
    }

    fn nvmlDeviceGetMaxMigDeviceCount(gpu: Device, count: *mut c_uint) {
        put(count, if gpu.mig_on() { MAX_DEVICES } else { 0 })
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(gpu: Device, index: c_uint, mig_device: *mut nvmlDevice_t) {
        require(gpu.board.mig_capable)?;
        if mig_device.is_null() || index >= MAX_DEVICES {
            return Err(Code::INVALID_ARGUMENT);
        }
        Err(Code::NOT_FOUND)
    }

    fn nvmlDeviceIsMigDeviceHandle(gpu: Device, is: *mut c_uint) {
        let _ = gpu;
        put(is, 0)
    }

    // These ask about a MIG device, which a GPU is not.
    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpu: Device, parent: *mut nvmlDevice_t) {
        let _ = (gpu, parent);
        Err(Code::INVALID_ARGUMENT)
    }

    fn nvmlDeviceGetGpuInstanceId, nvmlDeviceGetComputeInstanceId(gpu: Device, id: *mut c_uint) {
        let _ = id;
        require(gpu.board.mig_capable)?;
        Err(Code::INVALID_ARGUMENT)
    }
}

impl Device<'_> {
    fn mig_on(&self) -> bool {
        self.state.mig_enabled.unwrap_or(self.facts.mig_enabled)
    }
}
