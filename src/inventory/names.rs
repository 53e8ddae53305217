//! Which GPU has which name, for ever.
//!
//! Allocations and users know a GPU by its name. NVML numbers GPUs anew at each boot, so a name made of the number of
//! the day would move to another GPU when a neighbour dies. A GPU is therefore named once, after the minor it has then,
//! and keeps that name for as long as the file lives; the name of a GPU that went away waits for its return. Where the
//! file is lost or damaged, the records of prepared claims still know the names that must not move.

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
    /// `names.json.damaged`, with a warning, and names are given anew.
    ///
    /// # Errors
    /// When the file cannot be read, was written by a newer version, or is damaged and cannot be set aside.
    pub fn load(directory: &Path) -> Result<Self, Error> {
        let path = directory.join(FILE);
        let names = match fs::read(&path) {
            Ok(bytes) => match (version(&bytes), parse(&bytes)) {
                (Some(version), _) if version > VERSION.into() => return Err(Error::Newer { path, version }),
                (_, Ok(names)) => names,
                (_, Err(reason)) => {
                    set_aside(&path, &reason)?;
                    BTreeMap::new()
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(source) => return Err(Error::Read { path, source }),
        };
        Ok(Self { path, names, unsaved: false })
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

    /// Stores names that the file does not have yet; after a failure the next call tries again. The disk is waited for
    /// on a thread that may block: a full or failing one can take long.
    pub async fn save(&mut self) -> Result<(), Error> {
        if self.unsaved {
            let (path, file) = (self.path.clone(), File { version: VERSION, names: self.names.clone() });
            let write = move || {
                let bytes = serde_json::to_vec_pretty(&file)?;
                atomic::write(&path, &bytes, MODE).map_err(|error| error.source)
            };
            let written = tokio::task::spawn_blocking(write).await.unwrap_or_else(|error| Err(io::Error::other(error)));
            written.map_err(|source| Error::Write { path: self.path.clone(), source })?;
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn uuid(letter: char) -> GpuUuid {
        GpuUuid::parse(&format!("GPU-{letter}")).unwrap()
    }

    fn gpus(list: &[(char, u32)]) -> Vec<(GpuUuid, u32)> {
        list.iter().map(|(letter, minor)| (uuid(*letter), *minor)).collect()
    }

    /// Names after a start of the plugin on this machine.
    async fn boot(directory: &Path, list: &[(char, u32)]) -> Vec<String> {
        let mut map = NameMap::load(directory).unwrap();
        let names = map.assign(&gpus(list));
        map.save().await.unwrap();
        list.iter().map(|(letter, _)| names[&uuid(*letter)].to_string()).collect()
    }

    #[tokio::test]
    async fn a_gpu_is_named_after_its_minor_at_first_sight() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(boot(directory.path(), &[('a', 1), ('b', 0), ('c', 10)]).await, ["gpu-1", "gpu-0", "gpu-10"]);
    }

    #[tokio::test]
    async fn a_name_stays_on_its_gpu_when_minors_swap_or_a_neighbour_dies() {
        let directory = tempfile::tempdir().unwrap();
        boot(directory.path(), &[('a', 0), ('b', 1), ('c', 2)]).await;
        assert_eq!(boot(directory.path(), &[('b', 0), ('a', 1), ('c', 2)]).await, ["gpu-1", "gpu-0", "gpu-2"]);
        assert_eq!(boot(directory.path(), &[('b', 0), ('c', 1)]).await, ["gpu-1", "gpu-2"]);
        let mut map = NameMap::load(directory.path()).unwrap();
        let present = map.assign(&gpus(&[('b', 0)]));
        assert_eq!(map.absent(&present), [DeviceName::gpu(0), DeviceName::gpu(2)]);
        assert_eq!(boot(directory.path(), &[('a', 0), ('b', 1), ('c', 2)]).await, ["gpu-0", "gpu-1", "gpu-2"]);
    }

    #[tokio::test]
    async fn a_new_gpu_does_not_get_the_name_of_an_absent_one() {
        let directory = tempfile::tempdir().unwrap();
        boot(directory.path(), &[('a', 0), ('b', 1), ('c', 2)]).await;
        assert_eq!(boot(directory.path(), &[('a', 0), ('n', 1), ('c', 2)]).await, ["gpu-0", "gpu-3", "gpu-2"]);
        assert_eq!(boot(directory.path(), &[('b', 0), ('n', 1)]).await, ["gpu-1", "gpu-3"]);
    }

    #[tokio::test]
    async fn a_new_gpu_that_has_to_move_leaves_the_names_of_other_new_ones_alone() {
        let directory = tempfile::tempdir().unwrap();
        boot(directory.path(), &[('a', 0)]).await;
        assert_eq!(boot(directory.path(), &[('n', 0), ('m', 1)]).await, ["gpu-2", "gpu-1"]);
    }

    #[tokio::test]
    async fn a_damaged_file_is_set_aside_and_names_are_given_anew() {
        let damaged = [
            "",
            "{",
            r#"{"version":0,"names":{}}"#,
            r#"{"names":{}}"#,
            r#"{"version":1,"names":{},"more":{}}"#,
            r#"{"version":1,"names":{"gpu/0":"GPU-a"}}"#,
            r#"{"version":1,"names":{"gpu-0":"../../etc"}}"#,
            r#"{"version":1,"names":{"gpu-0":"GPU-a","gpu-1":"GPU-a"}}"#,
        ];
        for text in damaged {
            let directory = tempfile::tempdir().unwrap();
            fs::write(directory.path().join("names.json"), text).unwrap();
            assert_eq!(boot(directory.path(), &[('a', 3)]).await, ["gpu-3"], "{text}");
            assert_eq!(fs::read_to_string(directory.path().join("names.json.damaged")).unwrap(), text);
            assert_eq!(
                boot(directory.path(), &[('a', 0)]).await,
                ["gpu-3"],
                "the new file is not read back after {text}"
            );
        }
    }

    #[tokio::test]
    async fn a_name_that_a_claim_remembers_survives_a_damaged_file() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("names.json"), "{").unwrap();
        let mut map = NameMap::load(directory.path()).unwrap();
        map.remember([(DeviceName::gpu(7), uuid('a'))]);
        map.assign(&gpus(&[('a', 0), ('b', 7)]));
        map.save().await.unwrap();
        assert_eq!(boot(directory.path(), &[('a', 0), ('b', 7)]).await, ["gpu-7", "gpu-0"]);
    }

    #[tokio::test]
    async fn what_claims_remember_moves_no_name_that_is_known() {
        let directory = tempfile::tempdir().unwrap();
        boot(directory.path(), &[('a', 0)]).await;
        let mut map = NameMap::load(directory.path()).unwrap();
        let known =
            |name: &str, uuid: &str| (DeviceName::parse(name).unwrap(), serde_json::from_value(uuid.into()).unwrap());
        map.remember([
            known("gpu-0", "GPU-b"),
            known("gpu-1", "GPU-a"),
            known("gpu-2-mig-1g5gb-19-0", "GPU-c"),
            known("gpu-03", "GPU-d"),
            known("gpu-4", "../e"),
        ]);
        assert_eq!(map.names, BTreeMap::from([(DeviceName::gpu(0), uuid('a'))]));
    }

    #[test]
    fn names_are_stored_on_a_thread_that_may_block() {
        let directory = tempfile::tempdir().unwrap();
        let mut map = NameMap::load(directory.path()).unwrap();
        map.assign(&gpus(&[('a', 5)]));
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let (release, released) = std::sync::mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || released.recv().is_err());
            let mut save = std::pin::pin!(map.save());
            assert!(futures::poll!(save.as_mut()).is_pending(), "the only thread that may block is busy");
            drop(release);
            save.await.unwrap();
            assert!(busy.await.unwrap());
        });
        assert!(directory.path().join("names.json").exists());
    }

    #[test]
    fn a_file_of_a_newer_version_stays_and_stops_the_start() {
        for text in [r#"{"version":2,"names":{"gpu-7":"GPU-a"}}"#, r#"{"version":9000000000,"gpus":[]}"#] {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("names.json");
            fs::write(&file, text).unwrap();
            let error = NameMap::load(directory.path()).unwrap_err();
            assert!(matches!(error, Error::Newer { .. }), "{error}");
            let sentence = error.to_string();
            assert!(sentence.contains("names.json were written by a newer version"), "{sentence}");
            assert!(sentence.ends_with("run that version again, or drain the node and remove the file"), "{sentence}");
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_taken_for_none() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("names.json")).unwrap();
        assert!(matches!(NameMap::load(directory.path()), Err(Error::Read { .. })));
    }

    #[tokio::test]
    async fn names_that_could_not_be_stored_are_stored_by_the_next_save() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("plugin");
        let mut map = NameMap::load(&directory).unwrap();
        map.assign(&gpus(&[('a', 5)]));
        assert!(matches!(map.save().await, Err(Error::Write { .. })));
        fs::create_dir(&directory).unwrap();
        map.save().await.unwrap();
        assert_eq!(boot(&directory, &[('a', 0)]).await, ["gpu-5"]);
    }

    proptest! {
        #[test]
        fn names_are_unique_and_never_move(
            boots in proptest::collection::vec(proptest::collection::btree_map("[a-h]", 0_u32..6, 0..6), 1..6)
        ) {
            let directory = tempfile::tempdir().unwrap();
            let mut map = NameMap::load(directory.path()).unwrap();
            let mut known: BTreeMap<GpuUuid, DeviceName> = BTreeMap::new();
            for boot in boots {
                let gpus: Vec<_> =
                    boot.iter().map(|(id, minor)| (GpuUuid::parse(&format!("GPU-{id}")).unwrap(), *minor)).collect();
                let names = map.assign(&gpus);
                prop_assert_eq!(names.len(), gpus.len());
                for (uuid, name) in names {
                    prop_assert_eq!(known.entry(uuid).or_insert_with(|| name.clone()), &name);
                }
                let unique: BTreeSet<_> = known.values().collect();
                prop_assert_eq!(unique.len(), known.len());
            }
        }
    }
}
