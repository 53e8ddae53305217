//! What claims do to GPUs that this plugin partitions: MIG devices that come and go with their claim.
//!
//! ```text
//!  check    is the place free, can the mode be had? ──▶ no: refused, with nothing written
//!
//!  apply    a part:       MIG mode on ──▶ GPU instance, MIG device ──▶ Made, for the record
//!           a whole GPU:  MIG mode off, if this plugin has turned it on
//!           what fails takes back what it made itself
//!
//!  revert   a part:       what is at its place, if it is what was made ──▶ destroyed
//!                         ──▶ MIG mode off, if this plugin has turned it on and no instance is left
//! ```
//!
//! # What is ours
//!
//! A part is found by what the record plans: GPU, profile and place. Once the MIG device that was made is known, it must be
//! that one. As long as it is not, because the process ended or NVML hung in the midst of it, what is at the place is ours:
//! it was free when the record was written, which [`check`](Partitioner::check) has seen to. Whatever else there is, is
//! left alone.
//!
//! # Calls that are given up
//!
//! NVML takes a second for some steps, and can hang. A call whose caller gave up goes on in its thread, and may have its
//! effect much later. So it takes its turn at the GPU with it, also from other processes: nobody looks at the GPU again
//! before it has ended, and one GPU that hangs has one thread.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::locks::Locks;
use super::record::{Made, Record};
use super::waiting::ITS_GPUS;
use super::{Error, LockError};
use crate::claim::plan::{PlanError, Planned, Usage};
use crate::device::mig::{GpuInstance, Placement, Profile};
use crate::device::{Gpu, GpuUuid, Node, Partitioning};
use crate::inventory::MigModes;
use crate::inventory::mig_modes::Error as MigModesError;
use crate::nvml::partition::{Destroyed, Expected, Partitions};
use crate::nvml::{self, Code, Session};

/// More than any board has of one profile.
const INSTANCES: u32 = 16;

/// Makes and destroys the parts of claims.
pub(super) struct Partitioner {
    session: Session,
    modes: MigModes,
    locks: Locks,
}

/// What was made for a record.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// By the number of the device.
    pub(super) made: BTreeMap<usize, Made>,
    /// What the GPUs are like now.
    pub(super) now: BTreeMap<GpuUuid, Now>,
}

/// What of a GPU can have changed since it was looked at last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    /// It can change with the mode.
    pub(super) minor: u32,
    /// Whether MIG mode is on.
    pub(super) mode: bool,
}

/// Why not everything was made.
#[derive(Debug)]
pub(super) enum Failure {
    /// What was made is taken back, but for what is `left`.
    Known { error: Error, left: BTreeMap<usize, Made> },
    /// NVML has not answered, and may have done any of it, or do it later.
    Unknown(Error),
}

/// What is to be done at one GPU for a claim.
struct Job {
    gpu: GpuUuid,
    modes: MigModes,
    profiles: Vec<Profile>,
    /// Those are all that the GPU has.
    all_profiles: bool,
    /// MIG mode can be turned on without a reset.
    resetless: bool,
    parts: Vec<Wish>,
    /// The name of the GPU, where the claim gets all of it.
    whole: Option<String>,
}

/// A part that a claim is to have, or has.
struct Wish {
    /// Its number among the devices of the record.
    number: usize,
    device: String,
    profile: u32,
    placement: Placement,
    made: Option<Made>,
}

/// What became of a job.
#[derive(Default)]
struct Report {
    made: BTreeMap<usize, Made>,
    /// Which device one was being made for.
    attempted: Option<usize>,
    now: Option<Now>,
    error: Option<Error>,
}

// === impl Partitioner ===

impl Partitioner {
    pub(super) fn new(session: Session, modes: MigModes, locks: Locks) -> Self {
        Self { session, modes, locks }
    }

    /// Whether something has to be done at a GPU before the claim of this record can use it.
    pub(super) fn concerns(record: &Record, node: &Node) -> bool {
        record.makes_parts() || record.devices.iter().any(|device| whole_of(&device.planned, node).is_some())
    }

