//! The claim state machine: what is prepared, and how it comes and goes.
//!
//! ```text
//!  kubelet ──▶ Preparer ──▶ claim lock ──▶ record? ──▶ plan ──▶ GPU locks ──▶ Machine: record, spec, record
//!                           locks          store       pure     locks         blocking, on a thread for that
//!                                             └──▶ Keeper: specs that stay right while the node changes
//! ```
//!
//! # Guarantees
//!
//! * A GPU is given to one claim, or to several that may share it; the refusal names the claim that holds it.
//! * Every step may be the last before a crash. What is written says how far it went, and the next call, or the next
//!   start, goes on from there or takes it back.
//! * A repeat answers what the first answered, and has no effect but to mend what is missing.
//! * Unprepare needs nothing but the record.
//! * A prepare whose claim is unprepared before its turn has come does nothing, however late it is.
//! * Claims that have no GPU in common do not wait for each other.
//! * All of this holds with several processes on the same directories, as during a rolling update.
//!
//! # Assumptions
//!
//! The claims that are handed in were read from the API server after the kubelet asked for them: this module does not
//! know whether a claim still exists.
//!
//! Calls run to their end, in tasks that do not end with the kubelet's call. One that is dropped midway gives its locks
//! back while a step of it may still be at work on the disk.

mod attempts;
mod keeper;
mod locks;
mod machine;
mod metrics;
mod notices;
mod record;
mod siblings;
mod store;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use self::attempts::{Attempts, Ticket};
use self::keeper::Keeper;
use self::locks::Locks;
use self::machine::Machine;
use self::metrics::Failure;
pub use self::metrics::Metrics;
use self::notices::Notice;
use self::record::{Record, SCHEMA, State};
pub use self::siblings::LockError;
pub use self::store::StoreError;
use crate::causes::with_causes;
use crate::cdi::{self, Incomplete, WriteError};
use crate::claim::plan::{PlanError, plan, wanted};
use crate::claim::{Claim, ClaimUid};
use crate::device::{DeviceName, GpuUuid, Node};
use crate::inventory::Current;

/// How long a claim waits for NVML's first answer. The kubelet gives up after 45 s and comes back a minute later, so
/// waiting is cheap; ending well before leaves time for the rest and for the answer to say why.
const INVENTORY_BUDGET: Duration = Duration::from_secs(20);

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
}

/// Why a claim could not be prepared or unprepared. The message reaches the pod's events, so it is written for the
/// person who reads them, and is the whole story: it includes its causes, and there is no `source` to add.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// NVML has not answered since the start.
    #[error("the node's GPUs are not known yet: NVML has not answered; see the log of the driver on this node")]
    NotReady,
    /// The claim cannot be prepared as it is.
    #[error("{0}")]
    Plan(PlanError),
    /// The claim is prepared, but for other devices.
    #[error(
        "the claim was prepared for {prepared} and is now allocated {allocated}; it can be prepared again once all \
         pods that used it are gone from this node"
    )]
    Reallocated {
        /// What it has.
        prepared: String,
        /// What it was given since.
        allocated: String,
    },
    /// The kubelet no longer wants it.
    #[error("the claim was unprepared before it was prepared")]
    CalledOff,
    /// The record says more than this version understands.
    #[error("the claim was prepared by a newer version of this driver (schema {version}, this one reads {SCHEMA})")]
    Newer {
        /// The schema of the record.
        version: u32,
    },
    /// A GPU that a claim holds is not there any more.
    #[error("{device}, which this claim was given as GPU {uuid}, is gone from the node")]
    Gone {
        /// The name it had.
        device: String,
        /// Its identity.
        uuid: GpuUuid,
    },
    /// The container would lack something.
    #[error("{}", with_causes(.0))]
    Incomplete(Incomplete),
    /// The CDI spec could not be written or removed.
    #[error("{}", with_causes(.0))]
    Spec(WriteError),
    /// The record could not be read or written.
    #[error("{}", with_causes(.0))]
    Record(StoreError),
    /// A defect: the work ended without a result. The next call takes up what it left.
    #[error("the work on this claim ended unexpectedly; see the log of the driver on this node")]
    Internal,
}

