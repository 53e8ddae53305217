use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use super::*;

mod mig;

/// A machine, and what keeps its directory.
struct Machine {
    host: Host,
    _dir: TempDir,
}

impl Machine {
    fn build(name: &str) -> Self {
        Self::build_with(name, |builder| builder)
    }

    fn build_with(name: &str, with: impl FnOnce(HostBuilder) -> HostBuilder) -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Any ELF object with the right SONAME stands for the mock, so that these tests need no other build.
        let library = dir.path().join("libmock_nvml.so");
        fs::write(&library, elf::shared_object("libnvidia-ml.so.1")).unwrap();
        let topology = Topology::builtin(name).unwrap();
        let host = with(HostBuilder::new(topology, library)).build(dir.path().join("n")).unwrap();
        Self { host, _dir: dir }
    }

    /// A file of the machine without its line end.
    fn read(&self, path: impl AsRef<Path>) -> String {
        let path = self.host.dir().join(path);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).trim_end().to_owned()
    }

    /// Where a PCI device really is, from the root of sysfs.
    fn device(&self, bus_id: &str) -> String {
        let path = self.host.sys().join("bus/pci/devices").join(bus_id).canonicalize().unwrap();
        path.strip_prefix(self.host.sys()).unwrap().to_str().unwrap().to_owned()
    }

    fn smi(&self, arguments: &[&str]) -> Output {
        Command::new(self.host.driver_root().join("usr/bin/nvidia-smi")).args(arguments).output().unwrap()
    }
}

fn names_in(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// All symbolic links below a directory, without following any.
fn links_below(dir: &Path) -> Vec<PathBuf> {
    let mut links = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let kind = entry.file_type().unwrap();
        if kind.is_symlink() {
            links.push(entry.path());
        } else if kind.is_dir() {
            links.extend(links_below(&entry.path()));
        }
    }
    links
}

#[test]
fn every_machine_builds_and_no_link_leads_nowhere() {
    for name in Topology::names() {
        let machine = Machine::build_with(name, HostBuilder::drm);
        for link in links_below(machine.host.dir()) {
            assert!(link.exists(), "{name}: {} leads nowhere", link.display());
        }
    }
}

#[test]
fn a_gpu_is_found_below_its_pcie_root_with_what_sysfs_says_of_it() {
    let machine = Machine::build("dgx-h100");
    assert_eq!(machine.device("0000:43:00.0"), "devices/pci0000:3d/0000:3d:01.0/0000:3e:00.0/0000:43:00.0");
    let link = fs::read_link(machine.host.sys().join("bus/pci/devices/0000:43:00.0")).unwrap();
    assert!(link.starts_with("../../../devices/pci0000:3d"), "{}", link.display());
    let device = "sys/bus/pci/devices/0000:43:00.0";
    for (file, value) in [
        ("vendor", "0x10de"),
        ("device", "0x2330"),
        ("subsystem_device", "0x16c1"),
        ("class", "0x030200"),
        ("numa_node", "0"),
        ("local_cpulist", "0-55,112-167"),
    ] {
        assert_eq!(machine.read(format!("{device}/{file}")), value, "{file}");
    }
    let target = |name: &str| fs::read_link(machine.host.dir().join(device).join(name)).unwrap();
    assert!(target("driver").ends_with("bus/pci/drivers/nvidia"));
    assert!(target("iommu_group").ends_with("kernel/iommu_groups/61"));
}

#[test]
fn a_gpu_maps_as_much_of_its_frame_buffer_as_nvml_says() {
    let machine = Machine::build("dgx-h100");
    let resource = machine.read("sys/bus/pci/devices/0000:43:00.0/resource");
    let numbers = |line: &str| -> Vec<u64> {
        line.split(' ').map(|number| u64::from_str_radix(number.trim_start_matches("0x"), 16).unwrap()).collect()
    };
    let lines: Vec<_> = resource.lines().map(numbers).collect();
    assert_eq!((lines.len(), lines.iter().all(|line| line.len() == 3)), (13, true), "{resource}");
    assert_eq!(lines[1][1] + 1 - lines[1][0], 131_072 << 20);
    let bridge = machine.read("sys/bus/pci/devices/0000:3e:00.0/resource");
    assert!(bridge.lines().all(|line| numbers(line) == [0, 0, 0]), "{bridge}");
}

