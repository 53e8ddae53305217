//! The examples of `deploy/examples`, and on which machines they can run.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use topology::Topology;

use crate::links;

/// A directory with a pod, as users apply it.
pub(crate) struct Example {
    /// The directory.
    pub(crate) name: &'static str,
    /// Whether a free machine has the devices that it asks for.
    pub(crate) can_run_on: fn(&Topology) -> bool,
    /// Whether GPUs, by index, are what it asks for.
    pub(crate) is_satisfied_by: fn(&Topology, &[usize]) -> bool,
}

/// All of them.
pub(crate) const ALL: [Example; 2] = [
    Example {
        name: "one-gpu",
        can_run_on: |machine| !machine.gpus.is_empty(),
        is_satisfied_by: |_, gpus| gpus.len() == 1,
    },
    Example {
        name: "two-gpus-one-nvlink-domain",
        can_run_on: links::has_joined,
        is_satisfied_by: |machine, gpus| matches!(gpus, [a, b] if links::joined(machine, *a, *b)),
    },
];

/// Where they are.
pub(crate) fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/examples")
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
