//! Opaque device handles: numbers that are never dereferenced, the same for a GPU for as long as the library is loaded.

use std::ptr;

use nvml_wrapper_sys::bindings::nvmlDevice_t;

use crate::node::Node;

/// Tells a GPU handle from a stray pointer: no user-space address on a 64-bit machine looks like this.
const GPU: usize = 0x6e76_6d6c_0000_0000;

/// The handle of a GPU, by its index in the topology.
pub(crate) fn of_gpu(index: usize) -> nvmlDevice_t {
    ptr::without_provenance_mut(GPU + index + 1)
}

/// The GPU of a handle, by its index in the topology; `None` for anything that is no handle of an enumerated GPU.
pub(crate) fn gpu(node: &Node, device: nvmlDevice_t) -> Option<usize> {
    let index = device.addr().checked_sub(GPU + 1)?;
    node.visible.contains(&index).then_some(index)
}
