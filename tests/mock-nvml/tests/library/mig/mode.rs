//! MIG mode.

use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;

use super::Mig;
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

#[test]
fn the_mode_stays_on_while_instances_live() {
    let mig = Mig::on();
    let off = || {
        let mut status = 999;
        // SAFETY: the pointer is to a local.
        assert_eq!(unsafe { mig.lib.nvmlDeviceSetMigMode(mig.gpu, 0, &raw mut status) }, 0);
        status
    };
    let instance = mig.create(19).expect("an instance");
    assert_eq!(off(), 19);
    assert!(mig.info(instance).is_ok());
    assert_eq!(mig.destroy(instance), 0);
    assert_eq!(off(), 0);
    assert_eq!(mig.create(19), Err(3));
}

#[test]
fn a_reset_brings_the_pending_mode_and_takes_the_instances() {
    let mut topology = one_gpu();
    topology.boards.values_mut().for_each(|board| board.architecture = AMPERE);
    topology.gpus[0].mig_enabled = true;
    let mig = Mig::of(topology);
    let instance = mig.create(19).expect("an instance");
    mig.machine.node.reset(0).expect("reset");
    assert_eq!(mig.info(instance).err(), Some(2));
    assert_eq!(mig.list(19), Ok(vec![]), "the mode is still on");

    let instance = mig.create(19).expect("an instance");
    let mut status = 0;
    // SAFETY: the pointer is to a local.
    assert_eq!(unsafe { mig.lib.nvmlDeviceSetMigMode(mig.gpu, 0, &raw mut status) }, 0);
    assert_eq!(status, 19);
    assert!(mig.info(instance).is_ok());
    mig.machine.node.reset(0).expect("reset");
    assert_eq!(mig.list(19), Err(3), "the mode is off");
    assert_eq!(mig.info(instance).err(), Some(2));
}

#[test]
fn fields_tell_whether_the_mode_changes_without_a_reset() {
    for (architecture, resetless) in [(AMPERE, 0), (9, 1)] {
        let mut topology = one_gpu();
        topology.boards.values_mut().for_each(|board| board.architecture = architecture);
        let machine = Machine::new(topology);
        let nvml = machine.nvml().expect("init");
        let gpu = nvml.device_by_index(0).expect("a device");
        let values = gpu.field_values_for(&[FieldId(184), FieldId(199)]).expect("fields");
        let values = values.into_iter().map(|sample| match sample.expect("a sample").value.expect("a value") {
            SampleValue::U32(value) => value,
            other => panic!("of another type: {other:?}"),
        });
        assert_eq!(values.collect::<Vec<_>>(), [resetless, 1]);
    }
}