    /// Whether what a record plans can be made. Nothing is done.
    pub(super) async fn check(&self, record: &Record, node: &Node, by: Instant) -> Result<(), Error> {
        let calls = self.jobs(record, Some(node)).into_iter().map(|job| {
            self.call("look at a GPU", job, by, |job, gpu| match job.check(gpu) {
                Ok(()) => Ok(Ok(())),
                Err(error) => unless_stale(error).map(Err),
            })
        });
        join_all(calls).await.into_iter().try_for_each(|checked| checked?)
    }

    /// Makes what a record plans and does not have yet, GPU by GPU at once.
    pub(super) async fn apply(&self, record: &Record, node: &Node, by: Instant) -> Result<Applied, Failure> {
        let calls = self.jobs(record, Some(node)).into_iter().map(|job| {
            let gpu = job.gpu.clone();
            let call = self.call("partition a GPU", job, by, Job::apply);
            async move { (gpu, call.await) }
        });
        let mut applied = Applied::default();
        let (mut known, mut unknown) = (None, None);
        for (gpu, done) in join_all(calls).await {
            match done {
                Ok(Report { made, now, error, attempted: _ }) => {
                    applied.made.extend(made);
                    applied.now.extend(now.map(|now| (gpu, now)));
                    known = known.or(error);
                }
                Err(error @ Error::AtWork { .. }) => known = known.or(Some(error)),
                Err(error) => unknown = unknown.or(Some(error)),
            }
        }
        match (unknown, known) {
            (None, None) => Ok(applied),
            (Some(error), _) => Err(Failure::Unknown(error)),
            (None, Some(error)) => Err(Failure::Known { error, left: applied.made }),
        }
    }

    /// Destroys what was made for a record, as far as it is there. A GPU that NVML does not know has taken it along.
    pub(super) async fn revert(&self, record: &Record, node: Option<&Node>, by: Instant) -> Result<(), Error> {
        let jobs = self.jobs(record, node).into_iter().filter(|job| !job.parts.is_empty());
        let calls = jobs.map(|job| self.call("take parts of a GPU back", job, by, Job::revert));
        let reverted = join_all(calls).await.into_iter().map(|reverted| match reverted {
            Err(Error::Partition(error)) if is_gone(&error) => Ok(()),
            reverted => reverted,
        });
        reverted.collect()
    }

    /// The devices whose part was made and is not there any more. NVML is asked only about parts that the last look did not
    /// see: that may have been before they were made. Of a GPU that is not there, nothing is known.
    pub(super) async fn missing(&self, record: &Record, node: &Node, by: Instant) -> Result<Vec<usize>, Error> {
        let mut jobs = self.jobs(record, Some(node));
        for job in &mut jobs {
            let gpu = node.gpus.iter().find(|gpu| gpu.uuid == job.gpu);
            job.parts.retain(|wish| gpu.is_some_and(|gpu| !wish.is_in(&gpu.mig.instances)));
        }
        let jobs = jobs.into_iter().filter(|job| !job.parts.is_empty());
        let calls = jobs.map(|job| {
            self.call("look for parts of a GPU", job, by, |job, gpu| {
                let instances = gpu.instances(&job.profiles)?;
                let missing = job.parts.iter().filter(|wish| !wish.is_in(&instances));
                Ok(missing.map(|wish| wish.number).collect::<Vec<_>>())
            })
        });
        let found: Vec<_> = join_all(calls).await.into_iter().collect::<Result<_, _>>()?;
        Ok(found.concat())
    }

    /// Does something at a GPU once it is this job's turn.
    async fn call<T: Send + 'static>(
        &self,
        act: &'static str,
        job: Job,
        by: Instant,
        work: impl FnOnce(&Job, &Partitions<'_>) -> Result<T, nvml::Error> + Send + 'static,
    ) -> Result<T, Error> {
        let turn = match timeout_at(by, self.locks.turn(&job.gpu)).await {
            Ok(turn) => turn.map_err(|error: LockError| Error::from(error))?,
            // A call that was given up still has it: nothing was begun.
            Err(_) => return Err(Error::AtWork { what: ITS_GPUS }),
        };
        let done = self.session.call(act, left_until(by), move |nvml| {
            // Until the call has really ended.
            let _turn = turn;
            work(&job, &Partitions::of(nvml, &job.gpu)?)
        });
        done.await.map_err(Error::Partition)
    }

