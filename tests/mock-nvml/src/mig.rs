//! MIG mode, and MIG devices: compute instances as programs see them.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlDeviceAttributes_t, nvmlReturn_t};
use topology::Switched;
use topology::mig::Refusal;

use crate::call::{Device, nvml};
use crate::code::{Code, SUCCESS, require};
use crate::device::switch;
use crate::handle;
use crate::out::put;
use crate::part::Either;

/// MIG devices of a board whose profiles are not known.
const MAX_DEVICES: c_uint = 7;

nvml! {
    fn nvmlDeviceGetMigMode(gpu: Device, current: *mut c_uint, pending: *mut c_uint) {
        require(gpu.board.mig_capable)?;
        put(current, c_uint::from(gpu.mig_on()))?;
        put(pending, c_uint::from(gpu.state.mig_pending.unwrap_or(gpu.mig_on())))
    }

    // A reset is for the test to play: the driver cannot reset a GPU in a virtual machine (RESET_REQUIRED), nor one that
    // is open (IN_USE).
    fn nvmlDeviceSetMigMode(gpu: Device, mode: c_uint, activation: *mut nvmlReturn_t) {
        let on = switch(mode)?;
        if activation.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let status = match gpu.change(|state| state.switch_mig(gpu.board, gpu.facts, on))? {
            Ok(Switched::Now) => SUCCESS,
            Ok(Switched::AfterReset) if gpu.facts.virtualization_mode != 0 => Code::RESET_REQUIRED.0,
            Ok(Switched::AfterReset) | Err(Refusal::InUse) => Code::IN_USE.0,
            Err(refusal) => return Err(refusal.into()),
        };
        put(activation, status)
    }

    fn nvmlDeviceGetMaxMigDeviceCount(gpu: Device, count: *mut c_uint) {
        put(count, if gpu.mig_on() { max_devices(gpu) } else { 0 })
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(gpu: Device, index: c_uint, mig_device: *mut nvmlDevice_t) {
        require(gpu.board.mig_capable)?;
        if mig_device.is_null() || index >= max_devices(gpu) {
            return Err(Code::INVALID_ARGUMENT);
        }
        let live = gpu.instances().map_err(|_| Code::NOT_FOUND)?;
        let (_, instance) = live.devices().find(|(_, ci)| ci.index == index).ok_or(Code::NOT_FOUND)?;
        put(mig_device, gpu.instance(instance.birth).mig_device())
    }

    fn nvmlDeviceIsMigDeviceHandle(device: Either, is: *mut c_uint) {
        put(is, c_uint::from(matches!(device, Either::Mig(_))))
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device: Either, parent: *mut nvmlDevice_t) {
        put(parent, handle::of_gpu(device.mig()?.gpu.index))
    }

    fn nvmlDeviceGetGpuInstanceId(device: Either, id: *mut c_uint) {
        require(device.gpu().board.mig_capable)?;
        put(id, device.mig()?.parent.id)
    }

    fn nvmlDeviceGetComputeInstanceId(device: Either, id: *mut c_uint) {
        require(device.gpu().board.mig_capable)?;
        put(id, device.mig()?.instance.id)
    }

    fn nvmlDeviceGetAttributes_v2(device: Either, attributes: *mut nvmlDeviceAttributes_t) {
        let part = device.mig().map_err(|_| Code::NOT_SUPPORTED)?;
        let around = part.profile()?;
        let profile = part.parent.compute_profile(part.gpu.table()?, part.instance.profile)?;
        put(attributes, nvmlDeviceAttributes_t {
            multiprocessorCount: profile.multiprocessors,
            sharedCopyEngineCount: around.copy_engines,
            sharedDecoderCount: around.decoders,
            sharedEncoderCount: around.encoders,
            sharedJpegCount: around.jpeg_engines,
            sharedOfaCount: around.ofa_engines,
            gpuInstanceSliceCount: around.slices,
            computeInstanceSliceCount: profile.slices,
            memorySizeMB: around.memory_mib,
        })
    }
}

fn max_devices(gpu: &Device<'_>) -> c_uint {
    gpu.table().map_or(MAX_DEVICES, topology::mig::Table::slices)
}
