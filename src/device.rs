//! The domain: GPUs and what is true of them.
//!
//! Plain values, filled by [`inventory`](crate::inventory) from NVML and sysfs, read by [`slice`](crate::slice) and
//! [`claim`](crate::claim). Nothing here knows NVML, Kubernetes or a path.
//!
//! A fact that a machine does not report is `None`. It is never guessed, and one that is missing costs its attribute
//! alone, never the GPU.

pub mod attribute;
#[cfg(test)]
pub(crate) mod example;
pub mod mig;
pub mod model;
pub mod name;
pub mod nvlink;
pub mod partition;

use std::error::Error;
use std::fmt;

use crate::causes::with_causes;

pub use mig::{Mig, MigUuid, Partitioning};
pub use name::DeviceName;
pub use partition::Partition;

/// What a node has: its driver and its GPUs, sorted by device name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// What the driver says of itself.
    pub driver: Driver,
    /// The GPUs that can be offered.
    pub gpus: Vec<Gpu>,
    /// The names of GPUs that were here before and are not now. They may come back.
    pub absent: Vec<DeviceName>,
}

/// Versions of the NVIDIA driver, as NVML spells them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Driver {
    /// For example `580.105.08`. Not a semantic version: it may have leading zeros or two parts.
    pub version: Option<String>,
    /// CUDA version as NVML packs it: 1000 × major + 10 × minor.
    pub cuda_version: Option<i32>,
}

/// One physical GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// The name it is published under, promised to this UUID.
    pub name: DeviceName,
    /// The identity; everything else can change across a reboot.
    pub uuid: GpuUuid,
    /// `<minor>` of `/dev/nvidia<minor>`.
    pub minor: u32,
    /// Where it sits on the PCI bus.
    pub pci: PciAddress,
    /// As NVML reports it, for example `NVIDIA H100 80GB HBM3`.
    pub product_name: Option<String>,
    /// For example `Nvidia`, `Tesla`: the spelling that NVIDIA's driver publishes.
    pub brand: Option<&'static str>,
    /// For example `Hopper`, `Ada Lovelace`: the spelling that NVIDIA's driver publishes.
    pub architecture: Option<&'static str>,
    /// Major and minor, for example `(9, 0)`.
    pub cuda_compute_capability: Option<(u32, u32)>,
    /// Total frame buffer in bytes; `None` where CPU and GPU share one memory.
    pub memory_bytes: Option<u64>,
    /// How the GPU reaches system memory.
    pub addressing_mode: Option<AddressingMode>,
    /// Whether it can be partitioned, and how it is.
    pub mig: Mig,
    /// By whom.
    pub partitioning: Partitioning,
    /// Its NVLinks that work.
    pub links: Vec<Link>,
    /// Its place in a multi-node NVLink fabric; `None` outside one and until registration succeeded.
    pub fabric: Option<Fabric>,
    /// What the kernel says of its place in the machine.
    pub place: Place,
    /// `/dev/nvidia<minor>` is there. Without it no container can use the GPU.
    pub has_node: bool,
}

/// The UUID of a GPU as NVML prints it: `GPU-` and a UUID in lower case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct GpuUuid(String);

/// A PCI address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// Segment. More than 16 bits on some virtual machines.
    pub domain: u32,
    /// Bus number.
    pub bus: u8,
    /// Device (slot) number, 5 bits.
    pub device: u8,
    /// Function number, 3 bits.
    pub function: u8,
}

/// `nvmlDeviceAddressingModeType_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressingMode {
    /// Only explicitly mapped memory.
    None,
    /// Heterogeneous memory management.
    Hmm,
    /// Address translation services.
    Ats,
}

/// One NVLink that is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// NVLink generation: 3 on A100, 4 on H100, 5 on B200.
    pub version: Option<u32>,
    /// Where it leads.
    pub peer: Peer,
}

/// The far end of an NVLink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A GPU on this machine's PCI bus.
    Gpu(PciAddress),
    /// An NVSwitch. All switches of a machine form one fabric, and those of a tray are not on its PCI bus at all.
    Switch,
    /// Something else, not known, or a switch that does not let the GPU in.
    Other,
}

/// Membership in a multi-node NVLink fabric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fabric {
    /// UUID of the cluster, never all zeros.
    pub cluster: String,
    /// Clique within the cluster.
    pub clique: u32,
}

/// A GPU's place in the machine, from sysfs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// `pci<domain>:<bus>`.
    pub pcie_root: Option<String>,
    /// The node whose CPUs are near; `None` where firmware says -1.
    pub numa_node: Option<u32>,
    /// Further nodes as near to that one as any, on the same socket, in ascending order.
    pub numa_siblings: Vec<u32>,
    /// IOMMU group number.
    pub iommu_group: Option<u32>,
}