    /// What a record means for each GPU. Of one that is not there, only what the record says is known.
    fn jobs(&self, record: &Record, node: Option<&Node>) -> Vec<Job> {
        let mut jobs = BTreeMap::<GpuUuid, Job>::new();
        for (number, device) in record.devices.iter().enumerate() {
            let planned = &device.planned;
            let whole = node.and_then(|node| whole_of(planned, node));
            if !device.makes_part() && whole.is_none() {
                continue;
            }
            let gpu = node.and_then(|node| node.gpus.iter().find(|gpu| gpu.uuid == planned.gpu));
            let job = jobs.entry(planned.gpu.clone()).or_insert_with(|| self.job(&planned.gpu, gpu));
            if let Some(part) = planned.part.as_ref().filter(|_| device.makes_part()) {
                let (device, made) = (planned.wanted.device.clone(), device.made.clone());
                if !job.profiles.iter().any(|profile| profile.id == part.profile) {
                    job.profiles.push(only_its_id(part.profile));
                }
                job.parts.push(Wish { number, device, profile: part.profile, placement: part.placement, made });
            }
            job.whole = job.whole.take().or(whole);
        }
        jobs.into_values().collect()
    }

    fn job(&self, uuid: &GpuUuid, gpu: Option<&Gpu>) -> Job {
        let profiles = gpu.map(|gpu| gpu.mig.profiles.clone()).unwrap_or_default();
        Job {
            gpu: uuid.clone(),
            modes: self.modes.clone(),
            all_profiles: !profiles.is_empty(),
            profiles,
            resetless: gpu.is_some_and(|gpu| gpu.mig.resetless),
            parts: Vec::new(),
            whole: None,
        }
    }
}

impl std::fmt::Debug for Partitioner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Partitioner").finish_non_exhaustive()
    }
}

// === impl Job ===

impl Job {
    fn check(&self, gpu: &Partitions<'_>) -> Result<(), Error> {
        if !gpu.mode()? {
            let part = self.parts.first().filter(|_| !self.resetless);
            return part.map_or(Ok(()), |wish| Err(Error::Plan(PlanError::NeedsReset { device: wish.device.clone() })));
        }
        let instances = gpu.instances(&self.profiles)?;
        if let Some(device) = &self.whole {
            if let Some(other) = instances.first() {
                return Err(foreign(device, other));
            }
            if !self.is_by_us()? {
                return Err(Error::Plan(PlanError::Partitioned { device: device.clone() }));
            }
        }
        for wish in self.parts.iter().filter(|wish| wish.made.is_none()) {
            if let Some(other) = instances.iter().find(|instance| instance.placement.overlaps(wish.placement)) {
                return Err(foreign(&wish.device, other));
            }
        }
        Ok(())
    }

    /// An error of NVML itself leaves unknown what was done.
    fn apply(&self, gpu: &Partitions<'_>) -> Result<Report, nvml::Error> {
        let mut report = Report::default();
        match self.make(gpu, &mut report) {
            Ok(()) => report.now = Some(Now { minor: gpu.minor()?, mode: gpu.mode()? }),
            Err(error) => {
                let error = match unless_stale(error)? {
                    // Of what is left then, there is no more to know than where it is.
                    Error::Partition(error @ nvml::Error::Partition { left: Some(_), .. }) => return Err(error),
                    error => error,
                };
                // Who hears that a place is taken has made nothing there.
                let is_taken = matches!(&error, Error::Partition(error) if error.is_taken());
                let attempted = self.parts.iter().find(|wish| Some(wish.number) == report.attempted);
                if let Some(wish) = attempted.filter(|_| !is_taken) {
                    self.sweep(gpu, wish)?;
                }
                report.made = self.undo(gpu, std::mem::take(&mut report.made));
                report.error = Some(error);
            }
        }
        Ok(report)
    }

