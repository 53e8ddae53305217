//! MIG devices, as programs find and use them.

use std::ffi::{CStr, c_char};
use std::mem::zeroed;
use std::ptr;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlDeviceAttributes_t, nvmlMemory_t, nvmlProcessInfo_t, nvmlReturn_t};

use super::{Answer, Mig, answer};
use crate::machine::code;

impl Mig {
    fn text(
        &self,
        device: nvmlDevice_t,
        call: impl FnOnce(&Self, nvmlDevice_t, *mut c_char, u32) -> nvmlReturn_t,
    ) -> Answer<String> {
        let mut buffer = [0; 96];
        let code = call(self, device, buffer.as_mut_ptr(), 96);
        // SAFETY: the buffer ends with a zero, whatever the call wrote.
        let text = unsafe { CStr::from_ptr(buffer.as_ptr()) };
        answer(code, text.to_str().expect("UTF-8").to_owned())
    }

    fn uuid(&self, device: nvmlDevice_t) -> Answer<String> {
        // SAFETY: the buffer is as long as it says.
        self.text(device, |mig, device, text, length| unsafe { mig.lib.nvmlDeviceGetUUID(device, text, length) })
    }

    fn name(&self, device: nvmlDevice_t) -> Answer<String> {
        // SAFETY: the buffer is as long as it says.
        self.text(device, |mig, device, text, length| unsafe { mig.lib.nvmlDeviceGetName(device, text, length) })
    }
}

#[test]
fn a_mig_device_knows_where_it_belongs_and_what_it_has() {
    let mig = Mig::on();
    let parent = mig.create_at(9, 4, 4).expect("an instance");
    mig.create_compute(parent, 1).expect("a compute instance");
    let device = mig.device(0).expect("a MIG device");
    let (mut is, mut gpu_instance, mut compute_instance, mut gpu) = (9, 9, 9, ptr::null_mut());
    // SAFETY: all members are numbers.
    let (mut attributes, mut memory): (nvmlDeviceAttributes_t, nvmlMemory_t) = unsafe { (zeroed(), zeroed()) };
    let lib = &mig.lib;
    // SAFETY: the pointers are to locals.
    let codes = unsafe {
        [
            lib.nvmlDeviceIsMigDeviceHandle(device, &raw mut is),
            lib.nvmlDeviceGetGpuInstanceId(device, &raw mut gpu_instance),
            lib.nvmlDeviceGetComputeInstanceId(device, &raw mut compute_instance),
            lib.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device, &raw mut gpu),
            lib.nvmlDeviceGetAttributes_v2(device, &raw mut attributes),
            lib.nvmlDeviceGetMemoryInfo(device, &raw mut memory),
            lib.nvmlDeviceGetMinorNumber(device, &raw mut is),
            lib.nvmlDeviceGetAttributes_v2(mig.gpu, &raw mut attributes),
        ]
    };
    assert_eq!(codes, [0, 0, 0, 0, 0, 0, 3, 3]);
    assert_eq!((is, gpu_instance, compute_instance, gpu), (1, 2, 0, mig.gpu));
    assert_eq!((attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount), (3, 2));
    assert_eq!((attributes.multiprocessorCount, attributes.memorySizeMB), (28, 40_448));
    assert_eq!(memory.total, 40_448 << 20);
    assert_eq!(mig.name(device).as_deref(), Ok("NVIDIA H100 PCIe MIG 2c.3g.40gb"));
}

#[test]
fn indices_have_holes_where_devices_were_destroyed() {
    let mig = Mig::on();
    let made: Vec<_> = (0..3)
        .map(|_| {
            let parent = mig.create(19).expect("an instance");
            (parent, mig.create_compute(parent, 0).expect("a compute instance"))
        })
        .collect();
    assert_eq!((mig.destroy_compute(made[1].1), mig.destroy(made[1].0)), (0, 0));
    let found = [0, 1, 2, 3, 7].map(|index| mig.device(index).map(drop));
    assert_eq!(found, [Ok(()), Err(6), Ok(()), Err(6), Err(2)]);

    let (mut on, mut off) = (9, 9);
    // SAFETY: the pointers are to locals.
    let max = |count: *mut u32| unsafe { mig.lib.nvmlDeviceGetMaxMigDeviceCount(mig.gpu, count) };
    assert_eq!(max(&raw mut on), 0);
    mig.machine.update(|state| state.gpus.entry(0).or_default().mig_enabled = Some(false));
    assert_eq!(max(&raw mut off), 0);
    assert_eq!((on, off), (7, 0));
}

