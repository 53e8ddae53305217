//! Link tables of real machines, and what must hold for any.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::device::{DeviceName, GpuUuid, Link, Mig, Partitioning, PciAddress, Place};

/// GPUs in bus order. UUIDs descend, so that nothing can be right by sorting on the wrong key.
fn gpus(count: usize) -> Vec<Gpu> {
    let gpu = |number: usize| {
        let n = u32::try_from(number).unwrap();
        Gpu {
            name: DeviceName::gpu(n),
            uuid: GpuUuid::parse(&format!("GPU-{:02}", 99 - n)).unwrap(),
            minor: n,
            pci: PciAddress { domain: 0, bus: u8::try_from(16 + n).unwrap(), device: 0, function: 0 },
            product_name: None,
            brand: None,
            architecture: None,
            cuda_compute_capability: None,
            memory_bytes: None,
            addressing_mode: None,
            mig: Mig::default(),
            partitioning: Partitioning::Static,
            links: Vec::new(),
            fabric: None,
            place: Place::default(),
            has_node: true,
        }
    };
    (0..count).map(gpu).collect()
}

fn links(count: usize, peer: Peer) -> impl Iterator<Item = Link> {
    std::iter::repeat_n(Link { version: Some(3), peer }, count)
}

/// GPUs joined by direct links: `(a, b, links)`.
fn direct(count: usize, edges: &[(usize, usize, usize)]) -> Vec<Gpu> {
    let mut gpus = gpus(count);
    for &(a, b, width) in edges {
        let (pci_a, pci_b) = (gpus[a].pci, gpus[b].pci);
        gpus[a].links.extend(links(width, Peer::Gpu(pci_b)));
        gpus[b].links.extend(links(width, Peer::Gpu(pci_a)));
    }
    gpus
}

/// GPUs on switches.
fn switched(count: usize, width: usize) -> Vec<Gpu> {
    let mut gpus = gpus(count);
    for gpu in &mut gpus {
        gpu.links.extend(links(width, Peer::Switch));
    }
    gpus
}

/// Which GPUs share a value, as numbers.
fn groups(gpus: &[Gpu], value: fn(&NvLink) -> &String) -> Vec<Vec<usize>> {
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let nvlink = topology(gpus);
    for (number, one) in nvlink.iter().enumerate() {
        let first = nvlink.iter().position(|other| value(other) == value(one)).unwrap();
        groups.entry(first).or_default().push(number);
    }
    groups.into_values().collect()
}

fn domains(gpus: &[Gpu]) -> Vec<Vec<usize>> {
    groups(gpus, |nvlink| &nvlink.domain)
}

fn cliques(gpus: &[Gpu]) -> Vec<Vec<usize>> {
    groups(gpus, |nvlink| &nvlink.clique)
}

fn pairs(gpus: &[Gpu]) -> Vec<Vec<usize>> {
    groups(gpus, |nvlink| &nvlink.pair)
}

/// DGX-1 with V100: two quads, and one link across for each GPU.
const V100_MESH: [(usize, usize, usize); 16] = [
    (0, 1, 1),
    (0, 2, 1),
    (0, 3, 2),
    (0, 4, 2),
    (1, 2, 2),
    (1, 3, 1),
    (1, 5, 2),
    (2, 3, 2),
    (2, 6, 1),
    (3, 7, 1),
    (4, 5, 1),
    (4, 6, 1),
    (4, 7, 2),
    (5, 6, 2),
    (5, 7, 1),
    (6, 7, 2),
];

#[test]
fn all_gpus_of_a_dgx_a100_are_one_clique_and_neighbours_are_pairs() {
    let gpus = switched(8, 12);
    assert_eq!(domains(&gpus), [[0, 1, 2, 3, 4, 5, 6, 7]]);
    assert_eq!(cliques(&gpus), [[0, 1, 2, 3, 4, 5, 6, 7]]);
    assert_eq!(pairs(&gpus), [[0, 1], [2, 3], [4, 5], [6, 7]]);
    let nvlink = topology(&gpus);
    assert!(nvlink.iter().all(|gpu| (gpu.version, gpu.links) == (3, 12)));
    assert!(nvlink.iter().all(|gpu| gpu.domain == "GPU-92" && gpu.clique == "GPU-92"));
    assert_eq!(nvlink[0].pair, "GPU-98");
}

