//! What is known to be wrong with each GPU: a fold of events and probes.
//!
//! ```text
//!  event ──▶ adds a cause, to the GPU or to MIG devices of it         never takes one away
//!  probe ──▶ adds and takes away what it can see
//!            takes away what events said, if the GPU is well:  begun 30 s or more after the last such event
//!            takes away all,                                   if the GPU was away and is back
//! ```
//!
//! Causes are kept by what they are, so that it does not matter how many events come, nor in which order. The ledger has
//! no clock: times come with what it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::cause::{Action, Cause, Kind};
use super::policy::{Policy, Response};
use super::verdict::{Finding, Verdict};
use super::xid::{Clears, Xid};
use crate::device::mig::GpuInstance;
use crate::device::{GpuUuid, MigUuid, Node};

/// How long after an event a probe must begin to take back what the event said. The driver needs a moment to find out
/// what is due, and people and the kubelet, which hears of health every 10 s, are to see what happened.
pub const SETTLE: Duration = Duration::from_secs(30);

/// What the driver reported of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What is wrong. `None` where the GPU is only to be probed.
    pub cause: Option<Cause>,
    /// Where.
    pub place: Place,
}

/// The part of a GPU that an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// All of it, with every MIG device.
    Gpu,
    /// Every compute instance of a GPU instance.
    GpuInstance(u32),
    /// One compute instance of a GPU instance.
    ComputeInstance(u32, u32),
}

/// How far an event reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// It changes nothing: it is ignored, or asks for no more than a probe.
    Nothing,
    /// The whole GPU.
    Gpu,
    /// So many MIG devices.
    Parts(usize),
    /// It is about an instance that is not known. It is worth a line in the log, and a probe.
    UnknownInstance,
}

/// What came of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The GPU answered.
    Answered(Reading),
    /// It is lost, or no longer there.
    Lost,
    /// No answer: NVML hangs or fails.
    Silent,
    /// Nobody was asked: NVML is closed, so that the GPU can be reset or the driver be replaced.
    Closed,
}

/// What a GPU says of itself. `None` is no news: it could not be read, or the GPU does not have it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reading {
    /// What the driver asks for.
    pub recovery: Option<Recovery>,
    /// Rows could not be remapped.
    pub row_remap_failure: Option<bool>,
    /// Rows wait to be remapped.
    pub row_remap_pending: Option<bool>,
    /// There were uncorrectable errors since the driver was loaded.
    pub uncorrectable: Option<bool>,
    /// The NVLink fabric, once the GPU is registered with it.
    pub fabric: Option<Fabric>,
    /// NVLinks are down that should be up.
    pub links_down: Option<bool>,
}

/// What the driver says of recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// None is needed.
    NotNeeded,
    /// This is to be done.
    Needed(Action),
    /// It does not know recovery actions.
    NotReported,
}

/// How the NVLink fabric is for a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fabric {
    /// As it should be.
    Healthy,
    /// It works, with less capacity.
    Limited,
    /// It does not work.
    Unhealthy,
}

/// All GPUs that were heard of.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    policy: Policy,
    gpus: BTreeMap<GpuUuid, Record>,
}

/// What is known of one GPU.
#[derive(Debug, Clone, Default)]
struct Record {
    /// Some probe has ended.
    probed: bool,
    /// It was lost or let go since it last answered.
    away: bool,
    /// What is wrong with all of it.
    causes: Causes,
    /// What is wrong with single MIG devices.
    parts: BTreeMap<MigUuid, Causes>,
    /// Its instances, for events that name them.
    instances: Vec<GpuInstance>,
}

#[derive(Debug, Clone, Default)]
struct Causes(BTreeMap<Cause, Times>);

#[derive(Debug, Clone, Copy)]
struct Times {
    /// When it was first found.
    since: Instant,
    /// When an event last said so. `None`: a probe found it.
    event: Option<Instant>,
}

// === impl Ledger ===

impl Ledger {
    /// One in which nothing is known.
    pub fn new(policy: Policy) -> Self {
        Self { policy, gpus: BTreeMap::new() }
    }

