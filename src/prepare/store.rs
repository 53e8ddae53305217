//! The records on disk: one file for each claim, so that damage to one costs one claim.
//!
//! ```text
//!  <plugin dir>/claims/<claim uid>.json
//!               claims/quarantine/<claim uid>.json     what could not be read, for people to look at
//! ```
//!
//! A copy is kept in memory for the one question that concerns all claims, who holds a GPU. What is known of a single
//! claim is read from disk each time: an earlier plugin process may still be at work on the same files while it stops.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::damage::Damage;
use super::record::{Record, SCHEMA, State};
use crate::claim::ClaimUid;
use crate::claim::plan::{Holder, Holders};
use crate::device::{DeviceName, GpuUuid};
use crate::host::atomic;

/// Records tell which pods use which GPUs: nobody but root needs them.
const MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

const SUFFIX: &str = ".json";
const QUARANTINE: &str = "quarantine";

/// All records. Its methods block for as long as the disk takes.
#[derive(Debug)]
pub(super) struct Store {
    directory: PathBuf,
    records: Mutex<BTreeMap<ClaimUid, Record>>,
    damage: Damage,
}

/// A record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory cannot be made or read.
    #[error("cannot {act} the directory of claim records {}", path.display())]
    Directory {
        /// What was tried: "create", "list".
        act: &'static str,
        /// Which directory.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The file is there and cannot be read.
    #[error("cannot read the claim record {}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It was written by a newer version, in a schema that this one does not understand at all.
    #[error("the claim record {} was written by a newer version of this driver (schema {version}, this one reads {SCHEMA}); \
        upgrade the driver again", path.display())]
    Newer {
        /// Which file.
        path: PathBuf,
        /// Its schema.
        version: u32,
    },
    /// The record cannot be expressed in JSON.
    #[error("cannot express the record of claim {uid} in JSON")]
    Encode {
        /// Whose record.
        uid: ClaimUid,
        /// What cannot be expressed.
        #[source]
        source: serde_json::Error,
    },
    /// The file system refused.
    #[error("the directory of claim records refused")]
    File(#[source] atomic::Error),
}

/// The bytes of a record that is no record.
#[derive(Debug, thiserror::Error)]
enum Bad {
    #[error("it is not a claim record")]
    Json(#[source] serde_json::Error),
    #[error("it is the record of claim {0}")]
    Other(ClaimUid),
    #[error("its name is not that of a claim")]
    Name,
    #[error("it is a directory")]
    Directory,
}

// === impl Store ===

impl Store {
    /// Makes the directory if it is missing and reads all records. Those that cannot be read are moved aside and logged.
    pub(super) fn open(directory: PathBuf) -> Result<Self, StoreError> {
        let failed = |act, path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::Directory { act, path, source }
        };
        atomic::make_directory(&directory, DIRECTORY_MODE).map_err(failed("create", &directory))?;
        atomic::sweep(&directory).map_err(StoreError::File)?;
        let store = Self { directory, records: Mutex::default(), damage: Damage::default() };
        for entry in fs::read_dir(&store.directory).map_err(failed("list", &store.directory))? {
            let path = entry.map_err(failed("list", &store.directory))?.path();
            let Some(stem) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(SUFFIX)) else { continue };
            let used = match ClaimUid::parse(stem) {
                Ok(uid) => store.load(&uid).map(drop),
                Err(_) => store.quarantine(&path, &Bad::Name),
            };
            if let Err(error) = used {
                // Left where it is: its claim fails until somebody has seen to it, and only that claim.
                let error = &error as &dyn std::error::Error;
                tracing::error!(file = %path.display(), error, "cannot use a claim record");
            }
        }
        Ok(store)
    }

    /// The record of a claim as it is on disk. One that is damaged is moved aside, and the claim then has none.
    pub(super) fn load(&self, uid: &ClaimUid) -> Result<Option<Record>, StoreError> {
        let record = self.read(uid)?;
        match &record {
            Some(record) => self.records().insert(uid.clone(), record.clone()),
            None => self.records().remove(uid),
        };
        Ok(record)
    }

    /// Writes a record, so that it survives whatever comes after.
    pub(super) fn save(&self, record: &Record) -> Result<(), StoreError> {
        let uid = &record.claim.uid;
        let encode = |source| StoreError::Encode { uid: uid.clone(), source };
        let mut bytes = serde_json::to_vec_pretty(record).map_err(encode)?;
        bytes.push(b'\n');
        // Known before it is written: in doubt the GPU is taken.
        self.records().insert(uid.clone(), record.clone());
        atomic::write(&self.path(uid), &bytes, MODE).map_err(StoreError::File)
    }

    /// Removes a record. One that is not there is success.
    pub(super) fn remove(&self, uid: &ClaimUid) -> Result<(), StoreError> {
        atomic::remove(&self.path(uid)).map_err(StoreError::File)?;
        self.records().remove(uid);
        Ok(())
    }

    /// Whether there is a record of a claim, readable or not, be it one that was moved aside.
    pub(super) fn has(&self, uid: &ClaimUid) -> bool {
        let path = self.path(uid);
        path.exists() || self.aside(&path).exists()
    }

    /// The records that were moved aside.
    pub(super) fn damage(&self) -> &Damage {
        &self.damage
    }

    /// Who holds these GPUs.
    pub(super) fn holders(&self, gpus: &BTreeSet<GpuUuid>) -> Holders {
        let mut holders = Holders::new();
        for record in self.records().values() {
            for device in record.devices.iter().filter(|device| gpus.contains(&device.planned.gpu)) {
                let holder = Holder {
                    uid: record.claim.uid.clone(),
                    name: record.claim.name.clone(),
                    usage: device.planned.wanted.usage,
                };
                holders.entry(device.planned.gpu.clone()).or_default().push(holder);
            }
        }
        holders
    }

    /// Which GPUs claims were given by which names.
    pub(super) fn names(&self) -> Vec<(DeviceName, GpuUuid)> {
        let records = self.records();
        let devices = records.values().flat_map(|record| &record.devices).map(|device| &device.planned);
        devices
            .filter_map(|device| Some((DeviceName::parse(&device.wanted.device).ok()?, device.gpu.clone())))
            .collect()
    }

    /// The claims in a state, without those of a newer schema: what must be done about them is not known here.
    pub(super) fn in_state(&self, state: State) -> Vec<ClaimUid> {
        let records = self.records();
        let ours = records.values().filter(|record| record.version <= SCHEMA && record.state == state);
        ours.map(|record| record.claim.uid.clone()).collect()
    }

    fn read(&self, uid: &ClaimUid) -> Result<Option<Record>, StoreError> {
        let path = self.path(uid);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                return self.quarantine(&path, &Bad::Directory).map(|()| None);
            }
            Err(source) => return Err(StoreError::Read { path, source }),
        };
        match serde_json::from_slice::<Record>(&bytes) {
            Ok(record) if record.claim.uid == *uid => Ok(Some(record)),
            Ok(record) => self.quarantine(&path, &Bad::Other(record.claim.uid)).map(|()| None),
            Err(error) => match schema(&bytes) {
                Some(version) if version > SCHEMA => Err(StoreError::Newer { path, version }),
                _ => self.quarantine(&path, &Bad::Json(error)).map(|()| None),
            },
        }
    }

    fn quarantine(&self, path: &Path, why: &Bad) -> Result<(), StoreError> {
        let directory = self.directory.join(QUARANTINE);
        let created = atomic::make_directory(&directory, DIRECTORY_MODE);
        created.map_err(|source| StoreError::Directory { act: "create", path: directory, source })?;
        let mut aside = self.aside(path);
        // What is there already may be what somebody is looking for, and a directory cannot be replaced at all.
        let mut number = 1_u32;
        while aside.symlink_metadata().is_ok() {
            aside = self.aside(Path::new(&format!("{}.{number}", path.display())));
            number += 1;
        }
        atomic::rename(path, &aside).map_err(StoreError::File)?;
        tracing::error!(
            from = %path.display(),
            to = %aside.display(),
            error = why as &dyn std::error::Error,
            "moved a damaged claim record aside; what its claim had is forgotten, and its CDI spec stays until unprepare"
        );
        self.damage.add(&aside, why);
        Ok(())
    }

    fn aside(&self, path: &Path) -> PathBuf {
        self.directory.join(QUARANTINE).join(path.file_name().unwrap_or_default())
    }

    fn path(&self, uid: &ClaimUid) -> PathBuf {
        self.directory.join(format!("{uid}{SUFFIX}"))
    }

    fn records(&self) -> MutexGuard<'_, BTreeMap<ClaimUid, Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The schema of a record of which nothing else may be readable.
fn schema(bytes: &[u8]) -> Option<u32> {
    #[derive(serde::Deserialize)]
    struct Header {
        version: u32,
    }
    serde_json::from_slice::<Header>(bytes).ok().map(|header| header.version)
}
