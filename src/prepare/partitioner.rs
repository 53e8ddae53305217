//! What claims do to GPUs that this plugin partitions: MIG devices that come and go with their claim.
//!
//! ```text
//!  apply    a part:       MIG mode on ──▶ is its place free? ──▶ GPU instance, MIG device ──▶ Made, for the record
//!           a whole GPU:  MIG mode off, if it is only on because this plugin has turned it on
//!
//!  revert   a part:       what is at its place, if it is what was made ──▶ destroyed
//!                         ──▶ MIG mode off, if this plugin has turned it on and no instance is left
//! ```
//!
//! A part is found by what the record plans: GPU, profile and place. So it can be taken back whether or not the process
//! lived to write down what NVML had made, and one of somebody else is left alone: nobody else can have made one there
//! while the claim had it, and if the MIG device that was made is known, it must be that one.
//!
//! NVML can take a second for each step, and hang. A call that is given up goes on in its thread and may have its effect
//! later, so each call takes its turn at the GPU in that thread: whoever takes a part back sees all that was done before.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;

use super::Error;
use super::record::{Made, Record};
use crate::claim::plan::{PlanError, Planned, Usage};
use crate::device::mig::{GpuInstance, Placement, Profile};
use crate::device::{Gpu, GpuUuid, Node, Partitioning};
use crate::inventory::MigModes;
use crate::inventory::mig_modes::Error as MigModesError;
use crate::nvml::partition::{Destroyed, Expected, Partitions};
use crate::nvml::{self, Session};

/// What a call gets at least, when a budget is nearly spent: to make one part takes NVML a second or two.
const AT_LEAST: Duration = Duration::from_secs(5);

/// Makes and destroys the parts of claims.
pub(super) struct Partitioner {
    session: Session,
    modes: MigModes,
    /// Whose turn it is at a GPU, in the threads of NVML.
    turns: Mutex<BTreeMap<GpuUuid, Turn>>,
}

type Turn = Arc<Mutex<()>>;

/// What is to be done at one GPU for a claim.
struct Job {
    gpu: GpuUuid,
    turn: Turn,
    modes: MigModes,
    profiles: Vec<Profile>,
    /// MIG mode can be turned on without a reset.
    resetless: bool,
    parts: Vec<Wish>,
    /// The name of the GPU, where the claim gets all of it.
    whole: Option<String>,
}

/// A part that a claim is to have, or had.
struct Wish {
    /// Its number among the devices of the record.
    number: usize,
    device: String,
    profile: u32,
    placement: Placement,
    made: Option<Made>,
}

// === impl Partitioner ===

impl Partitioner {
    pub(super) fn new(session: Session, modes: MigModes) -> Self {
        Self { session, modes, turns: Mutex::default() }
    }

    /// Whether something has to be done at a GPU before the claim of this record can use it.
    pub(super) fn concerns(record: &Record, node: &Node) -> bool {
        record.makes_parts() || record.devices.iter().any(|device| whole_of(&device.planned, node).is_some())
    }

    /// Makes the parts of a record, and sees to it that whole GPUs are whole; GPU by GPU at once. Answers what was made, by
    /// the number of the device. Where a part cannot be made, others may have been: they are for [`revert`](Self::revert).
    pub(super) async fn apply(
        &self,
        record: &Record,
        node: &Node,
        by: Instant,
    ) -> Result<BTreeMap<usize, Made>, Error> {
        let jobs = self.jobs(record, node);
        let calls = jobs.into_iter().map(|job| {
            self.session.call("partition a GPU", left_until(by), move |nvml| {
                let turn = Arc::clone(&job.turn);
                let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
                job.apply(&Partitions::of(nvml, &job.gpu)?)
            })
        });
        let mut made = BTreeMap::new();
        for done in join_all(calls).await {
            made.extend(done.map_err(Error::Partition)??);
        }
        Ok(made)
    }

