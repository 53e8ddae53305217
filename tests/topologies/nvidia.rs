//! What is published is what NVIDIA's driver publishes: names, types and values.
//!
//! The tables are of that driver, kubernetes-sigs/dra-driver-nvidia-gpu v0.5 (`deviceinfo.go`, `device.go`), for whole
//! GPUs. Values are computed from the topology file.

use std::collections::BTreeMap;

use fake_node::cel::Quantity;
use fake_node::node::{DRIVER, NODE};
use serde_json::{Value, json};
use topology::{AddressingMode, Gpu, Topology};

use crate::Machine;

/// NVIDIA's attributes with their types. Where that driver omits a string on a whole GPU, it may be there.
const NVIDIAS: [(&str, &str); 14] = [
    ("type", "string"),
    ("uuid", "string"),
    ("parentUUID", "string"),
    ("profile", "string"),
    ("productName", "string"),
    ("brand", "string"),
    ("architecture", "string"),
    ("cudaComputeCapability", "version"),
    ("driverVersion", "version"),
    ("cudaDriverVersion", "version"),
    ("addressingMode", "string"),
    ("resource.kubernetes.io/pciBusID", "string"),
    ("resource.kubernetes.io/pcieRoot", "string"),
    ("resource.kubernetes.io/numaNode", "int"),
];

/// What this driver adds. A name that NVIDIA's driver gives another meaning or type must not come in here.
const ADDED: [(&str, &str); 9] = [
    ("model", "string"),
    ("migCapable", "bool"),
    ("migEnabled", "bool"),
    ("nvlinkVersion", "int"),
    ("nvlinkLinks", "int"),
    ("nvlinkDomain", "string"),
    ("nvlinkClique", "string"),
    ("nvlinkPair", "string"),
    ("iommuGroup", "int"),
];

/// Which of these a device may lack: what the machine does not say and has no neutral value. CEL that asks for any
/// other never aborts.
const MAY_BE_MISSING: [&str; 3] = ["resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode", "iommuGroup"];

/// The short names of the boards, which a selector asks for.
const MODELS: [(&str, &str); 9] = [
    ("NVIDIA A100-SXM4-40GB", "A100"),
    ("NVIDIA A100 80GB PCIe", "A100"),
    ("NVIDIA H100 80GB HBM3", "H100"),
    ("NVIDIA H100 PCIe", "H100"),
    ("NVIDIA H200", "H200"),
    ("NVIDIA B200", "B200"),
    ("NVIDIA GB200", "GB200"),
    ("NVIDIA L40S", "L40S"),
    ("Tesla T4", "T4"),
];

/// All that NVIDIA's driver would publish of a GPU.
fn expected(machine: &Topology, gpu: &Gpu) -> BTreeMap<&'static str, Value> {
    let string = |text: &str| json!({"string": text});
    let version = |text: &str| json!({"version": semantic(text)});
    let board = machine.board(gpu);
    let [major, minor] = board.cuda_compute_capability;
    let cuda = machine.system.cuda_version;
    let mut attributes = BTreeMap::from([
        ("type", string("gpu")),
        ("uuid", string(&gpu.uuid)),
        ("productName", string(&board.product_name)),
        ("brand", string(brand(board.brand))),
        ("architecture", string(architecture(board.architecture))),
        ("cudaComputeCapability", version(&format!("{major}.{minor}"))),
        ("driverVersion", version(&machine.system.driver_version)),
        ("cudaDriverVersion", version(&format!("{}.{}", cuda / 1000, cuda % 1000 / 10))),
        ("resource.kubernetes.io/pciBusID", string(&gpu.bus_id)),
    ]);
    if let Some(mode) = board.addressing_mode {
        attributes.insert("addressingMode", string(addressing_mode(mode)));
    }
    if let Some(root) = &gpu.pcie_root {
        attributes.insert("resource.kubernetes.io/pcieRoot", string(root));
    }
    if gpu.numa_node >= 0 {
        attributes.insert("resource.kubernetes.io/numaNode", json!({"int": gpu.numa_node}));
    }
    attributes
}

/// Three numbers without leading zeros.
fn semantic(text: &str) -> String {
    let numbers = text.split('.').map(|part| part.parse::<u64>().unwrap());
    let numbers: Vec<_> = numbers.chain([0, 0]).take(3).map(|number| number.to_string()).collect();
    numbers.join(".")
}

fn brand(nvml: u32) -> &'static str {
    match nvml {
        2 => "Tesla",
        14 => "Nvidia",
        other => panic!("which brand is {other}?"),
    }
}

