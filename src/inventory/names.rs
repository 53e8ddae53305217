//! Which GPU has which name, for ever.
//!
//! Allocations and users know a GPU by its name. NVML numbers GPUs anew at each boot, so a name made of the number of
//! the day would move to another GPU when a neighbour dies. A GPU is therefore named once, after the minor it has then,
//! and keeps that name for as long as the file lives; the name of a GPU that went away waits for its return. Where the
//! file is lost or damaged, the records of prepared claims still know the names that must not move.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::device::{DeviceName, GpuUuid};
use crate::host::atomic;

/// The file in the plugin's directory.
const FILE: &str = "names.json";

/// The number of [`File`]'s shape. It is raised when an older plugin would do wrong with what is new: then that one
/// refuses to start.
const VERSION: u32 = 1;

/// For root alone, like everything in the plugin's directory.
const MODE: u32 = 0o600;

/// Names given so far, and the file that keeps them.
#[derive(Debug, Clone)]
pub struct NameMap {
    path: PathBuf,
    names: BTreeMap<DeviceName, GpuUuid>,
    /// What the file does not have yet.
    unsaved: bool,
}

/// Why names could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is there and cannot be read: names given now could contradict it.
    #[error("cannot read the names of the GPUs from {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Names given after minors would differ from those that the file keeps, under claims that are allocated.
    #[error(
        "the names of the GPUs in {} were written by a newer version of this plugin (schema {version}, this one reads \
         {VERSION}): run that version again, or drain the node and remove the file",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema.
        version: u64,
    },
    /// The damaged file could not be moved out of the way.
    #[error("cannot move the damaged {} out of the way", path.display())]
    SetAside {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// New names could not be stored: they may differ after the next start.
    #[error("cannot write the names of the GPUs to {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    names: BTreeMap<DeviceName, GpuUuid>,
}

// === impl NameMap ===

impl NameMap {
    /// Reads the map of the plugin whose directory this is; none yet is an empty one. A damaged file is set aside as
    /// `names.json.damaged`, with a warning, and names are given anew. What interrupted writes left in the directory goes,
    /// and what is read lasts.
    ///
    /// # Errors
    /// When the directory or the file cannot be read, was written by a newer version, or is damaged and cannot be set aside.
    pub fn load(directory: &Path) -> Result<Self, Error> {
        let path = directory.join(FILE);
        if directory.exists() {
            atomic::sweep(directory).map_err(|error| Error::Read { path: path.clone(), source: error.source })?;
        }
        Ok(Self { names: read(&path)?, path, unsaved: false })
    }

    /// Takes names of GPUs that others remember, as far as this map knows neither the name nor the GPU. Names of anything
    /// but a whole GPU are not its concern.
    pub fn remember(&mut self, known: impl IntoIterator<Item = (DeviceName, GpuUuid)>) {
        for (name, uuid) in known {
            let whole = name.as_str().strip_prefix("gpu-").and_then(|number| number.parse().ok()).map(DeviceName::gpu);
            let sound = whole.as_ref() == Some(&name) && GpuUuid::parse(uuid.as_str()).is_ok();
            if sound && !self.names.contains_key(&name) && self.name_of(&uuid).is_none() {
                tracing::info!(%name, gpu = %uuid, "took the name of a GPU from the record of a claim");
                self.give(name, &uuid);
            }
        }
    }

    /// Gives each of these GPUs, by UUID and minor, its name: the one it has, else `gpu-<minor>`, else, where an absent
    /// GPU has that, the lowest number that no GPU has.
    pub fn assign(&mut self, gpus: &[(GpuUuid, u32)]) -> BTreeMap<GpuUuid, DeviceName> {
        let mut new: Vec<_> = gpus.iter().filter(|(uuid, _)| self.name_of(uuid).is_none()).collect();
        new.sort_by_key(|(uuid, minor)| (minor, uuid));
        new.retain(|(uuid, minor)| {
            let name = DeviceName::gpu(*minor);
            let taken = self.names.contains_key(&name);
            if !taken {
                self.give(name, uuid);
            }
            taken
        });
        for (uuid, _) in new {
            let mut numbers = (0..=u32::MAX).map(DeviceName::gpu);
            if let Some(name) = numbers.find(|name| !self.names.contains_key(name)) {
                self.give(name, uuid);
            }
        }
        let present: BTreeSet<_> = gpus.iter().map(|(uuid, _)| uuid).collect();
        let named = self.names.iter().filter(|(_, uuid)| present.contains(uuid));
        named.map(|(name, uuid)| (uuid.clone(), name.clone())).collect()
    }

