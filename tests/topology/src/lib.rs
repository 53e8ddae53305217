//! One machine with GPUs, described by a file.
//!
//! A topology says what a real machine's NVML and kernel report: boards, GPUs, NVLinks, fabric, PCIe and NUMA. The
//! files under `tests/topology/files` are such machines, each with the public source of its numbers. Two readers share
//! this crate so that they cannot disagree: `mock-nvml` answers NVML calls from it, and `fake-node` builds `/sys`,
//! `/proc`, `/dev` and the driver root from it. The files are compiled in: [`Topology::builtin`].
//!
//! ```text
//!  files/dgx-h100.json ──▶ Topology ──▶ NodeDir::create ──▶ <dir>/topology.json   what the machine is
//!                                                           <dir>/state.json      what happened to it since (a test writes)
//!                                                           <dir>/events.jsonl    events for NVML event sets (appended)
//!                                                           <dir>/host.json       where /proc and /dev are, if anywhere
//! ```
//!
//! State is on disk, not in memory, because several processes of one node look at it at the same time: the plugin, a
//! stand-in for `nvidia-smi`, and the test that makes things happen.

mod admin;
mod builtin;
mod host_files;
pub mod mig;
mod node_dir;
mod state;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use admin::{MigDevice, Switched, mig_uuid};
pub use host_files::{CapabilityNodes, HostFiles};
pub use node_dir::{Error, NodeDir};
pub use state::{Event, Fault, GpuState, LinkState, State};

/// A machine: its driver, its sockets, and its GPUs in NVML index order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// One line for people: what machine this is.
    pub description: String,
    /// Where the values were read: captures, reports, tables.
    pub source: String,
    /// What the driver says of itself.
    pub system: System,
    /// What the kernel says of the machine.
    pub host: Host,
    /// Board types on this machine, by a short name that [`Gpu::board`] refers to.
    pub boards: BTreeMap<String, Board>,
    /// MIG tables that are not among the built-in ones, or instead of those.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mig_tables: BTreeMap<String, mig::Table>,
    /// GPUs in NVML index order. Index, minor and bus order differ on real machines.
    pub gpus: Vec<Gpu>,
}

/// Driver and library versions, as NVML spells them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct System {
    /// `nvmlSystemGetDriverVersion`, for example `580.105.08`.
    pub driver_version: String,
    /// `nvmlSystemGetNVMLVersion`, for example `13.580.105.08`.
    pub nvml_version: String,
    /// `nvmlSystemGetCudaDriverVersion`: 1000 × major + 10 × minor, so `13000` is CUDA 13.0.
    pub cuda_version: i32,
}

/// Sockets and NUMA nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// NUMA nodes with their CPUs, in id order.
    pub numa_nodes: Vec<NumaNode>,
    /// NVSwitches on this machine's PCI bus; none where they are in a tray of their own or hidden from a guest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nvswitches: Vec<NvSwitch>,
}

/// One NUMA node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumaNode {
    /// The number in `/sys/devices/system/node/node<id>`.
    pub id: u32,
    /// CPU list in kernel form, for example `0-55,112-167`; empty for a memory-only node.
    pub cpus: String,
    /// The processor package its CPUs are in: `/sys/devices/system/cpu/cpu<n>/topology/physical_package_id`.
    #[serde(default)]
    pub socket: u32,
    /// Distances to all nodes in the order of [`Host::numa_nodes`], as firmware's SLIT gives them (10 is the node
    /// itself); empty where firmware has none, and the kernel then says 10 and 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distances: Vec<u32>,
}

/// An NVSwitch as a PCI device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvSwitch {
    /// PCI address in sysfs form; [`LinkEnd::Switch`] refers to it.
    pub bus_id: String,
    /// PCI devices between the root and the switch, outermost first.
    #[serde(default)]
    pub bridges: Vec<String>,
    /// The PCIe root, `pci<domain>:<bus>`.
    pub pcie_root: String,
    /// As for a GPU.
    pub numa_node: i32,
    /// As for a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iommu_group: Option<u32>,
    /// PCI device and vendor id in the form of [`Board::pci_device_id`], for example `0x22A310DE`.
    pub pci_device_id: String,
}

