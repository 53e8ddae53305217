//! The calls about MIG. nvml-wrapper has few of them: its list of placements is always empty, and its switch of the mode
//! reports failures as success.
//!
//! Instances are known by handles that end with them. One that has ended is answered with an error by the library, never
//! with another instance.

use std::ffi::c_char;
use std::ptr;

use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t, nvmlComputeInstanceProfileInfo_t,
    nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t,
};

use super::{Code, Error, Handle};
use crate::device::mig::Placement;

/// `NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED`
const RESETLESS: u32 = 184;

/// `NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED`: there is no other.
const ENGINES_SHARED: u32 = 0;

/// More placements than a profile has: boards have 8 memory slices.
const MAX_PLACEMENTS: u32 = 64;

/// Bytes for a UUID. nvml.h promises 96.
const UUID_BYTES: u32 = 96;

/// A GPU instance, for as long as it exists.
#[derive(Clone, Copy)]
pub(in crate::nvml) struct GpuInstance(nvmlGpuInstance_t);

/// A compute instance, for as long as it exists.
#[derive(Clone, Copy)]
pub(in crate::nvml) struct ComputeInstance(nvmlComputeInstance_t);

/// `nvmlGpuInstanceProfileInfo_t`
pub(in crate::nvml) type ProfileInfo = nvmlGpuInstanceProfileInfo_t;

/// `nvmlGpuInstanceInfo_t`, as much of it as matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::nvml) struct GpuInstanceInfo {
    pub(in crate::nvml) id: u32,
    pub(in crate::nvml) profile: u32,
    pub(in crate::nvml) placement: Placement,
}

/// `nvmlComputeInstanceProfileInfo_t`, as much of it as matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::nvml) struct ComputeProfile {
    /// What compute instances are made by.
    pub(in crate::nvml) id: u32,
    /// Compute slices.
    pub(in crate::nvml) slices: u32,
    /// How many can exist at once.
    pub(in crate::nvml) instances: u32,
}

/// Calls a function whose first argument is a handle of its own: an instance, or a MIG device.
macro_rules! instance_call {
    ($handle:expr, $function:ident($($argument:expr),*)) => {{
        let call = stringify!($function);
        let function = $handle.device.nvml().lib().$function.as_ref().map_err(|_| Error::Symbol { call })?;
        // SAFETY: the symbol's type is the one nvml.h declares for this name. The instance or MIG device is one that this
        // library gave out; where it has ended meanwhile, the library says so. Every pointer argument is to a local
        // variable that outlives the call, has the type that nvml.h declares, and has room for as much as its count says.
        let code = Code(unsafe { function($($argument),*) });
        if code == Code::SUCCESS { Ok(()) } else { Err(Error::Call { call, gpu: Some($handle.label.clone()), code }) }
    }};
}

// === impl Handle ===