#[test]
fn gpus_behind_one_switch_share_the_directories_of_its_bridges() {
    let machine = Machine::build("dgx-a100-40gb");
    let parent = |bus_id| machine.device(bus_id).rsplit_once('/').unwrap().0.to_owned();
    assert_eq!(parent("0000:07:00.0"), parent("0000:0f:00.0"));
    assert_ne!(parent("0000:07:00.0"), parent("0000:47:00.0"));
}

#[test]
fn no_link_names_the_directory_of_the_machine() {
    for layout in Layout::ALL {
        let machine = Machine::build_with("dgx-h100", |builder| builder.layout(layout).drm());
        for link in links_below(machine.host.dir()) {
            let target = fs::read_link(&link).unwrap();
            // As on the real system.
            let of_the_store = layout == Layout::Nixos && target.starts_with("/nix/store");
            assert!(target.is_relative() || of_the_store, "{layout:?}: {}", link.display());
        }
    }
}

#[test]
fn a_guest_of_hyper_v_has_no_pcie_root_and_no_numa_node() {
    let machine = Machine::build("one-gpu");
    assert!(machine.device("0001:00:00.0").starts_with("devices/LNXSYSTM:00/"));
    assert_eq!(machine.read("sys/bus/pci/devices/0001:00:00.0/numa_node"), "-1");
    assert_eq!(machine.read("sys/bus/pci/devices/0001:00:00.0/local_cpulist"), "0-23");
}

#[test]
fn nvswitches_are_pci_devices_of_one_iommu_group() {
    let machine = Machine::build("hgx-h200");
    let group = names_in(&machine.host.sys().join("kernel/iommu_groups/114/devices"));
    assert_eq!(group.into_iter().collect::<Vec<_>>(), ["0000:05:00.0", "0000:06:00.0", "0000:07:00.0", "0000:08:00.0"]);
    assert_eq!(machine.read("sys/bus/pci/devices/0000:06:00.0/device"), "0x22a3");
    assert_eq!(machine.read("sys/bus/pci/devices/0000:06:00.0/class"), "0x068000");
}

#[test]
fn numa_nodes_have_cpus_sockets_and_distances() {
    let machine = Machine::build("dgx-a100-40gb");
    let node = "sys/devices/system/node/node3";
    assert_eq!(machine.read(format!("{node}/cpulist")), "48-63,176-191");
    assert_eq!(machine.read(format!("{node}/distance")), "12 12 12 10 32 32 32 32");
    assert_eq!(machine.read("sys/devices/system/cpu/cpu176/topology/physical_package_id"), "0");
    assert_eq!(machine.read("sys/devices/system/cpu/cpu80/topology/physical_package_id"), "1");
    assert_eq!(machine.read("sys/devices/system/cpu/online"), "0-255");
}

#[test]
fn a_gpu_can_move_to_another_numa_node_or_to_an_unknown_one() {
    let machine = Machine::build("dgx-h100");
    let read = |file: &str| machine.read(format!("sys/bus/pci/devices/0000:1b:00.0/{file}"));
    machine.host.set_numa_node(0, 1).unwrap();
    assert_eq!((read("numa_node"), read("local_cpulist")), ("1".to_owned(), "56-111,168-223".to_owned()));
    machine.host.set_numa_node(0, -1).unwrap();
    assert_eq!((read("numa_node"), read("local_cpulist")), ("-1".to_owned(), "0-223".to_owned()));
    let error = machine.host.set_numa_node(8, 0).unwrap_err().to_string();
    assert_eq!(error, "this machine has no GPU with index 8");
}

#[test]
fn procfs_tells_the_driver_and_each_gpu() {
    let machine = Machine::build("dgx-a100-40gb");
    assert!(machine.read("proc/driver/nvidia/version").contains("  570.148.08  "));
    let information = machine.read("proc/driver/nvidia/gpus/0000:07:00.0/information");
    assert!(information.contains("NVIDIA A100-SXM4-40GB"), "{information}");
    assert!(information.contains(&machine.host.topology().gpus[0].uuid), "{information}");
    assert!(information.contains("Device Minor: \t 2\n"), "{information}");
    let devices = machine.read("proc/devices");
    for line in ["195 nvidiactl", "511 nvidia-uvm", "237 nvidia-caps"] {
        assert!(devices.lines().any(|found| found.trim() == line), "{line} is not in {devices}");
    }
}

