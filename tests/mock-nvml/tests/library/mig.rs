//! MIG: the mode, and instances from their creation to their end.

mod devices;
mod instances;
mod mode;
mod profiles;

use std::ptr;

use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlComputeInstance_t, nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t,
    nvmlReturn_t,
};
use topology::{GpuState, Topology};

use crate::machine::{Machine, gpus, handle};

/// A value, or the code of the refusal.
type Answer<T> = Result<T, nvmlReturn_t>;

/// A GPU with MIG mode on, through the raw bindings.
struct Mig {
    // Before the machine, so that the library is unloaded before its file is gone.
    lib: NvmlLib,
    gpu: nvmlDevice_t,
    machine: Machine,
}

// === impl Mig ===

impl Mig {
    /// The first GPU of two.
    fn on() -> Self {
        Self::on_table("h100-80gb-pcie")
    }

    /// The same with another board's profiles.
    fn on_table(table: &str) -> Self {
        let mut topology = gpus(2);
        topology.boards.values_mut().for_each(|board| board.mig = Some(table.to_owned()));
        topology.gpus.iter_mut().for_each(|gpu| gpu.mig_enabled = true);
        Self::of(topology)
    }

    fn of(topology: Topology) -> Self {
        let machine = Machine::new(topology);
        let lib = machine.raw();
        // SAFETY: takes no arguments.
        assert_eq!(unsafe { lib.nvmlInit_v2() }, 0);
        let gpu = handle(&lib, 0);
        Self { lib, gpu, machine }
    }

    fn create(&self, profile: u32) -> Answer<nvmlGpuInstance_t> {
        let mut instance = ptr::null_mut();
        // SAFETY: the pointer is to a local.
        answer(unsafe { self.lib.nvmlDeviceCreateGpuInstance(self.gpu, profile, &raw mut instance) }, instance)
    }

    fn create_at(&self, profile: u32, start: u32, size: u32) -> Answer<nvmlGpuInstance_t> {
        let mut instance = ptr::null_mut();
        let at = nvmlGpuInstancePlacement_t { start, size };
        let create = |out| {
            // SAFETY: the pointers are to locals.
            unsafe { self.lib.nvmlDeviceCreateGpuInstanceWithPlacement(self.gpu, profile, &raw const at, out) }
        };
        answer(create(&raw mut instance), instance)
    }

    fn destroy(&self, instance: nvmlGpuInstance_t) -> nvmlReturn_t {
        // SAFETY: a handle is a number to the mock.
        unsafe { self.lib.nvmlGpuInstanceDestroy(instance) }
    }

    fn info(&self, instance: nvmlGpuInstance_t) -> Answer<nvmlGpuInstanceInfo_t> {
        let mut info = nvmlGpuInstanceInfo_t {
            device: ptr::null_mut(),
            id: 0,
            profileId: 0,
            placement: nvmlGpuInstancePlacement_t { start: 0, size: 0 },
        };
        // SAFETY: the pointer is to a local.
        answer(unsafe { self.lib.nvmlGpuInstanceGetInfo(instance, &raw mut info) }, info)
    }

    fn by_id(&self, id: u32) -> Answer<nvmlGpuInstance_t> {
        let mut instance = ptr::null_mut();
        // SAFETY: the pointer is to a local.
        answer(unsafe { self.lib.nvmlDeviceGetGpuInstanceById(self.gpu, id, &raw mut instance) }, instance)
    }

    fn list(&self, profile: u32) -> Answer<Vec<nvmlGpuInstance_t>> {
        let (mut found, mut count) = ([ptr::null_mut(); 7], 0);
        let list = |items, count| {
            // SAFETY: no board has more instances than the array has room for.
            unsafe { self.lib.nvmlDeviceGetGpuInstances(self.gpu, profile, items, count) }
        };
        let code = list(found.as_mut_ptr(), &raw mut count);
        answer(code, found[..count as usize].to_vec())
    }

    fn capacity(&self, profile: u32) -> Answer<u32> {
        let mut count = 0;
        // SAFETY: the pointer is to a local.
        answer(unsafe { self.lib.nvmlDeviceGetGpuInstanceRemainingCapacity(self.gpu, profile, &raw mut count) }, count)
    }

    fn create_compute(&self, parent: nvmlGpuInstance_t, profile: u32) -> Answer<nvmlComputeInstance_t> {
        let mut instance = ptr::null_mut();
        // SAFETY: the pointer is to a local.
        answer(unsafe { self.lib.nvmlGpuInstanceCreateComputeInstance(parent, profile, &raw mut instance) }, instance)
    }

    fn destroy_compute(&self, instance: nvmlComputeInstance_t) -> nvmlReturn_t {
        // SAFETY: a handle is a number to the mock.
        unsafe { self.lib.nvmlComputeInstanceDestroy(instance) }
    }

    fn device(&self, index: u32) -> Answer<nvmlDevice_t> {
        let mut device = ptr::null_mut();
        // SAFETY: the pointer is to a local.
        answer(unsafe { self.lib.nvmlDeviceGetMigDeviceHandleByIndex(self.gpu, index, &raw mut device) }, device)
    }

    /// What the state file says of the GPU.
    fn state(&self) -> GpuState {
        self.machine.node.state().expect("the state file").gpus.remove(&0).unwrap_or_default()
    }
}

fn answer<T>(code: nvmlReturn_t, value: T) -> Answer<T> {
    if code == 0 { Ok(value) } else { Err(code) }
}
