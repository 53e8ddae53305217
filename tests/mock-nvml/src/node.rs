//! The machine as this library sees it: the topology of its init, and the state of this moment.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use topology::{NodeDir, State, Topology};

use crate::code::{Answer, Code};
use crate::report::tell_error;

/// How long after a file's modification a second one may still carry the same time. Kernel clocks tick every 10 ms at
/// worst; a state that was written less than this before it was read is read again.
const CLOCK_GRAIN: Duration = Duration::from_millis(50);

/// A node directory, opened by `nvmlInit`.
pub(crate) struct Node {
    pub(crate) dir: NodeDir,
    pub(crate) topology: Topology,
    /// Topology indices in NVML index order: GPUs that were absent at init are not enumerated.
    pub(crate) visible: Vec<usize>,
    cache: Mutex<Option<Cached>>,
}

/// A state file as read once.
struct Cached {
    stamp: Stamp,
    settled: bool,
    state: Arc<State>,
}

/// What tells one state file from its successor.
#[derive(PartialEq, Eq)]
struct Stamp {
    inode: u64,
    modified: (i64, i64),
    length: u64,
}

// === impl Node ===

impl Node {
    /// Reads the machine. No topology is a machine without driver; a damaged one is an unknown error, which the person
    /// who damaged it finds on standard error.
    pub(crate) fn open(dir: NodeDir) -> Answer<Self> {
        let topology = dir.topology().map_err(|error| {
            if matches!(error, topology::Error::File { .. }) {
                return Code::DRIVER_NOT_LOADED;
            }
            tell_error(&error);
            Code::UNKNOWN
        })?;
        let mut node = Self { dir, topology, visible: Vec::new(), cache: Mutex::new(None) };
        let state = node.state()?;
        let absent = |index: &usize| state.gpus.get(index).is_some_and(|gpu| gpu.absent);
        node.visible = (0..node.topology.gpus.len()).filter(|index| !absent(index)).collect();
        Ok(node)
    }

    /// What happened so far. A stat a call; the file is read only when it changed. A damaged file fails every call.
    pub(crate) fn state(&self) -> Answer<Arc<State>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let metadata = fs::metadata(self.dir.state_path()).map_err(|_| Code::UNKNOWN)?;
        let stamp = Stamp {
            inode: metadata.ino(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            length: metadata.len(),
        };
        if let Some(cached) = cache.as_ref()
            && cached.settled
            && cached.stamp == stamp
        {
            return Ok(Arc::clone(&cached.state));
        }
        let age = metadata.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        let state = Arc::new(self.dir.state().map_err(|_| Code::UNKNOWN)?);
        let settled = age.is_some_and(|age| age > CLOCK_GRAIN);
        *cache = Some(Cached { stamp, settled, state: Arc::clone(&state) });
        Ok(state)
    }

    /// The version of the driver that runs now.
    pub(crate) fn driver_version<'a>(&'a self, state: &'a State) -> &'a str {
        state.driver_version.as_deref().unwrap_or(&self.topology.system.driver_version)
    }

    /// Appends a line to the call log, if a test made one.
    pub(crate) fn log(&self, call: &str, gpu: Option<usize>) {
        if let Ok(mut log) = OpenOptions::new().append(true).open(self.dir.calls_path()) {
            let line = gpu.map_or_else(|| format!("{call}\n"), |index| format!("{call} {index}\n"));
            // A log that cannot be written must not change what the program sees.
            let _ = log.write_all(line.as_bytes());
        }
    }
}
