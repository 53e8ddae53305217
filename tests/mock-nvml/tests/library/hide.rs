//! Libraries without some symbols.

use std::fs;

use mock_nvml::hide::{Error, hide_symbols};

use crate::machine::Machine;

#[test]
fn a_hidden_symbol_is_not_found_and_all_others_are() {
    let machine = Machine::one_gpu();
    let mut library = fs::read(machine.library()).expect("the library");
    hide_symbols(&mut library, &["nvmlDeviceGetAddressingMode", "nvmlDeviceGetCount"]).expect("hidden");
    fs::write(machine.library(), library).expect("written");
    let lib = machine.raw();
    assert!(lib.nvmlDeviceGetAddressingMode.is_err());
    assert!(lib.nvmlDeviceGetCount_v2.is_ok(), "only the unversioned name was hidden");
    assert!(lib.nvmlDeviceGetName.is_ok());
    drop(lib);
    machine.nvml().expect("init").device_by_index(0).and_then(|gpu| gpu.name()).expect("a name");
}

#[test]
fn a_symbol_that_is_not_there_changes_nothing() {
    let machine = Machine::one_gpu();
    let library = fs::read(machine.library()).expect("the library");
    let mut changed = library.clone();
    let refused = hide_symbols(&mut changed, &["nvmlDeviceGetName", "nvmlDeviceGetHealth"]);
    assert_eq!(refused, Err(Error::NoSuchSymbol("nvmlDeviceGetHealth".into())));
    assert!(changed == library);
}