#[test]
fn gpus_under_one_pcie_root_are_paired_before_neighbours_on_the_bus() {
    let mut gpus = switched(4, 12);
    for (number, root) in ["pci0000:00", "pci0000:40", "pci0000:40", "pci0000:80"].into_iter().enumerate() {
        gpus[number].place.pcie_root = Some(root.to_owned());
    }
    assert_eq!(pairs(&gpus), [[0, 3], [1, 2]]);
}

#[test]
fn a_direct_mesh_of_four_is_one_clique() {
    let gpus = direct(4, &[(0, 1, 4), (0, 2, 4), (0, 3, 4), (1, 2, 4), (1, 3, 4), (2, 3, 4)]);
    assert_eq!(cliques(&gpus), [[0, 1, 2, 3]]);
    assert_eq!(pairs(&gpus), [[0, 1], [2, 3]]);
    assert_eq!(topology(&gpus)[0].links, 12);
}

#[test]
fn bridged_pairs_are_pairs_even_across_numa_nodes() {
    let mut gpus = direct(4, &[(0, 1, 12), (2, 3, 12)]);
    for (number, node) in [0, 1, 0, 1].into_iter().enumerate() {
        gpus[number].place.numa_node = Some(node);
    }
    for groups in [domains(&gpus), cliques(&gpus), pairs(&gpus)] {
        assert_eq!(groups, [[0, 1], [2, 3]]);
    }
}

#[test]
fn bridged_pairs_need_not_be_neighbours() {
    let gpus = direct(8, &[(0, 5, 12), (1, 2, 12), (3, 4, 12), (6, 7, 12)]);
    for groups in [domains(&gpus), cliques(&gpus), pairs(&gpus)] {
        assert_eq!(groups, [[0, 5], [1, 2], [3, 4], [6, 7]]);
    }
}

#[test]
fn a_gpu_that_fell_out_of_the_fabric_stands_alone() {
    let mut gpus = switched(8, 18);
    gpus[2].links.clear();
    for (number, gpu) in gpus.iter_mut().enumerate() {
        gpu.place.numa_node = Some(u32::from(number >= 4));
    }
    assert_eq!(domains(&gpus), [vec![0, 1, 3, 4, 5, 6, 7], vec![2]]);
    assert_eq!(cliques(&gpus), [vec![0, 1, 3, 4, 5, 6, 7], vec![2]]);
    assert_eq!(pairs(&gpus), [vec![0, 1], vec![2], vec![3], vec![4, 5], vec![6, 7]]);
    let alone = &topology(&gpus)[2];
    assert_eq!((alone.version, alone.links), (0, 0));
    assert_eq!([&alone.domain, &alone.clique, &alone.pair], ["GPU-97"; 3]);
}

#[test]
fn a_v100_mesh_is_two_quads_and_pairs_with_two_links() {
    let gpus = direct(8, &V100_MESH);
    assert!(gpus.iter().all(|gpu| gpu.links.len() == 6));
    assert_eq!(domains(&gpus), [[0, 1, 2, 3, 4, 5, 6, 7]]);
    assert_eq!(cliques(&gpus), [[0, 1, 2, 3], [4, 5, 6, 7]]);
    for pair in pairs(&gpus) {
        let [a, b] = pair[..] else { panic!("{pair:?} is no pair") };
        assert_eq!(V100_MESH.iter().find(|edge| (edge.0, edge.1) == (a, b)).unwrap().2, 2);
    }
}

#[test]
fn on_a_v100_mesh_gpus_have_a_clique_in_common_exactly_if_all_are_linked() {
    let gpus = direct(8, &V100_MESH);
    let nvlink = topology(&gpus);
    for set in 1_usize..1 << 8 {
        let members: Vec<_> = (0..8).filter(|gpu| set & 1 << gpu != 0).collect();
        let all_linked = members.iter().all(|a| members.iter().all(|b| a == b || linked(&gpus[*a], &gpus[*b])));
        let in_all = |clique: &&String| members.iter().all(|gpu| nvlink[*gpu].cliques.contains(clique));
        assert_eq!(nvlink[members[0]].cliques.iter().any(|clique| in_all(&clique)), all_linked, "{members:?}");
    }
    assert!(nvlink.iter().all(|gpu| gpu.cliques.len() == 2), "a quad, and the link across");
}

#[test]
fn where_cliques_are_a_partition_a_gpu_is_in_one() {
    for gpus in [switched(8, 12), direct(4, &[(0, 1, 12), (2, 3, 12)]), gpus(3)] {
        assert!(topology(&gpus).iter().all(|gpu| gpu.cliques == [gpu.clique.clone()]));
    }
}

