//! The claim state machine: what is prepared, and how it comes and goes.
//!
//! ```text
//!  kubelet ──▶ Attempt ──▶ claim lock ──▶ record? ──▶ plan ──▶ GPU locks ──▶ Machine: record, spec, record
//!              waiting     locks          store       pure     locks         blocking, on a thread for that
//!                 ▲                          └──▶ Keeper: specs that stay right while the node changes
//!                 └── what may pass by itself: NVML is silent, a GPU is held or away, files are missing
//! ```
//!
//! # Guarantees
//!
//! * A GPU is given to one claim, or to several that may share it; the refusal names the claim that holds it.
//! * Every step may be the last before a crash. What is written says how far it went, and the next call, or the next
//!   start, goes on from there or takes it back.
//! * A repeat answers what the first answered, and has no effect but to mend what is missing. While a GPU of the claim is
//!   gone, it fails, and what was answered leads nowhere: see `Machine::restore`.
//! * A record that cannot be used costs its claim alone, and its claim keeps the GPUs that it names.
//! * Unprepare needs nothing but the record, and NVML if MIG devices were made for the claim. It leaves alone what only a newer version can take back.
//! * A prepare whose claim is unprepared before its turn has come does nothing, however late it is.
//! * What may pass by itself is waited out within 30 s, without a lock, a thread or a file; what may not is answered at
//!   once. An unprepare ends the wait.
//! * Claims that have no GPU in common do not wait for each other.
//! * Nobody waits longer than those 30 s for another process, which may hang; keeping specs waits 250 ms.
//! * All of this holds with several processes on the same directories, as during a rolling update.
//!
//! # Assumptions
//!
//! The claims that are handed in were read from the API server after the kubelet asked for them: this module does not
//! know whether a claim still exists. Whoever finds out that one does not has it unprepared.
//!
//! Calls run to their end, in tasks that do not end with the kubelet's call. One that is dropped midway gives its locks
//! back while a step of it may still be at work on the disk.

mod attempts;
mod damage;
mod error;
#[cfg(fuzzing)]
pub mod fuzz;
mod keeper;
mod locks;
mod machine;
mod metrics;
mod notices;
mod partitioner;
mod record;
mod remnant;
mod siblings;
mod store;
#[cfg(test)]
mod tests;
mod waiting;
mod work;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::attempts::{Attempts, Ticket};
pub use self::damage::DamagedRecord;
pub use self::error::{Error, OpenError};
use self::keeper::Keeper;
use self::locks::Locks;
use self::machine::Machine;
pub use self::metrics::Metrics;
use self::notices::Notice;
use self::partitioner::Partitioner;
pub use self::siblings::LockError;
pub use self::store::StoreError;
use self::waiting::{THE_CLAIM, turn_by};
use crate::cdi;
use crate::claim::{Claim, ClaimName, ClaimUid};
use crate::device::mig::Placement;
use crate::device::{DeviceName, GpuUuid};
use crate::inventory::{MigModes, Views};
use crate::nvml::Session;

/// How many steps of the machine are on the disk at once, each on a thread that may block. Others wait without one, so that
/// a disk that hangs takes no more.
pub const STEPS_AT_ONCE: usize = 6;

/// Prepares and unprepares claims. Cheap to clone; all clones share one state.
#[derive(Debug, Clone)]
pub struct Preparer {
    shared: Arc<Shared>,
}

/// A prepare that was asked for. An unprepare of the claim that is asked for later calls it off, however long it takes
/// until the claim is read.
#[derive(Debug)]
pub struct Attempt {
    preparer: Preparer,
    ticket: Ticket,
    notice: Notice,
    /// When its budget ends.
    deadline: Instant,
}

/// What a [`Preparer`] works with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Records go here; made if missing. On a disk that survives a reboot.
    pub claims_dir: PathBuf,
    /// CDI specs go here; made if missing. A directory that the container runtime reads.
    pub cdi_dir: PathBuf,
    /// The kind of our CDI devices. Belongs to this driver alone: specs of this kind without a record are removed.
    pub cdi_kind: cdi::Kind,
    /// What specs are made of.
    pub sources: cdi::Sources,
    /// The name of this node's pool.
    pub pool: String,
    /// The id of this boot, see [`boot_id`](crate::host::node::boot_id).
    pub boot_id: String,
}

