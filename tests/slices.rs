//! Whatever a machine says of itself, the API accepts what is published of it, on every release, and no device that
//! could be published is lost.
//!
//! The oracle is the fake API server's validator, which is written from the API's source and knows nothing of this
//! driver.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

use std::collections::{BTreeMap, BTreeSet};

use fake_node::api::{Gates, Kind, Part, Rules, validate};
use fake_node::cel::Quantity;
use fake_node::release::Release;
use gpu_dra_plugin::cluster::slices::{Owner, desired};
use gpu_dra_plugin::device::attribute::Form;
use gpu_dra_plugin::device::mig::{ComputeInstance, GpuInstance, Placement, Profile};
use gpu_dra_plugin::device::{
    AddressingMode, DeviceName, Driver, Fabric, Gpu, GpuUuid, Link, Mig, MigUuid, Node, Partition, Partitioning,
    PciAddress, Peer, Place, attribute,
};
use gpu_dra_plugin::slice::fallback::{Extras, without};
use gpu_dra_plugin::slice::{Counting, Device, Layout, Pool, left_out, pool, pool_in};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

#[expect(dead_code, reason = "the profiles are all that is needed here")]
#[path = "partitions/boards.rs"]
mod boards;

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

/// How a GPU may be partitioned: a board's profiles, or what no board has, with some of the instances that they allow.
fn mig() -> impl Strategy<Value = Mig> {
    let place = prop_oneof![
        4 => (0_u32..20, 0_u32..10).prop_map(|(start, size)| Placement { start, size }),
        1 => (any::<u32>(), any::<u32>()).prop_map(|(start, size)| Placement { start, size }),
    ];
    let amount = || prop_oneof![4 => 0_u32..9, 1 => any::<u32>()];
    let amounts = (amount(), amount(), amount(), amount(), amount(), any::<u32>());
    let profile = (
        "[1-9]g.[0-9]{1,3}gb(\\+me|-me)?|\\PC{0,80}",
        any::<u32>(),
        any::<u64>(),
        amounts,
        prop::collection::vec(place, 0..9),
    );
    let profile = profile.prop_map(
        |(name, id, memory_mib, (slices, engines, media, ofa_engines, max_instances, sms), placements)| Profile {
            id,
            name,
            slices,
            memory_mib,
            multiprocessors: sms,
            copy_engines: engines,
            decoders: media,
            encoders: engines,
            jpeg_engines: media,
            ofa_engines,
            max_instances,
            placements,
        },
    );
    let board = (0..boards::all().len()).prop_map(|number| boards::all().swap_remove(number).profiles);
    let profiles = prop_oneof![3 => board, 1 => prop::collection::vec(profile, 0..9), 1 => Just(Vec::new())];
    let instance = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0_usize..3, any::<bool>());
    (profiles, prop::collection::vec(instance, 0..6), any::<bool>()).prop_map(|(profiles, instances, enabled)| {
        let made = |(id, (profile, place, devices, foreign)): (
            u32,
            (prop::sample::Index, prop::sample::Index, usize, bool),
        )| {
            let profile: &Profile = profile.get(&profiles[..]);
            let uuid = |number: u32| MigUuid::parse(&format!("MIG-{id:08}-{number:04}")).unwrap();
            let compute = |id| ComputeInstance { id, slices: profile.slices, uuid: uuid(id) };
            let placement = if profile.placements.is_empty() {
                Placement { start: 0, size: 1 }
            } else {
                *place.get(&profile.placements)
            };
            GpuInstance {
                id,
                profile: profile.id,
                placement,
                compute: (0..2).map(compute).take(devices).collect(),
                foreign,
            }
        };
        let instances = if profiles.is_empty() { Vec::new() } else { (0..).zip(instances).map(made).collect() };
        Mig { capable: true, enabled, resetless: true, profiles, instances }
    })
}

/// A machine of up to 16 GPUs, most of them partitioned.
fn partitioned() -> impl Strategy<Value = Node> {
    let by = select(vec![
        Partitioning::Static,
        Partitioning::Dynamic { whole: true },
        Partitioning::Dynamic { whole: false },
    ]);
    prop::collection::vec((gpu(), mig(), by), 0..=16).prop_map(|gpus| {
        let gpus = (0..).zip(gpus).map(|(minor, (gpu, mig, partitioning))| {
            // A UUID is of one GPU.
            let uuid = GpuUuid::parse(&format!("GPU-{minor:04}{}", &gpu.uuid.as_str()[8..])).unwrap();
            Gpu { name: DeviceName::gpu(minor), uuid, minor, mig, partitioning, ..gpu }
        });
        Node { gpus: gpus.collect(), ..Node::default() }
    })
}

