//! How a GPU is partitioned, and how it could be.
//!
//! ```text
//!  index 0, 1, 2 … ──▶ profile ──▶ placements             once for a driver, a memory size and a MIG mode
//!                        │
//!                        └──▶ GPU instances ──▶ compute instances ──▶ UUID     at each look, where MIG mode is on
//! ```
//!
//! Profiles are read all or not at all: counters made of half of them would be too small. So are instances, of which one
//! that is not seen would be one whose place seems free.

use std::collections::BTreeMap;

use super::error::{Code, Error};
use super::gpu::Before;
use super::notes::Notes;
use super::raw::{self, ComputeProfile, GpuInstanceInfo, Handle, ProfileInfo};
use crate::device::MigUuid;
use crate::device::mig::{ComputeInstance, GpuInstance, Mig, Profile};

/// The kinds of compute instances that GPU instances of a profile can have, by the profile's id.
pub(super) type Compute = BTreeMap<u32, Vec<ComputeProfile>>;

/// More indices than there are profiles: `NVML_GPU_INSTANCE_PROFILE_COUNT` of nvml.h 13.5 is 18. Libraries end the count
/// themselves, with INVALID_ARGUMENT.
const MAX_PROFILES: u32 = 64;

/// As many as a GPU has of anything, with room for coming ones: a larger answer is none.
const MAX_INSTANCES: u32 = 64;

/// `NVML_COMPUTE_INSTANCE_PROFILE_COUNT` of nvml.h 13.5 is 9.
const MAX_COMPUTE_PROFILES: u32 = 16;

/// Reads what a GPU says of MIG. What was described once stays so as long as driver, memory and mode are the same.
///
/// Fails where the mode cannot be read and never was: offered as a whole, a GPU in MIG mode would be given to pods that
/// cannot use it. And for a stale library.
pub(super) fn read(
    gpu: &Handle<'_>,
    memory_bytes: Option<u64>,
    before: Before<'_>,
    notes: &mut Notes,
) -> Result<(Mig, Compute), Error> {
    let Before { facts: last, same_driver, lasts } = before;
    let mode = match (gpu.mig_mode(), last) {
        (Err(error), None) if !error.is_absent() => return Err(error),
        (answer, last) => {
            let known = last.filter(|last| last.mig.capable).map(|last| last.mig.enabled);
            notes.feature("MIG mode", answer, known)?
        }
    };
    let Some(enabled) = mode else { return Ok((Mig::default(), Compute::new())) };
    let resetless = match last.filter(|last| last.mig.capable).map(|last| last.mig.resetless) {
        Some(known) if lasts => known,
        known => notes.feature("way to switch the MIG mode", is_resetless(gpu), known)?.unwrap_or_default(),
    };

    let known = last.map(|last| last.mig.profiles.clone()).filter(|profiles| !profiles.is_empty());
    let unchanged = last.is_some_and(|last| last.memory_bytes == memory_bytes && last.mig.enabled == enabled);
    let profiles = match (known, memory_bytes) {
        (Some(known), _) if same_driver && unchanged => Some(known),
        (known, Some(memory)) => notes.feature("MIG profiles", profiles(gpu, memory), known)?,
        // That the memory is not known is a note already.
        (known, None) => known,
    };
    let profiles = profiles.unwrap_or_default();

    let compute = last.filter(|_| same_driver && unchanged).map(|last| last.compute.clone()).unwrap_or_default();
    let (mut reader, mut instances) = (Reader::new(gpu, compute), Vec::new());
    if enabled {
        // Somebody who takes one away while they are read is no failure.
        let answer = reader.instances(&profiles).or_else(|error| match error.code() {
            Some(Code::NOT_FOUND | Code::INVALID_ARGUMENT) => reader.instances(&profiles),
            _ => Err(error),
        });
        let known = last.map(|last| last.mig.instances.clone());
        instances = notes.fact("MIG instances", answer, known)?.unwrap_or_default();
    }
    Ok((Mig { capable: true, enabled, resetless, profiles, instances }, reader.compute))
}

/// Drivers that are older than the question do not know its number.
fn is_resetless(gpu: &Handle<'_>) -> Result<bool, Error> {
    gpu.is_mig_resetless().or_else(|error| match error.code() {
        Some(Code::INVALID_ARGUMENT) => Ok(false),
        _ => Err(error),
    })
}

