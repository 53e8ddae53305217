//! A partition into groups of which every member is linked to every other.

use super::{Graph, Groups};

/// Takes the largest such group out of a domain until none is left; of two equally large ones, the one that comes first
/// by PCI address.
pub(super) fn partition(graph: &Graph<'_>, domain: &[usize]) -> Groups {
    let mut left = domain.to_vec();
    let mut cliques = Vec::new();
    while !left.is_empty() {
        let mut largest = Vec::new();
        grow(graph, &mut Vec::new(), &left, &mut largest);
        left.retain(|gpu| !largest.contains(gpu));
        cliques.push(largest);
    }
    cliques
}

/// Extends `clique` by `candidates`, all of which are linked to all of it, in ascending order: the first group found of
/// a size is the first by PCI address. The number of steps is exponential in the worst case, and a single descent where
/// all are linked to all; a node has 16 GPUs at most.
fn grow(graph: &Graph<'_>, clique: &mut Vec<usize>, candidates: &[usize], largest: &mut Vec<usize>) {
    if clique.len() > largest.len() {
        largest.clone_from(clique);
    }
    for (at, gpu) in candidates.iter().enumerate() {
        if clique.len() + candidates.len() - at <= largest.len() {
            return;
        }
        clique.push(*gpu);
        let both: Vec<_> = candidates[at + 1..].iter().copied().filter(|other| graph.linked(*gpu, *other)).collect();
        grow(graph, clique, &both, largest);
        clique.pop();
    }
}
