//! Files that are either the old one or the new one, also after a power cut.
//!
//! ```text
//!  write:   temp file in the same directory ─▶ fsync ─▶ rename over the name ─▶ fsync of the directory
//!  remove:  unlink ─▶ fsync of the directory
//!  make:    directory ─▶ fsync of the one that it is in
//!  sweep:   unlink what was left half written ─▶ fsync of the directory
//!  hold:    others who hold the directory wait, for what is read and written in several steps
//! ```
//!
//! The rename makes the change whole, the second fsync makes it last: without it a directory may forget, on power loss,
//! a file that its writer believed to be there. Whoever was stopped between the two has made a change that all can see and
//! that need not last. So what finds its work done synchronises it nevertheless, and a directory is swept before anybody
//! relies on what is in it. These calls block for as long as the disk takes, so async code runs them
//! on a thread of its own.

#[cfg(test)]
pub(crate) mod faults;

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::NamedTempFile;

#[cfg(test)]
use self::faults::step;

/// How the name of a file begins that is still being written. The dot and the missing suffix keep it from everyone who
/// reads these directories: container runtimes take only `*.json` and `*.yaml`.
const TEMPORARY_PREFIX: &str = ".gpu-dra-plugin-";

/// A temporary file of this age has lost its writer: a write takes milliseconds, and an earlier plugin process may
/// still be writing into the same directory while it stops.
const LEFTOVER_AGE: Duration = Duration::from_secs(60);

/// A file could not be changed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {act} {}", path.display())]
pub struct Error {
    /// What was tried: "write", "remove".
    pub act: &'static str,
    /// On which file.
    pub path: PathBuf,
    /// Why it failed.
    #[source]
    pub source: io::Error,
}

/// A change of the disk, which is made next.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(test), expect(dead_code, reason = "only tests look into it"))]
enum Step<'a> {
    /// A temporary file in this directory.
    Create,
    Write(&'a [u8]),
    SetMode,
    Sync,
    /// To this path.
    Rename(&'a Path),
    Unlink,
    MakeDirectory,
    SyncDirectory,
}

/// Replaces or creates a file with the given permission bits, whatever the umask is.
pub fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    replace(path, bytes, mode).map_err(failed("write", path))
}

/// Removes a file. One that is not there is success, also where nothing could be removed.
pub fn remove(path: &Path) -> Result<(), Error> {
    let remove = || {
        unlink(path)?;
        let directory = parent(path)?;
        if directory.is_dir() { sync_directory(directory) } else { Ok(()) }
    };
    remove().map_err(failed("remove", path))
}

/// Makes a directory by its absolute path, and those above it, where they are missing, with the given permission bits as
/// far as the umask allows. Whether it did.
pub fn make_directory(path: &Path, mode: u32) -> io::Result<bool> {
    let Some(above) = path.parent() else { return Ok(false) };
    let mut is_new = false;
    if !path.is_dir() {
        make_directory(above, mode)?;
        step(Step::MakeDirectory, path)?;
        is_new = match DirBuilder::new().mode(mode).create(path) {
            Ok(()) => true,
            // Somebody else was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => false,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            Err(error) => return Err(error),
        };
    }
    sync_directory(above)?;
    Ok(is_new)
}

/// Keeps out everybody else who holds the directory, until what is answered is dropped. Waits for whoever holds it now.
pub fn hold(directory: &Path) -> io::Result<File> {
    let held = File::open(directory)?;
    held.lock()?;
    Ok(held)
}

/// Makes what was renamed, created or removed in a directory last, whoever did it.
pub fn settle(directory: &Path) -> Result<(), Error> {
    sync_directory(directory).map_err(failed("sync", directory))
}

/// Moves a file within its file system. Both directories remember it.
pub fn rename(from: &Path, to: &Path) -> Result<(), Error> {
    let rename = || {
        step(Step::Rename(to), from)?;
        fs::rename(from, to)?;
        sync_directory(parent(to)?)?;
        sync_directory(parent(from)?)
    };
    rename().map_err(failed("move aside", from))
}

/// Removes what interrupted writes left in a directory, and makes the rest last; answers how many files were removed.
pub fn sweep(directory: &Path) -> Result<usize, Error> {
    sweep_older_than(directory, LEFTOVER_AGE).map_err(failed("sweep", directory))
}

fn is_gone(path: &Path) -> bool {
    let gone = |kind| matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    fs::symlink_metadata(path).is_err_and(|error| gone(error.kind()))
}

fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let directory = parent(path)?;
    step(Step::Create, directory)?;
    let mut temporary =
        tempfile::Builder::new().prefix(TEMPORARY_PREFIX).disable_cleanup(true).tempfile_in(directory)?;
    let replaced = fill(&mut temporary, bytes, mode).and_then(|()| {
        step(Step::Rename(path), temporary.path())?;
        fs::rename(temporary.path(), path)
    });
    if replaced.is_err() {
        // What stays is swept at a later start.
        let _ = unlink(temporary.path());
    }
    replaced?;
    sync_directory(directory)
}

fn fill(temporary: &mut NamedTempFile, bytes: &[u8], mode: u32) -> io::Result<()> {
    step(Step::Write(bytes), temporary.path())?;
    temporary.write_all(bytes)?;
    step(Step::SetMode, temporary.path())?;
    temporary.as_file().set_permissions(Permissions::from_mode(mode))?;
    step(Step::Sync, temporary.path())?;
    temporary.as_file().sync_all()
}

