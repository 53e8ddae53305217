//! `nvmlDeviceGetFieldValues`: facts by number, each with a return code of its own.
//!
//! Only numbers below 251 are modelled: those after it were renumbered between NVML 12 and 13. A test can set any.

use std::ffi::c_int;
use std::time::{SystemTime, UNIX_EPOCH};

use nvml_wrapper_sys::bindings::{nvmlFieldValue_t, nvmlValue_t};
use topology::LinkEnd;

use crate::call::{Device, nvml};
use crate::code::{Answer, Code, SUCCESS};
use crate::device::HOPPER;
use crate::health::{remapped_uncorrectable, remaps_rows};

/// The last field of NVML 13.5.
const LAST_FIELD: u32 = 309;

/// `nvmlValueType_t`.
const UNSIGNED_INT: u32 = 1;
const UNSIGNED_LONG_LONG: u32 = 3;

/// A field's value and its type.
#[derive(Debug, Clone, Copy)]
enum Value {
    Int(u32),
    Long(u64),
}

nvml! {
    fn nvmlDeviceGetFieldValues(gpu: Device, count: c_int, values: *mut nvmlFieldValue_t) {
        let count = usize::try_from(count).ok().filter(|count| *count > 0).ok_or(Code::INVALID_ARGUMENT)?;
        if values.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        for entry in std::slice::from_raw_parts_mut(values, count) {
            entry.timestamp = i64::try_from(now).unwrap_or(i64::MAX);
            entry.latencyUsec = 0;
            // Clear the whole union first, so that a reader of a wider member sees no stale bytes.
            entry.value = nvmlValue_t { ullVal: 0 };
            entry.nvmlReturn = match value(gpu, entry.fieldId, entry.scopeId) {
                Ok(Value::Int(value)) => {
                    entry.valueType = UNSIGNED_INT;
                    entry.value.uiVal = value;
                    SUCCESS
                }
                Ok(Value::Long(value)) => {
                    entry.valueType = UNSIGNED_LONG_LONG;
                    entry.value.ullVal = value;
                    SUCCESS
                }
                Err(code) => code.0,
            };
        }
        Ok(())
    }
}

fn value(gpu: &Device<'_>, field: u32, scope: u32) -> Answer<Value> {
    if let Some(&set) = gpu.state.fields.get(&field) {
        return Ok(u32::try_from(set).map_or(Value::Long(set), Value::Int));
    }
    let flag = |on: bool| Value::Int(u32::from(on));
    let when = |holds: bool, value: Value| if holds { Ok(value) } else { Err(Code::NOT_SUPPORTED) };
    let ecc = gpu.board.ecc;
    match field {
        // ECC mode, current and pending.
        1 | 2 => when(ecc, Value::Int(1)),
        // Totals, volatile and aggregate.
        3 | 5 => when(ecc, Value::Long(gpu.state.ecc_correctable)),
        4 | 6 => when(ecc, Value::Long(gpu.state.ecc_uncorrectable)),
        // Links of this GPU, and how many of them end at a switch.
        91 => when(gpu.link_count() > 0, Value::Int(gpu.link_count())),
        147 => {
            let switched = gpu.links().filter(|link| !matches!(link.to, LinkEnd::Gpu(_))).count();
            when(gpu.link_count() > 0, Value::Int(u32::try_from(switched).map_err(|_| Code::UNKNOWN)?))
        }
        // Remapped rows: correctable, uncorrectable, pending, failed.
        142 => when(remaps_rows(gpu), Value::Int(0)),
        143 => when(remaps_rows(gpu), Value::Int(remapped_uncorrectable(gpu))),
        144 => when(remaps_rows(gpu), flag(gpu.state.row_remap_pending)),
        145 => when(remaps_rows(gpu), flag(gpu.state.row_remap_failed)),
        // One link, named by the scope: the number of its other end, speed in MB/s, state, version.
        146 => gpu.link(scope).map(|_| Value::Int(scope)),
        164 => Ok(Value::Int(if gpu.link(scope)?.up { speed(gpu) } else { 0 })),
        165 => gpu.link(scope).map(|link| flag(link.up)),
        166 => gpu.link(scope).and_then(|_| gpu.nvlink_version()).map(Value::Int),
        // Chip-to-chip links, and whether they are up.
        170 | 171 => when(gpu.board.c2c, Value::Int(1)),
        // Whether MIG mode changes without a reset, and whether MIG can be asked about while it is off.
        184 => Ok(flag(gpu.board.mig_capable && gpu.board.architecture >= HOPPER)),
        199 => Ok(flag(gpu.board.mig_capable)),
        // Recovery action: none.
        230 => Ok(Value::Int(0)),
        1..=LAST_FIELD => Err(Code::NOT_SUPPORTED),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// What one link of each generation carries in one direction, in MB/s, as NVML reports it.
fn speed(gpu: &Device<'_>) -> u32 {
    match gpu.facts.nvlink_version {
        Some(..=3) | None => 25_000,
        Some(4) => 26_562,
        Some(5..) => 53_125,
    }
}
