//! Frame buffer and BAR1. No process runs on these GPUs, so nothing beyond the driver's share is used.

use nvml_wrapper_sys::bindings::{nvmlBAR1Memory_t, nvmlMemory_t, nvmlMemory_v2_t};

use crate::call::nvml;
use crate::code::{Answer, require};
use crate::out::{blank, put, version_word, versioned};
use crate::part::Either;

/// Bytes in a MiB.
const MIB: u64 = 1 << 20;

/// BAR1 that the driver maps for itself.
const BAR1_USED: u64 = MIB;

nvml! {
    // The first version counts the driver's share as used.
    fn nvmlDeviceGetMemoryInfo(device: Either, memory: *mut nvmlMemory_t) {
        let (total, used) = total_and_reserved(device)?;
        put(memory, nvmlMemory_t { total, free: total.saturating_sub(used), used })
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: Either, memory: *mut nvmlMemory_v2_t) {
        let memory = blank(versioned(memory, 2)?)?;
        let (total, reserved) = total_and_reserved(device)?;
        memory.version = version_word::<nvmlMemory_v2_t>(2);
        (memory.total, memory.reserved, memory.free) = (total, reserved, total.saturating_sub(reserved));
        Ok(())
    }

    fn nvmlDeviceGetBAR1MemoryInfo(gpu: Device, memory: *mut nvmlBAR1Memory_t) {
        require(gpu.board.bar1_mib > 0)?;
        let total = gpu.board.bar1_mib * MIB;
        put(memory, nvmlBAR1Memory_t { bar1Total: total, bar1Free: total - BAR1_USED, bar1Used: BAR1_USED })
    }
}

/// In bytes. What the driver keeps is not taken from MIG devices.
fn total_and_reserved(device: &Either<'_>) -> Answer<(u64, u64)> {
    Ok(match device {
        Either::Gpu(gpu) => (gpu.board.memory_mib * MIB, gpu.board.memory_reserved_mib * MIB),
        Either::Mig(part) => (part.profile()?.memory_mib * MIB, 0),
    })
}
