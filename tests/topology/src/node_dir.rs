//! The directory where the processes of one fake node meet.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::{Event, State, Topology};

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
    /// No machine of this name among the built-in ones.
    #[error("there is no topology {name:?}; the built-in ones are {known}")]
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

    /// Changes the state; readers in all processes see either the old or the new one.
    pub fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> Result<T, Error> {
        let lock_path = self.path.join("lock");
        let lock = File::create(&lock_path).map_err(file("create", &lock_path))?;
        lock.lock().map_err(file("lock", &lock_path))?;
        let mut state = self.state()?;
        let result = change(&mut state);
        replace(&self.state_path(), &to_json(&state)?)?;
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
fn replace(path: &Path, content: &str) -> Result<(), Error> {
    let temp = path.with_extension("new");
    fs::write(&temp, content).map_err(file("write", &temp))?;
    fs::rename(&temp, path).map_err(file("replace", path))
}

fn file(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { act, path, source }
}
