//! Compute instances: what a GPU instance can be divided into, and its divisions.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t, nvmlComputeInstanceProfileInfo_t,
    nvmlComputeInstanceProfileInfo_v2_t, nvmlComputeInstanceProfileInfo_v3_t,
};
use topology::mig::{ComputeProfile, Placement, Refusal};
use topology::mig_uuid;

use crate::call::nvml;
use crate::code::{Answer, Code};
use crate::gpu_instance::is_for_graphics;
use crate::handle;
use crate::out::{all, blank, chars, put, version_word, word};
use crate::part::GpuPart;

/// `NVML_COMPUTE_INSTANCE_PROFILE_COUNT` of NVML 13.5, and `NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT`.
const PROFILES: c_uint = 9;
const ENGINE_PROFILES: c_uint = 1;

/// `NVML_COMPUTE_INSTANCE_PROFILE_CAPS_GFX`.
const CAPABLE_OF_GRAPHICS: c_uint = 1;

nvml! {
    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
        part: GpuInstance, profile: c_uint, engines: c_uint, info: *mut nvmlComputeInstanceProfileInfo_t
    ) {
        let (profile, around) = (by_index(part, profile, engines)?, part.profile()?);
        put(info, nvmlComputeInstanceProfileInfo_t {
            id: profile.id,
            sliceCount: profile.slices,
            instanceCount: profile.instances,
            multiprocessorCount: profile.multiprocessors,
            sharedCopyEngineCount: around.copy_engines,
            sharedDecoderCount: around.decoders,
            sharedEncoderCount: around.encoders,
            sharedJpegCount: around.jpeg_engines,
            sharedOfaCount: around.ofa_engines,
        })
    }

    fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        part: GpuInstance, profile: c_uint, engines: c_uint, info: *mut nvmlComputeInstanceProfileInfo_v2_t
    ) {
        describe(part, &by_index(part, profile, engines)?, info)
    }

    fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(part: GpuInstance, profile_id: c_uint, count: *mut c_uint) {
        let live = part.gpu.instances()?;
        put(count, live.compute_room(part.gpu.table()?, part.instance.id, profile_id)?)
    }

    fn nvmlGpuInstanceGetComputeInstancePossiblePlacements(
        part: GpuInstance, profile_id: c_uint, placements: *mut nvmlComputeInstancePlacement_t, count: *mut c_uint
    ) {
        let possible: Vec<_> = by_id(part, profile_id)?.placements().map(to_c).collect();
        if placements.is_null() {
            return put(count, c_uint::try_from(possible.len()).map_err(|_| Code::UNKNOWN)?);
        }
        all(count, placements, &possible)
    }

    fn nvmlGpuInstanceCreateComputeInstance(
        part: GpuInstance, profile_id: c_uint, instance: *mut nvmlComputeInstance_t
    ) {
        create(part, profile_id, None, instance)
    }

    fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(
        part: GpuInstance,
        profile_id: c_uint,
        placement: *const nvmlComputeInstancePlacement_t,
        instance: *mut nvmlComputeInstance_t,
    ) {
        let at = placement.as_ref().ok_or(Code::INVALID_ARGUMENT)?;
        create(part, profile_id, Some(Placement { start: at.start, size: at.size }), instance)
    }

    fn nvmlGpuInstanceGetComputeInstances(
        part: GpuInstance, profile_id: c_uint, instances: *mut nvmlComputeInstance_t, count: *mut c_uint
    ) {
        by_id(part, profile_id)?;
        let alike = part.instance.compute_instances.iter().filter(|instance| instance.profile == profile_id);
        let handles: Vec<_> = alike.map(|instance| part.gpu.instance(instance.birth).compute_instance()).collect();
        all(count, instances, &handles)
    }

    fn nvmlGpuInstanceGetComputeInstanceById(part: GpuInstance, id: c_uint, instance: *mut nvmlComputeInstance_t) {
        let found = part.instance.compute_instance(id).ok_or(Code::NOT_FOUND)?;
        put(instance, part.gpu.instance(found.birth).compute_instance())
    }

    fn nvmlComputeInstanceGetInfo_v2(part: ComputeInstance, info: *mut nvmlComputeInstanceInfo_t) {
        put(info, nvmlComputeInstanceInfo_t {
            device: handle::of_gpu(part.gpu.index),
            gpuInstance: part.gpu.instance(part.parent.birth).gpu_instance(),
            id: part.instance.id,
            profileId: part.instance.profile,
            placement: to_c(part.instance.placement),
        })
    }

    fn nvmlComputeInstanceDestroy(part: ComputeInstance) {
        let (parent, id) = (part.parent.id, part.instance.id);
        part.gpu.alter(|_, instances| {
            let live = instances.devices().any(|(_, instance)| instance.birth == part.instance.birth);
            if live { instances.destroy_compute(parent, id) } else { Err(Refusal::NoInstance) }
        })
    }
}

