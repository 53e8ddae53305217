//! Groups of which every member is linked to every other: a partition, and all that none can join.

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

/// All groups of a domain that no other GPU could join, in ascending order. There are few where links are regular; the
/// worst that 16 GPUs can do is a few hundred.
pub(super) fn maximal(graph: &Graph<'_>, domain: &[usize]) -> Groups {
    let mut found = Vec::new();
    extend(graph, &mut Vec::new(), domain.to_vec(), Vec::new(), &mut found);
    found.sort();
    found
}

/// The algorithm of Bron and Kerbosch: grows `clique` by `candidates`; with one of `done` it was grown before. Neighbours
/// of a candidate are left to it, so that GPUs that are all linked take one descent.
fn extend(
    graph: &Graph<'_>,
    clique: &mut Vec<usize>,
    mut candidates: Vec<usize>,
    mut done: Vec<usize>,
    found: &mut Groups,
) {
    let Some(pivot) = candidates.iter().chain(&done).copied().next() else {
        let mut group = clique.clone();
        group.sort_unstable();
        found.push(group);
        return;
    };
    let linked = |gpus: &[usize], to: usize| gpus.iter().copied().filter(|gpu| graph.linked(*gpu, to)).collect();
    for gpu in candidates.clone() {
        if graph.linked(gpu, pivot) {
            continue;
        }
        clique.push(gpu);
        extend(graph, clique, linked(&candidates, gpu), linked(&done, gpu), found);
        clique.pop();
        candidates.retain(|other| *other != gpu);
        done.push(gpu);
    }
}