/// The node's GPUs: what is known of them, and what it takes to partition them.
#[derive(Clone)]
pub struct Gpus {
    /// What the inventory has found.
    pub views: Views,
    /// NVML.
    pub session: Session,
    /// The GPUs whose MIG mode this plugin has turned on.
    pub modes: MigModes,
}

/// One device that a container can be given, in answer to the kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedDevice {
    /// The requests it satisfies, by the names that pods know them by.
    pub requests: Vec<String>,
    /// Pool and name it is published under.
    pub pool: String,
    /// See `pool`.
    pub device: String,
    /// `<vendor>/<class>=<name>`; the first belongs to this device alone.
    pub cdi_ids: Vec<String>,
    /// Which share, where a device is allocated several times.
    pub share_id: Option<String>,
    /// The GPU that it is, or is a part of.
    pub gpu: GpuUuid,
    /// The MIG device that it is, if it is a part.
    pub mig: Option<crate::device::MigUuid>,
}

#[derive(Debug)]
struct Shared {
    machine: Arc<Machine>,
    partitioner: Partitioner,
    views: Views,
    attempts: Attempts,
    locks: Locks,
    steps: Arc<Semaphore>,
    metrics: Metrics,
    /// Told of every release.
    released: watch::Sender<()>,
    /// Claims that were found in another's way and not asked for since.
    contested: watch::Sender<BTreeSet<ClaimUid>>,
    /// Whether a container could be given a GPU, as the keeper saw it last.
    usable: watch::Sender<Result<(), String>>,
    /// Cancelled once specs have been seen to.
    specs_kept: CancellationToken,
    /// Nobody waits any longer once it is cancelled.
    stopping: CancellationToken,
}

// === impl Gpus ===

impl Gpus {
    /// GPUs that are only looked at.
    #[cfg(test)]
    pub(crate) fn without_nvml(views: Views) -> Self {
        let nowhere = PathBuf::from("/nonexistent");
        let session = Session::new({
            let library = nowhere.join("libnvidia-ml.so.1");
            move || Some(library.clone())
        });
        Self { views, session, modes: MigModes::of(&nowhere, String::new()) }
    }
}

// === impl Preparer ===

