//! Paths in a tree that is the root of another system.
//!
//! A driver container's `/usr/lib/libcuda.so.1` may lead to `/opt/…`, which means `/opt` of that tree and not ours.
//! The tree belongs to the machine's administrator, so this is about following links rightly, not about an attacker who
//! swaps them meanwhile.

use std::ffi::OsString;
use std::fs::FileType;
use std::io;
use std::path::{Component, Path, PathBuf};

/// The kernel's own limit (path_resolution(7)).
const MAX_LINKS: u32 = 40;

/// Follows all links as a process would whose root directory is `root`: absolute links start there again, and `..`
/// stops there. Answers the path relative to `root`; everything on it exists.
pub(super) fn resolve(root: &Path, path: &Path) -> io::Result<PathBuf> {
    Ok(follow(root, PathBuf::new(), path)?.0)
}

/// Follows all links of a regular file below a directory that has been resolved before: many files are looked for in few
/// directories, and each part of a path costs a system call.
pub(super) fn regular_file(root: &Path, directory: &Path, path: &Path) -> Option<PathBuf> {
    let (path, kind) = follow(root, directory.to_owned(), path).ok()?;
    kind.is_some_and(|kind| kind.is_file()).then_some(path)
}

/// Also answers what stands at the end, where that was looked at.
fn follow(root: &Path, mut done: PathBuf, path: &Path) -> io::Result<(PathBuf, Option<FileType>)> {
    let mut pending = parts(path);
    let mut kind = None;
    let mut links = 0;
    while let Some(part) = pending.pop() {
        if part == ".." {
            done.pop();
            kind = None;
            continue;
        }
        let next = done.join(&part);
        let local = root.join(&next);
        let found = local.symlink_metadata()?.file_type();
        if !found.is_symlink() {
            (done, kind) = (next, Some(found));
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many symbolic links"));
        }
        let target = local.read_link()?;
        if target.is_absolute() {
            (done, kind) = (PathBuf::new(), None);
        }
        pending.extend(parts(&target));
    }
    Ok((done, kind))
}

/// The parts of a path, last first.
fn parts(path: &Path) -> Vec<OsString> {
    let kept = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("usr/lib")).unwrap();
        fs::create_dir_all(root.path().join("etc")).unwrap();
        fs::write(root.path().join("usr/lib/real"), "").unwrap();
        fs::write(root.path().join("etc/passwd"), "of the tree").unwrap();
        symlink("usr/lib", root.path().join("lib")).unwrap();
        symlink("/usr/lib/real", root.path().join("usr/lib/absolute")).unwrap();
        symlink("../../../../../../etc/passwd", root.path().join("usr/lib/outwards")).unwrap();
        symlink("b", root.path().join("a")).unwrap();
        symlink("a", root.path().join("b")).unwrap();
        root
    }

    #[test]
    fn links_are_followed_and_never_leave_the_tree() {
        let root = tree();
        for (path, expected) in [
            ("/usr/lib/real", "usr/lib/real"),
            ("/lib/real", "usr/lib/real"),
            ("/lib/absolute", "usr/lib/real"),
            ("usr/lib/outwards", "etc/passwd"),
            ("/../..", ""),
        ] {
            assert_eq!(resolve(root.path(), Path::new(path)).unwrap(), Path::new(expected), "{path}");
        }
    }

    #[test]
    fn only_regular_files_are_found_in_a_directory() {
        let root = tree();
        let find = |name| regular_file(root.path(), Path::new("usr/lib"), Path::new(name));
        symlink("..", root.path().join("usr/lib/up")).unwrap();
        fs::create_dir(root.path().join("usr/lib/directory")).unwrap();
        assert_eq!(find("real").unwrap(), Path::new("usr/lib/real"));
        assert_eq!(find("absolute").unwrap(), Path::new("usr/lib/real"));
        assert_eq!(find("outwards").unwrap(), Path::new("etc/passwd"));
        assert_eq!(["up", "directory", "none"].map(find), [None, None, None]);
    }

    #[test]
    fn circles_and_missing_files_are_errors() {
        let root = tree();
        assert!(resolve(root.path(), Path::new("/a")).is_err());
        assert_eq!(resolve(root.path(), Path::new("/usr/none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