/// The profiles that a GPU has, by id, with names for its memory in bytes.
fn profiles(gpu: &Handle<'_>, memory_bytes: u64) -> Result<Vec<Profile>, Error> {
    let mut profiles = Vec::new();
    for index in 0..MAX_PROFILES {
        let info = match gpu.profile(index) {
            Ok(info) => info,
            Err(error) if error.code() == Some(Code::INVALID_ARGUMENT) => break,
            Err(error) if error.code() == Some(Code::NOT_SUPPORTED) => continue,
            Err(error) => return Err(error),
        };
        if info.instanceCount > MAX_INSTANCES {
            let call = "nvmlDeviceGetGpuInstanceProfileInfo";
            return Err(gpu.nonsense(call, &info.instanceCount, "a number of instances"));
        }
        let mut placements = gpu.placements(info.id)?;
        placements.sort_unstable();
        profiles.push(Profile {
            id: info.id,
            name: name(index, &info, memory_bytes),
            slices: info.sliceCount,
            memory_mib: info.memorySizeMB,
            multiprocessors: info.multiprocessorCount,
            copy_engines: info.copyEngineCount,
            decoders: info.decoderCount,
            encoders: info.encoderCount,
            jpeg_engines: info.jpegCount,
            ofa_engines: info.ofaCount,
            max_instances: info.instanceCount,
            placements,
        });
    }
    profiles.sort_by_key(|profile| profile.id);
    Ok(profiles)
}

/// As NVIDIA's driver makes it: the memory as eighths of the GPU's, rounded up, in GiB. NVML's own name is not asked
/// for, because it has one only while MIG mode is on.
fn name(index: u32, info: &ProfileInfo, memory_bytes: u64) -> String {
    let memory = u128::from(memory_bytes).max(1);
    let eighths = (u128::from(info.memorySizeMB) << 23).div_ceil(memory);
    let gib = (eighths * memory.div_ceil(1 << 30) + 4) / 8;
    let suffix = match index {
        7 | 8 => "+me",
        10 | 11 | 12 | 17 => "+gfx",
        13 | 14 => "-me",
        15 | 16 => "+me.all",
        _ => "",
    };
    format!("{}g.{gib}gb{suffix}", info.sliceCount)
}

/// Reads instances of one GPU.
pub(super) struct Reader<'h, 'n> {
    gpu: &'h Handle<'n>,
    /// What is known of kinds already, and what is learnt.
    pub(super) compute: Compute,
    /// The GPU's MIG devices, once somebody had to ask for them.
    devices: Option<Vec<(u32, u32, String)>>,
}

// === impl Reader ===

impl<'h, 'n> Reader<'h, 'n> {
    pub(super) fn new(gpu: &'h Handle<'n>, compute: Compute) -> Self {
        Self { gpu, compute, devices: None }
    }

    /// The GPU instances that exist, by id. NVML lists them by profile, and no MIG device has to be in one.
    pub(super) fn instances(&mut self, profiles: &[Profile]) -> Result<Vec<GpuInstance>, Error> {
        self.devices = None;
        let mut instances = Vec::new();
        for profile in profiles {
            for instance in self.gpu.gpu_instances(profile.id, profile.max_instances)? {
                instances.push(self.instance(instance)?);
            }
        }
        instances.sort_by_key(|instance| instance.id);
        Ok(instances)
    }

    /// One GPU instance with what is in it.
    pub(super) fn instance(&mut self, instance: raw::GpuInstance) -> Result<GpuInstance, Error> {
        let GpuInstanceInfo { id, profile, placement } = self.gpu.gpu_instance_info(instance)?;
        let kinds = match self.compute.get(&profile) {
            Some(kinds) => kinds.clone(),
            None => self.compute.entry(profile).or_insert(compute_profiles(self.gpu, instance)?).clone(),
        };
        let mut compute = Vec::new();
        for kind in kinds {
            for within in self.gpu.compute_instances(instance, kind)? {
                let (id, uuid) = self.device(id, within)?;
                compute.push(ComputeInstance { id, slices: kind.slices, uuid });
            }
        }
        compute.sort_by_key(|compute| compute.id);
        Ok(GpuInstance { id, profile, placement, compute, foreign: false })
    }