    /// Takes note of what the machine has. A MIG device that is gone takes what was wrong with it along: one that is made
    /// later is another. A GPU that is gone stays known: see [`Outcome::Lost`].
    pub fn look(&mut self, node: &Node) {
        for gpu in &node.gpus {
            let record = self.gpus.entry(gpu.uuid.clone()).or_default();
            record.instances.clone_from(&gpu.mig.instances);
            let known: BTreeSet<_> = compute_instances(&record.instances, Place::Gpu).collect();
            record.parts.retain(|part, _| known.contains(part));
        }
    }

    /// Adds what an event says. Nothing gets better by it.
    pub fn event(&mut self, gpu: &GpuUuid, event: Event, at: Instant) -> Reach {
        let record = self.gpus.entry(gpu.clone()).or_default();
        let parts: Vec<_> = match event.place {
            Place::Gpu => Vec::new(),
            place => compute_instances(&record.instances, place).cloned().collect(),
        };
        if event.place != Place::Gpu && parts.is_empty() {
            return Reach::UnknownInstance;
        }
        let Some(cause) = event.cause.filter(|cause| self.policy.response(cause) != Response::Ignore) else {
            return Reach::Nothing;
        };
        if event.place == Place::Gpu {
            record.causes.event(cause, at);
            return Reach::Gpu;
        }
        let reached = parts.len();
        for part in parts {
            record.parts.entry(part).or_default().event(cause, at);
        }
        Reach::Parts(reached)
    }

    /// Adds and takes away what a probe says that was begun at `begun`. Events since then stay.
    pub fn probe(&mut self, gpu: &GpuUuid, outcome: Outcome, begun: Instant) {
        let record = self.gpus.entry(gpu.clone()).or_default();
        record.probed = true;
        match outcome {
            Outcome::Answered(reading) => record.answered(reading, begun),
            Outcome::Lost => {
                record.away = true;
                record.causes.set(Kind::Silent, false, begun);
                record.causes.set(Kind::Lost, true, begun);
            }
            Outcome::Silent => record.causes.set(Kind::Silent, true, begun),
            Outcome::Closed => {
                record.away = true;
                record.causes.set(Kind::Silent, true, begun);
            }
        }
    }

    /// Whether events of a GPU are received.
    pub fn watched(&mut self, gpu: &GpuUuid, watched: bool, at: Instant) {
        self.gpus.entry(gpu.clone()).or_default().causes.set(Kind::Unwatched, !watched, at);
    }

    /// What is known of a GPU, or of a MIG device of it.
    pub fn verdict(&self, gpu: &GpuUuid, part: Option<&MigUuid>) -> Verdict {
        let Some(record) = self.gpus.get(gpu) else { return Verdict::of([], false) };
        // What is wrong with both was found when it was found first.
        let mut all: BTreeMap<Cause, Instant> = BTreeMap::new();
        let part = part.and_then(|part| record.parts.get(part));
        for (cause, times) in record.causes.0.iter().chain(part.into_iter().flat_map(|causes| &causes.0)) {
            let since = all.entry(*cause).or_insert(times.since);
            *since = times.since.min(*since);
        }
        let findings = all.into_iter().map(|(cause, since)| {
            let response = self.policy.response(&cause);
            Finding { cause, response, since }
        });
        Verdict::of(findings.filter(|finding| finding.response != Response::Ignore), record.probed)
    }
}

/// The MIG devices of a place.
fn compute_instances(instances: &[GpuInstance], place: Place) -> impl Iterator<Item = &MigUuid> {
    let holds = move |instance: &GpuInstance, id: u32| match place {
        Place::Gpu => true,
        Place::GpuInstance(gpu) => instance.id == gpu,
        Place::ComputeInstance(gpu, compute) => instance.id == gpu && id == compute,
    };
    instances.iter().flat_map(move |instance| {
        let compute = instance.compute.iter();
        compute.filter(move |compute| holds(instance, compute.id)).map(|compute| &compute.uuid)
    })
}

// === impl Reading ===

