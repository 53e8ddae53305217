//! What the node offers, as ResourceSlices: devices → a pool of slices.
//!
//! Pure. [`cluster`](crate::cluster) turns a [`Pool`] into objects of whichever API version the server speaks. The same
//! node gives the same pool, to the byte, so that an unchanged node writes nothing. What a server does not keep of it is
//! taken out by [`fallback`].

pub mod fallback;
mod limits;
pub mod quantity;

use std::collections::BTreeMap;

use crate::device::attribute::{self, Form, Value};
use crate::device::{DeviceName, Gpu, LeftOut, Node};

/// All slices of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Its name; the driver and this name identify the pool in the cluster.
    pub name: String,
    /// At least one: a node without devices publishes one empty slice, to say that the driver runs and found nothing.
    pub slices: Vec<Slice>,
}

/// One ResourceSlice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slice {
    /// In the order in which the scheduler shall try them.
    pub devices: Vec<Device>,
    /// What the devices of the whole pool consume from. A slice has sets or devices, never both: so it is since Kubernetes
    /// 1.35. The alpha feature of 1.33 and 1.34 wanted them in one slice; to those releases counters are not offered.
    pub shared_counters: Vec<CounterSet>,
}

/// What a GPU that is offered whole and in parts has of each thing that they take away from each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterSet {
    /// A DNS label, unique in the pool.
    pub name: String,
    /// How much there is.
    pub counters: Counters,
}

/// Amounts by name, which is a DNS label: `memory-slice-0`.
pub type Counters = BTreeMap<String, u64>;

/// Why a device is not to be used, or what to know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    /// A label's name, in the driver's domain.
    pub key: String,
    /// A label's value: letters, digits, `-`, `_` and `.`. May be empty.
    pub value: String,
    /// What it does to claims that do not tolerate it.
    pub effect: Effect,
}

/// What a taint does. When it was added is for the API server to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Nothing: it informs. Since Kubernetes 1.35.
    None,
    /// The device is not allocated any more.
    NoSchedule,
    /// And pods that use it are evicted.
    NoExecute,
}

/// One device of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Unique in the pool.
    pub name: DeviceName,
    /// By name; names without a domain are in the driver's.
    pub attributes: BTreeMap<&'static str, Value>,
    /// By name, as canonical Kubernetes quantities.
    pub capacity: BTreeMap<&'static str, String>,
    /// What it takes from counter sets of the pool, by their name.
    pub consumes_counters: BTreeMap<String, Counters>,
    /// In any order.
    pub taints: Vec<Taint>,
}

/// Lays out a node's devices, sorted by name, within the limits of the API.
///
/// A GPU in MIG mode is not offered: nobody can use it as a whole. Nor is one without a device node: nobody can use it at
/// all.
pub fn pool(name: &str, node: &Node) -> Pool {
    pool_in(Form::Scalar, name, node)
}

/// As [`pool`], with or without attributes that are lists.
pub fn pool_in(form: Form, name: &str, node: &Node) -> Pool {
    let (counters, devices, _) = offer(node, form);
    Pool { name: name.to_owned(), slices: laid_out(&counters, &devices) }
}

/// What of a node is not in its pool, and why.
pub fn left_out(form: Form, node: &Node) -> Vec<LeftOut> {
    offer(node, form).2
}

/// Sets of counters come first, so that a server that does not keep them is found out before it has a device.
fn laid_out(counters: &[CounterSet], devices: &[Device]) -> Vec<Slice> {
    let counters = counters.chunks(limits::COUNTER_SETS);
    let counters = counters.map(|sets| Slice { shared_counters: sets.to_vec(), ..Slice::default() });
    let devices = devices.chunks(limits::DEVICES);
    let devices = devices.map(|devices| Slice { devices: devices.to_vec(), ..Slice::default() });
    let mut slices: Vec<_> = counters.chain(devices).collect();
    if slices.is_empty() {
        slices.push(Slice::default());
    }
    slices
}

fn offer(node: &Node, form: Form) -> (Vec<CounterSet>, Vec<Device>, Vec<LeftOut>) {
    let mut left_out = Vec::new();
    let mut devices = Vec::new();
    for (gpu, attributes) in node.gpus.iter().zip(attribute::of_node(node, form)) {
        if gpu.mig.enabled {
            let why = "it is in MIG mode, and cannot be used as a whole".to_owned();
            left_out.push(LeftOut { what: format!("{} ({})", gpu.name, gpu.uuid), why });
        } else if gpu.has_node {
            left_out.extend(attributes.left_out);
            devices.push(Device {
                name: gpu.name.clone(),
                attributes: attributes.values,
                capacity: capacity(gpu),
                consumes_counters: BTreeMap::new(),
                taints: Vec::new(),
            });
        }
    }
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    // Whole GPUs overlap with nothing.
    let (counters, devices, refused) = limits::enforce(Vec::new(), devices);
    left_out.extend(refused);
    (counters, devices, left_out)
}

