//! What a device says of itself to CEL selectors and to constraints.
//!
//! [`ALL`] is the reference; `docs/attributes.md` is made from it. Names, types and spellings of the first part are those
//! of NVIDIA's own driver, so that what was written for it keeps working; the second part is ours.
//!
//! Every device carries every attribute, always with the same type: a selector that meets a device without the key it
//! asks for does not skip the device, it aborts the pod's scheduling. A string that is not known is empty and a count is
//! 0. Only what has no such value is omitted: versions, those of the standard attributes whose definition says so, and
//! `iommuGroup`, since there is a group 0.

mod part;
mod reference;

use std::collections::BTreeMap;

pub use part::of_part;
pub use reference::{ALL, Attribute, Origin, kind, position};

use super::model::model;
use super::nvlink::{self, NvLink};
use super::{AddressingMode, Driver, Gpu, LeftOut, Node};

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A 64-bit integer.
    Int(i64),
    /// True or false.
    Bool(bool),
    /// The API takes 64 bytes; longer ones are cut where slices are laid out.
    String(String),
    /// A strict semantic version.
    Version(semver::Version),
    /// Several integers. The API takes lists only with the gate DRAListTypeAttributes.
    Ints(Vec<i64>),
    /// Several strings, each like [`Value::String`].
    Strings(Vec<String>),
}

/// The type of an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// [`Value::Int`]
    Int,
    /// [`Value::Bool`]
    Bool,
    /// [`Value::String`]
    String,
    /// [`Value::Version`]
    Version,
    /// [`Value::Ints`]
    Ints,
    /// [`Value::Strings`]
    Strings,
}

/// Whether attributes may be lists. Where the cluster's gate DRAListTypeAttributes is off, the API server refuses a slice
/// that has one; such a server gets the scalars after all, see [`fallback`](crate::slice::fallback). But that the gate is
/// off in the scheduler shows only in pods that stay pending, so lists are for those who ask for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// Every attribute has one value.
    #[default]
    Scalar,
    /// `numaNode` is a list, and there is `nvlinkCliques`.
    List,
}

/// The attributes of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// By name.
    pub values: BTreeMap<&'static str, Value>,
    /// What is known and has no form as an attribute.
    pub left_out: Vec<LeftOut>,
}

/// The attributes of each GPU of a node, in its order.
pub fn of_node(node: &Node, form: Form) -> Vec<Attributes> {
    let nvlink = nvlink::topology(&node.gpus);
    node.gpus.iter().zip(&nvlink).map(|(gpu, nvlink)| of_gpu(gpu, &node.driver, nvlink, form)).collect()
}

fn of_gpu(gpu: &Gpu, driver: &Driver, nvlink: &NvLink, form: Form) -> Attributes {
    let mut set = Attributes { values: BTreeMap::new(), left_out: Vec::new() };
    let owner = gpu.uuid.as_str();
    let product_name = gpu.product_name.as_deref().unwrap_or_default();

    set.string("type", "gpu");
    set.string("uuid", owner);
    set.string("parentUUID", owner);
    set.string("profile", "");
    set.string("productName", product_name);
    set.string("brand", gpu.brand.unwrap_or_default());
    set.string("architecture", gpu.architecture.unwrap_or_default());
    let capability = gpu.cuda_compute_capability.map(|(major, minor)| format!("{major}.{minor}"));
    set.version("cudaComputeCapability", capability.as_deref());
    set.version("driverVersion", driver.version.as_deref());
    let cuda_version = driver.cuda_version.map(|packed| format!("{}.{}", packed / 1000, packed % 1000 / 10));
    set.version("cudaDriverVersion", cuda_version.as_deref());
    set.string("addressingMode", gpu.addressing_mode.map_or("", addressing_mode));
    if u16::try_from(gpu.pci.domain).is_ok() {
        set.string("resource.kubernetes.io/pciBusID", &gpu.pci.to_string());
    } else {
        let why = format!("the PCI domain of {} has more than the four digits that the standard allows", gpu.pci);
        set.leave_out(&format!("pciBusID of {owner}"), why);
    }
    if let Some(root) = &gpu.place.pcie_root {
        set.string("resource.kubernetes.io/pcieRoot", root);
    }
    match (gpu.place.numa_node, form) {
        (Some(node), Form::Scalar) => set.int("resource.kubernetes.io/numaNode", node),
        (Some(node), Form::List) => {
            let near = [node].iter().chain(&gpu.place.numa_siblings).map(|node| i64::from(*node)).collect();
            set.values.insert("resource.kubernetes.io/numaNode", Value::Ints(near));
        }
        (None, _) => {}
    }

    set.string("model", model(product_name));
    set.values.insert("migCapable", Value::Bool(gpu.mig.capable));
    // Of a GPU that a claim switches to MIG mode and back, nothing changes by that.
    set.values.insert("migEnabled", Value::Bool(!gpu.is_offered_whole()));
    set.int("nvlinkVersion", nvlink.version);
    set.int("nvlinkLinks", nvlink.links);
    set.string("nvlinkDomain", &nvlink.domain);
    set.string("nvlinkClique", &nvlink.clique);
    set.string("nvlinkPair", &nvlink.pair);
    if form == Form::List {
        set.values.insert("nvlinkCliques", Value::Strings(nvlink.cliques.clone()));
    }
    if let Some(group) = gpu.place.iommu_group {
        set.int("iommuGroup", group);
    }
    set
}

