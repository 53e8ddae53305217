//! Versions, processes and confidential computing: what is not about one GPU.

use std::ffi::{c_char, c_int, c_uint};
use std::fs;

use nvml_wrapper_sys::bindings::{
    nvmlConfComputeSystemCaps_t, nvmlConfComputeSystemState_t, nvmlPciInfo_t, nvmlSystemConfComputeSettings_t,
    nvmlSystemDriverBranchInfo_t,
};

use crate::call::{Call, nvml};
use crate::code::Code;
use crate::out::{chars, put, text, versioned};

nvml! {
    fn nvmlSystemGetDriverVersion(call: Call, version: *mut c_char, length: c_uint) {
        text(version, length, call.node.driver_version(&call.state))
    }

    fn nvmlSystemGetNVMLVersion(call: Call, version: *mut c_char, length: c_uint) {
        text(version, length, &nvml_version(call))
    }

    fn nvmlSystemGetCudaDriverVersion, nvmlSystemGetCudaDriverVersion_v2(call: Call, version: *mut c_int) {
        put(version, call.node.topology.system.cuda_version)
    }

    fn nvmlSystemGetDriverBranch(call: Call, info: *mut nvmlSystemDriverBranchInfo_t, length: c_uint) {
        let info = versioned(info, 1)?;
        let branch = format!("r{}_00", major(call.node.driver_version(&call.state)));
        if branch.len() >= length as usize {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        (*info).branch = chars(&branch);
        Ok(())
    }

    fn nvmlSystemGetProcessName(call: Call, pid: c_uint, name: *mut c_char, length: c_uint) {
        let _ = call;
        if length == 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        let command = fs::read_to_string(format!("/proc/{pid}/comm")).map_err(|_| Code::NOT_FOUND)?;
        // The name is cropped, never refused; it is ASCII by contract.
        let cropped: String = command.trim_end().chars().filter(char::is_ascii).take(length as usize - 1).collect();
        text(name, length, &cropped)
    }

    // Confidential computing is off on every machine so far.
    fn nvmlSystemGetConfComputeCapabilities(call: Call, capabilities: *mut nvmlConfComputeSystemCaps_t) {
        let _ = call;
        put(capabilities, nvmlConfComputeSystemCaps_t { cpuCaps: 0, gpusCaps: 0 })
    }

    fn nvmlSystemGetConfComputeState(call: Call, state: *mut nvmlConfComputeSystemState_t) {
        let _ = call;
        put(state, nvmlConfComputeSystemState_t { environment: 0, ccFeature: 0, devToolsMode: 0 })
    }

    fn nvmlSystemGetConfComputeGpusReadyState(call: Call, accepting: *mut c_uint) {
        let _ = call;
        put(accepting, 1)
    }

    fn nvmlSystemGetConfComputeSettings(call: Call, settings: *mut nvmlSystemConfComputeSettings_t) {
        let _ = call;
        let settings = versioned(settings, 1)?;
        (*settings).environment = 0;
        (*settings).ccFeature = 0;
        (*settings).devToolsMode = 0;
        (*settings).multiGpuMode = 0;
        Ok(())
    }

    // Removed GPUs come back by themselves, so there is never one to discover.
    fn nvmlDeviceDiscoverGpus(call: Call, pci: *mut nvmlPciInfo_t) {
        let _ = call;
        if pci.is_null() { Err(Code::INVALID_ARGUMENT) } else { Ok(()) }
    }
}

/// The first number of a driver version, `580` of `580.105.08`.
pub(crate) fn major(version: &str) -> &str {
    version.split('.').next().unwrap_or_default()
}

/// The library version, which ends with the driver version: `13.580.105.08`.
fn nvml_version(call: &Call) -> String {
    let system = &call.node.topology.system;
    match (system.nvml_version.strip_suffix(&system.driver_version), &call.state.driver_version) {
        (Some(prefix), Some(changed)) => format!("{prefix}{changed}"),
        _ => system.nvml_version.clone(),
    }
}
