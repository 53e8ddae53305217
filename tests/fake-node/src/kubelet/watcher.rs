//! Finds registrar sockets, as the kubelet's plugin watcher does.
//!
//! The kubelet gets `Create` and `Remove` events of a directory and those below it, and acts on nothing else: a socket
//! that is renamed away stays in its books. Here the directory is polled, and an open `O_PATH` handle on each socket
//! tells the two apart: it has no link left once its path was removed, and it pins the inode number, so that a socket
//! that was removed and created anew in between is seen to be another one.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// Which creation of a socket this is: two sockets at one path, one after the other, differ in it.
pub(super) type Generation = u64;

/// The sockets that shall be registered.
#[derive(Debug, Default)]
pub(super) struct Watcher {
    sockets: BTreeMap<PathBuf, Socket>,
    generations: Generation,
}

#[derive(Debug)]
struct Socket {
    handle: OwnedFd,
    inode: (u64, u64),
    generation: Generation,
    /// Its path went without a `Remove` event; none will come.
    renamed: bool,
}

// === impl Watcher ===

impl Watcher {
    /// Looks at the directory and returns the paths of all sockets to register.
    ///
    /// Sockets and directories whose name starts with `.` are left out.
    pub(super) fn scan(&mut self, directory: &Path) -> BTreeMap<PathBuf, Generation> {
        let mut found = BTreeMap::new();
        collect(directory, &mut found);
        for (path, handle) in found {
            let Ok(inode) = rustix::fs::fstat(&handle).map(|stat| (stat.st_dev, stat.st_ino)) else { continue };
            if self.sockets.get(&path).is_some_and(|known| known.inode == inode) {
                continue;
            }
            self.generations += 1;
            self.sockets.insert(path, Socket { handle, inode, generation: self.generations, renamed: false });
        }
        self.sockets.retain(|path, socket| {
            let gone = !path.exists();
            socket.renamed |= gone && !is_unlinked(&socket.handle);
            !gone || socket.renamed
        });
        self.sockets.iter().map(|(path, socket)| (path.clone(), socket.generation)).collect()
    }
}

fn collect(directory: &Path, found: &mut BTreeMap<PathBuf, OwnedFd>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        let Ok(kind) = entry.file_type() else { continue };
        if !hidden && kind.is_dir() {
            collect(&entry.path(), found);
        } else if !hidden && kind.is_socket() {
            let path = entry.path();
            if let Ok(handle) =
                rustix::fs::open(&path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
            {
                found.insert(path, handle);
            }
        }
    }
}

fn is_unlinked(handle: &OwnedFd) -> bool {
    rustix::fs::fstat(handle).is_ok_and(|stat| stat.st_nlink == 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn names(watcher: &mut Watcher, directory: &Path) -> Vec<String> {
        let name = |path: &PathBuf| path.strip_prefix(directory).unwrap().display().to_string();
        watcher.scan(directory).keys().map(name).collect()
    }

    #[test]
    fn sockets_are_found_in_subdirectories_and_hidden_ones_and_files_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("sub")).unwrap();
        fs::write(at("file.sock"), "").unwrap();
        let _sockets = ["a.sock", ".hidden.sock", "sub/b.sock"].map(|name| UnixListener::bind(at(name)).unwrap());
        assert_eq!(names(&mut Watcher::default(), directory.path()), ["a.sock", "sub/b.sock"]);
    }

    #[test]
    fn a_socket_created_anew_is_another_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        let mut watcher = Watcher::default();
        let _first = UnixListener::bind(&path).unwrap();
        let first = watcher.scan(directory.path());
        assert_eq!(watcher.scan(directory.path()), first);
        fs::remove_file(&path).unwrap();
        let _second = UnixListener::bind(&path).unwrap();
        let second = watcher.scan(directory.path());
        assert!(second[&path] > first[&path]);
        fs::remove_file(&path).unwrap();
        assert!(watcher.scan(directory.path()).is_empty());
    }

    #[test]
    fn a_socket_renamed_away_is_still_thought_to_be_there() {
        let directory = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir_in(directory.path().parent().unwrap()).unwrap();
        let path = directory.path().join("a.sock");
        let _socket = UnixListener::bind(&path).unwrap();
        let mut watcher = Watcher::default();
        watcher.scan(directory.path());
        fs::rename(&path, elsewhere.path().join("b.sock")).unwrap();
        assert_eq!(names(&mut watcher, directory.path()), ["a.sock"]);
        fs::remove_file(elsewhere.path().join("b.sock")).unwrap();
        assert_eq!(names(&mut watcher, directory.path()), ["a.sock"]);
    }
}