/// In the spelling that NVIDIA's driver publishes.
fn addressing_mode(mode: AddressingMode) -> &'static str {
    match mode {
        AddressingMode::None => "None",
        AddressingMode::Hmm => "HMM",
        AddressingMode::Ats => "ATS",
    }
}

/// One to three numbers, with or without leading zeros, as a strict semantic version: `615.23` becomes `615.23.0`, and
/// `570.086.10` becomes `570.86.10`.
fn strict(text: &str) -> Option<semver::Version> {
    let mut parts = [0_u64; 3];
    for (at, part) in text.split('.').enumerate() {
        if !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *parts.get_mut(at)? = part.parse().ok()?;
    }
    let [major, minor, patch] = parts;
    Some(semver::Version::new(major, minor, patch))
}

// === impl Attributes ===

impl Attributes {
    fn string(&mut self, name: &'static str, text: &str) {
        self.values.insert(name, Value::String(text.to_owned()));
    }

    fn int(&mut self, name: &'static str, number: u32) {
        self.values.insert(name, Value::Int(number.into()));
    }

    fn version(&mut self, name: &'static str, text: Option<&str>) {
        let Some(text) = text else { return };
        if let Some(version) = strict(text) {
            self.values.insert(name, Value::Version(version));
        } else {
            self.leave_out(name, format!("{text:?} is not a version of up to three numbers"));
        }
    }

    fn leave_out(&mut self, what: &str, why: String) {
        self.left_out.push(LeftOut { what: format!("the attribute {what}"), why });
    }
}

// === impl Value ===

