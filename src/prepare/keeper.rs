//! Keeps the specs of prepared claims right while the node changes under them.
//!
//! ```text
//!  a look at the GPUs ──▶ look at what specs are made of ──▶ the same as last time?
//!                                                              ├─ no ──▶ the spec of every claim
//!                                                              └─ yes ─▶ specs not found right since then, if any
//! ```
//!
//! Minors move when a GPU goes or comes back, a driver's files change when it is upgraded, and the kernel gives
//! nvidia-uvm another major whenever that module is loaded. A container that starts from a spec of before gets a GPU
//! that does not work, or another's. Nobody tells when such a thing happens, so what specs are made of is compared at
//! every look at the GPUs. That costs some 600 system calls (1 ms), whatever the number of claims, and also says whether
//! claims can be prepared at all.
//!
//! The spec of a claim whose GPU is gone is removed, and written again when the GPU is back: its minor may become that of
//! another GPU. So is that of one whose MIG device is gone, since its ids may become those of another. These are the cases
//! in which a CDI id that the kubelet was answered does not resolve.
//!
//! Claims that were half prepared when their process ended, and that take NVML to be taken back, are taken back here as
//! well: as soon as NVML has answered, and again after every look until it is done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::machine::Machine;
use super::record::{SCHEMA, State};
use super::waiting::{ITS_GPUS, THE_CLAIM, turn_by};
use super::{Error, Shared};
use crate::cdi::Found;
use crate::claim::ClaimUid;
use crate::device::Node;

/// How long a claim may be somebody else's before the next look has to do.
const PATIENCE: Duration = Duration::from_secs(1);

/// Makes specs right, and remembers what it made them of.
///
/// A prepare looks at the GPUs under the lock of its claim, and may write a spec of that look after the next one. So a
/// claim counts as seen to only once it was seen under its lock: what locks it later, looks later.
pub(super) struct Keeper {
    shared: Arc<Shared>,
    /// `None` if nobody knows what the specs say.
    made_of: Option<(Arc<Node>, Arc<Found>)>,
    /// The claims that need nothing as long as that does not change.
    right: BTreeSet<ClaimUid>,
    /// The claims whose specs could not be made right and why, as logged.
    failed: BTreeMap<ClaimUid, String>,
}

// === impl Keeper ===

