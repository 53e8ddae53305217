//! What is kept of a claim: enough to take everything back when the claim object, the API server and NVML are gone.
//!
//! Unknown fields are ignored on reading, so an older plugin reads what a newer one wrote as long as
//! [`SCHEMA`] is the same. It is raised only when an older plugin would do wrong by ignoring what is new, and then only in
//! records that have it: of a whole GPU there is nothing new to say.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Error, PreparedDevice};
use crate::cdi::MigTarget;
use crate::claim::plan::{Plan, PlanError, Planned, Usage, Wanted};
use crate::claim::{Claim, ClaimName, ClaimUid};
use crate::device::mig::GpuInstance;
use crate::device::{Gpu, GpuUuid, MigUuid, Node};
use crate::nvml::partition;

/// The newest schema that this version knows.
pub(super) const SCHEMA: u32 = PARTS;

/// Nothing but the record and the spec has to be taken back.
const PLAIN: u32 = 1;

/// There are MIG devices to be destroyed.
const PARTS: u32 = 2;

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
    /// The MIG device that was made for it, as soon as it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) made: Option<Made>,
}

/// A MIG device that this plugin has made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Made {
    /// By which NVML and the capability files know it, as long as it exists.
    pub(super) gpu_instance: u32,
    /// See `gpu_instance`.
    pub(super) compute_instance: u32,
    /// Its identity.
    pub(super) uuid: MigUuid,
}

// === impl Record ===

impl Record {
    /// A record of work that is about to begin. `cdi_id` gives the id of a device by its name.
    pub(super) fn started(claim: &Claim, plan: Plan, boot_id: &str, cdi_id: impl Fn(&str) -> String) -> Self {
        let recorded = |planned: Planned| {
            let cdi_ids = vec![cdi_id(&planned.wanted.device)];
            RecordedDevice { planned, cdi_ids, made: None }
        };
        let devices: Vec<_> = plan.devices.into_iter().map(recorded).collect();
        Self {
            version: if devices.iter().any(RecordedDevice::makes_part) { PARTS } else { PLAIN },
            boot_id: boot_id.to_owned(),
            claim: Identity { uid: claim.uid.clone(), name: claim.name.clone() },
            state: State::PrepareStarted,
            devices,
        }
    }

    /// As it is before the parts of some devices, by their number, which are gone, are made once more. It stays completed:
    /// what is there may be in use, and what was answered stays.
    pub(super) fn anew(mut self, boot_id: &str, missing: &[usize]) -> Self {
        boot_id.clone_into(&mut self.boot_id);
        for number in missing {
            if let Some(device) = self.devices.get_mut(*number) {
                device.made = None;
            }
        }
        self
    }

    /// What is to be taken back, whether or not all of it had been done.
    pub(super) fn taken_back(mut self) -> Self {
        self.state = State::PrepareStarted;
        self
    }

    /// What is left to be taken back when only these parts could not be.
    pub(super) fn remainder(mut self, left: BTreeMap<usize, Made>) -> Self {
        self.devices.iter_mut().for_each(|device| device.made = None);
        self.take(left);
        self.devices.retain(|device| device.made.is_some());
        self
    }

    /// Those of some devices, by their number, that an earlier attempt may have made: it did not live to say so.
    pub(super) fn attempted(mut self, missing: &[usize]) -> Self {
        let mut number = 0;
        self.devices.retain(|device| {
            number += 1;
            device.makes_part() && device.made.is_none() && missing.contains(&(number - 1))
        });
        self
    }

    /// The devices for which MIG devices are made, by their number.
    pub(super) fn parts(&self) -> Vec<usize> {
        let numbered = self.devices.iter().enumerate().filter(|(_, device)| device.makes_part());
        numbered.map(|(number, _)| number).collect()
    }

    /// Whether MIG devices are made for it.
    pub(super) fn makes_parts(&self) -> bool {
        self.devices.iter().any(RecordedDevice::makes_part)
    }

    /// Takes what was made, by the number of the device.
    pub(super) fn take(&mut self, made: BTreeMap<usize, Made>) {
        for (number, made) in made {
            if let Some(device) = self.devices.get_mut(number) {
                device.made = Some(made);
            }
        }
    }