    fn make(&self, gpu: &Partitions<'_>, report: &mut Report) -> Result<(), Error> {
        self.check(gpu)?;
        if self.whole.is_some() {
            return if gpu.mode()? { self.turn_off(gpu) } else { Ok(()) };
        }
        self.turn_on(gpu)?;
        for wish in self.parts.iter().filter(|wish| wish.made.is_none()) {
            let profile = self.profiles.iter().find(|profile| profile.id == wish.profile);
            let profile = profile.ok_or_else(|| Error::Plan(PlanError::Gone { device: wish.device.clone() }))?;
            report.attempted = Some(wish.number);
            let new = Made::from(gpu.create(profile, wish.placement)?);
            report.attempted = None;
            tracing::info!(gpu = %self.gpu, device = wish.device, mig = %new.uuid, "made a MIG device");
            report.made.insert(wish.number, new);
        }
        Ok(())
    }

    /// Takes back what was just made; answers what could not be.
    fn undo(&self, gpu: &Partitions<'_>, made: BTreeMap<usize, Made>) -> BTreeMap<usize, Made> {
        let mut left = BTreeMap::new();
        for (number, made) in made {
            let Some(wish) = self.parts.iter().find(|wish| wish.number == number) else { continue };
            if let Err(error) = gpu.destroy(&wish.expected(made.gpu_instance, Some(&made))) {
                let error = Error::Partition(error);
                tracing::warn!(gpu = %self.gpu, device = wish.device, %error, "cannot destroy a MIG device yet");
                left.insert(number, made);
            }
        }
        self.restore_mode(gpu);
        left
    }

    /// Destroys what NVML has made though it said that it had not. The place was free a moment ago, and whoever else makes
    /// a GPU instance puts a compute instance into it.
    fn sweep(&self, gpu: &Partitions<'_>, wish: &Wish) -> Result<(), nvml::Error> {
        let is_it = |instance: &&GpuInstance| {
            let is_there = (instance.profile, instance.placement) == (wish.profile, wish.placement);
            is_there && instance.compute.is_empty()
        };
        match gpu.instances(&self.profiles)?.iter().find(is_it) {
            Some(found) => gpu.destroy(&wish.expected(found.id, None)).map(drop),
            None => Ok(()),
        }
    }

    fn revert(&self, gpu: &Partitions<'_>) -> Result<(), nvml::Error> {
        let instances = gpu.instances(&self.profiles)?;
        for wish in &self.parts {
            let at_its_place =
                |instance: &&GpuInstance| (instance.profile, instance.placement) == (wish.profile, wish.placement);
            let Some(found) = instances.iter().find(at_its_place) else { continue };
            match gpu.destroy(&wish.expected(found.id, wish.made.as_ref()))? {
                Destroyed::Now => tracing::info!(gpu = %self.gpu, device = wish.device, "destroyed a MIG device"),
                Destroyed::Before => {}
                Destroyed::Other(other) => tracing::warn!(
                    gpu = %self.gpu,
                    device = wish.device,
                    instance = other.id,
                    "left a GPU instance alone that somebody else has made in the place of ours"
                ),
            }
        }
        self.restore_mode(gpu);
        Ok(())
    }

    /// Known as ours before it is on: whoever finds it on and not known takes it for the administrator's wish.
    fn turn_on(&self, gpu: &Partitions<'_>) -> Result<(), Error> {
        if gpu.mode()? {
            return Ok(());
        }
        self.modes.add(&self.gpu)?;
        let switched = gpu.set_mode(true);
        match &switched {
            Ok(()) => tracing::info!(gpu = %self.gpu, "turned MIG mode on"),
            // If it is not known to be off, it may be on by us.
            Err(_) if gpu.mode().is_ok_and(|on| !on) => self.forget_mode(),
            Err(_) => {}
        }
        Ok(switched?)
    }

