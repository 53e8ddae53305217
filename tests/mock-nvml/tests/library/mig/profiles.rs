//! What a GPU can be partitioned into.

use std::ffi::CStr;
use std::mem::zeroed;
use std::ptr;

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstancePlacement_t, nvmlComputeInstanceProfileInfo_t, nvmlComputeInstanceProfileInfo_v2_t,
    nvmlComputeInstanceProfileInfo_v3_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t,
    nvmlGpuInstanceProfileInfo_v2_t, nvmlGpuInstanceProfileInfo_v3_t,
};

use super::{Answer, Mig, answer};
use crate::machine::one_gpu;

impl Mig {
    fn profile(&self, index: u32) -> Answer<nvmlGpuInstanceProfileInfo_t> {
        // SAFETY: all members are numbers.
        let mut info = unsafe { zeroed() };
        // SAFETY: the pointer is to a local.
        answer(unsafe { self.lib.nvmlDeviceGetGpuInstanceProfileInfo(self.gpu, index, &raw mut info) }, info)
    }

    fn profile_name(&self, index: u32, version: u32) -> Answer<String> {
        // SAFETY: all members are numbers.
        let mut info: nvmlGpuInstanceProfileInfo_v3_t = unsafe { zeroed() };
        info.version = version;
        let info = &raw mut info;
        // SAFETY: the third version is as large as the second.
        let code = unsafe { self.lib.nvmlDeviceGetGpuInstanceProfileInfoV(self.gpu, index, info.cast()) };
        let second = info.cast::<nvmlGpuInstanceProfileInfo_v2_t>();
        // SAFETY: the members are arrays of a valid struct, and zero-terminated.
        let name = unsafe {
            let third = version >> 24 == 3;
            CStr::from_ptr(if third { (&raw const (*info).name).cast() } else { (&raw const (*second).name).cast() })
        };
        answer(code, name.to_str().expect("a name").to_owned())
    }

    fn starts(&self, profile: u32) -> Answer<Vec<u32>> {
        let mut count = 0;
        let call = |items, count| {
            // SAFETY: the array is as long as the first call says.
            unsafe { self.lib.nvmlDeviceGetGpuInstancePossiblePlacements_v2(self.gpu, profile, items, count) }
        };
        let code = call(ptr::null_mut(), &raw mut count);
        if code != 0 {
            return Err(code);
        }
        let mut items = vec![nvmlGpuInstancePlacement_t { start: 99, size: 99 }; count as usize];
        answer(call(items.as_mut_ptr(), &raw mut count), items.iter().map(|placement| placement.start).collect())
    }
}

#[test]
fn profiles_are_numbered_without_end_and_skip_what_the_board_has_not() {
    let mig = Mig::on();
    let ids: Vec<_> = (0..19).map(|index| mig.profile(index).map(|info| info.id)).collect();
    let known = [(0, 19), (1, 14), (2, 9), (3, 5), (4, 0), (7, 20), (9, 15)];
    for (index, id) in ids.iter().enumerate() {
        let expected = known.iter().find(|(known, _)| *known == index).map_or(Err(3), |(_, id)| Ok(*id));
        assert_eq!(*id, if index == 18 { Err(2) } else { expected }, "index {index}");
    }
    let largest = mig.profile(4).expect("7g");
    assert_eq!((largest.sliceCount, largest.multiprocessorCount, largest.memorySizeMB), (7, 114, 81_152));
}

#[test]
fn placements_and_the_plain_profiles_are_known_with_the_mode_off() {
    let mig = Mig::of(one_gpu());
    assert_eq!(mig.profile(2).map(|info| info.id), Ok(9));
    assert_eq!(mig.starts(9), Ok(vec![0, 4]));
    assert_eq!(mig.starts(19), Ok(vec![0, 1, 2, 3, 4, 5, 6]));
    assert_eq!(mig.starts(47), Err(3));
    assert_eq!(mig.profile_name(2, 0x0200_0098), Err(3));
    assert_eq!(mig.capacity(9), Err(3));
    assert_eq!(mig.list(9), Err(3));
    assert_eq!(mig.by_id(1), Err(3));
}

#[test]
fn names_come_in_versioned_structs() {
    let mig = Mig::on();
    assert_eq!(mig.profile_name(7, 0x0200_0098).as_deref(), Ok("MIG 1g.10gb+me"));
    assert_eq!(mig.profile_name(7, 0x0300_0098).as_deref(), Ok("MIG 1g.10gb+me"));
    assert_eq!(mig.profile_name(7, 0x0400_0098), Err(25));
    // SAFETY: the third version is as large as the second.
    let by_id = |id| unsafe {
        let mut info: nvmlGpuInstanceProfileInfo_v2_t = zeroed();
        info.version = 0x0200_0098;
        answer(mig.lib.nvmlDeviceGetGpuInstanceProfileInfoByIdV(mig.gpu, id, &raw mut info), info.multiprocessorCount)
    };
    assert_eq!([by_id(9), by_id(47)], [Ok(46), Err(3)]);
}

