use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::example::{Machine, read_as_runtime};
use super::*;
use crate::causes::with_causes;
use crate::device::{GpuUuid, MigUuid, PciAddress};
use crate::host::driver_root::DriverRoot;

const CLAIM: &str = "4f1c0f5e-9a3b-4a43-8f0c-2f9f1f0a7b11";

fn pci(number: u32) -> PciAddress {
    PciAddress::parse(&format!("0000:{number:02x}:00.0")).unwrap()
}

fn target(number: u32) -> Target {
    Target {
        name: format!("{CLAIM}-gpu-{number}"),
        device: format!("gpu-{number}"),
        uuid: GpuUuid::parse(&format!("GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b{number}")).unwrap(),
        minor: number,
        pci: pci(number),
        mig: None,
    }
}

/// A MIG device of a GPU, in the compute instance 0 of this GPU instance.
fn mig_target(number: u32, gpu_instance: u32) -> Target {
    let uuid = MigUuid::parse(&format!("MIG-c7384736-a75d-5afc-978f-d2f1294409{gpu_instance:02x}")).unwrap();
    let device = format!("gpu-{number}-mig-1g5gb-19-{}", gpu_instance - 7);
    let mig = Some(MigTarget { gpu_instance, compute_instance: 0, uuid });
    Target { name: format!("{CLAIM}-{device}"), device, mig, ..target(number) }
}

fn writer(machine: &Machine) -> Writer {
    Writer::open(machine.state("cdi"), Kind::claims_of("gpu.nvidia.com").unwrap()).unwrap()
}

/// Writes the spec of these targets and has a runtime read it.
fn written(machine: &Machine, sources: &Sources, targets: &[Target]) -> PathBuf {
    let writer = writer(machine);
    let spec = sources.look(None).unwrap().spec(writer.kind().clone(), targets).unwrap();
    assert!(writer.write(CLAIM, &spec).unwrap());
    read_as_runtime(&writer.path(CLAIM));
    writer.path(CLAIM)
}

/// Compares with a file under `tests/golden/cdi`, or replaces that file if `UPDATE_GOLDEN` is set.
fn assert_golden(name: &str, path: &Path) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/cdi").join(name);
    let text = fs::read_to_string(path).unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&golden, &text).unwrap();
    }
    let expected = fs::read_to_string(&golden).unwrap_or_default();
    assert!(text == expected, "{name} differs; UPDATE_GOLDEN=1 replaces it. The spec is now:\n{text}");
}

fn incomplete(machine: &Machine, targets: &[Target]) -> String {
    let sources = machine.sources();
    let kind = Kind::claims_of("gpu.nvidia.com").unwrap();
    match sources.look(None).and_then(|found| found.spec(kind, targets)) {
        Ok(spec) => panic!("this spec passed for complete: {spec:?}"),
        Err(error) => with_causes(&error),
    }
}

#[test]
fn the_spec_of_one_gpu_under_a_driver_container() {
    let machine = Machine::new();
    let path = written(&machine, &machine.sources(), &[target(0)]);
    assert_golden("driver-container-one-gpu.json", &path);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(path.file_name().unwrap().to_str().unwrap(), format!("k8s.gpu.nvidia.com-claim_{CLAIM}.json"));
}

#[test]
fn with_our_own_hook_names_are_links_and_one_process_makes_them() {
    let machine = Machine::new();
    let sources = Sources { hooks: Hooks::Own("/plugins/gpu-dra-hook".into()), ..machine.sources() };
    assert_golden("own-hook.json", &written(&machine, &sources, &[target(0)]));
}

#[test]
fn with_nvidias_hook_its_commands_are_run_in_its_order() {
    let machine = Machine::new();
    let sources = Sources { hooks: Hooks::Nvidia("/usr/bin/nvidia-cdi-hook".into()), ..machine.sources() };
    assert_golden("nvidia-cdi-hook.json", &written(&machine, &sources, &[target(0)]));
}

#[test]
fn the_spec_of_two_gpus_with_a_driver_directory_of_its_own() {
    let machine = Machine::new();
    let mut sources = machine.sources();
    let root = DriverRoot::new("/home/kubernetes/bin/nvidia", machine.driver.path());
    sources.driver_roots = vec![root.appearing_at("/usr/local/nvidia")];
    sources.devices.host = "/host/dev".into();
    let path = written(&machine, &sources, &[target(0), target(1)]);
    assert_golden("driver-directory-two-gpus.json", &path);
}