/// What the API of each release has against a pool. Releases before 1.35 do not get counters.
fn refusals(pool: &Pool) -> Vec<String> {
    let uncounted = without(pool, Extras { counters: true, ..Extras::NONE });
    let (old, new) = Release::ALL.split_at(3);
    [refusals_of(&uncounted, old), refusals_of(pool, new)].concat()
}

fn refusals_of(pool: &Pool, releases: &[Release]) -> Vec<String> {
    let owner =
        Owner { driver: "gpu.nvidia.com".to_owned(), node: pool.name.clone(), node_uid: "5ebd0000-0000".to_owned() };
    let mut refusals = Vec::new();
    for mut slice in desired(pool, &owner) {
        slice["metadata"]["name"] = "00000-gpu.nvidia.com-node-a-x2x4x".into();
        slice["spec"]["pool"]["generation"] = 1.into();
        for release in releases.iter().copied() {
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

proptest! {
    // Up to 500 devices each.
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn the_api_accepts_gpus_in_parts_whatever_they_say_of_themselves(node in partitioned()) {
        for form in [Form::Scalar, Form::List] {
            for counting in [Counting::Exact, Counting::Light] {
                let pool = pool_in(Layout { form, counting }, "node-a", &node);
                prop_assert_eq!(refusals(&pool), Vec::<String>::new());
            }
        }
        let pool = pool("node-a", &node);
        let names: BTreeSet<_> = devices(&pool).map(|device| device.name.clone()).collect();
        prop_assert_eq!(names.len(), devices(&pool).count(), "each name once");
        for gpu in &node.gpus {
            prop_assert_eq!(names.contains(&gpu.name), gpu.is_offered_whole(), "{}", gpu.name);
            let parts = Partition::all(gpu);
            prop_assert!(parts.iter().all(|part| names.contains(&part.name)), "a part of {} is lost", gpu.name);
        }
        let sets: BTreeMap<_, _> = pool.slices.iter().flat_map(|slice| &slice.shared_counters).map(|set| (&set.name, &set.counters)).collect();
        for device in devices(&pool) {
            let held = device.attributes.len() + device.capacity.len();
            prop_assert!(held <= 32, "{} has {} attributes and capacities", device.name, held);
            for known in attribute::ALL.iter().filter(|known| known.omitted.is_none()) {
                let kind = device.attributes.get(known.name).map(attribute::Value::kind);
                prop_assert_eq!(kind, Some(known.kind), "{} of {}", known.name, device.name);
            }
            for (set, counters) in &device.consumes_counters {
                let enough = |(name, amount): (&String, &u64)| sets[set].get(name).is_some_and(|there_is| amount <= there_is);
                prop_assert!(counters.iter().all(enough), "{} cannot be allocated", device.name);
            }
        }
    }

    #[test]
    fn the_order_of_discovery_changes_nothing_and_a_gpu_its_own_slice_alone(node in partitioned(), index: prop::sample::Index) {
        let before = pool("node-a", &node);
        let mut changed = node.clone();
        changed.gpus.reverse();
        prop_assert_eq!(&pool("node-a", &changed), &before);

        prop_assume!(!node.gpus.is_empty());
        let gpu = index.get_mut(&mut changed.gpus);
        prop_assume!(gpu.is_dynamic());
        gpu.mig.enabled = !gpu.mig.enabled;
        for instance in &mut gpu.mig.instances {
            (instance.foreign, instance.compute) = (!instance.foreign, Vec::new());
        }
        let name = gpu.name.clone();
        let after = pool("node-a", &changed);
        prop_assert_eq!(before.slices.len(), after.slices.len());
        for (before, after) in before.slices.iter().zip(&after.slices).filter(|(before, after)| before != after) {
            let is_own = |device: &Device| device.name == name || name.is_parent_of(device.name.as_str());
            prop_assert!(before.devices.iter().chain(&after.devices).all(is_own), "another slice than that of {}", name);
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
