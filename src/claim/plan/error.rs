//! Why a claim cannot be prepared.

use super::Holder;
use crate::claim::config::{ConfigError, SharingStrategy};
use crate::device::DeviceName;

/// Why a claim cannot be prepared as it is. Trying again does not help until the claim, the node or another claim changes;
/// [`InUse`](Self::InUse) and [`Absent`](Self::Absent) are those where that may happen by itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No result names our driver.
    #[error("nothing in the claim's allocation is from this driver")]
    Nothing,
    /// Allocated from a pool that is another node's, or from one of an earlier name.
    #[error("{device} was allocated from the pool {pool}, but this node's pool is {ours}")]
    Pool {
        /// The device.
        device: String,
        /// The pool it was allocated from.
        pool: String,
        /// The pool of this node.
        ours: String,
    },
    /// The node has no such device.
    #[error("the node has no device {device}; it has {}", list(has))]
    Unknown {
        /// The name in the allocation.
        device: String,
        /// What there is.
        has: Vec<DeviceName>,
    },
    /// The node had it, and may have it again.
    #[error("the GPU {device} is gone from the node; bring it back, or delete the pod so that it is given another")]
    Absent {
        /// The name in the allocation.
        device: String,
    },
    /// The node had such a part of a GPU, or could have one that is partitioned otherwise.
    #[error(
        "the MIG device {device} is gone from the node; make it again, or delete the pod so that it is given another"
    )]
    Gone {
        /// The name in the allocation.
        device: String,
    },
    /// Something that is not ours is where the part must be made, or keeps the GPU from being used as a whole.
    #[error(
        "{device} cannot be had while the GPU has the GPU instance {instance}, which this driver did not make; destroy it, \
         or delete the pod so that it is given another"
    )]
    Foreign {
        /// The device.
        device: String,
        /// The id of the GPU instance.
        instance: u32,
    },
    /// The GPU is partitioned.
    #[error("{device} cannot be used as a whole GPU: MIG mode is on")]
    Partitioned {
        /// The device.
        device: String,
    },
    /// The GPU is not partitioned, and that cannot be changed while it is in use.
    #[error(
        "{device} cannot be made: MIG mode of its GPU is off, and needs a reset of the GPU to be turned on; do that, or \
         delete the pod so that it is given another"
    )]
    NeedsReset {
        /// The device.
        device: String,
    },
    /// Another claim has it.
    #[error("{device} is in use by claim {holder} until that claim's pods are gone from this node")]
    InUse {
        /// The device.
        device: String,
        /// The claim that holds it.
        holder: Holder,
    },
    /// A configuration cannot be read.
    #[error("configuration {number} of the claim: {error}")]
    Config {
        /// Position among those addressed to this driver, from 1.
        number: usize,
        /// What is wrong with it.
        error: ConfigError,
    },
    /// A configuration is for another type of device than its request was given.
    #[error("configuration {number} of the claim: {kind} names the request {request}, which was given {given}")]
    WrongKind {
        /// Position among those addressed to this driver, from 1.
        number: usize,
        /// Its kind.
        kind: &'static str,
        /// The request it names.
        request: String,
        /// What that request was given: "the whole GPU gpu-0".
        given: String,
    },
    /// A configuration asks for something that this driver does not do.
    #[error("{device}: sharing with the strategy {strategy} is not supported by this version of the driver")]
    Sharing {
        /// The device.
        device: String,
        /// What was asked for.
        strategy: SharingStrategy,
    },
}

fn list(names: &[DeviceName]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names.iter().map(DeviceName::as_str).collect::<Vec<_>>().join(", ")
}