/// A fact, an attribute or a GPU that is not offered, and why. For people.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftOut {
    /// What is missing, with its owner: "the brand of GPU-e86cb44c-…".
    pub what: String,
    /// Why, as a sentence without a full stop.
    pub why: String,
}

/// Text that is not what it should be. Values from NVML and sysfs are data, not truth.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct ParseError {
    /// What was read.
    pub text: String,
    /// What it should have been, with its article: "a PCI address".
    pub expected: &'static str,
}

// === impl Node ===

impl Node {
    /// The same without GPU instances, which come and go with claims.
    #[must_use]
    pub fn without_instances(&self) -> Self {
        let mut node = self.clone();
        node.gpus.iter_mut().for_each(|gpu| gpu.mig.instances.clear());
        node
    }
}

// === impl LeftOut ===

impl LeftOut {
    /// With an error and its causes as the reason.
    pub fn new(what: impl Into<String>, error: &(dyn Error + 'static)) -> Self {
        Self { what: what.into(), why: with_causes(error) }
    }
}

// === impl Gpu ===

impl Gpu {
    /// Whether claims can be given all of it. One that this plugin partitions stays on offer while it is partitioned: the
    /// counters that its parts consume keep claims away.
    pub fn is_offered_whole(&self) -> bool {
        match self.partitioning {
            Partitioning::Dynamic { whole } if self.is_dynamic() => whole,
            Partitioning::Static | Partitioning::Dynamic { .. } => !self.mig.enabled,
        }
    }

    /// Whether this plugin partitions it. What has no placement cannot be partitioned, whatever was asked for.
    pub fn is_dynamic(&self) -> bool {
        self.partitioning != Partitioning::Static && self.mig.memory_slices() > 0
    }
}

// === impl GpuUuid ===

impl GpuUuid {
    /// Accepts what can safely stand in a file name, a log line and an attribute: `GPU-` and up to 60 characters of
    /// `[0-9a-zA-Z-]`.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let error = || ParseError { text: text.to_owned(), expected: "a GPU UUID" };
        let rest = text.strip_prefix("GPU-").ok_or_else(error)?;
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if rest.is_empty() || rest.len() > 60 || !rest.chars().all(plain) {
            return Err(error());
        }
        Ok(Self(text.to_owned()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl PciAddress ===

impl PciAddress {
    /// Reads `dddd:bb:dd.f` as sysfs writes it and `DDDDDDDD:BB:DD.F` as NVML writes it.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let error = || ParseError { text: text.to_owned(), expected: "a PCI address" };
        let mut parts = text.split(':');
        let (Some(domain), Some(bus), Some(slot), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(error());
        };
        let (device, function) = slot.split_once('.').ok_or_else(error)?;
        let short = |text: &str, digits: usize| {
            if text.len() == digits { u8::from_str_radix(text, 16).map_err(|_| error()) } else { Err(error()) }
        };
        let hex = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit());
        if !matches!(domain.len(), 4..=8) || ![domain, bus, device, function].into_iter().all(hex) {
            return Err(error());
        }
        let address = Self {
            domain: u32::from_str_radix(domain, 16).map_err(|_| error())?,
            bus: short(bus, 2)?,
            device: short(device, 2)?,
            function: short(function, 1)?,
        };
        if address.device > 31 || address.function > 7 {
            return Err(error());
        }
        Ok(address)
    }
}

/// As sysfs writes it: at least four digits of domain, lower case.
impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pci_address_reads_the_same_from_nvml_and_from_sysfs() {
        let nvml = PciAddress::parse("00000009:1B:1F.7").unwrap();
        assert_eq!(nvml.to_string(), "0009:1b:1f.7");
        assert_eq!(PciAddress::parse("0009:1b:1f.7").unwrap(), nvml);
    }

    #[test]
    fn what_is_not_a_pci_address_is_refused() {
        for text in ["", "1b:00.0", "0000:1b:00", "0000:1b:20.0", "0000:1b:00.8", "0000:+b:00.0", "000000000:1b:00.0"] {
            assert!(PciAddress::parse(text).is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn a_uuid_cannot_leave_its_directory() {
        assert!(GpuUuid::parse("GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0").is_ok());
        for text in ["", "GPU-", "GPU-../../etc", "MIG-e86cb44c", "GPU-a b"] {
            assert!(GpuUuid::parse(text).is_err(), "{text:?} was accepted");
        }
    }
}