    /// The names that none of the present GPUs has, of which this says who is who.
    pub fn absent(&self, present: &BTreeMap<GpuUuid, DeviceName>) -> Vec<DeviceName> {
        let absent = self.names.iter().filter(|(_, uuid)| !present.contains_key(*uuid));
        absent.map(|(name, _)| name.clone()).collect()
    }

    /// Stores names that the file does not have yet; after a failure the next call tries again. What another plugin
    /// process stored meanwhile stays and is taken over, so names that were given here may have to be given anew. The disk
    /// is waited for on a thread that may block: a full or failing one can take long.
    pub async fn save(&mut self) -> Result<(), Error> {
        if self.unsaved {
            let (path, ours) = (self.path.clone(), self.names.clone());
            let stored = tokio::task::spawn_blocking(move || store(&path, ours)).await;
            let failed = |error| Err(Error::Write { path: self.path.clone(), source: io::Error::other(error) });
            self.names = stored.unwrap_or_else(failed)?;
            self.unsaved = false;
        }
        Ok(())
    }

    fn name_of(&self, uuid: &GpuUuid) -> Option<&DeviceName> {
        self.names.iter().find(|(_, named)| *named == uuid).map(|(name, _)| name)
    }

    fn give(&mut self, name: DeviceName, uuid: &GpuUuid) {
        self.names.insert(name, uuid.clone());
        self.unsaved = true;
    }
}

/// The names in the file; none, if there is none or it is damaged.
fn read(path: &Path) -> Result<BTreeMap<DeviceName, GpuUuid>, Error> {
    match fs::read(path) {
        Ok(bytes) => match (version(&bytes), parse(&bytes)) {
            (Some(version), _) if version > VERSION.into() => Err(Error::Newer { path: path.to_owned(), version }),
            (_, Ok(names)) => Ok(names),
            (_, Err(reason)) => set_aside(path, &reason).map(|()| BTreeMap::new()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(source) => Err(Error::Read { path: path.to_owned(), source }),
    }
}

/// Adds names to the file; answers what it has then. Two processes that give names at once give the same ones, unless a
/// GPU came or went between their looks: then the first one's last.
fn store(path: &Path, ours: BTreeMap<DeviceName, GpuUuid>) -> Result<BTreeMap<DeviceName, GpuUuid>, Error> {
    let failed = |source| Error::Write { path: path.to_owned(), source };
    let _others = path.parent().map(atomic::hold).transpose().map_err(failed)?;
    let mut names = read(path)?;
    add(&mut names, ours);
    let file = File { version: VERSION, names };
    let bytes = serde_json::to_vec_pretty(&file).map_err(|error| failed(error.into()))?;
    atomic::write(path, &bytes, MODE).map_err(|error| failed(error.source))?;
    Ok(file.names)
}

/// Adds to `names` those of GPUs that have none there, as far as nobody else has them.
fn add(names: &mut BTreeMap<DeviceName, GpuUuid>, more: BTreeMap<DeviceName, GpuUuid>) {
    for (name, uuid) in more {
        if !names.contains_key(&name) && !names.values().any(|named| *named == uuid) {
            names.insert(name, uuid);
        }
    }
}

/// The version of a file of which nothing else may be readable.
fn version(bytes: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Header {
        version: u64,
    }
    serde_json::from_slice::<Header>(bytes).ok().map(|header| header.version)
}

fn parse(bytes: &[u8]) -> Result<BTreeMap<DeviceName, GpuUuid>, String> {
    let file: File = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if file.version != VERSION {
        return Err(format!("its version is {}, not {VERSION}", file.version));
    }
    for uuid in file.names.values() {
        GpuUuid::parse(uuid.as_str()).map_err(|error| error.to_string())?;
    }
    if file.names.values().collect::<BTreeSet<_>>().len() < file.names.len() {
        return Err("a GPU has two names".to_owned());
    }
    Ok(file.names)
}

fn set_aside(path: &Path, reason: &str) -> Result<(), Error> {
    let aside = path.with_extension("json.damaged");
    fs::rename(path, &aside).map_err(|source| Error::SetAside { path: path.to_owned(), source })?;
    tracing::warn!(
        file = %path.display(),
        set_aside = %aside.display(),
        reason,
        "the names of the GPUs are damaged; those that prepared claims know stay, the others are given anew, after minors"
    );
    Ok(())
}
