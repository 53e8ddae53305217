//! Single NVML calls as plain numbers and strings.
//!
//! Calls that nvml-wrapper gets right go through it. The others go to the C functions: the wrapper turns enum values
//! that are newer than it into errors (brand, architecture), knows one version of a structure only (memory, fabric), or
//! loses the answer (type of an NVLink's far end).
#![expect(unsafe_code, reason = "calls into the NVML library")]

use std::ffi::c_char;
use std::fmt::Display;
use std::mem::size_of;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlDeviceAddressingMode_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t,
    nvmlGpuFabricInfoV_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t,
};

use super::error::{Code, Error};
use crate::device::{GpuUuid, ParseError};

/// Bytes for a product name. nvml.h promises 96 with the terminator; twice that costs nothing and lets a longer one in.
const NAME_BYTES: u32 = 192;

/// A GPU of this library.
pub(super) struct Handle<'n> {
    device: Device<'n>,
    /// For people: "GPU 3", or its UUID.
    pub(super) label: String,
}

/// `nvmlGpuFabricInfo`, as much of it as all versions have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FabricInfo {
    /// `nvmlGpuFabricState_t`; 3 is completed.
    pub(super) state: u8,
    /// The registration's return code, once it is completed.
    pub(super) status: Code,
    pub(super) cluster: [u8; 16],
    pub(super) clique: u32,
}

/// Calls a function about a GPU through the library's own symbol.
macro_rules! call {
    ($handle:expr, $function:ident($($argument:expr),*)) => {{
        let call = stringify!($function);
        let library = $handle.device.nvml().lib();
        let function = library.$function.as_ref().map_err(|_| Error::Symbol { call })?;
        // SAFETY: the symbol's type is the one nvml.h declares for this name. The device handle is the library's own and
        // lives as long as the library, which `device` borrows. Every pointer argument is to a local variable that
        // outlives the call, has the type that nvml.h declares, and carries its size where the function takes one.
        let code = Code(unsafe { function($handle.device.handle(), $($argument),*) });
        if code == Code::SUCCESS { Ok(()) } else { Err(Error::Call { call, gpu: Some($handle.label.clone()), code }) }
    }};
}

mod mig;

pub(super) use mig::{ComputeInstance, ComputeProfile, GpuInstance, GpuInstanceInfo, ProfileInfo};

/// The version word that NVML expects at the head of a structure: its size, and its number in the top byte.
#[expect(clippy::cast_possible_truncation, reason = "structures of NVML are smaller than 16 MiB")]
const fn version_of<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | number << 24
}

pub(super) fn driver_version(nvml: &Nvml) -> Result<String, Error> {
    nvml.sys_driver_version().map_err(|error| Error::from_wrapper("nvmlSystemGetDriverVersion", None, error))
}

/// 1000 × major + 10 × minor. The newer function asks libcuda, which is not on every machine; the older one does not.
pub(super) fn cuda_version(nvml: &Nvml) -> Result<i32, Error> {
    nvml.sys_cuda_driver_version().or_else(|error| {
        let error = Error::from_wrapper("nvmlSystemGetCudaDriverVersion_v2", None, error);
        let Ok(function) = nvml.lib().nvmlSystemGetCudaDriverVersion.as_ref() else { return Err(error) };
        let mut version = 0;
        // SAFETY: the symbol's type is the one nvml.h declares for this name; the pointer is to a local integer.
        let code = Code(unsafe { function(&raw mut version) });
        if code == Code::SUCCESS { Ok(version) } else { Err(error) }
    })
}

pub(super) fn device_count(nvml: &Nvml) -> Result<u32, Error> {
    nvml.device_count().map_err(|error| Error::from_wrapper("nvmlDeviceGetCount_v2", None, error))
}

// === impl Handle ===

impl<'n> Handle<'n> {
    pub(super) fn by_index(nvml: &'n Nvml, index: u32) -> Result<Self, Error> {
        let label = format!("GPU {index}");
        match nvml.device_by_index(index) {
            Ok(device) => Ok(Self { device, label }),
            Err(error) => Err(Error::from_wrapper("nvmlDeviceGetHandleByIndex_v2", Some(&label), error)),
        }
    }