impl Handle<'_> {
    /// Whether MIG mode can be switched without a reset of the GPU.
    pub(in crate::nvml) fn is_mig_resetless(&self) -> Result<bool, Error> {
        let call = "nvmlDeviceGetFieldValues";
        let samples = self.device.field_values_for(&[FieldId(RESETLESS)]).map_err(|error| self.error(call, error))?;
        let sample = samples.into_iter().next().ok_or_else(|| self.nonsense(call, &"nothing", "a value"))?;
        let value = sample.and_then(|sample| sample.value).map_err(|error| self.error(call, error))?;
        match value {
            SampleValue::U32(value) => Ok(value == 1),
            value => Err(self.nonsense(call, &format_args!("{value:?}"), "an unsigned number")),
        }
    }

    /// Asks for another MIG mode; why it is not active, `SUCCESS` where it is.
    pub(in crate::nvml) fn set_mig_mode(&self, on: bool) -> Result<Code, Error> {
        let mut status = 0;
        call!(self, nvmlDeviceSetMigMode(on.into(), &raw mut status))?;
        Ok(Code(status))
    }

    /// The profile of an index. INVALID_ARGUMENT marks the first index that none can have.
    pub(in crate::nvml) fn profile(&self, index: u32) -> Result<ProfileInfo, Error> {
        let mut info = ProfileInfo {
            id: 0,
            isP2pSupported: 0,
            sliceCount: 0,
            instanceCount: 0,
            multiprocessorCount: 0,
            copyEngineCount: 0,
            decoderCount: 0,
            encoderCount: 0,
            jpegCount: 0,
            ofaCount: 0,
            memorySizeMB: 0,
        };
        call!(self, nvmlDeviceGetGpuInstanceProfileInfo(index, &raw mut info))?;
        Ok(info)
    }

    /// Where instances of a profile, by its id, can be. Drivers before 470 have the older function only.
    pub(in crate::nvml) fn placements(&self, profile: u32) -> Result<Vec<Placement>, Error> {
        let call = "nvmlDeviceGetGpuInstancePossiblePlacements_v2";
        let fill = |placements: *mut nvmlGpuInstancePlacement_t, count: &mut u32| match call!(
            self,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2(profile, placements, count)
        ) {
            Err(Error::Symbol { .. }) => {
                call!(self, nvmlDeviceGetGpuInstancePossiblePlacements(profile, placements, count))
            }
            answer => answer,
        };
        let mut count = 0;
        fill(ptr::null_mut(), &mut count)?;
        let mut placements = [nvmlGpuInstancePlacement_t { start: 0, size: 0 }; MAX_PLACEMENTS as usize];
        if count > MAX_PLACEMENTS {
            return Err(self.nonsense(call, &count, "a number of placements"));
        }
        fill(placements.as_mut_ptr(), &mut count)?;
        let filled = placements.iter().take(count as usize);
        Ok(filled.map(|&nvmlGpuInstancePlacement_t { start, size }| Placement { start, size }).collect())
    }

    /// The GPU instances of a profile that exist, of which there can be `most`.
    pub(in crate::nvml) fn gpu_instances(&self, profile: u32, most: u32) -> Result<Vec<GpuInstance>, Error> {
        let mut instances = vec![ptr::null_mut(); most as usize];
        let mut count = most;
        call!(self, nvmlDeviceGetGpuInstances(profile, instances.as_mut_ptr(), &raw mut count))?;
        instances.truncate(count as usize);
        Ok(instances.into_iter().map(GpuInstance).collect())
    }

    /// NOT_FOUND where there is none.
    pub(in crate::nvml) fn gpu_instance(&self, id: u32) -> Result<GpuInstance, Error> {
        let mut instance = ptr::null_mut();
        call!(self, nvmlDeviceGetGpuInstanceById(id, &raw mut instance))?;
        Ok(GpuInstance(instance))
    }

    pub(in crate::nvml) fn create_gpu_instance(&self, profile: u32, at: Placement) -> Result<GpuInstance, Error> {
        let placement = nvmlGpuInstancePlacement_t { start: at.start, size: at.size };
        let mut instance = ptr::null_mut();
        call!(self, nvmlDeviceCreateGpuInstanceWithPlacement(profile, &raw const placement, &raw mut instance))?;
        Ok(GpuInstance(instance))
    }

    pub(in crate::nvml) fn gpu_instance_info(&self, instance: GpuInstance) -> Result<GpuInstanceInfo, Error> {
        let placement = nvmlGpuInstancePlacement_t { start: 0, size: 0 };
        let mut info = nvmlGpuInstanceInfo_t { device: ptr::null_mut(), id: 0, profileId: 0, placement };
        instance_call!(self, nvmlGpuInstanceGetInfo(instance.0, &raw mut info))?;
        let nvmlGpuInstancePlacement_t { start, size } = info.placement;
        Ok(GpuInstanceInfo { id: info.id, profile: info.profileId, placement: Placement { start, size } })
    }

    pub(in crate::nvml) fn destroy_gpu_instance(&self, instance: GpuInstance) -> Result<(), Error> {
        instance_call!(self, nvmlGpuInstanceDestroy(instance.0))
    }

    /// The profile that compute instances of a GPU instance have by this index.
    pub(in crate::nvml) fn compute_profile(&self, of: GpuInstance, index: u32) -> Result<ComputeProfile, Error> {
        let mut info = nvmlComputeInstanceProfileInfo_t {
            id: 0,
            sliceCount: 0,
            instanceCount: 0,
            multiprocessorCount: 0,
            sharedCopyEngineCount: 0,
            sharedDecoderCount: 0,
            sharedEncoderCount: 0,
            sharedJpegCount: 0,
            sharedOfaCount: 0,
        };
        instance_call!(self, nvmlGpuInstanceGetComputeInstanceProfileInfo(of.0, index, ENGINES_SHARED, &raw mut info))?;
        Ok(ComputeProfile { id: info.id, slices: info.sliceCount, instances: info.instanceCount })
    }

    /// The compute instances of a profile that exist in a GPU instance.
    pub(in crate::nvml) fn compute_instances(
        &self,
        of: GpuInstance,
        profile: ComputeProfile,
    ) -> Result<Vec<ComputeInstance>, Error> {
        let mut instances = vec![ptr::null_mut(); profile.instances as usize];
        let mut count = profile.instances;
        instance_call!(
            self,
            nvmlGpuInstanceGetComputeInstances(of.0, profile.id, instances.as_mut_ptr(), &raw mut count)
        )?;
        instances.truncate(count as usize);
        Ok(instances.into_iter().map(ComputeInstance).collect())
    }

    pub(in crate::nvml) fn create_compute_instance(
        &self,
        within: GpuInstance,
        profile: u32,
    ) -> Result<ComputeInstance, Error> {
        let mut instance = ptr::null_mut();
        instance_call!(self, nvmlGpuInstanceCreateComputeInstance(within.0, profile, &raw mut instance))?;
        Ok(ComputeInstance(instance))
    }

    /// Its id, and the UUID of its MIG device. `None` from drivers that name the GPU in the place of the MIG device.
    pub(in crate::nvml) fn compute_instance_info(
        &self,
        instance: ComputeInstance,
    ) -> Result<(u32, Option<String>), Error> {
        let placement = nvmlComputeInstancePlacement_t { start: 0, size: 0 };
        let (device, gpu_instance) = (ptr::null_mut(), ptr::null_mut());
        let mut info = nvmlComputeInstanceInfo_t { device, gpuInstance: gpu_instance, id: 0, profileId: 0, placement };
        instance_call!(self, nvmlComputeInstanceGetInfo_v2(instance.0, &raw mut info))?;
        // SAFETY: the handle is only compared.
        let is_gpu = info.device == unsafe { self.device.handle() };
        let uuid = if is_gpu { None } else { Some(self.mig_uuid(info.device)?) };
        Ok((info.id, uuid))
    }

    /// The MIG devices that exist: ids of the GPU instance and the compute instance, and the UUID. They have numbers, with
    /// holes.
    pub(in crate::nvml) fn mig_devices(&self) -> Result<Vec<(u32, u32, String)>, Error> {
        let (mut count, mut devices) = (0, Vec::new());
        call!(self, nvmlDeviceGetMaxMigDeviceCount(&raw mut count))?;
        for index in 0..count {
            let (mut device, mut gpu_instance, mut compute_instance) = (ptr::null_mut(), 0, 0);
            match call!(self, nvmlDeviceGetMigDeviceHandleByIndex(index, &raw mut device)) {
                Err(error) if error.code() == Some(Code::NOT_FOUND) => continue,
                answer => answer?,
            }
            instance_call!(self, nvmlDeviceGetGpuInstanceId(device, &raw mut gpu_instance))?;
            instance_call!(self, nvmlDeviceGetComputeInstanceId(device, &raw mut compute_instance))?;
            devices.push((gpu_instance, compute_instance, self.mig_uuid(device)?));
        }
        Ok(devices)
    }

    fn mig_uuid(&self, device: nvmlDevice_t) -> Result<String, Error> {
        let mut text: [c_char; UUID_BYTES as usize] = [0; UUID_BYTES as usize];
        instance_call!(self, nvmlDeviceGetUUID(device, text.as_mut_ptr(), UUID_BYTES))?;
        self.text("nvmlDeviceGetUUID", &text)
    }

    pub(in crate::nvml) fn destroy_compute_instance(&self, instance: ComputeInstance) -> Result<(), Error> {
        instance_call!(self, nvmlComputeInstanceDestroy(instance.0))
    }
}