impl Preparer {
    /// Takes up what an earlier process left: half-done work is reverted, and specs without a record go. For those of
    /// prepared claims see [`keep_specs`](Self::keep_specs).
    pub async fn open(settings: Settings, gpus: Gpus, metrics: Metrics) -> Result<Self, OpenError> {
        let Gpus { views, session, modes } = gpus;
        let opened = tokio::task::spawn_blocking(|| Machine::open(settings)).await;
        let machine = Arc::new(opened.unwrap_or(Err(OpenError::Internal))?);
        let locks = Locks::new(Arc::clone(machine.siblings()));
        let shared = Shared {
            machine,
            partitioner: Partitioner::new(session, modes, locks.clone()),
            views,
            attempts: Attempts::default(),
            locks,
            steps: Arc::new(Semaphore::new(STEPS_AT_ONCE)),
            metrics,
            released: watch::Sender::new(()),
            contested: watch::Sender::default(),
            usable: watch::Sender::new(Err("not looked at yet".to_owned())),
            specs_kept: CancellationToken::new(),
            stopping: CancellationToken::new(),
        };
        shared.count_prepared();
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Which GPUs the prepared claims were given, and by which names.
    pub fn names(&self) -> Vec<(DeviceName, GpuUuid)> {
        self.shared.machine.names()
    }

    /// Waits until there are claim records that could not be read and were moved aside, since the start or since the last
    /// call.
    pub async fn damaged(&self) -> Vec<DamagedRecord> {
        self.shared.machine.damage().take().await
    }

    /// Makes the specs of prepared claims right, now and after every look at the GPUs. Ends when there will be no more
    /// looks.
    pub async fn keep_specs(self) {
        let Views { current: _, mut looked, mut failure } = self.shared.views.clone();
        let mut keeper = Keeper::new(self.shared);
        loop {
            keeper.keep().await;
            let news = tokio::select! {
                news = looked.changed() => news,
                news = failure.changed() => news,
            };
            if news.is_err() {
                return;
            }
        }
    }

    /// Waits until [`keep_specs`](Self::keep_specs) has seen to the specs of all claims that were prepared at the start,
    /// which takes a look at the GPUs if there are any such claims.
    pub async fn specs_kept(&self) {
        self.shared.specs_kept.cancelled().await;
    }

    /// Whether a container could be given a GPU at the moment, or what is missing: a file of the driver, or a device node
    /// that all containers share. NVML can be well without them, and then every claim would fail. As often as
    /// [`keep_specs`](Self::keep_specs) looks.
    pub fn usable(&self) -> watch::Receiver<Result<(), String>> {
        self.shared.usable.subscribe()
    }

    /// Takes note that the kubelet asks for this claim, which is still to be read.
    pub fn begin(&self, uid: &ClaimUid) -> Attempt {
        // Counted first: from then on, no notice that concerns it is removed here.
        let (ticket, notice) = (self.shared.attempts.begin(uid), self.shared.machine.notice(uid));
        Attempt { preparer: self.clone(), ticket, notice, deadline: Instant::now() + waiting::BUDGET }
    }

    /// Makes the claim's devices usable by containers, waiting for what may pass by itself. A repeat answers the same.
    pub async fn prepare(&self, claim: Claim) -> Result<Vec<PreparedDevice>, Error> {
        self.begin(&claim.uid).prepare(claim).await
    }

    /// Takes back everything that prepare did, and calls off what it has not done yet. Succeeds for claims that are not
    /// known.
    ///
    /// The call alone calls off, before the work is awaited: what is asked for later is not meant.
    pub fn unprepare(&self, uid: &ClaimUid) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        self.shared.attempts.call_off(uid);
        let (shared, uid) = (Arc::clone(&self.shared), uid.clone());
        async move {
            let result = shared.unprepare(&uid).await;
            shared.count("unprepare", &result);
            result
        }
    }

    /// Ends all waits, also those to come: nothing was done yet for the claims that wait. Work goes on.
    pub fn stop_waiting(&self) {
        self.shared.stopping.cancel();
    }

    /// The claims that have a record, also those of whose record only the name can be read, but for those that only a
    /// newer version of this driver understands.
    pub fn claims(&self) -> BTreeSet<ClaimUid> {
        self.shared.machine.claims()
    }

    /// The name of a claim that has a record, as far as it can be read.
    pub async fn name_of(&self, uid: &ClaimUid) -> Option<ClaimName> {
        let by = Instant::now() + waiting::BUDGET;
        let _claim = turn_by(by, THE_CLAIM, self.shared.locks.claim(uid)).await.ok()?;
        match self.shared.load(uid).await.ok()? {
            Some(record) => Some(record.claim.name),
            None => self.shared.machine.name_of_remnant(uid),
        }
    }

    /// Waits until claims are found to hold GPUs that others want, and answers which. Each is answered once for each time
    /// that it is found so.
    pub async fn contested(&self) -> BTreeSet<ClaimUid> {
        let mut contested = self.shared.contested.subscribe();
        // The sender is ours: it cannot be gone.
        drop(contested.wait_for(|claims| !claims.is_empty()).await);
        self.shared.contested.send_replace(BTreeSet::new())
    }

    /// Is at work on GPUs until what is answered is dropped.
    #[cfg(test)]
    pub(crate) async fn hold(&self, gpus: &BTreeSet<GpuUuid>) -> impl Drop + use<> {
        self.shared.locks.gpus(gpus).await.expect("locks can be taken")
    }

    /// Whether a claim has, or is about to have, a part of a GPU that this plugin makes, where this place is. GPU instances
    /// in other places are somebody else's.
    pub fn has_part_at(&self, gpu: &GpuUuid, place: Placement) -> bool {
        self.shared.machine.has_part_at(gpu, place)
    }

    /// What it counts.
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }
}
