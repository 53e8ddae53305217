//! Instances: created, found, destroyed, refused.

use std::ptr;

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t, nvmlGpuInstancePlacement_t,
};
use proptest::prelude::*;
use topology::{CapabilityNodes, Fault, HostFiles};

use super::{Mig, answer};

#[test]
fn an_instance_is_what_was_asked_for_and_is_found_every_way() {
    let mig = Mig::on();
    let instance = mig.create_at(9, 4, 4).expect("an instance");
    let info = mig.info(instance).expect("info");
    assert_eq!((info.device, info.id, info.profileId), (mig.gpu, 2, 9));
    assert_eq!((info.placement.start, info.placement.size), (4, 4));
    assert_eq!(mig.by_id(2), Ok(instance));
    assert_eq!(mig.by_id(1), Err(6));
    assert_eq!(mig.list(9), Ok(vec![instance]));
    assert_eq!(mig.list(19), Ok(vec![]));
    assert_eq!(mig.list(47), Err(2));
}

#[test]
fn what_is_occupied_or_used_up_is_refused() {
    let mig = Mig::on();
    mig.create_at(19, 2, 1).expect("an instance");
    assert_eq!(mig.create_at(14, 2, 2), Err(23), "it overlaps");
    assert_eq!(mig.create(5), Err(23), "there is no other place");
    assert_eq!(mig.create(0), Err(23));
    mig.create(20).expect("an instance");
    assert_eq!(mig.create(20), Err(23), "its media engines are taken");
    assert_eq!(mig.create_at(9, 2, 4), Err(2), "there is no such place");
    assert_eq!(mig.create_at(9, 4, 3), Err(2), "there is no such place");
    assert_eq!(mig.create(47), Err(2), "there is no such profile");
}

#[test]
fn a_gpu_instance_is_in_use_while_it_has_compute_instances() {
    let mig = Mig::on();
    let parent = mig.create(9).expect("an instance");
    let [first, second] = [1, 0].map(|profile| mig.create_compute(parent, profile).expect("a compute instance"));
    assert_eq!(mig.create_compute(parent, 0), Err(23));
    assert_eq!(mig.create_compute(parent, 7), Err(3), "there is no such profile");
    assert_eq!(mig.destroy(parent), 19);
    assert_eq!([mig.destroy_compute(first), mig.destroy_compute(second)], [0, 0]);
    assert_eq!(mig.destroy_compute(second), 2, "it is gone");
    assert_eq!(mig.destroy(parent), 0);
    assert_eq!(mig.destroy(parent), 2, "it is gone");
}

#[test]
fn a_compute_instance_is_what_was_asked_for_and_is_found_every_way() {
    let mig = Mig::on();
    let parent = mig.create(9).expect("an instance");
    let at = nvmlComputeInstancePlacement_t { start: 2, size: 1 };
    let (mut created, mut found, mut listed, mut count, mut room) =
        (ptr::null_mut(), ptr::null_mut(), [ptr::null_mut(); 3], 0, 0);
    let mut info = nvmlComputeInstanceInfo_t {
        device: ptr::null_mut(),
        gpuInstance: ptr::null_mut(),
        id: 99,
        profileId: 99,
        placement: nvmlComputeInstancePlacement_t { start: 99, size: 99 },
    };
    let lib = &mig.lib;
    // SAFETY: the pointers are to locals, and the array has room for all instances of the profile.
    let codes = unsafe {
        [
            lib.nvmlGpuInstanceCreateComputeInstanceWithPlacement(parent, 0, &raw const at, &raw mut created),
            lib.nvmlGpuInstanceGetComputeInstanceById(parent, 0, &raw mut found),
            lib.nvmlGpuInstanceGetComputeInstances(parent, 0, listed.as_mut_ptr(), &raw mut count),
            lib.nvmlComputeInstanceGetInfo_v2(created, &raw mut info),
            lib.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(parent, 0, &raw mut room),
            lib.nvmlGpuInstanceGetComputeInstanceById(parent, 1, &raw mut found),
        ]
    };
    assert_eq!(codes, [0, 0, 0, 0, 0, 6]);
    assert_eq!((found, listed[0], count, room), (created, created, 1, 2));
    assert_eq!((info.device, info.gpuInstance, info.id, info.profileId), (mig.gpu, parent, 0, 0));
    assert_eq!((info.placement.start, info.placement.size), (2, 1));
}

#[test]
fn an_instance_created_anew_has_another_handle() {
    let mig = Mig::on();
    let first = mig.create_at(0, 0, 8).expect("an instance");
    assert_eq!(mig.destroy(first), 0);
    let second = mig.create_at(0, 0, 8).expect("an instance");
    assert_ne!(first, second);
    assert_eq!(mig.info(first).err(), Some(2));
    assert_eq!(mig.create_compute(first, 4), Err(2));
    assert_eq!(mig.destroy(first), 2);
    assert!(mig.info(second).is_ok());
}

