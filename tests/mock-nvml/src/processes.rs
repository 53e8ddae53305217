//! Processes on a GPU: those that a test put on MIG devices, and none elsewhere.

use std::ffi::c_uint;
use std::mem;

use nvml_wrapper_sys::bindings::{nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t};
use topology::mig::Instances;

use crate::call::nvml;
use crate::code::{Answer, Code};
use crate::part::Either;

/// `NVML_VALUE_NOT_AVAILABLE`.
const UNKNOWN_MEMORY: u64 = u64::MAX;

nvml! {
    fn nvmlDeviceGetComputeRunningProcesses(device: Either, count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t) {
        let running = running(device, |pid, _, _| nvmlProcessInfo_v1_t { pid, usedGpuMemory: UNKNOWN_MEMORY });
        fill(count, infos, &running)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2(device: Either, count: *mut c_uint, infos: *mut nvmlProcessInfo_v2_t) {
        let running = running(device, |pid, gpu_instance, compute_instance| nvmlProcessInfo_v2_t {
            pid,
            usedGpuMemory: UNKNOWN_MEMORY,
            gpuInstanceId: gpu_instance,
            computeInstanceId: compute_instance,
        });
        fill(count, infos, &running)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v3(device: Either, count: *mut c_uint, infos: *mut nvmlProcessInfo_t) {
        let running = running(device, |pid, gpu_instance, compute_instance| nvmlProcessInfo_t {
            pid,
            usedGpuMemory: UNKNOWN_MEMORY,
            gpuInstanceId: gpu_instance,
            computeInstanceId: compute_instance,
        });
        fill(count, infos, &running)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses, nvmlDeviceGetMPSComputeRunningProcesses(
        device: Either, count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t
    ) {
        let _ = device;
        fill(count, infos, &[])
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlDeviceGetMPSComputeRunningProcesses_v2(
        device: Either, count: *mut c_uint, infos: *mut nvmlProcessInfo_v2_t
    ) {
        let _ = device;
        fill(count, infos, &[])
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlDeviceGetMPSComputeRunningProcesses_v3(
        device: Either, count: *mut c_uint, infos: *mut nvmlProcessInfo_t
    ) {
        let _ = device;
        fill(count, infos, &[])
    }
}

/// The processes on a MIG device, or on all of a GPU: pid, GPU instance, compute instance.
fn running<T>(device: &Either<'_>, info: impl Fn(u32, u32, u32) -> T) -> Vec<T> {
    let all = device.gpu().instances().into_iter().flat_map(Instances::devices);
    let asked = all.filter(|(_, ci)| device.mig().map_or(true, |mig| mig.instance.birth == ci.birth));
    asked.flat_map(|(gi, ci)| ci.pids.iter().map(|&pid| info(pid, gi.id, ci.id))).collect()
}

/// Stores a list the way process queries do: all of it, or its length and INSUFFICIENT_SIZE.
///
/// # Safety
/// `count` is null or valid; `infos` is null or valid for writing `*count` items.
unsafe fn fill<T: Copy>(count: *mut c_uint, infos: *mut T, running: &[T]) -> Answer {
    // SAFETY: the caller keeps the contract.
    let count = unsafe { count.as_mut() }.ok_or(Code::INVALID_ARGUMENT)?;
    let room = mem::replace(count, c_uint::try_from(running.len()).map_err(|_| Code::UNKNOWN)?);
    if running.is_empty() {
        return Ok(());
    }
    if room < *count {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    if infos.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: `infos` has room for `room` items, and no more than that are written.
    unsafe { infos.copy_from_nonoverlapping(running.as_ptr(), running.len()) };
    Ok(())
}