impl Reading {
    /// What it says is wrong.
    fn found(self) -> impl Iterator<Item = Kind> {
        let recovery = match self.recovery {
            Some(Recovery::Needed(action)) => Some(Kind::Recovery(action)),
            _ => None,
        };
        let fabric = match self.fabric {
            Some(Fabric::Unhealthy) => Some(Kind::FabricUnhealthy),
            Some(Fabric::Limited) => Some(Kind::FabricLimited),
            _ => None,
        };
        let flag = |answer: Option<bool>, kind: Kind| (answer == Some(true)).then_some(kind);
        let flags = [
            flag(self.row_remap_failure, Kind::RowRemapFailure),
            flag(self.row_remap_pending, Kind::RowRemapPending),
            flag(self.uncorrectable, Kind::Ecc),
            flag(self.links_down, Kind::LinksDown),
        ];
        recovery.into_iter().chain(fabric).chain(flags.into_iter().flatten())
    }
}

// === impl Record ===

impl Record {
    fn answered(&mut self, reading: Reading, begun: Instant) {
        let away = std::mem::take(&mut self.away);
        for causes in std::iter::once(&mut self.causes).chain(self.parts.values_mut()) {
            causes.answered(reading, away, begun);
        }
        self.parts.retain(|_, causes| !causes.0.is_empty());
        for kind in reading.found() {
            self.causes.set(kind, true, begun);
        }
    }
}

// === impl Causes ===

impl Causes {
    /// What an event says: the first one dates the cause, the last one keeps it.
    fn event(&mut self, cause: Cause, at: Instant) {
        let times = self.0.entry(cause).or_insert(Times { since: at, event: None });
        times.since = times.since.min(at);
        times.event = times.event.max(Some(at));
    }

    /// What was found, or found to be over. It keeps its date.
    fn set(&mut self, kind: Kind, found: bool, at: Instant) {
        if found {
            self.0.entry(kind.into()).or_insert(Times { since: at, event: None });
        } else {
            self.0.remove(&kind.into());
        }
    }

    /// Takes away what is over, now that the GPU has answered.
    fn answered(&mut self, reading: Reading, away: bool, begun: Instant) {
        self.0.retain(|cause, times| {
            let settled = times.event.is_none_or(|event| begun >= event + SETTLE);
            // A GPU that was away starts afresh, with what it says now and what has happened since.
            let before = times.event.is_none_or(|event| event < begun);
            let forgotten = away && before && !reading.found().any(|kind| *cause == kind.into());
            // Whether events arrive is not for a probe to say.
            *cause == Kind::Unwatched.into() || !(forgotten || settled && is_over(*cause, reading))
        });
    }
}

/// Whether a GPU that answers with this is free of a cause. `docs/health.md` says the same for people.
fn is_over(cause: Cause, reading: Reading) -> bool {
    let content = reading.recovery == Some(Recovery::NotNeeded);
    match cause {
        Cause::Xid(xid) => is_over_by(xid, reading.recovery),
        Cause::Kind(Kind::Lost | Kind::Silent) => true,
        Cause::Kind(Kind::Recovery(action)) => match reading.recovery {
            Some(Recovery::NotNeeded) => true,
            Some(Recovery::Needed(other)) => other != action,
            Some(Recovery::NotReported) | None => false,
        },
        Cause::Kind(Kind::Poison | Kind::Unavailable) => content,
        Cause::Kind(Kind::RowRemapFailure) => reading.row_remap_failure == Some(false),
        Cause::Kind(Kind::RowRemapPending) => reading.row_remap_pending == Some(false),
        Cause::Kind(Kind::Ecc) => reading.uncorrectable == Some(false),
        Cause::Kind(Kind::FabricUnhealthy) => reading.fabric.is_some_and(|fabric| fabric != Fabric::Unhealthy),
        Cause::Kind(Kind::FabricLimited) => reading.fabric.is_some_and(|fabric| fabric != Fabric::Limited),
        Cause::Kind(Kind::LinksDown) => reading.links_down == Some(false),
        Cause::Kind(Kind::Unwatched) => false,
    }
}

fn is_over_by(xid: Xid, recovery: Option<Recovery>) -> bool {
    match recovery {
        Some(Recovery::NotNeeded) => true,
        Some(Recovery::NotReported) => xid.group().clears == Clears::Answer,
        Some(Recovery::Needed(_)) | None => false,
    }
}
