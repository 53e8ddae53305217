//! The prototypes of nvml.h, against which the compiler holds the modelled functions. Written by
//! `hack/generate-nvml-stubs`.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlAffinityScope_t, nvmlBAR1Memory_t, nvmlBrandType_t, nvmlC2cModeInfo_v1_t, nvmlComputeInstance_t,
    nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t, nvmlComputeInstanceProfileInfo_t,
    nvmlComputeInstanceProfileInfo_v2_t, nvmlComputeMode_t, nvmlConfComputeSystemCaps_t, nvmlConfComputeSystemState_t,
    nvmlDevice_t, nvmlDeviceAddressingMode_t, nvmlDeviceArchitecture_t, nvmlDeviceAttributes_t, nvmlEccCounterType_t,
    nvmlEccErrorCounts_t, nvmlEccSramErrorStatus_t, nvmlEnableState_t, nvmlEventData_t, nvmlEventSet_t,
    nvmlFieldValue_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfoV_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t,
    nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceProfileInfo_v2_t, nvmlGpuP2PCapsIndex_t,
    nvmlGpuP2PStatus_t, nvmlGpuTopologyLevel_t, nvmlGpuVirtualizationMode_t, nvmlIntNvLinkDeviceType_t, nvmlMemory_t,
    nvmlMemory_v2_t, nvmlMemoryErrorType_t, nvmlMemoryLocation_t, nvmlNvLinkCapability_t, nvmlNvLinkErrorCounter_t,
    nvmlNvLinkInfo_t, nvmlPageRetirementCause_t, nvmlPciInfo_t, nvmlPciInfoExt_t, nvmlPlatformInfo_t,
    nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t, nvmlPstates_t, nvmlRepairStatus_t, nvmlReturn_t,
    nvmlRowRemapperHistogramValues_t, nvmlSystemConfComputeSettings_t, nvmlSystemDriverBranchInfo_t, nvmlTemperature_t,
    nvmlTemperatureSensors_t, nvmlTemperatureThresholds_t, nvmlUUID_t, nvmlUtilization_t,
};

use crate::{
    affinity, compute_instance, device, events, fabric, fields, gpu_instance, health, memory, mig, nvlink, pci,
    processes, sensors, session, system,
};

const _: unsafe extern "C" fn(nvmlComputeInstance_t) -> nvmlReturn_t = compute_instance::nvmlComputeInstanceDestroy;
const _: unsafe extern "C" fn(nvmlComputeInstance_t, *mut nvmlComputeInstanceInfo_t) -> nvmlReturn_t =
    compute_instance::nvmlComputeInstanceGetInfo_v2;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut nvmlGpuInstance_t) -> nvmlReturn_t =
    gpu_instance::nvmlDeviceCreateGpuInstance;
const _: unsafe extern "C" fn(
    nvmlDevice_t,
    c_uint,
    *const nvmlGpuInstancePlacement_t,
    *mut nvmlGpuInstance_t,
) -> nvmlReturn_t = gpu_instance::nvmlDeviceCreateGpuInstanceWithPlacement;
const _: unsafe extern "C" fn(*mut nvmlPciInfo_t) -> nvmlReturn_t = system::nvmlDeviceDiscoverGpus;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlDeviceAddressingMode_t) -> nvmlReturn_t =
    device::nvmlDeviceGetAddressingMode;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlDeviceArchitecture_t) -> nvmlReturn_t =
    device::nvmlDeviceGetArchitecture;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlDeviceAttributes_t) -> nvmlReturn_t =
    mig::nvmlDeviceGetAttributes_v2;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlBAR1Memory_t) -> nvmlReturn_t =
    memory::nvmlDeviceGetBAR1MemoryInfo;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t = pci::nvmlDeviceGetBoardId;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlBrandType_t) -> nvmlReturn_t = device::nvmlDeviceGetBrand;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlC2cModeInfo_v1_t) -> nvmlReturn_t =
    device::nvmlDeviceGetC2cModeInfoV;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t = mig::nvmlDeviceGetComputeInstanceId;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlComputeMode_t) -> nvmlReturn_t = device::nvmlDeviceGetComputeMode;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_v1_t) -> nvmlReturn_t =
    processes::nvmlDeviceGetComputeRunningProcesses;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_v2_t) -> nvmlReturn_t =
    processes::nvmlDeviceGetComputeRunningProcesses_v2;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_t) -> nvmlReturn_t =
    processes::nvmlDeviceGetComputeRunningProcesses_v3;
