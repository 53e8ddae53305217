//! MIG mode.

use crate::machine::{Machine, code, one_gpu};

/// `NVML_DEVICE_ARCH_AMPERE`.
const AMPERE: u32 = 7;

#[test]
fn hopper_changes_mode_at_once() {
    let machine = Machine::one_gpu();
    let nvml = machine.nvml().expect("init");
    let gpu = nvml.device_by_index(0).expect("a device");
    assert_eq!(gpu.set_mig_mode(true).expect("set"), 0);
    let mode = gpu.mig_mode().expect("a mode");
    assert_eq!((mode.current, mode.pending), (1, 1));
}

#[test]
fn ampere_waits_for_a_reset() {
    let mut topology = one_gpu();
    topology.boards.values_mut().for_each(|board| board.architecture = AMPERE);
    let machine = Machine::new(topology);
    let nvml = machine.nvml().expect("init");
    let gpu = nvml.device_by_index(0).expect("a device");
    assert_eq!(gpu.set_mig_mode(true).expect("set"), 19, "the GPU is in use");
    let mode = gpu.mig_mode().expect("a mode");
    assert_eq!((mode.current, mode.pending), (0, 1));
    assert_eq!(gpu.set_mig_mode(false).expect("set"), 0);
    let mode = gpu.mig_mode().expect("a mode");
    assert_eq!((mode.current, mode.pending), (0, 0));
}

#[test]
fn a_board_without_mig_knows_no_mode() {
    let mut topology = one_gpu();
    topology.boards.values_mut().for_each(|board| board.mig_capable = false);
    let machine = Machine::new(topology);
    let nvml = machine.nvml().expect("init");
    let gpu = nvml.device_by_index(0).expect("a device");
    assert_eq!(code(gpu.mig_mode()), 3);
    assert_eq!(code(gpu.set_mig_mode(true)), 3);
}
