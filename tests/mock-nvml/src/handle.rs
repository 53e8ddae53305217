//! Opaque handles: numbers that are never dereferenced. The handle of a GPU is the same for as long as the library is
//! loaded; that of an instance dies with the instance, and no later instance has it.

use std::ptr;

use nvml_wrapper_sys::bindings::{nvmlComputeInstance_t, nvmlDevice_t, nvmlGpuInstance_t};

use crate::node::Node;

/// Tell handles of each kind from the others and from stray pointers: no user-space address on a 64-bit machine looks
/// like this.
const GPU: usize = 0x6e76_6d6c;
const MIG_DEVICE: usize = 0x6e76_6d64;
const GPU_INSTANCE: usize = 0x6e76_6769;
const COMPUTE_INSTANCE: usize = 0x6e76_6369;

/// Bits for the number of an instance among all that were ever created on its GPU; the GPU is above them.
const BIRTH_BITS: u32 = 20;

/// What a handle says of an instance or a MIG device, which need not exist any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Instance {
    /// GPU by its index in the topology.
    pub(crate) gpu: usize,
    /// The number of the instance; a MIG device has that of its compute instance.
    pub(crate) birth: u32,
}

// === impl Instance ===

impl Instance {
    pub(crate) fn of_gpu_instance(handle: nvmlGpuInstance_t) -> Option<Self> {
        Self::read(GPU_INSTANCE, handle.addr())
    }

    pub(crate) fn of_compute_instance(handle: nvmlComputeInstance_t) -> Option<Self> {
        Self::read(COMPUTE_INSTANCE, handle.addr())
    }

    pub(crate) fn of_mig_device(handle: nvmlDevice_t) -> Option<Self> {
        Self::read(MIG_DEVICE, handle.addr())
    }

    pub(crate) fn gpu_instance(self) -> nvmlGpuInstance_t {
        ptr::without_provenance_mut(self.write(GPU_INSTANCE))
    }

    pub(crate) fn compute_instance(self) -> nvmlComputeInstance_t {
        ptr::without_provenance_mut(self.write(COMPUTE_INSTANCE))
    }

    pub(crate) fn mig_device(self) -> nvmlDevice_t {
        ptr::without_provenance_mut(self.write(MIG_DEVICE))
    }

    fn write(self, kind: usize) -> usize {
        kind << u32::BITS | self.gpu << BIRTH_BITS | self.birth as usize
    }

    fn read(kind: usize, handle: usize) -> Option<Self> {
        let low = handle & u32::MAX as usize;
        let birth = u32::try_from(low & ((1 << BIRTH_BITS) - 1)).ok()?;
        (handle >> u32::BITS == kind).then_some(Self { gpu: low >> BIRTH_BITS, birth })
    }
}

/// The handle of a GPU, by its index in the topology.
pub(crate) fn of_gpu(index: usize) -> nvmlDevice_t {
    ptr::without_provenance_mut((GPU << u32::BITS) + index + 1)
}

/// The GPU of a handle, by its index in the topology; `None` for anything that is no handle of an enumerated GPU.
pub(crate) fn gpu(node: &Node, device: nvmlDevice_t) -> Option<usize> {
    let index = device.addr().checked_sub((GPU << u32::BITS) + 1)?;
    node.visible.contains(&index).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_says_what_it_is_of_and_is_of_no_other_kind() {
        let instance = Instance { gpu: 15, birth: 70_000 };
        assert_eq!(Instance::of_gpu_instance(instance.gpu_instance()), Some(instance));
        assert_eq!(Instance::of_compute_instance(instance.compute_instance()), Some(instance));
        assert_eq!(Instance::of_mig_device(instance.mig_device()), Some(instance));
        assert_eq!(Instance::of_mig_device(instance.gpu_instance().cast()), None);
        assert_eq!(Instance::of_gpu_instance(ptr::null_mut()), None);
        assert_eq!(Instance::of_mig_device(of_gpu(0)), None);
    }
}
