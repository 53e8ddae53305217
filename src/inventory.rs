//! Finds the node's GPUs: NVML and sysfs → [`device::Node`](crate::device::Node).
//!
//! ```text
//!  nvml::gpu::scan ──▶ facts ─┐
//!  host: pci, node ──▶ place ─┼─▶ Node ──watch──▶ slices, claims
//!  names.json ───────▶ name ──┘
//! ```
//!
//! The machine is looked at again and again, because links die, fabrics finish training and drivers are upgraded under
//! a running plugin. What cannot be read at the moment changes nothing: "not known" is not "none", so a fact that fails
//! stays what the last look found.

pub mod mig_modes;
pub mod names;
mod partitioning;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::args::DynamicMig;
use crate::device::attribute::Form;
use crate::device::{DeviceName, Gpu, GpuUuid, LeftOut, Node, Partitioning, Place};
use crate::host::{Roots, pci};
use crate::nvml::gpu::{self, Facts, Lasting, Scan};
use crate::nvml::{self, Session};
use crate::slice;

pub use mig_modes::MigModes;
pub use names::NameMap;
use partitioning::Partitioner;

/// What the other rooms see of the inventory: `None` until NVML has answered once.
pub type Current = watch::Receiver<Option<Arc<Node>>>;

/// What others see of an inventory.
#[derive(Debug, Clone)]
pub struct Views {
    /// What the node has.
    pub current: Current,
    /// When it was last looked at with success. Every look is a change here, also one that found nothing new.
    pub looked: watch::Receiver<Option<SystemTime>>,
    /// Why the last look failed; `None` while looks succeed.
    pub failure: watch::Receiver<Option<String>>,
}

/// How often the machine is looked at. Links that die or return have to show within a minute, and the kubelet is to
/// hear every 10 s that devices are healthy; a look takes some hundred NVML calls of microseconds.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// How soon after a failed look: the driver may be starting.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The longest a look may take. NVML can need ten seconds to initialise a driver that nobody keeps loaded, and a GPU
/// that is resetting stalls calls for as long again.
const LOOK_WITHIN: Duration = Duration::from_secs(60);

/// Keeps [`Current`] up to date.
pub struct Inventory {
    session: Session,
    roots: Roots,
    names: NameMap,
    /// How attributes are published.
    form: Form,
    partitioner: Partitioner,
    /// What the last look read, for facts that the next one cannot.
    last: Arc<Scan>,
    /// What of `current` cannot be published.
    unpublished: Vec<LeftOut>,
    reported: Reported,
    current: watch::Sender<Option<Arc<Node>>>,
    looked: watch::Sender<Option<SystemTime>>,
    failure: watch::Sender<Option<String>>,
}

/// One look at the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Discovery {
    /// What can be offered.
    pub node: Node,
    /// The GPUs whose device nodes could not be looked at. Of them it is not known whether they can be offered.
    pub unseen: BTreeSet<GpuUuid>,
    /// What can not, and why.
    pub left_out: Vec<LeftOut>,
}

/// What has been logged as left out and still is, and how much that is.
#[derive(Debug, Default)]
struct Reported {
    left_out: BTreeSet<LeftOut>,
    count: Gauge,
}

/// Reads the whole machine once, and names GPUs that are new. Facts that fail to be read stay what they are in `last`,
/// which then holds what this look found: an empty one is for the first look.
///
/// # Errors
/// When NVML has no answer: then nothing is known, and what was known before still holds.
pub async fn discover(
    session: &Session,
    roots: &Roots,
    names: &mut NameMap,
    last: &mut Arc<Scan>,
) -> Result<Discovery, nvml::Error> {
    let (sys, devices, known) = (roots.sys.clone(), roots.devices(), Arc::clone(last));
    // sysfs can block too, so it is read on the same thread.
    let look = move |nvml: &nvml::Nvml| {
        let scan = gpu::scan(nvml, &known)?;
        let place = |gpu: &Facts| pci::place(&sys, gpu.pci, gpu.uuid.as_str());
        let node = |gpu: &Facts| devices.node(&format!("nvidia{}", gpu.minor)).map(drop);
        let places: Vec<_> = scan.gpus.iter().map(|gpu| (place(gpu), node(gpu))).collect();
        Ok((scan, places))
    };
    let answer = session.call("read the GPUs", LOOK_WITHIN, look).await;
    // What could not be asked may have changed since.
    let (scan, places) = answer.inspect_err(|_| Arc::make_mut(last).until_all = 0)?;
    *last = Arc::new(scan.clone());
    let Scan { driver, gpus, mut left_out, until_all: _ } = scan;

    let minors: Vec<_> = gpus.iter().map(|gpu| (gpu.uuid.clone(), gpu.minor)).collect();
    names.assign(&minors);
    // Writes only when there is a new GPU, or could not write the last time.
    if let Err(error) = names.save().await {
        left_out.push(LeftOut::new("storing the names of the GPUs", &error));
    }
    // Another process may have been first with a name; the next look stores what is new by that.
    let given = names.assign(&minors);

    let mut node = Node { driver, absent: names.absent(&given), ..Node::default() };
    let mut unseen = BTreeSet::new();
    for (facts, ((place, unknown), found)) in gpus.into_iter().zip(places) {
        let why = match given.get(&facts.uuid) {
            Some(_) if node.gpus.iter().any(|gpu| gpu.uuid == facts.uuid) => "another GPU has the same UUID",
            Some(name) => {
                left_out.extend(unknown);
                let has_node = found.is_ok();
                if let Err(error) = found {
                    left_out.push(LeftOut::new(format!("{name} ({})", facts.uuid), &error));
                    if !error.is_absence() {
                        unseen.insert(facts.uuid.clone());
                    }
                }
                node.gpus.push(with_place(facts, name.clone(), place, has_node));
                continue;
            }
            None => "there is no free name for it",
        };
        left_out.push(LeftOut { what: format!("{} at {}", facts.uuid, facts.pci), why: why.to_owned() });
    }
    node.gpus.sort_by(|a, b| a.name.cmp(&b.name));

    Ok(Discovery { node, unseen, left_out })
}

