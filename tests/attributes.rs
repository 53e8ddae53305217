//! `docs/attributes.md` is what the code says, and what it tells people to write works on the machines that are known.
//!
//! After a change of the reference: `UPDATE_GOLDEN=1 cargo test --test attributes`, then read what git says has changed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use fake_node::cel::{Device, Environment};
use fake_node::host::HostBuilder;
use gpu_dra_plugin::cluster::slices::{Owner, desired};
use gpu_dra_plugin::device::attribute::{ALL, Attribute, Kind, Origin};
use gpu_dra_plugin::device::mig::{ComputeInstance, GpuInstance, Profile};
use gpu_dra_plugin::device::{MigUuid, Node, Partitioning};
use gpu_dra_plugin::host::Roots;
use gpu_dra_plugin::inventory::{NameMap, discover};
use gpu_dra_plugin::nvml::Session;
use gpu_dra_plugin::slice::pool;
use topology::Topology;

#[path = "partitions/boards.rs"]
mod boards;

const DRIVER: &str = "gpu.nvidia.com";

/// Where the part begins that is made from the code.
const MARK: &str = "cargo test --test attributes -->\n";

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/attributes.md")
}

fn page() -> String {
    fs::read_to_string(path()).unwrap()
}

/// The reference, as the page has it.
fn reference() -> String {
    let mut text = String::new();
    let parts = [
        (Origin::Nvidia, "As NVIDIA's driver has them", "Same names, types and spelling."),
        (Origin::Ours, "What this driver adds", "NVIDIA's driver has none of these."),
    ];
    for (origin, title, about) in parts {
        write!(text, "\n## {title}\n\n{about}\n").unwrap();
        for attribute in ALL.iter().filter(|attribute| attribute.origin == origin) {
            section(attribute, &mut text);
        }
    }
    text
}

fn section(attribute: &Attribute, text: &mut String) {
    let Attribute { name, kind, about, omitted, example, .. } = attribute;
    let kind = match kind {
        Kind::Int => "int",
        Kind::Bool => "bool",
        Kind::String => "string",
        Kind::Version => "version",
        Kind::Ints => "list of ints",
        Kind::Strings => "list of strings",
    };
    let omitted = omitted.map(|when| format!(" Omitted {when}.")).unwrap_or_default();
    write!(text, "\n### {name}\n\n*{kind}.* {about}{omitted}\n\n```cel\n{example}\n```\n").unwrap();
}

/// What is found on a machine.
async fn node(name: &str) -> Node {
    let directory = tempfile::tempdir().unwrap();
    // Cargo puts the library of a dependency beside the test.
    let library = std::env::current_exe().unwrap().with_file_name("libmock_nvml.so");
    let host =
        HostBuilder::new(Topology::builtin(name).unwrap(), library).build(directory.path().join("node")).unwrap();
    let library = host.library();
    let session = Session::new(move || Some(library.clone()));
    let [sys, proc, dev] = [host.sys(), host.proc(), host.dev()].map(PathBuf::from);
    let roots = Roots { sys, proc, dev, other_devs: vec![], placeholders: true };
    let mut names = NameMap::load(directory.path()).unwrap();
    discover(&session, &roots, &mut names, &mut Arc::default()).await.unwrap().node
}

/// What is published for a machine.
async fn devices(name: &str) -> Vec<Device> {
    published(&node(name).await)
}

/// What is published where the GPUs of a machine can be partitioned: the first by an administrator, who has made an instance
/// of each profile, the others on demand.
async fn devices_in_parts(name: &str) -> Vec<Device> {
    let mut node = node(name).await;
    let board = boards::all().into_iter().find(|board| board.name == "a100-40gb").unwrap();
    let profiles = board.profiles;
    let device = |id: u32| {
        let uuid = MigUuid::parse(&format!("MIG-c7384736-a75d-5afc-978f-d2f1294{id:05}")).unwrap();
        ComputeInstance { id: 0, slices: profiles.iter().find(|profile| profile.id == id).unwrap().slices, uuid }
    };
    let instance = |profile: &Profile| {
        let (placement, compute) = (profile.placements[0], vec![device(profile.id)]);
        GpuInstance { id: profile.id, profile: profile.id, placement, compute, foreign: false }
    };
    let instances: Vec<_> = profiles.iter().map(instance).collect();
    for (number, gpu) in node.gpus.iter_mut().enumerate() {
        gpu.mig.profiles.clone_from(&profiles);
        gpu.memory_bytes = Some(board.memory_mib << 20);
        if number == 0 {
            (gpu.mig.enabled, gpu.mig.instances) = (true, instances.clone());
        } else {
            gpu.partitioning = Partitioning::Dynamic { whole: true };
        }
    }
    published(&node)
}

