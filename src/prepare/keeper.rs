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
//! that does not work, or another's. Nobody tells when such a thing happens, so what specs are made of is compared again
//! and again, which also says whether claims can be prepared at all. It costs some 1000 system calls, whatever the number of
//! claims, and is most of what an idle plugin does. So it waits for every third look at the GPUs, unless these have
//! changed, something was missing or failed the last time, or a claim is new. GPU instances come and go with claims, so
//! they matter only to claims with parts.
//!
//! A claim that somebody is at work on is passed over: that is no fault, to make a part takes seconds, and there is another
//! look soon.
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

/// How long claims or their GPUs, all together, may be somebody else's before the next look has to do.
const PATIENCE: Duration = Duration::from_millis(250);

/// What NVML gets to look for parts or to destroy them: a second or two for each.
const FOR_NVML: Duration = Duration::from_secs(5);

/// No claim is begun with later than this after the first: the next look is due.
const KEEP_WITHIN: Duration = Duration::from_secs(10);

/// Work on a claim that takes longer is told of. A prepare may take its 30 s of waiting and some of NVML's.
const AT_WORK_FOR: Duration = Duration::from_secs(60);

/// Every how many looks at the GPUs there is one at what specs are made of, where nothing asks for it before.
pub(super) const EVERY: u32 = 3;

/// Makes specs right, and remembers what it made them of.
///
/// A prepare looks at the GPUs under the lock of its claim, and may write a spec of that look after the next one. So a
/// claim counts as seen to only once it was seen under its lock: what locks it later, looks later.
pub(super) struct Keeper {
    shared: Arc<Shared>,
    /// `None` if nobody knows what the specs say.
    made_of: Option<(Arc<Node>, Arc<Found>)>,
    /// How many looks at the GPUs ago that was.
    age: u32,
    /// The claims that need nothing as long as that does not change, and on which part of it they depend.
    right: BTreeMap<ClaimUid, DependsOn>,
    /// Since when claims could not be looked at, because somebody was at work on them.
    passed_over: BTreeMap<ClaimUid, Instant>,
    /// The claims whose specs could not be made right and why, as logged.
    failed: BTreeMap<ClaimUid, String>,
}

/// What makes the spec of a claim wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DependsOn {
    /// All that specs are made of, but for GPU instances.
    Gpus,
    /// Those as well.
    Instances,
}

/// What came of a claim that was seen to.
struct Seen {
    /// Its spec was not what it should have been.
    restored: bool,
    depends_on: DependsOn,
}

// === impl Keeper ===