/// What could not be looked at this time stays what it was: a GPU's place as long as it has the same address, and that it
/// has a device node.
fn keep_known(node: &mut Node, before: &Node, unseen: &BTreeSet<GpuUuid>) {
    for gpu in &mut node.gpus {
        let Some(known) = before.gpus.iter().find(|known| known.uuid == gpu.uuid) else { continue };
        if unseen.contains(&gpu.uuid) && known.minor == gpu.minor {
            gpu.has_node = known.has_node;
        }
        if known.pci != gpu.pci {
            continue;
        }
        let (place, known) = (&mut gpu.place, &known.place);
        if place.pcie_root.is_none() {
            place.pcie_root.clone_from(&known.pcie_root);
        }
        if place.numa_node.is_none() {
            place.numa_node = known.numa_node;
            place.numa_siblings.clone_from(&known.numa_siblings);
        }
        place.iommu_group = place.iommu_group.or(known.iommu_group);
    }
}

fn with_place(facts: Facts, name: DeviceName, place: Place, has_node: bool) -> Gpu {
    let Facts { uuid, minor, pci, lasting, memory_bytes, mig, links, fabric, .. } = facts;
    let Lasting { product_name, brand, architecture, cuda_compute_capability, addressing_mode } = lasting;
    Gpu {
        name,
        uuid,
        minor,
        pci,
        product_name,
        brand,
        architecture,
        cuda_compute_capability,
        memory_bytes,
        addressing_mode,
        mig,
        partitioning: Partitioning::Static,
        links: links.into_values().collect(),
        fabric: fabric.cluster,
        place,
        has_node,
    }
}

// === impl Inventory ===

impl Inventory {
    /// An inventory that has not looked yet.
    pub fn new(session: Session, roots: Roots, names: NameMap) -> Self {
        let (current, looked, failure) = (watch::Sender::new(None), watch::Sender::new(None), watch::Sender::new(None));
        let (form, last, reported) = (Form::default(), Arc::default(), Reported::default());
        let partitioner = Partitioner::default();
        let unpublished = Vec::new();
        Self { session, roots, names, form, partitioner, last, unpublished, reported, current, looked, failure }
    }

    /// Says in which form attributes are published, so that what does not fit into it is reported. To be said before the
    /// first look.
    pub fn published_in(&mut self, form: Form) {
        self.form = form;
    }

    /// Says which GPUs this plugin partitions, and where it keeps whose MIG mode it has turned on.
    pub fn partitions(&mut self, which: DynamicMig, modes: MigModes) {
        self.partitioner = Partitioner::new(which, modes);
    }

    /// Takes names that claims know GPUs by, see [`NameMap::remember`].
    pub fn remember(&mut self, known: impl IntoIterator<Item = (DeviceName, GpuUuid)>) {
        self.names.remember(known);
    }

    /// What it finds, for others to watch.
    pub fn views(&self) -> Views {
        Views { current: self.current.subscribe(), looked: self.looked.subscribe(), failure: self.failure.subscribe() }
    }