    /// Destroys what was made for a record, as far as it is there. GPUs that `node` does not have took it with them.
    pub(super) async fn revert(&self, record: &Record, node: &Node, by: Instant) -> Result<(), Error> {
        let jobs = self.jobs(record, node).into_iter().filter(|job| !job.parts.is_empty());
        let calls = jobs.map(|job| {
            self.session.call("take a part of a GPU back", left_until(by), move |nvml| {
                let turn = Arc::clone(&job.turn);
                let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
                job.revert(&Partitions::of(nvml, &job.gpu)?)
            })
        });
        join_all(calls).await.into_iter().collect::<Result<(), _>>().map_err(Error::Partition)
    }

    /// Whether all that was made for a record still is. NVML is asked only if the last look did not see it: that may have
    /// been before it was made.
    pub(super) async fn has_all(&self, record: &Record, node: &Node, by: Instant) -> Result<bool, Error> {
        if record.parts_are_in(node) {
            return Ok(true);
        }
        if record.makes_parts() && record.devices.iter().any(|device| device.makes_part() && device.made.is_none()) {
            return Ok(false);
        }
        let calls = self.jobs(record, node).into_iter().filter(|job| !job.parts.is_empty()).map(|job| {
            self.session.call("look for a part of a GPU", left_until(by), move |nvml| {
                let instances = Partitions::of(nvml, &job.gpu)?.instances(&job.profiles)?;
                Ok(job.parts.iter().all(|wish| wish.made.as_ref().is_none_or(|made| made.is_in(&instances))))
            })
        });
        let found = join_all(calls).await.into_iter().collect::<Result<Vec<_>, _>>();
        Ok(found.map_err(Error::Partition)?.into_iter().all(|all| all))
    }

    /// What a record means for each GPU that the node has.
    fn jobs(&self, record: &Record, node: &Node) -> Vec<Job> {
        let mut jobs = BTreeMap::<GpuUuid, Job>::new();
        for (number, device) in record.devices.iter().enumerate() {
            let planned = &device.planned;
            let Some(gpu) = node.gpus.iter().find(|gpu| gpu.uuid == planned.gpu) else { continue };
            let whole = whole_of(planned, node);
            if !device.makes_part() && whole.is_none() {
                continue;
            }
            let job = jobs.entry(gpu.uuid.clone()).or_insert_with(|| self.job(gpu));
            if let Some(part) = planned.part.as_ref().filter(|_| device.makes_part()) {
                let (device, made) = (planned.wanted.device.clone(), device.made.clone());
                job.parts.push(Wish { number, device, profile: part.profile, placement: part.placement, made });
            }
            job.whole = job.whole.take().or(whole);
        }
        jobs.into_values().collect()
    }