#[test]
fn profiles_for_graphics_say_so_in_the_third_version() {
    let mig = Mig::on_table("rtx-pro-6000-96gb");
    let of_gpu = |index| {
        // SAFETY: all members are numbers.
        let mut info: nvmlGpuInstanceProfileInfo_v3_t = unsafe { zeroed() };
        info.version = 0x0300_0098;
        // SAFETY: the pointer is to a local, which the version word describes.
        let code = unsafe { mig.lib.nvmlDeviceGetGpuInstanceProfileInfoV(mig.gpu, index, (&raw mut info).cast()) };
        answer(code, info.capabilities)
    };
    assert_eq!([of_gpu(0), of_gpu(10)], [Ok(0), Ok(2)]);
    let inside = |profile| {
        let parent = mig.create(profile).expect("an instance");
        // SAFETY: all members are numbers.
        let mut info: nvmlComputeInstanceProfileInfo_v3_t = unsafe { zeroed() };
        info.version = 0x0300_008c;
        let out = (&raw mut info).cast();
        // SAFETY: the pointer is to a local, which the version word describes.
        let code = unsafe { mig.lib.nvmlGpuInstanceGetComputeInstanceProfileInfoV(parent, 0, 0, out) };
        answer(code, (info.version, info.capabilities))
    };
    assert_eq!([inside(14), inside(47)], [Ok((0x0300_008c, 0)), Ok((0x0300_008c, 1))]);
}

#[test]
fn two_profiles_may_have_one_name() {
    let mig = Mig::on_table("a30-two-of-a-name");
    let [first, second] =
        [0, 9].map(|index| (mig.profile(index).expect("a profile").id, mig.profile_name(index, 0x0200_0098)));
    assert_eq!((first.0, second.0), (14, 15));
    assert_eq!(first.1, second.1);
}

#[test]
fn a_board_without_a_table_has_no_profiles() {
    let mut topology = one_gpu();
    topology.boards.values_mut().for_each(|board| board.mig = None);
    topology.gpus[0].mig_enabled = true;
    let mig = Mig::of(topology);
    assert_eq!(mig.profile(0).map(|info| info.id), Err(3));
    assert_eq!(mig.create(19), Err(3));
}

#[test]
fn compute_profiles_are_those_of_the_gpu_instance() {
    let mig = Mig::on();
    let three = mig.create(9).expect("an instance");
    let plain = |index, engines| {
        // SAFETY: all members are numbers.
        let mut info: nvmlComputeInstanceProfileInfo_t = unsafe { zeroed() };
        // SAFETY: the pointer is to a local.
        let code =
            unsafe { mig.lib.nvmlGpuInstanceGetComputeInstanceProfileInfo(three, index, engines, &raw mut info) };
        answer(code, (info.id, info.sliceCount, info.instanceCount, info.multiprocessorCount, info.sharedDecoderCount))
    };
    assert_eq!(plain(0, 0), Ok((0, 1, 3, 14, 3)));
    assert_eq!(plain(2, 0), Ok((2, 3, 1, 46, 3)));
    assert_eq!([plain(3, 0), plain(9, 0), plain(0, 1)], [Err(3), Err(2), Err(2)]);

    let name = |index, version| {
        // SAFETY: all members are numbers.
        let mut info: nvmlComputeInstanceProfileInfo_v3_t = unsafe { zeroed() };
        info.version = version;
        let info = (&raw mut info).cast::<nvmlComputeInstanceProfileInfo_v2_t>();
        // SAFETY: the third version begins as the second one.
        let code = unsafe { mig.lib.nvmlGpuInstanceGetComputeInstanceProfileInfoV(three, index, 0, info) };
        // SAFETY: the member is an array of a valid struct, and zero-terminated.
        let name = unsafe { CStr::from_ptr((&raw const (*info).name).cast()) };
        answer(code, name.to_str().expect("a name").to_owned())
    };
    assert_eq!(name(1, 0x0200_0088).as_deref(), Ok("MIG 2c.3g.40gb"));
    assert_eq!(name(2, 0x0300_008c).as_deref(), Ok("MIG 3g.40gb"));
    assert_eq!(name(2, 0x0300_0088), Err(25));

    let (mut items, mut count) = ([nvmlComputeInstancePlacement_t { start: 99, size: 99 }; 7], 0);
    // SAFETY: no instance has more placements than the array has room for.
    let code = unsafe {
        let items = items.as_mut_ptr();
        mig.lib.nvmlGpuInstanceGetComputeInstancePossiblePlacements(three, 0, items, &raw mut count)
    };
    assert_eq!((code, count, items[2].start, items[2].size), (0, 3, 2, 1));
}