impl Keeper {
    /// One that takes no spec for right.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let (right, passed_over, failed) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { shared, made_of: None, age: 0, right, passed_over, failed }
    }

    /// Looks at what specs are made of, and makes those of all prepared claims right for it. Each failure is logged once.
    pub(super) async fn keep(&mut self) {
        let current = self.shared.views.current.borrow().clone();
        let found = self.look(current.clone().unwrap_or_default()).await;
        self.tell(&found);
        // With those that are being prepared: what they look at may just have changed.
        let claims = self.shared.machine.claims();
        self.failed.retain(|claim, _| claims.contains(claim));
        self.right.retain(|claim, _| claims.contains(claim));
        self.passed_over.retain(|claim, _| claims.contains(claim));
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

    async fn look(&mut self, node: Arc<Node>) -> Result<Arc<Found>, Error> {
        self.catch_up().await?;
        self.age += 1;
        if let Some(known) = self.known(&node) {
            return Ok(known);
        }
        self.age = 0;
        self.shared.blocking(move |machine| machine.look(&node)).await.map(Arc::new)
    }

    /// What specs were made of, if there is no reason to look again.
    fn known(&self, node: &Arc<Node>) -> Option<Arc<Found>> {
        let (made_of, found) = self.made_of.as_ref().filter(|_| self.age < EVERY)?;
        let is_quiet = made_of == node && self.shared.views.failure.borrow().is_none();
        let is_right = |claim: &ClaimUid| self.right.contains_key(claim);
        (is_quiet && self.shared.machine.claims().iter().all(is_right)).then(|| Arc::clone(found))
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
        if let Some((made_of, other)) = &self.made_of {
            if made_of.without_instances() != node.without_instances() || *other != found {
                self.right.clear();
            } else if *made_of != node {
                self.right.retain(|_, depends_on| *depends_on == DependsOn::Gpus);
            }
        } else {
            self.right.clear();
        }
        self.made_of = Some((Arc::clone(&node), Arc::clone(&found)));
        let wrong: Vec<_> = claims.iter().filter(|claim| !self.right.contains_key(claim)).cloned().collect();
        let begun = Instant::now();
        for claim in wrong {
            if begun.elapsed() > KEEP_WITHIN {
                return;
            }
            let outcome = self.restore(&claim, &node, &found, begun + PATIENCE).await;
            self.note(claim, outcome);
        }
    }

    /// Takes back what was half done by a process that has ended.
    async fn take_back_all(&mut self) {
        let under_way = |claim: &ClaimUid| self.shared.attempts.is_under_way(claim);
        let left: Vec<_> = self.shared.machine.started().into_iter().filter(|claim| !under_way(claim)).collect();
        let begun = Instant::now();
        for claim in left {
            if begun.elapsed() > KEEP_WITHIN {
                return;
            }
            match self.take_back(&claim, begun + PATIENCE).await {
                Ok(false) => {}
                Ok(true) => tracing::info!(claim.uid = %claim, "took back a claim that was half prepared"),
                Err(error) => self.note(claim, Err(error)),
            }
        }
    }

    /// Takes back a claim if it is half prepared and nobody is at work on it; whether it did.
    async fn take_back(&self, claim: &ClaimUid, by: Instant) -> Result<bool, Error> {
        let shared = &self.shared;
        // Whoever has the lock, perhaps another process, is at work on it.
        let Ok(_claim) = turn_by(by, THE_CLAIM, shared.locks.claim(claim)).await else { return Ok(false) };
        let record = match shared.load(claim).await? {
            Some(record) if record.version <= SCHEMA && record.state == State::PrepareStarted => record,
            _ => return Ok(false),
        };
        let Ok(_gpus) = turn_by(by, ITS_GPUS, shared.locks.gpus(&record.gpus())).await else { return Ok(false) };
        shared.release(record, Instant::now() + FOR_NVML).await?;
        Ok(true)
    }

    /// Takes note of what other processes have done.
    async fn catch_up(&self) -> Result<(), Error> {
        let attempts = self.shared.attempts.clone();
        self.shared.blocking(move |machine| machine.catch_up(|uid| attempts.is_under_way(uid))).await?;
        self.shared.count_prepared();
        Ok(())
    }

    /// Makes the spec of a claim be what it should be, if the claim is prepared.
    async fn restore(
        &self,
        claim: &ClaimUid,
        node: &Arc<Node>,
        found: &Arc<Found>,
        by: Instant,
    ) -> Result<Seen, Error> {
        let shared = &self.shared;
        let lock = turn_by(by, THE_CLAIM, shared.locks.claim(claim)).await?;
        let record = match shared.load(claim).await? {
            Some(record) if record.version <= SCHEMA && record.state == State::PrepareCompleted => record,
            // It may have parts once it is prepared.
            _ => return Ok(Seen { restored: false, depends_on: DependsOn::Instances }),
        };
        let gpus = turn_by(by, ITS_GPUS, shared.locks.gpus(&record.gpus())).await?;
        let (node, found) = (Arc::clone(node), Arc::clone(found));
        let has_part = record.devices.iter().any(|device| device.planned.part.is_some());
        let depends_on = if has_part { DependsOn::Instances } else { DependsOn::Gpus };
        // A claim of an earlier boot gets its parts again when it is prepared again.
        let missing = shared.missing_parts(&record, &node, Instant::now() + FOR_NVML).await?;
        let step = move |machine: &Machine| {
            // At the end of the process this task is dropped. The spec is not written after the locks are given back:
            // another process may have unprepared the claim by then.
            let _locks = (lock, gpus);
            if missing.is_empty() {
                machine.restore(&record, &node, &found)
            } else {
                machine.forsake(&record, &missing)
            }
        };
        let restored = shared.blocking(step).await?;
        Ok(Seen { restored, depends_on })
    }

    fn note(&mut self, claim: ClaimUid, outcome: Result<Seen, Error>) {
        if let Err(Error::AtWork { .. }) = outcome {
            let since = *self.passed_over.entry(claim.clone()).or_insert_with(Instant::now);
            if since.elapsed() < AT_WORK_FOR {
                return;
            }
        } else {
            self.passed_over.remove(&claim);
        }
        match outcome {
            Ok(Seen { restored, depends_on }) => {
                if restored {
                    tracing::info!(claim.uid = %claim, "restored the CDI spec of a prepared claim");
                }
                self.failed.remove(&claim);
                self.right.insert(claim, depends_on);
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