impl Keeper {
    /// One that takes no spec for right.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, made_of: None, right: BTreeSet::new(), failed: BTreeMap::new() }
    }

    /// Looks at what specs are made of, and makes those of all prepared claims right for it. Each failure is logged once.
    pub(super) async fn keep(&mut self) {
        let current = self.shared.views.current.borrow().clone();
        let found = self.look(current.clone().unwrap_or_default()).await;
        self.tell(&found);
        // With those that are being prepared: what they look at may just have changed.
        let claims = self.shared.machine.claims();
        self.failed.retain(|claim, _| claims.contains(claim));
        self.right.retain(|claim| claims.contains(claim));
        if current.is_some() {
            self.take_back_all().await;
        }
        match (current, found) {
            (Some(node), Ok(found)) => self.restore_all(&claims, node, found).await,
            // What comes back need not be what went.
            (_, Err(_)) => self.made_of = None,
            // Nobody knows the GPUs of the claims.
            (None, Ok(_)) if !claims.is_empty() => return,
            (None, Ok(_)) => {}
        }
        self.shared.specs_kept.cancel();
    }

    async fn look(&self, node: Arc<Node>) -> Result<Arc<Found>, Error> {
        self.catch_up().await?;
        self.shared.blocking(move |machine| machine.look(&node)).await.map(Arc::new)
    }

    /// Says whether claims can be prepared, if that has changed.
    fn tell(&self, found: &Result<Arc<Found>, Error>) {
        let found = found.as_ref().map(drop).map_err(Error::to_string);
        self.shared.usable.send_if_modified(|known| {
            if *known == found {
                return false;
            }
            match &found {
                Ok(()) => tracing::info!("containers can be given GPUs: driver files and device nodes are there"),
                Err(reason) => tracing::warn!(reason, "claims cannot be prepared, and specs not kept; looking again"),
            }
            *known = found;
            true
        });
    }

    async fn restore_all(&mut self, claims: &BTreeSet<ClaimUid>, node: Arc<Node>, found: Arc<Found>) {
        let made_of = Some((Arc::clone(&node), Arc::clone(&found)));
        if self.made_of != made_of {
            self.right.clear();
            self.made_of = made_of;
        }
        for claim in claims - &self.right {
            let outcome = self.restore(&claim, &node, &found).await;
            self.note(claim, outcome);
        }
    }

    /// Takes back what was half done by a process that has ended.
    async fn take_back_all(&mut self) {
        let under_way = |claim: &ClaimUid| self.shared.attempts.is_under_way(claim);
        let left: Vec<_> = self.shared.machine.started().into_iter().filter(|claim| !under_way(claim)).collect();
        for claim in left {
            match self.take_back(&claim).await {
                Ok(false) => {}
                Ok(true) => tracing::info!(claim.uid = %claim, "took back a claim that was half prepared"),
                Err(error) => self.note(claim, Err(error)),
            }
        }
    }

    /// Takes back a claim if it is half prepared and nobody is at work on it; whether it did.
    async fn take_back(&self, claim: &ClaimUid) -> Result<bool, Error> {
        let (shared, by) = (&self.shared, Instant::now() + PATIENCE);
        // Whoever has the lock, perhaps another process, is at work on it.
        let Ok(_claim) = turn_by(by, THE_CLAIM, shared.locks.claim(claim)).await else { return Ok(false) };
        let record = match shared.load(claim).await? {
            Some(record) if record.version <= SCHEMA && record.state == State::PrepareStarted => record,
            _ => return Ok(false),
        };
        let Ok(_gpus) = turn_by(by, ITS_GPUS, shared.locks.gpus(&record.gpus())).await else { return Ok(false) };
        shared.release(record, Instant::now() + PATIENCE).await?;
        Ok(true)
    }

    /// Takes note of what other processes have done.
    async fn catch_up(&self) -> Result<(), Error> {
        let attempts = self.shared.attempts.clone();
        self.shared.blocking(move |machine| machine.catch_up(|uid| attempts.is_under_way(uid))).await?;
        self.shared.count_prepared();
        Ok(())
    }

    /// Makes the spec of a claim be what it should be, if the claim is prepared; answers whether it was not.
    async fn restore(&self, claim: &ClaimUid, node: &Arc<Node>, found: &Arc<Found>) -> Result<bool, Error> {
        let shared = &self.shared;
        // Who waits for a process that hangs leaves the other claims as they are.
        let by = Instant::now() + PATIENCE;
        let lock = turn_by(by, THE_CLAIM, shared.locks.claim(claim)).await?;
        let record = match shared.load(claim).await? {
            Some(record) if record.version <= SCHEMA && record.state == State::PrepareCompleted => record,
            _ => return Ok(false),
        };
        let gpus = turn_by(by, ITS_GPUS, shared.locks.gpus(&record.gpus())).await?;
        let (node, found) = (Arc::clone(node), Arc::clone(found));
        // A claim of an earlier boot gets its parts again when it is prepared again.
        let has_parts = shared.has_parts(&record, &node, by).await?;
        let step = move |machine: &Machine| {
            // At the end of the process this task is dropped. The spec is not written after the locks are given back:
            // another process may have unprepared the claim by then.
            let _locks = (lock, gpus);
            if has_parts { machine.restore(&record, &node, &found) } else { machine.forsake(&record) }
        };
        shared.blocking(step).await
    }

    fn note(&mut self, claim: ClaimUid, outcome: Result<bool, Error>) {
        match outcome {
            Ok(restored) => {
                if restored {
                    tracing::info!(claim.uid = %claim, "restored the CDI spec of a prepared claim");
                }
                self.failed.remove(&claim);
                self.right.insert(claim);
            }
            Err(error) => {
                let reason = error.to_string();
                if self.failed.get(&claim) != Some(&reason) {
                    tracing::warn!(
                        claim.uid = %claim,
                        error = reason,
                        "cannot restore the CDI spec of a claim, or take it back; trying again"
                    );
                    self.failed.insert(claim, reason);
                }
            }
        }
    }
}
