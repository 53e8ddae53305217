//! The examples of `deploy/examples`, and on which machines they can run.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use fake_node::release::Release;
use topology::Topology;
use topology::mig::Profile;

use crate::links;

/// What the example `mig-by-memory` asks for.
const EIGHTEEN_GIB: u64 = 18 << 10;

/// A directory with a pod, as users apply it.
pub(crate) struct Example {
    /// The directory.
    pub(crate) name: &'static str,
    /// The oldest release whose API has all of its fields.
    pub(crate) since: Release,
    /// Whether what it asks for is on offer.
    pub(crate) can_run_on: fn(&Offer<'_>) -> bool,
    /// Whether devices, in the order of its requests, are what it asks for.
    pub(crate) is_satisfied_by: fn(&Offer<'_>, &[Device<'_>]) -> bool,
}

/// What a free machine has for claims.
pub(crate) struct Offer<'a> {
    /// The machine.
    pub(crate) machine: &'a Topology,
    /// The GPUs that can be had as a whole, by index.
    pub(crate) whole: Vec<usize>,
    /// The parts that can be had, as a GPU and a profile; not how many of each.
    pub(crate) parts: Vec<(usize, &'a Profile)>,
}

/// A GPU by index, and the profile if it is only a part of that.
pub(crate) type Device<'a> = (usize, Option<&'a Profile>);

/// All of them.
pub(crate) const ALL: [Example; 5] = [
    Example {
        name: "one-gpu",
        since: Release::V1_32,
        can_run_on: |offer| !offer.whole.is_empty(),
        is_satisfied_by: |_, devices| matches!(devices, [(_, None)]),
    },
    Example {
        name: "two-gpus-one-nvlink-domain",
        since: Release::V1_32,
        can_run_on: |offer| links::has_joined(offer.machine, &offer.whole),
        is_satisfied_by: |offer, devices| match devices {
            [(a, None), (b, None)] => a != b && links::joined(offer.machine, *a, *b),
            _ => false,
        },
    },
    Example {
        name: "mig-1g",
        since: Release::V1_32,
        can_run_on: |offer| offer.parts.iter().any(|(_, part)| part.slices == 1),
        is_satisfied_by: |_, devices| matches!(devices, [(_, Some(part))] if part.slices == 1),
    },
    Example {
        name: "mig-by-memory",
        since: Release::V1_36,
        can_run_on: |offer| offer.least_with(EIGHTEEN_GIB).is_some(),
        is_satisfied_by: |offer, devices| match devices {
            [(_, Some(part))] => Some(part.memory_mib) == offer.least_with(EIGHTEEN_GIB),
            _ => false,
        },
    },
    Example {
        name: "mig-3g-and-4g-on-one-gpu",
        since: Release::V1_32,
        can_run_on: |offer| {
            let has = |gpu, slices| offer.parts.iter().any(|(of, part)| (*of, part.slices) == (gpu, slices));
            offer.parts.iter().any(|(gpu, _)| has(*gpu, 3) && has(*gpu, 4))
        },
        is_satisfied_by: |_, devices| match devices {
            [(a, Some(large)), (b, Some(small))] => a == b && (large.slices, small.slices) == (4, 3),
            _ => false,
        },
    },
];

/// Where they are.
pub(crate) fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/examples")
}

// === impl Offer ===

impl<'a> Offer<'a> {
    /// A machine of which no GPU is divided.
    pub(crate) fn whole(machine: &'a Topology) -> Self {
        Self { machine, whole: (0..machine.gpus.len()).collect(), parts: Vec::new() }
    }

    /// The memory in MiB of the smallest part that has so many.
    fn least_with(&self, mib: u64) -> Option<u64> {
        self.parts.iter().map(|(_, part)| part.memory_mib).filter(|memory| *memory >= mib).min()
    }
}

// === impl Example ===

impl Example {
    /// Its manifest.
    pub(crate) fn manifest(&self) -> String {
        fs::read_to_string(directory().join(self.name).join("pod.yaml")).unwrap()
    }
}

#[test]
fn every_example_that_is_shipped_is_tried() {
    let shipped: BTreeSet<_> =
        fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(shipped, ALL.iter().map(|example| example.name.to_owned()).collect());
}
