//! EDGE to the file system: sysfs, procfs, devfs, the driver root, and files that survive a power cut.
//!
//! Every path goes through [`Roots`], so that tests and fake nodes can move all of them.

pub mod atomic;
pub mod capability;
pub mod driver_root;
pub mod node;
mod numa;
pub mod pci;

use std::path::PathBuf;

/// Where the machine's file systems are, as this process sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// `/sys`
    pub sys: PathBuf,
    /// `/proc`
    pub proc: PathBuf,
    /// `/dev`
    pub dev: PathBuf,
    /// Where else device nodes can be; see [`Devices`](node::Devices::elsewhere).
    pub other_devs: Vec<node::DevRoot>,
    /// Whether regular files in `dev` count as device nodes; see [`Devices`](node::Devices::placeholders).
    pub placeholders: bool,
}

// === impl Roots ===

impl Roots {
    /// The device nodes. The container runtime sees `/dev` at the same path as this process.
    pub fn devices(&self) -> node::Devices {
        let Self { sys: _, proc, dev, other_devs, placeholders } = self.clone();
        node::Devices { local: dev.clone(), host: dev, elsewhere: other_devs, proc, placeholders }
    }
}
