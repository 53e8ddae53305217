//! Keeps the fake node away from machines with a real driver.
//!
//! There it would publish GPUs that do not exist beside ones that do, and its device nodes would open real GPUs.

use std::path::{Path, PathBuf};

/// A real NVIDIA driver is loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a real NVIDIA driver is loaded on this machine ({} exists): run the fake node on a machine without one", found.display())]
pub struct RealDriver {
    /// What gives it away.
    pub found: PathBuf,
}

/// Says no where the kernel has a real NVIDIA driver. The roots are `/proc` and `/sys`, but for tests.
pub fn refuse_real_driver(proc_root: &Path, sys_root: &Path) -> Result<(), RealDriver> {
    for found in [proc_root.join("driver/nvidia/version"), sys_root.join("module/nvidia")] {
        if found.exists() {
            return Err(RealDriver { found });
        }
    }
    Ok(())
}
