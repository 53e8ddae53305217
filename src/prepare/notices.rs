//! Notices to other plugin processes that a claim was unprepared.
//!
//! An unprepare calls off the prepares of its claim that are under way ([`attempts`](super::attempts)). During a rolling
//! update, the old process may have one under way, without any lock because it still waits to read the claim, while the
//! kubelet asks the new process to unprepare. That one leaves a notice, under the lock of the claim:
//!
//! ```text
//!  old   prepare    begin, look at the notice ─── waits ─────────────────── lock ─ another notice? ─ work
//!  new   unprepare                          lock ─ leave a notice ─ work
//! ```
//!
//! A prepare that is asked for later finds that same notice at its begin and when it has the lock, and goes on. A
//! notice that has gone calls nothing off, so one may be removed as soon as everybody is gone whom it could concern: when
//! the process is alone and nobody can come meanwhile, and has no prepare of that claim under way itself.
//!
//! A notice is an empty file. What tells one from the next is its length, which needs no space: an unprepare must not fail
//! because the disk is full. Nothing is synced to disk: a reboot ends all prepares.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::siblings::Siblings;
use super::store::StoreError;
use crate::claim::ClaimUid;

/// Beside the claim's record, and not taken for one.
const SUFFIX: &str = ".unprepared";

/// Like that of records.
const MODE: u32 = 0o600;

/// The notices of all claims. Its methods block for as long as the disk takes.
#[derive(Debug)]
pub(super) struct Notices {
    directory: PathBuf,
    siblings: Arc<Siblings>,
    /// The number of starts at which this process was alone and saw to all of them.
    swept_at: Mutex<Option<u64>>,
}

/// How often the claim was unprepared until some moment, since its notice was made, if there was one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Notice(Option<u64>);

// === impl Notices ===

impl Notices {
    pub(super) fn new(directory: PathBuf, siblings: Arc<Siblings>) -> Self {
        Self { directory, siblings, swept_at: Mutex::default() }
    }

    /// The notice as it is now.
    pub(super) fn look(&self, uid: &ClaimUid) -> Result<Notice, StoreError> {
        let path = self.path(uid);
        match fs::metadata(&path) {
            Ok(metadata) => Ok(Notice(Some(metadata.len()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Notice(None)),
            Err(source) => Err(StoreError::Notice { act: "read", path, source }),
        }
    }

    /// Leaves a notice, if there is anybody to read it. The caller holds the lock of the claim.
    pub(super) fn leave(&self, uid: &ClaimUid) -> Result<(), StoreError> {
        if !self.siblings.are_present().map_err(StoreError::Locks)? {
            return Ok(());
        }
        let path = self.path(uid);
        let lengthen = || {
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(MODE).open(&path)?;
            file.set_len(file.metadata()?.len() + 1)
        };
        lengthen().map_err(|source| StoreError::Notice { act: "write", path: path.clone(), source })
    }

    /// Removes the notices that nobody needs any more.
    pub(super) fn sweep(&self, is_under_way: impl Fn(&ClaimUid) -> bool) -> Result<(), StoreError> {
        let starts = self.siblings.starts().map_err(StoreError::Locks)?;
        let mut swept_at = self.swept_at.lock().unwrap_or_else(PoisonError::into_inner);
        if *swept_at == Some(starts) || self.siblings.are_present().map_err(StoreError::Locks)? {
            return Ok(());
        }
        let swept = self.siblings.while_alone(|| self.remove_all_but(is_under_way)).map_err(StoreError::Locks)?;
        let path = self.directory.clone();
        let all = swept.transpose().map_err(|source| StoreError::Directory { act: "list", path, source })?;
        *swept_at = all.unwrap_or(false).then_some(starts);
        Ok(())
    }

    /// Whether none is left.
    fn remove_all_but(&self, is_under_way: impl Fn(&ClaimUid) -> bool) -> io::Result<bool> {
        let mut all = true;
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            let Some(uid) = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)) else { continue };
            if ClaimUid::parse(uid).is_ok_and(|uid| is_under_way(&uid)) {
                all = false;
            } else if let Err(error) = fs::remove_file(self.directory.join(&name)) {
                // It does no harm.
                tracing::warn!(claim.uid = uid, %error, "cannot remove the notice that a claim was unprepared");
            }
        }
        Ok(all)
    }

    fn path(&self, uid: &ClaimUid) -> PathBuf {
        self.directory.join(format!("{uid}{SUFFIX}"))
    }
}

// === impl Notice ===

impl Notice {
    /// One that nobody has seen yet.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// Whether a prepare that saw `before` when it began is called off by this one.
    pub(super) fn calls_off(&self, before: &Self) -> bool {
        self.0.is_some() && self != before
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::claim::example::mk_uid;

    #[test]
    fn no_two_notices_are_the_same_and_none_needs_space() {
        let directory = tempfile::tempdir().unwrap();
        let [one, other] = [(); 2].map(|()| {
            let siblings = Siblings::open(&directory.path().join("claims.lock")).unwrap();
            Notices::new(directory.path().to_owned(), siblings)
        });
        let uid = mk_uid("a");
        let mut seen = vec![one.look(&uid).unwrap()];
        for by in [&one, &other, &other, &one] {
            by.leave(&uid).unwrap();
            let notice = one.look(&uid).unwrap();
            assert!(
                seen.iter().all(|before| notice.calls_off(before)) && !notice.calls_off(&other.look(&uid).unwrap())
            );
            seen.push(notice);
        }
        assert_eq!(fs::metadata(one.path(&uid)).unwrap().blocks(), 0);
    }
}