    /// The same GPU whatever its index has become.
    pub(super) fn by_uuid(nvml: &'n Nvml, uuid: &GpuUuid) -> Result<Self, Error> {
        match nvml.device_by_uuid(uuid.as_str()) {
            Ok(device) => Ok(Self { device, label: uuid.to_string() }),
            Err(error) => Err(Error::from_wrapper("nvmlDeviceGetHandleByUUID", Some(uuid.as_str()), error)),
        }
    }

    pub(super) fn uuid(&self) -> Result<String, Error> {
        self.device.uuid().map_err(|error| self.error("nvmlDeviceGetUUID", error))
    }

    pub(super) fn minor(&self) -> Result<u32, Error> {
        self.device.minor_number().map_err(|error| self.error("nvmlDeviceGetMinorNumber", error))
    }

    /// As NVML writes it: `DDDDDDDD:BB:DD.F`.
    pub(super) fn bus_id(&self) -> Result<String, Error> {
        Ok(self.device.pci_info().map_err(|error| self.error("nvmlDeviceGetPciInfo_v3", error))?.bus_id)
    }

    pub(super) fn name(&self) -> Result<String, Error> {
        let mut text: [c_char; NAME_BYTES as usize] = [0; NAME_BYTES as usize];
        call!(self, nvmlDeviceGetName(text.as_mut_ptr(), NAME_BYTES))?;
        self.text("nvmlDeviceGetName", &text)
    }

    /// `nvmlBrandType_t`
    pub(super) fn brand(&self) -> Result<u32, Error> {
        let mut brand = 0;
        call!(self, nvmlDeviceGetBrand(&raw mut brand))?;
        Ok(brand)
    }

    /// `nvmlDeviceArchitecture_t`
    pub(super) fn architecture(&self) -> Result<u32, Error> {
        let mut architecture = 0;
        call!(self, nvmlDeviceGetArchitecture(&raw mut architecture))?;
        Ok(architecture)
    }

    pub(super) fn compute_capability(&self) -> Result<(i32, i32), Error> {
        match self.device.cuda_compute_capability() {
            Ok(capability) => Ok((capability.major, capability.minor)),
            Err(error) => Err(self.error("nvmlDeviceGetCudaComputeCapability", error)),
        }
    }

    /// Total frame buffer in bytes. Both versions of the call agree on it; drivers before 510 have the first only.
    pub(super) fn memory(&self) -> Result<u64, Error> {
        self.memory_v2().or_else(|_| {
            let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
            call!(self, nvmlDeviceGetMemoryInfo(&raw mut memory))?;
            Ok(memory.total)
        })
    }

    fn memory_v2(&self) -> Result<u64, Error> {
        let version = version_of::<nvmlMemory_v2_t>(2);
        let mut memory = nvmlMemory_v2_t { version, total: 0, reserved: 0, free: 0, used: 0 };
        call!(self, nvmlDeviceGetMemoryInfo_v2(&raw mut memory))?;
        Ok(memory.total)
    }

    /// `nvmlDeviceAddressingModeType_t`
    pub(super) fn addressing_mode(&self) -> Result<u32, Error> {
        let version = version_of::<nvmlDeviceAddressingMode_t>(1);
        let mut mode = nvmlDeviceAddressingMode_t { version, value: 0 };
        call!(self, nvmlDeviceGetAddressingMode(&raw mut mode))?;
        Ok(mode.value)
    }

    /// Whether MIG mode is on now; it may be another after the next reset.
    pub(super) fn mig_mode(&self) -> Result<bool, Error> {
        let mode = self.device.mig_mode().map_err(|error| self.error("nvmlDeviceGetMigMode", error))?;
        Ok(mode.current == 1)
    }

    /// Newest structure first: the older ones are subsets, and a driver refuses those that are newer than it.
    pub(super) fn fabric(&self) -> Result<FabricInfo, Error> {
        let older = |error: &Error| {
            matches!(error, Error::Symbol { .. })
                || matches!(
                    error.code(),
                    Some(Code::ARGUMENT_VERSION_MISMATCH | Code::INVALID_ARGUMENT | Code::FUNCTION_NOT_FOUND)
                )
        };
        for version in [version_of::<nvmlGpuFabricInfo_v3_t>(3), version_of::<nvmlGpuFabricInfo_v2_t>(2)] {
            match self.fabric_versioned(version) {
                Err(error) if older(&error) => {}
                answer => return answer,
            }
        }
        let mut info = nvmlGpuFabricInfo_t { clusterUuid: [0; 16], status: 0, cliqueId: 0, state: 0 };
        call!(self, nvmlDeviceGetGpuFabricInfo(&raw mut info))?;
        Ok(FabricInfo {
            state: info.state,
            status: Code(info.status),
            cluster: info.clusterUuid,
            clique: info.cliqueId,
        })
    }

