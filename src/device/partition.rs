//! The parts of a GPU that are devices of their own.
//!
//! | the GPU | its parts |
//! |---|---|
//! | is partitioned by an administrator, MIG mode is on | the GPU instances that have one compute instance of their size |
//! | is partitioned by this plugin | every placement of every profile, always |

use std::cmp::Reverse;

use super::mig::{ComputeInstance, GpuInstance, Placement, Profile};
use super::{DeviceName, Gpu, LeftOut, MigUuid, ParseError};

/// A part of a GPU, as a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition<'a> {
    /// The name it is published under.
    pub name: DeviceName,
    /// Its shape.
    pub profile: &'a Profile,
    /// Its place.
    pub placement: Placement,
    /// The MIG device that an administrator made. `None` of one that this plugin makes when it is asked for.
    pub uuid: Option<&'a MigUuid>,
}

// === impl Partition ===

impl<'a> Partition<'a> {
    /// The parts of a GPU in the order in which claims shall try them: the least first, and of one profile the last
    /// place first. The large profiles have few places, and those at the front, which stay free longest that way.
    pub fn all(gpu: &'a Gpu) -> Vec<Self> {
        let mut all: Vec<_> =
            if gpu.is_dynamic() { placements(gpu).collect() } else { devices(gpu).flatten().collect() };
        all.sort_by_key(|Self { profile, placement, .. }| {
            let size = (profile.slices, profile.memory_mib, profile.engines());
            (size, profile.id, Reverse(placement.start))
        });
        all
    }

    /// What of a GPU in MIG mode is no device, and why. A GPU without anything to offer is told as a whole.
    pub fn left_out(gpu: &Gpu) -> Vec<LeftOut> {
        if gpu.is_offered_whole() || gpu.is_dynamic() {
            return Vec::new();
        }
        if gpu.mig.instances.is_empty() {
            let why = "MIG mode is on, and it has no GPU instance: make some, or turn MIG mode off".to_owned();
            return vec![LeftOut { what: format!("{} ({})", gpu.name, gpu.uuid), why }];
        }
        devices(gpu).filter_map(Result::err).collect()
    }

    fn new(gpu: &Gpu, profile: &'a Profile, placement: Placement) -> Result<Self, ParseError> {
        let name = gpu.name.part(&profile.name, profile.id, placement.start)?;
        Ok(Self { name, profile, placement, uuid: None })
    }
}

fn placements(gpu: &Gpu) -> impl Iterator<Item = Partition<'_>> {
    let profiles = gpu.mig.profiles.iter();
    let all = profiles.flat_map(|profile| profile.places().map(move |place| (profile, place)));
    all.filter_map(|(profile, place)| Partition::new(gpu, profile, place).ok())
}

fn devices(gpu: &Gpu) -> impl Iterator<Item = Result<Partition<'_>, LeftOut>> {
    let instances = if gpu.mig.enabled { &gpu.mig.instances[..] } else { &[] };
    instances.iter().map(|instance| {
        let what = || format!("the GPU instance {} of {} ({})", instance.id, gpu.name, gpu.uuid);
        device(gpu, instance).map_err(|why| LeftOut { what: what(), why })
    })
}

fn device<'a>(gpu: &'a Gpu, instance: &'a GpuInstance) -> Result<Partition<'a>, String> {
    let profile = gpu.mig.profiles.iter().find(|profile| profile.id == instance.profile);
    let profile = profile.ok_or_else(|| format!("its profile, {}, is not known", instance.profile))?;
    let Some(ComputeInstance { uuid, .. }) = instance.device(profile) else {
        return Err(match &instance.compute[..] {
            [] => "it has no compute instance, so that nothing can run on it".to_owned(),
            [part] => format!("its compute instance has {} of {} compute slices", part.slices, profile.slices),
            parts => format!("it is divided further, into {} compute instances", parts.len()),
        });
    };
    let partition = Partition::new(gpu, profile, instance.placement).map_err(|error| error.to_string())?;
    Ok(Partition { uuid: Some(uuid), ..partition })
}

