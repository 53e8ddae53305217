//! Which NUMA nodes are as near as a device's own, from sysfs.
//!
//! A CPU package may be several nodes (sub-NUMA clustering), or have one for memory that hangs off a GPU. A device names
//! one of them; this finds the others, as the standard attribute `numaNode` defines its list.

use std::fs;
use std::path::Path;

/// The nodes at the smallest distance from `node` but its own, in ascending order, without those that are known to be on
/// another socket. Empty where the kernel does not tell distances.
pub(super) fn siblings(sys: &Path, node: u32) -> Vec<u32> {
    let others = distances(sys, node).unwrap_or_default();
    let nearest = others.iter().map(|(_, distance)| *distance).min();
    let own = socket(sys, node);
    let same = |other: u32| own.zip(socket(sys, other)).is_none_or(|(own, other)| own == other);
    let near = others.iter().filter(|(other, distance)| Some(*distance) == nearest && same(*other));
    near.map(|(other, _)| *other).collect()
}

/// How far the other nodes are. `None` unless there is one number for each node that is online.
fn distances(sys: &Path, node: u32) -> Option<Vec<(u32, u32)>> {
    let directory = sys.join("devices/system/node");
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok();
    let mut nodes: Vec<u32> = fs::read_dir(&directory).ok()?.flatten().filter_map(number).collect();
    nodes.sort_unstable();
    let row = fs::read_to_string(directory.join(format!("node{node}/distance"))).ok()?;
    let row = row.split_whitespace().map(|text| text.parse().ok()).collect::<Option<Vec<u32>>>()?;
    let other = |(other, distance): (u32, u32)| (other != node).then_some((other, distance));
    (row.len() == nodes.len()).then(|| nodes.into_iter().zip(row).filter_map(other).collect())
}

/// The package of a node's first CPU; `None` for memory without CPUs.
fn socket(sys: &Path, node: u32) -> Option<i32> {
    let cpus = fs::read_to_string(sys.join(format!("devices/system/node/node{node}/cpulist"))).ok()?;
    let first: u32 = cpus.split(['-', ',', '\n']).next()?.parse().ok()?;
    let package = sys.join(format!("devices/system/cpu/cpu{first}/topology/physical_package_id"));
    fs::read_to_string(package).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes by number: CPUs, distances, and the socket of the first CPU.
    fn sysfs(nodes: &[(u32, &str, &str, &str)]) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        for (node, cpus, distance, socket) in nodes {
            let path = sys.path().join(format!("devices/system/node/node{node}"));
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("cpulist"), format!("{cpus}\n")).unwrap();
            fs::write(path.join("distance"), format!("{distance}\n")).unwrap();
            if let Some(first) = cpus.split(['-', ',']).next().filter(|first| !first.is_empty()) {
                let path = sys.path().join(format!("devices/system/cpu/cpu{first}/topology"));
                fs::create_dir_all(&path).unwrap();
                fs::write(path.join("physical_package_id"), format!("{socket}\n")).unwrap();
            }
        }
        // The kernel has more here than nodes.
        fs::write(sys.path().join("devices/system/node/online"), "0-1\n").unwrap();
        sys
    }

    const NONE: [u32; 0] = [];

    #[test]
    fn another_socket_is_not_near_even_if_nothing_is_nearer() {
        let sys = sysfs(&[(0, "0-55", "10 21", "0"), (1, "56-111", "21 10", "1")]);
        assert_eq!(siblings(sys.path(), 0), NONE);
    }

    #[test]
    fn clusters_of_one_package_are_near() {
        let rows = ["10 12 12 21", "12 10 12 21", "12 12 10 21", "21 21 21 10"];
        let sys = sysfs(&[
            (0, "0-7", rows[0], "0"),
            (1, "8-15", rows[1], "0"),
            (2, "16", rows[2], "0"),
            (3, "24", rows[3], "1"),
        ]);
        assert_eq!(siblings(sys.path(), 1), [0, 2]);
        assert_eq!(siblings(sys.path(), 3), NONE, "the nearest are all on the other socket");
    }

    #[test]
    fn memory_without_cpus_counts_if_it_is_the_nearest_and_numbers_may_have_gaps() {
        let sys = sysfs(&[(0, "0-71", "10 40 80", "0"), (2, "", "40 10 80", ""), (16, "", "80 80 10", "")]);
        assert_eq!(siblings(sys.path(), 0), [2]);
        assert_eq!(siblings(sys.path(), 2), [0], "its socket is not known");
    }

    #[test]
    fn without_distances_there_are_no_siblings() {
        let sys = sysfs(&[(0, "0", "10", "0"), (1, "1", "far 10", "0")]);
        for node in [0, 1, 7] {
            assert_eq!(siblings(sys.path(), node), NONE);
        }
        assert_eq!(siblings(Path::new("/nowhere"), 0), NONE);
    }
}
