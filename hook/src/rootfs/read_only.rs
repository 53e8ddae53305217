//! A root that nobody in the container may write to.
//!
//! The container gets it so, and yet it has to be finished first. runc mounts such a root read-only after its hooks have
//! run, crun before. What crun has done is undone for as long as the hook works: on the one mount that is the container's
//! root, in the container's own mount namespace, where no program runs yet. A file system that is read-only itself stays so.

use rustix::fs::{self, StatVfsMountFlags as Present};
use rustix::io::Errno;
use rustix::mount::{self, MountFlags};
use rustix::process::fchdir;

use super::{Error, Rootfs, failed};

/// What else a mount can be, which a remount has to say again: the root of a user namespace may not leave out what was
/// there before it.
const KEPT: [(Present, MountFlags); 5] = [
    (Present::NOSUID, MountFlags::NOSUID),
    (Present::NODEV, MountFlags::NODEV),
    (Present::NOEXEC, MountFlags::NOEXEC),
    (Present::NOATIME, MountFlags::NOATIME),
    (Present::NODIRATIME, MountFlags::NODIRATIME),
];

// === impl Rootfs ===

impl Rootfs {
    /// Works on a root that can be written to, if that is the mount's to decide. It is read-only again before this
    /// returns, however the work ends; else it is an error, and the container must not start.
    pub(crate) fn while_writable<E: From<Error>>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let present = fs::fstatvfs(&self.root).map_err(failed("look at the root", "/"))?.f_flag;
        let flags = KEPT.iter().filter(|(set, _)| present.contains(*set)).map(|(_, flag)| *flag).collect();
        // Where it cannot be, what has to be written says so. It may be there already.
        if !present.contains(Present::RDONLY) || self.remount(flags).is_err() {
            return work();
        }
        let done = work();
        self.remount(flags | MountFlags::RDONLY).map_err(failed("make the root read-only again", "/"))?;
        done
    }

    fn remount(&self, flags: MountFlags) -> Result<(), Errno> {
        // By a path that cannot lead anywhere else.
        fchdir(&self.root)?;
        mount::mount_remount(c".", MountFlags::BIND | flags, c"")
    }
}
