//! What the node offers, as ResourceSlices: devices → a pool of slices.
//!
//! | the GPU | devices | counters | slices |
//! |---|---|---|---|
//! | is whole | the GPU | none | up to 64 devices of all such GPUs |
//! | is partitioned by an administrator | its MIG devices, without the GPU | none | the same |
//! | is partitioned by this plugin | the GPU and all parts that it could have | a set | its own |
//!
//! Pure. [`cluster`](crate::cluster) turns a [`Pool`] into objects of whichever API version the server speaks. The same
//! node gives the same pool, to the byte, so that an unchanged node writes nothing. What a server does not keep of it is
//! taken out by [`fallback`].

pub mod fallback;
mod limits;
mod partitions;
pub mod quantity;

use std::collections::BTreeMap;

pub use self::partitions::Counting;
use crate::device::attribute::{self, Attributes, Form, Value};
use crate::device::{DeviceName, Gpu, LeftOut, Node, Partition};

/// How a node is laid out, where there is a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Layout {
    /// Whether attributes may be lists.
    pub form: Form,
    /// How GPUs that this plugin partitions are counted.
    pub counting: Counting,
}

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
    /// A label's name; one without a domain is in the driver's.
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

/// What a node offers.
#[derive(Default)]
struct Offer {
    counters: Vec<CounterSet>,
    /// In the order in which the scheduler shall try them. Each list has slices of its own.
    devices: Vec<Vec<Device>>,
    left_out: Vec<LeftOut>,
}

/// Lays out a node's devices within the limits of the API: first those that overlap with nothing, sorted by name, then
/// GPU by GPU those that this plugin partitions.
///
/// A GPU that an administrator has put into MIG mode is not offered as a whole: nobody can use it so. Nor is one without
/// a device node: nobody can use it at all.
pub fn pool(name: &str, node: &Node) -> Pool {
    pool_in(Layout::default(), name, node)
}

/// As [`pool`], in another layout.
pub fn pool_in(layout: Layout, name: &str, node: &Node) -> Pool {
    Pool { name: name.to_owned(), slices: offer(node, layout).slices() }
}

/// What of a node is not in its pool, and why. How it is counted makes no difference.
pub fn left_out(form: Form, node: &Node) -> Vec<LeftOut> {
    offer(node, Layout { form, ..Layout::default() }).left_out
}

fn offer(node: &Node, layout: Layout) -> Offer {
    let mut offer = Offer::default();
    let (mut simple, mut partitioned) = (Vec::new(), Vec::new());
    for (gpu, attributes) in node.gpus.iter().zip(attribute::of_node(node, layout.form)) {
        if !gpu.has_node {
            continue;
        }
        offer.left_out.extend(Partition::left_out(gpu));
        let Attributes { values, left_out } = attributes;
        if gpu.is_dynamic() {
            offer.left_out.extend(left_out);
            let (set, devices) = partitions::lay_out(gpu, &values, layout.counting);
            partitioned.push((&gpu.name, set, devices));
            continue;
        }
        let devices = simple_devices(gpu, values);
        if !devices.is_empty() {
            offer.left_out.extend(left_out);
            simple.extend(devices);
        }
    }
    simple.sort_by(|a, b| a.name.cmp(&b.name));
    partitioned.sort_by_key(|(name, ..)| *name);
    let (counters, partitioned): (Vec<_>, Vec<_>) =
        partitioned.into_iter().map(|(_, set, devices)| (set, devices)).unzip();
    let devices = [simple].into_iter().chain(partitioned);
    let (counters, devices, refused) = limits::enforce(counters, devices);
    offer.left_out.extend(refused);
    Offer { counters, devices, ..offer }
}

/// What overlaps with nothing: the GPU, or the MIG devices that an administrator made of it.
fn simple_devices(gpu: &Gpu, attributes: BTreeMap<&'static str, Value>) -> Vec<Device> {
    let device = |name: &DeviceName, attributes, capacity| Device {
        name: name.clone(),
        attributes,
        capacity,
        consumes_counters: BTreeMap::new(),
        taints: Vec::new(),
    };
    if gpu.is_offered_whole() {
        return vec![device(&gpu.name, attributes, capacity(gpu))];
    }
    let part = |part: &Partition| {
        let own = attribute::of_part(&attributes, gpu, part);
        device(&part.name, own, partitions::part_capacity(part.profile))
    };
    Partition::all(gpu).iter().map(part).collect()
}

/// `memory` as NVIDIA's driver publishes it: the whole frame buffer. Absent where CPU and GPU share one memory.
fn capacity(gpu: &Gpu) -> BTreeMap<&'static str, String> {
    gpu.memory_bytes.map(|memory| ("memory", quantity::bytes(memory))).into_iter().collect()
}

// === impl Offer ===

impl Offer {
    /// Sets of counters come first, so that a server that does not keep them is found out before it has a device.
    fn slices(&self) -> Vec<Slice> {
        let counters = self.counters.chunks(limits::COUNTER_SETS);
        let counters = counters.map(|sets| Slice { shared_counters: sets.to_vec(), ..Slice::default() });
        let devices = self.devices.iter().flat_map(|devices| devices.chunks(limits::DEVICES));
        let devices = devices.map(|devices| Slice { devices: devices.to_vec(), ..Slice::default() });
        let mut slices: Vec<_> = counters.chain(devices).collect();
        if slices.is_empty() {
            slices.push(Slice::default());
        }
        slices
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::device::example::{mk_instance, mk_mig};
    use crate::device::mig::GpuInstance;
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
        let mut offer = offer(&node(0..65), Layout::default());
        offer.counters = (0..9).map(set).collect();
        let slices = offer.slices();
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
    fn gpus_that_are_partitioned_have_slices_of_their_own_behind_the_others() {
        let mut node = node(0..12);
        for gpu in &mut node.gpus[1..11] {
            (gpu.mig, gpu.partitioning) = (mk_mig(false), Partitioning::Dynamic { whole: true });
        }
        node.gpus[11].mig = Mig { instances: vec![mk_instance(7, 19, 3, &[1])], ..mk_mig(true) };
        let pool = pool("node-a", &node);
        let sizes: Vec<_> =
            pool.slices.iter().map(|slice| (slice.shared_counters.len(), slice.devices.len())).collect();
        assert_eq!(sizes, [&[(8, 0), (2, 0), (0, 2)][..], &[(0, 18); 10][..]].concat());
        assert_eq!(names(&pool.slices[2]), ["gpu-0", "gpu-11-mig-1g5gb-19-3"]);
        assert_eq!(names(&pool.slices[3])[..2], ["gpu-1", "gpu-1-mig-1g5gb-19-6"]);
        assert_eq!(names(&pool.slices[12])[0], "gpu-10");

        // An instance that appears in one GPU, made by a claim or by others, changes no slice but its own.
        let mut changed = node.clone();
        changed.gpus[3].mig.enabled = true;
        assert_eq!(super::pool("node-a", &changed), pool, "what a claim does changes nothing");
        changed.gpus[3].mig.instances = vec![GpuInstance { foreign: true, ..mk_instance(7, 19, 3, &[1]) }];
        let changed = super::pool("node-a", &changed);
        let touched = (0..pool.slices.len()).filter(|at| pool.slices[*at] != changed.slices[*at]);
        assert_eq!((changed.slices.len(), touched.collect::<Vec<_>>()), (pool.slices.len(), vec![5]));
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