#[test]
fn mig_minors_are_those_of_real_machines() {
    let machine = Machine::build("dgx-h100");
    let table = machine.read("proc/driver/nvidia-caps/mig-minors");
    for line in ["config 1", "monitor 2", "gpu0/gi2/access 21", "gpu0/gi2/ci0/access 22", "gpu1/gi0/access 138"] {
        assert!(table.lines().any(|found| found == line), "{line}");
    }
    assert!(machine.read("proc/driver/nvidia/capabilities/mig/config").contains("DeviceFileMinor: 1\n"));
    assert!(machine.host.dev().join("nvidia-caps/nvidia-cap2").exists());
}

#[test]
fn a_machine_without_mig_has_no_capabilities() {
    let machine = Machine::build("l40s-8gpu");
    assert!(!machine.host.proc().join("driver/nvidia-caps").exists());
    assert!(!machine.host.dev().join("nvidia-caps").exists());
}

#[test]
fn device_nodes_have_the_numbers_of_real_ones() {
    let machine = Machine::build_with("dgx-a100-40gb", HostBuilder::drm);
    for (name, major, minor) in [
        ("nvidia7", 195, 7),
        ("nvidiactl", 195, 255),
        ("nvidia-modeset", 195, 254),
        ("nvidia-uvm", UVM_MAJOR, 0),
        ("nvidia-uvm-tools", UVM_MAJOR, 1),
        ("nvidia-caps/nvidia-cap1", CAPS_MAJOR, 1),
        ("dri/card1", 226, 1),
        ("dri/renderD128", 226, 128),
    ] {
        let path = machine.host.dev().join(name);
        let metadata = fs::metadata(&path).unwrap();
        match machine.host.device_nodes() {
            DeviceNodes::Real => {
                assert!(metadata.file_type().is_char_device(), "{name}");
                assert_eq!(metadata.rdev(), rustix::fs::makedev(major, minor), "{name}");
            }
            DeviceNodes::Placeholders { why } => {
                assert!(!why.is_empty());
                assert_eq!(fs::read_to_string(path).unwrap(), format!("c {major}:{minor}\n"), "{name}");
            }
        }
    }
}

#[test]
fn a_node_can_be_lost_and_restored() {
    let machine = Machine::build("dgx-h100");
    let node = machine.host.dev().join("nvidia3");
    machine.host.lose_node(3).unwrap();
    assert!(!node.exists());
    machine.host.restore_node(3).unwrap();
    assert!(node.exists());
    machine.host.remove_node("nvidia-uvm").unwrap();
    assert!(!machine.host.dev().join("nvidia-uvm").exists());
    assert!(machine.host.lose_node(8).is_err());
}

#[test]
fn in_every_layout_ldconfig_finds_nothing_left_to_link() {
    let ldconfig = ["/sbin/ldconfig", "/usr/sbin/ldconfig"].into_iter().find(|path| Path::new(path).exists());
    for layout in Layout::ALL {
        let machine = Machine::build_with("dgx-h100", |builder| builder.layout(layout));
        let host = &machine.host;
        let libraries = host.library().parent().unwrap().to_owned();
        assert!(libraries.starts_with(host.driver_root()));
        assert_eq!(libraries.join("mock-nvml"), host.node().path());
        assert_eq!(
            host.dir().join("nvml").canonicalize().unwrap(),
            host.node().path().canonicalize().unwrap(),
            "{layout:?}"
        );
        let before = names_in(&libraries);
        let versioned = before.iter().filter(|name| name.ends_with(".so.580.105.08"));
        for name in versioned.clone() {
            assert!(fs::read(libraries.join(name)).unwrap().starts_with(b"\x7fELF"), "{name}");
        }
        assert!(versioned.count() > 30, "{layout:?}");
        for link in ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-nvvm.so.4", "libGLX_indirect.so.0"] {
            assert!(before.contains(link), "{layout:?}: {link}");
        }
        if let Some(ldconfig) = ldconfig {
            assert!(Command::new(ldconfig).arg("-n").arg(&libraries).status().unwrap().success());
            assert_eq!(names_in(&libraries), before, "{layout:?}");
        }
    }
}

