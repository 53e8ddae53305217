//! ECC, retired pages and remapped rows.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlEccCounterType_t, nvmlEccErrorCounts_t, nvmlEccSramErrorStatus_t, nvmlEnableState_t, nvmlMemoryErrorType_t,
    nvmlMemoryLocation_t, nvmlPageRetirementCause_t, nvmlRepairStatus_t, nvmlRowRemapperHistogramValues_t,
};

use crate::call::{Device, nvml};
use crate::code::{Answer, Code, require};
use crate::device::AMPERE;
use crate::out::{blank, put, version_word, versioned};

/// `NVML_MEMORY_LOCATION_DRAM` and `NVML_MEMORY_LOCATION_COUNT`. All errors here are in the frame buffer.
const DRAM: c_uint = 2;
const LOCATIONS: c_uint = 8;

/// Banks of an H100, all with every spare row left.
const BANKS: c_uint = 2560;

nvml! {
    fn nvmlDeviceGetEccMode(gpu: Device, current: *mut nvmlEnableState_t, pending: *mut nvmlEnableState_t) {
        require(gpu.board.ecc)?;
        put(current, 1)?;
        put(pending, 1)
    }

    fn nvmlDeviceGetDefaultEccMode(gpu: Device, mode: *mut nvmlEnableState_t) {
        require(gpu.board.ecc)?;
        put(mode, 1)
    }

    fn nvmlDeviceGetTotalEccErrors(
        gpu: Device, kind: nvmlMemoryErrorType_t, counter: nvmlEccCounterType_t, count: *mut c_ulonglong
    ) {
        put(count, errors(gpu, kind, counter)?)
    }

    fn nvmlDeviceGetDetailedEccErrors(
        gpu: Device, kind: nvmlMemoryErrorType_t, counter: nvmlEccCounterType_t, counts: *mut nvmlEccErrorCounts_t
    ) {
        let memory = errors(gpu, kind, counter)?;
        put(counts, nvmlEccErrorCounts_t { l1Cache: 0, l2Cache: 0, deviceMemory: memory, registerFile: 0 })
    }

    fn nvmlDeviceGetMemoryErrorCounter(
        gpu: Device, kind: nvmlMemoryErrorType_t, counter: nvmlEccCounterType_t, location: nvmlMemoryLocation_t,
        count: *mut c_ulonglong
    ) {
        let memory = errors(gpu, kind, counter)?;
        if location >= LOCATIONS {
            return Err(Code::INVALID_ARGUMENT);
        }
        put(count, if location == DRAM { memory } else { 0 })
    }

    fn nvmlDeviceGetSramEccErrorStatus(gpu: Device, status: *mut nvmlEccSramErrorStatus_t) {
        let status = versioned(status, 1)?;
        require(remaps_rows(gpu))?;
        blank(status)?.version = version_word::<nvmlEccSramErrorStatus_t>(1);
        Ok(())
    }

    fn nvmlDeviceGetRetiredPages(
        gpu: Device, cause: nvmlPageRetirementCause_t, count: *mut c_uint, addresses: *mut c_ulonglong
    ) {
        let _ = addresses;
        put(count, retired(gpu, cause)?)
    }

    fn nvmlDeviceGetRetiredPages_v2(
        gpu: Device, cause: nvmlPageRetirementCause_t, count: *mut c_uint, addresses: *mut c_ulonglong,
        timestamps: *mut c_ulonglong
    ) {
        let _ = (addresses, timestamps);
        put(count, retired(gpu, cause)?)
    }

    fn nvmlDeviceGetRetiredPagesPendingStatus(gpu: Device, pending: *mut nvmlEnableState_t) {
        require(retires_pages(gpu))?;
        put(pending, 0)
    }

    fn nvmlDeviceGetRemappedRows(
        gpu: Device, correctable: *mut c_uint, uncorrectable: *mut c_uint, pending: *mut c_uint, failed: *mut c_uint
    ) {
        require(remaps_rows(gpu))?;
        put(correctable, 0)?;
        put(uncorrectable, remapped_uncorrectable(gpu))?;
        put(pending, c_uint::from(gpu.state.row_remap_pending))?;
        put(failed, c_uint::from(gpu.state.row_remap_failed))
    }

    fn nvmlDeviceGetRowRemapperHistogram(gpu: Device, values: *mut nvmlRowRemapperHistogramValues_t) {
        require(remaps_rows(gpu))?;
        let none = c_uint::from(gpu.state.row_remap_failed);
        put(values, nvmlRowRemapperHistogramValues_t { max: BANKS - none, high: 0, partial: 0, low: 0, none })
    }

    fn nvmlDeviceGetRepairStatus(gpu: Device, status: *mut nvmlRepairStatus_t) {
        let status = versioned(status, 1)?;
        require(remaps_rows(gpu))?;
        (*status).bChannelRepairPending = 0;
        (*status).bTpcRepairPending = 0;
        Ok(())
    }
}

/// Whether this board replaces bad rows by spare ones: Ampere and later.
pub(crate) fn remaps_rows(gpu: &Device<'_>) -> bool {
    gpu.board.ecc && gpu.board.architecture >= AMPERE
}

/// Rows replaced after uncorrectable errors. A pending remap is one of them.
pub(crate) fn remapped_uncorrectable(gpu: &Device<'_>) -> c_uint {
    c_uint::from(gpu.state.row_remap_pending)
}

/// Whether this board takes bad pages out of use instead: before Ampere.
fn retires_pages(gpu: &Device<'_>) -> bool {
    gpu.board.ecc && gpu.board.architecture < AMPERE
}

fn retired(gpu: &Device<'_>, cause: c_uint) -> Answer<c_uint> {
    if cause > 1 {
        return Err(Code::INVALID_ARGUMENT);
    }
    require(retires_pages(gpu)).map(|()| 0)
}

/// Volatile and aggregate counters are the same: nobody has reset the former since start.
fn errors(gpu: &Device<'_>, kind: c_uint, counter: c_uint) -> Answer<u64> {
    require(gpu.board.ecc)?;
    match (kind, counter) {
        (0, 0 | 1) => Ok(gpu.state.ecc_correctable),
        (1, 0 | 1) => Ok(gpu.state.ecc_uncorrectable),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}
