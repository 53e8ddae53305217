//! One cheap look at whether a GPU works: four fields in one call, and its fabric.
#![expect(unsafe_code, reason = "calls into the NVML library")]

use std::mem::size_of;

use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{nvmlFieldValue_t, nvmlGpuFabricInfo_v3_t, nvmlGpuFabricInfoV_t, nvmlValue_t};

use super::error::{Code, Error};
use crate::device::GpuUuid;

/// Fields of `nvmlDeviceGetFieldValues`. Those below 251 have the same numbers in all drivers.
const ECC_UNCORRECTABLE: u32 = 4;
const ROW_REMAP_PENDING: u32 = 144;
const ROW_REMAP_FAILURE: u32 = 145;
const RECOVERY_ACTION: u32 = 230;
const FIELDS: [u32; 4] = [RECOVERY_ACTION, ROW_REMAP_PENDING, ROW_REMAP_FAILURE, ECC_UNCORRECTABLE];

/// The version word of the fabric's structure: its size, and its number in the top byte. Older ones say nothing of health.
#[expect(clippy::cast_possible_truncation, reason = "the structure has 40 bytes")]
const FABRIC_V3: u32 = size_of::<nvmlGpuFabricInfo_v3_t>() as u32 | 3 << 24;

/// What a GPU says of itself. What it does not have is an error that [is absence](Error::is_absent).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// `nvmlDeviceGpuRecoveryAction_t`; 0 is none.
    pub recovery_action: Result<u64, Error>,
    /// Whether rows wait for a reset to be remapped.
    pub row_remap_pending: Result<u64, Error>,
    /// Whether rows could not be remapped.
    pub row_remap_failure: Result<u64, Error>,
    /// Uncorrectable errors since the driver was loaded.
    pub ecc_uncorrectable: Result<u64, Error>,
    /// How it stands with the NVLink fabric.
    pub fabric: Result<FabricHealth, Error>,
}

/// What version 3 of `nvmlGpuFabricInfoV_t` says of health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FabricHealth {
    /// `nvmlGpuFabricState_t`; 3 is completed.
    pub state: u8,
    /// `NVML_GPU_FABRIC_HEALTH_MASK_*`
    pub mask: u32,
    /// `NVML_GPU_FABRIC_HEALTH_SUMMARY_*`
    pub summary: u8,
}

/// Probes one GPU.
///
/// # Errors
/// When the GPU is lost or not there, and when the library is stale.
pub fn read(nvml: &Nvml, gpu: &GpuUuid) -> Result<Probe, Error> {
    let call = "nvmlDeviceGetHandleByUUID";
    let device =
        nvml.device_by_uuid(gpu.as_str()).map_err(|error| Error::from_wrapper(call, Some(gpu.as_str()), error))?;
    let [recovery_action, row_remap_pending, row_remap_failure, ecc_uncorrectable] = fields(&device, gpu);
    let fabric = fabric(&device, gpu);
    let probe = Probe { recovery_action, row_remap_pending, row_remap_failure, ecc_uncorrectable, fabric };
    if let Some(error) = probe.errors().find(|error| error.is_stale()) {
        return Err(error.clone());
    }
    if probe.errors().any(|error| error.code() == Some(Code::GPU_IS_LOST)) {
        // One query that says "lost" costs its fact. A GPU that cannot even say who it is any more is gone.
        device.uuid().map_err(|error| Error::from_wrapper("nvmlDeviceGetUUID", Some(gpu.as_str()), error))?;
    }
    Ok(probe)
}

