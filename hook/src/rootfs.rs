//! The container's root file system, which the image fills and nobody trusts.
//!
//! A link in it may lead to the host's `/etc`, a fifo may stand where a file belongs, a file may be endless. So no path is
//! ever put together and opened: the kernel resolves each one beneath the root, as it will for the container's own
//! programs, and all that is done to a file is done by its name in a directory that is already open.
//!
//! ```text
//!  path ──openat2(RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)──▶ directory (O_PATH) ──┬─▶ write: new file, then rename
//!                                                                                └─▶ link: new link, or rename
//! ```
//!
//! Nothing is written through what is there: a name gets a new file or link, and what it led to stays as it was. Nothing
//! is written to a volume either: that belongs to the host, or to other containers that may be changing it right now.

mod directory;
mod mounts;
mod place;
mod read_only;

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

pub(crate) use directory::Directory;
pub(crate) use place::{NotAPlace, Place, is_name};

/// How often a path is tried again: on a busy node any rename or mount can make the kernel lose sight of whether `..`
/// stayed beneath the root, and it says so rather than guess.
const TRIES: u32 = 1000;

/// All mounts that this process can see: the host's and the container's, because its root is still the host's.
const MOUNTINFO: &str = "/proc/self/mountinfo";

/// `TMPFS_MAGIC` of linux/magic.h.
const TMPFS_MAGIC: fs::FsWord = 0x0102_1994;

/// The root of one container, open.
#[derive(Debug)]
pub(crate) struct Rootfs {
    root: OwnedFd,
    mount: u64,
}

/// The container's file system cannot be made what it should be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot {act} {path}{}", advice(*.source))]
    Failed {
        act: &'static str,
        path: String,
        #[source]
        source: Errno,
    },
    #[error(
        "cannot change {path}: its directory is a volume, and only the container's own file system may change; mount the \
         volume somewhere else"
    )]
    Volume { path: String },
    #[error("cannot replace {path}, which is a directory; remove it from the image")]
    Directory { path: String },
    #[error(
        "cannot make {path}: it is a link that leads to nothing; remove it from the image, or make what it leads to"
    )]
    DeadLink { path: String },
    #[error("{path} is no file, so the runtime has not mounted it, or a volume hides it; mount no volume above it")]
    Missing { path: String },
}

// === impl Rootfs ===

