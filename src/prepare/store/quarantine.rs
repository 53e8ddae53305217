//! Where records are moved that cannot be read, for people to look at and for the GPUs that they name.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io;
use std::iter;
use std::path::{Path, PathBuf};

use super::{DIRECTORY_MODE, StoreError, uid_of};
use crate::claim::ClaimUid;
use crate::host::atomic;
use crate::prepare::damage::Damage;
use crate::prepare::remnant::Remnant;

/// The directory, beside the records.
const DIRECTORY: &str = "quarantine";

/// At the end of the names of records whose claims were unprepared since.
const RELEASED: &str = "released";

/// Records that were moved aside, by their paths before. Its methods block for as long as the disk takes.
#[derive(Debug)]
pub(super) struct Quarantine {
    directory: PathBuf,
    damage: Damage,
}

// === impl Quarantine ===

impl Quarantine {
    /// For the records in this directory.
    pub(super) fn new(claims: &Path) -> Self {
        Self { directory: claims.join(DIRECTORY), damage: Damage::default() }
    }

    /// What people are to be told of.
    pub(super) fn damage(&self) -> &Damage {
        &self.damage
    }

    /// What is left of the records that were moved aside and whose claims were not unprepared since.
    pub(super) fn remnants(&self) -> Result<BTreeMap<ClaimUid, Remnant>, StoreError> {
        let directory = &self.directory;
        let mut remnants = BTreeMap::<_, Remnant>::new();
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(remnants);
            }
            Err(source) => return Err(StoreError::Directory { act: "list", path: directory.clone(), source }),
        };
        for entry in entries {
            let entry =
                entry.map_err(|source| StoreError::Directory { act: "list", path: directory.clone(), source })?;
            let path = entry.path();
            // `<claim uid>.json`, or `<claim uid>.json.<number>`.
            let number = path.extension().and_then(|end| end.to_str()?.parse::<u32>().ok());
            let uid = uid_of(&number.map_or_else(|| path.clone(), |_| path.with_extension("")));
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            // What cannot be read holds nothing: people were told when it was moved.
            if let Some(uid) = uid.filter(|_| is_file)
                && let Ok(bytes) = fs::read(&path)
            {
                remnants.entry(uid).or_default().add(Remnant::of(&bytes));
            }
        }
        Ok(remnants)
    }

    /// Moves what is no record aside; this is left of it.
    pub(super) fn take(&self, path: &Path, why: &(dyn Error + 'static), remnant: &Remnant) -> Result<(), StoreError> {
        let created = atomic::make_directory(&self.directory, DIRECTORY_MODE);
        created.map_err(|source| StoreError::Directory { act: "create", path: self.directory.clone(), source })?;
        let aside = free(&self.aside(path));
        atomic::rename(path, &aside).map_err(StoreError::File)?;
        tracing::error!(
            from = %path.display(),
            to = %aside.display(),
            error = why as &dyn Error,
            gpus = ?remnant.gpus,
            "moved a damaged claim record aside; the GPUs that it names stay its claim's, and its CDI spec stays, until \
             unprepare"
        );
        self.damage.add(&aside, why, remnant.gpus.clone());
        Ok(())
    }

    /// Whether there is one whose claim was not unprepared since.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.aside(path).exists()
    }

    /// Takes note that the claim of a record was unprepared.
    pub(super) fn release(&self, path: &Path) -> Result<(), StoreError> {
        // From the last: if this is interrupted, the repeat finds the rest by counting from the first.
        for aside in self.all_aside(path).into_iter().rev() {
            let released = free(&with_end(&aside, RELEASED));
            atomic::rename(&aside, &released).map_err(StoreError::File)?;
        }
        Ok(())
    }

    /// Where the records of a claim that were moved aside are.
    fn all_aside(&self, path: &Path) -> Vec<PathBuf> {
        numbered(&self.aside(path)).take_while(|aside| aside.symlink_metadata().is_ok()).collect()
    }

    fn aside(&self, path: &Path) -> PathBuf {
        self.directory.join(path.file_name().unwrap_or_default())
    }
}

/// The path, and those with a number behind it.
fn numbered(path: &Path) -> impl Iterator<Item = PathBuf> {
    let more = (1_u32..).map(|number| with_end(path, &number.to_string()));
    iter::once(path.to_owned()).chain(more)
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(end);
    name.into()
}

/// The first of these that is free. What is there already may be what somebody is looking for, and a directory cannot be
/// replaced at all.
fn free(path: &Path) -> PathBuf {
    numbered(path).find(|path| path.symlink_metadata().is_err()).unwrap_or_else(|| path.to_owned())
}
