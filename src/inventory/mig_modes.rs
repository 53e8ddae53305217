//! On which GPUs this plugin has turned MIG mode on.
//!
//! Such a GPU is still offered as a whole, and its mode is turned off again once it has no parts; the mode of any other is
//! its administrator's. A GPU is written down before its mode is turned on, and struck out after it is off again, so one
//! that is written down may have its mode off, and one that is not was not turned on by us. The file is of one boot: none of
//! the modes that the plugin turns on outlives it.
//!
//! Two processes share the file during an upgrade, so it is read each time.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::device::GpuUuid;
use crate::host::atomic;

/// The file in the plugin's directory.
const FILE: &str = "mig-modes.json";

/// The number of [`File`]'s shape.
const VERSION: u32 = 1;

/// For root alone, like everything in the plugin's directory.
const MODE: u32 = 0o600;

/// The GPUs whose MIG mode this plugin has turned on. Clones are about the same file. Its functions wait for the disk.
#[derive(Debug, Clone)]
pub struct MigModes {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    boot_id: String,
}

/// Why it is not known, or not kept, whose mode it is.
#[derive(Debug, thiserror::Error)]
#[error("cannot {act} {}, which says on which GPUs this plugin has turned MIG mode on", path.display())]
pub struct Error {
    /// What was tried, as a verb.
    pub act: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Why it failed.
    #[source]
    pub source: io::Error,
}

/// The file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    boot_id: String,
    gpus: BTreeSet<GpuUuid>,
}

// === impl MigModes ===

impl MigModes {
    /// Those of the plugin whose directory this is, in this boot.
    pub fn of(directory: &Path, boot_id: String) -> Self {
        Self { shared: Arc::new(Shared { directory: directory.to_owned(), boot_id }) }
    }

    /// The GPUs.
    pub fn read(&self) -> Result<BTreeSet<GpuUuid>, Error> {
        match fs::read(self.path()) {
            Ok(bytes) => match serde_json::from_slice::<File>(&bytes) {
                Ok(file) if file.version == VERSION && file.boot_id == self.shared.boot_id => Ok(file.gpus),
                Ok(file) if file.version == VERSION => Ok(BTreeSet::new()),
                Ok(file) => Err(self.error("read", invalid(format!("its version is {}", file.version)))),
                Err(error) => Err(self.error("read", error.into())),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(error) => Err(self.error("read", error)),
        }
    }

    /// Writes down that the mode of this GPU is about to be turned on.
    pub fn add(&self, gpu: &GpuUuid) -> Result<(), Error> {
        self.change(|gpus| gpus.insert(gpu.clone()))
    }

    /// Strikes out a GPU whose mode is off again.
    pub fn remove(&self, gpu: &GpuUuid) -> Result<(), Error> {
        self.change(|gpus| gpus.remove(gpu))
    }

    /// Changes the file, unless `change` says that it did nothing.
    fn change(&self, change: impl FnOnce(&mut BTreeSet<GpuUuid>) -> bool) -> Result<(), Error> {
        let _others = atomic::hold(&self.shared.directory).map_err(|error| self.error("hold", error))?;
        let mut gpus = self.read()?;
        if !change(&mut gpus) {
            return Ok(());
        }
        let file = File { version: VERSION, boot_id: self.shared.boot_id.clone(), gpus };
        let bytes = serde_json::to_vec_pretty(&file).map_err(|error| self.error("write", error.into()))?;
        atomic::write(&self.path(), &bytes, MODE).map_err(|error| self.error("write", error.source))
    }

    fn path(&self) -> PathBuf {
        self.shared.directory.join(FILE)
    }

    fn error(&self, act: &'static str, source: io::Error) -> Error {
        Error { act, path: self.path(), source }
    }
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(number: u32) -> GpuUuid {
        GpuUuid::parse(&format!("GPU-{number}")).unwrap()
    }

    #[test]
    fn what_one_process_writes_down_another_knows_until_the_next_boot() {
        let directory = tempfile::tempdir().unwrap();
        let [one, other, later] = ["a", "a", "b"].map(|boot_id| MigModes::of(directory.path(), boot_id.to_owned()));
        one.add(&gpu(0)).unwrap();
        other.add(&gpu(1)).unwrap();
        assert_eq!(one.read().unwrap(), BTreeSet::from([gpu(0), gpu(1)]));
        other.remove(&gpu(0)).unwrap();
        assert_eq!(one.clone().read().unwrap(), BTreeSet::from([gpu(1)]));
        assert_eq!(later.read().unwrap(), BTreeSet::new());
        later.add(&gpu(2)).unwrap();
        assert_eq!(later.read().unwrap(), BTreeSet::from([gpu(2)]));
    }

    #[test]
    fn a_damaged_file_is_not_taken_for_an_empty_one() {
        let directory = tempfile::tempdir().unwrap();
        let modes = MigModes::of(directory.path(), "a".to_owned());
        for text in ["", "{}", r#"{"version":2,"boot_id":"a","gpus":[]}"#] {
            fs::write(directory.path().join(FILE), text).unwrap();
            assert!(modes.read().is_err() && modes.add(&gpu(0)).is_err(), "{text:?} was accepted");
        }
    }
}
