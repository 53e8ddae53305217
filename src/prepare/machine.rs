//! The steps of the state machine on disk. They block for as long as the disk takes, and expect their caller to hold
//! the lock of the claim, and to change anything those of its GPUs as well, as far as there is a record or a plan that
//! names them.
//!
//! ```text
//!               note                       complete
//!  absent ───────────────▶ PrepareStarted ──────────────▶ PrepareCompleted ◀─┐
//!    ▲                         │                              │   ▲         │  note, complete: parts that are gone
//!    └──────── release ────────┴─────────── release ──────────┘   │         └─ are made once more
//!                                                                 └── renew, restore: the spec is written again, or
//!                                                                     removed while a GPU of the claim is gone
//! ```
//!
//! Whatever is interrupted leaves a record that says so, and the next call or the next start takes it back. Most claims
//! have no effect beside the spec. What others do to GPUs is done between `note` and `complete`, and taken back between
//! `withdraw` and `release`, by [`Partitioner`](super::partitioner::Partitioner), which needs NVML.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::damage::Damage;
use super::notices::{Notice, Notices};
use super::record::{Record, RecordedDevice, State};
use super::siblings::{Range, Siblings, Slot};
use super::store::Store;
use super::{Error, OpenError, Settings};
use crate::cdi::{self, Found, MigTarget, Spec, Target};
use crate::claim::plan::{Plan, PlanError};
use crate::claim::{Claim, ClaimName, ClaimUid};
use crate::device::mig::Placement;
use crate::device::{DeviceName, Gpu, GpuUuid, Node};

#[derive(Debug)]
pub(super) struct Machine {
    settings: Settings,
    store: Store,
    specs: cdi::Writer,
    notices: Notices,
}

// === impl Machine ===

