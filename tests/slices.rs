//! Whatever a machine says of itself, the API accepts what is published of it, on every release, and no device that
//! could be published is lost.
//!
//! The oracle is the fake API server's validator, which is written from the API's source and knows nothing of this
//! driver.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

use std::collections::BTreeSet;

use fake_node::api::{Gates, Kind, Part, Rules, validate};
use fake_node::cel::Quantity;
use fake_node::release::Release;
use gpu_dra_plugin::cluster::slices::{Owner, desired};
use gpu_dra_plugin::device::attribute::Form;
use gpu_dra_plugin::device::{
    AddressingMode, DeviceName, Driver, Fabric, Gpu, GpuUuid, Link, Mig, Node, Partitioning, PciAddress, Peer, Place,
    attribute,
};
use gpu_dra_plugin::slice::fallback::{Extras, without};
use gpu_dra_plugin::slice::{Counting, Device, Layout, Pool, left_out, pool, pool_in};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

const LISTS: Layout = Layout { form: Form::List, counting: Counting::Exact };

/// Versions of real drivers, and what others made of theirs.
const VERSIONS: [&str; 9] = [
    "580.65.06",
    "570.086.10",
    "615.23",
    "470.161.03",
    "6.19.14.31400000",
    "580",
    "",
    "550.54-beta",
    "99999999999999999999.1",
];

/// Names of real boards, and what no board should be called.
const PRODUCTS: [&str; 5] =
    ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB MIG 1g.5gb+me", "Tesla T4", "", "\u{0}\n\"/"];

/// What a GPU may say of itself. Its links are drawn with the machine.
fn gpu() -> impl Strategy<Value = Gpu> {
    let name = prop_oneof![1 => Just(None), 4 => select(&PRODUCTS[..]).prop_map(|name| Some(name.to_owned())),
        4 => "\\PC{0,96}".prop_map(Some), 2 => "[é字x]{60,96}".prop_map(Some)];
    let memory = prop_oneof![
        Just(None),
        (0_u64..1 << 20).prop_map(|mib| Some(mib << 20)),
        any::<u64>().prop_map(Some),
        Just(Some(u64::MAX)),
        Just(Some(1000))
    ];
    let mode = select(vec![None, Some(AddressingMode::None), Some(AddressingMode::Hmm), Some(AddressingMode::Ats)]);
    let root = prop_oneof![Just(None), Just(Some("pci0000:16".to_owned())), "\\PC{0,100}".prop_map(Some)];
    let siblings = prop_oneof![3 => Just(vec![]), 1 => prop::collection::vec(any::<u32>(), 0..100)];
    let place = (root, any::<Option<u32>>(), siblings, any::<Option<u32>>());
    let place = place.prop_map(|(pcie_root, numa_node, numa_siblings, iommu_group)| Place {
        pcie_root,
        numa_node,
        numa_siblings,
        iommu_group,
    });
    let pci = (prop_oneof![Just(0_u32), any::<u32>()], any::<u8>(), 0_u8..32, 0_u8..8);
    let pci = pci.prop_map(|(domain, bus, device, function)| PciAddress { domain, bus, device, function });
    let uuid = prop_oneof![any::<u128>().prop_map(|n| format!("GPU-{n:032x}")), "GPU-[0-9a-zA-Z-]{60}"];
    let fabric = prop_oneof![4 => Just(None), 1 => any::<u32>().prop_map(|clique| Some(Fabric {
        cluster: "00000001-0000-0000-0000-000000000001".to_owned(), clique }))];
    let mig = (any::<bool>(), prop::bool::weighted(0.1)).prop_map(|(capable, enabled)| Mig {
        capable,
        enabled,
        ..Mig::default()
    });
    (uuid, pci, name, any::<Option<(u32, u32)>>(), memory, mode, place, fabric, mig).prop_map(
        |(uuid, pci, product_name, cuda_compute_capability, memory_bytes, addressing_mode, place, fabric, mig)| Gpu {
            name: DeviceName::gpu(0),
            uuid: GpuUuid::parse(&uuid).unwrap(),
            minor: 0,
            pci,
            product_name,
            brand: Some("Nvidia"),
            architecture: None,
            cuda_compute_capability,
            memory_bytes,
            addressing_mode,
            mig,
            partitioning: Partitioning::Static,
            links: Vec::new(),
            fabric,
            place,
            has_node: true,
        },
    )
}

