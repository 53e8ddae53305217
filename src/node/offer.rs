//! Passes on what the node offers, whenever that has changed: the pool of slices that is wanted.
//!
//! ```text
//!  a look at the GPUs ──▶ whose are the instances of GPUs that this plugin partitions? ──▶ the pool
//! ```
//!
//! An instance that no claim has is somebody else's, and what it covers is kept from claims. A look can see an instance of
//! a claim that is released before the look is seen here, so it takes two looks to call it foreign. Until then, who tries to
//! use its place is refused by the prepare, which looks for itself.
//!
//! A GPU can be left written down as one whose MIG mode this plugin has turned on though it is off: the process ended in
//! between. It is struck out here, where claims and modes are both known, or its administrator's mode would later be taken
//! for ours. That takes two looks as well: a claim may be about to turn the mode on, and has a record before it does.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;
use tracing::{info, warn};

use crate::device::mig::{GpuInstance, Placement};
use crate::device::{GpuUuid, Node};
use crate::inventory::{MigModes, Views, mig_modes};
use crate::prepare::Preparer;
use crate::slice::{self, Layout, Pool};

/// What there is to offer, and how.
pub(super) struct Offer {
    layout: Layout,
    /// The name of the pool.
    name: String,
    preparer: Preparer,
    modes: MigModes,
    /// GPUs that are written down without a reason, as of the last look.
    stale: BTreeSet<GpuUuid>,
    /// Instances without a claim, as of the last look.
    unclaimed: BTreeSet<Instance>,
    /// Those that are called foreign.
    foreign: BTreeSet<Instance>,
}

/// What tells one instance from others as long as it exists.
type Instance = (GpuUuid, u32, Placement);

/// All of a GPU.
const ANYWHERE: Placement = Placement { start: 0, size: u32::MAX };

// === impl Offer ===

impl Offer {
    pub(super) fn new(layout: Layout, name: String, preparer: Preparer, modes: MigModes) -> Self {
        let (stale, unclaimed, foreign) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        Self { layout, name, preparer, modes, stale, unclaimed, foreign }
    }