    /// The id of a compute instance in the GPU instance of this id, and the UUID of its MIG device.
    pub(super) fn device(&mut self, within: u32, instance: raw::ComputeInstance) -> Result<(u32, MigUuid), Error> {
        let (id, uuid) = self.gpu.compute_instance_info(instance)?;
        let uuid = match (uuid, &self.devices) {
            (Some(uuid), _) => Some(uuid),
            (None, Some(devices)) => uuid_of(devices, within, id),
            (None, None) => uuid_of(self.devices.insert(self.gpu.mig_devices()?), within, id),
        };
        let call = "nvmlDeviceGetMigDeviceHandleByIndex";
        let uuid =
            uuid.ok_or_else(|| Error::Call { call, gpu: Some(self.gpu.label.clone()), code: Code::NOT_FOUND })?;
        let uuid = MigUuid::parse(&uuid).map_err(|error| self.gpu.unparsable("nvmlDeviceGetUUID", &error))?;
        Ok((id, uuid))
    }
}

fn uuid_of(devices: &[(u32, u32, String)], gpu_instance: u32, compute_instance: u32) -> Option<String> {
    let found = devices.iter().find(|device| (device.0, device.1) == (gpu_instance, compute_instance));
    found.map(|(_, _, uuid)| uuid.clone())
}

/// The kinds of compute instances that a GPU instance can have. Some numbers in between are none.
pub(super) fn compute_profiles(gpu: &Handle<'_>, of: raw::GpuInstance) -> Result<Vec<ComputeProfile>, Error> {
    let mut profiles: Vec<ComputeProfile> = Vec::new();
    let mut none = None;
    for index in 0..MAX_COMPUTE_PROFILES {
        match gpu.compute_profile(of, index) {
            Ok(profile) if profile.instances > MAX_INSTANCES => {
                let call = "nvmlGpuInstanceGetComputeInstanceProfileInfo";
                return Err(gpu.nonsense(call, &profile.instances, "a number of instances"));
            }
            Ok(profile) => profiles.push(profile),
            Err(error) if matches!(error.code(), Some(Code::INVALID_ARGUMENT | Code::NOT_SUPPORTED)) => {
                none = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    match none {
        // So answers an instance that has just ended.
        Some(error) if profiles.is_empty() => Err(error),
        _ => Ok(profiles),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(index: u32, slices: u32, memory_mib: u64, total_mib: u64) -> String {
        let info = ProfileInfo {
            id: 0,
            isP2pSupported: 0,
            sliceCount: slices,
            instanceCount: 1,
            multiprocessorCount: 0,
            copyEngineCount: 0,
            decoderCount: 0,
            encoderCount: 0,
            jpegCount: 0,
            ofaCount: 0,
            memorySizeMB: memory_mib,
        };
        name(index, &info, total_mib << 20)
    }

    #[test]
    fn profiles_are_named_as_nvidias_driver_names_them() {
        for (index, slices, memory, total, expected) in [
            (0, 1, 4864, 40960, "1g.5gb"),
            (9, 1, 9984, 40960, "1g.10gb"),
            (4, 7, 40320, 40960, "7g.40gb"),
            (0, 1, 9984, 81559, "1g.10gb"),
            (7, 1, 9984, 81559, "1g.10gb+me"),
            (4, 7, 81152, 81559, "7g.80gb"),
            (0, 1, 10880, 95830, "1g.12gb"),
            (2, 3, 47232, 95830, "3g.47gb"),
            (0, 1, 16384, 143_771, "1g.18gb"),
            (1, 2, 33024, 143_771, "2g.35gb"),
            (2, 3, 71168, 143_771, "3g.71gb"),
            (0, 1, 5952, 24576, "1g.6gb"),
            (8, 2, 11968, 24576, "2g.12gb+me"),
            (0, 1, 20992, 183_359, "1g.23gb"),
            (2, 3, 91136, 183_359, "3g.90gb"),
            (10, 1, 24192, 97887, "1g.24gb+gfx"),
            (13, 1, 24192, 97887, "1g.24gb-me"),
            (16, 2, 48512, 97887, "2g.48gb+me.all"),
        ] {
            assert_eq!(named(index, slices, memory, total), expected);
        }
    }

    #[test]
    fn no_size_is_too_odd_for_a_name() {
        assert_eq!(named(0, 1, 1, 0), "1g.1048576gb");
        assert_eq!(named(0, 1, 0, 40960), "1g.0gb");
        assert!(named(0, 1, u64::MAX, 1).starts_with("1g."));
    }
}
