//! What is done for a claim in one try, from its lock to its answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::{Instant, sleep};

use super::error::Remedy;
use super::machine::Machine;
use super::partitioner::{Applied, Failure, Now, Partitioner};
use super::record::{Record, SCHEMA, State};
use super::waiting::{self, ITS_GPUS, THE_CLAIM, WORK, turn_by};
use super::{Attempt, Error, PreparedDevice, Shared};
use crate::claim::plan::{plan, wanted};
use crate::claim::{Claim, ClaimUid};
use crate::device::{Gpu, GpuUuid, Node};

// === impl Shared ===

impl Shared {
    /// Tries once.
    pub(super) async fn prepare(&self, claim: &Claim, attempt: &Attempt) -> Result<Vec<PreparedDevice>, Error> {
        // What is prepared and in order needs no NVML.
        if let Some(answer) = self.repeat(claim, attempt).await? {
            return Ok(answer);
        }
        let _claim = attempt.turn(THE_CLAIM, self.locks.claim(&claim.uid)).await?;
        // An unprepare that comes from here on waits for the lock, and finds what is done.
        if attempt.ticket.is_called_off() {
            return Err(Error::CalledOff);
        }
        let (uid, notice) = (claim.uid.clone(), attempt.notice.clone());
        match self.blocking(move |machine| machine.take_up(&uid, &notice)).await? {
            Some(record) if record.version > SCHEMA => Err(Error::Newer { version: record.version }),
            Some(record) if record.state == State::PrepareCompleted => {
                check_repeat(&record, claim)?;
                let _gpus = attempt.turn(ITS_GPUS, self.locks.gpus(&record.gpus())).await?;
                let (node, by) = (self.node()?, attempt.deadline + WORK);
                if record.devices.iter().any(|device| device.is_gone_from(&node)) {
                    // Says so, and sees to it that no container starts with another GPU.
                    return self
                        .blocking(move |machine| machine.renew(record, &node))
                        .await
                        .map(|record| record.answer());
                }
                let missing = self.missing_parts(&record, &node, by).await?;
                let is_whole = record.devices.iter().all(|device| device.is_whole_in(&node));
                let record = if missing.is_empty() && is_whole {
                    self.blocking(move |machine| machine.renew(record, &node)).await?
                } else {
                    // What an earlier attempt has made is taken back by its place, which was free then.
                    let attempted = record.clone().attempted(&missing);
                    self.partitioner.revert(&attempted, Some(&node), by).await?;
                    self.carry_out(self.machine.anew(record, &missing), node, by).await?
                };
                Ok(record.answer())
            }
            started => {
                if let Some(record) = started {
                    let _gpus = attempt.turn(ITS_GPUS, self.locks.gpus(&record.gpus())).await?;
                    self.release(record, attempt.deadline + WORK).await?;
                }
                let plan = plan(claim, self.machine.pool(), &*self.node()?).map_err(Error::Plan)?;
                let _gpus = attempt.turn(ITS_GPUS, self.locks.gpus(&plan.gpus())).await?;
                let (claim, node) = (claim.clone(), self.node()?);
                let record = self.blocking(move |machine| machine.admit(&claim, plan)).await?;
                Ok(self.carry_out(record, node, attempt.deadline + WORK).await?.answer())
            }
        }
    }

    /// The answer for a claim that is prepared and in order.
    async fn repeat(&self, claim: &Claim, attempt: &Attempt) -> Result<Option<Vec<PreparedDevice>>, Error> {
        let _claim = attempt.turn(THE_CLAIM, self.locks.claim(&claim.uid)).await?;
        let Some(record) = self.load(&claim.uid).await? else { return Ok(None) };
        if record.version > SCHEMA {
            return Err(Error::Newer { version: record.version });
        }
        if record.state != State::PrepareCompleted {
            return Ok(None);
        }
        check_repeat(&record, claim)?;
        let node = self.views.current.borrow().clone();
        self.blocking(move |machine| Ok(machine.is_current(&record, node.as_deref()).then(|| record.answer()))).await
    }

