//! The GPUs whose MIG mode this plugin has turned on.
//!
//! Found on, MIG mode is an administrator's wish: the GPU is then not offered as a whole, and the mode stays. What this
//! plugin has turned on for a claim it turns off again, so it has to know, across restarts and beside another process during
//! a rolling update. Each such GPU has an empty file, `<plugin dir>/mig-modes/<GPU UUID>`, which is there before the mode is
//! on and until it is off. One that is left behind while the mode is off, as after a reboot, means nothing.

use std::io;
use std::path::{Path, PathBuf};

use crate::device::GpuUuid;
use crate::host::atomic;

/// Below the plugin's directory.
const DIRECTORY: &str = "mig-modes";

/// Only the plugin has business here.
const MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// Which GPUs those are. Clones are of the same directory, and what one says the others see.
#[derive(Debug, Clone)]
pub struct MigModes {
    directory: PathBuf,
}

/// Why it could not be stored whose doing a MIG mode is.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No place for the files.
    #[error("cannot create {}, which says whose MIG mode is this plugin's doing", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file could not be created or removed.
    #[error("cannot store whether the MIG mode of {gpu} is this plugin's doing")]
    File {
        /// The GPU.
        gpu: GpuUuid,
        /// Why not.
        source: atomic::Error,
    },
}

// === impl MigModes ===

impl MigModes {
    /// Those of a plugin with this directory.
    pub fn new(plugin_dir: &Path) -> Self {
        Self { directory: plugin_dir.join(DIRECTORY) }
    }

    /// Takes note, so that it outlives whatever comes next, that MIG mode is about to be turned on. Blocks for as long as the
    /// disk takes.
    pub fn add(&self, gpu: &GpuUuid) -> Result<(), Error> {
        let made = atomic::make_directory(&self.directory, DIRECTORY_MODE);
        made.map_err(|source| Error::Directory { path: self.directory.clone(), source })?;
        atomic::write(&self.path(gpu), b"", MODE).map_err(|source| Error::File { gpu: gpu.clone(), source })
    }

    /// Takes note that it is off again.
    pub fn remove(&self, gpu: &GpuUuid) -> Result<(), Error> {
        atomic::remove(&self.path(gpu)).map_err(|source| Error::File { gpu: gpu.clone(), source })
    }

    /// Whether MIG mode, if it is on, was turned on by this plugin.
    pub fn contains(&self, gpu: &GpuUuid) -> bool {
        self.path(gpu).is_file()
    }

    fn path(&self, gpu: &GpuUuid) -> PathBuf {
        self.directory.join(gpu.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_process_says_another_sees() {
        let directory = tempfile::tempdir().unwrap();
        let [one, other] = [(); 2].map(|()| MigModes::new(directory.path()));
        let [a, b] = ["GPU-a", "GPU-b"].map(|text| GpuUuid::parse(text).unwrap());
        one.remove(&a).unwrap();
        one.add(&a).unwrap();
        one.add(&a).unwrap();
        assert!(other.contains(&a) && !other.contains(&b));
        other.remove(&a).unwrap();
        assert!(!one.contains(&a));
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_told() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(DIRECTORY), "").unwrap();
        let error = MigModes::new(directory.path()).add(&GpuUuid::parse("GPU-a").unwrap()).unwrap_err();
        assert!(error.to_string().contains("mig-modes"), "{error}");
    }
}