#[test]
fn handles_of_other_kinds_and_null_pointers_are_invalid() {
    let mig = Mig::on();
    let instance = mig.create(19).expect("an instance");
    assert_eq!(mig.info(mig.gpu.cast()).err(), Some(2));
    assert_eq!(mig.info(ptr::null_mut()).err(), Some(2));
    assert_eq!(mig.destroy_compute(instance.cast()), 2);
    let at = nvmlGpuInstancePlacement_t { start: 0, size: 1 };
    // SAFETY: null is what is tested.
    let codes = unsafe {
        [
            mig.lib.nvmlDeviceCreateGpuInstance(mig.gpu, 19, ptr::null_mut()),
            mig.lib.nvmlDeviceCreateGpuInstanceWithPlacement(mig.gpu, 19, ptr::null(), ptr::null_mut()),
            mig.lib.nvmlDeviceCreateGpuInstanceWithPlacement(mig.gpu, 19, &raw const at, ptr::null_mut()),
            mig.lib.nvmlDeviceGetGpuInstances(mig.gpu, 19, ptr::null_mut(), ptr::null_mut()),
        ]
    };
    assert_eq!(codes, [2; 4]);
    assert_eq!(mig.list(19).map(|all| all.len()), Ok(1), "nothing was created");
}

#[test]
fn a_lost_gpu_answers_nothing_about_its_instances() {
    let mig = Mig::on();
    let instance = mig.create(19).expect("an instance");
    mig.machine.update(|state| state.gpus.entry(0).or_default().lost = true);
    assert_eq!([mig.info(instance).err(), mig.create(19).err()], [Some(15); 2]);
    assert_eq!(mig.destroy(instance), 15);
}

#[test]
fn a_fault_of_a_gpu_bites_calls_about_its_instances() {
    let mig = Mig::on();
    let instance = mig.create(19).expect("an instance");
    let call = "nvmlGpuInstanceDestroy".into();
    mig.machine.fault(Fault { call, gpu: Some(0), code: Some(999), late: true, ..Fault::default() });
    assert_eq!(mig.destroy(instance), 999);
    assert_eq!(mig.list(19), Ok(vec![]), "it was destroyed");
}

#[test]
fn the_files_of_an_instance_are_there_when_the_call_returns() {
    let mig = Mig::on();
    let root = mig.machine.node.path().with_file_name("host");
    let [proc, dev, smi] = ["proc", "dev", "smi"].map(|name| root.join(name));
    let files = HostFiles { proc, dev, smi, major: 237, nodes: CapabilityNodes::Placeholders };
    mig.machine.node.set_host_files(&files).expect("the host's files");
    let parent = mig.create_at(9, 4, 4).expect("an instance");
    let access = root.join("proc/driver/nvidia/capabilities/gpu0/mig/gi2");
    assert!(access.join("access").exists() && root.join("dev/nvidia-caps/nvidia-cap21").exists());
    let child = mig.create_compute(parent, 2).expect("a compute instance");
    assert!(access.join("ci0/access").exists() && root.join("dev/nvidia-caps/nvidia-cap22").exists());
    assert_eq!([mig.destroy_compute(child), mig.destroy(parent)], [0, 0]);
    assert!(!access.exists() && !root.join("dev/nvidia-caps/nvidia-cap21").exists());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn nothing_overlaps_and_the_remaining_capacity_is_what_can_be_created(
        table in proptest::sample::select(vec!["a100-40gb", "h100-80gb-pcie", "a30"]),
        acts in proptest::collection::vec((0_u8..3, 0_usize..7), 1..20),
    ) {
        let mig = Mig::on_table(table);
        let profiles = [19, 20, 15, 14, 9, 5, 0, 21, 6];
        let known: Vec<_> = profiles.into_iter().filter(|&profile| mig.capacity(profile).is_ok()).collect();
        let mut live = Vec::new();
        for (act, which) in acts {
            if act == 0 && !live.is_empty() {
                prop_assert_eq!(mig.destroy(live.swap_remove(which % live.len())), 0);
            } else {
                let profile = known[which % known.len()];
                let capacity = mig.capacity(profile);
                match mig.create(profile) {
                    Ok(instance) => live.push(instance),
                    Err(code) => prop_assert_eq!((code, capacity), (23, Ok(0))),
                }
            }
            let mut taken = Vec::new();
            for &instance in &live {
                let at = mig.info(instance).map(|info| info.placement);
                prop_assert!(at.is_ok());
                taken.extend(at.map(|at| at.start..at.start + at.size).into_iter().flatten());
            }
            let slices = taken.len();
            taken.sort_unstable();
            taken.dedup();
            prop_assert_eq!(taken.len(), slices);
        }
        for profile in known {
            let capacity = mig.capacity(profile).unwrap_or_default();
            let created: Vec<_> = std::iter::from_fn(|| mig.create(profile).ok()).collect();
            prop_assert_eq!(created.len(), capacity as usize, "profile {}", profile);
            for instance in created {
                prop_assert_eq!(answer(mig.destroy(instance), ()), Ok(()));
            }
        }
    }
}