const _: unsafe extern "C" fn(*mut c_uint) -> nvmlReturn_t = device::nvmlDeviceGetCount;
const _: unsafe extern "C" fn(*mut c_uint) -> nvmlReturn_t = device::nvmlDeviceGetCount_v2;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut c_ulong) -> nvmlReturn_t = affinity::nvmlDeviceGetCpuAffinity;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut c_ulong, nvmlAffinityScope_t) -> nvmlReturn_t =
    affinity::nvmlDeviceGetCpuAffinityWithinScope;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_int, *mut c_int) -> nvmlReturn_t =
    device::nvmlDeviceGetCudaComputeCapability;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t = pci::nvmlDeviceGetCurrPcieLinkGeneration;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t = pci::nvmlDeviceGetCurrPcieLinkWidth;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlEnableState_t) -> nvmlReturn_t =
    health::nvmlDeviceGetDefaultEccMode;
const _: unsafe extern "C" fn(
    nvmlDevice_t,
    nvmlMemoryErrorType_t,
    nvmlEccCounterType_t,
    *mut nvmlEccErrorCounts_t,
) -> nvmlReturn_t = health::nvmlDeviceGetDetailedEccErrors;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlDevice_t) -> nvmlReturn_t =
    mig::nvmlDeviceGetDeviceHandleFromMigDeviceHandle;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlEnableState_t, *mut nvmlEnableState_t) -> nvmlReturn_t =
    health::nvmlDeviceGetEccMode;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t = sensors::nvmlDeviceGetEnforcedPowerLimit;
const _: unsafe extern "C" fn(nvmlDevice_t, c_int, *mut nvmlFieldValue_t) -> nvmlReturn_t =
    fields::nvmlDeviceGetFieldValues;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlGpuFabricInfo_t) -> nvmlReturn_t =
    fabric::nvmlDeviceGetGpuFabricInfo;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlGpuFabricInfoV_t) -> nvmlReturn_t =
    fabric::nvmlDeviceGetGpuFabricInfoV;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut nvmlGpuInstance_t) -> nvmlReturn_t =
    gpu_instance::nvmlDeviceGetGpuInstanceById;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t = mig::nvmlDeviceGetGpuInstanceId;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut nvmlGpuInstancePlacement_t, *mut c_uint) -> nvmlReturn_t =
    gpu_instance::nvmlDeviceGetGpuInstancePossiblePlacements;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut nvmlGpuInstancePlacement_t, *mut c_uint) -> nvmlReturn_t =
    gpu_instance::nvmlDeviceGetGpuInstancePossiblePlacements_v2;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut nvmlGpuInstanceProfileInfo_t) -> nvmlReturn_t =
    gpu_instance::nvmlDeviceGetGpuInstanceProfileInfo;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut nvmlGpuInstanceProfileInfo_v2_t) -> nvmlReturn_t =
    gpu_instance::nvmlDeviceGetGpuInstanceProfileInfoByIdV;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut nvmlGpuInstanceProfileInfo_v2_t) -> nvmlReturn_t =
    gpu_instance::nvmlDeviceGetGpuInstanceProfileInfoV;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut c_uint) -> nvmlReturn_t =
    gpu_instance::nvmlDeviceGetGpuInstanceRemainingCapacity;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut nvmlGpuInstance_t, *mut c_uint) -> nvmlReturn_t =
    gpu_instance::nvmlDeviceGetGpuInstances;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t = pci::nvmlDeviceGetGpuMaxPcieLinkGeneration;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_v1_t) -> nvmlReturn_t =
    processes::nvmlDeviceGetGraphicsRunningProcesses;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_v2_t) -> nvmlReturn_t =
    processes::nvmlDeviceGetGraphicsRunningProcesses_v2;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_t) -> nvmlReturn_t =
    processes::nvmlDeviceGetGraphicsRunningProcesses_v3;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut c_uint) -> nvmlReturn_t =
    device::nvmlDeviceGetGspFirmwareMode;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_char) -> nvmlReturn_t = device::nvmlDeviceGetGspFirmwareVersion;