    pub(super) async fn unprepare(&self, uid: &ClaimUid) -> Result<(), Error> {
        let by = Instant::now() + waiting::BUDGET;
        let _claim = turn_by(by, THE_CLAIM, self.locks.claim(uid)).await?;
        let known = uid.clone();
        if let Some(record) = self.blocking(move |machine| machine.let_go(&known)).await? {
            // Its schema was raised because there is something to take back that is not known here.
            if record.version > SCHEMA {
                return Err(Error::Newer { version: record.version });
            }
            return self.release_by(record, by).await;
        }
        // A spec can be left of a record that was moved aside.
        let uid = uid.clone();
        let released = self.blocking(move |machine| machine.release(&uid)).await;
        self.released.send_replace(());
        released
    }

    /// From what is to be done to completed, or back to absent and an error. A record that is completed already, and of
    /// which something is done once more, stays so. The caller holds the locks of the claim and of its GPUs.
    async fn carry_out(&self, record: Record, node: Arc<Node>, by: Instant) -> Result<Record, Error> {
        let by_nvml = Partitioner::concerns(&record, &node);
        if by_nvml {
            self.partitioner.check(&record, &node, by).await?;
        }
        let (begun, known) = (record.clone(), Arc::clone(&node));
        let step = move |machine: &Machine| {
            machine.check(&begun, &known)?;
            // From here on there is something to take back.
            let started = machine.note(&begun);
            // In one step for nearly every claim.
            Ok(if by_nvml { started.map(|()| begun) } else { started.and_then(|()| machine.complete(begun, &known)) })
        };
        let error = match self.blocking(step).await? {
            Ok(started) if by_nvml => return self.partition(started, node, by).await,
            Ok(completed) => return Ok(completed),
            Err(error) => error,
        };
        if record.state == State::PrepareStarted {
            self.take_back(record, by).await;
        }
        Err(error)
    }

    /// From started to completed, by way of NVML.
    async fn partition(&self, mut record: Record, node: Arc<Node>, by: Instant) -> Result<Record, Error> {
        let is_first = record.state == State::PrepareStarted;
        let (error, left) = match self.partitioner.apply(&record, &node, by).await {
            Ok(Applied { made, now }) => {
                record.take(made.clone());
                match self.complete(&record, as_they_are(node, &now), by).await {
                    Ok(record) => return Ok(record),
                    Err(error) => (error, made),
                }
            }
            Err(Failure::Known { error, left }) => (error, left),
            Err(Failure::Unknown(error)) => {
                // The record says where to look. What other pods of the claim may be using stays.
                if is_first {
                    self.take_back(record, by).await;
                }
                return Err(error);
            }
        };
        let known = if is_first {
            record.remainder(left)
        } else {
            record.take(left);
            record
        };
        let truth = known.clone();
        self.blocking(move |machine| machine.note(&truth)).await?;
        if is_first {
            self.take_back(known, by).await;
        }
        Err(error)
    }

    /// Completes a record. What the kernel says of a MIG device may be there a moment later, and is waited for here: to make
    /// the device anew would not bring it nearer.
    async fn complete(&self, record: &Record, node: Arc<Node>, by: Instant) -> Result<Record, Error> {
        let mut pauses = waiting::looks();
        loop {
            let (made, known) = (record.clone(), Arc::clone(&node));
            let error = match self.blocking(move |machine| machine.complete(made, &known)).await {
                Err(error) if error.remedy() == Some(Remedy::Files) => error,
                result => return result,
            };
            let pause = pauses.next().unwrap_or_default();
            if Instant::now() + pause + WORK / 2 > by {
                return Err(error);
            }
            sleep(pause).await;
        }
    }

    /// Takes back what was begun. What cannot be taken back now is, with the next look.
    async fn take_back(&self, record: Record, by: Instant) {
        if let Err(error) = self.release(record, by).await {
            tracing::error!(%error, "cannot take back a claim that was half prepared; trying again with the next look");
        }
    }