#[cfg(test)]
mod tests {
    use super::super::example::{mk_gpu, mk_instance, mk_mig};
    use super::super::{Mig, Partitioning};
    use super::*;

    fn mk_static(instances: Vec<GpuInstance>) -> Gpu {
        Gpu { mig: Mig { instances, ..mk_mig(true) }, ..mk_gpu(0) }
    }

    fn mk_dynamic(mig: Mig) -> Gpu {
        Gpu { mig, partitioning: Partitioning::Dynamic { whole: true }, ..mk_gpu(0) }
    }

    fn names(gpu: &Gpu) -> Vec<String> {
        Partition::all(gpu).iter().map(|part| part.name.to_string()).collect()
    }

    #[test]
    fn a_gpu_that_is_partitioned_on_demand_has_a_part_at_every_place() {
        let expected = [
            ["gpu-0-mig-1g5gb-19-6", "gpu-0-mig-1g5gb-19-5", "gpu-0-mig-1g5gb-19-4"],
            ["gpu-0-mig-3g20gb-9-4", "gpu-0-mig-3g20gb-9-0", "gpu-0-mig-7g40gb-0-0"],
        ];
        let (off, on) = (mk_dynamic(mk_mig(false)), mk_dynamic(mk_mig(true)));
        assert_eq!(
            (&names(&off)[..3], &names(&off)[14..]),
            (&expected[0].map(String::from)[..], &expected[1].map(String::from)[..])
        );
        assert!(Partition::all(&off).iter().all(|part| part.uuid.is_none()));
        assert_eq!(names(&on), names(&off), "whatever the mode is");
        assert!(Partition::left_out(&on).is_empty());
    }

    #[test]
    fn instances_that_an_administrator_made_are_parts_if_one_device_has_all_of_them() {
        let made = [mk_instance(2, 9, 4, &[3]), mk_instance(7, 19, 0, &[1])];
        let spoilt = [
            mk_instance(8, 19, 1, &[]),
            mk_instance(1, 9, 0, &[1]),
            mk_instance(9, 0, 0, &[1, 2]),
            mk_instance(5, 99, 2, &[1]),
        ];
        let gpu = mk_static([&made[..], &spoilt[..]].concat());
        assert_eq!(names(&gpu), ["gpu-0-mig-1g5gb-19-0", "gpu-0-mig-3g20gb-9-4"]);
        let parts = Partition::all(&gpu);
        assert_eq!(parts[1].uuid, Some(&made[0].compute[0].uuid));
        let whys: Vec<_> = Partition::left_out(&gpu).into_iter().map(|left_out| left_out.why).collect();
        let expected = [
            "it has no compute instance, so that nothing can run on it",
            "its compute instance has 1 of 3 compute slices",
            "it is divided further, into 2 compute instances",
            "its profile, 99, is not known",
        ];
        assert_eq!(whys, expected);
        assert!(Partition::left_out(&gpu)[0].what.starts_with("the GPU instance 8 of gpu-0 (GPU-"));
    }

    #[test]
    fn a_gpu_in_mig_mode_without_an_instance_is_told_once() {
        let told = Partition::left_out(&mk_static(Vec::new()));
        assert!(told.len() == 1 && told[0].why.starts_with("MIG mode is on"), "{told:?}");
        assert!(names(&mk_static(Vec::new())).is_empty());
    }

    #[test]
    fn instances_are_no_parts_while_mig_mode_is_off() {
        let mut gpu = mk_static(vec![mk_instance(7, 19, 0, &[1])]);
        gpu.mig.enabled = false;
        assert!(names(&gpu).is_empty() && Partition::left_out(&gpu).is_empty());
    }

    #[test]
    fn a_gpu_without_places_is_whole_whatever_was_asked_for() {
        let mut gpu = mk_dynamic(mk_mig(false));
        for profile in &mut gpu.mig.profiles {
            profile.placements = vec![Placement { start: 0, size: 0 }, Placement { start: u32::MAX, size: 9 }];
        }
        assert!(!gpu.is_dynamic() && gpu.is_offered_whole() && names(&gpu).is_empty());
    }
}