/// Why the state of the node's claims could not be taken up at start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Records cannot be kept.
    #[error("cannot keep claim records: check --kubelet-root and --kubelet-plugins-directory-path")]
    Records(#[source] StoreError),
    /// CDI specs cannot be kept.
    #[error("cannot keep CDI specs: check --cdi-root")]
    Specs(#[source] WriteError),
    /// A defect.
    #[error("reading the claim records ended unexpectedly")]
    Internal,
}

#[derive(Debug)]
struct Shared {
    machine: Arc<Machine>,
    inventory: Current,
    attempts: Attempts,
    locks: Locks,
    metrics: Metrics,
}

// === impl Preparer ===

impl Preparer {
    /// Takes up what an earlier process left: half-done work is reverted, and specs without a record go. For those of
    /// prepared claims see [`keep_specs`](Self::keep_specs).
    pub async fn open(settings: Settings, inventory: Current, metrics: Metrics) -> Result<Self, OpenError> {
        let opened = tokio::task::spawn_blocking(|| Machine::open(settings)).await;
        let machine = Arc::new(opened.unwrap_or(Err(OpenError::Internal))?);
        let (attempts, locks) = (Attempts::default(), Locks::new(Arc::clone(machine.siblings())));
        let shared = Arc::new(Shared { machine, inventory, attempts, locks, metrics });
        shared.count_prepared();
        Ok(Self { shared })
    }

    /// Which GPUs the prepared claims were given, and by which names.
    pub fn names(&self) -> Vec<(DeviceName, GpuUuid)> {
        self.shared.machine.names()
    }

    /// Makes the specs of prepared claims right, now and after every look at the GPUs, of which `looked` tells. Ends
    /// when there will be no more looks.
    pub async fn keep_specs(self, mut looked: watch::Receiver<Option<SystemTime>>) {
        let mut keeper = Keeper::new(self.shared);
        loop {
            keeper.keep().await;
            if looked.changed().await.is_err() {
                return;
            }
        }
    }

    /// Takes note that the kubelet asks for this claim, which is still to be read.
    pub fn begin(&self, uid: &ClaimUid) -> Attempt {
        // Counted first: from then on, no notice that concerns it is removed here.
        let (ticket, notice) = (self.shared.attempts.begin(uid), self.shared.machine.notice(uid));
        Attempt { preparer: self.clone(), ticket, notice }
    }

    /// Makes the claim's devices usable by containers. A repeat answers the same.
    pub async fn prepare(&self, claim: Claim) -> Result<Vec<PreparedDevice>, Error> {
        self.begin(&claim.uid).prepare(claim).await
    }

    /// Takes back everything that prepare did, and calls off what it has not done yet. Succeeds for claims that are not
    /// known.
    pub async fn unprepare(&self, uid: &ClaimUid) -> Result<(), Error> {
        self.shared.attempts.call_off(uid);
        let result = self.shared.unprepare(uid).await;
        self.shared.count("unprepare", &result);
        result
    }
}

// === impl Attempt ===

impl Attempt {
    /// Goes on, with the claim as it was read: see [`Preparer::prepare`].
    pub async fn prepare(self, claim: Claim) -> Result<Vec<PreparedDevice>, Error> {
        let shared = &self.preparer.shared;
        let result = shared.prepare(&claim, &self).await;
        shared.count("prepare", &result);
        result
    }

    /// Ends without having prepared anything, because the claim could not be read. For the `cause`, see
    /// [`Error::cause`].
    pub fn give_up(self, cause: &'static str) {
        self.preparer.shared.metrics.failures.get_or_create(&Failure { operation: "prepare", cause }).inc();
    }
}

// === impl Shared ===

impl Shared {
    async fn prepare(&self, claim: &Claim, attempt: &Attempt) -> Result<Vec<PreparedDevice>, Error> {
        // What is prepared and in order needs no NVML.
        if let Some(answer) = self.repeat(claim).await? {
            return Ok(answer);
        }
        // No lock is held while waiting.
        let node = self.node().await?;

        let _claim = self.locks.claim(&claim.uid).await?;
        // An unprepare that comes from here on waits for the lock, and finds what is done.
        if attempt.ticket.is_called_off() {
            return Err(Error::CalledOff);
        }
        let (uid, notice) = (claim.uid.clone(), attempt.notice.clone());
        match self.blocking(move |machine| machine.take_up(&uid, &notice)).await? {
            Some(record) if record.version > SCHEMA => Err(Error::Newer { version: record.version }),
            Some(record) if record.state == State::PrepareCompleted => {
                check_repeat(&record, claim)?;
                let _gpus = self.locks.gpus(&record.gpus()).await?;
                self.blocking(move |machine| machine.renew(record, &node)).await.map(|record| record.answer())
            }
            started => {
                if let Some(record) = started {
                    self.release(record).await?;
                }
                let plan = plan(claim, self.machine.pool(), &node).map_err(Error::Plan)?;
                let _gpus = self.locks.gpus(&plan.gpus()).await?;
                let claim = claim.clone();
                let record = self.blocking(move |machine| machine.carry_out(&claim, plan, &node)).await?;
                Ok(record.answer())
            }
        }
    }

    /// The answer for a claim that is prepared and in order.
    async fn repeat(&self, claim: &Claim) -> Result<Option<Vec<PreparedDevice>>, Error> {
        let _claim = self.locks.claim(&claim.uid).await?;
        let Some(record) = self.load(&claim.uid).await? else { return Ok(None) };
        if record.version > SCHEMA {
            return Err(Error::Newer { version: record.version });
        }
        if record.state != State::PrepareCompleted {
            return Ok(None);
        }
        check_repeat(&record, claim)?;
        self.blocking(move |machine| Ok(machine.is_current(&record).then(|| record.answer()))).await
    }

    async fn unprepare(&self, uid: &ClaimUid) -> Result<(), Error> {
        let _claim = self.locks.claim(uid).await?;
        let known = uid.clone();
        if let Some(record) = self.blocking(move |machine| machine.let_go(&known)).await? {
            return self.release(record).await;
        }
        // A spec can be left of a record that was moved aside.
        let uid = uid.clone();
        self.blocking(move |machine| machine.release(&uid)).await
    }

    /// Takes back a claim, whose lock the caller holds.
    async fn release(&self, record: Record) -> Result<(), Error> {
        let _gpus = self.locks.gpus(&record.gpus()).await?;
        self.blocking(move |machine| machine.release(&record.claim.uid)).await
    }

    async fn load(&self, uid: &ClaimUid) -> Result<Option<Record>, Error> {
        let uid = uid.clone();
        self.blocking(move |machine| machine.load(&uid)).await
    }

    /// The node's devices, waiting for NVML's first answer if need be.
    async fn node(&self) -> Result<Arc<Node>, Error> {
        let mut inventory = self.inventory.clone();
        let known = tokio::time::timeout(INVENTORY_BUDGET, inventory.wait_for(Option::is_some)).await;
        let node = known.ok().and_then(Result::ok).and_then(|node| node.clone());
        node.ok_or(Error::NotReady)
    }

    /// Runs a step of the machine on a thread that may block. An fsync can take tens of milliseconds on a busy disk, in
    /// which the threads of the async runtime have other calls to serve.
    async fn blocking<T: Send + 'static>(
        &self,
        step: impl FnOnce(&Machine) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let machine = Arc::clone(&self.machine);
        let span = tracing::Span::current();
        let done = tokio::task::spawn_blocking(move || span.in_scope(|| step(&machine))).await;
        done.unwrap_or(Err(Error::Internal))
    }

    fn count<T>(&self, operation: &'static str, result: &Result<T, Error>) {
        if let Err(error) = result {
            self.metrics.failures.get_or_create(&Failure { operation, cause: error.cause() }).inc();
        }
        self.count_prepared();
    }

    fn count_prepared(&self) {
        self.metrics.prepared.set(i64::try_from(self.machine.prepared().len()).unwrap_or(i64::MAX));
    }
}