/// A machine of up to 200 GPUs on switches, or of up to 16 with any links. One in ten names comes twice.
fn node() -> impl Strategy<Value = Node> {
    let version = prop_oneof![
        Just(None),
        select(&VERSIONS[..]).prop_map(|text| Some(text.to_owned())),
        "[0-9.]{0,80}|\\PC{0,80}".prop_map(Some)
    ];
    let gpus = prop_oneof![3 => prop::collection::vec(gpu(), 0..=16), 1 => prop::collection::vec(gpu(), 0..=200)];
    (version, any::<Option<i32>>(), gpus, any::<prop::sample::Index>(), 0_usize..19, prop::bool::weighted(0.1))
        .prop_map(|(version, cuda_version, mut gpus, index, links, twice)| {
            let addresses: Vec<_> = gpus.iter().map(|gpu| gpu.pci).collect();
            for (number, gpu) in gpus.iter_mut().enumerate() {
                gpu.minor = u32::try_from(number).unwrap();
                gpu.name = DeviceName::gpu(gpu.minor);
                let peer = |link: usize| match addresses.get(index.index(addresses.len()) ^ link) {
                    Some(address) if addresses.len() <= 16 && link.is_multiple_of(2) => Peer::Gpu(*address),
                    _ => Peer::Switch,
                };
                gpu.links = (0..links).map(|link| Link { version: Some(4), peer: peer(link) }).collect();
            }
            if let (true, [first, .., last]) = (twice, &mut gpus[..]) {
                last.name = first.name.clone();
            }
            Node { driver: Driver { version, cuda_version }, gpus, ..Node::default() }
        })
}

fn devices(pool: &Pool) -> impl Iterator<Item = &Device> {
    pool.slices.iter().flat_map(|slice| &slice.devices)
}

