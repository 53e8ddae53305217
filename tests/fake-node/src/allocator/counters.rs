//! What devices take away from each other without being the same device: counters that they share.
//!
//! A set of counters says how much there is, a device what it takes as long as it is allocated. A device that would take
//! more than is left is not free. As in the real allocator, admin access makes no difference to that, and what a device
//! takes is forgotten when its slice no longer has it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::AllocateError;
use super::model::{self, CounterSet, DeviceId, Slice};
use super::pools::Candidate;
use crate::cel::Quantity;

/// One counter of one set of a pool.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CounterId {
    set: String,
    counter: String,
}

/// The counters of all pools.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// What there is, by `driver/pool`.
    total: BTreeMap<String, BTreeMap<CounterId, Quantity>>,
}

// === impl CounterId ===

impl fmt::Display for CounterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.counter, self.set)
    }
}

// === impl Counters ===

impl Counters {
    /// Takes note of the sets of a pool.
    pub(super) fn add(&mut self, pool: &str, slices: &[&Slice]) -> Result<(), AllocateError> {
        let sets = slices.iter().flat_map(|slice| &slice.spec.shared_counters);
        let total = sets.map(amounts).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        self.total.insert(pool.to_owned(), total);
        Ok(())
    }

    /// A counter that a device takes from and that its pool does not have.
    pub(super) fn unknown<'c>(&self, candidate: &'c Candidate) -> Option<&'c CounterId> {
        let total = self.total.get(&candidate.pool());
        candidate.consumes.keys().find(|counter| total.is_none_or(|total| !total.contains_key(counter)))
    }

    /// Whether there is enough left for a device beside others.
    pub(super) fn suffice(&self, candidate: &Candidate, others: &[&Candidate]) -> bool {
        let pool = candidate.pool();
        candidate.consumes.iter().all(|(counter, wanted)| {
            let others = others.iter().filter(|other| other.pool() == pool);
            let others = others.filter_map(|other| other.consumes.get(counter).copied());
            let taken: Quantity = others.chain([*wanted]).sum();
            self.total.get(&pool).and_then(|total| total.get(counter)).is_some_and(|total| taken <= *total)
        })
    }
}

/// What a device takes.
pub(super) fn consumption(device: &model::Device) -> Result<BTreeMap<CounterId, Quantity>, AllocateError> {
    let consumption = device.consumes_counters.iter().map(amounts).collect::<Result<Vec<_>, _>>()?;
    Ok(consumption.into_iter().flatten().collect())
}

/// Those of `candidates` that are allocated and take from counters.
pub(super) fn consumers<'a>(candidates: &'a [Candidate], in_use: &BTreeSet<DeviceId>) -> Vec<&'a Candidate> {
    candidates.iter().filter(|candidate| !candidate.consumes.is_empty() && in_use.contains(&candidate.id)).collect()
}

fn amounts(set: &CounterSet) -> Result<Vec<(CounterId, Quantity)>, AllocateError> {
    let amount = |(counter, amount): (&String, &model::Counter)| {
        let value = amount.value.parse().map_err(|error| AllocateError::Invalid {
            subject: format!("counter {counter} of {}", set.name),
            reason: format!("{error}"),
        })?;
        Ok((CounterId { set: set.name.clone(), counter: counter.clone() }, value))
    };
    set.counters.iter().map(amount).collect()
}
