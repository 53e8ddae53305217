//! Other plugin processes on the same directory: during a rolling update the old one finishes its work while the new
//! one is at work already.
//!
//! They share one file, which is empty on disk. It is locked in ranges of one byte, most of which lie beyond its end, and
//! the kernel gives back what a process held when that ends, however it ends:
//!
//! ```text
//!  <plugin dir>/claims.lock
//!     its length     how often a plugin was started on this directory
//!     byte 0         held for a moment by whoever starts, and by whoever makes sure that nobody does
//!     byte 1         shared by all who live, from before they read records
//!     2^61 + hash    held by whoever works on the claim
//!     2^62 + hash    held by whoever works on the GPU
//! ```
//!
//! # What one process may believe of another
//!
//! A process keeps the records in memory, for the question who holds a GPU. It may answer from memory as long as nobody
//! has been started since it read all records while it was alone. For let C be the number of starts that it saw, A the
//! moment after that when it saw that it was alone, and R the reading of the records after that. Whatever another process
//! changes, it changes after it was counted, while it is present, and under the lock of the GPU. One that was counted
//! before C has ended before A, so R has seen all that it did. One that was counted after C makes the number differ from C
//! before it changes anything; and while the number is read under the lock of a GPU, nobody else changes who holds that.
//! So one look at the length of a file suffices, however many claims there are.
//!
//! The file must stay while a plugin runs: who removes it takes this away from processes that are started later.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use sha2::{Digest, Sha256};

use crate::claim::ClaimUid;
use crate::device::GpuUuid;

/// Who can open the file can stop all work.
const MODE: u32 = 0o600;

/// Where the bytes of claims and of GPUs begin. A hash has 61 bits, so they end where others begin, or below 2^63.
const CLAIMS: u64 = 1 << 61;
const GPUS: u64 = 1 << 62;
const TURNS: u64 = GPUS + CLAIMS;
const HASH_BITS: u32 = 61;

/// This process among those that share a directory. Its presence ends when this is dropped.
#[derive(Debug)]
pub(super) struct Siblings {
    path: PathBuf,
    file: File,
    /// Locks belong to the open file, so within the process they exclude nobody.
    starting: Mutex<()>,
}

/// A byte of the file. Their order is the order of locking: a claim, then GPUs.
///
/// Two keys can have one byte, if hardly ever. They then exclude each other, so whatever is done for a key within the
/// process must be done for its byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Slot(u64);

/// A slot that this process holds until this is dropped.
#[derive(Debug)]
pub(super) struct Range {
    siblings: Arc<Siblings>,
    slot: Slot,
}

/// The file could not be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {act} {}, by which plugin processes keep out of each other's way", path.display())]
pub struct LockError {
    act: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Shared,
    Exclusive,
    Unlocked,
}

// === impl Siblings ===

impl Siblings {
    /// Joins those who share the file, which is made if it is missing. Waits for others that are starting.
    pub(super) fn open(path: &Path) -> Result<Arc<Self>, LockError> {
        let failed = |act| move |source| LockError { act, path: path.to_owned(), source };
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).mode(MODE).open(path);
        let file = file.map_err(failed("open"))?;
        let siblings = Self { path: path.to_owned(), file, starting: Mutex::default() };
        siblings.set(Slot::STARTS, Kind::Exclusive, true)?;
        siblings.set(Slot::PRESENCE, Kind::Shared, true)?;
        // Not synced: no process survives what makes the disk forget. A length needs no space, and no format.
        siblings.file.set_len(siblings.starts()? + 1).map_err(failed("count a start in"))?;
        siblings.set(Slot::STARTS, Kind::Unlocked, true)?;
        Ok(Arc::new(siblings))
    }

    /// How often a plugin was started on this directory.
    pub(super) fn starts(&self) -> Result<u64, LockError> {
        self.file.metadata().map(|metadata| metadata.len()).map_err(self.failed("look at"))
    }

    /// Whether any other process is there.
    pub(super) fn are_present(&self) -> Result<bool, LockError> {
        let mut range = Slot::PRESENCE.range(Kind::Exclusive);
        fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut range))
            .map_err(io::Error::from)
            .map_err(self.failed("look at"))?;
        Ok(range.l_type != Kind::Unlocked.number())
    }

    /// Does something while no other process is there and none can come; `None` if one is. Those that come meanwhile
    /// wait for it, so it must be short.
    pub(super) fn while_alone<T>(&self, act: impl FnOnce() -> T) -> Result<Option<T>, LockError> {
        let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        self.set(Slot::STARTS, Kind::Exclusive, true)?;
        let done = self.are_present().map(|present| (!present).then(act));
        self.set(Slot::STARTS, Kind::Unlocked, true)?;
        done
    }

    /// Locks a slot unless another process holds it. The caller sees to it that nobody in this process does.
    pub(super) fn try_lock(self: &Arc<Self>, slot: Slot) -> Result<Option<Range>, LockError> {
        let locked = self.set(slot, Kind::Exclusive, false)?;
        Ok(locked.then(|| Range { siblings: Arc::clone(self), slot }))
    }

    /// Whether it is so now; if it is to wait, it is.
    fn set(&self, slot: Slot, kind: Kind, wait: bool) -> Result<bool, LockError> {
        let range = slot.range(kind);
        loop {
            let act = if wait { FcntlArg::F_OFD_SETLKW(&range) } else { FcntlArg::F_OFD_SETLK(&range) };
            match fcntl(&self.file, act) {
                Ok(_) => return Ok(true),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN | Errno::EACCES) if !wait => return Ok(false),
                Err(error) => return Err(self.failed("lock")(error.into())),
            }
        }
    }

    fn failed(&self, act: &'static str) -> impl FnOnce(io::Error) -> LockError {
        let path = self.path.clone();
        move |source| LockError { act, path, source }
    }
}

