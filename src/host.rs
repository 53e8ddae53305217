//! EDGE to the file system: sysfs, procfs, devfs, the driver root, and files that survive a power cut.
//!
//! Every path goes through [`Roots`], so that tests and fake nodes can move all of them.

pub mod atomic;
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
}
