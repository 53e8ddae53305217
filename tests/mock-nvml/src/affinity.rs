//! Where a GPU sits: CPUs and NUMA nodes next to it, and the way through the machine to another GPU.

use std::ffi::{c_uint, c_ulong};

use nvml_wrapper_sys::bindings::{
    nvmlAffinityScope_t, nvmlDevice_t, nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_t, nvmlGpuTopologyLevel_t,
};
use topology::{AddressingMode, Gpu};

use crate::call::{Call, nvml};
use crate::code::{Answer, Code, require};
use crate::handle;
use crate::out::{list, put};

/// `nvmlGpuTopologyLevel_t`, nearest first.
const INTERNAL: c_uint = 0;
const SINGLE: c_uint = 10;
const MULTIPLE: c_uint = 20;
const HOSTBRIDGE: c_uint = 30;
const NODE: c_uint = 40;
const SYSTEM: c_uint = 50;

/// `NVML_AFFINITY_SCOPE_SOCKET`, the wider of the two scopes. The topology knows nodes only, and for an unknown scope
/// the real library falls back to the node, too.
const SCOPE_SOCKET: c_uint = 1;

/// `nvmlGpuP2PCapsIndex_t`.
const P2P_NVLINK: c_uint = 2;
const P2P_ATOMICS: c_uint = 3;
const P2P_PCI: c_uint = 4;

/// `nvmlGpuP2PStatus_t`.
const P2P_OK: c_uint = 0;
const P2P_NOT_SUPPORTED: c_uint = 5;

nvml! {
    fn nvmlDeviceGetCpuAffinity(gpu: Device, size: c_uint, set: *mut c_ulong) {
        fill(set, size, &near(gpu.call, gpu.facts))
    }

    fn nvmlDeviceGetCpuAffinityWithinScope(gpu: Device, size: c_uint, set: *mut c_ulong, scope: nvmlAffinityScope_t) {
        known(scope)?;
        fill(set, size, &near(gpu.call, gpu.facts))
    }

    fn nvmlDeviceGetMemoryAffinity(gpu: Device, size: c_uint, set: *mut c_ulong, scope: nvmlAffinityScope_t) {
        known(scope)?;
        fill(set, size, &[u32::try_from(gpu.facts.numa_node).map_err(|_| Code::NOT_SUPPORTED)?])
    }

    // The node that the GPU's own memory forms, not the one it is plugged into: the n-th coherent GPU owns the n-th
    // NUMA node without CPUs.
    fn nvmlDeviceGetNumaNodeId(gpu: Device, node: *mut c_uint) {
        let topology = &gpu.call.node.topology;
        require(gpu.board.addressing_mode == Some(AddressingMode::Ats))?;
        let before = topology.gpus[..gpu.index].iter();
        let nth = before.filter(|other| topology.board(other).addressing_mode == Some(AddressingMode::Ats)).count();
        let own = topology.host.numa_nodes.iter().filter(|node| node.cpus.is_empty()).nth(nth);
        put(node, own.ok_or(Code::NOT_SUPPORTED)?.id)
    }

    fn nvmlDeviceGetTopologyCommonAncestor(gpu: Device, other: nvmlDevice_t, level: *mut nvmlGpuTopologyLevel_t) {
        let other = gpu.call.peer(other)?;
        put(level, common_ancestor(gpu.facts, other.facts))
    }

    fn nvmlDeviceGetTopologyNearestGpus(
        gpu: Device, level: nvmlGpuTopologyLevel_t, count: *mut c_uint, devices: *mut nvmlDevice_t
    ) {
        if ![INTERNAL, SINGLE, MULTIPLE, HOSTBRIDGE, NODE, SYSTEM].contains(&level) {
            return Err(Code::INVALID_ARGUMENT);
        }
        let others = gpu.call.gpus().filter(|(index, _)| *index != gpu.index);
        let near = others.filter(|(_, other)| common_ancestor(gpu.facts, other) == level);
        list(count, devices, &near.map(|(index, _)| handle::of_gpu(index)).collect::<Vec<_>>())
    }

    fn nvmlSystemGetTopologyGpuSet(call: Call, cpu: c_uint, count: *mut c_uint, devices: *mut nvmlDevice_t) {
        if !cpus_of_host(call).contains(&cpu) {
            return Err(Code::INVALID_ARGUMENT);
        }
        let near = call.gpus().filter(|(_, gpu)| near(call, gpu).contains(&cpu));
        list(count, devices, &near.map(|(index, _)| handle::of_gpu(index)).collect::<Vec<_>>())
    }

    fn nvmlDeviceGetP2PStatus(
        gpu: Device, other: nvmlDevice_t, index: nvmlGpuP2PCapsIndex_t, status: *mut nvmlGpuP2PStatus_t
    ) {
        let other = gpu.call.peer(other)?;
        let possible = match index {
            P2P_NVLINK | P2P_ATOMICS => gpu.linked_with(&other),
            _ if index <= P2P_PCI => true,
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        put(status, if possible { P2P_OK } else { P2P_NOT_SUPPORTED })
    }
}

/// How far up the PCIe tree, and then the machine, two GPUs meet.
fn common_ancestor(a: &Gpu, b: &Gpu) -> c_uint {
    if a.bus_id == b.bus_id {
        return INTERNAL;
    }
    let shared = a.bridges.iter().zip(&b.bridges).take_while(|(a, b)| a == b).count();
    // Below the bridge they share, each may have the switch port it is plugged into.
    let ports = |gpu: &Gpu| gpu.bridges.len() - shared;
    if shared > 0 {
        return if ports(a) <= 1 && ports(b) <= 1 { SINGLE } else { MULTIPLE };
    }
    if a.pcie_root.is_some() && a.pcie_root == b.pcie_root {
        HOSTBRIDGE
    } else if a.numa_node >= 0 && a.numa_node == b.numa_node {
        NODE
    } else {
        SYSTEM
    }
}

/// The CPUs next to a GPU; all of them where the firmware does not say.
fn near(call: &Call, gpu: &Gpu) -> Vec<u32> {
    match call.node.topology.cpus_near(gpu) {
        "" => cpus_of_host(call),
        cpus => numbers(cpus),
    }
}

fn cpus_of_host(call: &Call) -> Vec<u32> {
    call.node.topology.host.numa_nodes.iter().flat_map(|node| numbers(&node.cpus)).collect()
}

/// The numbers of a kernel list such as `0-3,8`.
fn numbers(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        Some(low.trim().parse().ok()?..=high.trim().parse::<u32>().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

fn known(scope: c_uint) -> Answer {
    if scope > SCOPE_SOCKET { Err(Code::INVALID_ARGUMENT) } else { Ok(()) }
}

/// Sets one bit per number; numbers beyond the set are left out.
///
/// # Safety
/// `set` is null or valid for writing `size` words.
unsafe fn fill(set: *mut c_ulong, size: c_uint, numbers: &[u32]) -> Answer {
    if set.is_null() || size == 0 {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller keeps the contract; any bytes are valid words.
    let words = unsafe {
        set.write_bytes(0, size as usize);
        std::slice::from_raw_parts_mut(set, size as usize)
    };
    for number in numbers {
        if let Some(word) = words.get_mut((number / c_ulong::BITS) as usize) {
            *word |= 1 << (number % c_ulong::BITS);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_list_is_read() {
        assert_eq!(numbers("0-2,8"), [0, 1, 2, 8]);
        assert_eq!(numbers("5"), [5]);
        assert!(numbers("").is_empty());
    }
}