    /// Passes the pool on after every look that changes it. As long as nothing is known, nothing is wanted.
    pub(super) async fn keep(mut self, mut views: Views, pool: watch::Sender<Option<Pool>>) {
        let mut laid_out = None;
        loop {
            let node = views.current.borrow_and_update().clone();
            let is_news = self.tell_apart(node.as_deref());
            if is_news || node != laid_out {
                let wanted = node.as_ref().map(|node| slice::pool_in(self.layout, &self.name, &self.mark(node)));
                // The instances of claims come and go, and change nothing of it.
                pool.send_if_modified(|pool| {
                    let is_news = *pool != wanted;
                    *pool = wanted;
                    is_news
                });
                laid_out.clone_from(&node);
            }
            if let Some(node) = node {
                self.strike_out(node).await;
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

    /// Strikes out GPUs whose MIG mode is off, and no claim has or is about to have a part of them.
    async fn strike_out(&mut self, node: Arc<Node>) {
        let (modes, preparer, before) = (self.modes.clone(), self.preparer.clone(), std::mem::take(&mut self.stale));
        let step = move || {
            let listed = modes.read()?;
            let off = node.gpus.iter().filter(|gpu| !gpu.mig.enabled && listed.contains(&gpu.uuid));
            let unused = off.filter(|gpu| !preparer.has_part_at(&gpu.uuid, ANYWHERE)).map(|gpu| gpu.uuid.clone());
            let (over, stale): (BTreeSet<_>, _) = unused.partition(|gpu| before.contains(gpu));
            for gpu in over {
                modes.remove(&gpu)?;
                info!(%gpu, "MIG mode, which this plugin was about to turn on, is off and no claim needs it");
            }
            Ok::<_, mig_modes::Error>(stale)
        };
        // What fails is tried at the next look; the inventory tells of a file that cannot be read.
        if let Ok(Ok(stale)) = tokio::task::spawn_blocking(step).await {
            self.stale = stale;
        }
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

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use serde_json::json;

    use super::*;
    use crate::cdi::{self, example::Machine as Host};
    use crate::claim::example::{POOL, mk_node, mk_uuid};
    use crate::device::Partitioning;
    use crate::device::example::{mk_instance, mk_mig};
    use crate::prepare;

    /// A node whose looks are a test's to make.
    struct Rig {
        host: Host,
        current: watch::Sender<Option<Arc<Node>>>,
        looked: watch::Sender<Option<SystemTime>>,
        views: Views,
        modes: MigModes,
    }

    impl Rig {
        fn new() -> Self {
            let host = Host::new();
            let (current, looked) = (watch::Sender::new(None), watch::Sender::new(None));
            let (current_view, looked_view) = (current.subscribe(), looked.subscribe());
            let failure = watch::Sender::new(None).subscribe();
            let views = Views { current: current_view, looked: looked_view, failure };
            let directory = host.state("plugin");
            std::fs::create_dir_all(&directory).unwrap();
            Self { host, current, looked, views, modes: MigModes::of(&directory, "boot".to_owned()) }
        }

        async fn offer(&self) -> Offer {
            let settings = prepare::Settings {
                claims_dir: self.host.state("claims"),
                cdi_dir: self.host.state("cdi"),
                cdi_kind: cdi::Kind::claims_of("gpu.nvidia.com").unwrap(),
                sources: self.host.sources(),
                pool: POOL.to_owned(),
                boot_id: "boot".to_owned(),
            };
            let gpus = prepare::Gpus::without_nvml(self.views.clone());
            let preparer = Preparer::open(settings, gpus, prepare::Metrics::default()).await.unwrap();
            let layout = Layout { form: crate::device::attribute::Form::Scalar, counting: slice::Counting::default() };
            Offer::new(layout, POOL.to_owned(), preparer, self.modes.clone())
        }
    }

    /// Both GPUs are partitioned by this plugin.
    fn mk_dynamic(enabled: bool) -> Node {
        let mut node = mk_node(2);
        for gpu in &mut node.gpus {
            (gpu.mig, gpu.partitioning) = (mk_mig(enabled), Partitioning::Dynamic { whole: true });
        }
        node
    }

    #[tokio::test]
    async fn a_mode_that_is_off_in_two_looks_and_that_no_claim_needs_is_not_ours_any_more() {
        let rig = Rig::new();
        let record = json!({
            "version": 2, "bootId": "boot", "state": "PrepareCompleted",
            "claim": {"uid": "a", "namespace": "team", "name": "a"},
            "devices": [{
                "pool": POOL, "device": "gpu-0-mig-1g5gb-19-0", "requests": ["main"], "usage": "Exclusive", "cdiIds": [],
                "gpu": mk_uuid(0), "part": {"profile": 19, "start": 0, "size": 1}
            }]
        });
        std::fs::create_dir_all(rig.host.state("claims")).unwrap();
        std::fs::write(rig.host.state("claims").join("a.json"), record.to_string()).unwrap();
        let mut offer = rig.offer().await;
        let listed = || rig.modes.read().unwrap();
        let both = BTreeSet::from([mk_uuid(0), mk_uuid(1)]);
        for gpu in &both {
            rig.modes.add(gpu).unwrap();
        }
        for enabled in [false, true, false] {
            offer.strike_out(Arc::new(mk_dynamic(enabled))).await;
            assert_eq!(listed(), both);
        }
        offer.strike_out(Arc::new(mk_dynamic(false))).await;
        assert_eq!(listed(), [mk_uuid(0)].into(), "a claim needs the mode of the other");
    }

    #[tokio::test]
    async fn an_instance_of_a_claim_that_comes_or_goes_is_no_news() {
        let rig = Rig::new();
        let (sender, mut pool) = watch::channel(None);
        let keeping = tokio::spawn(rig.offer().await.keep(rig.views.clone(), sender.clone()));
        let mut node = mk_dynamic(true);
        rig.current.send_replace(Some(Arc::new(node.clone())));
        rig.looked.send_replace(Some(SystemTime::now()));
        pool.changed().await.unwrap();
        assert!(pool.borrow_and_update().is_some());
        node.gpus[0].mig.instances = vec![mk_instance(7, 19, 0, &[1])];
        rig.current.send_replace(Some(Arc::new(node)));
        rig.looked.send_replace(Some(SystemTime::now()));
        drop(rig.looked);
        keeping.await.unwrap();
        assert!(!pool.has_changed().unwrap());
        drop(sender);
    }
}
