//! GPU instances: what a GPU can be partitioned into, and its partitions.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t,
    nvmlGpuInstanceProfileInfo_v2_t, nvmlGpuInstanceProfileInfo_v3_t,
};
use topology::mig::{Placement, Profile, Refusal};

use crate::call::{Device, nvml};
use crate::code::{Answer, Code};
use crate::handle;
use crate::out::{all, blank, chars, put, version_word, word};

/// `NVML_GPU_INSTANCE_PROFILE_COUNT` of NVML 13.5.
const PROFILES: c_uint = 18;

/// Profiles that can be used for graphics, by NVML index: 1, 2 and 4 slices.
const GRAPHICS: std::ops::RangeInclusive<u32> = 10..=12;

/// `NVML_GPU_INSTANCE_PROFILE_CAPS_GFX`.
const CAPABLE_OF_GRAPHICS: c_uint = 2;

nvml! {
    // The first version answers with MIG mode off, too; the versioned ones do not.
    fn nvmlDeviceGetGpuInstanceProfileInfo(gpu: Device, profile: c_uint, info: *mut nvmlGpuInstanceProfileInfo_t) {
        let profile = by_index(gpu, profile)?;
        put(info, nvmlGpuInstanceProfileInfo_t {
            id: profile.id,
            isP2pSupported: 0,
            sliceCount: profile.slices,
            instanceCount: profile.instances,
            multiprocessorCount: profile.multiprocessors,
            copyEngineCount: profile.copy_engines,
            decoderCount: profile.decoders,
            encoderCount: profile.encoders,
            jpegCount: profile.jpeg_engines,
            ofaCount: profile.ofa_engines,
            memorySizeMB: profile.memory_mib,
        })
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoV(gpu: Device, profile: c_uint, info: *mut nvmlGpuInstanceProfileInfo_v2_t) {
        gpu.instances()?;
        describe(by_index(gpu, profile)?, info)
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(
        gpu: Device, profile_id: c_uint, info: *mut nvmlGpuInstanceProfileInfo_v2_t
    ) {
        gpu.instances()?;
        describe(by_id(gpu, profile_id)?, info)
    }

    fn nvmlDeviceGetGpuInstancePossiblePlacements, nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        gpu: Device, profile_id: c_uint, placements: *mut nvmlGpuInstancePlacement_t, count: *mut c_uint
    ) {
        let possible: Vec<_> = by_id(gpu, profile_id)?.placements().map(to_c).collect();
        if placements.is_null() {
            return put(count, c_uint::try_from(possible.len()).map_err(|_| Code::UNKNOWN)?);
        }
        all(count, placements, &possible)
    }

    fn nvmlDeviceGetGpuInstanceRemainingCapacity(gpu: Device, profile_id: c_uint, count: *mut c_uint) {
        put(count, gpu.instances()?.room(gpu.table()?, profile_id)?)
    }

    fn nvmlDeviceCreateGpuInstance(gpu: Device, profile_id: c_uint, instance: *mut nvmlGpuInstance_t) {
        create(gpu, profile_id, None, instance)
    }

    fn nvmlDeviceCreateGpuInstanceWithPlacement(
        gpu: Device,
        profile_id: c_uint,
        placement: *const nvmlGpuInstancePlacement_t,
        instance: *mut nvmlGpuInstance_t,
    ) {
        let at = placement.as_ref().ok_or(Code::INVALID_ARGUMENT)?;
        create(gpu, profile_id, Some(Placement { start: at.start, size: at.size }), instance)
    }

    fn nvmlDeviceGetGpuInstances(
        gpu: Device, profile_id: c_uint, instances: *mut nvmlGpuInstance_t, count: *mut c_uint
    ) {
        let live = gpu.instances()?;
        gpu.table()?.profile(profile_id).ok_or(Code::INVALID_ARGUMENT)?;
        let alike = live.gpu_instances.iter().filter(|instance| instance.profile == profile_id);
        let handles: Vec<_> = alike.map(|instance| gpu.instance(instance.birth).gpu_instance()).collect();
        all(count, instances, &handles)
    }

    fn nvmlDeviceGetGpuInstanceById(gpu: Device, id: c_uint, instance: *mut nvmlGpuInstance_t) {
        let found = gpu.instances()?.gpu_instance(id).ok_or(Code::NOT_FOUND)?;
        put(instance, gpu.instance(found.birth).gpu_instance())
    }

    fn nvmlGpuInstanceGetInfo(part: GpuInstance, info: *mut nvmlGpuInstanceInfo_t) {
        put(info, nvmlGpuInstanceInfo_t {
            device: handle::of_gpu(part.gpu.index),
            id: part.instance.id,
            profileId: part.instance.profile,
            placement: to_c(part.instance.placement),
        })
    }

    fn nvmlGpuInstanceDestroy(part: GpuInstance) {
        part.gpu.alter(|_, instances| {
            let live = instances.gpu_instance(part.instance.id).filter(|live| live.birth == part.instance.birth);
            live.ok_or(Refusal::NoInstance)?;
            instances.destroy(part.instance.id)
        })
    }
}

/// Creates an instance and stores its handle.
///
/// # Safety
/// `out` is null or valid for writing.
unsafe fn create(gpu: &Device<'_>, profile: u32, at: Option<Placement>, out: *mut nvmlGpuInstance_t) -> Answer {
    gpu.instances()?;
    if out.is_null() || gpu.table()?.profile(profile).is_none() {
        return Err(Code::INVALID_ARGUMENT);
    }
    let birth = gpu.alter(|table, instances| {
        let id = instances.create(table, profile, at)?;
        instances.gpu_instance(id).map(|instance| instance.birth).ok_or(Refusal::NoInstance)
    })?;
    // SAFETY: the caller keeps the contract.
    unsafe { put(out, gpu.instance(birth).gpu_instance()) }
}

/// Fills in the struct whose version its caller set.
///
/// # Safety
/// `info` is null or points to a versioned struct of profile information.
unsafe fn describe(profile: &Profile, info: *mut nvmlGpuInstanceProfileInfo_v2_t) -> Answer {
    /// The versions differ in two members.
    macro_rules! fill {
        ($info:expr, $version:expr) => {{
            let info = $info;
            info.version = $version;
            info.id = profile.id;
            info.sliceCount = profile.slices;
            info.instanceCount = profile.instances;
            info.multiprocessorCount = profile.multiprocessors;
            info.copyEngineCount = profile.copy_engines;
            info.decoderCount = profile.decoders;
            info.encoderCount = profile.encoders;
            info.jpegCount = profile.jpeg_engines;
            info.ofaCount = profile.ofa_engines;
            info.memorySizeMB = profile.memory_mib;
            info.name = chars(&format!("MIG {}", profile.name));
            info
        }};
    }
    // SAFETY: the caller keeps the contract, and the version word says which struct it is.
    unsafe {
        let version = word(info.cast())?;
        if version == version_word::<nvmlGpuInstanceProfileInfo_v2_t>(2) {
            fill!(blank(info)?, version);
        } else if version == version_word::<nvmlGpuInstanceProfileInfo_v3_t>(3) {
            let info = fill!(blank(info.cast::<nvmlGpuInstanceProfileInfo_v3_t>())?, version);
            info.capabilities = if is_for_graphics(profile) { CAPABLE_OF_GRAPHICS } else { 0 };
        } else {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
    }
    Ok(())
}

/// Whether instances of a profile can be used for graphics.
pub(crate) fn is_for_graphics(profile: &Profile) -> bool {
    GRAPHICS.contains(&profile.index)
}

fn by_index<'a>(gpu: &'a Device<'_>, index: c_uint) -> Answer<&'a Profile> {
    let table = gpu.table()?;
    if index >= PROFILES {
        return Err(Code::INVALID_ARGUMENT);
    }
    table.profile_at(index).ok_or(Code::NOT_SUPPORTED)
}

fn by_id<'a>(gpu: &'a Device<'_>, id: c_uint) -> Answer<&'a Profile> {
    gpu.table()?.profile(id).ok_or(Code::NOT_SUPPORTED)
}

fn to_c(placement: Placement) -> nvmlGpuInstancePlacement_t {
    nvmlGpuInstancePlacement_t { start: placement.start, size: placement.size }
}
