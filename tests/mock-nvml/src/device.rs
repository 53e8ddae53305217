//! Enumeration, identity, and the modes that can be set.

use std::ffi::{CStr, c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlBrandType_t, nvmlC2cModeInfo_v1_t, nvmlComputeMode_t, nvmlDevice_t, nvmlDeviceAddressingMode_t,
    nvmlDeviceArchitecture_t, nvmlEnableState_t, nvmlGpuVirtualizationMode_t, nvmlPlatformInfo_t,
    nvmlPlatformInfo_v1_t, nvmlPlatformInfo_v2_t, nvmlUUID_t,
};
use topology::{AddressingMode, LinkEnd};

use crate::call::{Call, nvml};
use crate::code::{Answer, Code, require};
use crate::handle::{self, Instance};
use crate::out::{argument, blank, put, text, version_word, versioned, word};
use crate::part::Either;
use crate::pci::Address;

/// `NVML_DEVICE_ARCH_AMPERE`.
pub(crate) const AMPERE: u32 = 7;
/// `NVML_DEVICE_ARCH_HOPPER`.
pub(crate) const HOPPER: u32 = 9;
/// `NVML_DEVICE_ARCH_BLACKWELL`.
pub(crate) const BLACKWELL: u32 = 10;

/// `NVML_COMPUTEMODE_EXCLUSIVE_THREAD`: support was removed.
const EXCLUSIVE_THREAD: c_uint = 1;

/// `NVML_COMPUTEMODE_EXCLUSIVE_PROCESS`, the last mode.
const EXCLUSIVE_PROCESS: c_uint = 3;

/// `NVML_GSP_FIRMWARE_VERSION_BUF_SIZE`: the caller of this one function passes no length.
const GSP_VERSION_LENGTH: c_uint = 64;

/// `NVML_UUID_TYPE_ASCII` and `NVML_UUID_TYPE_BINARY`.
const UUID_ASCII: c_uint = 1;
const UUID_BINARY: c_uint = 2;