/// Creates an instance and stores its handle.
///
/// # Safety
/// `out` is null or valid for writing.
unsafe fn create(part: &GpuPart<'_>, profile: u32, at: Option<Placement>, out: *mut nvmlComputeInstance_t) -> Answer {
    by_id(part, profile)?;
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    let uuid = mig_uuid().map_err(|_| Code::UNKNOWN)?;
    let parent = &part.instance;
    let birth = part.gpu.alter(|table, instances| {
        let live = instances.gpu_instance(parent.id).filter(|live| live.birth == parent.birth);
        live.ok_or(Refusal::NoInstance)?;
        let id = instances.create_compute(table, parent.id, profile, at, uuid)?;
        let created = instances.gpu_instance(parent.id).and_then(|parent| parent.compute_instance(id));
        created.map(|instance| instance.birth).ok_or(Refusal::NoInstance)
    })?;
    // SAFETY: the caller keeps the contract.
    unsafe { put(out, part.gpu.instance(birth).compute_instance()) }
}

/// Fills in the struct whose version its caller set.
///
/// # Safety
/// `info` is null or points to a versioned struct of profile information.
unsafe fn describe(
    part: &GpuPart<'_>,
    profile: &ComputeProfile,
    info: *mut nvmlComputeInstanceProfileInfo_v2_t,
) -> Answer {
    let around = part.profile()?;
    // SAFETY: the caller keeps the contract, and the version word says which struct it is; the third version is the
    // second with one more member at its end.
    unsafe {
        let version = word(info.cast())?;
        let info = if version == version_word::<nvmlComputeInstanceProfileInfo_v2_t>(2) {
            blank(info)?
        } else if version == version_word::<nvmlComputeInstanceProfileInfo_v3_t>(3) {
            let third = blank(info.cast::<nvmlComputeInstanceProfileInfo_v3_t>())?;
            third.capabilities = if is_for_graphics(around) { CAPABLE_OF_GRAPHICS } else { 0 };
            &mut *info
        } else {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        };
        info.version = version;
        info.id = profile.id;
        info.sliceCount = profile.slices;
        info.instanceCount = profile.instances;
        info.multiprocessorCount = profile.multiprocessors;
        info.sharedCopyEngineCount = around.copy_engines;
        info.sharedDecoderCount = around.decoders;
        info.sharedEncoderCount = around.encoders;
        info.sharedJpegCount = around.jpeg_engines;
        info.sharedOfaCount = around.ofa_engines;
        info.name = chars(&format!("MIG {}", profile.name));
    }
    Ok(())
}

/// Indices of compute instance profiles are their ids.
fn by_index(part: &GpuPart<'_>, index: c_uint, engines: c_uint) -> Answer<ComputeProfile> {
    if index >= PROFILES || engines >= ENGINE_PROFILES {
        return Err(Code::INVALID_ARGUMENT);
    }
    by_id(part, index)
}

fn by_id(part: &GpuPart<'_>, id: c_uint) -> Answer<ComputeProfile> {
    Ok(part.instance.compute_profile(part.gpu.table()?, id)?)
}

fn to_c(placement: Placement) -> nvmlComputeInstancePlacement_t {
    nvmlComputeInstancePlacement_t { start: placement.start, size: placement.size }
}