#[test]
fn a_container_gets_the_nodes_the_soname_and_the_environment() {
    let machine = Machine::new();
    let path = written(&machine, &machine.sources(), &[target(0), target(1)]);
    let mut spec = read_as_runtime(&path);
    #[expect(clippy::default_trait_access, reason = "the type belongs to a crate that only the CDI crate depends on")]
    let mut container = Default::default();
    spec.get_device(&target(1).name).unwrap().clone().apply_edits(&mut container).unwrap();
    spec.apply_edits(&mut container).unwrap();

    let nodes = container.linux().as_ref().unwrap().devices().clone().unwrap();
    let nodes: Vec<_> =
        nodes.iter().map(|node| (node.path().display().to_string(), node.major(), node.minor())).collect();
    let expected = [
        ("/dev/nvidia1", 195, 1),
        ("/dev/nvidiactl", 195, 255),
        ("/dev/nvidia-uvm", 510, 0),
        ("/dev/nvidia-uvm-tools", 510, 1),
        ("/dev/nvidia-modeset", 195, 254),
    ];
    assert_eq!(nodes, expected.map(|(path, major, minor)| (path.to_owned(), major, minor)));

    let mounts = container.mounts().clone().unwrap();
    let soname = Path::new("/usr/lib/x86_64-linux-gnu/libcuda.so.1");
    assert!(mounts.iter().any(|mount| mount.destination() == soname), "{mounts:?}");

    let env = container.process().as_ref().unwrap().env().clone().unwrap();
    assert!(env.contains(&"NVIDIA_VISIBLE_DEVICES=void".to_owned()), "{env:?}");
    assert!(env.contains(&format!("DRA_GPU_1_UUID={}", target(1).uuid)), "{env:?}");
    assert!(!env.iter().any(|variable| variable.starts_with("DRA_GPU_0")), "{env:?}");
}

#[test]
fn the_spec_of_two_mig_devices_of_one_gpu() {
    let machine = Machine::new();
    load_drm(&machine);
    machine.make_instance(0, 7);
    machine.make_instance(0, 9);
    let targets = [mig_target(0, 7), mig_target(0, 9)];
    let path = written(&machine, &machine.sources(), &targets);
    assert_golden("mig-two-devices.json", &path);
    let spec = read_as_runtime(&path);
    #[expect(clippy::default_trait_access, reason = "the type belongs to a crate that only the CDI crate depends on")]
    let mut container = Default::default();
    for target in &targets {
        spec.get_device(&target.name).unwrap().clone().apply_edits(&mut container).unwrap();
    }
    let nodes = container.linux().as_ref().unwrap().devices().clone().unwrap();
    let nodes: Vec<_> =
        nodes.iter().map(|node| (node.path().display().to_string(), node.major(), node.minor())).collect();
    for (path, minor) in [("nvidia-cap66", 66), ("nvidia-cap67", 67), ("nvidia-cap84", 84), ("nvidia-cap85", 85)] {
        assert!(nodes.contains(&(format!("/dev/nvidia-caps/{path}"), 511, minor)), "{nodes:?}");
    }
    assert_eq!(nodes.iter().filter(|(path, ..)| path == "/dev/nvidia0").count(), 1, "{nodes:?}");
    let env = container.process().as_ref().unwrap().env().clone().unwrap();
    assert!(
        env.contains(&"DRA_GPU_0_MIG_1G5GB_19_2_UUID=MIG-c7384736-a75d-5afc-978f-d2f129440909".to_owned()),
        "{env:?}"
    );
}

#[test]
fn a_mig_device_without_capabilities_is_waited_for() {
    let machine = Machine::new();
    machine.make_instance(0, 7);
    let message = incomplete(&machine, &[mig_target(0, 8)]);
    let expected = format!(
        "the container could not open its MIG device gpu-0-mig-1g5gb-19-1: the driver has no capability \
         {}/driver/nvidia/capabilities/gpu0/mig/gi8/access",
        machine.proc().display()
    );
    assert_eq!(message, expected);
}

