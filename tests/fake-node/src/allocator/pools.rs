//! The devices that a node can use, in the order in which they are tried.

use std::collections::{BTreeMap, BTreeSet};

use super::AllocateError;
use super::counters::{self, CounterId, Counters};
use super::model::{Device, DeviceId, Slice};
use crate::cel;

/// All pools with a slice that the node can use.
#[derive(Debug, Default)]
pub(super) struct Pools {
    /// Devices of complete pools.
    pub(super) candidates: Vec<Candidate>,
    /// Names of pools of which slices are missing.
    pub(super) incomplete: Vec<String>,
    /// What is wrong with pools that cannot be used, by `driver/pool`.
    pub(super) invalid: BTreeMap<String, String>,
    /// What devices of one pool share.
    pub(super) counters: Counters,
}

/// A device.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) id: DeviceId,
    pub(super) device: Device,
    /// Whether only this node can use it.
    pub(super) local: bool,
    /// What it takes from the counters of its pool.
    pub(super) consumes: BTreeMap<CounterId, cel::Quantity>,
    /// What it needs that is left out here.
    pub(super) unsupported: Option<&'static str>,
    /// As expressions see it, or why they cannot.
    pub(super) cel: Result<cel::Device, cel::CelError>,
}

// === impl Pools ===

impl Pools {
    pub(super) fn gather(node: &str, slices: &[Slice]) -> Result<Self, AllocateError> {
        let mut by_pool = BTreeMap::<(&str, &str), Vec<&Slice>>::new();
        for slice in slices {
            by_pool.entry((&slice.spec.driver, &slice.spec.pool.name)).or_default().push(slice);
        }

        let mut pools = Self::default();
        for ((driver, name), mut slices) in by_pool {
            let pool = format!("{driver}/{name}");
            let newest = slices.iter().map(|slice| slice.spec.pool.generation).max();
            slices.retain(|slice| Some(slice.spec.pool.generation) == newest);
            // Slices for other nodes count, but nothing else about them matters.
            let is_complete = slices.iter().all(|slice| slice.spec.pool.resource_slice_count == slices.len());
            slices.retain(|slice| slice.spec.node_name.as_deref().is_none_or(|name| name == node));
            slices.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
            if slices.is_empty() {
                continue;
            }
            if is_complete { pools.add(&pool, &slices)? } else { pools.incomplete.push(pool) }
        }
        Ok(pools)
    }

    fn add(&mut self, pool: &str, slices: &[&Slice]) -> Result<(), AllocateError> {
        self.counters.add(pool, slices)?;
        let mut names = BTreeSet::new();
        for slice in slices {
            for object in &slice.spec.devices {
                let device = serde_json::from_value::<Device>(object.clone());
                let device = device.map_err(|source| AllocateError::Malformed {
                    kind: "device of ResourceSlice",
                    name: slice.metadata.name.clone(),
                    source,
                })?;
                if !names.insert(device.name.clone()) {
                    self.invalid.insert(pool.to_owned(), format!("duplicate device name {}", device.name));
                }
                let driver = slice.spec.driver.clone();
                let cel = cel::Device::new(&driver, object);
                let id = DeviceId { driver, pool: slice.spec.pool.name.clone(), device: device.name.clone() };
                let local = slice.spec.node_name.is_some();
                let unsupported = if !local && !slice.spec.all_nodes {
                    Some("is in a slice that selects its nodes by labels or by device")
                } else if device.allow_multiple_allocations {
                    Some("can be allocated several times")
                } else {
                    None
                };
                let consumes = counters::consumption(&device)?;
                let candidate = Candidate { id, device, local, consumes, unsupported, cel };
                if let Some(counter) = self.counters.unknown(&candidate) {
                    let why =
                        format!("device {} consumes {counter}, which the pool does not have", candidate.id.device);
                    self.invalid.insert(pool.to_owned(), why);
                }
                self.candidates.push(candidate);
            }
        }
        Ok(())
    }
}

// === impl Candidate ===

impl Candidate {
    /// `driver/pool`.
    pub(super) fn pool(&self) -> String {
        format!("{}/{}", self.id.driver, self.id.pool)
    }

    /// The value of a name in a map of the device, whose own names need no domain.
    pub(super) fn lookup<'a, T>(&self, values: &'a BTreeMap<String, T>, name: &str) -> Option<&'a T> {
        let short = || name.strip_prefix(&self.id.driver)?.strip_prefix('/');
        values.get(name).or_else(|| values.get(short()?)).or_else(|| {
            let qualified = format!("{}/{name}", self.id.driver);
            (!name.contains('/')).then(|| values.get(&qualified)).flatten()
        })
    }
}