const _: unsafe extern "C" fn(c_uint, *mut nvmlDevice_t) -> nvmlReturn_t = device::nvmlDeviceGetHandleByIndex;
const _: unsafe extern "C" fn(c_uint, *mut nvmlDevice_t) -> nvmlReturn_t = device::nvmlDeviceGetHandleByIndex_v2;
const _: unsafe extern "C" fn(*const c_char, *mut nvmlDevice_t) -> nvmlReturn_t = device::nvmlDeviceGetHandleByPciBusId;
const _: unsafe extern "C" fn(*const c_char, *mut nvmlDevice_t) -> nvmlReturn_t =
    device::nvmlDeviceGetHandleByPciBusId_v2;
const _: unsafe extern "C" fn(*const c_char, *mut nvmlDevice_t) -> nvmlReturn_t = device::nvmlDeviceGetHandleBySerial;
const _: unsafe extern "C" fn(*const c_char, *mut nvmlDevice_t) -> nvmlReturn_t = device::nvmlDeviceGetHandleByUUID;
const _: unsafe extern "C" fn(*const nvmlUUID_t, *mut nvmlDevice_t) -> nvmlReturn_t =
    device::nvmlDeviceGetHandleByUUIDV;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t = device::nvmlDeviceGetIndex;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_v1_t) -> nvmlReturn_t =
    processes::nvmlDeviceGetMPSComputeRunningProcesses;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_v2_t) -> nvmlReturn_t =
    processes::nvmlDeviceGetMPSComputeRunningProcesses_v2;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_t) -> nvmlReturn_t =
    processes::nvmlDeviceGetMPSComputeRunningProcesses_v3;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t = mig::nvmlDeviceGetMaxMigDeviceCount;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t = pci::nvmlDeviceGetMaxPcieLinkGeneration;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t = pci::nvmlDeviceGetMaxPcieLinkWidth;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut c_ulong, nvmlAffinityScope_t) -> nvmlReturn_t =
    affinity::nvmlDeviceGetMemoryAffinity;
const _: unsafe extern "C" fn(
    nvmlDevice_t,
    nvmlMemoryErrorType_t,
    nvmlEccCounterType_t,
    nvmlMemoryLocation_t,
    *mut c_ulonglong,
) -> nvmlReturn_t = health::nvmlDeviceGetMemoryErrorCounter;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlMemory_t) -> nvmlReturn_t = memory::nvmlDeviceGetMemoryInfo;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlMemory_v2_t) -> nvmlReturn_t = memory::nvmlDeviceGetMemoryInfo_v2;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut nvmlDevice_t) -> nvmlReturn_t =
    mig::nvmlDeviceGetMigDeviceHandleByIndex;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut c_uint) -> nvmlReturn_t = mig::nvmlDeviceGetMigMode;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t = device::nvmlDeviceGetMinorNumber;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t = device::nvmlDeviceGetModuleId;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t = device::nvmlDeviceGetMultiGpuBoard;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_char, c_uint) -> nvmlReturn_t = device::nvmlDeviceGetName;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t = affinity::nvmlDeviceGetNumaNodeId;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint, nvmlNvLinkCapability_t, *mut c_uint) -> nvmlReturn_t =
    nvlink::nvmlDeviceGetNvLinkCapability;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint, nvmlNvLinkErrorCounter_t, *mut c_ulonglong) -> nvmlReturn_t =
    nvlink::nvmlDeviceGetNvLinkErrorCounter;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlNvLinkInfo_t) -> nvmlReturn_t = nvlink::nvmlDeviceGetNvLinkInfo;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut nvmlIntNvLinkDeviceType_t) -> nvmlReturn_t =
    nvlink::nvmlDeviceGetNvLinkRemoteDeviceType;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut nvmlPciInfo_t) -> nvmlReturn_t =
    nvlink::nvmlDeviceGetNvLinkRemotePciInfo;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut nvmlPciInfo_t) -> nvmlReturn_t =
    nvlink::nvmlDeviceGetNvLinkRemotePciInfo_v2;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut nvmlEnableState_t) -> nvmlReturn_t =
    nvlink::nvmlDeviceGetNvLinkState;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut c_uint) -> nvmlReturn_t = nvlink::nvmlDeviceGetNvLinkVersion;
