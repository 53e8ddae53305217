//! Which GPUs are joined by NVLink, as values that a claim can constrain to be equal.
//!
//! A claim can only ask that its devices have *the same value* of an attribute, so the link table is published as three
//! partitions of the GPUs. Each comes from the links that are up, never from the board's name: a GPU that fell out of
//! the fabric leaves its groups.
//!
//! ```text
//!            NVSwitch: 8 GPUs      bridges: 0═1 2═3      V100 mesh: two quads and cross links
//!  domain    all 8                 {0,1} {2,3}           all 8: reachable, not always directly
//!  clique    all 8                 {0,1} {2,3}           {0,1,2,3} {4,5,6,7}: all to all
//!  pair      neighbours by PCIe    {0,1} {2,3}           two links between the two of each pair
//! ```
//!
//! A value is the smallest UUID of its group, so that no other node has it, unless the group belongs to a fabric that
//! spans nodes: then it is that fabric's. A GPU alone has its own UUID, which equals no other's.

mod clique;
mod pair;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{Fabric, Gpu, Peer};

/// What the links of one GPU amount to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvLink {
    /// The newest generation of its links; 0 without one.
    pub version: u32,
    /// How many of its links are up.
    pub links: u32,
    /// The same on all GPUs that can reach each other over links, directly or not. On a fabric that spans nodes:
    /// `<cluster UUID>.<clique>`.
    pub domain: String,
    /// The same on GPUs of which each is linked to each: a partition into groups as large as possible.
    pub clique: String,
    /// One value for each group of GPUs that are all linked to each other, that this GPU is in, and that no other GPU
    /// could join; the largest first. Any GPUs that are all linked to each other have one in common.
    pub cliques: Vec<String>,
    /// The same on two GPUs that are linked: as many pairs as possible, those with the most links first.
    pub pair: String,
}

/// The links between the GPUs of a node, in an order that does not depend on how they were listed.
struct Graph<'a> {
    /// By PCI address: neighbours here are neighbours on the bus.
    gpus: Vec<&'a Gpu>,
    /// How many links join two GPUs; 0 where they are not joined.
    width: Vec<Vec<u32>>,
}

/// Groups of GPUs by their number in a [`Graph`]; each group and all groups in ascending order.
type Groups = Vec<Vec<usize>>;

/// The API takes 48 values of a device, of which other attributes need half. A GPU of the V100 mesh, the least regular
/// that was built, is in two.
const CLIQUES: usize = 16;

/// What the links of each GPU amount to, in the order of `gpus`.
pub fn topology(gpus: &[Gpu]) -> Vec<NvLink> {
    let graph = Graph::new(gpus);
    let domains = graph.domains();
    let cliques: Groups = domains.iter().flat_map(|domain| clique::partition(&graph, domain)).collect();
    let maximal: Groups = domains.iter().flat_map(|domain| clique::maximal(&graph, domain)).collect();
    let pairs: Groups = domains.iter().flat_map(|domain| pair::partition(&graph, domain)).collect();
    let find = |gpu: &Gpu, groups: &Groups| {
        let has = |group: &&Vec<usize>| group.iter().any(|member| graph.gpus[*member].uuid == gpu.uuid);
        groups.iter().find(has).cloned().unwrap_or_default()
    };
    let nvlink = |gpu: &Gpu| NvLink {
        version: gpu.links.iter().filter_map(|link| link.version).max().unwrap_or(0),
        links: u32::try_from(gpu.links.len()).unwrap_or(u32::MAX),
        domain: graph.label(&find(gpu, &domains)),
        clique: graph.label(&find(gpu, &cliques)),
        cliques: graph.labels(gpu, &maximal),
        pair: graph.smallest_uuid(&find(gpu, &pairs)),
    };
    gpus.iter().map(nvlink).collect()
}

// === impl Graph ===

impl<'a> Graph<'a> {
    fn new(gpus: &'a [Gpu]) -> Self {
        let mut gpus: Vec<_> = gpus.iter().collect();
        gpus.sort_by_key(|gpu| (gpu.pci, &gpu.uuid));
        let width = gpus.iter().map(|a| gpus.iter().map(|b| width(a, b)).collect()).collect();
        Self { gpus, width }
    }

    fn linked(&self, a: usize, b: usize) -> bool {
        self.width[a][b] > 0
    }

    /// Connected components.
    fn domains(&self) -> Groups {
        let mut left: Vec<usize> = (0..self.gpus.len()).collect();
        let mut domains = Vec::new();
        while !left.is_empty() {
            let mut domain = vec![left.remove(0)];
            let mut next = 0;
            while next < domain.len() {
                let from = domain[next];
                domain.extend(left.extract_if(.., |gpu| self.linked(from, *gpu)));
                next += 1;
            }
            domain.sort_unstable();
            domains.push(domain);
        }
        domains
    }

    /// The value of a group that a whole fabric may share: the fabric's where it is the fabric's part on this node.
    fn label(&self, group: &[usize]) -> String {
        let member = |gpu: &usize| self.gpus[*gpu].fabric.as_ref().filter(|_| switch_links(self.gpus[*gpu]) > 0);
        match group.first().and_then(member) {
            Some(fabric) if group.iter().all(|gpu| member(gpu) == Some(fabric)) => {
                let Fabric { cluster, clique } = fabric;
                format!("{cluster}.{clique}")
            }
            _ => self.smallest_uuid(group),
        }
    }

    /// The values of those of `groups` that a GPU is in. Several may have the same smallest UUID, and are numbered.
    fn labels(&self, gpu: &Gpu, groups: &Groups) -> Vec<String> {
        let mut labels: Vec<(usize, String)> = Vec::new();
        let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
        for group in groups {
            let label = self.label(group);
            let number = numbers.entry(label.clone()).or_default();
            if group.iter().any(|member| self.gpus[*member].uuid == gpu.uuid) {
                let label = if *number == 0 { label } else { format!("{label}.{number}") };
                labels.push((group.len(), label));
            }
            *number += 1;
        }
        labels.sort_by_key(|(size, _)| Reverse(*size));
        labels.into_iter().take(CLIQUES).map(|(_, label)| label).collect()
    }

    fn smallest_uuid(&self, group: &[usize]) -> String {
        group.iter().map(|gpu| &self.gpus[*gpu].uuid).min().map(ToString::to_string).unwrap_or_default()
    }
}

/// Links between two GPUs that are up at both ends. All switches of a machine are one: what reaches a switch reaches
/// every GPU on a switch, if the fabric, where there is one, has put both into the same clique.
fn width(a: &Gpu, b: &Gpu) -> u32 {
    if a.uuid == b.uuid {
        return 0;
    }
    let switched = if a.fabric == b.fabric { switch_links(a).min(switch_links(b)) } else { 0 };
    direct_links(a, b).min(direct_links(b, a)) + switched
}

fn direct_links(from: &Gpu, to: &Gpu) -> u32 {
    count_links(from, Peer::Gpu(to.pci))
}

fn switch_links(gpu: &Gpu) -> u32 {
    count_links(gpu, Peer::Switch)
}

/// A GPU that is used in parts reaches no other GPU, whatever its links say.
fn count_links(gpu: &Gpu, peer: Peer) -> u32 {
    let links = if gpu.is_offered_whole() { gpu.links.iter().filter(|link| link.peer == peer).count() } else { 0 };
    u32::try_from(links).unwrap_or(u32::MAX)
}
