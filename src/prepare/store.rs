//! The records on disk: one file for each claim, so that damage to one costs one claim.
//!
//! ```text
//!  <plugin dir>/claims/<claim uid>.json
//!               claims/quarantine/<claim uid>.json            what could not be read, for people to look at
//!               claims/quarantine/<claim uid>.json.released   the same, after its claim was unprepared
//! ```
//!
//! A record that is moved aside is forgotten but for the GPUs that it names: those stay its claim's until that is
//! unprepared, see [`remnant`](super::remnant). The same holds for records of schemas that are not known here, which stay
//! where they are. One that the disk does not give, or that names no GPU, can hold none; people are told.
//!
//! A copy is kept in memory for the one question that concerns all claims, who holds a GPU. What is known of a single
//! claim is read from disk each time: another plugin process may be at work on the same files during a rolling update.
//! For the same reason all records are read again before the question is answered, unless nobody can have changed any:
//! see [`siblings`](super::siblings).

mod quarantine;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use self::quarantine::Quarantine;
use super::damage::Damage;
use super::record::{Record, SCHEMA, State};
use super::remnant::Remnant;
use super::siblings::{LockError, Siblings, Slot};
use crate::claim::plan::{Holder, Holders, Usage};
use crate::claim::{ClaimName, ClaimUid};
use crate::device::mig::Placement;
use crate::device::{DeviceName, GpuUuid};
use crate::host::atomic;

/// Records tell which pods use which GPUs: nobody but root needs them.
const MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

const SUFFIX: &str = ".json";

/// The file by which processes lock, beside the directory of records.
const LOCK_SUFFIX: &str = "lock";

/// All records. Its methods block for as long as the disk takes.
#[derive(Debug)]
pub(super) struct Store {
    directory: PathBuf,
    siblings: Arc<Siblings>,
    memory: Mutex<Memory>,
    /// Held by everyone who makes a record and what is remembered of it the same, and alone by who does it for all.
    changing: RwLock<()>,
    quarantine: Quarantine,
}