impl Machine {
    /// Reads all records, takes back what was half done, and removes specs that nobody answers for. What another process
    /// is at work on is left to it.
    pub(super) fn open(settings: Settings) -> Result<Self, OpenError> {
        let store = Store::open(settings.claims_dir.clone()).map_err(OpenError::Records)?;
        let specs = cdi::Writer::open(settings.cdi_dir.clone(), settings.cdi_kind.clone()).map_err(OpenError::Specs)?;
        let notices = Notices::new(settings.claims_dir.clone(), Arc::clone(store.siblings()));
        notices.sweep(|_| false).map_err(OpenError::Records)?;
        let machine = Self { settings, store, specs, notices };
        for uid in machine.store.in_state(State::PrepareStarted) {
            match machine.take_back(&uid) {
                Ok(true) => tracing::info!(claim.uid = %uid, "took back a claim that was half prepared"),
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(claim.uid = %uid, %error, "cannot take back a claim that was half prepared");
                }
            }
        }
        for name in machine.specs.claims().map_err(OpenError::Specs)? {
            match machine.remove_orphan(&name) {
                Ok(true) => tracing::info!(claim.uid = name, "removed a CDI spec without a claim record"),
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(claim.uid = name, %error, "cannot remove a CDI spec without a claim record");
                }
            }
        }
        Ok(machine)
    }

    /// Takes back a claim that is half prepared, unless somebody is at work on it; whether it did.
    fn take_back(&self, uid: &ClaimUid) -> Result<bool, Error> {
        let Some(_claim) = self.try_lock(Slot::claim(uid))? else { return Ok(false) };
        // It may have been done or taken back since it was seen.
        match self.load(uid)? {
            // What was made takes NVML to take back: see `Keeper`.
            Some(record) if record.makes_parts() => Ok(false),
            Some(record) if record.state == State::PrepareStarted => {
                let gpus: BTreeSet<_> = record.gpus().iter().map(Slot::gpu).collect();
                let gpus = gpus.into_iter().map(|gpu| self.try_lock(gpu)).collect::<Result<Option<Vec<_>>, _>>()?;
                if gpus.is_none() {
                    return Ok(false);
                }
                self.release(uid).map(|()| true)
            }
            Some(_) | None => Ok(false),
        }
    }

    /// Removes the spec of a claim that has no record, unless somebody is at work on it; whether it did.
    fn remove_orphan(&self, name: &str) -> Result<bool, Error> {
        let uid = ClaimUid::parse(name).ok();
        let claim = uid.as_ref().map(|uid| self.try_lock(Slot::claim(uid))).transpose()?;
        // The containers of a claim whose record was damaged still start from its spec.
        if matches!(claim, Some(None)) || uid.is_some_and(|uid| self.store.has(&uid)) {
            return Ok(false);
        }
        self.specs.remove(name).map_err(Error::Spec)?;
        Ok(true)
    }

    /// For the start alone: later, [`Locks`](super::locks::Locks) come first.
    fn try_lock(&self, slot: Slot) -> Result<Option<Range>, Error> {
        self.siblings().try_lock(slot).map_err(Error::from)
    }

    /// Those who share the directory.
    pub(super) fn siblings(&self) -> &Arc<Siblings> {
        self.store.siblings()
    }

    /// Takes note of what other processes have done, and tidies up after them when they are gone. For the latter it must
    /// know which claims have a prepare under way.
    pub(super) fn catch_up(&self, is_under_way: impl Fn(&ClaimUid) -> bool) -> Result<(), Error> {
        self.store.catch_up().and_then(|()| self.notices.sweep(is_under_way)).map_err(Error::Record)
    }

    /// Whether another process may have prepared or unprepared claims lately.
    pub(super) fn may_have_news(&self) -> bool {
        self.store.is_outdated().unwrap_or(true)
    }

    /// The notice that a claim was unprepared, as it is when a prepare begins. One that cannot be read counts as a new one
    /// later.
    pub(super) fn notice(&self, uid: &ClaimUid) -> Notice {
        self.notices.look(uid).unwrap_or_else(|_| Notice::none())
    }

    /// The record of a claim that is to be prepared. An error if another process has unprepared it since its notice was
    /// looked at.
    pub(super) fn take_up(&self, uid: &ClaimUid, since: &Notice) -> Result<Option<Record>, Error> {
        let notice = self.notices.look(uid).map_err(Error::Record)?;
        if notice.calls_off(since) { Err(Error::CalledOff) } else { self.load(uid) }
    }

    /// The record of a claim that is to be unprepared. Prepares that other processes have under way are called off.
    pub(super) fn let_go(&self, uid: &ClaimUid) -> Result<Option<Record>, Error> {
        self.notices.leave(uid).map_err(Error::Record)?;
        self.load(uid)
    }

    pub(super) fn pool(&self) -> &str {
        &self.settings.pool
    }

    pub(super) fn load(&self, uid: &ClaimUid) -> Result<Option<Record>, Error> {
        self.store.load(uid).map_err(Error::Record)
    }

    /// See [`Store::has_part_at`].
    pub(super) fn has_part_at(&self, gpu: &GpuUuid, place: Placement) -> bool {
        self.store.has_part_at(gpu, place)
    }

    /// The records that were moved aside.
    pub(super) fn damage(&self) -> &Damage {
        self.store.damage()
    }

    /// The claims that have a record, and those with a name that had one.
    pub(super) fn claims(&self) -> BTreeSet<ClaimUid> {
        let states = [State::PrepareStarted, State::PrepareCompleted];
        let recorded = states.into_iter().flat_map(|state| self.store.in_state(state));
        recorded.chain(self.store.remnants()).collect()
    }

    /// See [`Store::name_of_remnant`].
    pub(super) fn name_of_remnant(&self, uid: &ClaimUid) -> Option<ClaimName> {
        self.store.name_of_remnant(uid)
    }

    /// The claims that are half prepared.
    pub(super) fn started(&self) -> Vec<ClaimUid> {
        self.store.in_state(State::PrepareStarted)
    }

    /// The claims that are prepared.
    pub(super) fn prepared(&self) -> Vec<ClaimUid> {
        self.store.in_state(State::PrepareCompleted)
    }

    /// Which GPUs claims were given by which names.
    pub(super) fn names(&self) -> Vec<(DeviceName, GpuUuid)> {
        self.store.names()
    }

    /// Whether nothing has to be done before containers can use what a completed record says. As long as nobody knows
    /// which GPUs there are, those of the claim are taken to be there. A part that was made since the last look is not seen
    /// yet.
    pub(super) fn is_current(&self, record: &Record, node: Option<&Node>) -> bool {
        record.boot_id == self.settings.boot_id
            && self.specs.exists(record.claim.uid.as_str())
            && node.is_none_or(|node| record.devices.iter().all(|device| device.is_in(node)))
    }

    /// What is to be written of a claim that may have what it was allocated.
    pub(super) fn admit(&self, claim: &Claim, plan: Plan) -> Result<Record, Error> {
        self.store.catch_up().map_err(Error::Record)?;
        plan.admit(&claim.uid, &self.store.holders(&plan.gpus())).map_err(Error::Plan)?;
        let kind = self.specs.kind();
        Ok(Record::started(claim, plan, &self.settings.boot_id, |device| kind.id(&cdi_name(&claim.uid, device))))
    }

    /// Whether it would be in vain to begin, as far as that is known before parts are made: a claim that would lack
    /// something may be tried again and again.
    pub(super) fn check(&self, record: &Record, node: &Node) -> Result<(), Error> {
        let found = self.look(node)?;
        // Before its parts are made, it would have the GPUs.
        self.spec_with(
            record,
            node,
            &found,
            |device, gpu| if device.makes_part() { Ok(None) } else { device.mig_device(gpu) },
        )
        .map(drop)
    }

    /// Takes note of how far a claim is: before something is done, and of what could not be.
    pub(super) fn note(&self, record: &Record) -> Result<(), Error> {
        self.store.save(record).map_err(Error::Record)
    }

    /// From started to completed, once everything is done.
    pub(super) fn complete(&self, mut record: Record, node: &Node) -> Result<Record, Error> {
        let spec = self.spec(&record, node, &self.look(node)?)?;
        self.specs.write(record.claim.uid.as_str(), &spec).map_err(Error::Spec)?;
        record.state = State::PrepareCompleted;
        self.store.save(&record).map_err(Error::Record)?;
        Ok(record)
    }

    /// What is to be written of a claim for which some parts have to be made once more.
    pub(super) fn anew(&self, record: Record, missing: &[usize]) -> Record {
        record.anew(&self.settings.boot_id, missing)
    }

    /// Whether what was made for a record is gone with an earlier boot: MIG devices do not outlive one.
    pub(super) fn is_of_earlier_boot(&self, record: &Record) -> bool {
        record.boot_id != self.settings.boot_id
    }

    /// From anything to started: what was made is about to be taken back, and no container can start with it.
    pub(super) fn withdraw(&self, record: &Record) -> Result<(), Error> {
        if record.state != State::PrepareStarted {
            self.store.save(&record.clone().taken_back()).map_err(Error::Record)?;
        }
        self.specs.remove(record.claim.uid.as_str()).map_err(Error::Spec)
    }

    /// Applies a completed record to another boot, or after its spec was lost.
    pub(super) fn renew(&self, mut record: Record, node: &Node) -> Result<Record, Error> {
        self.restore(&record, node, &self.look(node)?)?;
        if record.boot_id != self.settings.boot_id {
            record.boot_id.clone_from(&self.settings.boot_id);
            self.store.save(&record).map_err(Error::Record)?;
        }
        Ok(record)
    }

    /// Looks at what is there for specs to be made of.
    pub(super) fn look(&self, node: &Node) -> Result<Found, Error> {
        self.settings.sources.look(node.driver.version.as_deref()).map_err(Error::Incomplete)
    }

    /// Makes the spec of a record be what it should be now; answers whether it was not.
    ///
    /// While a GPU of the claim is gone, it has none. The ids that the kubelet was answered then lead nowhere, which
    /// fails the start of containers; otherwise they would lead to a minor that another GPU may have by now.
    pub(super) fn restore(&self, record: &Record, node: &Node, found: &Found) -> Result<bool, Error> {
        let name = record.claim.uid.as_str();
        match self.spec(record, node, found) {
            Ok(spec) => self.specs.write(name, &spec).map_err(Error::Spec),
            Err(gone @ (Error::Gone { .. } | Error::PartGone { .. })) => {
                if self.specs.exists(name) {
                    self.specs.remove(name).map_err(Error::Spec)?;
                }
                Err(gone)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes the spec of a record of which parts that were made, by the number of their devices, are gone. After a reboot
    /// that is as it should be: they are made again when the claim is prepared again.
    pub(super) fn forsake(&self, record: &Record, missing: &[usize]) -> Result<bool, Error> {
        let name = record.claim.uid.as_str();
        if self.specs.exists(name) {
            self.specs.remove(name).map_err(Error::Spec)?;
        }
        let mut lost = missing.iter().filter_map(|number| record.devices.get(*number));
        match lost.find_map(|device| Some((device, device.made.as_ref()?))) {
            Some((device, made)) if !self.is_of_earlier_boot(record) => {
                let (device, uuid) = (device.planned.wanted.device.clone(), made.uuid.clone());
                Err(Error::PartGone { device, uuid })
            }
            _ => Ok(false),
        }
    }

    fn spec(&self, record: &Record, node: &Node, found: &Found) -> Result<Spec, Error> {
        if let Some(device) = record.devices.iter().find(|device| !device.is_whole_in(node)) {
            let device = device.planned.wanted.device.clone();
            return Err(Error::Plan(PlanError::Partitioned { device }));
        }
        self.spec_with(record, node, found, RecordedDevice::mig_device)
    }

    fn spec_with(
        &self,
        record: &Record,
        node: &Node,
        found: &Found,
        mig_device: impl Fn(&RecordedDevice, &Gpu) -> Result<Option<MigTarget>, Error>,
    ) -> Result<Spec, Error> {
        let claim = &record.claim.uid;
        let mut targets = Vec::new();
        for device in &record.devices {
            let (name, uuid) = (&device.planned.wanted.device, &device.planned.gpu);
            let Some(gpu) = node.gpus.iter().find(|gpu| gpu.uuid == *uuid) else {
                return Err(Error::Gone { device: name.clone(), uuid: uuid.clone() });
            };
            targets.push(Target {
                name: cdi_name(claim, name),
                device: name.clone(),
                uuid: uuid.clone(),
                minor: gpu.minor,
                pci: gpu.pci,
                mig: mig_device(device, gpu)?,
            });
        }
        found.spec(self.specs.kind().clone(), &targets).map_err(Error::Incomplete)
    }

    /// From anything to absent. The record goes last, so that an interrupted release is taken up again.
    pub(super) fn release(&self, uid: &ClaimUid) -> Result<(), Error> {
        self.specs.remove(uid.as_str()).map_err(Error::Spec)?;
        self.store.remove(uid).map_err(Error::Record)
    }
}

/// Unique on the node for ever, and the same at each repetition: runtimes and kubelets cache it.
fn cdi_name(uid: &ClaimUid, device: &str) -> String {
    format!("{uid}-{device}")
}
