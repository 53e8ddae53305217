//! Files under one root.
//!
//! Every file and link is replaced by rename, so that a plugin that reads while a scenario changes the machine sees the old
//! content or the new one, and a replaced library has a new inode, as after a real installation.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::Error;

/// A directory that files are put into by relative path.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    root: PathBuf,
}

// === impl Tree ===

impl Tree {
    pub(super) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }

    /// A directory with its parents.
    pub(super) fn dir(&self, relative: impl AsRef<Path>) -> Result<(), Error> {
        let path = self.path(relative);
        fs::create_dir_all(&path).map_err(file("create the directory", &path))
    }

    /// A file that everybody may read.
    pub(super) fn file(&self, relative: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<(), Error> {
        self.replace(relative.as_ref(), content.as_ref(), 0o644)
    }

    /// A file that everybody may run.
    pub(super) fn executable(&self, relative: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<(), Error> {
        self.replace(relative.as_ref(), content.as_ref(), 0o755)
    }

    /// A symbolic link with exactly this text in it.
    pub(super) fn link(&self, relative: impl AsRef<Path>, target: impl AsRef<Path>) -> Result<(), Error> {
        let path = self.path(&relative);
        self.make_parent(&path)?;
        let new = self.path(format!("{}.new", relative.as_ref().display()));
        remove(&new)?;
        symlink(target, &new).map_err(file("create the link", &new))?;
        fs::rename(&new, &path).map_err(file("create the link", &path))
    }

    /// A symbolic link from one place of this tree to another, relative as the kernel's own links in sysfs are.
    pub(super) fn link_within(&self, relative: &str, target: &str) -> Result<(), Error> {
        let up = "../".repeat(relative.matches('/').count());
        self.link(relative, format!("{up}{target}"))
    }

    /// The socket of a daemon that nobody answers on.
    pub(super) fn socket(&self, relative: impl AsRef<Path>) -> Result<(), Error> {
        let path = self.path(&relative);
        self.make_parent(&path)?;
        remove(&path)?;
        // Made as a file: what is bound has a path of at most 107 bytes.
        let made = mknodat(CWD, &path, FileType::Socket, Mode::from_raw_mode(0o666), 0).map_err(io::Error::from);
        made.map_err(file("create the socket", &path))
    }

    /// Removes a file or link; one that is not there is removed already.
    pub(super) fn remove(&self, relative: impl AsRef<Path>) -> Result<(), Error> {
        remove(&self.path(relative))
    }

    /// Removes a directory with all that is in it; one that is not there is removed already.
    pub(super) fn remove_dir(&self, relative: impl AsRef<Path>) -> Result<(), Error> {
        let path = self.path(relative);
        absent_is_fine(fs::remove_dir_all(&path)).map_err(file("remove", &path))
    }

    fn replace(&self, relative: &Path, content: &[u8], mode: u32) -> Result<(), Error> {
        let path = self.path(relative);
        let parent = self.make_parent(&path)?;
        let mut temp = tempfile::NamedTempFile::new_in(parent).map_err(file("write", &path))?;
        io::Write::write_all(&mut temp, content).map_err(file("write", &path))?;
        temp.as_file().set_permissions(Permissions::from_mode(mode)).map_err(file("set the mode of", &path))?;
        temp.persist(&path).map_err(|error| error.error).map_err(file("write", &path))?;
        Ok(())
    }

    fn make_parent<'a>(&'a self, path: &'a Path) -> Result<&'a Path, Error> {
        let parent = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent).map_err(file("create the directory", parent))?;
        Ok(parent)
    }
}

/// Builds the error of a failed act on a path.
pub(super) fn file(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { act, path, source }
}

fn remove(path: &Path) -> Result<(), Error> {
    absent_is_fine(fs::remove_file(path)).map_err(file("remove", path))
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}