const _: unsafe extern "C" fn(
    nvmlDevice_t,
    nvmlDevice_t,
    nvmlGpuP2PCapsIndex_t,
    *mut nvmlGpuP2PStatus_t,
) -> nvmlReturn_t = affinity::nvmlDeviceGetP2PStatus;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlPciInfo_t) -> nvmlReturn_t = pci::nvmlDeviceGetPciInfo;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlPciInfoExt_t) -> nvmlReturn_t = pci::nvmlDeviceGetPciInfoExt;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlPciInfo_t) -> nvmlReturn_t = pci::nvmlDeviceGetPciInfo_v2;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlPciInfo_t) -> nvmlReturn_t = pci::nvmlDeviceGetPciInfo_v3;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlPstates_t) -> nvmlReturn_t =
    sensors::nvmlDeviceGetPerformanceState;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlEnableState_t) -> nvmlReturn_t =
    device::nvmlDeviceGetPersistenceMode;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlPlatformInfo_t) -> nvmlReturn_t =
    device::nvmlDeviceGetPlatformInfo;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t =
    sensors::nvmlDeviceGetPowerManagementDefaultLimit;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t = sensors::nvmlDeviceGetPowerManagementLimit;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut c_uint) -> nvmlReturn_t =
    sensors::nvmlDeviceGetPowerManagementLimitConstraints;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlEnableState_t) -> nvmlReturn_t =
    sensors::nvmlDeviceGetPowerManagementMode;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlPstates_t) -> nvmlReturn_t = sensors::nvmlDeviceGetPowerState;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t = sensors::nvmlDeviceGetPowerUsage;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut c_uint, *mut c_uint, *mut c_uint) -> nvmlReturn_t =
    health::nvmlDeviceGetRemappedRows;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlRepairStatus_t) -> nvmlReturn_t =
    health::nvmlDeviceGetRepairStatus;
const _: unsafe extern "C" fn(nvmlDevice_t, nvmlPageRetirementCause_t, *mut c_uint, *mut c_ulonglong) -> nvmlReturn_t =
    health::nvmlDeviceGetRetiredPages;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlEnableState_t) -> nvmlReturn_t =
    health::nvmlDeviceGetRetiredPagesPendingStatus;
const _: unsafe extern "C" fn(
    nvmlDevice_t,
    nvmlPageRetirementCause_t,
    *mut c_uint,
    *mut c_ulonglong,
    *mut c_ulonglong,
) -> nvmlReturn_t = health::nvmlDeviceGetRetiredPages_v2;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlRowRemapperHistogramValues_t) -> nvmlReturn_t =
    health::nvmlDeviceGetRowRemapperHistogram;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_char, c_uint) -> nvmlReturn_t = device::nvmlDeviceGetSerial;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlEccSramErrorStatus_t) -> nvmlReturn_t =
    health::nvmlDeviceGetSramEccErrorStatus;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_ulonglong) -> nvmlReturn_t =
    events::nvmlDeviceGetSupportedEventTypes;
const _: unsafe extern "C" fn(nvmlDevice_t, nvmlTemperatureSensors_t, *mut c_uint) -> nvmlReturn_t =
    sensors::nvmlDeviceGetTemperature;
