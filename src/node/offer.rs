//! Passes on what the node offers, whenever that has changed: the pool of slices that is wanted.
//!
//! ```text
//!  a look at the GPUs ──▶ whose are the instances of GPUs that this plugin partitions? ──▶ the pool
//! ```
//!
//! An instance that no claim has is somebody else's, and what it covers is kept from claims. A look can see an instance of
//! a claim that is released before the look is seen here, so it takes two looks to call it foreign. Until then, who tries to
//! use its place is refused by the prepare, which looks for itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;
use tracing::{info, warn};

use crate::device::mig::{GpuInstance, Placement};
use crate::device::{GpuUuid, Node};
use crate::inventory::Views;
use crate::prepare::Preparer;
use crate::slice::{self, Layout, Pool};

/// What there is to offer, and how.
pub(super) struct Offer {
    layout: Layout,
    /// The name of the pool.
    name: String,
    preparer: Preparer,
    /// Instances without a claim, as of the last look.
    unclaimed: BTreeSet<Instance>,
    /// Those that are called foreign.
    foreign: BTreeSet<Instance>,
}

/// What tells one instance from others as long as it exists.
type Instance = (GpuUuid, u32, Placement);

// === impl Offer ===

impl Offer {
    pub(super) fn new(layout: Layout, name: String, preparer: Preparer) -> Self {
        Self { layout, name, preparer, unclaimed: BTreeSet::new(), foreign: BTreeSet::new() }
    }

    /// Passes the pool on after every look that changes it. As long as nothing is known, nothing is wanted.
    pub(super) async fn keep(mut self, mut views: Views, pool: watch::Sender<Option<Pool>>) {
        let mut laid_out = None;
        loop {
            let node = views.current.borrow_and_update().clone();
            let is_news = self.tell_apart(node.as_deref());
            if is_news || node != laid_out {
                pool.send_replace(node.as_ref().map(|node| slice::pool_in(self.layout, &self.name, &self.mark(node))));
                laid_out = node;
            }
            if views.looked.changed().await.is_err() {
                return;
            }
        }
    }

    /// Finds instances that are somebody else's; whether they are others than before.
    fn tell_apart(&mut self, node: Option<&Node>) -> bool {
        let gpus = node.into_iter().flat_map(|node| &node.gpus).filter(|gpu| gpu.is_dynamic());
        let instances = gpus.flat_map(|gpu| gpu.mig.instances.iter().map(|instance| (&gpu.uuid, instance)));
        let unclaimed = instances.filter(|(gpu, instance)| !self.preparer.has_part_at(gpu, instance.placement));
        let unclaimed: BTreeSet<_> = unclaimed.map(|(gpu, instance)| identity(gpu, instance)).collect();
        let foreign = &unclaimed & &self.unclaimed;
        self.unclaimed = unclaimed;
        if foreign == self.foreign {
            return false;
        }
        for (gpu, id, place) in &foreign - &self.foreign {
            let slices = format!("{} to {}", place.start, place.end().saturating_sub(1));
            warn!(%gpu, instance = id, slices, "a GPU instance is not ours: what it covers is kept from claims");
        }
        for (gpu, id, _) in &self.foreign - &foreign {
            info!(%gpu, instance = id, "a GPU instance that was not ours is gone");
        }
        self.foreign = foreign;
        true
    }

    fn mark(&self, node: &Arc<Node>) -> Arc<Node> {
        if self.foreign.is_empty() {
            return Arc::clone(node);
        }
        let mut node = Node::clone(node);
        for gpu in &mut node.gpus {
            for instance in &mut gpu.mig.instances {
                instance.foreign = self.foreign.contains(&identity(&gpu.uuid, instance));
            }
        }
        Arc::new(node)
    }
}

fn identity(gpu: &GpuUuid, instance: &GpuInstance) -> Instance {
    (gpu.clone(), instance.id, instance.placement)
}
