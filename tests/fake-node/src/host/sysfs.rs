//! `/sys`: PCI devices, IOMMU groups, NUMA nodes, kernel modules.
//!
//! ```text
//!  bus/pci/devices/0000:1b:00.0 ─▶ devices/pci0000:15/0000:15:01.0/0000:1b:00.0/{vendor,class,numa_node,…}
//!  bus/pci/drivers/nvidia/…     ─▶                                 ├ driver      ─▶ bus/pci/drivers/nvidia
//!  kernel/iommu_groups/38/…     ─▶                                 └ iommu_group ─▶ kernel/iommu_groups/38
//! ```

use std::fmt::Write;
use std::ops::RangeInclusive;

use topology::{Gpu, NumaNode, NvSwitch, Topology};

use super::tree::Tree;
use super::{Error, Layout};

/// PCI class codes: 3D controller, other bridge (NVSwitch), PCI-to-PCI bridge.
const CLASS_GPU: &str = "0x030200";
const CLASS_NVSWITCH: &str = "0x068000";
const CLASS_BRIDGE: &str = "0x060400";
/// A PCIe switch of the kind that these machines have (Broadcom PEX890xx), as packed by NVML.
const BRIDGE_ID: &str = "0xC0301000";
/// Lines of a device's `resource` file: six BARs, the ROM, and six BARs of its virtual functions.
const RESOURCES: usize = 13;
/// Flags of a BAR, from the kernel's `ioport.h`: memory, not prefetchable, and memory of 64 bits, prefetchable.
const MEMORY: u64 = 0x4_0200;
const MEMORY_64: u64 = 0x14_220c;
const MIB: u64 = 1 << 20;
/// Where memory of the first device begins, below and above 4 GiB, and how far it is to that of the next one. Invented.
const LOW_MEMORY: (u64, u64) = (0x8000_0000, 16 * MIB);
const HIGH_MEMORY: (u64, u64) = (0x2000_0000_0000, 1 << 39);
/// DRM's first render node. Card 0 of a server is its management controller, so GPU 0 is card 1.
const FIRST_RENDER_NODE: usize = 128;

/// A PCI device to be written.
struct Device<'a> {
    /// Where it is, from the root of sysfs.
    path: &'a str,
    class: &'a str,
    /// Device and vendor, packed as NVML packs them: `0x233010DE`.
    id: &'a str,
    subsystem: &'a str,
    numa_node: i32,
    driver: &'a str,
    iommu_group: Option<u32>,
    bars: &'a [Bar],
}

/// Memory of a device that programs can map.
struct Bar {
    index: usize,
    start: u64,
    size: u64,
    flags: u64,
}

/// Names of the DRM nodes of a GPU: card and render node.
pub(super) fn drm_names(index: usize) -> [String; 2] {
    [format!("card{}", index + 1), format!("renderD{}", FIRST_RENDER_NODE + index)]
}

/// Writes the whole of sysfs.
pub(super) fn build(sys: &Tree, topology: &Topology, layout: Layout, drm: bool) -> Result<(), Error> {
    numa(sys, topology)?;
    for (index, gpu) in topology.gpus.iter().enumerate() {
        gpu_device(sys, topology, index, gpu)?;
        if drm {
            for name in drm_names(index) {
                sys.dir(format!("{}/drm/{name}", gpu_path(index, gpu)))?;
            }
        }
    }
    for (index, switch) in topology.host.nvswitches.iter().enumerate() {
        nvswitch(sys, topology, topology.gpus.len() + index, switch)?;
    }
    for module in ["nvidia", "nvidia_uvm", "nvidia_modeset"] {
        sys.file(format!("module/{module}/initstate"), "live\n")?;
    }
    sys.link_within("bus/pci/drivers/nvidia/module", "module/nvidia")?;
    sys.file("module/firmware_class/parameters/path", format!("{}\n", layout.firmware_parameter()))?;
    driver_version(sys, &topology.system.driver_version)
}

/// What the loaded modules say of themselves; changes with the driver.
pub(super) fn driver_version(sys: &Tree, version: &str) -> Result<(), Error> {
    for module in ["nvidia", "nvidia_uvm", "nvidia_modeset"] {
        sys.file(format!("module/{module}/version"), format!("{version}\n"))?;
    }
    Ok(())
}