const _: unsafe extern "C" fn(nvmlDevice_t, nvmlTemperatureThresholds_t, *mut c_uint) -> nvmlReturn_t =
    sensors::nvmlDeviceGetTemperatureThreshold;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlTemperature_t) -> nvmlReturn_t =
    sensors::nvmlDeviceGetTemperatureV;
const _: unsafe extern "C" fn(nvmlDevice_t, nvmlDevice_t, *mut nvmlGpuTopologyLevel_t) -> nvmlReturn_t =
    affinity::nvmlDeviceGetTopologyCommonAncestor;
const _: unsafe extern "C" fn(nvmlDevice_t, nvmlGpuTopologyLevel_t, *mut c_uint, *mut nvmlDevice_t) -> nvmlReturn_t =
    affinity::nvmlDeviceGetTopologyNearestGpus;
const _: unsafe extern "C" fn(
    nvmlDevice_t,
    nvmlMemoryErrorType_t,
    nvmlEccCounterType_t,
    *mut c_ulonglong,
) -> nvmlReturn_t = health::nvmlDeviceGetTotalEccErrors;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_ulonglong) -> nvmlReturn_t =
    sensors::nvmlDeviceGetTotalEnergyConsumption;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_char, c_uint) -> nvmlReturn_t = device::nvmlDeviceGetUUID;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlUtilization_t) -> nvmlReturn_t =
    sensors::nvmlDeviceGetUtilizationRates;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_char, c_uint) -> nvmlReturn_t = device::nvmlDeviceGetVbiosVersion;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlGpuVirtualizationMode_t) -> nvmlReturn_t =
    device::nvmlDeviceGetVirtualizationMode;
const _: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t = mig::nvmlDeviceIsMigDeviceHandle;
const _: unsafe extern "C" fn(nvmlDevice_t, nvmlDevice_t, *mut c_int) -> nvmlReturn_t = device::nvmlDeviceOnSameBoard;
const _: unsafe extern "C" fn(nvmlDevice_t, c_ulonglong, nvmlEventSet_t) -> nvmlReturn_t =
    events::nvmlDeviceRegisterEvents;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint) -> nvmlReturn_t = nvlink::nvmlDeviceResetNvLinkErrorCounters;
const _: unsafe extern "C" fn(nvmlDevice_t, nvmlComputeMode_t) -> nvmlReturn_t = device::nvmlDeviceSetComputeMode;
const _: unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut nvmlReturn_t) -> nvmlReturn_t = mig::nvmlDeviceSetMigMode;
const _: unsafe extern "C" fn(nvmlDevice_t, nvmlEnableState_t) -> nvmlReturn_t = device::nvmlDeviceSetPersistenceMode;
const _: unsafe extern "C" fn(nvmlReturn_t) -> *const c_char = session::nvmlErrorString;
const _: unsafe extern "C" fn(*mut nvmlEventSet_t) -> nvmlReturn_t = events::nvmlEventSetCreate;
const _: unsafe extern "C" fn(nvmlEventSet_t) -> nvmlReturn_t = events::nvmlEventSetFree;
const _: unsafe extern "C" fn(nvmlEventSet_t, *mut nvmlEventData_t, c_uint) -> nvmlReturn_t = events::nvmlEventSetWait;
const _: unsafe extern "C" fn(nvmlEventSet_t, *mut nvmlEventData_t, c_uint) -> nvmlReturn_t =
    events::nvmlEventSetWait_v2;
const _: unsafe extern "C" fn(nvmlGpuInstance_t, c_uint, *mut nvmlComputeInstance_t) -> nvmlReturn_t =
    compute_instance::nvmlGpuInstanceCreateComputeInstance;
const _: unsafe extern "C" fn(
    nvmlGpuInstance_t,
    c_uint,
    *const nvmlComputeInstancePlacement_t,
    *mut nvmlComputeInstance_t,
) -> nvmlReturn_t = compute_instance::nvmlGpuInstanceCreateComputeInstanceWithPlacement;
const _: unsafe extern "C" fn(nvmlGpuInstance_t) -> nvmlReturn_t = gpu_instance::nvmlGpuInstanceDestroy;
const _: unsafe extern "C" fn(nvmlGpuInstance_t, c_uint, *mut nvmlComputeInstance_t) -> nvmlReturn_t =
    compute_instance::nvmlGpuInstanceGetComputeInstanceById;
