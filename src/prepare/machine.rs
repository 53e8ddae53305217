//! The steps of the state machine on disk. They block for as long as the disk takes, and expect their caller to hold
//! the lock of the claim, and to change anything those of its GPUs as well, as far as there is a record or a plan that
//! names them.
//!
//! ```text
//!             carry_out                effects, CDI spec
//!  absent ───────────────▶ PrepareStarted ──────────────▶ PrepareCompleted
//!    ▲                         │                              │   ▲
//!    └──────── release ────────┴─────────── release ──────────┘   └── renew, restore: the spec is written again
//! ```
//!
//! Whatever is interrupted leaves a record that says so, and the next call or the next start takes it back. A whole GPU
//! has no effects beside the spec; those that come later stand between the two writes of the record in `carry_out`, and
//! are reverted in `release` before the record goes.

use std::collections::BTreeSet;

use super::damage::Damage;
use super::record::{Record, State};
use super::store::Store;
use super::{Error, OpenError, Settings};
use crate::cdi::{self, Found, Spec, Target};
use crate::claim::plan::Plan;
use crate::claim::{Claim, ClaimUid};
use crate::device::{DeviceName, GpuUuid, Node};

#[derive(Debug)]
pub(super) struct Machine {
    settings: Settings,
    store: Store,
    specs: cdi::Writer,
}

// === impl Machine ===

impl Machine {
    /// Reads all records, takes back what was half done, and removes specs that nobody answers for.
    pub(super) fn open(settings: Settings) -> Result<Self, OpenError> {
        let store = Store::open(settings.claims_dir.clone()).map_err(OpenError::Records)?;
        let specs = cdi::Writer::open(settings.cdi_dir.clone(), settings.cdi_kind.clone()).map_err(OpenError::Specs)?;
        let machine = Self { settings, store, specs };
        for uid in machine.store.in_state(State::PrepareStarted) {
            match machine.release(&uid) {
                Ok(()) => tracing::info!(claim.uid = %uid, "took back a claim that was half prepared"),
                Err(error) => {
                    tracing::error!(claim.uid = %uid, %error, "cannot take back a claim that was half prepared");
                }
            }
        }
        for name in machine.specs.claims().map_err(OpenError::Specs)? {
            // The containers of a claim whose record was damaged still start from its spec.
            if ClaimUid::parse(&name).is_ok_and(|uid| machine.store.has(&uid)) {
                continue;
            }
            match machine.specs.remove(&name) {
                Ok(()) => tracing::info!(claim.uid = name, "removed a CDI spec without a claim record"),
                Err(error) => {
                    tracing::error!(claim.uid = name, %error, "cannot remove a CDI spec without a claim record");
                }
            }
        }
        Ok(machine)
    }

    pub(super) fn pool(&self) -> &str {
        &self.settings.pool
    }

    pub(super) fn load(&self, uid: &ClaimUid) -> Result<Option<Record>, Error> {
        self.store.load(uid).map_err(Error::Record)
    }

    /// The records that were moved aside.
    pub(super) fn damage(&self) -> &Damage {
        self.store.damage()
    }

    /// The claims that have a record.
    pub(super) fn claims(&self) -> BTreeSet<ClaimUid> {
        let states = [State::PrepareStarted, State::PrepareCompleted];
        states.into_iter().flat_map(|state| self.store.in_state(state)).collect()
    }

    /// The claims that are prepared.
    pub(super) fn prepared(&self) -> Vec<ClaimUid> {
        self.store.in_state(State::PrepareCompleted)
    }

    /// Which GPUs claims were given by which names.
    pub(super) fn names(&self) -> Vec<(DeviceName, GpuUuid)> {
        self.store.names()
    }

    /// Whether nothing has to be done before containers can use what a completed record says.
    pub(super) fn is_current(&self, record: &Record) -> bool {
        record.boot_id == self.settings.boot_id && self.specs.exists(record.claim.uid.as_str())
    }

    /// From absent to completed, or back to absent and an error.
    pub(super) fn carry_out(&self, claim: &Claim, plan: Plan, node: &Node) -> Result<Record, Error> {
        plan.admit(&claim.uid, &self.store.holders(&plan.gpus())).map_err(Error::Plan)?;
        let kind = self.specs.kind();
        let mut record =
            Record::started(claim, plan, &self.settings.boot_id, |device| kind.id(&cdi_name(&claim.uid, device)));
        // Before anything is written: a claim that would lack something may be tried again and again.
        let spec = self.spec(&record, node, &self.look(node)?)?;
        let result = self.apply(&mut record, &spec);
        if let Err(error) = result {
            if let Err(error) = self.release(&claim.uid) {
                tracing::error!(%error, "cannot take back a claim that was half prepared; the next call tries again");
            }
            return Err(error);
        }
        Ok(record)
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
    pub(super) fn restore(&self, record: &Record, node: &Node, found: &Found) -> Result<bool, Error> {
        let spec = self.spec(record, node, found)?;
        self.specs.write(record.claim.uid.as_str(), &spec).map_err(Error::Spec)
    }

    fn spec(&self, record: &Record, node: &Node, found: &Found) -> Result<Spec, Error> {
        let claim = &record.claim.uid;
        let mut targets = Vec::new();
        for device in &record.devices {
            let (device, uuid) = (&device.planned.wanted.device, &device.planned.gpu);
            let Some(gpu) = node.gpus.iter().find(|gpu| gpu.uuid == *uuid) else {
                return Err(Error::Gone { device: device.clone(), uuid: uuid.clone() });
            };
            let name = cdi_name(claim, device);
            targets.push(Target { name, device: device.clone(), uuid: uuid.clone(), minor: gpu.minor, pci: gpu.pci });
        }
        found.spec(self.specs.kind().clone(), &targets).map_err(Error::Incomplete)
    }

    /// From anything to absent. The record goes last, so that an interrupted release is taken up again.
    pub(super) fn release(&self, uid: &ClaimUid) -> Result<(), Error> {
        self.specs.remove(uid.as_str()).map_err(Error::Spec)?;
        self.store.remove(uid).map_err(Error::Record)
    }

    fn apply(&self, record: &mut Record, spec: &Spec) -> Result<(), Error> {
        self.store.save(record).map_err(Error::Record)?;
        self.specs.write(record.claim.uid.as_str(), spec).map_err(Error::Spec)?;
        record.state = State::PrepareCompleted;
        self.store.save(record).map_err(Error::Record)
    }
}

/// Unique on the node for ever, and the same at each repetition: runtimes and kubelets cache it.
fn cdi_name(uid: &ClaimUid, device: &str) -> String {
    format!("{uid}-{device}")
}