fn architecture(nvml: u32) -> &'static str {
    match nvml {
        6 => "Turing",
        7 => "Ampere",
        8 => "Ada Lovelace",
        9 => "Hopper",
        10 => "Blackwell",
        other => panic!("which architecture is {other}?"),
    }
}

fn addressing_mode(mode: AddressingMode) -> &'static str {
    match mode {
        AddressingMode::None => "None",
        AddressingMode::Hmm => "HMM",
        AddressingMode::Ats => "ATS",
    }
}

#[test]
fn driver_pool_and_devices_have_the_names_that_nvidias_driver_gives_them() {
    for machine in Machine::all() {
        for slice in &machine.slices {
            let spec = &slice["spec"];
            assert_eq!((&spec["driver"], &spec["pool"]["name"]), (&json!(DRIVER), &json!(NODE)), "{}", machine.name);
        }
        assert_eq!(machine.devices().count(), machine.topology.gpus.len(), "{}", machine.name);
        for gpu in &machine.topology.gpus {
            assert_eq!(machine.device(gpu)["name"], format!("gpu-{}", gpu.minor), "{}", machine.name);
        }
    }
}

#[test]
fn attributes_have_the_names_types_and_values_that_nvidias_driver_gives_them() {
    for machine in Machine::all() {
        for gpu in &machine.topology.gpus {
            let published = &machine.device(gpu)["attributes"];
            for (name, value) in expected(&machine.topology, gpu) {
                assert!(NVIDIAS.iter().any(|(known, _)| *known == name), "{name} is not in the table");
                assert_eq!(published[name], value, "{}: {name} of {}", machine.name, gpu.uuid);
            }
        }
    }
}

#[test]
fn every_device_has_every_attribute_with_one_type() {
    for machine in Machine::all() {
        for device in machine.devices() {
            let name = format!("{}: {}", machine.name, device["name"]);
            let published = device["attributes"].as_object().unwrap();
            for (attribute, kind) in NVIDIAS.into_iter().chain(ADDED) {
                match published.get(attribute) {
                    Some(value) => assert_eq!(value.as_object().unwrap().keys().collect::<Vec<_>>(), [kind], "{name}"),
                    None => assert!(MAY_BE_MISSING.contains(&attribute), "{name} has no {attribute}"),
                }
            }
            let known = |attribute: &str| NVIDIAS.iter().chain(&ADDED).any(|(known, _)| *known == attribute);
            let unknown: Vec<_> = published.keys().filter(|attribute| !known(attribute)).collect();
            assert!(unknown.is_empty(), "{name}: {unknown:?} are in no table");
        }
    }
}

#[test]
fn strings_that_nvidias_driver_omits_on_a_whole_gpu_are_neutral() {
    for machine in Machine::all() {
        for gpu in &machine.topology.gpus {
            let published = &machine.device(gpu)["attributes"];
            assert_eq!(published["parentUUID"]["string"], *gpu.uuid, "a whole GPU is its own parent");
            assert_eq!(published["profile"]["string"], "");
            if machine.topology.board(gpu).addressing_mode.is_none() {
                assert_eq!(published["addressingMode"]["string"], "");
            }
        }
    }
}

#[test]
fn the_only_capacity_is_the_whole_memory() {
    for machine in Machine::all() {
        for gpu in &machine.topology.gpus {
            let capacity = machine.device(gpu)["capacity"].as_object().unwrap();
            assert_eq!(capacity.keys().collect::<Vec<_>>(), ["memory"], "{}", machine.name);
            let quantity = |text: &str| text.parse::<Quantity>().unwrap();
            let expected = quantity(&format!("{}Mi", machine.topology.board(gpu).memory_mib));
            assert_eq!(quantity(capacity["memory"]["value"].as_str().unwrap()), expected, "{}", machine.name);
        }
    }
}

#[test]
fn model_mig_and_iommu_group_are_those_of_the_machine() {
    for machine in Machine::all() {
        for gpu in &machine.topology.gpus {
            let published = &machine.device(gpu)["attributes"];
            let board = machine.topology.board(gpu);
            let model = MODELS.iter().find(|(product, _)| *product == board.product_name).map(|(_, model)| *model);
            assert_eq!(published["model"]["string"].as_str(), model, "{}: {}", machine.name, board.product_name);
            assert_eq!(published["migCapable"]["bool"], board.mig_capable, "{}", machine.name);
            assert_eq!(published["migEnabled"]["bool"], gpu.mig_enabled, "{}", machine.name);
            assert_eq!(published["iommuGroup"]["int"].as_u64(), gpu.iommu_group.map(u64::from), "{}", machine.name);
        }
    }
}
