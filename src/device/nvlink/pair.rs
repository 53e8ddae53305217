//! A partition into pairs of linked GPUs.

use super::{Graph, Groups};

/// The matching is exact up to this many GPUs of one domain, for 2^12 table entries; a larger domain is cut along the
/// bus. Links without switches join 8 GPUs at most (the V100 mesh), and on switches any cut between pairs is as good.
const EXACT: usize = 12;

/// How good a set of pairs is; the earlier field decides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    pairs: u32,
    links: u32,
    same_root: u32,
    same_numa_node: u32,
}

/// Pairs a domain: as many pairs as possible, then the most links, then GPUs that share a PCIe root, then a NUMA node,
/// then neighbours on the bus. GPUs that find no partner stay alone.
pub(super) fn partition(graph: &Graph<'_>, domain: &[usize]) -> Groups {
    domain.chunks(EXACT).flat_map(|gpus| matching(graph, gpus)).collect()
}

/// Tries all matchings: for each set of GPUs, the best way to pair them, by what its first GPU does.
fn matching(graph: &Graph<'_>, gpus: &[usize]) -> Groups {
    let all = (1_usize << gpus.len()) - 1;
    let mut best = vec![(Score::default(), None); all + 1];
    for set in 1..=all {
        let first = set.trailing_zeros() as usize;
        let rest = set & !(1 << first);
        let mut chosen: (Score, Option<usize>) = (Score::default(), None);
        for partner in (first + 1..gpus.len()).filter(|gpu| rest & 1 << gpu != 0) {
            if let Some(score) = Score::of(graph, gpus[first], gpus[partner]) {
                let total = score.plus(best[rest & !(1 << partner)].0);
                if total > chosen.0 {
                    chosen = (total, Some(partner));
                }
            }
        }
        // Alone only where no partner is as good: ties go to the earliest partner.
        best[set] = if best[rest].0 > chosen.0 { (best[rest].0, None) } else { chosen };
    }
    let mut groups = Vec::new();
    let mut set = all;
    while set != 0 {
        let first = set.trailing_zeros() as usize;
        let mut group = vec![gpus[first]];
        if let Some(partner) = best[set].1 {
            group.push(gpus[partner]);
            set &= !(1 << partner);
        }
        set &= !(1 << first);
        groups.push(group);
    }
    groups
}

// === impl Score ===

impl Score {
    /// Of one pair; `None` where the two are not linked.
    fn of(graph: &Graph<'_>, a: usize, b: usize) -> Option<Self> {
        let (place_a, place_b) = (&graph.gpus[a].place, &graph.gpus[b].place);
        let same_root = place_a.pcie_root.is_some() && place_a.pcie_root == place_b.pcie_root;
        let same_numa_node = place_a.numa_node.is_some() && place_a.numa_node == place_b.numa_node;
        graph.linked(a, b).then(|| Self {
            pairs: 1,
            links: graph.width[a][b],
            same_root: same_root.into(),
            same_numa_node: same_numa_node.into(),
        })
    }

    fn plus(self, other: Self) -> Self {
        Self {
            pairs: self.pairs + other.pairs,
            links: self.links.saturating_add(other.links),
            same_root: self.same_root + other.same_root,
            same_numa_node: self.same_numa_node + other.same_numa_node,
        }
    }
}