/// `memory` as NVIDIA's driver publishes it: the whole frame buffer. Absent where CPU and GPU share one memory.
fn capacity(gpu: &Gpu) -> BTreeMap<&'static str, String> {
    gpu.memory_bytes.map(|memory| ("memory", quantity::bytes(memory))).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::device::{Driver, GpuUuid, Link, Mig, Partitioning, PciAddress, Peer, Place};

    fn gpu(number: u32) -> Gpu {
        let bus = u8::try_from(number % 256).unwrap();
        Gpu {
            name: DeviceName::gpu(number),
            uuid: GpuUuid::parse(&format!("GPU-{number:08}")).unwrap(),
            minor: number,
            pci: PciAddress { domain: number / 256, bus, device: 0, function: 0 },
            product_name: Some("NVIDIA A100-SXM4-80GB".to_owned()),
            brand: Some("Nvidia"),
            architecture: Some("Ampere"),
            cuda_compute_capability: Some((8, 0)),
            memory_bytes: Some(80 << 30),
            addressing_mode: None,
            mig: Mig { capable: true, ..Mig::default() },
            partitioning: Partitioning::Static,
            links: vec![Link { version: Some(3), peer: Peer::Switch }; 12],
            fabric: None,
            place: Place {
                pcie_root: Some("pci0000:00".to_owned()),
                numa_node: Some(1),
                iommu_group: Some(3),
                ..Place::default()
            },
            has_node: true,
        }
    }

    fn node(numbers: impl IntoIterator<Item = u32>) -> Node {
        let driver = Driver { version: Some("570.148.08".to_owned()), cuda_version: Some(12080) };
        Node { driver, gpus: numbers.into_iter().map(gpu).collect(), ..Node::default() }
    }

    fn names(slice: &Slice) -> Vec<&str> {
        slice.devices.iter().map(|device| device.name.as_str()).collect()
    }

    #[test]
    fn a_node_without_gpus_publishes_one_empty_slice() {
        assert_eq!(pool("node-a", &node([])), Pool { name: "node-a".to_owned(), slices: vec![Slice::default()] });
    }

    #[test]
    fn devices_are_sorted_as_people_count() {
        let pool = pool("node-a", &node([10, 2, 0, 1]));
        assert_eq!(names(&pool.slices[0]), ["gpu-0", "gpu-1", "gpu-2", "gpu-10"]);
        assert_eq!(pool.slices[0].devices[0].capacity["memory"], "80Gi");
    }

    #[test]
    fn the_65th_device_starts_a_new_slice() {
        assert_eq!(pool("node-a", &node(0..64)).slices.len(), 1);
        let pool = pool("node-a", &node(0..65));
        assert_eq!(pool.slices.iter().map(|slice| slice.devices.len()).collect::<Vec<_>>(), [64, 1]);
        assert_eq!(names(&pool.slices[1]), ["gpu-64"]);
    }

    #[test]
    fn sets_of_counters_stand_before_devices_in_slices_of_their_own() {
        let set = |number: u32| CounterSet { name: format!("gpu-{number}"), counters: Counters::new() };
        let (_, devices, _) = offer(&node(0..65), Form::Scalar);
        let slices = laid_out(&(0..9).map(set).collect::<Vec<_>>(), &devices);
        let sizes: Vec<_> = slices.iter().map(|slice| (slice.shared_counters.len(), slice.devices.len())).collect();
        assert_eq!(sizes, [(8, 0), (1, 0), (0, 64), (0, 1)]);
    }

    #[test]
    fn a_gpu_in_mig_mode_is_not_offered_as_a_whole() {
        let mut node = node([0, 1]);
        node.gpus[0].mig.enabled = true;
        assert_eq!(names(&pool("node-a", &node).slices[0]), ["gpu-1"]);
    }

    #[test]
    fn a_gpu_without_a_device_node_is_not_offered() {
        let mut node = node([0, 1]);
        node.gpus[1].has_node = false;
        assert_eq!(names(&pool("node-a", &node).slices[0]), ["gpu-0"]);
    }

    #[test]
    fn a_gpu_of_unknown_memory_has_no_capacity() {
        let mut node = node([0]);
        node.gpus[0].memory_bytes = None;
        assert!(pool("node-a", &node).slices[0].devices[0].capacity.is_empty());
    }

    proptest! {
        // Up to 80 GPUs, all linked: a few dozen suffice, and take a second.
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn the_order_of_discovery_changes_nothing(mut numbers in proptest::collection::btree_set(0_u32..300, 0..80)) {
            let forward = pool("node-a", &node(numbers.iter().copied()));
            let backward = pool("node-a", &node(numbers.iter().rev().copied()));
            prop_assert_eq!(&forward, &backward);
            for device in forward.slices.iter().flat_map(|slice| &slice.devices) {
                prop_assert!(device.attributes.len() + device.capacity.len() <= 32);
                prop_assert!(numbers.remove(&device.name.as_str()["gpu-".len()..].parse().unwrap()));
            }
            prop_assert!(numbers.is_empty());
        }
    }
}
