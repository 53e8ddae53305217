//! Changes how a GPU is partitioned.
//!
//! ```text
//!  create    GPU instance at its placement ──▶ compute instance that is all of it ──▶ UUID
//!                      ▲                                │ a step fails
//!                      └──────── taken back ◀───────────┘
//!
//!  destroy   found by id ──▶ is it the one that is meant? ──▶ compute instances ──▶ GPU instance
//! ```
//!
//! A GPU is found by its UUID each time, and an instance by its id, compared with where it was and what it was made by:
//! ids are given anew. Every step is a call that can take a second, fail, or be the last before the process ends; whatever
//! is left then is found by [`Partitions::instances`], for which no MIG device has to exist.
//!
//! Nothing here locks: callers change one GPU from one thread at a time.

use nvml_wrapper::Nvml;

use super::error::{Code, Error};
use super::mig::{self, Compute, Reader};
use super::raw::{self, ComputeInstance, Handle};
use crate::device::mig::{GpuInstance, Placement, Profile};
use crate::device::{GpuUuid, MigUuid};

/// The partitions of one GPU.
pub struct Partitions<'n> {
    gpu: Handle<'n>,
}

/// What was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// The id of the GPU instance.
    pub gpu_instance: u32,
    /// The id of the compute instance in it.
    pub compute_instance: u32,
    /// What the MIG device is known by.
    pub uuid: MigUuid,
}

/// What is meant to be destroyed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// The id of the GPU instance.
    pub gpu_instance: u32,
    /// The id of its profile.
    pub profile: u32,
    /// Where it is.
    pub placement: Placement,
    /// The MIG device that is in it, where one was made: a GPU instance with others and without this is not meant.
    pub uuid: Option<MigUuid>,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destroyed {
    /// It is gone.
    Now,
    /// It was not there.
    Before,
    /// Its id is that of another one, which stays.
    Other(GpuInstance),
}

// === impl Partitions ===

impl<'n> Partitions<'n> {
    /// Those of this GPU.
    ///
    /// # Errors
    /// When NVML has no such GPU.
    pub fn of(nvml: &'n Nvml, gpu: &GpuUuid) -> Result<Self, Error> {
        Ok(Self { gpu: Handle::by_uuid(nvml, gpu)? })
    }

    /// `<minor>` of `/dev/nvidia<minor>` now. It can change with the mode.
    pub fn minor(&self) -> Result<u32, Error> {
        self.gpu.minor()
    }

    /// Whether MIG mode is on now.
    pub fn mode(&self) -> Result<bool, Error> {
        self.gpu.mig_mode()
    }

    /// Switches MIG mode. Where it does not change at once, because somebody uses the GPU ([`Error::is_in_use`]) or it needs
    /// a reset ([`Error::needs_reset`]), it is not left to change later either.
    pub fn set_mode(&self, on: bool) -> Result<(), Error> {
        let act = || format!("switch the MIG mode {}", if on { "on" } else { "off" });
        if self.mode().map_err(|error| self.failed(act(), error, None))? == on {
            return Ok(());
        }
        let switched = match self.gpu.set_mig_mode(on) {
            Ok(Code::SUCCESS) => match self.mode() {
                Ok(mode) if mode == on => return Ok(()),
                Ok(_) => Error::ModeNotActive { on, status: Code::RESET_REQUIRED },
                Err(error) => error,
            },
            Ok(status) => Error::ModeNotActive { on, status },
            Err(error) => error,
        };
        // What NVML refused, it does not remember, and what it took is asked back.
        let left = match switched {
            Error::ModeNotActive { .. } => self.gpu.set_mig_mode(!on).err(),
            _ => None,
        };
        Err(self.failed(act(), switched, left))
    }

    /// Makes a MIG device that is all of a new GPU instance, of this profile and at this placement. Where a step fails,
    /// what was made is destroyed; the error says so if it could not be.
    ///
    /// # Errors
    /// [`Error::is_taken`]: another instance is there, or the GPU has no more of something that this one needs.
    /// NOT_SUPPORTED: MIG mode is off.
    pub fn create(&self, profile: &Profile, at: Placement) -> Result<Made, Error> {
        let act = |what: &str| {
            format!("create the {what} {} (profile {}) at memory slice {}", profile.name, profile.id, at.start)
        };
        let gpu_instance = self.gpu.create_gpu_instance(profile.id, at);
        let gpu_instance = gpu_instance.map_err(|error| self.failed(act("GPU instance"), error, None))?;
        let mut within = None;
        self.fill(gpu_instance, profile, &mut within).map_err(|error| {
            let left = self.take_back(gpu_instance, within).err();
            self.failed(act("MIG device"), error, left)
        })
    }