    /// The devices whose parts were made for a claim and are gone, by their number.
    pub(super) async fn missing_parts(&self, record: &Record, node: &Node, by: Instant) -> Result<Vec<usize>, Error> {
        if !record.makes_parts() {
            return Ok(Vec::new());
        }
        // They do not outlive a boot.
        if self.machine.is_of_earlier_boot(record) {
            return Ok(record.parts());
        }
        self.partitioner.missing(record, node, by).await
    }

    /// Takes back a claim whose lock the caller holds. What its pods have just left may be in use for a moment more.
    async fn release_by(&self, record: Record, by: Instant) -> Result<(), Error> {
        let mut pauses = waiting::looks();
        loop {
            let gpus = turn_by(by, ITS_GPUS, self.locks.gpus(&record.gpus())).await?;
            let error = match self.release(record.clone(), by + WORK).await {
                Err(error @ Error::Partition(_)) if error.remedy().is_some() => error,
                result => return result,
            };
            drop(gpus);
            let pause = pauses.next().unwrap_or_default();
            if Instant::now() + pause > by {
                return Err(error);
            }
            sleep(pause).await;
        }
    }

    /// Takes back a claim. The caller holds its lock and those of its GPUs.
    pub(super) async fn release(&self, record: Record, by: Instant) -> Result<(), Error> {
        let uid = record.claim.uid.clone();
        if record.makes_parts() && !self.machine.is_of_earlier_boot(&record) {
            let withdrawn = record.clone();
            self.blocking(move |machine| machine.withdraw(&withdrawn)).await?;
            let node = self.views.current.borrow().clone();
            self.partitioner.revert(&record, node.as_deref(), by).await?;
        }
        let released = self.blocking(move |machine| machine.release(&uid)).await;
        self.released.send_replace(());
        released
    }

    /// What the node has now. To be asked under the locks of the GPUs: what is written of an older look would be wrong.
    pub(super) fn node(&self) -> Result<Arc<Node>, Error> {
        let node = self.views.current.borrow().clone();
        node.ok_or_else(|| Error::NotReady { reason: self.views.failure.borrow().clone() })
    }

    pub(super) async fn load(&self, uid: &ClaimUid) -> Result<Option<Record>, Error> {
        let uid = uid.clone();
        self.blocking(move |machine| machine.load(&uid)).await
    }

    /// Runs a step of the machine on a thread that may block. An fsync can take tens of milliseconds on a busy disk, in
    /// which the threads of the async runtime have other calls to serve.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        step: impl FnOnce(&Machine) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let machine = Arc::clone(&self.machine);
        let span = tracing::Span::current();
        // Nobody closes it.
        let permit = Arc::clone(&self.steps).acquire_owned().await;
        let done = tokio::task::spawn_blocking(move || {
            // Until the step has ended, though nobody may be waiting for it any more.
            let _permit = permit;
            span.in_scope(|| step(&machine))
        })
        .await;
        done.unwrap_or(Err(Error::Internal))
    }

    pub(super) fn count<T>(&self, operation: &'static str, result: &Result<T, Error>) {
        if let Err(error) = result {
            self.metrics.failed(operation, error.cause());
        }
        self.count_prepared();
    }

    pub(super) fn count_prepared(&self) {
        self.metrics.prepared.set(i64::try_from(self.machine.prepared().len()).unwrap_or(i64::MAX));
    }
}

/// A node whose GPUs are like this by now.
fn as_they_are(node: Arc<Node>, now: &BTreeMap<GpuUuid, Now>) -> Arc<Node> {
    let is_other =
        |gpu: &Gpu| now.get(&gpu.uuid).is_some_and(|now| (now.minor, now.mode) != (gpu.minor, gpu.mig.enabled));
    if !node.gpus.iter().any(is_other) {
        return node;
    }
    let mut node = Node::clone(&node);
    for gpu in &mut node.gpus {
        if let Some(Now { minor, mode }) = now.get(&gpu.uuid) {
            (gpu.minor, gpu.mig.enabled) = (*minor, *mode);
        }
    }
    Arc::new(node)
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