    fn turn_off(&self, gpu: &Partitions<'_>) -> Result<(), Error> {
        gpu.set_mode(false)?;
        tracing::info!(gpu = %self.gpu, "turned MIG mode off, as it was found");
        self.forget_mode();
        Ok(())
    }

    /// Turns MIG mode off if this plugin has turned it on and nothing is left. That it fails costs nobody anything: the next
    /// claim on this GPU comes by here, and wants the mode on or off.
    fn restore_mode(&self, gpu: &Partitions<'_>) {
        let restored = || {
            let is_idle = self.all_profiles && gpu.mode()? && gpu.instances(&self.profiles)?.is_empty();
            if is_idle && self.is_by_us()? { self.turn_off(gpu) } else { Ok(()) }
        };
        if let Err(error) = restored() {
            tracing::warn!(gpu = %self.gpu, %error, "cannot turn MIG mode off again; trying with the next claim");
        }
    }

    /// Whether MIG mode, if it is on, was turned on by this plugin.
    fn is_by_us(&self) -> Result<bool, MigModesError> {
        Ok(self.modes.read()?.contains(&self.gpu))
    }

    /// One that stays known though it is off does no harm.
    fn forget_mode(&self) {
        if let Err(error) = self.modes.remove(&self.gpu) {
            let error = Error::Modes(error);
            tracing::warn!(gpu = %self.gpu, %error, "cannot store that the MIG mode is no longer ours");
        }
    }
}

// === impl Wish ===

impl Wish {
    /// Whether what was made for it is among these.
    fn is_in(&self, instances: &[GpuInstance]) -> bool {
        self.made.as_ref().is_some_and(|made| made.is_in(instances))
    }

    fn expected(&self, gpu_instance: u32, made: Option<&Made>) -> Expected {
        let uuid = made.map(|made| made.uuid.clone());
        Expected { gpu_instance, profile: self.profile, placement: self.placement, uuid }
    }
}

/// The name of a GPU that a claim is to use as a whole, and that this plugin may have partitioned.
fn whole_of(planned: &Planned, node: &Node) -> Option<String> {
    let gpu = node.gpus.iter().find(|gpu| gpu.uuid == planned.gpu)?;
    let is_dynamic = matches!(gpu.partitioning, Partitioning::Dynamic { .. });
    let uses_it = planned.part.is_none() && planned.wanted.usage != Usage::Admin;
    (is_dynamic && uses_it).then(|| planned.wanted.device.clone())
}

/// Enough of a profile to find its instances.
fn only_its_id(id: u32) -> Profile {
    Profile {
        id,
        name: String::new(),
        slices: 0,
        memory_mib: 0,
        multiprocessors: 0,
        copy_engines: 0,
        decoders: 0,
        encoders: 0,
        jpeg_engines: 0,
        ofa_engines: 0,
        max_instances: INSTANCES,
        placements: Vec::new(),
    }
}

fn foreign(device: &str, other: &GpuInstance) -> Error {
    Error::Plan(PlanError::Foreign { device: device.to_owned(), instance: other.id })
}

/// The session has to see that its library is of no use any more.
fn unless_stale(error: Error) -> Result<Error, nvml::Error> {
    match error {
        Error::Partition(error) if error.is_stale() => Err(error),
        error => Ok(error),
    }
}

/// Whether a GPU is not there any more. What it had does not outlive the reset that brings it back.
fn is_gone(error: &nvml::Error) -> bool {
    let by_handle = matches!(error, nvml::Error::Call { call: "nvmlDeviceGetHandleByUUID", .. });
    match error.code() {
        Some(Code::NOT_FOUND | Code::GPU_NOT_FOUND) => by_handle,
        // Who looks for a GPU hears that of any other as well.
        Some(Code::GPU_IS_LOST) => !by_handle,
        _ => false,
    }
}

fn left_until(by: Instant) -> Duration {
    by.saturating_duration_since(Instant::now())
}