#[test]
fn each_layout_has_its_own_places() {
    for (layout, root, library, binary, firmware) in [
        (Layout::Rhel, "", "usr/lib64", "usr/bin", "lib/firmware"),
        (Layout::GpuOperator, "run/nvidia/driver", "usr/lib", "bin", "lib/firmware"),
        (Layout::Gke, "home/kubernetes/bin/nvidia", "lib64", "bin", "firmware"),
        (Layout::Talos, "usr/local", "glibc/usr/lib", "bin", "../../lib/firmware"),
        (Layout::Bottlerocket, "", "usr/lib/nvidia/tesla", "usr/libexec/nvidia/tesla/bin", "lib/firmware"),
        (Layout::Flatcar, "opt/nvidia/current", "usr/lib64", "usr/bin", "../../../lib/firmware"),
    ] {
        let machine = Machine::build_with("dgx-h100", |builder| builder.layout(layout));
        let host = &machine.host;
        assert_eq!(host.driver_root(), host.dir().join(root).components().as_path());
        assert!(host.library().starts_with(host.driver_root().join(library)));
        assert!(host.driver_root().join(binary).join("nvidia-cuda-mps-server").exists());
        assert!(host.driver_root().join(firmware).join("nvidia/580.105.08/gsp_ga10x.bin").exists());
        let socket = fs::metadata(host.driver_root().join("run/nvidia-persistenced/socket")).unwrap();
        assert!(socket.file_type().is_socket());
        let vulkan = host.driver_root().join("etc/vulkan/icd.d/nvidia_icd.json").exists();
        assert_eq!(vulkan, matches!(layout, Layout::Rhel | Layout::GpuOperator));
    }
}

#[test]
fn an_upgrade_replaces_every_trace_of_the_old_driver() {
    let mut machine = Machine::build("dgx-h100");
    let inode = fs::metadata(machine.host.library()).unwrap().ino();
    machine.host.upgrade_driver("595.91.07").unwrap();
    let host = &machine.host;
    assert_eq!(host.driver_version(), "595.91.07");
    assert_ne!(fs::metadata(host.library()).unwrap().ino(), inode);
    assert_eq!(machine.read("sys/module/nvidia/version"), "595.91.07");
    assert!(machine.read("proc/driver/nvidia/version").contains("595.91.07"));
    assert_eq!(host.node().state().unwrap().driver_version.as_deref(), Some("595.91.07"));
    let old = Command::new("find").arg(host.dir()).args(["-name", "*580.105.08*"]).output().unwrap();
    assert_eq!(String::from_utf8(old.stdout).unwrap(), "");
    for link in links_below(host.dir()) {
        assert!(link.exists(), "{} leads nowhere", link.display());
    }
}

#[test]
fn a_transform_sees_the_library_of_each_installation() {
    let mut machine = Machine::build_with("one-gpu", |builder| {
        builder.transform_library(|bytes| bytes.extend_from_slice(b"changed"))
    });
    assert!(fs::read(machine.host.library()).unwrap().ends_with(b"\0changed"));
    machine.host.upgrade_driver("595.91.07").unwrap();
    assert!(fs::read(machine.host.library()).unwrap().ends_with(b"\0changed"));
}

#[test]
fn a_reboot_has_a_new_id_and_empties_var_run_alone() {
    let machine = Machine::build("one-gpu");
    let host = &machine.host;
    let before = host.boot_id().unwrap();
    let record = host.kubelet_root().join("plugins/record.json");
    fs::write(&record, "{}").unwrap();
    fs::create_dir(host.cdi_dir()).unwrap();
    host.reboot().unwrap();
    let after = host.boot_id().unwrap();
    assert_eq!(after.len(), 36, "{after}");
    assert_ne!(before, after);
    assert_eq!(names_in(&host.dir().join("var/run")), BTreeSet::new());
    assert!(record.exists());
}

