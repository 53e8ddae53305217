//! Registration with the NVLink fabric: cluster, clique and its health.

use std::ffi::c_uchar;

use nvml_wrapper_sys::bindings::{
    nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t, nvmlGpuFabricInfoV_t,
};
use topology::Fabric;

use crate::call::{Device, nvml};
use crate::code::{Answer, Code};
use crate::device::BLACKWELL;
use crate::out::{blank, version_word, word};

/// `NVML_GPU_FABRIC_STATE_COMPLETED`.
const COMPLETED: u8 = 3;

/// `NVML_GPU_FABRIC_HEALTH_SUMMARY_*`. Boards before Blackwell do not report health.
const HEALTH_NOT_SUPPORTED: c_uchar = 0;
const HEALTHY: c_uchar = 1;
const UNHEALTHY: c_uchar = 2;

/// A health mask that says no to degraded bandwidth, route recovery, unhealthy routes and access time-outs, and that the
/// configuration is correct.
const MASK_HEALTHY: u32 = 2 | 2 << 2 | 2 << 4 | 2 << 6 | 1 << 8;

nvml! {
    fn nvmlDeviceGetGpuFabricInfo(gpu: Device, info: *mut nvmlGpuFabricInfo_t) {
        let fabric = gpu.fabric()?;
        let info = blank(info)?;
        info.clusterUuid = bytes(&fabric.cluster_uuid)?;
        info.status = fabric.status;
        info.cliqueId = fabric.clique_id;
        info.state = fabric.state;
        Ok(())
    }

    // The second version is the third one without its last field.
    fn nvmlDeviceGetGpuFabricInfoV(gpu: Device, info: *mut nvmlGpuFabricInfoV_t) {
        let version = word(info.cast())?;
        if version == version_word::<nvmlGpuFabricInfo_v2_t>(2) {
            let fabric = gpu.fabric()?;
            let info = blank(info.cast::<nvmlGpuFabricInfo_v2_t>())?;
            info.version = version;
            info.clusterUuid = bytes(&fabric.cluster_uuid)?;
            info.status = fabric.status;
            info.cliqueId = fabric.clique_id;
            info.state = fabric.state;
            info.healthMask = health(gpu, fabric).0;
        } else if version == version_word::<nvmlGpuFabricInfo_v3_t>(3) {
            let fabric = gpu.fabric()?;
            let info = blank(info)?;
            info.version = version;
            info.clusterUuid = bytes(&fabric.cluster_uuid)?;
            info.status = fabric.status;
            info.cliqueId = fabric.clique_id;
            info.state = fabric.state;
            (info.healthMask, info.healthSummary) = health(gpu, fabric);
        } else {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        Ok(())
    }
}

impl Device<'_> {
    /// The registration as it is now; NOT_SUPPORTED where there is none.
    pub(crate) fn fabric(&self) -> Answer<&Fabric> {
        self.state.fabric.as_ref().or(self.facts.fabric.as_ref()).ok_or(Code::NOT_SUPPORTED)
    }
}

/// Whether registration is complete.
pub(crate) fn is_registered(fabric: &Fabric) -> bool {
    fabric.state == COMPLETED && fabric.status == 0
}

/// Health mask and summary; a registration that is not complete is unhealthy.
fn health(gpu: &Device<'_>, fabric: &Fabric) -> (u32, c_uchar) {
    if gpu.board.architecture < BLACKWELL {
        (0, HEALTH_NOT_SUPPORTED)
    } else if is_registered(fabric) {
        (MASK_HEALTHY, HEALTHY)
    } else {
        (0, UNHEALTHY)
    }
}

/// The bytes of a UUID in canonical form.
fn bytes(uuid: &str) -> Answer<[u8; 16]> {
    let digits = uuid.replace('-', "");
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32);
    number.map(u128::to_be_bytes).ok_or(Code::UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_read_in_network_order() {
        assert_eq!(
            bytes("00000001-0000-0000-0000-0000000000ff"),
            Ok([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255])
        );
        assert_eq!(bytes("1"), Err(Code::UNKNOWN));
    }
}
