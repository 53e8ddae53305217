//! The claim state machine: what is prepared, and how it comes and goes.

use std::sync::Arc;

use crate::claim::{Claim, ClaimUid};

/// Prepares and unprepares claims. Cheap to clone; all clones share one state.
#[derive(Debug, Clone)]
pub struct Preparer {
    shared: Arc<()>,
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
/// person who reads them.
#[derive(Debug, thiserror::Error)]
pub enum Error {}

impl Preparer {
    /// Makes the claim's devices usable by containers. A repeat answers the same.
    pub async fn prepare(&self, claim: Claim) -> Result<Vec<PreparedDevice>, Error> {
        let _ = (&self.shared, claim);
        std::future::pending().await
    }

    /// Takes back everything that prepare did. Succeeds for claims that are not known.
    pub async fn unprepare(&self, uid: &ClaimUid) -> Result<(), Error> {
        let _ = (&self.shared, uid);
        std::future::pending().await
    }
}