#[test]
fn swapped_minors_are_the_same_in_procfs_and_for_nvml() {
    let mut machine = Machine::build("dgx-h100");
    let bus_ids = [1, 2].map(|index| machine.host.topology().gpus[index].bus_id.clone());
    let minors = |machine: &Machine| {
        let topology = machine.host.node().topology().unwrap();
        assert_eq!(topology, *machine.host.topology());
        for (gpu, bus_id) in topology.gpus[1..].iter().zip(&bus_ids) {
            let information = machine.read(format!("proc/driver/nvidia/gpus/{bus_id}/information"));
            assert!(information.contains(&format!("Device Minor: \t {}\n", gpu.minor)), "{information}");
        }
        [topology.gpus[1].minor, topology.gpus[2].minor]
    };
    assert_eq!(minors(&machine), [1, 2]);
    machine.host.swap_minors(1, 2).unwrap();
    assert_eq!(minors(&machine), [2, 1]);
    assert!(matches!(machine.host.swap_minors(1, 8), Err(Error::NoGpu(_))));
}

#[test]
fn the_stand_in_for_nvidia_smi_prints_its_files_and_remembers_its_calls() {
    let machine = Machine::build("a100-and-t4");
    let text = |output: Output| String::from_utf8(output.stdout).unwrap();
    let table = text(machine.smi(&[]));
    assert!(table.contains("Tesla T4"), "{table}");
    assert!(table.lines().all(|line| line.len() == 79), "{table}");
    assert!(text(machine.smi(&["--version"])).contains("570.148.08"));
    let list = text(machine.smi(&["-L"]));
    assert!(list.contains(&format!("GPU 1: Tesla T4 (UUID: {})", machine.host.topology().gpus[1].uuid)), "{list}");
    assert!(machine.smi(&["compute-policy", "-i", "0", "--set-timeslice", "2"]).status.success());
    fs::write(machine.host.smi_dir().join("fail"), "Unable to determine the device handle\n").unwrap();
    let failed = machine.smi(&["-i", "0", "-c", "DEFAULT"]);
    assert_eq!(failed.status.code(), Some(1));
    assert_eq!(String::from_utf8(failed.stderr).unwrap(), "Unable to determine the device handle\n");
    let calls = machine.host.smi_calls().unwrap();
    assert_eq!(calls, ["", "--version", "-L", "compute-policy -i 0 --set-timeslice 2", "-i 0 -c DEFAULT"]);
}

#[test]
fn a_fake_node_is_refused_where_a_driver_is_loaded() {
    let empty = tempfile::tempdir().unwrap();
    refuse_real_driver(empty.path(), empty.path()).unwrap();
    let machine = Machine::build("one-gpu");
    for (proc, sys) in [(machine.host.proc(), empty.path()), (empty.path(), machine.host.sys())] {
        let error = refuse_real_driver(proc, sys).unwrap_err();
        assert!(error.to_string().starts_with("a real NVIDIA driver is loaded on this machine ("), "{error}");
    }
}

#[test]
fn sockets_with_a_pod_uid_fit_into_the_longest_directory_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("mock.so");
    fs::write(&library, elf::shared_object("libnvidia-ml.so.1")).unwrap();
    let build = |length: usize| {
        let name = "n".repeat(length - dir.path().as_os_str().len() - 1);
        HostBuilder::new(Topology::builtin("one-gpu").unwrap(), &library).build(dir.path().join(name))
    };
    let host = build(30).unwrap();
    fs::create_dir(host.kubelet_root().join("plugins/gpu.nvidia.com")).unwrap();
    UnixListener::bind(format!("{}{LONGEST_SOCKET}", host.dir().display())).unwrap();
    assert!(matches!(build(31), Err(Error::TooLong { longest: 30, .. })));
    // Nothing is left of a machine that was not built.
    assert_eq!(names_in(dir.path()).into_iter().filter(|name| name.starts_with('n')).count(), 1);
}

#[test]
fn a_directory_with_something_in_it_is_left_alone() {
    let machine = Machine::build("one-gpu");
    let again = HostBuilder::new(machine.host.topology().clone(), machine.host.library()).build(machine.host.dir());
    assert!(matches!(again, Err(Error::NotEmpty { .. })));
}
