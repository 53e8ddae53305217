//! Disks for tests that fail at a step: the process dies there, the disk refuses it, or the power goes.
//!
//! ```text
//!  arm(n, fault) ─▶ step 1 … step n-1    done, and noted: what lasts, what does not yet
//!                   step n               the fault
//!                   step n+1 …           nothing more (the process is dead), or done (the disk had refused once)
//!  revive, cut_power ─▶ the next process
//! ```
//!
//! A disk is everything below one directory, because tests run side by side and the steps of one call on several threads.
//! What tests themselves do to the files lasts as soon as they arm a fault.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Step;

static DISKS: Mutex<BTreeMap<PathBuf, Disk>> = Mutex::new(BTreeMap::new());

/// What happens at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process dies before it.
    Death,
    /// The process dies in the write of this number: half is written.
    DeathMidway,
    /// The disk is full, or has an error, and works again afterwards.
    Refusal,
}

/// How much of what was not synchronised is there after a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unsynced {
    /// Directories are as they were when they were last synchronised.
    Lost,
    /// Directories are as they were last, but the contents of files are gone.
    EntriesKept,
}

/// A disk that can fail.
#[derive(Debug)]
pub(crate) struct FaultyDisk {
    root: PathBuf,
}

/// A directory: the contents of its files, and `None` for its directories.
type Entries = BTreeMap<OsString, Option<Vec<u8>>>;

#[derive(Debug, Default)]
struct Disk {
    steps: usize,
    writes: usize,
    fault: Option<(usize, Fault)>,
    dead: bool,
    /// What a power cut leaves of each directory.
    lasting: BTreeMap<PathBuf, Entries>,
    /// Files whose contents a power cut takes.
    unsynced: BTreeSet<PathBuf>,
}

// === impl FaultyDisk ===

impl FaultyDisk {
    /// Everything below a directory.
    pub(crate) fn new(root: PathBuf) -> Self {
        disks().insert(root.clone(), Disk::default());
        Self { root }
    }

    /// From now on steps are counted, and the one of this number, from 1, goes wrong. What is there lasts.
    pub(crate) fn arm(&self, step: usize, fault: Fault) {
        let mut disk = Disk { fault: Some((step, fault)), ..Disk::default() };
        disk.remember(&self.root);
        disks().insert(self.root.clone(), disk);
    }

    /// Whether the fault has happened.
    pub(crate) fn has_failed(&self) -> bool {
        disks()[&self.root].fault.is_none()
    }

    /// Lets another process use the disk, which has no fault any more.
    pub(crate) fn revive(&self) {
        self.change(|disk| (disk.dead, disk.fault, disk.steps) = (false, None, 0));
    }

    /// How many steps there were since the disk was armed or revived.
    pub(crate) fn steps(&self) -> usize {
        disks()[&self.root].steps
    }

    /// Takes what does not last, with the process.
    pub(crate) fn cut_power(&self, unsynced: Unsynced) {
        self.change(|disk| match unsynced {
            Unsynced::Lost => disk.restore(&self.root),
            Unsynced::EntriesKept => disk.unsynced.iter().for_each(|path| fs::write(path, "").unwrap()),
        });
        self.revive();
    }

    fn change(&self, change: impl FnOnce(&mut Disk)) {
        change(disks().get_mut(&self.root).unwrap());
    }
}

impl Drop for FaultyDisk {
    fn drop(&mut self) {
        disks().remove(&self.root);
    }
}

// === impl Disk ===

impl Disk {
    fn step(&mut self, step: Step<'_>, path: &Path) -> io::Result<()> {
        if self.dead {
            return Err(io::Error::other("the process is dead"));
        }
        self.steps += 1;
        self.writes += usize::from(matches!(step, Step::Write(_)));
        let (steps, writes) = (self.steps, self.writes);
        let Some((_, fault)) = self.fault.take_if(|(at, fault)| match fault {
            Fault::DeathMidway => *at == writes,
            Fault::Death | Fault::Refusal => *at == steps,
        }) else {
            self.note(step, path);
            return Ok(());
        };
        if let (Step::Write(bytes), Fault::DeathMidway | Fault::Refusal) = (step, fault) {
            fs::write(path, &bytes[..bytes.len() / 2])?;
            self.unsynced.insert(path.to_owned());
        }
        self.dead = fault != Fault::Refusal;
        let takes_space = matches!(step, Step::Create | Step::Write(_) | Step::Rename(_) | Step::MakeDirectory);
        Err(if takes_space { rustix::io::Errno::NOSPC } else { rustix::io::Errno::IO }.into())
    }

    /// Takes note of a step that is made.
    fn note(&mut self, step: Step<'_>, path: &Path) {
        match step {
            Step::Write(_) => {
                self.unsynced.insert(path.to_owned());
            }
            Step::Sync => {
                self.unsynced.remove(path);
                let entries = path.parent().and_then(|directory| self.lasting.get_mut(directory));
                if let Some(contents) = entries.and_then(|entries| entries.get_mut(path.file_name()?)) {
                    *contents = Some(fs::read(path).unwrap());
                }
            }
            Step::Rename(to) => {
                if self.unsynced.remove(path) {
                    self.unsynced.insert(to.to_owned());
                }
            }
            Step::SyncDirectory => {
                let entries = self.entries(path);
                self.lasting.insert(path.to_owned(), entries);
            }
            Step::Create | Step::SetMode | Step::Unlink | Step::MakeDirectory => {}
        }
    }

    /// What a directory contains that is synchronised now.
    fn entries(&self, directory: &Path) -> Entries {
        let entry = |entry: io::Result<fs::DirEntry>| {
            let (name, path) = entry.map(|entry| (entry.file_name(), entry.path())).unwrap();
            let contents = if self.unsynced.contains(&path) { Some(Vec::new()) } else { fs::read(&path).ok() };
            (name, contents)
        };
        fs::read_dir(directory).unwrap().map(entry).collect()
    }

    /// Takes a directory as it is for one that lasts, with all that are in it.
    fn remember(&mut self, directory: &Path) {
        let entries = self.entries(directory);
        for (name, contents) in &entries {
            if contents.is_none() {
                self.remember(&directory.join(name));
            }
        }
        self.lasting.insert(directory.to_owned(), entries);
    }

    /// Makes a directory be what lasts of it, with all that are in it.
    fn restore(&self, directory: &Path) {
        let lasting = self.lasting.get(directory).cloned().unwrap_or_default();
        for name in self.entries(directory).into_keys().filter(|name| !lasting.contains_key(name)) {
            let path = directory.join(name);
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
        }
        for (name, contents) in lasting {
            let path = directory.join(name);
            if let Some(contents) = contents {
                fs::write(path, contents).unwrap();
            } else {
                fs::create_dir_all(&path).unwrap();
                self.restore(&path);
            }
        }
    }
}

/// Every change of a disk passes here before it is made.
pub(super) fn step(step: Step<'_>, path: &Path) -> io::Result<()> {
    let mut disks = disks();
    let disk = disks.iter_mut().find(|(root, _)| path.starts_with(root));
    disk.map_or(Ok(()), |(_, disk)| disk.step(step, path))
}

fn disks() -> MutexGuard<'static, BTreeMap<PathBuf, Disk>> {
    DISKS.lock().unwrap_or_else(PoisonError::into_inner)
}
