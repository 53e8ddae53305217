//! CEL expressions against the devices of every machine.

use std::collections::BTreeSet;
use std::fs;

use fake_node::cel::{Device, Environment};
use fake_node::manifest;
use fake_node::node::DRIVER;
use serde_json::Value;

use crate::{Machine, examples};

/// The machines on which an expression selects a device; it must not fail on any.
fn machines_with(expression: &str) -> BTreeSet<&'static str> {
    let selector = Environment::new().unwrap().compile(expression).unwrap();
    let selects = |machine: &Machine| {
        let results = machine.devices().map(|device| {
            let result = selector.matches(&Device::new(DRIVER, device).unwrap());
            result.unwrap_or_else(|error| panic!("{}, {}: {expression}: {error}", machine.name, device["name"]))
        });
        // Not `any`: all are evaluated.
        results.filter(|selected| *selected).count() > 0
    };
    Machine::all().filter(selects).map(|machine| machine.name).collect()
}

/// Whether an expression selects a part of a GPU. No golden file has parts, so they are made up of the whole ones and the
/// profiles of their boards; it must not fail on any.
fn selects_a_part(expression: &str) -> bool {
    let selector = Environment::new().unwrap().compile(expression).unwrap();
    let mut selected = false;
    for machine in Machine::all() {
        for gpu in &machine.topology.gpus {
            let table = machine.topology.mig_table(machine.topology.board(gpu));
            for profile in table.into_iter().flat_map(|table| &table.profiles) {
                let mut part = machine.device(gpu).clone();
                part["attributes"]["type"]["string"] = "mig".into();
                part["attributes"]["profile"]["string"] = profile.name.as_str().into();
                part["capacity"]["memory"]["value"] = format!("{}Mi", profile.memory_mib).into();
                let matches = selector.matches(&Device::new(DRIVER, &part).unwrap());
                selected |= matches.unwrap_or_else(|error| panic!("{}, {expression}: {error}", machine.name));
            }
        }
    }
    selected
}

fn all_machines() -> BTreeSet<&'static str> {
    topology::Topology::names().collect()
}

/// The CEL expressions anywhere in an object.
fn expressions(object: &Value) -> Vec<&str> {
    match object {
        Value::Object(map) => {
            let own = map.get("expression").and_then(Value::as_str);
            own.into_iter().chain(map.values().flat_map(expressions)).collect()
        }
        Value::Array(list) => list.iter().flat_map(expressions).collect(),
        _ => Vec::new(),
    }
}

/// The YAML in a Markdown text.
fn yaml_blocks(markdown: &str) -> impl Iterator<Item = &str> {
    markdown.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or(rest))
}

#[test]
fn the_shipped_classes_select_whole_gpus_or_parts_of_them_and_nothing_else() {
    let classes = manifest::objects(manifest::DEVICE_CLASSES).unwrap();
    for class in &classes {
        let [expression] = expressions(class)[..] else { panic!("{class} has not one expression") };
        let expected = match class["metadata"]["name"].as_str().unwrap() {
            "gpu.nvidia.com" => all_machines(),
            "mig.nvidia.com" => BTreeSet::new(),
            other => panic!("what should the class {other} select?"),
        };
        assert_eq!(machines_with(expression), expected, "{expression}");
    }
    // No machine publishes parts of GPUs yet, so one is made up of each whole one.
    for class in &classes {
        let selector = Environment::new().unwrap().compile(expressions(class)[0]).unwrap();
        let selects_parts = class["metadata"]["name"] == "mig.nvidia.com";
        for machine in Machine::all() {
            for device in machine.devices() {
                let mut part = device.clone();
                part["attributes"]["type"]["string"] = "mig".into();
                let selected = selector.matches(&Device::new(DRIVER, &part).unwrap());
                assert_eq!(selected, Ok(selects_parts), "{}, {}", machine.name, class["metadata"]["name"]);
            }
        }
    }
    let environment = Environment::new().unwrap();
    let gpu = classes.iter().find(|class| class["metadata"]["name"] == "gpu.nvidia.com").unwrap();
    let gpu = environment.compile(expressions(gpu)[0]).unwrap();
    for machine in Machine::all() {
        for device in machine.devices() {
            assert_eq!(gpu.matches(&Device::new(DRIVER, device).unwrap()), Ok(true), "{}", machine.name);
        }
    }
}

#[test]
fn what_the_examples_and_their_texts_say_selects_something_and_never_fails() {
    let mut seen = 0;
    for example in &examples::ALL {
        let text = fs::read_to_string(examples::directory().join(example.name).join("README.md")).unwrap();
        let manifest = example.manifest();
        for yaml in yaml_blocks(&text).chain([manifest.as_str()]) {
            for object in manifest::objects(yaml).unwrap() {
                for expression in expressions(&object) {
                    let selects = !machines_with(expression).is_empty() | selects_a_part(expression);
                    assert!(selects, "{}: {expression}", example.name);
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 0, "no expression was found, so nothing was tried");
}

/// Expressions of NVIDIA's documentation, demonstrations and tests, with their own domain.
#[test]
fn what_people_wrote_for_nvidias_driver_selects_the_same_machines() {
    let a100 = ["one-gpu", "dgx-a100-40gb", "a100-and-t4", "hgx-a100-4gpu", "a100-pcie-bridged-4gpu"];
    let hopper = ["dgx-h100", "hgx-h200", "ec2-p5", "h100-pcie-bridged-8gpu"];
    let above_100_gib = ["hgx-h200", "gb200-tray", "hgx-b200-one-gpu-out-of-nvlink"];
    let since_580 = [
        "one-gpu",
        "dgx-h100",
        "ec2-p5",
        "gb200-tray",
        "l40s-8gpu",
        "a100-pcie-bridged-4gpu",
        "hgx-b200-one-gpu-out-of-nvlink",
    ];
    let cases: [(&str, &[&str]); 8] = [
        ("device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*a100.*$')", &a100),
        ("device.attributes['gpu.nvidia.com'].architecture == 'Hopper'", &hopper),
        ("device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('100Gi'))", &above_100_gib),
        ("device.attributes['gpu.nvidia.com'].driverVersion.compareTo(semver('580.0.0')) >= 0", &since_580),
        ("device.attributes['gpu.nvidia.com'].cudaComputeCapability.isLessThan(semver('8.0.0'))", &["a100-and-t4"]),
        ("device.attributes['gpu.nvidia.com'].addressingMode == 'ATS'", &["gb200-tray"]),
        ("device.attributes['gpu.nvidia.com'].brand == 'Tesla'", &[]),
        // Only parts of GPUs have a profile, and this aborts nothing.
        ("device.attributes['gpu.nvidia.com'].profile == '1g.5gb'", &[]),
    ];
    for (expression, expected) in cases {
        assert_eq!(machines_with(expression), expected.iter().copied().collect(), "{expression}");
    }
}