/// What the API of each release has against a pool.
fn refusals(pool: &Pool) -> Vec<String> {
    let owner =
        Owner { driver: "gpu.nvidia.com".to_owned(), node: pool.name.clone(), node_uid: "5ebd0000-0000".to_owned() };
    let mut refusals = Vec::new();
    for mut slice in desired(pool, &owner) {
        slice["metadata"]["name"] = "00000-gpu.nvidia.com-node-a-x2x4x".into();
        slice["spec"]["pool"]["generation"] = 1.into();
        for release in Release::ALL {
            let rules = Rules { release, gates: &Gates::new(release), admin_namespace: false };
            let errors = validate(Kind::ResourceSlice, &slice, None, Part::Main, rules);
            refusals.extend(errors.into_iter().map(|error| format!("{release}: {error:?}")));
        }
    }
    refusals
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_api_accepts_whatever_a_machine_says_of_itself_and_no_device_is_lost(node in node()) {
        let pool = pool("node-a", &node);
        prop_assert_eq!(refusals(&pool), Vec::<String>::new());

        // With lists, only lists can be one too many; taken back, the pool is the one without.
        let mut with_lists = pool_in(LISTS, "node-a", &node);
        prop_assert_eq!(refusals(&with_lists), Vec::<String>::new());
        let taken_back = without(&with_lists, Extras { lists: true, ..Extras::NONE });
        for (device, plain) in devices(&taken_back).zip(devices(&pool)) {
            let missing: Vec<_> = plain.attributes.keys().filter(|name| !device.attributes.contains_key(*name)).collect();
            prop_assert!(missing.iter().all(|name| **name == "resource.kubernetes.io/numaNode"), "{:?}", missing);
            prop_assert!(device.attributes.iter().all(|(name, value)| plain.attributes.get(name) == Some(value)));
        }
        let mut unlisted = pool.clone();
        for device in unlisted.slices.iter_mut().chain(&mut with_lists.slices).flat_map(|slice| &mut slice.devices) {
            device.attributes.retain(|name, _| !["nvlinkCliques", "resource.kubernetes.io/numaNode"].contains(name));
        }
        prop_assert_eq!(with_lists, unlisted);

        let devices: Vec<_> = devices(&pool).collect();
        let published: Vec<_> = devices.iter().map(|device| device.name.clone()).collect();
        let usable: BTreeSet<_> = node.gpus.iter().filter(|gpu| !gpu.mig.enabled).map(|gpu| gpu.name.clone()).collect();
        prop_assert_eq!(published, usable.into_iter().collect::<Vec<_>>(), "each once, in order");
        prop_assert!(pool.slices.iter().all(|slice| slice.devices.len() <= 64));

        for device in devices {
            let name = &device.name;
            for attribute in &attribute::ALL {
                let value = device.attributes.get(attribute.name);
                prop_assert!(value.is_none_or(|value| value.kind() == attribute.kind), "{} of {}", attribute.name, name);
            }
            for amount in device.capacity.values() {
                prop_assert!(amount.parse::<Quantity>().is_ok(), "{}", amount);
            }
            let uuid = device.attributes.get("uuid");
            prop_assert!(node.gpus.iter().any(|gpu| uuid == Some(&attribute::Value::String(gpu.uuid.to_string()))));
        }
    }

    #[test]
    fn what_is_changed_or_missing_is_told(node in node()) {
        let told = |form| left_out(form, &node).into_iter().map(|left_out| left_out.what).collect::<BTreeSet<_>>();
        let listed = told(Form::List);
        for device in pool_in(LISTS, "node-a", &node).slices.iter().flat_map(|slice| &slice.devices) {
            let missing = format!("the attribute nvlinkCliques of {}", device.name);
            prop_assert_eq!(listed.contains(&missing), !device.attributes.contains_key("nvlinkCliques"), "{}", missing);
        }
        let told = told(Form::Scalar);
        for gpu in &node.gpus {
            let Gpu { name, uuid, .. } = gpu;
            let told = |what: &str| told.contains(what);
            let namesakes = node.gpus.iter().filter(|other| other.name == *name && !other.mig.enabled).count();
            prop_assert_eq!(told(&format!("the device {name}")), namesakes > 1);
            if gpu.mig.enabled {
                let whole = format!("{name} ({uuid})");
                prop_assert!(told(&whole), "{}", whole);
            } else if namesakes == 1 {
                let long = |text: &Option<String>| text.as_ref().is_some_and(|text| text.len() > 64);
                let end = format!("the end of the attribute productName of {name}");
                prop_assert_eq!(told(&end), long(&gpu.product_name));
                let huge = gpu.memory_bytes.is_some_and(|bytes| i64::try_from(bytes).is_err());
                prop_assert_eq!(told(&format!("the capacity memory of {name}")), huge);
                prop_assert_eq!(told(&format!("the attribute pciBusID of {uuid}")), gpu.pci.domain > 0xffff);
            }
        }
    }
}

/// The oracle can say no, so that its yes is worth something.
#[test]
fn the_oracle_refuses_what_the_limits_change() {
    let mut node = Node::default();
    let runner = &mut TestRunner::deterministic();
    node.gpus.push(gpu().new_tree(runner).unwrap().current());
    node.gpus[0].mig.enabled = false;
    let mut broken = pool("node-a", &node);
    let device = &mut broken.slices[0].devices[0];
    device.attributes.insert("productName", attribute::Value::String("x".repeat(65)));
    device.attributes.insert("cuda-version", attribute::Value::Int(1));
    let refusals = refusals(&broken);
    for (what, count) in [("productName", 6), ("cuda-version", 6)] {
        assert_eq!(refusals.iter().filter(|refusal| refusal.contains(what)).count(), count, "{refusals:?}");
    }
}
