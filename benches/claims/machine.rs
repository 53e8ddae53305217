//! What machine the figures are from.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

/// What a reader has to know to compare the figures with others.
pub(crate) struct Machine {
    pub(crate) cores: usize,
    model: String,
    kernel: String,
    file_system: String,
}

// === impl Machine ===

impl Machine {
    /// Looks at this machine, and at the file system of a directory.
    pub(crate) fn look(directory: &Path) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let cpus = read("/proc/cpuinfo");
        let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            model: model.map_or("unknown", |(_, model)| model).to_owned(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            file_system: file_system(&read("/proc/self/mountinfo"), directory).unwrap_or("unknown").to_owned(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cores, model, kernel, file_system } = self;
        let date = Timestamp::now().strftime("%F");
        write!(f, "Measured on {date}: {cores} cores ({model}), Linux {kernel}, {file_system}.")
    }
}

/// The type of the file system that a path is on, by proc_pid_mountinfo(5).
fn file_system<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let path = path.canonicalize().ok()?;
    let mounts = mounts.lines().filter_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        Some((PathBuf::from(mount.split(' ').nth(4)?), source.split(' ').next()?))
    });
    let above = mounts.filter(|(point, _)| path.starts_with(point));
    // Of several at one point the last one is on top.
    above.max_by_key(|(point, _)| point.components().count()).map(|(_, kind)| kind)
}