#[derive(Debug, Default)]
struct Memory {
    records: BTreeMap<ClaimUid, Record>,
    /// What is left of those that cannot be used.
    remnants: BTreeMap<ClaimUid, Remnant>,
    /// Files of which people were told that they cannot be read.
    unreadable: BTreeSet<PathBuf>,
    /// The number of starts at which these were all records there are, and nobody else was there to change them.
    complete_at: Option<u64>,
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
    /// The notice that a claim was unprepared is needed by another plugin process, or came from one.
    #[error("cannot {act} the notice {} that the claim was unprepared", path.display())]
    Notice {
        /// What was tried: "read", "write".
        act: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// What other plugin processes do cannot be seen, or they cannot be kept away.
    #[error("other plugin processes may be at work")]
    Locks(#[source] LockError),
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

/// What is on disk for a claim.
enum Found {
    Nothing,
    Record(Box<Record>),
    Damaged(Bad, Remnant),
    /// Of a schema of which nothing else is known.
    Newer(u32, Remnant),
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
        let created = atomic::make_directory(&directory, DIRECTORY_MODE);
        created.map_err(|source| StoreError::Directory { act: "create", path: directory.clone(), source })?;
        let siblings = Siblings::open(&directory.with_extension(LOCK_SUFFIX)).map_err(StoreError::Locks)?;
        let quarantine = Quarantine::new(&directory);
        let (memory, changing) = (Mutex::default(), RwLock::default());
        let store = Self { directory, siblings, memory, changing, quarantine };
        for path in store.read_all()? {
            let moved = match uid_of(&path) {
                None => store.quarantine.take(&path, &Bad::Name, &Remnant::default()),
                // Whoever holds the claim sees to it, and may have done so.
                Some(uid) => match store.siblings.try_lock(Slot::claim(&uid)).map_err(StoreError::Locks)? {
                    Some(_claim) => store.load(&uid).map(drop),
                    None => Ok(()),
                },
            };
            if let Err(error) = moved {
                cannot_use(&path, &error);
            }
        }
        Ok(store)
    }

    /// Those who share the directory.
    pub(super) fn siblings(&self) -> &Arc<Siblings> {
        &self.siblings
    }

    /// Makes sure that memory has all records of GPUs whose locks the caller holds, and what other processes had done
    /// with others a moment ago. Costs nothing as long as there are no other processes.
    pub(super) fn catch_up(&self) -> Result<(), StoreError> {
        if self.is_outdated()? { self.read_all().map(drop) } else { Ok(()) }
    }

    /// Whether another process may have changed records since all were read.
    pub(super) fn is_outdated(&self) -> Result<bool, StoreError> {
        let starts = self.siblings.starts().map_err(StoreError::Locks)?;
        Ok(self.memory().complete_at != Some(starts))
    }

    /// Takes all records into memory; answers which files are none. What cannot be read now remains what it was. What is
    /// read lasts, though its writer may have been killed before it made it so.
    fn read_all(&self) -> Result<Vec<PathBuf>, StoreError> {
        let _change = self.changing.write().unwrap_or_else(PoisonError::into_inner);
        // The order matters: the number, who is there, and only then the records.
        let starts = self.siblings.starts().map_err(StoreError::Locks)?;
        let alone = !self.siblings.are_present().map_err(StoreError::Locks)?;
        atomic::sweep(&self.directory).map_err(StoreError::File)?;
        let mut memory = Memory { complete_at: alone.then_some(starts), ..Memory::default() };
        let mut bad = Vec::new();
        memory.remnants = self.quarantine.remnants()?;
        for path in self.files()? {
            let Some(uid) = uid_of(&path) else {
                bad.push(path);
                continue;
            };
            match self.look(&uid) {
                Ok(Found::Record(record)) => {
                    memory.records.insert(uid, *record);
                    continue;
                }
                Ok(Found::Nothing) => continue,
                Ok(Found::Damaged(_, remnant)) => {
                    memory.remnants.entry(uid.clone()).or_default().add(remnant);
                    bad.push(path);
                }
                // Left where they are: their claims fail until somebody has seen to it, and only those claims.
                Ok(Found::Newer(version, remnant)) => {
                    memory.remnants.entry(uid.clone()).or_default().add(remnant);
                    cannot_use(&path, &StoreError::Newer { path: path.clone(), version });
                }
                Err(error) => {
                    cannot_use(&path, &error);
                    if !self.memory().unreadable.contains(&path) && !self.memory().records.contains_key(&uid) {
                        self.quarantine.damage().add(&path, &error, BTreeSet::new());
                    }
                    memory.unreadable.insert(path);
                }
            }
            if let Some(known) = self.memory().records.remove(&uid) {
                memory.records.insert(uid, known);
            }
        }
        *self.memory() = memory;
        Ok(bad)
    }

    /// All files that are named like records.
    fn files(&self) -> Result<Vec<PathBuf>, StoreError> {
        let failed = |source| StoreError::Directory { act: "list", path: self.directory.clone(), source };
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_name().to_str().is_some_and(|name| name.ends_with(SUFFIX)) {
                files.push(entry.path());
            }
        }
        Ok(files)
    }

    /// The record of a claim as it is on disk. One that is damaged is moved aside, and the claim then has none.
    pub(super) fn load(&self, uid: &ClaimUid) -> Result<Option<Record>, StoreError> {
        let _change = self.change();
        let record = match self.look(uid)? {
            Found::Record(record) => {
                // It may be what a process left that was killed.
                if self.is_outdated()? {
                    atomic::settle(&self.directory).map_err(StoreError::File)?;
                }
                Some(*record)
            }
            Found::Nothing => None,
            Found::Damaged(why, remnant) => {
                self.quarantine.take(&self.path(uid), &why, &remnant)?;
                self.memory().remnants.entry(uid.clone()).or_default().add(remnant);
                None
            }
            Found::Newer(version, remnant) => {
                self.memory().remnants.entry(uid.clone()).or_default().add(remnant);
                return Err(StoreError::Newer { path: self.path(uid), version });
            }
        };
        match &record {
            Some(record) => self.memory().records.insert(uid.clone(), record.clone()),
            None => self.memory().records.remove(uid),
        };
        Ok(record)
    }

    /// Writes a record, so that it survives whatever comes after.
    pub(super) fn save(&self, record: &Record) -> Result<(), StoreError> {
        let uid = &record.claim.uid;
        let encode = |source| StoreError::Encode { uid: uid.clone(), source };
        let mut bytes = serde_json::to_vec_pretty(record).map_err(encode)?;
        bytes.push(b'\n');
        let _change = self.change();
        // Known before it is written: in doubt the GPU is taken.
        self.memory().records.insert(uid.clone(), record.clone());
        atomic::write(&self.path(uid), &bytes, MODE).map_err(StoreError::File)
    }

    /// Removes a record. One that is not there is success.
    pub(super) fn remove(&self, uid: &ClaimUid) -> Result<(), StoreError> {
        let _change = self.change();
        let path = self.path(uid);
        atomic::remove(&path).map_err(StoreError::File)?;
        self.quarantine.release(&path)?;
        let mut memory = self.memory();
        memory.records.remove(uid);
        memory.remnants.remove(uid);
        Ok(())
    }

    /// Whether there is a record of a claim, readable or not, be it one that was moved aside.
    pub(super) fn has(&self, uid: &ClaimUid) -> bool {
        let path = self.path(uid);
        path.exists() || self.quarantine.has(&path)
    }

    /// The records that were moved aside.
    pub(super) fn damage(&self) -> &Damage {
        self.quarantine.damage()
    }

    /// Who holds these GPUs.
    pub(super) fn holders(&self, gpus: &BTreeSet<GpuUuid>) -> Holders {
        let mut holders = Holders::new();
        let memory = self.memory();
        for record in memory.records.values() {
            for device in record.devices.iter().filter(|device| gpus.contains(&device.planned.gpu)) {
                let holder = Holder {
                    uid: record.claim.uid.clone(),
                    name: Some(record.claim.name.clone()),
                    usage: device.planned.wanted.usage,
                    place: device.planned.part.as_ref().map(|part| part.placement),
                };
                holders.entry(device.planned.gpu.clone()).or_default().push(holder);
            }
        }
        for (uid, remnant) in &memory.remnants {
            for gpu in remnant.gpus.intersection(gpus) {
                let (name, usage) = (remnant.name.clone(), Usage::Exclusive);
                let holder = Holder { uid: uid.clone(), name, usage, place: None };
                holders.entry(gpu.clone()).or_default().push(holder);
            }
        }
        holders
    }

    /// Whether a claim has, or is about to have, a part of a GPU that this plugin makes, where this place is.
    pub(super) fn has_part_at(&self, gpu: &GpuUuid, place: Placement) -> bool {
        let memory = self.memory();
        let devices = memory.records.values().flat_map(|record| &record.devices);
        let mut of_gpu = devices.filter(|device| device.makes_part() && device.planned.gpu == *gpu);
        of_gpu.any(|device| device.planned.part.as_ref().is_some_and(|part| part.placement.overlaps(place)))
    }

    /// The claims with a name of whose records nothing else can be used, without those of a newer schema.
    pub(super) fn remnants(&self) -> Vec<ClaimUid> {
        let memory = self.memory();
        let named = memory.remnants.iter().filter(|(_, remnant)| remnant.name.is_some() && !remnant.is_newer);
        named.map(|(uid, _)| uid.clone()).collect()
    }

    /// The name of one of those.
    pub(super) fn name_of_remnant(&self, uid: &ClaimUid) -> Option<ClaimName> {
        self.memory().remnants.get(uid).and_then(|remnant| remnant.name.clone())
    }

    /// Which GPUs claims were given by which names.
    pub(super) fn names(&self) -> Vec<(DeviceName, GpuUuid)> {
        let memory = self.memory();
        let devices = memory.records.values().flat_map(|record| &record.devices).map(|device| &device.planned);
        // The name of a part is not its GPU's.
        let whole = devices.filter(|device| device.part.is_none());
        whole.filter_map(|device| Some((DeviceName::parse(&device.wanted.device).ok()?, device.gpu.clone()))).collect()
    }

    /// The claims in a state, without those of a newer schema: what must be done about them is not known here.
    pub(super) fn in_state(&self, state: State) -> Vec<ClaimUid> {
        let memory = self.memory();
        let ours = memory.records.values().filter(|record| record.version <= SCHEMA && record.state == state);
        ours.map(|record| record.claim.uid.clone()).collect()
    }

    fn look(&self, uid: &ClaimUid) -> Result<Found, StoreError> {
        let path = self.path(uid);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                return Ok(Found::Damaged(Bad::Directory, Remnant::default()));
            }
            Err(source) => return Err(StoreError::Read { path, source }),
        };
        match serde_json::from_slice::<Record>(&bytes) {
            Ok(record) if record.claim.uid == *uid => Ok(Found::Record(Box::new(record))),
            Ok(record) => Ok(Found::Damaged(Bad::Other(record.claim.uid), Remnant::of(&bytes))),
            Err(error) => match schema(&bytes) {
                Some(version) if version > SCHEMA => {
                    Ok(Found::Newer(version, Remnant { is_newer: true, ..Remnant::of(&bytes) }))
                }
                _ => Ok(Found::Damaged(Bad::Json(error), Remnant::of(&bytes))),
            },
        }
    }

    fn path(&self, uid: &ClaimUid) -> PathBuf {
        self.directory.join(format!("{uid}{SUFFIX}"))
    }

    fn change(&self) -> RwLockReadGuard<'_, ()> {
        self.changing.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The claim whose record has this path.
fn uid_of(path: &Path) -> Option<ClaimUid> {
    let stem = path.file_name().and_then(|name| name.to_str()?.strip_suffix(SUFFIX));
    stem.and_then(|stem| ClaimUid::parse(stem).ok())
}

fn cannot_use(path: &Path, error: &StoreError) {
    tracing::error!(file = %path.display(), error = error as &dyn std::error::Error, "cannot use a claim record");
}

/// The schema of a record of which nothing else may be readable.
fn schema(bytes: &[u8]) -> Option<u32> {
    #[derive(serde::Deserialize)]
    struct Header {
        version: u32,
    }
    serde_json::from_slice::<Header>(bytes).ok().map(|header| header.version)
}