impl Rootfs {
    /// Opens the root, by a path of the host.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let open = || {
            let root = fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
            let mount = mount_of(&root)?;
            Ok(Self { root, mount })
        };
        open().map_err(failed("open the container's root file system", &path.to_string_lossy()))
    }

    /// A directory, and those above it, made where they are missing.
    pub(crate) fn make_directory(&self, path: &str) -> Result<Directory, Error> {
        if let Some(directory) = self.directory(path)? {
            return Ok(directory);
        }
        let mut reached = String::new();
        let mut above = self.directory_or_fail("/")?;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            reached.push('/');
            reached.push_str(part);
            if let Some(directory) = self.directory(&reached)? {
                above = directory;
            } else {
                above.make(part)?;
                above = self.directory_or_fail(&reached)?;
            }
        }
        Ok(above)
    }

    /// A directory, if it is there.
    pub(crate) fn directory(&self, path: &str) -> Result<Option<Directory>, Error> {
        let open = || {
            let directory = self.beneath(path, OFlags::PATH | OFlags::DIRECTORY)?;
            let own = self.own(&directory)?;
            Ok(Directory::new(directory, path, own))
        };
        match open() {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(failed("open the directory", path)(error)),
        }
    }

    /// The content of a regular file of at most `limit` bytes, links followed beneath the root. Whatever else is there, a
    /// fifo, a device, an endless file, is as good as none, and is not opened.
    pub(crate) fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, Error> {
        let content = self.read_start(path, limit + 1)?;
        Ok(content.filter(|content| content.len() as u64 <= limit))
    }

    /// The same of a file that may be longer: its first `limit` bytes.
    pub(crate) fn read_start(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, Error> {
        match self.try_read(path, limit) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            result => result.map_err(failed("read", path)),
        }
    }

    /// Whether there is a regular file, links followed beneath the root.
    pub(crate) fn has_file(&self, path: &str) -> bool {
        let stat = self.beneath(path, OFlags::PATH).and_then(fs::fstat);
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
    }

    /// Which directory this is, by device and inode: two paths can lead to one.
    pub(crate) fn identity(&self, path: &str) -> Option<(u64, u64)> {
        let stat = self.beneath(path, OFlags::PATH | OFlags::DIRECTORY).and_then(fs::fstat).ok()?;
        Some((stat.st_dev, stat.st_ino))
    }

    /// What a path leads to if there is no link on it.
    pub(crate) fn without_links(&self, path: &str, flags: OFlags) -> Result<Option<OwnedFd>, Error> {
        match self.resolve(path, flags, ResolveFlags::NO_SYMLINKS) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(failed("open", path)(error)),
        }
    }

    fn directory_or_fail(&self, path: &str) -> Result<Directory, Error> {
        self.directory(path)?.ok_or_else(|| Error::DeadLink { path: path.to_owned() })
    }

    fn try_read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, Errno> {
        // Opening can be an act (it rewinds a tape), so what is there is looked at first.
        let seen = fs::fstat(self.beneath(path, OFlags::PATH)?)?;
        if FileType::from_raw_mode(seen.st_mode) != FileType::RegularFile {
            return Ok(None);
        }
        let file = self.beneath(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let opened = fs::fstat(&file)?;
        // Nothing runs in the container yet, but what shares a volume with it may have swapped the file.
        if (opened.st_dev, opened.st_ino) != (seen.st_dev, seen.st_ino) {
            return Ok(None);
        }
        let mut content = Vec::new();
        let read = File::from(file).take(limit).read_to_end(&mut content);
        read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(Some(content))
    }

    /// Whether this belongs to the container alone: its root file system, or one in memory that the runtime has made for
    /// it, as `/dev` is.
    fn own(&self, directory: &OwnedFd) -> Result<bool, Errno> {
        let mount = mount_of(directory)?;
        if mount == self.mount {
            return Ok(true);
        }
        let in_memory = fs::fstatfs(directory)?.f_type == TMPFS_MAGIC;
        // Without the list nobody can say so.
        let mountinfo = || std::fs::read(MOUNTINFO).unwrap_or_default();
        Ok(in_memory && mounts::is_only_beneath(&String::from_utf8_lossy(&mountinfo()), self.mount, mount))
    }

    fn beneath(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        self.resolve(path, flags, ResolveFlags::empty())
    }

    fn resolve(&self, path: &str, flags: OFlags, also: ResolveFlags) -> Result<OwnedFd, Errno> {
        let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | also;
        let mut result = Err(Errno::AGAIN);
        for _ in 0..TRIES {
            result = fs::openat2(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty(), how);
            if !matches!(result, Err(Errno::AGAIN | Errno::INTR)) {
                break;
            }
        }
        result
    }
}

/// The mount that a file is on.
fn mount_of(file: &OwnedFd) -> Result<u64, Errno> {
    let statx = fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    // An older kernel leaves the number out.
    if statx.stx_mask & StatxFlags::MNT_ID.bits() == 0 { Err(Errno::NOSYS) } else { Ok(statx.stx_mnt_id) }
}

pub(crate) fn failed(act: &'static str, path: &str) -> impl FnOnce(Errno) -> Error {
    let path = path.to_owned();
    move |source| Error::Failed { act, path, source }
}

/// What to do about an error whose own words do not say it.
fn advice(error: Errno) -> &'static str {
    match error {
        Errno::NOSYS => " (the node needs Linux 5.8 or newer)",
        Errno::ROFS => " (the image needs a root file system that the runtime can write to)",
        Errno::NOTDIR => " (mend the image: something on that path is not a directory)",
        Errno::LOOP => " (mend the image: links on that path lead in a circle, or out of every file system)",
        Errno::BUSY => " (a volume is mounted there; mount it somewhere else)",
        Errno::PERM | Errno::ACCESS => " (the runtime has to run this hook as root of the container)",
        _ => "",
    }
}
