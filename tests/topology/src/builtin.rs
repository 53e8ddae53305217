//! The machines under `files/`, compiled in so that a program that plays them needs no files beside it.

use crate::{Error, Topology};

/// Name and content of every file, in the order in which help lists them: from the plainest to the oddest.
const FILES: [(&str, &str); 12] = [
    ("one-gpu", include_str!("../files/one-gpu.json")),
    ("dgx-a100-40gb", include_str!("../files/dgx-a100-40gb.json")),
    ("dgx-h100", include_str!("../files/dgx-h100.json")),
    ("hgx-h200", include_str!("../files/hgx-h200.json")),
    ("ec2-p5", include_str!("../files/ec2-p5.json")),
    ("gb200-tray", include_str!("../files/gb200-tray.json")),
    ("l40s-8gpu", include_str!("../files/l40s-8gpu.json")),
    ("a100-and-t4", include_str!("../files/a100-and-t4.json")),
    ("hgx-a100-4gpu", include_str!("../files/hgx-a100-4gpu.json")),
    ("a100-pcie-bridged-4gpu", include_str!("../files/a100-pcie-bridged-4gpu.json")),
    ("h100-pcie-bridged-8gpu", include_str!("../files/h100-pcie-bridged-8gpu.json")),
    ("hgx-b200-one-gpu-out-of-nvlink", include_str!("../files/hgx-b200-one-gpu-out-of-nvlink.json")),
];

// === impl Topology ===