    /// Creates its metrics in a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "left_out",
            "Facts, attributes and devices of this node that are not published, or not in full; the log names each",
            self.reported.count.clone(),
        );
    }

    /// Looks for ever. Drop the future to stop.
    pub async fn run(mut self) {
        loop {
            let pause = if self.look().await { LOOK_EVERY } else { RETRY_AFTER };
            tokio::time::sleep(pause).await;
        }
    }

    /// Looks once, logs what is new and passes it on. `false` where nothing was learnt.
    pub async fn look(&mut self) -> bool {
        self.partitioner.begin().await;
        let discovery = match discover(&self.session, &self.roots, &mut self.names, &mut self.last).await {
            Ok(discovery) => discovery,
            Err(error) => {
                self.fail(error.to_string());
                return false;
            }
        };
        let Discovery { mut node, unseen, mut left_out } = discovery;
        left_out.extend(self.partitioner.assign(&mut node).await);
        match &*self.current.borrow() {
            Some(before) => keep_known(&mut node, before, &unseen),
            // They are made after the driver is loaded, and what an earlier plugin published may be right.
            None if !node.gpus.is_empty() && node.gpus.iter().all(|gpu| !gpu.has_node) => {
                self.fail("no GPU has a device node yet".to_owned());
                self.reported.log(left_out);
                return false;
            }
            None => {}
        }
        // No news while all is well: whoever watches would look at everything a second time.
        if self.failure.send_if_modified(|failure| failure.take().is_some()) {
            tracing::info!("NVML answers again");
        }
        let has_changed = self.current.borrow().as_deref() != Some(&node);
        if has_changed {
            self.unpublished = slice::left_out(self.form, &node);
        }
        left_out.extend(self.unpublished.iter().cloned());
        self.reported.log(left_out);
        if has_changed {
            let before = self.current.borrow().clone();
            if before.is_some_and(|before| before.without_instances() == node.without_instances()) {
                tracing::debug!("GPU instances have come or gone");
            } else {
                tracing::info!(gpus = node.gpus.len(), driver = node.driver.version, "the node's GPUs have changed");
            }
            self.current.send_replace(Some(Arc::new(node)));
        }
        self.looked.send_replace(Some(SystemTime::now()));
        true
    }

    /// Logged once for each reason.
    fn fail(&self, reason: String) {
        self.failure.send_if_modified(|failure| {
            let new = failure.as_deref() != Some(&reason);
            if new {
                tracing::error!(reason, "cannot read the GPUs; what is published stays, and the look is repeated");
                *failure = Some(reason);
            }
            new
        });
    }
}

// === impl Reported ===

impl Reported {
    /// Logs what was not left out before, and what no longer is.
    fn log(&mut self, left_out: Vec<LeftOut>) {
        let (new, over) = self.update(left_out);
        for LeftOut { what, why } in new {
            tracing::warn!(what, why, "left out");
        }
        for LeftOut { what, .. } in over {
            tracing::info!(what, "no longer left out");
        }
    }

    fn update(&mut self, left_out: Vec<LeftOut>) -> (Vec<LeftOut>, Vec<LeftOut>) {
        let before = std::mem::replace(&mut self.left_out, left_out.into_iter().collect());
        let now = &self.left_out;
        self.count.set(i64::try_from(now.len()).unwrap_or(i64::MAX));
        let still = |what: &str| now.iter().any(|note| note.what == what);
        let over = before.difference(now).filter(|note| !still(&note.what)).cloned().collect();
        (now.difference(&before).cloned().collect(), over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(what: &str, why: &str) -> LeftOut {
        LeftOut { what: what.to_owned(), why: why.to_owned() }
    }

    #[test]
    fn each_thing_left_out_is_reported_once_per_change() {
        let mut reported = Reported::default();
        let brand = note("the brand of GPU-a", "NOT_SUPPORTED");
        assert_eq!(reported.update(vec![brand.clone(), brand.clone()]), (vec![brand.clone()], vec![]));
        assert_eq!(reported.update(vec![brand.clone()]), (vec![], vec![]));
        assert_eq!(reported.count.get(), 1);
        let other_reason = note("the brand of GPU-a", "UNKNOWN");
        assert_eq!(reported.update(vec![other_reason.clone()]), (vec![other_reason.clone()], vec![]));
        assert_eq!(reported.update(vec![]), (vec![], vec![other_reason]));
        assert_eq!(reported.count.get(), 0);
        assert_eq!(reported.update(vec![brand.clone()]), (vec![brand], vec![]));
    }

    #[tokio::test]
    async fn a_machine_without_nvml_is_not_known_rather_than_empty() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_owned();
        let [sys, proc, dev] = ["sys", "proc", "dev"].map(|name| root.join(name));
        let roots = Roots { sys, proc, dev, other_devs: vec![], placeholders: true };
        let session = Session::new(move || Some(root.join("libnvidia-ml.so.1")));
        let mut inventory = Inventory::new(session, roots, NameMap::load(directory.path()).unwrap());
        let views = inventory.views();
        assert!(!inventory.look().await);
        assert_eq!(*views.current.borrow(), None);
        assert_eq!(*views.looked.borrow(), None);
        assert!(views.failure.borrow().as_ref().unwrap().contains("libnvidia-ml.so.1"));
    }
}