// === impl Error ===

impl From<LockError> for Error {
    fn from(error: LockError) -> Self {
        Self::Record(StoreError::Locks(error))
    }
}

impl Error {
    /// What kind of failure it is, as the metric `claim_failures` labels it: whose turn it is to do something.
    pub fn cause(&self) -> &'static str {
        match self {
            // NVML's, or whoever looks after the node.
            Self::NotReady => "not_ready",
            // Of another claim, or of an earlier allocation of this one.
            Self::Plan(PlanError::InUse { .. }) | Self::Reallocated { .. } => "in_use",
            // The author's of the claim.
            Self::Plan(_) => "claim",
            // Nobody's.
            Self::CalledOff => "called_off",
            // A GPU, a device node or a part of the driver is missing.
            Self::Gone { .. } | Self::Incomplete(_) => "incomplete",
            // A record or a spec could not be read or written.
            Self::Newer { .. } | Self::Spec(_) | Self::Record(_) => "files",
            // Ours.
            Self::Internal => "internal",
        }
    }
}

/// A completed record answers only for what it was made for.
fn check_repeat(record: &Record, claim: &Claim) -> Result<(), Error> {
    let wanted = wanted(claim);
    if record.is_for(&wanted) {
        return Ok(());
    }
    let prepared = record.devices.iter().map(|device| &device.planned.wanted);
    let names = |devices: Vec<&str>| if devices.is_empty() { "nothing".to_owned() } else { devices.join(", ") };
    Err(Error::Reallocated {
        prepared: names(prepared.map(|wanted| wanted.device.as_str()).collect()),
        allocated: names(wanted.iter().map(|wanted| wanted.device.as_str()).collect()),
    })
}
