//! Why a claim could not be prepared or unprepared, whose turn it is to do something, and whether waiting helps.

use super::record::SCHEMA;
use super::{LockError, StoreError};
use crate::causes::with_causes;
use crate::cdi::{Incomplete, WriteError};
use crate::claim::plan::PlanError;
use crate::device::{GpuUuid, MigUuid};
use crate::inventory::mig_modes::Error as MigModesError;
use crate::nvml;

/// Why a claim could not be prepared or unprepared. The message reaches the pod's events, so it is written for the
/// person who reads them, and is the whole story: it includes its causes, and there is no `source` to add.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// NVML has not answered since the start.
    #[error(
        "the node's GPUs are not known yet: {}; see the log of the driver on this node",
        reason.as_deref().unwrap_or("NVML has not answered")
    )]
    NotReady {
        /// Why the last look at them failed, if one has ended.
        reason: Option<String>,
    },
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
    /// The plugin stops, and nothing was done for the claim yet.
    #[error("the GPU plugin is stopping; the next one on this node will prepare the claim")]
    Stopping,
    /// Another process hangs, or the disk does.
    #[error(
        "another plugin process on this node, or an earlier call, is at work on {what} and does not end; see the logs of \
         the driver on this node"
    )]
    AtWork {
        /// A noun.
        what: &'static str,
    },
    /// The record says more than this version understands.
    #[error(
        "the claim was prepared by a newer version of this driver (schema {version}, this one reads {SCHEMA}); upgrade \
         the driver again"
    )]
    Newer {
        /// The schema of the record.
        version: u32,
    },
    /// A GPU that a claim holds is not there any more.
    #[error(
        "{device}, which this claim was given as GPU {uuid}, is gone from the node; bring it back, or delete the pods of \
         this claim so that they are given another"
    )]
    Gone {
        /// The name it had.
        device: String,
        /// Its identity.
        uuid: GpuUuid,
    },
    /// A part of a GPU that a claim holds is not there any more.
    #[error(
        "{device}, which this claim was given as {uuid}, is gone from the node: it was destroyed, or its GPU was reset; \
         delete the pods of this claim so that they are given another"
    )]
    PartGone {
        /// The name it had.
        device: String,
        /// Its identity.
        uuid: MigUuid,
    },
    /// NVML could not make, find or destroy a part of a GPU.
    #[error("{}", with_causes(.0))]
    Partition(nvml::Error),
    /// Whose doing MIG mode is could not be stored.
    #[error("{}", with_causes(.0))]
    Modes(MigModesError),
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

/// What may bring an end to what stands in a prepare's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remedy {
    /// A look at the GPUs that finds something new.
    Look,
    /// The release of another claim.
    Release,
    /// Files that appear, of which nobody tells.
    Files,
}

// === impl Error ===

impl From<nvml::Error> for Error {
    fn from(error: nvml::Error) -> Self {
        Self::Partition(error)
    }
}

impl From<MigModesError> for Error {
    fn from(error: MigModesError) -> Self {
        Self::Modes(error)
    }
}

impl From<LockError> for Error {
    fn from(error: LockError) -> Self {
        Self::Record(StoreError::Locks(error))
    }
}

impl Error {
    /// What to wait for before a prepare that failed so is tried again. `None` where it takes somebody to act: the author
    /// of a claim or whoever looks after the node is told at once.
    pub(super) fn remedy(&self) -> Option<Remedy> {
        match self {
            // The GPU was here, or the scheduler would not have given it away: it may be resetting.
            Self::NotReady { .. } | Self::Gone { .. } | Self::Plan(PlanError::Absent { .. }) => Some(Remedy::Look),
            // The pod that had it may be about to end.
            Self::Plan(PlanError::InUse { .. }) => Some(Remedy::Release),
            Self::Incomplete(incomplete) if incomplete.may_pass() => Some(Remedy::Files),
            // A program of the pod before may be about to end, and nobody tells.
            Self::Partition(error) if error.is_in_use() => Some(Remedy::Files),
            // A disk that is full or broken stays so for longer than anybody waits here.
            Self::Incomplete(_)
            // NVML has had its time, or somebody else uses the place.
            | Self::Partition(_)
            | Self::PartGone { .. }
            | Self::Modes(_)
            | Self::Spec(_)
            | Self::Record(_)
            | Self::Plan(_)
            | Self::Reallocated { .. }
            | Self::Newer { .. }
            | Self::AtWork { .. }
            | Self::CalledOff
            | Self::Stopping
            | Self::Internal => None,
        }
    }

    /// What kind of failure it is, as the metric `claim_failures` labels it: whose turn it is to do something. All values
    /// are listed in `prepare/metrics.rs`.
    pub fn cause(&self) -> &'static str {
        match self {
            // NVML's, or whoever looks after the node.
            Self::NotReady { .. } => "not_ready",
            // A GPU, a device node or a part of the driver is missing.
            Self::Gone { .. } | Self::PartGone { .. } | Self::Incomplete(_) | Self::Plan(PlanError::Absent { .. }) => {
                "incomplete"
            }
            // NVML's, or of a program that does not end.
            Self::Partition(_) => "nvml",
            // Of another claim, or of an earlier allocation of this one.
            Self::Plan(PlanError::InUse { .. }) | Self::Reallocated { .. } => "in_use",
            // That of whoever looks after the node.
            Self::AtWork { .. } => "at_work",
            // The author's of the claim.
            Self::Plan(_) => "claim",
            // Nobody's.
            Self::CalledOff => "called_off",
            // That of the next plugin on the node.
            Self::Stopping => "stopping",
            // A record or a spec could not be read or written.
            Self::Newer { .. } | Self::Spec(_) | Self::Record(_) | Self::Modes(_) => "files",
            // Ours.
            Self::Internal => "internal",
        }
    }
}
