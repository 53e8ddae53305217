//! Waiting for a file of the node directory to change, without polling.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::io::{Errno, read};

use crate::code::{Answer, Code};

/// Room for a few hundred inotify records; what does not fit stays readable and wakes the next wait.
const RECORDS: usize = 4096;

/// An inotify watch on a directory. Create it before looking at the files, so that no change falls between.
pub(crate) struct Watch {
    inotify: OwnedFd,
}

// === impl Watch ===

impl Watch {
    /// Watches writes to files of a directory (events are appended) and renames into it (the state is replaced).
    pub(crate) fn new(dir: &Path) -> Answer<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let inotify = inotify::init(flags).map_err(|_| Code::UNKNOWN)?;
        let changes = inotify::WatchFlags::MODIFY | inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::DELETE;
        inotify::add_watch(&inotify, dir, changes).map_err(|_| Code::UNKNOWN)?;
        Ok(Self { inotify })
    }

    /// Returns after a change, a signal, or the timeout. The caller looks again at what it waits for.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Answer {
        let timeout = timeout.map(Timespec::try_from).transpose().map_err(|_| Code::INVALID_ARGUMENT)?;
        match poll(&mut [PollFd::new(&self.inotify, PollFlags::IN)], timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return Err(Code::UNKNOWN),
        }
        match read(&self.inotify, &mut [0_u8; RECORDS]) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => Err(Code::UNKNOWN),
        }
    }
}