impl Value {
    /// Its type.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Int(_) => Kind::Int,
            Self::Bool(_) => Kind::Bool,
            Self::String(_) => Kind::String,
            Self::Version(_) => Kind::Version,
            Self::Ints(_) => Kind::Ints,
            Self::Strings(_) => Kind::Strings,
        }
    }

    /// Whether it is a list, of however many values.
    pub fn is_list(&self) -> bool {
        matches!(self, Self::Ints(_) | Self::Strings(_))
    }

    /// How many values it is, as the API counts them.
    pub fn count(&self) -> usize {
        match self {
            Self::Ints(list) => list.len(),
            Self::Strings(list) => list.len(),
            Self::Int(_) | Self::Bool(_) | Self::String(_) | Self::Version(_) => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceName, GpuUuid, Mig, Partitioning, PciAddress, Place};

    fn h100() -> Gpu {
        Gpu {
            name: DeviceName::gpu(0),
            uuid: GpuUuid::parse("GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0").unwrap(),
            minor: 0,
            pci: PciAddress::parse("00000000:1B:00.0").unwrap(),
            product_name: Some("NVIDIA H100 80GB HBM3".to_owned()),
            brand: Some("Nvidia"),
            architecture: Some("Hopper"),
            cuda_compute_capability: Some((9, 0)),
            memory_bytes: Some(81559 << 20),
            addressing_mode: Some(AddressingMode::Hmm),
            mig: Mig { capable: true, ..Mig::default() },
            partitioning: Partitioning::Static,
            links: Vec::new(),
            fabric: None,
            place: Place {
                pcie_root: Some("pci0000:16".to_owned()),
                numa_node: Some(0),
                iommu_group: Some(40),
                ..Place::default()
            },
            has_node: true,
        }
    }

    fn driver() -> Driver {
        Driver { version: Some("580.105.08".to_owned()), cuda_version: Some(13000) }
    }

    fn attributes(gpu: Gpu, driver: Driver) -> Attributes {
        of_node(&Node { driver, gpus: vec![gpu], ..Node::default() }, Form::Scalar).remove(0)
    }

    fn text(attributes: &Attributes, name: &str) -> String {
        match &attributes.values[name] {
            Value::String(text) => text.clone(),
            Value::Version(version) => version.to_string(),
            other => panic!("{name} is {other:?}"),
        }
    }

    #[test]
    fn a_whole_gpu_carries_every_attribute_of_the_reference_with_its_type() {
        let attributes = attributes(h100(), driver());
        assert_eq!(attributes.left_out, []);
        let published: Vec<_> = attributes.values.iter().map(|(name, value)| (*name, value.kind())).collect();
        let mut reference: Vec<_> = ALL.iter().map(|attribute| (attribute.name, attribute.kind)).collect();
        reference.sort_by_key(|(name, _)| *name);
        assert_eq!(published, reference);
        assert_eq!(text(&attributes, "parentUUID"), text(&attributes, "uuid"));
        assert_eq!(text(&attributes, "driverVersion"), "580.105.8");
        assert_eq!(text(&attributes, "cudaDriverVersion"), "13.0.0");
        assert_eq!(text(&attributes, "cudaComputeCapability"), "9.0.0");
        assert_eq!(text(&attributes, "resource.kubernetes.io/pciBusID"), "0000:1b:00.0");
    }

    #[test]
    fn a_gpu_of_which_nothing_is_known_still_carries_all_but_the_versions_and_its_place() {
        let mut gpu = h100();
        gpu.product_name = None;
        gpu.brand = None;
        gpu.architecture = None;
        gpu.cuda_compute_capability = None;
        gpu.addressing_mode = None;
        gpu.place = Place::default();
        let attributes = attributes(gpu, Driver::default());
        let missing: Vec<_> = ALL.iter().map(|a| a.name).filter(|name| !attributes.values.contains_key(name)).collect();
        assert_eq!(
            missing,
            [
                "cudaComputeCapability",
                "driverVersion",
                "cudaDriverVersion",
                "resource.kubernetes.io/pcieRoot",
                "resource.kubernetes.io/numaNode",
                "iommuGroup"
            ]
        );
        for name in ["productName", "brand", "architecture", "addressingMode", "model", "profile"] {
            assert_eq!(text(&attributes, name), "");
        }
        assert_eq!(attributes.left_out, [], "what could not be read is told by who read it");
    }

    #[test]
    fn lists_are_added_only_where_they_are_asked_for() {
        let mut gpu = h100();
        gpu.place.numa_siblings = vec![1, 2];
        let node = Node { driver: driver(), gpus: vec![gpu.clone()], ..Node::default() };
        let [scalars, mut lists] = [Form::Scalar, Form::List].map(|form| of_node(&node, form).remove(0).values);
        assert_eq!(lists.remove("nvlinkCliques"), Some(Value::Strings(vec![gpu.uuid.to_string()])));
        let near = lists.insert("resource.kubernetes.io/numaNode", Value::Int(0));
        assert_eq!(near, Some(Value::Ints(vec![0, 1, 2])), "its own node first");
        assert_eq!(lists, scalars, "all else is the same");
    }

    #[test]
    fn versions_become_strict_or_are_left_out() {
        let cases = [
            ("570.086.10", Some("570.86.10")),
            ("580.65.06", Some("580.65.6")),
            ("550.54", Some("550.54.0")),
            ("615.23", Some("615.23.0")),
            ("580", Some("580.0.0")),
            ("000.00.00", Some("0.0.0")),
            ("", None),
            ("580.", None),
            ("580.65.06.01", None),
            ("580.65-beta", None),
            ("v580.65", None),
            ("-1.0", None),
            ("+1.0", None),
            ("99999999999999999999.1", None),
        ];
        for (text, expected) in cases {
            assert_eq!(strict(text).map(|version| version.to_string()).as_deref(), expected, "{text}");
        }
        let odd = Driver { version: Some("git-1a2b3c".to_owned()), cuda_version: Some(-1000) };
        let attributes = attributes(h100(), odd);
        assert!(
            !attributes.values.contains_key("driverVersion") && !attributes.values.contains_key("cudaDriverVersion")
        );
        assert_eq!(attributes.left_out.len(), 2);
        assert_eq!(attributes.left_out[0].what, "the attribute driverVersion");
    }

    #[test]
    fn a_bus_id_that_the_standard_cannot_express_is_omitted() {
        let mut gpu = h100();
        gpu.pci.domain = 0x1_0000;
        let attributes = attributes(gpu, driver());
        assert!(!attributes.values.contains_key("resource.kubernetes.io/pciBusID"));
        assert!(attributes.left_out[0].why.contains("10000:1b:00.0"));
    }
}