nvml! {
    fn nvmlDeviceGetCount, nvmlDeviceGetCount_v2(call: Call, count: *mut c_uint) {
        put(count, c_uint::try_from(call.node.visible.len()).map_err(|_| Code::UNKNOWN)?)
    }

    fn nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2(call: Call, index: c_uint, device: *mut nvmlDevice_t) {
        let found = call.node.visible.get(index as usize).ok_or(Code::INVALID_ARGUMENT)?;
        hand_out(call, *found, device)
    }

    fn nvmlDeviceGetHandleByUUID(call: Call, uuid: *const c_char, device: *mut nvmlDevice_t) {
        let uuid = argument(uuid)?;
        if let Some(instance) = mig_by_uuid(call, uuid) {
            call.found(instance.gpu)?;
            return put(device, instance.mig_device());
        }
        hand_out(call, by_uuid(call, uuid)?, device)
    }

    fn nvmlDeviceGetHandleByUUIDV(call: Call, uuid: *const nvmlUUID_t, device: *mut nvmlDevice_t) {
        let uuid = &*versioned(uuid.cast_mut(), 1)?;
        let text = match uuid.type_ {
            UUID_ASCII => CStr::from_ptr(uuid.value.str_.as_ptr()).to_string_lossy().into_owned(),
            UUID_BINARY => format!("GPU-{}", hyphenated(uuid.value.bytes)),
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        hand_out(call, by_uuid(call, &text)?, device)
    }

    fn nvmlDeviceGetHandleBySerial(call: Call, serial: *const c_char, device: *mut nvmlDevice_t) {
        let serial = argument(serial)?;
        let mut found = call.gpus().filter(|(_, gpu)| gpu.serial.as_deref() == Some(serial)).map(|(index, _)| index);
        match (found.next(), found.next()) {
            (Some(index), None) => hand_out(call, index, device),
            // The two GPUs of a superchip share their board's number.
            (Some(_), Some(_)) => Err(Code::INVALID_ARGUMENT),
            (None, _) => Err(Code::NOT_FOUND),
        }
    }

    fn nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2(
        call: Call, pci_bus_id: *const c_char, device: *mut nvmlDevice_t
    ) {
        let address = Address::parse(argument(pci_bus_id)?).ok_or(Code::INVALID_ARGUMENT)?;
        let found = call.gpus().find(|(_, gpu)| Address::parse(&gpu.bus_id) == Some(address));
        hand_out(call, found.ok_or(Code::NOT_FOUND)?.0, device)
    }

    fn nvmlDeviceGetIndex(gpu: Device, index: *mut c_uint) {
        let at = gpu.call.node.visible.iter().position(|visible| *visible == gpu.index);
        put(index, at.and_then(|at| c_uint::try_from(at).ok()).ok_or(Code::UNKNOWN)?)
    }

    fn nvmlDeviceGetName(device: Either, name: *mut c_char, length: c_uint) {
        match device {
            Either::Gpu(gpu) => text(name, length, &gpu.board.product_name),
            Either::Mig(part) => {
                let profile = part.parent.compute_profile(part.gpu.table()?, part.instance.profile)?;
                text(name, length, &format!("{} MIG {}", part.gpu.board.product_name, profile.name))
            }
        }
    }

    fn nvmlDeviceGetUUID(device: Either, uuid: *mut c_char, length: c_uint) {
        match device {
            Either::Gpu(gpu) => text(uuid, length, &gpu.facts.uuid),
            Either::Mig(part) => text(uuid, length, &part.instance.uuid),
        }
    }

    fn nvmlDeviceGetSerial(gpu: Device, serial: *mut c_char, length: c_uint) {
        text(serial, length, gpu.facts.serial.as_deref().ok_or(Code::NOT_SUPPORTED)?)
    }

    fn nvmlDeviceGetMinorNumber(gpu: Device, minor: *mut c_uint) {
        put(minor, gpu.facts.minor)
    }

    fn nvmlDeviceGetModuleId(gpu: Device, id: *mut c_uint) {
        put(id, gpu.facts.module_id.unwrap_or(0))
    }

    fn nvmlDeviceGetBrand(gpu: Device, brand: *mut nvmlBrandType_t) {
        put(brand, gpu.board.brand)
    }

    fn nvmlDeviceGetArchitecture(gpu: Device, architecture: *mut nvmlDeviceArchitecture_t) {
        put(architecture, gpu.board.architecture)
    }

    fn nvmlDeviceGetCudaComputeCapability(gpu: Device, major: *mut c_int, minor: *mut c_int) {
        let [high, low] = gpu.board.cuda_compute_capability;
        put(major, high)?;
        put(minor, low)
    }

    fn nvmlDeviceGetVbiosVersion(gpu: Device, version: *mut c_char, length: c_uint) {
        require(!gpu.board.vbios_version.is_empty())?;
        text(version, length, &gpu.board.vbios_version)
    }

    fn nvmlDeviceGetMultiGpuBoard(gpu: Device, multiple: *mut c_uint) {
        let _ = gpu;
        put(multiple, 0)
    }

    fn nvmlDeviceOnSameBoard(gpu: Device, other: nvmlDevice_t, same: *mut c_int) {
        let other = gpu.call.peer(other)?;
        put(same, c_int::from(gpu.address()?.board_id() == other.address()?.board_id()))
    }

    fn nvmlDeviceGetVirtualizationMode(gpu: Device, mode: *mut nvmlGpuVirtualizationMode_t) {
        put(mode, gpu.facts.virtualization_mode)
    }

    fn nvmlDeviceGetAddressingMode(gpu: Device, mode: *mut nvmlDeviceAddressingMode_t) {
        let mode = versioned(mode, 1)?;
        (*mode).value = match gpu.board.addressing_mode.ok_or(Code::NOT_SUPPORTED)? {
            AddressingMode::None => 0,
            AddressingMode::Hmm => 1,
            AddressingMode::Ats => 2,
        };
        Ok(())
    }

    fn nvmlDeviceGetC2cModeInfoV(gpu: Device, info: *mut nvmlC2cModeInfo_v1_t) {
        // The header has a version macro for this struct, and no member to put it in.
        put(info, nvmlC2cModeInfo_v1_t { isC2cEnabled: c_uint::from(gpu.board.c2c) })
    }

    // Slot, tray and chassis are those of a machine that does not tell: zero and empty.
    fn nvmlDeviceGetPlatformInfo(gpu: Device, info: *mut nvmlPlatformInfo_t) {
        require(gpu.board.architecture >= BLACKWELL)?;
        let version = word(info.cast())?;
        let peer_type = u8::from(gpu.facts.nvlinks.iter().any(|group| !matches!(group.to, LinkEnd::Gpu(_))));
        let module = u8::try_from(gpu.facts.module_id.unwrap_or(0)).map_err(|_| Code::UNKNOWN)?;
        if version == version_word::<nvmlPlatformInfo_v2_t>(2) {
            let info = blank(info)?;
            (info.version, info.peerType, info.moduleId) = (version, peer_type, module);
        } else if version == version_word::<nvmlPlatformInfo_v1_t>(1) {
            let info = blank(info.cast::<nvmlPlatformInfo_v1_t>())?;
            (info.version, info.peerType, info.moduleId) = (version, peer_type, module);
        } else {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        Ok(())
    }

    fn nvmlDeviceGetGspFirmwareVersion(gpu: Device, version: *mut c_char) {
        require(gpu.board.architecture >= AMPERE)?;
        text(version, GSP_VERSION_LENGTH, gpu.call.node.driver_version(&gpu.call.state))
    }

    fn nvmlDeviceGetGspFirmwareMode(gpu: Device, enabled: *mut c_uint, default: *mut c_uint) {
        let on = c_uint::from(gpu.board.architecture >= AMPERE);
        put(enabled, on)?;
        put(default, on)
    }

    fn nvmlDeviceGetPersistenceMode(gpu: Device, mode: *mut nvmlEnableState_t) {
        put(mode, nvmlEnableState_t::from(gpu.state.persistence.unwrap_or(false)))
    }

    fn nvmlDeviceSetPersistenceMode(gpu: Device, mode: nvmlEnableState_t) {
        let on = switch(mode)?;
        gpu.change(|state| state.persistence = Some(on))
    }

    fn nvmlDeviceGetComputeMode(gpu: Device, mode: *mut nvmlComputeMode_t) {
        put(mode, gpu.state.compute_mode.unwrap_or(0))
    }

    fn nvmlDeviceSetComputeMode(gpu: Device, mode: nvmlComputeMode_t) {
        if mode > EXCLUSIVE_PROCESS {
            return Err(Code::INVALID_ARGUMENT);
        }
        require(mode != EXCLUSIVE_THREAD)?;
        gpu.change(|state| state.compute_mode = Some(mode))
    }
}

/// An `nvmlEnableState_t` argument.
pub(crate) fn switch(value: c_uint) -> Answer<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// Stores the handle of a GPU that a look-up found, unless something is wrong with this GPU.
///
/// # Safety
/// `out` is null or valid for writing.
unsafe fn hand_out(call: &Call, index: usize, out: *mut nvmlDevice_t) -> Answer {
    let gpu = call.found(index)?;
    // SAFETY: the caller keeps the contract.
    unsafe { put(out, handle::of_gpu(gpu.index)) }
}

fn by_uuid(call: &Call, uuid: &str) -> Answer<usize> {
    if uuid.is_empty() {
        return Err(Code::INVALID_ARGUMENT);
    }
    call.gpus().find(|(_, gpu)| gpu.uuid == uuid).map(|(index, _)| index).ok_or(Code::NOT_FOUND)
}

fn mig_by_uuid(call: &Call, uuid: &str) -> Option<Instance> {
    call.gpus().find_map(|(gpu, facts)| {
        let state = call.state.gpus.get(&gpu).filter(|state| state.mig_on(facts))?;
        let (_, found) = state.mig.devices().find(|(_, instance)| instance.uuid == uuid)?;
        Some(Instance { gpu, birth: found.birth })
    })
}

/// Sixteen bytes in the canonical form of a UUID.
fn hyphenated(bytes: [u8; 16]) -> String {
    let hex = format!("{:032x}", u128::from_be_bytes(bytes));
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_uuid_is_spelled_as_the_topology_spells_it() {
        let bytes = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef_u128.to_be_bytes();
        assert_eq!(hyphenated(bytes), "01234567-89ab-cdef-0123-456789abcdef");
    }
}
