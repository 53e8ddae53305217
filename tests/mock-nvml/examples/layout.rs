//! Prints how the structs that the mock fills in lie in memory: `struct size` for the whole, `struct field offset size`
//! for each field. `hack/checks/nvml_abi.py` compares it with a C compiler's view of nvml.h.

#![allow(clippy::wildcard_imports, reason = "one line instead of every name twice")]

use std::mem::offset_of;

use nvml_wrapper_sys::bindings::*;

/// Prints structs. All fields must be named: the pattern does not compile otherwise.
macro_rules! layout {
    ($( $name:ident { $($field:ident),+ } )*) => { $({
        let _ = |$name { $($field: _),+ }: $name| ();
        println!("{} {}", stringify!($name), size_of::<$name>());
        $(
            let size = size_of_result(|value: &$name| value.$field);
            println!("{} {} {} {size}", stringify!($name), stringify!($field), offset_of!($name, $field));
        )+
    })* };
}

fn main() {
    layout! {
        nvmlBAR1Memory_t { bar1Total, bar1Free, bar1Used }
        nvmlC2cModeInfo_v1_t { isC2cEnabled }
        nvmlComputeInstanceInfo_t { device, gpuInstance, id, profileId, placement }
        nvmlComputeInstancePlacement_t { start, size }
        nvmlComputeInstanceProfileInfo_t {
            id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount,
            sharedEncoderCount, sharedJpegCount, sharedOfaCount
        }
        nvmlComputeInstanceProfileInfo_v2_t {
            version, id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount,
            sharedEncoderCount, sharedJpegCount, sharedOfaCount, name
        }
        nvmlComputeInstanceProfileInfo_v3_t {
            version, id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount,
            sharedEncoderCount, sharedJpegCount, sharedOfaCount, name, capabilities
        }
        nvmlConfComputeSystemCaps_t { cpuCaps, gpusCaps }
        nvmlConfComputeSystemState_t { environment, ccFeature, devToolsMode }
        nvmlDeviceAddressingMode_v1_t { version, value }
        nvmlDeviceAttributes_t {
            multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount,
            sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount, memorySizeMB
        }
        nvmlEccErrorCounts_t { l1Cache, l2Cache, deviceMemory, registerFile }
        nvmlEccSramErrorStatus_v1_t {
            version, aggregateUncParity, aggregateUncSecDed, aggregateCor, volatileUncParity, volatileUncSecDed,
            volatileCor, aggregateUncBucketL2, aggregateUncBucketSm, aggregateUncBucketPcie, aggregateUncBucketMcu,
            aggregateUncBucketOther, bThresholdExceeded
        }
        nvmlEventData_t { device, eventType, eventData, gpuInstanceId, computeInstanceId }
        nvmlFieldValue_t { fieldId, scopeId, timestamp, latencyUsec, valueType, nvmlReturn, value }
        nvmlGpuFabricInfo_t { clusterUuid, status, cliqueId, state }
        nvmlGpuFabricInfo_v2_t { version, clusterUuid, status, cliqueId, state, healthMask }
        nvmlGpuFabricInfo_v3_t { version, clusterUuid, status, cliqueId, state, healthMask, healthSummary }
        nvmlGpuInstanceInfo_t { device, id, profileId, placement }
        nvmlGpuInstancePlacement_t { start, size }
        nvmlGpuInstanceProfileInfo_t {
            id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount,
            encoderCount, jpegCount, ofaCount, memorySizeMB
        }
        nvmlGpuInstanceProfileInfo_v2_t {
            version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount,
            encoderCount, jpegCount, ofaCount, memorySizeMB, name
        }
        nvmlGpuInstanceProfileInfo_v3_t {
            version, id, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount, encoderCount,
            jpegCount, ofaCount, memorySizeMB, name, capabilities
        }
        nvmlMemory_t { total, free, used }
        nvmlMemory_v2_t { version, total, reserved, free, used }
        nvmlNvLinkInfo_v1_t { version, isNvleEnabled }
        nvmlNvLinkInfo_v2_t { version, isNvleEnabled, firmwareInfo }
        nvmlPciInfoExt_v1_t { version, domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass, busId }
        nvmlPciInfo_t { busIdLegacy, domain, bus, device, pciDeviceId, pciSubSystemId, busId }
        nvmlPlatformInfo_v1_t {
            version, ibGuid, rackGuid, chassisPhysicalSlotNumber, computeSlotIndex, nodeIndex, peerType, moduleId
        }
        nvmlPlatformInfo_v2_t {
            version, ibGuid, chassisSerialNumber, slotNumber, trayIndex, hostId, peerType, moduleId
        }
        nvmlProcessInfo_t { pid, usedGpuMemory, gpuInstanceId, computeInstanceId }
        nvmlProcessInfo_v1_t { pid, usedGpuMemory }
        nvmlProcessInfo_v2_t { pid, usedGpuMemory, gpuInstanceId, computeInstanceId }
        nvmlRepairStatus_v1_t { version, bChannelRepairPending, bTpcRepairPending }
        nvmlRowRemapperHistogramValues_t { max, high, partial, low, none }
        nvmlSystemConfComputeSettings_v1_t { version, environment, ccFeature, devToolsMode, multiGpuMode }
        nvmlSystemDriverBranchInfo_v1_t { version, branch }
        nvmlTemperature_v1_t { version, sensorType, temperature }
        nvmlUUID_v1_t { version, type_, value }
        nvmlUtilization_t { gpu, memory }
    }
}

/// The size of what a function returns, without calling it.
fn size_of_result<T, F>(_: fn(&T) -> F) -> usize {
    size_of::<F>()
}
