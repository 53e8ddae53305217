//! One directory of the container, and all that is ever changed in one.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{Error, failed};

/// What is still being written. Not a name that a loader or `ldconfig` looks at.
const TEMPORARY: &str = ".gpu-dra-hook";

/// An open directory.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    path: String,
    /// Whether it may be changed.
    own: bool,
}

// === impl Directory ===

impl Directory {
    pub(super) fn new(fd: OwnedFd, path: &str, own: bool) -> Self {
        Self { fd, path: path.to_owned(), own }
    }

    /// The first names in it, in no order.
    pub(crate) fn names(&self, at_most: usize) -> Result<Vec<String>, Error> {
        let list = || {
            let readable =
                fs::openat(&self.fd, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
            let entries = fs::Dir::new(readable)?.take(at_most);
            // A name that is no text is none that anybody here looks for.
            let names = entries.map(|entry| Ok::<_, Errno>(entry?.file_name().to_str().ok().map(str::to_owned)));
            names.filter_map(Result::transpose).collect::<Result<_, _>>()
        };
        list().map_err(failed("list", &self.path))
    }

    /// Whether there is a regular file of this name, itself and not behind a link.
    pub(crate) fn has_file(&self, name: &str) -> Result<bool, Error> {
        Ok(self.kind(name)? == Some(FileType::RegularFile))
    }

    /// Whether there is anything of this name.
    pub(crate) fn has(&self, name: &str) -> Result<bool, Error> {
        Ok(self.kind(name)?.is_some())
    }

    /// Gives the name to a new file, which all may read.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> Result<(), Error> {
        self.check(name)?;
        let write = || {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = self.afresh(|| fs::openat(&self.fd, TEMPORARY, flags, Mode::from_raw_mode(0o644)))?;
            let written = File::from(file).write_all(content);
            written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            self.rename(TEMPORARY, name)
        };
        write().map_err(|error| self.give_up("write", name, error))
    }

    /// Makes `name` a link to `target`. An equal one stays. A different one is replaced: a link holds no data, and one
    /// that an image brought along, from a machine with another driver, must not win. A file is moved aside to a name
    /// that no loader looks at, so that it does not win either and yet is not lost. A directory is left alone.
    pub(crate) fn link(&self, name: &str, target: &str) -> Result<(), Error> {
        let new = |name: &str| fs::symlinkat(target, &self.fd, name);
        let made = match self.kind(name)? {
            Some(FileType::Symlink) => {
                let present = fs::readlinkat(&self.fd, name, Vec::new());
                if present.is_ok_and(|present| present.as_bytes() == target.as_bytes()) {
                    return Ok(());
                }
                self.check(name)?;
                self.afresh(|| new(TEMPORARY)).and_then(|()| self.rename(TEMPORARY, name))
            }
            Some(FileType::Directory) => return Err(Error::Directory { path: self.at(name) }),
            Some(_) => {
                self.check(name)?;
                self.move_aside(name)?;
                new(name)
            }
            None => {
                self.check(name)?;
                new(name)
            }
        };
        made.map_err(|error| self.give_up("make the link", name, error))
    }

    /// Makes a directory, which all may read.
    pub(super) fn make(&self, name: &str) -> Result<(), Error> {
        self.check(name)?;
        match fs::mkdirat(&self.fd, name, Mode::from_raw_mode(0o755)) {
            // Then it is a link, or it would have been opened.
            Err(Errno::EXIST) => Err(Error::DeadLink { path: self.at(name) }),
            result => result.map_err(failed("make the directory", &self.at(name))),
        }
    }

    fn move_aside(&self, name: &str) -> Result<(), Error> {
        let aside = format!(".{name}.image");
        if self.has(&aside)? {
            return Err(failed("move aside, to a name that is taken,", &self.at(name))(Errno::EXIST));
        }
        self.rename(name, &aside).map_err(failed("move aside", &self.at(name)))
    }

    fn kind(&self, name: &str) -> Result<Option<FileType>, Error> {
        match fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT) {
            Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(failed("look at", &self.at(name))(error)),
        }
    }

    fn check(&self, name: &str) -> Result<(), Error> {
        if self.own { Ok(()) } else { Err(Error::Volume { path: self.at(name) }) }
    }

    /// Makes the temporary file or link, in place of one that a killed hook, or the image, has left.
    fn afresh<T>(&self, make: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        match make() {
            Err(Errno::EXIST) => {
                fs::unlinkat(&self.fd, TEMPORARY, AtFlags::empty())?;
                make()
            }
            result => result,
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        fs::renameat(&self.fd, from, &self.fd, to)
    }

    fn give_up(&self, act: &'static str, name: &str, error: Errno) -> Error {
        // What could not be given its name is of no use, and the first error is the one to tell.
        let _ = fs::unlinkat(&self.fd, TEMPORARY, AtFlags::empty());
        match error {
            Errno::ISDIR => Error::Directory { path: self.at(name) },
            error => failed(act, &self.at(name))(error),
        }
    }

    fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.path.trim_end_matches('/'))
    }
}