impl Topology {
    /// Names of the built-in machines; [`Topology::description`] of each says what it is.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FILES.iter().map(|(name, _)| *name)
    }

    /// A built-in machine by its name, or by a beginning that no other name has: `dgx-a100`.
    pub fn builtin(name: &str) -> Result<Self, Error> {
        let mut like_it = FILES.iter().filter(|(known, _)| known.starts_with(name));
        let (Some((_, json)), None) = (like_it.next(), like_it.next()) else {
            let known = Self::names().collect::<Vec<_>>().join(", ");
            return Err(Error::Unknown { name: name.to_owned(), known });
        };
        Self::parse(json)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::{Gpu, LinkEnd};

    fn machines() -> impl Iterator<Item = (&'static str, Topology)> {
        Topology::names().map(|name| (name, Topology::builtin(name).unwrap_or_else(|error| panic!("{name}: {error}"))))
    }

    /// `dddd:bb:dd.f` as numbers; panics on anything that sysfs would not print.
    fn address(text: &str) -> (u32, u32) {
        let well_formed = text.len() == 12
            && text.char_indices().all(|(at, c)| match at {
                4 | 7 => c == ':',
                10 => c == '.',
                _ => c.is_ascii_digit() || ('a'..='f').contains(&c),
            });
        assert!(well_formed, "{text} is not a PCI address as sysfs prints it");
        let number = |part: &str| u32::from_str_radix(part, 16).unwrap();
        (number(&text[..4]), number(&text[5..7]))
    }

    fn links_to(gpu: &Gpu, peer: usize) -> u32 {
        gpu.nvlinks.iter().filter(|group| group.to == LinkEnd::Gpu(peer)).map(|group| group.count).sum()
    }

    #[test]
    fn every_file_is_built_in_and_says_what_it_is_and_where_its_values_come_from() {
        let files: BTreeSet<_> = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("files"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let names: BTreeSet<_> = Topology::names().map(|name| format!("{name}.json")).collect();
        assert_eq!(files, names);
        for (name, machine) in machines() {
            assert!(!machine.description.is_empty() && machine.description.len() < 120, "{name}");
            assert!(machine.source.contains("Invented: "), "{name} does not say which values are invented");
        }
    }

    #[test]
    fn every_board_with_mig_has_a_table_that_fits_into_its_memory() {
        for (name, machine) in machines() {
            for board in machine.boards.values() {
                let table = machine.mig_table(board);
                assert_eq!(table.is_some(), board.mig_capable, "{name}");
                let largest = table.and_then(|table| table.profiles.iter().map(|profile| profile.memory_mib).max());
                assert!(largest.unwrap_or(0) <= board.memory_mib, "{name}");
            }
        }
    }

    #[test]
    fn a_beginning_that_no_other_name_has_is_enough() {
        for (beginning, name) in
            [("dgx-a100", "dgx-a100-40gb"), ("a100-pcie", "a100-pcie-bridged-4gpu"), ("g", "gb200-tray")]
        {
            assert_eq!(Topology::builtin(beginning).unwrap(), Topology::builtin(name).unwrap(), "{beginning}");
        }
    }

    #[test]
    fn no_name_is_the_beginning_of_another() {
        for name in Topology::names() {
            assert_eq!(Topology::names().filter(|other| other.starts_with(name)).count(), 1, "{name}");
        }
    }

    #[test]
    fn a_name_of_none_or_of_several_is_answered_with_the_known_ones() {
        for name in ["dgx-9000", "dgx-h1000", "dgx", "hgx-", ""] {
            let error = Topology::builtin(name).unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?}")) && error.contains("dgx-h100, "), "{error}");
        }
    }

    #[test]
    fn uuids_are_canonical_and_unique_across_all_machines() {
        let mut seen = BTreeMap::new();
        for (name, machine) in machines() {
            for gpu in machine.gpus {
                let lengths: Vec<_> = gpu.uuid.strip_prefix("GPU-").unwrap().split('-').map(str::len).collect();
                assert_eq!(lengths, [8, 4, 4, 4, 12], "{name}: {}", gpu.uuid);
                assert!(gpu.uuid[4..].chars().all(|c| c == '-' || c.is_ascii_digit() || ('a'..='f').contains(&c)));
                if let Some(other) = seen.insert(gpu.uuid.clone(), name) {
                    panic!("{} is in {name} and in {other}", gpu.uuid);
                }
            }
        }
    }

    #[test]
    fn links_between_gpus_are_the_same_from_both_ends() {
        for (name, machine) in machines() {
            for (index, gpu) in machine.gpus.iter().enumerate() {
                for (peer_index, peer) in machine.gpus.iter().enumerate() {
                    assert_eq!(links_to(gpu, peer_index), links_to(peer, index), "{name}: {index} and {peer_index}");
                }
                assert_eq!(gpu.nvlinks.is_empty(), gpu.nvlink_version.is_none(), "{name}: gpu {index}");
            }
        }
    }

    #[test]
    fn links_to_switches_lead_to_switches_of_the_machine() {
        for (name, machine) in machines() {
            let known: BTreeSet<_> = machine.host.nvswitches.iter().map(|switch| &switch.bus_id).collect();
            let used: BTreeSet<_> = machine
                .gpus
                .iter()
                .flat_map(|gpu| &gpu.nvlinks)
                .filter_map(|group| if let LinkEnd::Switch(address) = &group.to { Some(address) } else { None })
                .collect();
            assert_eq!(known, used, "{name}");
        }
    }

    #[test]
    fn a_pcie_root_has_the_domain_of_its_devices_and_no_higher_bus() {
        for (name, machine) in machines() {
            let gpus = machine.gpus.iter().map(|gpu| (gpu.pcie_root.as_deref(), &gpu.bridges, &gpu.bus_id));
            let switches = machine.host.nvswitches.iter().map(|s| (Some(s.pcie_root.as_str()), &s.bridges, &s.bus_id));
            for (root, bridges, bus_id) in gpus.chain(switches) {
                let Some(root) = root else {
                    assert!(bridges.is_empty(), "{name}: {bus_id} has bridges and no root");
                    continue;
                };
                let (domain, mut bus) = address(&format!("{}:00.0", root.strip_prefix("pci").unwrap()));
                let root_bus = bus;
                for (depth, device) in bridges.iter().chain([bus_id]).enumerate() {
                    let (device_domain, device_bus) = address(device);
                    assert_eq!(device_domain, domain, "{name}: {device} under {root}");
                    // The outermost device is on the root bus itself, every other one on a bus behind the one before.
                    assert!(if depth == 0 { device_bus == root_bus } else { device_bus > bus }, "{name}: {device}");
                    bus = device_bus;
                }
            }
        }
    }

    #[test]
    fn numa_nodes_of_devices_exist_and_distances_are_symmetric() {
        for (name, machine) in machines() {
            let nodes = &machine.host.numa_nodes;
            let devices = machine.gpus.iter().map(|gpu| gpu.numa_node);
            for node in devices.chain(machine.host.nvswitches.iter().map(|switch| switch.numa_node)) {
                let exists = u32::try_from(node).is_ok_and(|id| nodes.iter().any(|n| n.id == id && !n.cpus.is_empty()));
                assert!(exists || node == -1, "{name}: numa node {node}");
            }
            for (i, a) in nodes.iter().enumerate() {
                for (j, b) in nodes.iter().enumerate() {
                    assert_eq!(a.distances.get(j), b.distances.get(i), "{name}: {i} and {j}");
                }
            }
        }
    }

    #[test]
    fn no_two_gpus_share_an_iommu_group() {
        for (name, machine) in machines() {
            let groups: Vec<_> = machine.gpus.iter().filter_map(|gpu| gpu.iommu_group).collect();
            assert_eq!(groups.iter().collect::<BTreeSet<_>>().len(), groups.len(), "{name}");
        }
    }
}