fn published(node: &Node) -> Vec<Device> {
    let owner = Owner { driver: DRIVER.to_owned(), node: "node-a".to_owned(), node_uid: "1".to_owned() };
    let slices = desired(&pool("node-a", node), &owner);
    let devices = slices.iter().filter_map(|slice| slice["spec"]["devices"].as_array()).flatten();
    devices.map(|device| Device::new(DRIVER, device).unwrap()).collect()
}

/// The blocks of CEL in a Markdown text, also those in lists.
fn cel_blocks(markdown: &str) -> impl Iterator<Item = &str> {
    markdown.split("```cel\n").skip(1).map(|rest| rest.split("```").next().unwrap_or(rest).trim())
}

#[test]
fn the_page_is_made_from_the_reference() {
    let page = page();
    let (prose, made) = page.split_once(MARK).unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(path(), format!("{prose}{MARK}{}", reference())).unwrap();
    } else {
        assert_eq!(made, reference(), "UPDATE_GOLDEN=1 makes the page anew");
    }
}

#[test]
fn every_attribute_that_the_page_names_exists() {
    let page = page();
    let mut seen = 0;
    for domain in [DRIVER, "resource.kubernetes.io"] {
        for rest in page.split(&format!("matchAttribute: {domain}/")).skip(1) {
            let name = rest.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap();
            let qualified = format!("{domain}/{name}");
            assert!(ALL.iter().any(|known| known.name == name || known.name == qualified), "{name}");
            seen += 1;
        }
    }
    assert!(seen > 0, "no constraint was found, so nothing was tried");
}

#[tokio::test]
async fn every_expression_of_the_page_selects_something_and_fails_on_nothing() {
    let mut machines = Vec::new();
    for name in Topology::names() {
        machines.push((name, devices(name).await));
    }
    machines.push(("dgx-a100-40gb in parts", devices_in_parts("dgx-a100-40gb").await));
    let page = page();
    let environment = Environment::new().unwrap();
    let expressions: Vec<_> = ALL.iter().map(|attribute| attribute.example).chain(cel_blocks(&page)).collect();
    assert!(expressions.len() > ALL.len());
    for expression in expressions {
        let selector = environment.compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
        let mut selected = 0;
        for (machine, devices) in &machines {
            for device in devices {
                let matches = selector.matches(device);
                selected += usize::from(matches.unwrap_or_else(|error| panic!("{expression} on {machine}: {error}")));
            }
        }
        assert!(selected > 0, "{expression} selects nothing");
    }
}

/// Every example is about its own attribute, and guards it if a device may lack it.
#[test]
fn examples_show_their_attribute_and_how_to_ask_for_one_that_may_be_missing() {
    for Attribute { name, omitted, example, .. } in ALL {
        let name = name.rsplit('/').next().unwrap();
        assert!(example.contains(&format!(".{name}")) || example.contains(&format!("?{name}")), "{example}");
        assert_eq!(example.contains(&format!(".?{name}.orValue(")), omitted.is_some(), "{example}");
    }
}

/// Of those that are not said to be omitted, none is missing on any machine.
#[tokio::test]
async fn only_what_is_said_to_be_omitted_is() {
    let environment = Environment::new().unwrap();
    let parts = std::iter::once("dgx-a100-40gb in parts");
    for machine in Topology::names().chain(parts) {
        let devices = match machine.strip_suffix(" in parts") {
            Some(machine) => devices_in_parts(machine).await,
            None => devices(machine).await,
        };
        for Attribute { name, .. } in ALL.iter().filter(|attribute| attribute.omitted.is_none()) {
            let (domain, id) = name.rsplit_once('/').unwrap_or((DRIVER, name));
            let has = environment.compile(&format!("has(device.attributes[{domain:?}].{id})")).unwrap();
            assert!(devices.iter().all(|device| has.matches(device) == Ok(true)), "{machine}: {name}");
        }
    }
}