    fn job(&self, gpu: &Gpu) -> Job {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        Job {
            gpu: gpu.uuid.clone(),
            turn: Arc::clone(turns.entry(gpu.uuid.clone()).or_default()),
            modes: self.modes.clone(),
            profiles: gpu.mig.profiles.clone(),
            resetless: gpu.mig.resetless,
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
    /// What can be said in the words of a plan is an error within.
    fn apply(&self, gpu: &Partitions<'_>) -> Result<Result<BTreeMap<usize, Made>, Error>, nvml::Error> {
        if let Some(device) = &self.whole {
            return Ok(self.make_whole(gpu, device)?.map(|()| BTreeMap::new()));
        }
        if !gpu.mode()? {
            if !self.resetless {
                let device = self.parts.first().map_or_else(String::new, |wish| wish.device.clone());
                return Ok(Err(Error::Plan(PlanError::NeedsReset { device })));
            }
            if let Err(error) = self.turn_on(gpu)? {
                return Ok(Err(error));
            }
        }
        let mut made = BTreeMap::new();
        for wish in &self.parts {
            let instances = gpu.instances(&self.profiles)?;
            if let Some(other) = instances.iter().find(|instance| instance.placement.overlaps(wish.placement)) {
                return Ok(Err(foreign(&wish.device, other)));
            }
            let Some(profile) = self.profiles.iter().find(|profile| profile.id == wish.profile) else {
                return Ok(Err(Error::Plan(PlanError::Gone { device: wish.device.clone() })));
            };
            let new = Made::from(gpu.create(profile, wish.placement)?);
            tracing::info!(gpu = %self.gpu, device = wish.device, mig = %new.uuid, "made a MIG device");
            made.insert(wish.number, new);
        }
        Ok(Ok(made))
    }

    /// Known as ours before it is on: whoever finds it on and not known takes it for the administrator's wish.
    fn turn_on(&self, gpu: &Partitions<'_>) -> Result<Result<(), Error>, nvml::Error> {
        if let Err(error) = self.modes.add(&self.gpu) {
            return Ok(Err(Error::Modes(error)));
        }
        let switched = gpu.set_mode(true);
        match &switched {
            Ok(()) => tracing::info!(gpu = %self.gpu, "turned MIG mode on"),
            Err(_) => self.forget_mode(),
        }
        switched.map(Ok)
    }

    fn make_whole(&self, gpu: &Partitions<'_>, device: &str) -> Result<Result<(), Error>, nvml::Error> {
        if !gpu.mode()? {
            return Ok(Ok(()));
        }
        if let Some(other) = gpu.instances(&self.profiles)?.first() {
            return Ok(Err(foreign(device, other)));
        }
        match self.is_by_us() {
            Ok(true) => {}
            Ok(false) => return Ok(Err(Error::Plan(PlanError::Partitioned { device: device.to_owned() }))),
            Err(error) => return Ok(Err(Error::Modes(error))),
        }
        gpu.set_mode(false)?;
        self.forget_mode();
        Ok(Ok(()))
    }

    fn revert(&self, gpu: &Partitions<'_>) -> Result<(), nvml::Error> {
        let instances = gpu.instances(&self.profiles)?;
        for wish in &self.parts {
            let at_its_place =
                |instance: &&GpuInstance| (instance.profile, instance.placement) == (wish.profile, wish.placement);
            let Some(found) = instances.iter().find(at_its_place) else { continue };
            let expected = Expected {
                gpu_instance: found.id,
                profile: wish.profile,
                placement: wish.placement,
                uuid: wish.made.as_ref().map(|made| made.uuid.clone()),
            };
            match gpu.destroy(&expected)? {
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
        let is_by_us = self.is_by_us().unwrap_or_else(|error| {
            let error = crate::causes::with_causes(&error);
            tracing::warn!(gpu = %self.gpu, error, "MIG mode stays as it is");
            false
        });
        if is_by_us
            && gpu.instances(&self.profiles)?.is_empty()
            && let Err(error) = self.turn_off(gpu)
        {
            // The parts are gone, and the next claim on this GPU comes by here.
            tracing::warn!(gpu = %self.gpu, %error, "cannot turn MIG mode off again; trying when it is next released");
        }
        Ok(())
    }

    fn turn_off(&self, gpu: &Partitions<'_>) -> Result<(), nvml::Error> {
        gpu.set_mode(false)?;
        tracing::info!(gpu = %self.gpu, "turned MIG mode off, as it was found");
        self.forget_mode();
        Ok(())
    }

    /// Whether MIG mode, if it is on, was turned on by this plugin.
    fn is_by_us(&self) -> Result<bool, MigModesError> {
        Ok(self.modes.read()?.contains(&self.gpu))
    }

    /// One that stays known though it is off does no harm.
    fn forget_mode(&self) {
        if let Err(error) = self.modes.remove(&self.gpu) {
            let error = crate::causes::with_causes(&error);
            tracing::warn!(gpu = %self.gpu, error, "cannot store that the MIG mode is no longer ours");
        }
    }
}

/// The name of a GPU that a claim is to use as a whole, and that this plugin may have partitioned.
fn whole_of(planned: &Planned, node: &Node) -> Option<String> {
    let gpu = node.gpus.iter().find(|gpu| gpu.uuid == planned.gpu)?;
    let is_dynamic = matches!(gpu.partitioning, Partitioning::Dynamic { .. });
    let uses_it = planned.part.is_none() && planned.wanted.usage != Usage::Admin;
    (is_dynamic && uses_it).then(|| planned.wanted.device.clone())
}

fn foreign(device: &str, other: &GpuInstance) -> Error {
    Error::Plan(PlanError::Foreign { device: device.to_owned(), instance: other.id })
}

fn left_until(by: Instant) -> Duration {
    by.saturating_duration_since(Instant::now()).max(AT_LEAST)
}
