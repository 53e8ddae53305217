//! NVIDIA's `/proc/driver/nvidia/params`, as the container sees it, says that user space makes no device nodes.
//!
//! The kernel module tells with `ModifyDeviceFiles: 1` that the driver's libraries and tools should make the nodes in
//! `/dev` that they miss, and they try, also those of GPUs that are not the container's. A copy that says 0 is laid over
//! the file. It lives in a file system in memory that has no name: the container's root stays as it was.
//!
//! ```text
//!  tmpfs ──write params──▶ read-only ──mount──▶ /proc/driver/nvidia ──clone of the one file──▶ over params
//!                                                       └── and gone again
//! ```
//!
//! The detour over a directory is there because kernels before 6.15 clone only what is mounted somewhere.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{self, FileType, Mode, OFlags, PROC_SUPER_MAGIC};
use rustix::io::Errno;
use rustix::mount::{self, FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use rustix::process::fchdir;

use crate::rootfs::{self, Rootfs};

const DIRECTORY: &str = "/proc/driver/nvidia";
const FILE: &str = "/proc/driver/nvidia/params";
const NAME: &str = "params";
/// The file has about forty short lines.
const MAX_BYTES: u64 = 64 << 10;

/// The file cannot be masked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Rootfs(#[from] rootfs::Error),
    #[error(
        "{FILE} is not the kernel's; mount a proc file system at /proc of the container, and nothing else below it"
    )]
    Foreign,
    #[error("cannot mask {FILE}: cannot {act} (is the hook run with CAP_SYS_ADMIN in the container's namespaces?)")]
    Mount {
        act: &'static str,
        #[source]
        source: Errno,
    },
}

/// Masks the file, if there is one and it needs it. What says so already is left, whoever made it: it can be the copy of
/// an earlier hook, for a container with two claims runs one for each.
pub(crate) fn mask(rootfs: &Rootfs) -> Result<(), Error> {
    let Some(file) = rootfs.without_links(FILE, OFlags::PATH)? else { return Ok(()) };
    let kind = fs::fstat(&file).map_err(rootfs::failed("look at", FILE))?.st_mode;
    if FileType::from_raw_mode(kind) != FileType::RegularFile {
        return Err(Error::Foreign);
    }
    let Some(masked) = read(rootfs)?.as_deref().and_then(masked) else { return Ok(()) };
    if fs::fstatfs(&file).map_err(rootfs::failed("look at", FILE))?.f_type != PROC_SUPER_MAGIC {
        return Err(Error::Foreign);
    }
    let Some(directory) = rootfs.without_links(DIRECTORY, OFlags::PATH | OFlags::DIRECTORY)? else { return Ok(()) };
    cover(&file, &directory, &masked)
}

fn read(rootfs: &Rootfs) -> Result<Option<Vec<u8>>, Error> {
    let Some(file) = rootfs.without_links(FILE, OFlags::RDONLY | OFlags::NONBLOCK)? else { return Ok(None) };
    let mut content = Vec::new();
    let read = File::from(file).take(MAX_BYTES).read_to_end(&mut content);
    read.map_err(|error| rootfs::failed("read", FILE)(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    Ok(Some(content))
}

/// The content with the one setting changed; none if it says so already.
fn masked(content: &[u8]) -> Option<Vec<u8>> {
    let mut changed = false;
    let lines = content.split_inclusive(|byte| *byte == b'\n').map(|line| {
        let is_set = line.trim_ascii() == b"ModifyDeviceFiles: 1";
        changed |= is_set;
        if is_set { b"ModifyDeviceFiles: 0\n" } else { line }
    });
    let masked = lines.collect::<Vec<_>>().concat();
    changed.then_some(masked)
}

/// Lays a file with this content over another.
fn cover(file: &OwnedFd, directory: &OwnedFd, content: &[u8]) -> Result<(), Error> {
    let tmpfs = tmpfs(content).map_err(cannot("make a file system in memory"))?;
    let empty_paths = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    mount::move_mount(&tmpfs, c"", directory, c"", empty_paths).map_err(cannot("mount the copy"))?;
    let copy = mount::open_tree(&tmpfs, NAME, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC);
    // A mount is taken away by path, and this path cannot lead anywhere else.
    let gone = fchdir(&tmpfs).and_then(|()| mount::unmount(c".", UnmountFlags::DETACH));
    let copy = copy.map_err(cannot("clone the copy"))?;
    gone.map_err(cannot("take the file system in memory away"))?;
    mount::move_mount(&copy, c"", file, c"", empty_paths).map_err(cannot("mount the copy over it"))
}

/// A read-only file system in memory with one file, mounted nowhere.
fn tmpfs(content: &[u8]) -> Result<OwnedFd, Errno> {
    let settings = mount::fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    mount::fsconfig_set_string(&settings, c"mode", c"0555")?;
    mount::fsconfig_set_string(&settings, c"size", c"128k")?;
    mount::fsconfig_create(&settings)?;
    let inert =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let tmpfs = mount::fsmount(&settings, FsMountFlags::FSMOUNT_CLOEXEC, inert)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let copy = fs::openat(&tmpfs, NAME, flags, Mode::from_raw_mode(0o444))?;
    File::from(copy).write_all(content).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    mount::fsconfig_set_flag(&settings, c"ro")?;
    mount::fsconfig_reconfigure(&settings)?;
    Ok(tmpfs)
}

fn cannot(act: &'static str) -> impl FnOnce(Errno) -> Error {
    move |source| Error::Mount { act, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_setting_is_changed_and_nothing_else() {
        let content = b"Mobile: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\n";
        assert_eq!(masked(content).unwrap(), b"Mobile: 4294967295\nModifyDeviceFiles: 0\nDeviceFileUID: 0\n");
        assert_eq!(masked(b"ModifyDeviceFiles: 1").unwrap(), b"ModifyDeviceFiles: 0\n");
    }

    #[test]
    fn a_file_that_says_so_already_is_left_alone() {
        for content in [&b"ModifyDeviceFiles: 0\n"[..], b"", b"XModifyDeviceFiles: 1\n", b"ModifyDeviceFiles: 11\n"] {
            assert_eq!(masked(content), None);
        }
    }
}