    /// Whether it is for this allocation.
    pub(super) fn is_for(&self, wanted: &[Wanted]) -> bool {
        self.devices.iter().map(|device| &device.planned.wanted).eq(wanted)
    }

    /// See [`Plan::gpus`].
    pub(super) fn gpus(&self) -> BTreeSet<GpuUuid> {
        let used = self.devices.iter().map(|device| &device.planned).filter(|planned| planned.uses_gpu());
        used.map(|planned| planned.gpu.clone()).collect()
    }

    /// The answer to the kubelet.
    pub(super) fn answer(&self) -> Vec<PreparedDevice> {
        let device = |RecordedDevice { planned, cdi_ids, made }: &RecordedDevice| {
            let Wanted { pool, device, share_id, requests, usage: _ } = planned.wanted.clone();
            let made = made.as_ref().map(|made| made.uuid.clone());
            let mig = made.or_else(|| planned.part.as_ref().and_then(|part| part.uuid.clone()));
            PreparedDevice { requests, pool, device, cdi_ids: cdi_ids.clone(), share_id, gpu: planned.gpu.clone(), mig }
        };
        self.devices.iter().map(device).collect()
    }
}

// === impl RecordedDevice ===

impl RecordedDevice {
    /// Whether a MIG device is made for it: of a part that an administrator made, there is one, and to look is no reason to
    /// make one.
    pub(super) fn makes_part(&self) -> bool {
        let is_ours = self.planned.part.as_ref().is_some_and(|part| part.uuid.is_none());
        is_ours && self.planned.wanted.usage != Usage::Admin
    }

    /// Whether the last look has not found its GPU.
    pub(super) fn is_gone_from(&self, node: &Node) -> bool {
        node.gpus.iter().all(|gpu| gpu.uuid != self.planned.gpu)
    }

    /// Whether a look has found its GPU, whole if it is used as a whole, or else its part.
    pub(super) fn is_in(&self, node: &Node) -> bool {
        let gpu = node.gpus.iter().find(|gpu| gpu.uuid == self.planned.gpu);
        let has_made = |gpu: &Gpu| self.made.as_ref().is_none_or(|made| made.is_in(&gpu.mig.instances));
        gpu.is_some_and(|gpu| self.is_whole_in(node) && has_made(gpu) && self.mig_device(gpu).is_ok())
    }

    /// Whether its GPU can be used as a whole, if it is to be.
    pub(super) fn is_whole_in(&self, node: &Node) -> bool {
        let uses_it = self.planned.part.is_none() && self.planned.wanted.usage != Usage::Admin;
        !uses_it || node.gpus.iter().all(|gpu| gpu.uuid != self.planned.gpu || !gpu.mig.enabled)
    }

    /// The MIG device that a container gets; none where it gets the GPU, also to look at a part of it that there is not.
    pub(super) fn mig_device(&self, gpu: &Gpu) -> Result<Option<MigTarget>, Error> {
        if let Some(Made { gpu_instance, compute_instance, uuid }) = self.made.clone() {
            return Ok(Some(MigTarget { gpu_instance, compute_instance, uuid }));
        }
        if self.makes_part() {
            return Err(Error::Plan(PlanError::Gone { device: self.planned.wanted.device.clone() }));
        }
        let Some(uuid) = self.planned.part.as_ref().and_then(|part| part.uuid.clone()) else { return Ok(None) };
        let all = gpu.mig.instances.iter().flat_map(|gi| gi.compute.iter().map(move |ci| (gi.id, ci)));
        let found = all.into_iter().find(|(_, compute)| compute.uuid == uuid);
        let Some((gpu_instance, compute)) = found else {
            return Err(Error::PartGone { device: self.planned.wanted.device.clone(), uuid });
        };
        Ok(Some(MigTarget { gpu_instance, compute_instance: compute.id, uuid }))
    }
}

// === impl Made ===

impl Made {
    /// Whether it is among these.
    pub(super) fn is_in(&self, instances: &[GpuInstance]) -> bool {
        instances.iter().flat_map(|instance| &instance.compute).any(|compute| compute.uuid == self.uuid)
    }
}

impl From<partition::Made> for Made {
    fn from(made: partition::Made) -> Self {
        let partition::Made { gpu_instance, compute_instance, uuid } = made;
        Self { gpu_instance, compute_instance, uuid }
    }
}
