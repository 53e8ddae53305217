//! What the parts of a GPU take from each other, as few numbers as will do.
//!
//! Each memory slice is there once. That keeps parts from overlapping, and almost all else from being given out twice:
//! what has more memory has more of everything. What that leaves over is found by looking: of each kind of engine, and
//! of instances of each profile, is there a set of places without overlap that has more than the GPU? On boards with
//! seven compute slices that is so of the engines that come with one instance alone (`+me`), so one more counter keeps
//! everything in bounds.

use std::collections::BTreeMap;

use super::Count;
use crate::device::mig::{Mig, Placement, Profile};
use crate::slice::Counters;

/// The counters of a GPU.
pub(super) struct Stock {
    slices: u32,
    /// What memory slices do not keep in bounds.
    scarce: Vec<Scarce>,
}

/// A thing of which the GPU has less than its places could hold.
struct Scarce {
    counter: String,
    /// How much there is.
    total: u64,
    /// How much of it a profile has, by its id; nothing of those that are not named.
    takes: BTreeMap<u32, u64>,
}

/// Combinations of places that are told apart in the search for what is scarce. Real boards have some dozens; with more,
/// things are taken to be scarce, which is never wrong.
const STATES: usize = 4096;

// === impl Stock ===

impl Stock {
    pub(super) fn of(mig: &Mig) -> Self {
        let mut stock = Self { slices: mig.memory_slices(), scarce: Vec::new() };
        for candidate in candidates(&mig.profiles) {
            if candidate.total < stock.most(&mig.profiles, &candidate) {
                stock.scarce.push(candidate);
            }
        }
        stock
    }

    /// All there is.
    pub(super) fn all(&self) -> Counters {
        let scarce = self.scarce.iter().map(|scarce| (scarce.counter.clone(), scarce.total));
        self.of_place(Placement { start: 0, size: self.slices }).into_iter().chain(scarce).collect()
    }

    /// What a part takes.
    pub(super) fn of_part(&self, profile: &Profile, placement: Placement) -> Counters {
        let takes = |scarce: &Scarce| Some((scarce.counter.clone(), *scarce.takes.get(&profile.id)?));
        self.of_place(placement).into_iter().chain(self.scarce.iter().filter_map(takes)).collect()
    }

    /// The memory slices of a place, as far as the GPU has them.
    pub(super) fn of_place(&self, placement: Placement) -> Counters {
        (placement.start..placement.end().min(self.slices)).map(|slice| (format!("memory-slice-{slice}"), 1)).collect()
    }

    /// Whether there is too little of something for two.
    pub(super) fn is_short(&self, one: &Counters, other: &Counters) -> bool {
        let both = |counter: &str| {
            one.get(counter).into_iter().chain(other.get(counter)).fold(0, |sum: u64, n| sum.saturating_add(*n))
        };
        self.all().iter().any(|(counter, total)| both(counter) > *total)
    }

    /// The most of a thing that a set of parts has which the counters so far admit.
    fn most(&self, profiles: &[Profile], candidate: &Scarce) -> u64 {
        // Up to each slice: what is used of what is scarce → the most of the candidate.
        let mut reached = vec![BTreeMap::<Vec<u64>, u64>::new(); self.slices as usize + 1];
        reached[0].insert(vec![0; self.scarce.len()], 0);
        for start in 0..self.slices {
            for (used, amount) in std::mem::take(&mut reached[start as usize]) {
                let mut reach = |end: u32, used: Vec<u64>, amount: u64| {
                    let most = reached[end as usize].entry(used).or_default();
                    *most = amount.max(*most);
                };
                for profile in profiles {
                    let takes = |scarce: &Scarce| scarce.takes.get(&profile.id).copied().unwrap_or(0);
                    let used: Vec<_> = self
                        .scarce
                        .iter()
                        .zip(&used)
                        .map(|(scarce, used)| used.saturating_add(takes(scarce)))
                        .collect();
                    if self.scarce.iter().zip(&used).all(|(scarce, used)| *used <= scarce.total) {
                        let amount = amount.saturating_add(takes(candidate));
                        let places = profile.places().filter(|place| place.start == start);
                        places.for_each(|place| reach(place.end(), used.clone(), amount));
                    }
                }
                reach(start + 1, used, amount);
            }
            if reached.iter().map(BTreeMap::len).sum::<usize>() > STATES {
                return u64::MAX;
            }
        }
        reached.last().and_then(|ends| ends.values().max().copied()).unwrap_or(0)
    }
}

/// What may be scarce. A GPU has as many engines of a kind as the profile with the most. Memory and multiprocessors are
/// divided by the slice, and rounded; copy engines are not bound to a place.
fn candidates(profiles: &[Profile]) -> impl Iterator<Item = Scarce> {
    let engines: [(&str, Count); 4] = [
        // First, because who has these has all that come with one instance alone.
        ("media-engine", |profile| profile.ofa_engines),
        ("decoders", |profile| profile.decoders),
        ("jpeg-engines", |profile| profile.jpeg_engines),
        ("encoders", |profile| profile.encoders),
    ];
    let engines = engines.into_iter().map(|(counter, count)| {
        let takes = profiles.iter().map(|profile| (profile.id, count(profile).into())).filter(|(_, count)| *count > 0);
        let total = profiles.iter().map(count).max().unwrap_or(0).into();
        Scarce { counter: counter.to_owned(), total, takes: takes.collect() }
    });
    let instances = profiles.iter().map(|profile| {
        let counter = format!("profile-{}", profile.id);
        // None at all is no number that a profile with places can have.
        Scarce { counter, total: profile.max_instances.max(1).into(), takes: BTreeMap::from([(profile.id, 1)]) }
    });
    engines.chain(instances)
}