/// What all GPUs of one board type have in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Board {
    /// `nvmlDeviceGetName`, for example `NVIDIA H100 80GB HBM3`.
    pub product_name: String,
    /// `nvmlBrandType_t`; 14 is NVIDIA, 2 is Tesla.
    pub brand: u32,
    /// `nvmlDeviceArchitecture_t`: 6 Turing, 7 Ampere, 8 Ada, 9 Hopper, 10 Blackwell.
    pub architecture: u32,
    /// Major and minor, for example `[9, 0]`.
    pub cuda_compute_capability: [i32; 2],
    /// Total frame buffer in MiB.
    pub memory_mib: u64,
    /// Part of the frame buffer that the driver keeps, in MiB.
    #[serde(default)]
    pub memory_reserved_mib: u64,
    /// BAR1 size in MiB.
    #[serde(default)]
    pub bar1_mib: u64,
    /// PCI device and vendor id as NVML packs them, for example `0x233010DE`.
    pub pci_device_id: String,
    /// PCI subsystem id as NVML packs it; `0x00000000` where no capture has it.
    pub pci_subsystem_id: String,
    /// Highest PCIe generation and link width.
    #[serde(default)]
    pub pcie_generation: u32,
    /// VBIOS version string.
    #[serde(default)]
    pub vbios_version: String,
    /// `none`, `hmm` or `ats`; absent where the call answers NOT_SUPPORTED.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addressing_mode: Option<AddressingMode>,
    /// Whether the board can be partitioned; false makes `nvmlDeviceGetMigMode` answer NOT_SUPPORTED.
    #[serde(default)]
    pub mig_capable: bool,
    /// What it can be partitioned into: a table of [`Topology::mig_tables`], or a [built-in one](mig::Table::builtin).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<String>,
    /// Whether ECC and row remapping exist (all data-centre boards).
    #[serde(default)]
    pub ecc: bool,
    /// Enforced power limit in watts.
    #[serde(default)]
    pub power_limit_watts: u32,
    /// Chip-to-chip link to a Grace CPU.
    #[serde(default)]
    pub c2c: bool,
}

/// `nvmlDeviceAddressingModeType_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressingMode {
    /// 0
    None,
    /// 1: heterogeneous memory management.
    Hmm,
    /// 2: address translation services.
    Ats,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Key into [`Topology::boards`].
    pub board: String,
    /// `GPU-` and a UUID in lower case.
    pub uuid: String,
    /// Board serial number; two GPUs of one GB200 superchip share one, consumer boards have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// `<minor>` of `/dev/nvidia<minor>`.
    pub minor: u32,
    /// Module (socket) number on an HGX base board.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module_id: Option<u32>,
    /// PCI address `dddd:bb:dd.f` in lower case, as sysfs names it.
    pub bus_id: String,
    /// PCI devices between the root and the GPU, outermost first, in sysfs form. GPUs that share an entry sit behind
    /// the same PCIe switch.
    #[serde(default)]
    pub bridges: Vec<String>,
    /// The PCIe root, `pci<domain>:<bus>`; absent in virtual machines whose device tree hides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_root: Option<String>,
    /// `/sys/bus/pci/devices/<bdf>/numa_node`; -1 where firmware does not say.
    pub numa_node: i32,
    /// IOMMU group number; absent with the IOMMU off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iommu_group: Option<u32>,
    /// NVLink generation (3 A100, 4 H100, 5 B200); absent without NVLink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink_version: Option<u32>,
    /// NVLinks in link order, grouped by where they lead; empty without NVLink.
    #[serde(default)]
    pub nvlinks: Vec<LinkGroup>,
    /// What the NVLink fabric registration reports; absent where the call answers NOT_SUPPORTED.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<Fabric>,
    /// Whether MIG mode is on at start.
    #[serde(default)]
    pub mig_enabled: bool,
    /// `nvmlGpuVirtualizationMode_t`: 0 bare metal, 1 pass-through.
    #[serde(default)]
    pub virtualization_mode: u32,
}

