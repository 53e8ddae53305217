use topology::NodeDir;

use super::*;

/// A machine with MIG mode on, as its administrator set it.
fn partitionable(name: &str, layout: Layout) -> Machine {
    let machine = Machine::build_with(name, |builder| builder.layout(layout));
    let count = machine.host.topology().gpus.len();
    let on = |index| move |state: &mut topology::State| state.gpus.entry(index).or_default().mig_enabled = Some(true);
    (0..count).for_each(|index| machine.host.node().update(on(index)).unwrap());
    machine
}

/// The device node that an access file of a GPU instance names.
fn minor(machine: &Machine, instance: &str) -> String {
    let access = machine.read(format!("proc/driver/nvidia/capabilities/{instance}/access"));
    let minor = access.lines().next().unwrap().strip_prefix("DeviceFileMinor: ").unwrap();
    let table = machine.read("proc/driver/nvidia-caps/mig-minors");
    assert!(table.contains(&format!("\n{}/access {minor}\n", instance.replace("/mig", ""))), "{instance}: {minor}");
    minor.to_owned()
}

#[test]
fn a_mig_device_has_files_where_the_driver_of_each_layout_has_them() {
    for layout in Layout::ALL {
        let machine = partitionable("dgx-h100", layout);
        // As people do: by the link, not by the place.
        let node = NodeDir::open(machine.host.dir().join("nvml"));
        let created = node.create_instance(3, 14, Some(2)).unwrap();
        let gi = format!("gpu3/mig/gi{}", created.gpu_instance);
        let minors = [minor(&machine, &gi), minor(&machine, &format!("{gi}/ci0"))];
        assert_eq!(minors, ["444", "445"], "{layout:?}");
        for minor in minors {
            let path = machine.host.dir().join(layout.dev()).join(format!("nvidia-caps/nvidia-cap{minor}"));
            let found = fs::metadata(&path).unwrap();
            if *machine.host.device_nodes() == DeviceNodes::Real {
                assert!(found.file_type().is_char_device(), "{layout:?}");
                assert_eq!(found.mode() & 0o777, 0o444, "{layout:?}");
            } else {
                assert_eq!(fs::read_to_string(path).unwrap(), format!("c {CAPS_MAJOR}:{minor}\n"));
            }
        }
        let listed = fs::read_to_string(machine.host.smi_dir().join("mig-3")).unwrap();
        assert!(listed.contains(&created.uuid), "{layout:?}");
        node.destroy_instance(3, created.gpu_instance).unwrap();
        assert!(!machine.host.proc().join("driver/nvidia/capabilities").join(gi).exists(), "{layout:?}");
    }
}

#[test]
fn a_reboot_takes_the_instances_and_their_files() {
    let machine = partitionable("dgx-h100", Layout::Debian);
    machine.host.node().create_instance(0, 0, None).unwrap();
    machine.host.reboot().unwrap();
    assert!(!machine.host.proc().join("driver/nvidia/capabilities/gpu0/mig/gi0").exists());
    let left = names_in(&machine.host.dev().join("nvidia-caps"));
    assert_eq!(left, ["nvidia-cap1", "nvidia-cap2"].map(str::to_owned).into());
}

#[test]
fn no_instance_is_left_behind_under_the_old_number_of_its_gpu() {
    let mut machine = partitionable("dgx-h100", Layout::Debian);
    machine.host.node().create_instance(0, 0, None).unwrap();
    machine.host.swap_minors(0, 1).unwrap();
    machine.host.reboot().unwrap();
    assert!(!machine.host.proc().join("driver/nvidia/capabilities/gpu0/mig/gi0").exists());
}

#[test]
fn nodes_of_instances_can_be_missing() {
    let machine = partitionable("dgx-h100", Layout::Debian);
    machine.host.make_capability_nodes(false).unwrap();
    machine.host.node().create_instance(0, 0, None).unwrap();
    assert_eq!(minor(&machine, "gpu0/mig/gi0"), "3");
    assert!(!machine.host.dev().join("nvidia-caps/nvidia-cap3").exists());
    machine.host.make_capability_nodes(true).unwrap();
    machine.host.node().create_instance(1, 0, None).unwrap();
    assert!(machine.host.dev().join("nvidia-caps/nvidia-cap138").exists());
}

#[test]
fn nvidia_smi_lists_mig_devices_below_their_gpu() {
    let machine = partitionable("dgx-h100", Layout::Debian);
    let created = machine.host.node().create_instance(2, 9, None).unwrap();
    let listed = String::from_utf8(machine.smi(&["-L"]).stdout).unwrap();
    let lines: Vec<_> = listed.lines().collect();
    assert_eq!(lines.len(), 9, "{listed}");
    assert!(lines[2].starts_with("GPU 2: ") && lines[4].starts_with("GPU 3: "), "{listed}");
    assert_eq!(lines[3], format!("  MIG 3g.40gb         Device  0: (UUID: {})", created.uuid));
}
