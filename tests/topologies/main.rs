//! Every machine, from its topology file to what the plugin publishes and what a container gets.
//!
//! ```text
//!  machines  the real binary on a fake node ──▶ slices == golden, every example prepared, every CDI spec injected
//!  divided   the same with GPUs in parts, that an administrator or the plugin makes ──▶ every example prepared or pending
//!  golden    tests/golden/topologies/<machine>.json: what is published, pinned
//!  nvidia    golden ⇔ topology file: names, types and values of NVIDIA's own driver
//!  links     golden ⇔ topology file: which devices share an NVLink attribute
//!  driver_roots  the real binary on every layout of the driver ──▶ its log says where that is and why it was chosen
//!  specs     tests/golden/cdi: the CDI spec of every machine and of every way to install the driver, pinned and injected
//!  selectors golden ⇔ deploy/: the CEL of classes and examples, and what people wrote for NVIDIA's driver
//! ```
//!
//! Only `machines`, `divided` and `driver_roots` start the plugin. The first proves that the golden files are what is
//! published, so that the others can read those. What they expect is computed here, from the topology file and from what
//! is documented of NVIDIA's driver, never with code of the plugin.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its helpers"
)]

#[path = "../support/node.rs"]
mod node;

mod container;
mod divided;
mod driver_roots;
mod examples;
mod golden;
mod links;
mod machines;
mod nvidia;
mod selectors;
mod specs;

use serde_json::Value;
use topology::{Gpu, Topology};

/// A machine and the devices that are published for it.
struct Machine {
    name: &'static str,
    topology: Topology,
    slices: Vec<Value>,
}

// === impl Machine ===

impl Machine {
    /// All of them, with what their golden files say.
    fn all() -> impl Iterator<Item = Self> {
        let golden = |name| Self { name, topology: topology(name), slices: golden::read(name) };
        Topology::names().map(golden)
    }

    fn devices(&self) -> impl Iterator<Item = &Value> {
        self.slices.iter().flat_map(|slice| slice["spec"]["devices"].as_array().unwrap())
    }

    /// The device of a GPU, by UUID.
    fn device(&self, gpu: &Gpu) -> &Value {
        self.devices().find(|device| device["attributes"]["uuid"]["string"] == *gpu.uuid).unwrap()
    }
}

fn topology(name: &str) -> Topology {
    Topology::builtin(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}