// === impl Slot ===

impl Slot {
    const STARTS: Self = Self(0);
    const PRESENCE: Self = Self(1);

    pub(super) fn claim(uid: &ClaimUid) -> Self {
        Self(CLAIMS + hash(uid.as_str()))
    }

    pub(super) fn gpu(uuid: &GpuUuid) -> Self {
        Self(GPUS + hash(uuid.as_str()))
    }

    pub(super) fn turn(uuid: &GpuUuid) -> Self {
        Self(TURNS + hash(uuid.as_str()))
    }

    fn range(self, kind: Kind) -> libc::flock {
        libc::flock {
            l_type: kind.number(),
            #[expect(clippy::cast_possible_truncation, reason = "it is 0")]
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: self.0.cast_signed(),
            l_len: 1,
            l_pid: 0,
        }
    }
}

// === impl Range ===

impl Drop for Range {
    fn drop(&mut self) {
        if let Err(error) = self.siblings.set(self.slot, Kind::Unlocked, true) {
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, "a lock against other plugin processes stays until this one ends");
        }
    }
}

// === impl Kind ===

impl Kind {
    #[expect(clippy::cast_possible_truncation, reason = "they are 0, 1 and 2")]
    fn number(self) -> libc::c_short {
        let number = match self {
            Self::Shared => libc::F_RDLCK,
            Self::Exclusive => libc::F_WRLCK,
            Self::Unlocked => libc::F_UNLCK,
        };
        number as libc::c_short
    }
}

/// The same in every version of the plugin: two that differ would not exclude each other.
fn hash(key: &str) -> u64 {
    let hash = Sha256::digest(key);
    hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte)) >> (u64::BITS - HASH_BITS)
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::claim::example::{mk_uid, mk_uuid};

    /// Long enough for another thread to do what it must not do.
    const MOMENT: Duration = Duration::from_millis(50);

    fn open(directory: &tempfile::TempDir) -> Arc<Siblings> {
        Siblings::open(&directory.path().join("claims.lock")).unwrap()
    }

    #[test]
    fn those_who_live_see_each_other_and_those_who_ended_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let first = open(&directory);
        assert!(!first.are_present().unwrap());
        assert_eq!(first.starts().unwrap(), 1);
        let second = open(&directory);
        assert!(first.are_present().unwrap() && second.are_present().unwrap());
        assert_eq!((second.starts().unwrap(), first.starts().unwrap()), (2, 2));
        drop(first);
        assert!(!second.are_present().unwrap());
        drop(second);
        assert_eq!(open(&directory).starts().unwrap(), 3);
    }

    #[test]
    fn the_file_is_for_root_alone_and_needs_no_space() {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir().unwrap();
        let siblings = open(&directory);
        let metadata = siblings.file.metadata().unwrap();
        assert_eq!((metadata.mode() & 0o777, metadata.blocks()), (MODE, 0));
    }

    #[test]
    fn a_slot_has_one_holder_and_other_slots_are_free() {
        let directory = tempfile::tempdir().unwrap();
        let [one, other] = [open(&directory), open(&directory)];
        let (claim, gpu) = (Slot::claim(&mk_uid("a")), Slot::gpu(&mk_uuid(0)));
        let held = one.try_lock(claim).unwrap().unwrap();
        assert!(other.try_lock(claim).unwrap().is_none());
        assert!(other.try_lock(gpu).unwrap().is_some());
        assert!(other.try_lock(Slot::claim(&mk_uid("b"))).unwrap().is_some());
        drop(held);
        assert!(other.try_lock(claim).unwrap().is_some());
    }

    #[test]
    fn a_slot_is_free_when_its_holder_ends() {
        let directory = tempfile::tempdir().unwrap();
        let [one, other] = [open(&directory), open(&directory)];
        let slot = Slot::gpu(&mk_uuid(0));
        assert!(one.set(slot, Kind::Exclusive, false).unwrap());
        assert!(other.try_lock(slot).unwrap().is_none());
        // It is killed: nobody unlocks anything.
        drop(one);
        assert!(other.try_lock(slot).unwrap().is_some());
    }

    #[test]
    fn nobody_comes_while_somebody_makes_sure_to_be_alone() {
        let directory = tempfile::tempdir().unwrap();
        let first = open(&directory);
        let path = directory.path().join("claims.lock");
        let comer = first.while_alone(|| {
            let comer = thread::spawn(move || Siblings::open(&path).unwrap());
            thread::sleep(MOMENT);
            assert!(!first.are_present().unwrap() && first.starts().unwrap() == 1);
            comer
        });
        let second = comer.unwrap().unwrap().join().unwrap();
        assert_eq!(second.starts().unwrap(), 2);
        assert!(first.while_alone(|| ()).unwrap().is_none());
        drop(second);
        assert!(first.while_alone(|| ()).unwrap().is_some());
    }

    #[test]
    fn slots_stay_where_they_are_from_version_to_version() {
        // Computed with Python's hashlib.
        assert_eq!(Slot::claim(&mk_uid("a")).0, (1 << 61) + (0xca97_8112_ca1b_bdca_u64 >> 3));
        let gpu = GpuUuid::parse("GPU-a").unwrap();
        assert!(Slot::gpu(&gpu) > Slot::claim(&mk_uid("a")) && Slot::gpu(&gpu).0 < 1 << 63);
        assert!(Slot::PRESENCE < Slot::claim(&mk_uid("a")));
    }
}