#[test]
fn gpus_without_nvlink_share_nothing() {
    let gpus = gpus(8);
    for groups in [domains(&gpus), cliques(&gpus), pairs(&gpus)] {
        assert_eq!(groups.len(), 8);
    }
    for (gpu, nvlink) in gpus.iter().zip(topology(&gpus)) {
        assert_eq!([&nvlink.domain, &nvlink.clique, &nvlink.pair], [gpu.uuid.as_str(); 3]);
    }
}

#[test]
fn a_tray_of_a_multi_node_fabric_has_the_value_of_the_fabric() {
    let mut gpus = switched(4, 18);
    for gpu in &mut gpus {
        gpu.fabric = Some(Fabric { cluster: "00000001-0000-0000-0000-000000000001".to_owned(), clique: 2 });
    }
    for nvlink in topology(&gpus) {
        assert_eq!(nvlink.domain, "00000001-0000-0000-0000-000000000001.2");
        assert_eq!(nvlink.clique, nvlink.domain);
    }
    assert_eq!(pairs(&gpus), [[0, 1], [2, 3]]);
}

#[test]
fn a_gpu_that_is_still_registering_with_the_fabric_is_not_in_it() {
    let mut gpus = switched(4, 18);
    for gpu in &mut gpus[1..] {
        gpu.fabric = Some(Fabric { cluster: "00000001-0000-0000-0000-000000000001".to_owned(), clique: 2 });
    }
    assert_eq!(domains(&gpus), [vec![0], vec![1, 2, 3]]);
    gpus[3].links.clear();
    assert_eq!(domains(&gpus), [vec![0], vec![1, 2], vec![3]], "a member without links is out of reach");
}

#[test]
fn a_link_that_is_up_at_one_end_only_joins_nothing() {
    let mut gpus = direct(2, &[(0, 1, 12)]);
    gpus[1].links.clear();
    assert_eq!(pairs(&gpus), [[0], [1]]);
    assert_eq!(topology(&gpus)[0].links, 12);
}

#[test]
fn a_partitioned_gpu_is_linked_to_none() {
    let mut gpus = switched(3, 12);
    gpus[1].mig = Mig { capable: true, enabled: true, ..Mig::default() };
    for groups in [domains(&gpus), cliques(&gpus), pairs(&gpus)] {
        assert_eq!(groups, [vec![0, 2], vec![1]]);
    }
}

#[test]
fn a_domain_larger_than_the_exact_matching_is_still_paired() {
    let gpus = switched(20, 18);
    assert_eq!(cliques(&gpus).len(), 1);
    assert_eq!(pairs(&gpus), (0..10).map(|n| vec![2 * n, 2 * n + 1]).collect::<Vec<_>>());
}

/// Any machine of up to `max` GPUs: direct links, links to switches, links at one end only, to nowhere, and two fabrics.
fn any_gpus(max: usize) -> impl Strategy<Value = Vec<Gpu>> {
    (1..=max).prop_flat_map(|count| {
        let edge = (0..count, 0..count, 0_usize..5, any::<bool>());
        let member = (prop_oneof![3 => Just(0_usize), 2 => 1_usize..18], 0_u32..4, any::<bool>());
        let edges = proptest::collection::vec(edge, 0..3 * count);
        let members = proptest::collection::vec(member, count);
        (edges, members).prop_map(move |(edges, members)| {
            let both: Vec<_> = edges.iter().filter(|e| e.0 != e.1 && e.3).map(|e| (e.0, e.1, e.2)).collect();
            let mut gpus = direct(count, &both);
            for &(a, b, width, _) in edges.iter().filter(|edge| !edge.3) {
                let nowhere = if a == b { Peer::Other } else { Peer::Gpu(gpus[b].pci) };
                gpus[a].links.extend(links(width, nowhere));
            }
            for (gpu, (switch, fabric, enabled)) in gpus.iter_mut().zip(members) {
                gpu.links.extend(links(switch, Peer::Switch));
                let clique = fabric.checked_sub(2);
                gpu.fabric = clique.map(|clique| Fabric { cluster: "c0ffee".to_owned(), clique });
                gpu.mig.enabled = enabled && fabric == 1;
            }
            gpus
        })
    })
}