fn fields(device: &Device<'_>, gpu: &GpuUuid) -> [Result<u64, Error>; 4] {
    let call = "nvmlDeviceGetFieldValues";
    let failed = |code| Error::Call { call, gpu: Some(gpu.to_string()), code };
    let Ok(function) = device.nvml().lib().nvmlDeviceGetFieldValues.as_ref() else {
        return FIELDS.map(|_| Err(Error::Symbol { call }));
    };
    let mut values = FIELDS.map(|field| nvmlFieldValue_t {
        fieldId: field,
        scopeId: 0,
        timestamp: 0,
        latencyUsec: 0,
        valueType: 0,
        // What a library leaves as it is was not answered.
        nvmlReturn: Code::NOT_SUPPORTED.0,
        value: nvmlValue_t { ullVal: 0 },
    });
    // SAFETY: the symbol's type is the one nvml.h declares for this name. The handle is the library's own, which `device`
    // borrows. The pointer is to as many values as the count says, and they outlive the call.
    let code = Code(unsafe { function(device.handle(), 4, values.as_mut_ptr()) });
    values.map(|value| match (code, Code(value.nvmlReturn)) {
        (Code::SUCCESS, Code::SUCCESS) => number(&value).ok_or_else(|| Error::Answer {
            call,
            gpu: Some(gpu.to_string()),
            answer: format!("a value of type {} for field {}", value.valueType, value.fieldId),
            expected: "a whole number",
        }),
        (Code::SUCCESS, code) | (code, _) => Err(failed(code)),
    })
}

/// A whole number that is not negative, of whichever type.
fn number(value: &nvmlFieldValue_t) -> Option<u64> {
    // SAFETY: every member of the union is a plain number, of which any bytes are a value; the union was zero before the
    // call, so all of its bytes are initialised. `valueType` only says which member was meant.
    unsafe {
        match value.valueType {
            1 => Some(value.value.uiVal.into()),
            2 => Some(value.value.ulVal),
            3 => Some(value.value.ullVal),
            4 => u64::try_from(value.value.sllVal).ok(),
            5 => u64::try_from(value.value.siVal).ok(),
            6 => Some(value.value.usVal.into()),
            _ => None,
        }
    }
}

fn fabric(device: &Device<'_>, gpu: &GpuUuid) -> Result<FabricHealth, Error> {
    let call = "nvmlDeviceGetGpuFabricInfoV";
    let function = device.nvml().lib().nvmlDeviceGetGpuFabricInfoV.as_ref().map_err(|_| Error::Symbol { call })?;
    let mut info = nvmlGpuFabricInfoV_t {
        version: FABRIC_V3,
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
        healthMask: 0,
        healthSummary: 0,
    };
    // SAFETY: as for the fields; the pointer is to a local structure whose size is in its version word.
    match Code(unsafe { function(device.handle(), &raw mut info) }) {
        Code::SUCCESS => Ok(FabricHealth { state: info.state, mask: info.healthMask, summary: info.healthSummary }),
        code => Err(Error::Call { call, gpu: Some(gpu.to_string()), code }),
    }
}

// === impl Probe ===

impl Probe {
    /// What could not be read.
    pub fn errors(&self) -> impl Iterator<Item = &Error> {
        let numbers =
            [&self.recovery_action, &self.row_remap_pending, &self.row_remap_failure, &self.ecc_uncorrectable];
        numbers.into_iter().filter_map(|answer| answer.as_ref().err()).chain(self.fabric.as_ref().err())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_word_is_that_of_the_header() {
        assert_eq!(FABRIC_V3, 0x0300_0028);
    }

    #[test]
    fn a_number_is_read_by_its_type() {
        let value = |kind, value| nvmlFieldValue_t {
            fieldId: 0,
            scopeId: 0,
            timestamp: 0,
            latencyUsec: 0,
            valueType: kind,
            nvmlReturn: 0,
            value,
        };
        let all = nvmlValue_t { ullVal: u64::MAX };
        let read = [0, 1, 2, 3, 4, 5, 6, 7].map(|kind| number(&value(kind, all)));
        let (int, long, short) = (u32::MAX.into(), u64::MAX, u16::MAX.into());
        assert_eq!(read, [None, Some(int), Some(long), Some(long), None, None, Some(short), None]);
        assert_eq!(number(&value(5, nvmlValue_t { siVal: 7 })), Some(7));
        assert_eq!(number(&value(4, nvmlValue_t { sllVal: 7 })), Some(7));
    }
}
