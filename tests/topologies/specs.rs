//! What containers get on every machine, and wherever the driver is.
//!
//! The driver is looked for as on a node, in all known places below the machine's directory, and nobody says where it is.
//! After a change that is meant: `UPDATE_GOLDEN=1 cargo test --test topologies specs::`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::chown;

use fake_node::host::{DeviceNodes, Host, HostBuilder, Layout};
use fake_node::node::Settings;
use gpu_dra_plugin::cdi::{Hooks, Kind, Sources, Target, Writer};
use gpu_dra_plugin::device::{GpuUuid, PciAddress};
use gpu_dra_plugin::host::driver_root::DriverRoot;
use gpu_dra_plugin::host::node::Devices;
use serde_json::Value;
use tempfile::TempDir;
use topology::Topology;

use crate::container;

const CLAIM: &str = "4f1c0f5e-9a3b-4a43-8f0c-2f9f1f0a7b11";

/// A machine's files, and what keeps their directory.
fn build(topology: &str, with: impl FnOnce(HostBuilder) -> HostBuilder) -> (Host, TempDir) {
    let directory = tempfile::Builder::new().prefix("node-").tempdir().unwrap();
    let binaries = std::path::Path::new(env!("CARGO_BIN_EXE_gpu-dra-plugin")).parent().unwrap();
    let builder = HostBuilder::new(crate::topology(topology), binaries.join(Settings::LIBRARY));
    (with(builder).build(directory.path().join("n")).unwrap(), directory)
}

/// What a container with all GPUs of a machine gets: read back and injected, and without what differs between the
/// architectures that tests run on. Its process joins these groups.
fn spec(host: &Host, groups: &[u64]) -> Value {
    let sources = Sources {
        devices: Devices {
            local: host.dev().to_owned(),
            host: "/dev".into(),
            elsewhere: DriverRoot::known(host.dir()).iter().filter_map(DriverRoot::dev).collect(),
            proc: host.proc().to_owned(),
            placeholders: true,
        },
        driver_roots: DriverRoot::known(host.dir()),
        sys: host.sys().to_owned(),
        hooks: Hooks::Own("/var/lib/kubelet/plugins/gpu.nvidia.com/gpu-dra-hook".into()),
        graphics: true,
    };
    let gpus = &host.topology().gpus;
    let targets = gpus.iter().map(|gpu| Target {
        mig: None,
        name: format!("{CLAIM}-gpu-{}", gpu.minor),
        device: format!("gpu-{}", gpu.minor),
        uuid: GpuUuid::parse(&gpu.uuid).unwrap(),
        minor: gpu.minor,
        pci: PciAddress::parse(&gpu.bus_id).unwrap(),
    });
    let targets: Vec<_> = targets.collect();
    let writer = Writer::open(host.cdi_dir(), Kind::claims_of("gpu.nvidia.com").unwrap()).unwrap();
    let found = sources.look(Some(host.driver_version())).unwrap();
    writer.write(CLAIM, &found.spec(writer.kind().clone(), &targets).unwrap()).unwrap();

    let ids = targets.iter().map(|target| writer.kind().id(&target.name)).collect();
    let container = container::inject(&host.cdi_dir(), ids);
    assert_eq!(container::groups(&container), groups.iter().copied().collect());
    let nodes = container::nodes(&container);
    let expected: BTreeSet<_> =
        gpus.iter().map(|gpu| container::gpu_node(gpu.minor)).chain(container::control_nodes()).collect();
    let nodes: BTreeSet<_> = nodes.into_iter().filter(|(path, ..)| !path.starts_with("/dev/dri/")).collect();
    assert_eq!(nodes, expected);

    let text = fs::read_to_string(writer.path(CLAIM)).unwrap();
    let spec: Value = serde_json::from_str(&text.replace("aarch64-linux-gnu", "x86_64-linux-gnu")).unwrap();
    for mount in spec["containerEdits"]["mounts"].as_array().unwrap() {
        let path = mount["hostPath"].as_str().unwrap().replace("x86_64-linux-gnu", triplet());
        let local = host.dir().join(path.trim_start_matches('/'));
        assert!(local.symlink_metadata().is_ok_and(|file| !file.is_symlink()), "{} is no file", local.display());
    }
    spec
}

fn triplet() -> &'static str {
    if cfg!(target_arch = "aarch64") { "aarch64-linux-gnu" } else { "x86_64-linux-gnu" }
}

#[test]
fn the_spec_of_every_machine() {
    for name in Topology::names() {
        let (host, _directory) = build(name, |builder| builder);
        crate::golden::assert_spec(&format!("topologies/{name}.json"), &spec(&host, &[]));
    }
}

#[test]
fn the_spec_of_every_layout_without_configuration() {
    for layout in Layout::ALL {
        let (host, _directory) = build("dgx-a100-40gb", |builder| builder.layout(layout).drm());
        let name = format!("{layout:?}").to_lowercase();
        crate::golden::assert_spec(&format!("layouts/{name}.json"), &spec(&host, &[]));
    }
}

#[test]
fn the_spec_of_a_machine_whose_drm_nodes_are_for_groups_alone() {
    let (host, _directory) = build("one-gpu", HostBuilder::drm);
    if let DeviceNodes::Placeholders { why } = host.device_nodes() {
        let _ = writeln!(io::stderr(), "SKIPPED, because {why}: a spec with the groups of DRM nodes");
        return;
    }
    // As Debian's udev does it.
    for (name, group) in [("card1", 44), ("renderD128", 105)] {
        chown(host.dev().join("dri").join(name), None, Some(group)).unwrap();
    }
    crate::golden::assert_spec("drm-groups.json", &spec(&host, &[44, 105]));
}