/// Links between two GPUs, without the code under test.
fn linked(a: &Gpu, b: &Gpu) -> bool {
    let direct = |from: &Gpu, to: &Gpu| from.links.iter().any(|link| link.peer == Peer::Gpu(to.pci));
    let switch = |gpu: &Gpu| gpu.links.iter().any(|link| link.peer == Peer::Switch);
    let joined = direct(a, b) && direct(b, a) || a.fabric == b.fabric && switch(a) && switch(b);
    joined && a.uuid != b.uuid && !a.mig.enabled && !b.mig.enabled
}

proptest! {
    #[test]
    fn domains_are_what_links_reach(gpus in any_gpus(16)) {
        let nvlink = topology(&gpus);
        for (a, one) in gpus.iter().zip(&nvlink) {
            for (b, other) in gpus.iter().zip(&nvlink) {
                if linked(a, b) {
                    prop_assert_eq!(&one.domain, &other.domain);
                }
            }
        }
        for domain in domains(&gpus) {
            let mut reached = vec![domain[0]];
            let mut next = 0;
            while let Some(&from) = reached.get(next) {
                for &to in &domain {
                    if linked(&gpus[from], &gpus[to]) && !reached.contains(&to) {
                        reached.push(to);
                    }
                }
                next += 1;
            }
            prop_assert_eq!(reached.len(), domain.len(), "{:?} is not connected", domain);
        }
    }

    #[test]
    fn cliques_are_linked_all_to_all_and_no_two_can_be_joined(gpus in any_gpus(16)) {
        let cliques = cliques(&gpus);
        let all_to_all = |group: &[usize]| {
            group.iter().all(|a| group.iter().all(|b| a == b || linked(&gpus[*a], &gpus[*b])))
        };
        for (at, clique) in cliques.iter().enumerate() {
            prop_assert!(all_to_all(clique), "{:?}", clique);
            for other in &cliques[at + 1..] {
                prop_assert!(!all_to_all(&[&clique[..], &other[..]].concat()), "{:?} and {:?}", clique, other);
            }
        }
    }

    #[test]
    fn gpus_have_a_clique_in_common_only_if_all_are_linked(gpus in any_gpus(16)) {
        let nvlink = topology(&gpus);
        let mut members: BTreeMap<&String, Vec<usize>> = BTreeMap::new();
        for (at, gpu) in nvlink.iter().enumerate() {
            prop_assert!((1..=16).contains(&gpu.cliques.len()));
            gpu.cliques.iter().for_each(|clique| members.entry(clique).or_default().push(at));
        }
        for members in members.values() {
            for (a, b) in members.iter().flat_map(|a| members.iter().map(move |b| (*a, *b))) {
                prop_assert!(a == b || linked(&gpus[a], &gpus[b]), "{} and {}", a, b);
            }
        }
    }

    #[test]
    fn pairs_are_linked_and_leave_no_two_linked_gpus_alone(gpus in any_gpus(12)) {
        let pairs = pairs(&gpus);
        let mut alone = Vec::new();
        for pair in pairs {
            match pair[..] {
                [a] => alone.push(a),
                [a, b] => prop_assert!(linked(&gpus[a], &gpus[b])),
                _ => prop_assert!(false, "{:?} is no pair", pair),
            }
        }
        for &a in &alone {
            prop_assert!(alone.iter().all(|&b| !linked(&gpus[a], &gpus[b])));
        }
    }

    #[test]
    fn values_do_not_depend_on_the_order_of_the_gpus(gpus in any_gpus(16), seed in any::<u64>()) {
        let before: BTreeMap<_, _> = gpus.iter().map(|gpu| gpu.uuid.clone()).zip(topology(&gpus)).collect();
        let mut shuffled = gpus;
        shuffled.sort_by_key(|gpu| u64::from(gpu.minor).wrapping_add(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let after: BTreeMap<_, _> = shuffled.iter().map(|gpu| gpu.uuid.clone()).zip(topology(&shuffled)).collect();
        prop_assert_eq!(before, after);
    }

    #[test]
    fn every_value_fits_an_attribute_and_names_a_member_or_a_fabric(gpus in any_gpus(16)) {
        for nvlink in topology(&gpus) {
            for value in [&nvlink.domain, &nvlink.clique, &nvlink.pair] {
                prop_assert!(!value.is_empty() && value.len() <= 64);
                prop_assert!(value.starts_with("GPU-") || value.starts_with("c0ffee."));
            }
            prop_assert!(nvlink.pair.starts_with("GPU-"));
        }
    }
}
