//! Every attribute, for people and for tests.

use super::Kind;

/// One attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attribute {
    /// Without a domain it is in the driver's.
    pub name: &'static str,
    /// Its type, the same on every device.
    pub kind: Kind,
    /// Who else has it.
    pub origin: Origin,
    /// What it says, in Markdown.
    pub about: &'static str,
    /// When a device lacks it, as the end of "omitted …"; `None` if every device has it.
    pub omitted: Option<&'static str>,
    /// A CEL expression that some devices match, and that fails on none.
    pub example: &'static str,
}

/// Who else has an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// NVIDIA's own driver publishes it, with this name, type and spelling.
    Nvidia,
    /// Only this driver does.
    Ours,
}

/// Every attribute of a GPU, and of a part of one.
pub const ALL: [Attribute; 23] = {
    use Kind::{Bool, Int, String, Version};
    [
        nvidia(
            "type",
            String,
            "What the device is: `gpu` for a whole GPU, `mig` for a part of one.",
            r#"device.attributes["gpu.nvidia.com"].type == "gpu""#,
        ),
        nvidia(
            "uuid",
            String,
            "The UUID that NVML and nvidia-smi print. Empty on a MIG device that is made when a claim asks for it.",
            r#"device.attributes["gpu.nvidia.com"].uuid == "GPU-50679f0e-63af-04db-1989-74b23d854dbf""#,
        ),
        nvidia(
            "parentUUID",
            String,
            "The UUID of the physical GPU, equal on all parts of one. A whole GPU carries its own, where NVIDIA's driver \
             has none.",
            r#"device.attributes["gpu.nvidia.com"].parentUUID == device.attributes["gpu.nvidia.com"].uuid"#,
        ),
        nvidia(
            "profile",
            String,
            "The MIG profile, for example `1g.5gb`. Empty on a whole GPU, where NVIDIA's driver has none.",
            r#"device.attributes["gpu.nvidia.com"].profile == """#,
        ),
        nvidia(
            "productName",
            String,
            "As NVML reports it, for example `NVIDIA H100 80GB HBM3`. Empty if unknown, and cut after 64 bytes.",
            r#"device.attributes["gpu.nvidia.com"].productName.lowerAscii().matches("^.*h100.*$")"#,
        ),
        nvidia(
            "brand",
            String,
            "For example `Nvidia`, `Tesla`, `GeForceRTX`. Empty if unknown.",
            r#"device.attributes["gpu.nvidia.com"].brand == "Nvidia""#,
        ),
        nvidia(
            "architecture",
            String,
            "For example `Ampere`, `Ada Lovelace`, `Hopper`, `Blackwell`. Empty if unknown.",
            r#"device.attributes["gpu.nvidia.com"].architecture in ["Hopper", "Blackwell"]"#,
        ),
        nvidia(
            "cudaComputeCapability",
            Version,
            "For example `9.0.0`.",
            r#"device.attributes["gpu.nvidia.com"].?cudaComputeCapability.orValue(semver("0.0.0")).compareTo(semver("9.0.0")) >= 0"#,
        )
        .omitted("if NVML does not say"),
        nvidia(
            "driverVersion",
            Version,
            "Without leading zeros: `570.86.10` is the driver 570.086.10.",
            r#"device.attributes["gpu.nvidia.com"].?driverVersion.orValue(semver("0.0.0")).compareTo(semver("570.86.0")) >= 0"#,
        )
        .omitted("if NVML does not say, or says something else than one to three numbers"),
        nvidia(
            "cudaDriverVersion",
            Version,
            "The newest CUDA version that the driver serves, for example `13.0.0`.",
            r#"device.attributes["gpu.nvidia.com"].?cudaDriverVersion.orValue(semver("0.0.0")).isGreaterThan(semver("12.3.0"))"#,
        )
        .omitted("if NVML does not say"),
        nvidia(
            "addressingMode",
            String,
            "How the GPU reaches system memory: `HMM`, `ATS` or `None`. Empty if the driver does not report it.",
            r#"device.attributes["gpu.nvidia.com"].addressingMode in ["ATS", "HMM"]"#,
        ),
        nvidia(
            "resource.kubernetes.io/pciBusID",
            String,
            "The PCI address, for example `0000:1b:00.0`.",
            r#"device.attributes["resource.kubernetes.io"].?pciBusID.orValue("") == "0000:1b:00.0""#,
        )
        .omitted("if the PCI domain has more than the four digits of the standard, as on some virtual machines"),
        nvidia(
            "resource.kubernetes.io/pcieRoot",
            String,
            "The PCIe root, for example `pci0000:16`. Devices of other drivers have it too: constrain it to be equal to get \
             a GPU and a NIC under one root.",
            r#"device.attributes["resource.kubernetes.io"].?pcieRoot.orValue("").startsWith("pci0000:")"#,
        )
        .omitted("where a virtual machine hides it"),
        nvidia(
            "resource.kubernetes.io/numaNode",
            Int,
            "The NUMA node of the nearest CPUs.",
            r#"device.attributes["resource.kubernetes.io"].?numaNode.orValue(-1) == 0"#,
        )
        .omitted("where firmware does not say"),
        ours(
            "model",
            String,
            "The short name, for example `A100`, `H100`, `L40S`. Empty if unknown.",
            r#"device.attributes["gpu.nvidia.com"].model in ["A100", "H100"]"#,
        ),
        ours("migCapable", Bool, "The board can be partitioned.", r#"device.attributes["gpu.nvidia.com"].migCapable"#),
        ours(
            "migEnabled",
            Bool,
            "True on parts of GPUs, false on whole ones. A GPU that is offered both ways is not written anew when MIG mode is \
             switched for a claim.",
            r#"!device.attributes["gpu.nvidia.com"].migEnabled"#,
        ),
        ours(
            "nvlinkVersion",
            Int,
            "The generation of the NVLinks that are up: 3 on A100, 4 on H100, 5 on B200. 0 if none is, and on MIG devices, \
             which have none.",
            r#"device.attributes["gpu.nvidia.com"].nvlinkVersion >= 4"#,
        ),
        ours(
            "nvlinkLinks",
            Int,
            "How many NVLinks are up: 12 on a sound A100, 18 on H100 and B200. 0 on MIG devices.",
            r#"device.attributes["gpu.nvidia.com"].nvlinkLinks >= 12"#,
        ),
        ours(
            "nvlinkDomain",
            String,
            "Equal on devices that reach each other over NVLink, directly or through others. Where a fabric spans nodes, \
             `<cluster UUID>.<clique>` of the fabric; else it begins with `GPU-` and is found on this node alone.",
            r#"device.attributes["gpu.nvidia.com"].nvlinkDomain.startsWith("GPU-")"#,
        ),
        ours(
            "nvlinkClique",
            String,
            "Equal on devices of which each is linked to each: all GPUs on one NVSwitch fabric, both of a bridge, the four \
             of a quad.",
            r#"device.attributes["gpu.nvidia.com"].nvlinkClique == "GPU-1a8e9568-3ea5-41d5-c5e7-805da923b6c9""#,
        ),
        ours(
            "nvlinkPair",
            String,
            "Equal on two devices that are linked. Every GPU is in one pair at most, and the pairs are those with the most \
             links; where all have as many, neighbours under one PCIe root.",
            r#"device.attributes["gpu.nvidia.com"].nvlinkPair == "GPU-c880a5f6-123f-85c8-79d9-96b529288fd7""#,
        ),
        ours(
            "iommuGroup",
            Int,
            "The IOMMU group. Devices of one group can only be passed to a virtual machine together.",
            r#"device.attributes["gpu.nvidia.com"].?iommuGroup.orValue(-1) >= 0"#,
        )
        .omitted("while the IOMMU is off"),
    ]
};

/// Where an attribute stands in the reference; behind it all if it is not there.
pub fn position(name: &str) -> usize {
    ALL.iter().position(|attribute| attribute.name == name).unwrap_or(ALL.len())
}

/// The type that the reference gives an attribute; those that are lists and nothing else are not in it.
pub fn kind(name: &str) -> Option<Kind> {
    ALL.iter().find(|attribute| attribute.name == name).map(|attribute| attribute.kind)
}

const fn nvidia(name: &'static str, kind: Kind, about: &'static str, example: &'static str) -> Attribute {
    Attribute { name, kind, origin: Origin::Nvidia, about, omitted: None, example }
}

const fn ours(name: &'static str, kind: Kind, about: &'static str, example: &'static str) -> Attribute {
    Attribute { name, kind, origin: Origin::Ours, about, omitted: None, example }
}

// === impl Attribute ===

impl Attribute {
    const fn omitted(self, when: &'static str) -> Self {
        Self { omitted: Some(when), ..self }
    }
}
