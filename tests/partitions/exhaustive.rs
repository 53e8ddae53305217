//! Every set of parts of every board: whether the counters admit it, and whether the GPU has what it takes.

use std::collections::BTreeMap;

use gpu_dra_plugin::device::mig::{Placement, Profile};
use gpu_dra_plugin::slice::{Counters, Counting, Device, Layout, pool_in};

use crate::boards::{self, Board};
use crate::node;

/// A device as the scheduler sees it, and what it is; the whole GPU is no part.
struct Offered<'a> {
    device: Device,
    part: Option<(&'a Profile, Placement)>,
}

fn offered(board: &Board, counting: Counting) -> (Counters, Vec<Offered<'_>>) {
    let pool = pool_in(Layout { counting, ..Layout::default() }, "node-a", &node(board, 1));
    let [counters, devices]: [_; 2] = pool.slices.try_into().unwrap();
    let part = |device: &Device| {
        let mut all =
            board.profiles.iter().flat_map(|profile| profile.placements.iter().map(move |place| (profile, *place)));
        let ends = |(profile, place): &(&Profile, Placement)| format!("-{}-{}", profile.id, place.start);
        all.find(|part| device.name.as_str().ends_with(&ends(part)))
    };
    let offered = |device: &Device| Offered { device: device.clone(), part: part(device) };
    (counters.shared_counters[0].counters.clone(), devices.devices.iter().map(offered).collect())
}

/// What is left when a device is taken as well; `None` where the counters do not suffice.
fn take(left: &Counters, device: &Device) -> Option<Counters> {
    let mut left = left.clone();
    let consumed: Vec<_> = device.consumes_counters.values().collect();
    assert_eq!(consumed.len(), 1, "every device consumes of its GPU's set");
    for (counter, amount) in consumed[0] {
        let counter = left.get_mut(counter).unwrap();
        *counter = counter.checked_sub(*amount)?;
    }
    Some(left)
}

/// The rules of the silicon: no two overlap, of no profile there are too many, and of no kind of engine.
fn is_realisable(board: &Board, chosen: &[&Offered]) -> bool {
    let parts: Vec<_> = chosen.iter().filter_map(|offered| offered.part).collect();
    if parts.len() < chosen.len() {
        return chosen.len() == 1;
    }
    let overlap =
        parts.iter().enumerate().any(|(at, (_, one))| parts[..at].iter().any(|(_, other)| one.overlaps(*other)));
    let mut counts = BTreeMap::<u32, u32>::new();
    for (profile, _) in &parts {
        *counts.entry(profile.id).or_default() += 1;
    }
    let is_within = |engines: fn(&Profile) -> u32| {
        let total = board.profiles.iter().map(engines).max().unwrap();
        parts.iter().map(|(profile, _)| engines(profile)).sum::<u32>() <= total
    };
    !overlap
        && board
            .profiles
            .iter()
            .all(|profile| counts.get(&profile.id).is_none_or(|count| *count <= profile.max_instances))
        && is_within(|profile| profile.decoders)
        && is_within(|profile| profile.encoders)
        && is_within(|profile| profile.jpeg_engines)
        && is_within(|profile| profile.ofa_engines)
}

/// What was not asked when it was decided: memory, multiprocessors, copy engines and compute slices.
fn assert_within_bounds(board: &Board, chosen: &[&Offered]) {
    let bounds: [fn(&Profile) -> u64; 4] = [
        |profile| profile.memory_mib,
        |profile| profile.multiprocessors.into(),
        |profile| profile.copy_engines.into(),
        |profile| profile.slices.into(),
    ];
    for (what, amount) in bounds.into_iter().enumerate() {
        let total = board.profiles.iter().map(amount).max().unwrap();
        let used: u64 = chosen.iter().filter_map(|offered| offered.part).map(|(profile, _)| amount(profile)).sum();
        let names: Vec<_> = chosen.iter().map(|offered| offered.device.name.as_str()).collect();
        assert!(used <= total, "{}: {names:?} have {used} of {total} of bound {what}", board.name);
    }
}

/// Tries every set that extends `chosen` by devices from `next` on. What one of two refuses, it refuses with more as well,
/// so only sets that both admit are extended. Returns how many those are.
fn search<'a>(
    board: &Board,
    left: &Counters,
    all: &'a [Offered<'a>],
    next: usize,
    chosen: &mut Vec<&'a Offered<'a>>,
) -> usize {
    let mut sets = 1;
    assert_within_bounds(board, chosen);
    for (at, offered) in all.iter().enumerate().skip(next) {
        let rest = take(left, &offered.device);
        chosen.push(offered);
        let names = || chosen.iter().map(|offered| offered.device.name.to_string()).collect::<Vec<_>>();
        assert_eq!(rest.is_some(), is_realisable(board, chosen), "{}: {:?}", board.name, names());
        if let Some(rest) = rest {
            sets += search(board, &rest, all, at + 1, chosen);
        }
        chosen.pop();
    }
    sets
}

#[test]
fn the_counters_admit_what_a_gpu_has_and_nothing_else() {
    for board in boards::all() {
        let sets = [Counting::Exact, Counting::Light].map(|counting| {
            let (counters, all) = offered(&board, counting);
            search(&board, &counters, &all, 0, &mut Vec::new())
        });
        assert!(sets[0] > 30 && sets[0] == sets[1], "{}: {sets:?}", board.name);
    }
}

/// Nine counters do on the boards that there are most of. More make the scheduler slower.
#[test]
fn there_are_no_more_counters_than_needed() {
    let names = |board: &Board| {
        let counters = offered(board, Counting::Exact).0;
        counters.into_keys().filter(|counter| !counter.starts_with("memory-slice-")).collect::<Vec<_>>()
    };
    for board in boards::all() {
        let expected: &[&str] = match board.name {
            // One profile has all four decoders, another none.
            "rtx-pro-6000" => &["decoders", "media-engine"],
            _ => &["media-engine"],
        };
        assert_eq!(names(&board), expected, "{}", board.name);
    }
}