/// Loads nvidia-drm: the nodes of each GPU, as its PCI device names them, and a connector.
fn load_drm(machine: &Machine) {
    fs::create_dir_all(machine.dev().join("dri/by-path")).unwrap();
    for number in 0..2 {
        for (name, role) in [(format!("card{number}"), "card"), (format!("renderD{}", 128 + number), "render")] {
            let link = machine.dev().join(format!("dri/by-path/pci-{}-{role}", pci(number)));
            std::os::unix::fs::symlink(Path::new("..").join(name), link).unwrap();
        }
        let drm = machine.sys().join("bus/pci/drivers/nvidia").join(pci(number).to_string()).join("drm");
        for name in [format!("card{number}"), format!("renderD{}", 128 + number)] {
            fs::create_dir_all(drm.join(&name)).unwrap();
            fs::write(machine.dev().join("dri").join(name), "").unwrap();
        }
        fs::create_dir(drm.join(format!("card{number}-DP-1"))).unwrap();
    }
}

#[test]
fn each_gpu_brings_its_own_drm_nodes_and_their_names_by_place() {
    let machine = Machine::new();
    load_drm(&machine);
    let sources = Sources { hooks: Hooks::Own("/plugins/gpu-dra-hook".into()), ..machine.sources() };
    let spec = read_as_runtime(&written(&machine, &sources, &[target(1)]));
    let edits = spec.get_device(&target(1).name).unwrap().edits().container_edits;
    let nodes = serde_json::to_value(edits.device_nodes).unwrap();
    let nodes: Vec<_> =
        nodes.as_array().unwrap().iter().map(|node| (node["path"].as_str().unwrap(), node["minor"].as_i64())).collect();
    let expected = [("/dev/nvidia1", 1), ("/dev/dri/card1", 1), ("/dev/dri/renderD129", 129)];
    assert_eq!(nodes, expected.map(|(path, minor)| (path, Some(minor))));
    let text = fs::read_to_string(writer(&machine).path(CLAIM)).unwrap();
    assert!(text.contains("../card1=/dev/dri/by-path/pci-0000:01:00.0-card"), "{text}");
    assert!(text.contains("../renderD129=/dev/dri/by-path/pci-0000:01:00.0-render"), "{text}");
    assert_eq!(text.matches("createContainer").count(), 1, "{text}");
    assert!(!text.contains("0000:00:00.0"), "{text}");
    fs::remove_file(machine.dev().join("dri/by-path/pci-0000:01:00.0-render")).unwrap();
    written(&machine, &sources, &[target(1)]);
    let text = fs::read_to_string(writer(&machine).path(CLAIM)).unwrap();
    assert!(text.contains("-card") && !text.contains("-render"), "a link that the host does not have: {text}");

    let sources = Sources { hooks: Hooks::Nvidia("/usr/bin/nvidia-cdi-hook".into()), ..machine.sources() };
    let spec = read_as_runtime(&written(&machine, &sources, &[target(1)]));
    let hooks = spec.get_device(&target(1).name).unwrap().edits().container_edits.hooks.unwrap();
    let hooks = serde_json::to_value(hooks).unwrap();
    assert_eq!(hooks[0]["args"][3], "../card1::/dev/dri/by-path/pci-0000:01:00.0-card");

    let sources = Sources { graphics: false, ..machine.sources() };
    let spec = read_as_runtime(&written(&machine, &sources, &[target(1)]));
    let edits = spec.get_device(&target(1).name).unwrap().edits().container_edits;
    assert_eq!(edits.device_nodes.unwrap().len(), 1);
}

#[test]
fn a_drm_node_that_is_missing_is_not_missed() {
    let machine = Machine::new();
    load_drm(&machine);
    fs::remove_dir_all(machine.dev().join("dri")).unwrap();
    written(&machine, &machine.sources(), &[target(0)]);
}

#[test]
fn one_device_twice_is_one_device() {
    let machine = Machine::new();
    let path = written(&machine, &machine.sources(), &[target(0), target(0)]);
    assert_eq!(read_as_runtime(&path).get_devices().len(), 1);
}

#[test]
fn a_node_that_is_not_open_to_all_brings_its_group() {
    let node = crate::host::node::DeviceNode {
        name: "nvidia0".into(),
        host: "/dev/nvidia0".into(),
        major: 195,
        minor: 0,
        mode: 0o660,
        uid: 0,
        gid: 44,
    };
    let mut edits = ContainerEdits::default();
    edits.add_node(node.clone());
    edits.add_node(node);
    assert_eq!(edits.additional_gids, [44]);
}

