//! NVLinks between GPUs, through switches, and out of order.

use nvml_wrapper_sys::bindings::{NvmlLib, nvmlPciInfo_t};
use topology::{Fabric, LinkEnd, LinkGroup, LinkState, Topology};

use crate::machine::{Machine, gpus, handle, one_gpu};

/// `NVML_P2P_CAPS_INDEX_NVLINK`, with `NVML_P2P_STATUS_OK` and `NVML_P2P_STATUS_NOT_SUPPORTED`.
const NVLINK: u32 = 2;
const OK: u32 = 0;
const NOT_SUPPORTED: u32 = 5;

#[test]
fn a_bridge_connects_a_pair_and_nobody_else() {
    let mut topology = gpus(4);
    for (index, peer) in [(0, 3), (3, 0), (1, 2), (2, 1)] {
        link(&mut topology, index, 12, LinkEnd::Gpu(peer));
    }
    let machine = Machine::new(topology);
    let lib = initialised(&machine);
    assert_eq!(p2p(&lib, 0, 3), OK);
    assert_eq!(p2p(&lib, 2, 1), OK);
    assert_eq!(p2p(&lib, 0, 1), NOT_SUPPORTED);
    assert_eq!(remote_bus(&lib, 0, 11), machine.topology.gpus[3].bus_id.to_uppercase());
    assert_eq!(remote_type(&lib, 0, 0), 0);
}

#[test]
fn a_gpu_whose_links_are_down_falls_out_of_the_switched_domain() {
    let mut topology = gpus(3);
    for index in 0..3 {
        link(&mut topology, index, 2, LinkEnd::Fabric);
    }
    let machine = Machine::new(topology);
    let lib = initialised(&machine);
    assert_eq!(p2p(&lib, 0, 1), OK);
    assert_eq!(remote_type(&lib, 0, 0), 2);
    assert_eq!(remote_bus(&lib, 0, 0), "FFFF:FF:FF.0");

    machine
        .update(|state| state.gpus.entry(1).or_default().links = [(0, LinkState::Down), (1, LinkState::Down)].into());
    assert_eq!(p2p(&lib, 0, 1), NOT_SUPPORTED);
    assert_eq!(p2p(&lib, 0, 2), OK);
    assert_eq!((state(&lib, 1, 0), state(&lib, 0, 0)), (Ok(0), Ok(1)));
}

#[test]
fn a_gpu_that_failed_registration_with_the_fabric_is_out_of_it_though_its_links_are_up() {
    let mut topology = gpus(3);
    let completed =
        Fabric { state: 3, status: 0, cluster_uuid: "00000000-0000-0000-0000-000000000000".into(), clique_id: 0 };
    for index in 0..3 {
        link(&mut topology, index, 2, LinkEnd::Fabric);
        topology.gpus[index].fabric = Some(completed.clone());
    }
    let machine = Machine::new(topology);
    let lib = initialised(&machine);
    assert_eq!(p2p(&lib, 0, 1), OK);

    machine.update(|state| {
        state.gpus.entry(1).or_default().fabric = Some(Fabric { status: 999, ..completed });
    });
    assert_eq!(p2p(&lib, 0, 1), NOT_SUPPORTED);
    assert_eq!(p2p(&lib, 0, 2), OK);
    assert_eq!(state(&lib, 1, 0), Ok(1));
}

#[test]
fn a_link_number_no_gpu_can_have_is_invalid_and_one_this_gpu_lacks_is_not_supported() {
    let mut topology = gpus(2);
    link(&mut topology, 0, 12, LinkEnd::Gpu(1));
    let machine = Machine::new(topology);
    let lib = initialised(&machine);
    assert_eq!(state(&lib, 0, 11), Ok(1));
    assert_eq!(state(&lib, 0, 12), Err(3));
    assert_eq!(state(&lib, 0, 35), Err(3));
    assert_eq!(state(&lib, 0, 36), Err(2));
    assert_eq!(state(&lib, 1, 0), Err(3), "a GPU without links");
}

#[test]
fn the_version_is_an_enumerator_of_the_header_not_the_generation() {
    for (generation, enumerator) in [(2, 2), (3, 4), (4, 6), (5, 7)] {
        let mut topology = one_gpu();
        link(&mut topology, 0, 1, LinkEnd::Fabric);
        topology.gpus[0].nvlink_version = Some(generation);
        let machine = Machine::new(topology);
        let lib = initialised(&machine);
        let mut version = 0;
        // SAFETY: the pointer is to a local.
        assert_eq!(unsafe { lib.nvmlDeviceGetNvLinkVersion(handle(&lib, 0), 0, &raw mut version) }, 0);
        assert_eq!(version, enumerator, "generation {generation}");
    }
}

fn link(topology: &mut Topology, gpu: usize, count: u32, to: LinkEnd) {
    topology.gpus[gpu].nvlink_version = Some(4);
    topology.gpus[gpu].nvlinks = vec![LinkGroup { count, to, active: true }];
}

fn initialised(machine: &Machine) -> NvmlLib {
    let lib = machine.raw();
    // SAFETY: the function takes no arguments.
    assert_eq!(unsafe { lib.nvmlInit_v2() }, 0);
    lib
}

fn state(lib: &NvmlLib, gpu: u32, link: u32) -> Result<u32, u32> {
    let mut active = 0;
    // SAFETY: the pointer is to a local.
    match unsafe { lib.nvmlDeviceGetNvLinkState(handle(lib, gpu), link, &raw mut active) } {
        0 => Ok(active),
        code => Err(code),
    }
}

fn p2p(lib: &NvmlLib, a: u32, b: u32) -> u32 {
    let mut status = u32::MAX;
    // SAFETY: the pointer is to a local.
    assert_eq!(unsafe { lib.nvmlDeviceGetP2PStatus(handle(lib, a), handle(lib, b), NVLINK, &raw mut status) }, 0);
    status
}

fn remote_type(lib: &NvmlLib, gpu: u32, link: u32) -> u32 {
    let mut kind = u32::MAX;
    // SAFETY: the pointer is to a local.
    assert_eq!(unsafe { lib.nvmlDeviceGetNvLinkRemoteDeviceType(handle(lib, gpu), link, &raw mut kind) }, 0);
    kind
}

fn remote_bus(lib: &NvmlLib, gpu: u32, link: u32) -> String {
    // SAFETY: all-zero is a value of this struct of integers, and the pointer is to a local.
    let pci = unsafe {
        let mut pci: nvmlPciInfo_t = std::mem::zeroed();
        assert_eq!(lib.nvmlDeviceGetNvLinkRemotePciInfo_v2(handle(lib, gpu), link, &raw mut pci), 0);
        pci
    };
    let bytes = pci.busIdLegacy.map(i8::cast_unsigned);
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
}
