//! The search: request by request, alternative by alternative, device by device, back from every dead end.

use std::collections::{BTreeSet, HashMap};

use super::AllocateError;
use super::constraint::Constraint;
use super::counters::consumers;
use super::model::DeviceId;
use super::pools::{Candidate, Pools};
use super::request::{Alternative, Count, Request};

/// After how many devices looked at the search gives up: some seconds of work, and more than any sensible claim needs.
const MAX_STEPS: usize = 200_000;

/// A device for a request.
#[derive(Clone, Copy)]
pub(super) struct Choice<'a> {
    pub(super) alternative: &'a Alternative<'a>,
    pub(super) candidate: &'a Candidate,
}

/// A search in progress.
pub(super) struct Search<'a> {
    pools: &'a Pools,
    requests: &'a [Request<'a>],
    constraints: &'a [Constraint<'a>],
    in_use: &'a BTreeSet<DeviceId>,
    /// Those of them that take from counters.
    consumers: Vec<&'a Candidate>,
    chosen: Vec<Choice<'a>>,
    /// What selectors said, by alternative and device.
    selected: HashMap<(*const Alternative<'a>, usize), bool>,
    steps: usize,
}

// === impl Search ===

impl<'a> Search<'a> {
    pub(super) fn new(
        pools: &'a Pools,
        requests: &'a [Request<'a>],
        constraints: &'a [Constraint<'a>],
        in_use: &'a BTreeSet<DeviceId>,
    ) -> Self {
        let (chosen, selected) = (Vec::new(), HashMap::new());
        let consumers = consumers(&pools.candidates, in_use);
        Self { pools, requests, constraints, in_use, consumers, chosen, selected, steps: 0 }
    }

    /// The first solution.
    pub(super) fn run(mut self) -> Result<Option<Vec<Choice<'a>>>, AllocateError> {
        for alternative in self.requests.iter().flat_map(|request| &request.alternatives) {
            if let (Count::All, Some(pool)) = (alternative.count, self.pools.incomplete.first()) {
                return Err(AllocateError::PoolIncomplete { request: alternative.name.clone(), pool: pool.clone() });
            }
        }
        Ok(self.satisfy(0)?.then_some(self.chosen))
    }

    /// Satisfies all requests from `at` on.
    fn satisfy(&mut self, at: usize) -> Result<bool, AllocateError> {
        let Some(request) = self.requests.get(at) else { return Ok(true) };
        for alternative in &request.alternatives {
            let found = match alternative.count {
                Count::Exactly(count) => self.pick(at, alternative, count, 0)?,
                Count::All => self.pick_all(at, alternative)?,
            };
            if found {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Finds `left` devices from the `first` on, and then all that the later requests need.
    fn pick(
        &mut self,
        at: usize,
        alternative: &'a Alternative<'a>,
        left: usize,
        first: usize,
    ) -> Result<bool, AllocateError> {
        if left == 0 {
            return self.satisfy(at + 1);
        }
        for index in first..self.pools.candidates.len() {
            let candidate = &self.pools.candidates[index];
            if !self.is_free(alternative, candidate) || !self.selects(alternative, index)? {
                continue;
            }
            if self.choose(alternative, candidate)? {
                if self.pick(at, alternative, left - 1, index + 1)? {
                    return Ok(true);
                }
                self.chosen.pop();
            }
        }
        Ok(false)
    }

    /// Takes all devices that the request selects; one that cannot be had is the end of it.
    fn pick_all(&mut self, at: usize, alternative: &'a Alternative<'a>) -> Result<bool, AllocateError> {
        let before = self.chosen.len();
        for index in 0..self.pools.candidates.len() {
            let candidate = &self.pools.candidates[index];
            let taken = !self.selects(alternative, index)?
                || self.is_free(alternative, candidate) && self.choose(alternative, candidate)?;
            if !taken {
                self.chosen.truncate(before);
                return Ok(false);
            }
        }
        if self.chosen.len() > before && self.satisfy(at + 1)? {
            return Ok(true);
        }
        self.chosen.truncate(before);
        Ok(false)
    }

    fn is_free(&self, alternative: &Alternative<'_>, candidate: &Candidate) -> bool {
        let is_chosen = |choice: &Choice<'_>| !choice.alternative.is_admin() && choice.candidate.id == candidate.id;
        alternative.is_admin() || !self.in_use.contains(&candidate.id) && !self.chosen.iter().any(is_chosen)
    }

    fn selects(&mut self, alternative: &'a Alternative<'a>, index: usize) -> Result<bool, AllocateError> {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err(AllocateError::TooHard(MAX_STEPS));
        }
        let key = (std::ptr::from_ref(alternative), index);
        if let Some(selected) = self.selected.get(&key) {
            return Ok(*selected);
        }
        let selected = alternative.selects(&self.pools.candidates[index])?;
        self.selected.insert(key, selected);
        Ok(selected)
    }

    /// Adds a device that is selected and free, unless counters, a taint or a constraint forbid it.
    fn choose(&mut self, alternative: &'a Alternative<'a>, candidate: &'a Candidate) -> Result<bool, AllocateError> {
        let pool = candidate.pool();
        if let Some(reason) = self.pools.invalid.get(&pool) {
            return Err(AllocateError::PoolInvalid { pool, reason: reason.clone() });
        }
        if let Some(unsupported) = candidate.unsupported {
            return Err(AllocateError::Unsupported(format!("device {} {unsupported}", candidate.id)));
        }
        let others = self.consumers.iter().copied().chain(self.chosen.iter().map(|choice| choice.candidate));
        let others: Vec<_> = others.collect();
        if !self.pools.counters.suffice(candidate, &others) || !alternative.tolerates(candidate) {
            return Ok(false);
        }
        for constraint in self.constraints.iter().filter(|constraint| constraint.concerns(&alternative.name)) {
            let others = self.chosen.iter().filter(|choice| constraint.concerns(&choice.alternative.name));
            if !constraint.allows(candidate, others.map(|choice| choice.candidate)) {
                return Ok(false);
            }
        }
        self.chosen.push(Choice { alternative, candidate });
        Ok(true)
    }
}