#[test]
fn what_is_missing_is_named_with_where_it_was_looked_for() {
    for name in ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"] {
        let machine = Machine::new();
        let node = machine.dev().join(name);
        fs::remove_file(&node).unwrap();
        let expected =
            format!("the container would have no /dev/{name}: the device node {} does not exist", node.display());
        assert_eq!(incomplete(&machine, &[target(0)]), expected);
    }

    let machine = Machine::new();
    let message = incomplete(&machine, &[target(7)]);
    assert!(message.starts_with("the container would not have its GPU gpu-7: the device node "), "{message}");

    let machine = Machine::new();
    fs::remove_file(machine.driver.path().join("usr/lib/x86_64-linux-gnu/libcuda.so.580.105.08")).unwrap();
    let message = incomplete(&machine, &[target(0)]);
    let expected = "the container would have no CUDA: libcuda.so.<version> is in none of the library directories \
                    /, /usr/lib/x86_64-linux-gnu, /usr/lib of the driver root /run/nvidia/driver";
    assert_eq!(message, expected);

    let machine = Machine::new();
    fs::remove_dir_all(machine.driver.path().join("usr")).unwrap();
    let message = incomplete(&machine, &[target(0)]);
    assert!(message.starts_with("the container would have no CUDA: no NVIDIA driver"), "{message}");
}

#[test]
fn a_machine_without_modeset_is_complete() {
    let machine = Machine::new();
    fs::remove_file(machine.dev().join("nvidia-modeset")).unwrap();
    written(&machine, &machine.sources(), &[target(0)]);
}

#[test]
fn what_appears_later_is_found_without_a_restart() {
    let machine = Machine::new();
    let sources = machine.sources();
    fs::remove_file(machine.dev().join("nvidiactl")).unwrap();
    assert!(sources.look(None).is_err());
    fs::write(machine.dev().join("nvidiactl"), "").unwrap();
    written(&machine, &sources, &[target(0)]);
}

#[test]
fn a_spec_that_is_right_is_not_written_again() {
    let machine = Machine::new();
    let writer = writer(&machine);
    let sources = machine.sources();
    let found = sources.look(None).unwrap();
    let one = found.spec(writer.kind().clone(), &[target(0)]).unwrap();
    let two = found.spec(writer.kind().clone(), &[target(0), target(1)]).unwrap();
    assert!(writer.write(CLAIM, &one).unwrap());
    assert!(!writer.write(CLAIM, &one).unwrap());
    assert!(writer.write(CLAIM, &two).unwrap());
}

#[test]
fn specs_of_others_are_neither_read_nor_listed() {
    let machine = Machine::new();
    let writer = writer(&machine);
    for name in ["nvidia.yaml", "k8s.other.com-claim_a.json", "k8s.gpu.nvidia.com-claim_a.yaml"] {
        fs::write(machine.state("cdi").join(name), "{ not CDI").unwrap();
    }
    written(&machine, &machine.sources(), &[target(0)]);
    assert_eq!(writer.claims().unwrap(), [CLAIM]);
    writer.remove(CLAIM).unwrap();
    writer.remove(CLAIM).unwrap();
    assert!(!writer.exists(CLAIM));
    assert_eq!(fs::read_dir(machine.state("cdi")).unwrap().count(), 3);
}

/// Whoever opened one of them would wait for a writer for ever.
#[test]
fn a_write_opens_no_spec_of_another_claim_however_many_there_are() {
    let machine = Machine::new();
    let writer = writer(&machine);
    for number in 0..1000 {
        let path = writer.path(&format!("other-{number}"));
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o644.into(), 0).unwrap();
    }
    let spec = machine.sources().look(None).unwrap().spec(writer.kind().clone(), &[target(0)]).unwrap();
    let (done, finished) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let written = writer.write(CLAIM, &spec).unwrap() && writer.exists(CLAIM);
        writer.remove(CLAIM).unwrap();
        done.send(written).unwrap();
    });
    assert_eq!(finished.recv_timeout(std::time::Duration::from_secs(60)), Ok(true));
}