/// The node of a GPU and the CPUs near it; -1 is "firmware does not say", and all CPUs are as near.
pub(super) fn set_numa_node(
    sys: &Tree,
    topology: &Topology,
    index: usize,
    gpu: &Gpu,
    numa_node: i32,
) -> Result<(), Error> {
    near(sys, topology, &gpu_path(index, gpu), numa_node)
}

fn gpu_device(sys: &Tree, topology: &Topology, index: usize, gpu: &Gpu) -> Result<(), Error> {
    let board = topology.board(gpu);
    if let Some(root) = &gpu.pcie_root {
        bridges(sys, topology, root, &gpu.bridges, gpu.numa_node)?;
    }
    let device = Device {
        path: &gpu_path(index, gpu),
        class: CLASS_GPU,
        id: &board.pci_device_id,
        subsystem: &board.pci_subsystem_id,
        numa_node: gpu.numa_node,
        driver: "nvidia",
        iommu_group: gpu.iommu_group,
        bars: &gpu_bars(index, board.bar1_mib * MIB),
    };
    write(sys, topology, &device)
}

fn nvswitch(sys: &Tree, topology: &Topology, index: usize, switch: &NvSwitch) -> Result<(), Error> {
    bridges(sys, topology, &switch.pcie_root, &switch.bridges, switch.numa_node)?;
    let device = Device {
        path: &format!("{}/{}", parent(&switch.pcie_root, &switch.bridges), switch.bus_id),
        class: CLASS_NVSWITCH,
        id: &switch.pci_device_id,
        subsystem: "0x00000000",
        numa_node: switch.numa_node,
        driver: "nvidia-nvswitch",
        iommu_group: switch.iommu_group,
        bars: &[Bar { index: 0, start: place(HIGH_MEMORY, index), size: 32 * MIB, flags: MEMORY_64 }],
    };
    write(sys, topology, &device)
}

/// The bridges above a device, but for those that another device has brought already.
fn bridges(sys: &Tree, topology: &Topology, root: &str, bridges: &[String], numa_node: i32) -> Result<(), Error> {
    for (depth, address) in bridges.iter().enumerate() {
        if sys.path(format!("bus/pci/devices/{address}")).exists() {
            continue;
        }
        let device = Device {
            path: &parent(root, &bridges[..=depth]),
            class: CLASS_BRIDGE,
            id: BRIDGE_ID,
            subsystem: "0x00000000",
            numa_node,
            driver: "pcieport",
            iommu_group: None,
            bars: &[],
        };
        write(sys, topology, &device)?;
    }
    Ok(())
}

fn write(sys: &Tree, topology: &Topology, device: &Device<'_>) -> Result<(), Error> {
    let Device { path, class, id, subsystem, numa_node, driver, iommu_group, bars } = device;
    let address = path.rsplit('/').next().unwrap_or(path);
    let (model, vendor) = unpack(id);
    let (subsystem_model, subsystem_vendor) = unpack(subsystem);
    for (name, value) in [
        ("class", *class),
        ("vendor", &vendor),
        ("device", &model),
        ("subsystem_vendor", &subsystem_vendor),
        ("subsystem_device", &subsystem_model),
    ] {
        sys.file(format!("{path}/{name}"), format!("{value}\n"))?;
    }
    sys.file(format!("{path}/resource"), resources(bars))?;
    near(sys, topology, path, *numa_node)?;
    sys.link_within(&format!("bus/pci/devices/{address}"), path)?;
    sys.link_within(&format!("bus/pci/drivers/{driver}/{address}"), path)?;
    sys.link_within(&format!("{path}/driver"), &format!("bus/pci/drivers/{driver}"))?;
    if let Some(group) = iommu_group {
        sys.link_within(&format!("kernel/iommu_groups/{group}/devices/{address}"), path)?;
        sys.link_within(&format!("{path}/iommu_group"), &format!("kernel/iommu_groups/{group}"))?;
    }
    Ok(())
}

/// Registers, frame buffer as far as it can be mapped, and the driver's instance memory. BARs of 64 bits take two numbers.
fn gpu_bars(index: usize, bar1: u64) -> [Bar; 3] {
    let high = place(HIGH_MEMORY, index);
    [
        Bar { index: 0, start: place(LOW_MEMORY, index), size: 16 * MIB, flags: MEMORY },
        Bar { index: 1, start: high, size: bar1, flags: MEMORY_64 },
        Bar { index: 3, start: high + bar1, size: 32 * MIB, flags: MEMORY_64 },
    ]
}