    fn fill(
        &self,
        gpu_instance: raw::GpuInstance,
        profile: &Profile,
        within: &mut Option<ComputeInstance>,
    ) -> Result<Made, Error> {
        let id = self.gpu.gpu_instance_info(gpu_instance)?.id;
        let kinds = mig::compute_profiles(&self.gpu, gpu_instance)?;
        let whole = kinds.iter().find(|kind| kind.slices == profile.slices && kind.instances > 0);
        let whole = whole.ok_or_else(|| {
            let call = "nvmlGpuInstanceGetComputeInstanceProfileInfo";
            self.gpu.nonsense(
                call,
                &format_args!("{kinds:?}"),
                "a list with a profile of all slices of the GPU instance",
            )
        })?;
        let compute_instance = self.gpu.create_compute_instance(gpu_instance, whole.id)?;
        *within = Some(compute_instance);
        let (compute_instance, uuid) = Reader::new(&self.gpu, Compute::new()).device(id, compute_instance)?;
        Ok(Made { gpu_instance: id, compute_instance, uuid })
    }

    fn take_back(&self, gpu_instance: raw::GpuInstance, within: Option<ComputeInstance>) -> Result<(), Error> {
        if let Some(within) = within {
            gone(self.gpu.destroy_compute_instance(within))?;
        }
        gone(self.gpu.destroy_gpu_instance(gpu_instance))
    }

    /// The GPU instances of these profiles that exist, by id; none while MIG mode is off.
    pub fn instances(&self, profiles: &[Profile]) -> Result<Vec<GpuInstance>, Error> {
        if !self.mode()? {
            return Ok(Vec::new());
        }
        Reader::new(&self.gpu, Compute::new()).instances(profiles)
    }

    /// Destroys a GPU instance and what is in it, if it is the one that is meant.
    ///
    /// # Errors
    /// [`Error::is_in_use`]: a program uses it.
    pub fn destroy(&self, expected: &Expected) -> Result<Destroyed, Error> {
        let Expected { gpu_instance: id, profile, placement, uuid: _ } = expected;
        self.try_destroy(expected).map_err(|error| {
            let act = format!("destroy the GPU instance {id} (profile {profile}) at memory slice {}", placement.start);
            self.failed(act, error, None)
        })
    }

    fn try_destroy(&self, expected: &Expected) -> Result<Destroyed, Error> {
        if !self.mode()? {
            return Ok(Destroyed::Before);
        }
        let instance = match self.gpu.gpu_instance(expected.gpu_instance) {
            Ok(instance) => instance,
            Err(error) if error.code() == Some(Code::NOT_FOUND) => return Ok(Destroyed::Before),
            Err(error) => return Err(error),
        };
        let found = Reader::new(&self.gpu, Compute::new()).instance(instance)?;
        if !expected.is(&found) {
            return Ok(Destroyed::Other(found));
        }
        for kind in mig::compute_profiles(&self.gpu, instance)? {
            for within in self.gpu.compute_instances(instance, kind)? {
                gone(self.gpu.destroy_compute_instance(within))?;
            }
        }
        gone(self.gpu.destroy_gpu_instance(instance))?;
        Ok(Destroyed::Now)
    }

    fn failed(&self, act: String, source: Error, left: Option<Error>) -> Error {
        let gpu = self.gpu.label.clone();
        Error::Partition { act, gpu, source: Box::new(source), left: left.map(Box::new) }
    }
}

// === impl Expected ===

impl Expected {
    /// Whether it is this one. One whose compute instance was destroyed, and that itself was not yet, still is.
    fn is(&self, found: &GpuInstance) -> bool {
        let same = (self.profile, self.placement) == (found.profile, found.placement);
        let uuid =
            |uuid: &MigUuid| found.compute.is_empty() || found.compute.iter().any(|compute| compute.uuid == *uuid);
        same && self.uuid.as_ref().is_none_or(uuid)
    }
}

/// What somebody else destroyed is destroyed.
fn gone(answer: Result<(), Error>) -> Result<(), Error> {
    answer.or_else(|error| if error.code() == Some(Code::NOT_FOUND) { Ok(()) } else { Err(error) })
}