    /// The library writes as much as the version word says; version 3 is the largest, and version 2 is its head.
    fn fabric_versioned(&self, version: u32) -> Result<FabricInfo, Error> {
        let mut info = nvmlGpuFabricInfoV_t {
            version,
            clusterUuid: [0; 16],
            status: 0,
            cliqueId: 0,
            state: 0,
            healthMask: 0,
            healthSummary: 0,
        };
        call!(self, nvmlDeviceGetGpuFabricInfoV(&raw mut info))?;
        Ok(FabricInfo {
            state: info.state,
            status: Code(info.status),
            cluster: info.clusterUuid,
            clique: info.cliqueId,
        })
    }

    /// Whether a link is up. INVALID_ARGUMENT marks the first number that is no link.
    pub(super) fn link_is_up(&self, link: u32) -> Result<bool, Error> {
        let mut state = 0;
        call!(self, nvmlDeviceGetNvLinkState(link, &raw mut state))?;
        Ok(state == 1)
    }

    /// `nvmlNvlinkVersion_t`
    pub(super) fn link_version(&self, link: u32) -> Result<u32, Error> {
        let mut version = 0;
        call!(self, nvmlDeviceGetNvLinkVersion(link, &raw mut version))?;
        Ok(version)
    }

    /// `nvmlIntNvLinkDeviceType_t`
    pub(super) fn link_peer_type(&self, link: u32) -> Result<u32, Error> {
        let mut kind = 0;
        call!(self, nvmlDeviceGetNvLinkRemoteDeviceType(link, &raw mut kind))?;
        Ok(kind)
    }

    /// As NVML writes it: `DDDDDDDD:BB:DD.F`.
    pub(super) fn link_peer_bus_id(&self, link: u32) -> Result<String, Error> {
        let mut pci = nvmlPciInfo_t {
            busIdLegacy: [0; 16],
            domain: 0,
            bus: 0,
            device: 0,
            pciDeviceId: 0,
            pciSubSystemId: 0,
            busId: [0; 32],
        };
        call!(self, nvmlDeviceGetNvLinkRemotePciInfo_v2(link, &raw mut pci))?;
        self.text("nvmlDeviceGetNvLinkRemotePciInfo_v2", &pci.busId)
    }

    /// An answer of `call` that cannot be used.
    pub(super) fn nonsense(&self, call: &'static str, answer: &dyn Display, expected: &'static str) -> Error {
        Error::Answer { call, gpu: Some(self.label.clone()), answer: answer.to_string(), expected }
    }

    /// A text that `call` answered and that is not what it should be.
    pub(super) fn unparsable(&self, call: &'static str, error: &ParseError) -> Error {
        self.nonsense(call, &format_args!("{:?}", error.text), error.expected)
    }

    fn error(&self, call: &'static str, error: NvmlError) -> Error {
        Error::from_wrapper(call, Some(&self.label), error)
    }

    /// The text up to the terminator, or the whole buffer where the library wrote none.
    fn text(&self, call: &'static str, buffer: &[c_char]) -> Result<String, Error> {
        let bytes: Vec<u8> = buffer.iter().map(|c| c.to_ne_bytes()[0]).take_while(|byte| *byte != 0).collect();
        String::from_utf8(bytes).map_err(|error| {
            self.nonsense(call, &format_args!("\"{}\"", error.as_bytes().escape_ascii()), "UTF-8 text")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_words_are_those_of_the_header() {
        assert_eq!(version_of::<nvmlMemory_v2_t>(2), 0x0200_0028);
        assert_eq!(version_of::<nvmlDeviceAddressingMode_t>(1), 0x0100_0008);
        assert_eq!(version_of::<nvmlGpuFabricInfo_v2_t>(2), 0x0200_0024);
        assert_eq!(version_of::<nvmlGpuFabricInfo_v3_t>(3), 0x0300_0028);
    }
}