fn place((first, distance): (u64, u64), index: usize) -> u64 {
    first + distance * index as u64
}

/// First and last address and flags of each; zeros where there is nothing.
fn resources(bars: &[Bar]) -> String {
    let line = |index| match bars.iter().find(|bar| bar.index == index && bar.size > 0) {
        Some(bar) => [bar.start, bar.start + bar.size - 1, bar.flags],
        None => [0; 3],
    };
    let mut text = String::new();
    for [start, end, flags] in (0..RESOURCES).map(line) {
        let _ = writeln!(text, "{start:#018x} {end:#018x} {flags:#018x}");
    }
    text
}

fn near(sys: &Tree, topology: &Topology, path: &str, numa_node: i32) -> Result<(), Error> {
    let nodes = &topology.host.numa_nodes;
    let cpus = match u32::try_from(numa_node) {
        Ok(id) => nodes.iter().find(|node| node.id == id).map(|node| node.cpus.clone()).unwrap_or_default(),
        Err(_) => all_cpus(nodes),
    };
    sys.file(format!("{path}/numa_node"), format!("{numa_node}\n"))?;
    sys.file(format!("{path}/local_cpulist"), format!("{cpus}\n"))
}

/// NUMA nodes with their distances, and the socket of each CPU.
fn numa(sys: &Tree, topology: &Topology) -> Result<(), Error> {
    let nodes = &topology.host.numa_nodes;
    for node in nodes {
        let path = format!("devices/system/node/node{}", node.id);
        let distances: Vec<String> = if node.distances.is_empty() {
            // The kernel's own figures without a SLIT: LOCAL_DISTANCE and REMOTE_DISTANCE.
            nodes.iter().map(|other| if other.id == node.id { "10" } else { "20" }.to_owned()).collect()
        } else {
            node.distances.iter().map(u32::to_string).collect()
        };
        sys.file(format!("{path}/cpulist"), format!("{}\n", node.cpus))?;
        sys.file(format!("{path}/distance"), format!("{}\n", distances.join(" ")))?;
        // The first CPU of each range is enough to find the socket of a node, and spares a thousand files.
        for cpu in ranges(&node.cpus).map(|range| *range.start()) {
            let socket = format!("{}\n", node.socket);
            sys.file(format!("devices/system/cpu/cpu{cpu}/topology/physical_package_id"), socket)?;
        }
    }
    sys.file("devices/system/cpu/online", format!("{}\n", all_cpus(nodes)))
}

fn all_cpus(nodes: &[NumaNode]) -> String {
    let mut all: Vec<u32> = nodes.iter().flat_map(|node| ranges(&node.cpus)).flatten().collect();
    all.sort_unstable();
    let ranges = all.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [only] => only.to_string(),
        _ => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    ranges.collect::<Vec<_>>().join(",")
}

/// The ranges of a kernel CPU list such as `0-3,8`.
fn ranges(list: &str) -> impl Iterator<Item = RangeInclusive<u32>> {
    list.split(',').filter_map(|range| {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        Some(from.parse().ok()?..=to.parse().ok()?)
    })
}

/// Where a GPU is, from the root of sysfs. A guest of Hyper-V sees its devices below a virtual bus, and no PCIe root as
/// first directory.
fn gpu_path(index: usize, gpu: &Gpu) -> String {
    let bus_id = &gpu.bus_id;
    if let Some(root) = &gpu.pcie_root {
        return format!("{}/{bus_id}", parent(root, &gpu.bridges));
    }
    let domain = bus_id.split(':').next().unwrap_or_default();
    let device = format!("47505500-{index:04x}-0001-3130-444532304235");
    format!("devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/{device}/pci{domain}:00/{bus_id}")
}

fn parent(root: &str, bridges: &[String]) -> String {
    [&["devices".to_owned(), root.to_owned()], bridges].concat().join("/")
}

/// `0x233010DE` as sysfs shows it: device `0x2330`, vendor `0x10de`.
fn unpack(id: &str) -> (String, String) {
    let digits = format!("{:0>8}", id.trim_start_matches("0x").to_lowercase());
    let (device, vendor) = digits.split_at(4);
    (format!("0x{device}"), format!("0x{vendor}"))
}