#[test]
fn a_device_created_anew_has_another_uuid_and_another_handle() {
    let mig = Mig::on();
    let parent = mig.create(0).expect("an instance");
    let first = mig.create_compute(parent, 4).expect("a compute instance");
    let (old, old_uuid) = (mig.device(0).expect("a MIG device"), mig.uuid(mig.device(0).expect("a MIG device")));
    assert_eq!(mig.destroy_compute(first), 0);
    mig.create_compute(parent, 4).expect("a compute instance");
    let new = mig.device(0).expect("a MIG device");
    assert_ne!(old, new);
    assert_ne!(old_uuid, mig.uuid(new));
    assert_eq!(mig.uuid(old), Err(2));
    let mut is = 9;
    // SAFETY: the pointer is to a local.
    assert_eq!(unsafe { mig.lib.nvmlDeviceIsMigDeviceHandle(old, &raw mut is) }, 2);
}

#[test]
fn a_device_is_found_by_its_uuid_in_every_process() {
    let mig = Mig::on();
    let created = mig.machine.node.create_instance(1, 19, Some(3)).expect("an instance");
    let nvml = mig.machine.nvml().expect("init");
    let device = nvml.device_by_uuid(created.uuid.as_str()).expect("the MIG device");
    assert!(device.mig_is_mig_device_handle().expect("an answer"));
    let parent = device.mig_parent_device().expect("its GPU");
    assert_eq!(parent.index().expect("an index"), 1);
    assert_eq!(parent.mig_device_by_index(0).and_then(|mig| mig.uuid()).expect("a uuid"), created.uuid);
    let state = mig.machine.node.state().expect("the state file");
    assert_eq!(state.gpus[&1].mig.gpu_instances[0].compute_instances[0].uuid, created.uuid);

    mig.machine.node.destroy_instance(1, created.gpu_instance).expect("destroyed");
    assert_eq!(code(device.name()), 2);
    assert!(nvml.device_by_uuid(created.uuid.as_str()).is_err());
    assert_eq!(mig.state().mig.births, 0, "the other GPU is another one");
}

#[test]
fn a_device_with_processes_is_in_use_and_says_by_which() {
    let mig = Mig::on();
    let node = &mig.machine.node;
    let [busy, idle] = [0, 1].map(|_| node.create_instance(0, 19, None).expect("an instance"));
    node.occupy(0, busy.gpu_instance, 0, &[42, 43]).expect("occupied");
    let running = |device, room: u32| {
        // SAFETY: all members are numbers.
        let mut infos: [nvmlProcessInfo_t; 4] = unsafe { zeroed() };
        let mut count = room;
        // SAFETY: the array has room for as many as any call says.
        let code =
            unsafe { mig.lib.nvmlDeviceGetComputeRunningProcesses_v3(device, &raw mut count, infos.as_mut_ptr()) };
        (code, count, infos.map(|info| (info.pid, info.gpuInstanceId, info.computeInstanceId)))
    };
    let [first, second] = [0, 1].map(|index| mig.device(index).expect("a MIG device"));
    let gi = busy.gpu_instance;
    assert_eq!(running(first, 4), (0, 2, [(42, gi, 0), (43, gi, 0), (0, 0, 0), (0, 0, 0)]));
    assert_eq!(running(mig.gpu, 4), running(first, 4));
    assert_eq!(running(second, 4).1, 0);
    assert_eq!((running(first, 0).0, running(first, 0).1), (7, 2));

    assert!(node.destroy_instance(0, gi).is_err());
    node.destroy_instance(0, idle.gpu_instance).expect("destroyed");
    node.occupy(0, gi, 0, &[]).expect("let go");
    node.destroy_instance(0, gi).expect("destroyed");
}