const _: unsafe extern "C" fn(
    nvmlGpuInstance_t,
    c_uint,
    *mut nvmlComputeInstancePlacement_t,
    *mut c_uint,
) -> nvmlReturn_t = compute_instance::nvmlGpuInstanceGetComputeInstancePossiblePlacements;
const _: unsafe extern "C" fn(
    nvmlGpuInstance_t,
    c_uint,
    c_uint,
    *mut nvmlComputeInstanceProfileInfo_t,
) -> nvmlReturn_t = compute_instance::nvmlGpuInstanceGetComputeInstanceProfileInfo;
const _: unsafe extern "C" fn(
    nvmlGpuInstance_t,
    c_uint,
    c_uint,
    *mut nvmlComputeInstanceProfileInfo_v2_t,
) -> nvmlReturn_t = compute_instance::nvmlGpuInstanceGetComputeInstanceProfileInfoV;
const _: unsafe extern "C" fn(nvmlGpuInstance_t, c_uint, *mut c_uint) -> nvmlReturn_t =
    compute_instance::nvmlGpuInstanceGetComputeInstanceRemainingCapacity;
const _: unsafe extern "C" fn(nvmlGpuInstance_t, c_uint, *mut nvmlComputeInstance_t, *mut c_uint) -> nvmlReturn_t =
    compute_instance::nvmlGpuInstanceGetComputeInstances;
const _: unsafe extern "C" fn(nvmlGpuInstance_t, *mut nvmlGpuInstanceInfo_t) -> nvmlReturn_t =
    gpu_instance::nvmlGpuInstanceGetInfo;
const _: unsafe extern "C" fn() -> nvmlReturn_t = session::nvmlInit;
const _: unsafe extern "C" fn(c_uint) -> nvmlReturn_t = session::nvmlInitWithFlags;
const _: unsafe extern "C" fn() -> nvmlReturn_t = session::nvmlInit_v2;
const _: unsafe extern "C" fn() -> nvmlReturn_t = session::nvmlShutdown;
const _: unsafe extern "C" fn(*mut nvmlConfComputeSystemCaps_t) -> nvmlReturn_t =
    system::nvmlSystemGetConfComputeCapabilities;
const _: unsafe extern "C" fn(*mut c_uint) -> nvmlReturn_t = system::nvmlSystemGetConfComputeGpusReadyState;
const _: unsafe extern "C" fn(*mut nvmlSystemConfComputeSettings_t) -> nvmlReturn_t =
    system::nvmlSystemGetConfComputeSettings;
const _: unsafe extern "C" fn(*mut nvmlConfComputeSystemState_t) -> nvmlReturn_t =
    system::nvmlSystemGetConfComputeState;
const _: unsafe extern "C" fn(*mut c_int) -> nvmlReturn_t = system::nvmlSystemGetCudaDriverVersion;
const _: unsafe extern "C" fn(*mut c_int) -> nvmlReturn_t = system::nvmlSystemGetCudaDriverVersion_v2;
const _: unsafe extern "C" fn(*mut nvmlSystemDriverBranchInfo_t, c_uint) -> nvmlReturn_t =
    system::nvmlSystemGetDriverBranch;
const _: unsafe extern "C" fn(*mut c_char, c_uint) -> nvmlReturn_t = system::nvmlSystemGetDriverVersion;
const _: unsafe extern "C" fn(*mut c_char, c_uint) -> nvmlReturn_t = system::nvmlSystemGetNVMLVersion;
const _: unsafe extern "C" fn(c_uint, *mut c_char, c_uint) -> nvmlReturn_t = system::nvmlSystemGetProcessName;
const _: unsafe extern "C" fn(c_uint, *mut c_uint, *mut nvmlDevice_t) -> nvmlReturn_t =
    affinity::nvmlSystemGetTopologyGpuSet;