/// Consecutive NVLinks that lead to the same place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkGroup {
    /// How many links.
    pub count: u32,
    /// Where they lead.
    pub to: LinkEnd,
    /// Whether the links are up at start.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub active: bool,
}

/// The far end of an NVLink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkEnd {
    /// Another GPU of this machine, by index.
    Gpu(usize),
    /// An NVSwitch on this machine's PCI bus, by sysfs address.
    Switch(String),
    /// An NVSwitch that is not on this machine's PCI bus (virtual machines, NVL72 trays): NVML reports the address
    /// `FFFFFFFF:FF:FF.0`.
    Fabric,
}

/// `nvmlGpuFabricInfo`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// `nvmlGpuFabricState_t`: 0 not supported, 1 not started, 2 in progress, 3 completed.
    pub state: u8,
    /// NVML return code of the registration; 0 is success.
    pub status: u32,
    /// Cluster UUID in canonical form; all zeros outside a multi-node fabric.
    pub cluster_uuid: String,
    /// Clique within the cluster.
    pub clique_id: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_yes(value: &bool) -> bool {
    *value
}

fn yes() -> bool {
    true
}

// === impl Topology ===

impl Topology {
    /// Reads and checks a topology.
    pub fn parse(json: &str) -> Result<Self, Error> {
        let topology: Self = serde_json::from_str(json).map_err(Error::Parse)?;
        topology.check()?;
        Ok(topology)
    }

    /// The board of a GPU of this topology.
    pub fn board(&self, gpu: &Gpu) -> &Board {
        // `check` has seen every reference.
        &self.boards[&gpu.board]
    }

    /// What a board can be partitioned into; nothing where it cannot, or where no table is known.
    pub fn mig_table(&self, board: &Board) -> Option<&mig::Table> {
        let name = board.mig.as_ref().filter(|_| board.mig_capable)?;
        self.mig_tables.get(name).or_else(|| mig::Table::builtin(name).ok())
    }

    /// The CPUs next to a GPU, in kernel list form; empty where the NUMA node is unknown.
    pub fn cpus_near(&self, gpu: &Gpu) -> &str {
        let node = u32::try_from(gpu.numa_node).ok();
        self.host.numa_nodes.iter().find(|n| Some(n.id) == node).map_or("", |n| n.cpus.as_str())
    }

    fn check(&self) -> Result<(), Error> {
        let invalid = |what: String| Err(Error::Invalid(what));
        let nodes = &self.host.numa_nodes;
        if let Some(node) = nodes.iter().find(|n| !n.distances.is_empty() && n.distances.len() != nodes.len()) {
            return invalid(format!(
                "numa node {} has {} distances to {} nodes",
                node.id,
                node.distances.len(),
                nodes.len()
            ));
        }
        for name in self.boards.values().filter_map(|board| board.mig.as_ref()) {
            if !self.mig_tables.contains_key(name) {
                mig::Table::builtin(name)?;
            }
        }
        for (index, gpu) in self.gpus.iter().enumerate() {
            if !self.boards.contains_key(&gpu.board) {
                return invalid(format!("gpu {index} names the board {:?}, which is not in boards", gpu.board));
            }
            for group in &gpu.nvlinks {
                if let LinkEnd::Gpu(peer) = group.to
                    && (peer >= self.gpus.len() || peer == index)
                {
                    return invalid(format!("gpu {index} has links to gpu {peer}"));
                }
            }
            for other in &self.gpus[..index] {
                if other.uuid == gpu.uuid || other.minor == gpu.minor || other.bus_id == gpu.bus_id {
                    return invalid(format!("gpu {index} repeats a uuid, minor or bus id"));
                }
            }
        }
        Ok(())
    }
}
