//! What is kept of a claim: enough to take everything back when the claim object, the API server and NVML are gone.
//!
//! Unknown fields are ignored on reading, so an older plugin reads what a newer one wrote as long as
//! [`SCHEMA`] is the same. It is raised only when an older plugin would do wrong by ignoring what is new.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::PreparedDevice;
use crate::claim::plan::{Plan, Planned, Wanted};
use crate::claim::{Claim, ClaimName, ClaimUid};
use crate::device::GpuUuid;

/// The schema that this version writes.
pub(super) const SCHEMA: u32 = 1;

/// One claim, as `<claim uid>.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    /// The schema of whoever wrote it.
    pub(super) version: u32,
    /// The boot of the machine during which it was applied.
    pub(super) boot_id: String,
    pub(super) claim: Identity,
    pub(super) state: State,
    /// In the order of the allocation.
    pub(super) devices: Vec<RecordedDevice>,
}

/// How far it went. A claim without a record is not prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum State {
    /// Some, none or all of it may have been done.
    PrepareStarted,
    /// Everything is done, and the kubelet may have been told so.
    PrepareCompleted,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) uid: ClaimUid,
    #[serde(flatten)]
    pub(super) name: ClaimName,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RecordedDevice {
    #[serde(flatten)]
    pub(super) planned: Planned,
    /// As answered to the kubelet, which remembers them: they never change.
    pub(super) cdi_ids: Vec<String>,
}

// === impl Record ===

impl Record {
    /// A record of work that is about to begin. `cdi_id` gives the id of a device by its name.
    pub(super) fn started(claim: &Claim, plan: Plan, boot_id: &str, cdi_id: impl Fn(&str) -> String) -> Self {
        let recorded = |planned: Planned| {
            let cdi_ids = vec![cdi_id(&planned.wanted.device)];
            RecordedDevice { planned, cdi_ids }
        };
        Self {
            version: SCHEMA,
            boot_id: boot_id.to_owned(),
            claim: Identity { uid: claim.uid.clone(), name: claim.name.clone() },
            state: State::PrepareStarted,
            devices: plan.devices.into_iter().map(recorded).collect(),
        }
    }

    /// Whether it is for this allocation.
    pub(super) fn is_for(&self, wanted: &[Wanted]) -> bool {
        self.devices.iter().map(|device| &device.planned.wanted).eq(wanted)
    }

    pub(super) fn gpus(&self) -> BTreeSet<GpuUuid> {
        self.devices.iter().map(|device| device.planned.gpu.clone()).collect()
    }

    /// The answer to the kubelet.
    pub(super) fn answer(&self) -> Vec<PreparedDevice> {
        let device = |RecordedDevice { planned, cdi_ids }: &RecordedDevice| {
            let Wanted { pool, device, share_id, requests, usage: _ } = planned.wanted.clone();
            let mig = planned.part.as_ref().and_then(|part| part.uuid.clone());
            PreparedDevice { requests, pool, device, cdi_ids: cdi_ids.clone(), share_id, gpu: planned.gpu.clone(), mig }
        };
        self.devices.iter().map(device).collect()
    }
}
