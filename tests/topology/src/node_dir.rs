//! The directory where the processes of one fake node meet.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::host_files::Capability;
use crate::mig::Refusal;
use crate::{Event, HostFiles, State, Topology};

/// A directory with `topology.json`, `state.json` and `events.jsonl`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeDir {
    path: PathBuf,
}

/// Why a topology or a node directory could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not JSON of the right shape.
    #[error("the topology is not valid JSON of the expected shape")]
    Parse(#[source] serde_json::Error),
    /// JSON of the right shape that describes no possible machine.
    #[error("the topology contradicts itself: {0}")]
    Invalid(String),
    /// No machine of this name among the built-in ones, and none or several with this beginning.
    #[error("{name:?} is neither the name of a topology nor the beginning of only one; the built-in ones are {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// Names that exist, separated by commas.
        known: String,
    },
    /// A file could not be read or written.
    #[error("cannot {act} {}", path.display())]
    File {
        /// What was tried: "read", "write", "lock".
        act: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// `state.json` is damaged.
    #[error("{} is not a state file", path.display())]
    State {
        /// Which file.
        path: PathBuf,
        /// Where it is wrong.
        source: serde_json::Error,
    },
    /// The driver does not do this to a MIG instance.
    #[error("the driver refuses")]
    Mig(#[source] Refusal),
}

// === impl NodeDir ===

impl NodeDir {
    /// A directory that [`create`](Self::create) filled earlier, perhaps in another process.
    pub fn open(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Makes the directory and writes a healthy machine into it.
    pub fn create(path: impl Into<PathBuf>, topology: &Topology) -> Result<Self, Error> {
        let dir = Self::open(path);
        fs::create_dir_all(&dir.path).map_err(file("create", &dir.path))?;
        replace(&dir.topology_path(), &to_json(topology)?)?;
        replace(&dir.state_path(), &to_json(&State::default())?)?;
        fs::write(dir.events_path(), "").map_err(file("write", &dir.events_path()))?;
        Ok(dir)
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The machine as built. Never changes between two [`set_topology`](Self::set_topology).
    pub fn topology_path(&self) -> PathBuf {
        self.path.join("topology.json")
    }

    /// What happened since. Replaced by rename, so a new inode means a new state.
    pub fn state_path(&self) -> PathBuf {
        self.path.join("state.json")
    }

    /// One [`Event`] a line, appended.
    pub fn events_path(&self) -> PathBuf {
        self.path.join("events.jsonl")
    }

    /// One NVML call a line, appended by the mock when a test has created the file.
    pub fn calls_path(&self) -> PathBuf {
        self.path.join("calls.log")
    }

    fn host_files_path(&self) -> PathBuf {
        self.path.join("host.json")
    }

    /// Reads the machine.
    pub fn topology(&self) -> Result<Topology, Error> {
        let path = self.topology_path();
        Topology::parse(&fs::read_to_string(&path).map_err(file("read", &path))?)
    }

    /// Reads what happened so far.
    pub fn state(&self) -> Result<State, Error> {
        let path = self.state_path();
        let json = fs::read_to_string(&path).map_err(file("read", &path))?;
        serde_json::from_str(&json).map_err(|source| Error::State { path, source })
    }

    /// Replaces the machine, as a reboot into other hardware does. Processes that have it open keep the old one.
    pub fn set_topology(&self, topology: &Topology) -> Result<(), Error> {
        replace(&self.topology_path(), &to_json(topology)?)
    }

    /// Where files follow the MIG instances; nothing where none do.
    pub fn host_files(&self) -> Result<Option<HostFiles>, Error> {
        let path = self.host_files_path();
        match fs::read_to_string(&path) {
            Ok(json) => serde_json::from_str(&json).map(Some).map_err(|source| Error::State { path, source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(file("read", &path)(error)),
        }
    }

    /// Has files follow the MIG instances from now on.
    pub fn set_host_files(&self, files: &HostFiles) -> Result<(), Error> {
        replace(&self.host_files_path(), &to_json(files)?)
    }

    /// Changes the state; readers in all processes see either the old or the new one. Files of MIG instances are there
    /// before anybody reads of the instances, and a GPU whose MIG mode is switched off loses its own.
    pub fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> Result<T, Error> {
        let lock_path = self.path.join("lock");
        let lock = File::create(&lock_path).map_err(file("create", &lock_path))?;
        lock.lock().map_err(file("lock", &lock_path))?;
        let mut state = self.state()?;
        let before = Capability::of(&state);
        let result = change(&mut state);
        for gpu in state.gpus.values_mut().filter(|gpu| gpu.mig_enabled == Some(false)) {
            gpu.mig.gpu_instances.clear();
        }
        let after = Capability::of(&state);
        let host = if before == after { None } else { self.host_files()? };
        let host = host.map(|files| self.topology().map(|topology| (files, topology))).transpose()?;
        if let Some((files, topology)) = &host {
            after.difference(&before).try_for_each(|&capability| files.add(&self.path, topology, capability))?;
        }
        replace(&self.state_path(), &to_json(&state)?)?;
        if let Some((files, topology)) = &host {
            before.difference(&after).try_for_each(|&capability| files.remove(&self.path, topology, capability))?;
            let changed: BTreeSet<_> = before.symmetric_difference(&after).map(|capability| capability.gpu).collect();
            changed.into_iter().try_for_each(|gpu| files.list(&self.path, topology, &state, gpu))?;
        }
        Ok(result)
    }

    /// Sends an event to every event set that has its GPU and type registered.
    pub fn send(&self, event: &Event) -> Result<(), Error> {
        let path = self.events_path();
        let mut line = serde_json::to_string(event).map_err(Error::Parse)?;
        line.push('\n');
        let mut events = OpenOptions::new().append(true).open(&path).map_err(file("open", &path))?;
        events.write_all(line.as_bytes()).map_err(file("write", &path))
    }
}

fn to_json<T: serde::Serialize>(value: &T) -> Result<String, Error> {
    serde_json::to_string_pretty(value).map_err(Error::Parse)
}

/// Replaces a file by rename, under the lock or before anyone else knows the directory.
///
/// The temporary name is fixed on purpose: random names (as from the `tempfile` crate) are seeded from the current
/// thread, and asking for that leaves a hook at the thread's end, which crashes it when the mock library that did
/// so has been unloaded meanwhile.
pub(crate) fn replace(path: &Path, content: &str) -> Result<(), Error> {
    let temp = path.with_extension("new");
    fs::write(&temp, content).map_err(file("write", &temp))?;
    fs::rename(&temp, path).map_err(file("replace", path))
}

pub(crate) fn file(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { act, path, source }
}