fn sweep_older_than(directory: &Path, age: Duration) -> io::Result<usize> {
    let mut swept = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with(TEMPORARY_PREFIX) {
            continue;
        }
        // A file from the future (a clock set back) has no age, and stays until its time comes.
        let Ok(Ok(modified)) = entry.metadata().map(|metadata| metadata.modified()) else { continue };
        // Another process may sweep here too, and be faster.
        if modified.elapsed().is_ok_and(|elapsed| elapsed >= age) && unlink(&entry.path())? {
            swept += 1;
        }
    }
    sync_directory(directory)?;
    Ok(swept)
}

/// Removes a file; whether it was there.
fn unlink(path: &Path) -> io::Result<bool> {
    step(Step::Unlink, path)?;
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        // A read-only file system refuses before it looks.
        Err(_) if is_gone(path) => Ok(false),
        Err(error) => Err(error),
    }
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    step(Step::SyncDirectory, directory)?;
    File::open(directory)?.sync_all()
}

fn parent(path: &Path) -> io::Result<&Path> {
    path.parent().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path has no directory"))
}

/// Every change of the disk passes here before it is made, so that tests can stop it.
#[cfg(not(test))]
#[expect(clippy::unnecessary_wraps, reason = "tests have it fail")]
fn step(_: Step<'_>, _: &Path) -> io::Result<()> {
    Ok(())
}

fn failed(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error { act, path, source }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::faults::{Fault, FaultyDisk, Unsynced};
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_write_replaces_the_file_and_leaves_nothing_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("claim.json");
        write(&path, b"old", 0o600).unwrap();
        write(&path, b"new", 0o644).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(names(directory.path()), ["claim.json"]);
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("taken");
        fs::create_dir_all(path.join("by a directory")).unwrap();
        let error = write(&path, b"new", 0o644).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot write {}", path.display()));
        assert_eq!(names(directory.path()), ["taken"]);
    }

    #[test]
    fn removing_what_is_gone_is_success() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("claim.json");
        fs::write(&path, "").unwrap();
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert!(names(directory.path()).is_empty());
        fs::write(&path, "").unwrap();
        remove(&path.join("below a file")).unwrap();
    }

    #[test]
    fn what_others_left_unsynchronised_lasts_once_it_is_relied_on() {
        let root = tempfile::tempdir().unwrap();
        let [removed, swept, made] = ["removed/x", "swept/x", "made"].map(|name| root.path().join(name));
        for path in [&removed, &swept] {
            fs::create_dir(path.parent().unwrap()).unwrap();
        }
        fs::write(&removed, "").unwrap();
        let disk = FaultyDisk::new(root.path().to_owned());
        let do_the_same = || {
            disk.arm(usize::MAX, Fault::Death);
            fs::remove_file(&removed).unwrap();
            fs::write(&swept, "").unwrap();
            fs::create_dir(&made).unwrap();
        };

        do_the_same();
        disk.cut_power(Unsynced::Lost);
        assert_eq!([&removed, &swept, &made].map(|path| path.exists()), [true, false, false]);

        do_the_same();
        remove(&removed).unwrap();
        sweep(swept.parent().unwrap()).unwrap();
        make_directory(&made, 0o700).unwrap();
        disk.cut_power(Unsynced::Lost);
        assert_eq!([&removed, &swept, &made].map(|path| path.exists()), [false, true, true]);
    }

    #[test]
    fn directories_are_made_where_they_are_missing_and_only_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plugin/claims");
        assert!(make_directory(&path, 0o700).unwrap());
        for made in [&path, path.parent().unwrap()] {
            assert_eq!(fs::metadata(made).unwrap().permissions().mode() & 0o777, 0o700);
        }
        assert!(!make_directory(&path, 0o750).unwrap());
        fs::write(path.join("file"), "").unwrap();
        assert!(make_directory(&path.join("file"), 0o700).is_err());
        assert!(make_directory(&path.join("file/below"), 0o700).is_err());
    }

    #[test]
    fn a_directory_has_one_holder_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let held = hold(directory.path()).unwrap();
        let other = File::open(directory.path()).unwrap();
        assert!(other.try_lock().is_err());
        drop(held);
        other.try_lock().unwrap();
    }

    #[test]
    fn a_file_that_another_process_has_swept_is_no_error() {
        let directory = tempfile::tempdir().unwrap();
        assert!(!unlink(&directory.path().join(".gpu-dra-plugin-gone")).unwrap());
    }

    #[test]
    fn a_sweep_takes_old_leftovers_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - 2 * LEFTOVER_AGE;
        for name in [".gpu-dra-plugin-a1", "claim.json", ".other"] {
            let file = File::create(directory.path().join(name)).unwrap();
            file.set_modified(old).unwrap();
        }
        File::create(directory.path().join(".gpu-dra-plugin-young")).unwrap();
        assert_eq!(sweep(directory.path()).unwrap(), 1);
        let mut left = names(directory.path());
        left.sort();
        assert_eq!(left, [".gpu-dra-plugin-young", ".other", "claim.json"]);
    }
}
