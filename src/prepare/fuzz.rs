//! A door for `fuzz/`, which sees only what is public: the records on disk.

use std::path::Path;

use super::StoreError;
use super::record::Record;
use super::store::Store;
use crate::claim::ClaimUid;

/// A directory of records.
#[derive(Debug)]
pub struct Records(Store);

/// A record that was read.
#[derive(Debug, PartialEq, Eq)]
pub struct Kept(Record);

// === impl Records ===

impl Records {
    /// Reads all records in a directory.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        Store::open(directory.to_owned()).map(Self)
    }

    /// The record of a claim.
    pub fn load(&self, uid: &ClaimUid) -> Result<Option<Kept>, StoreError> {
        self.0.load(uid).map(|record| record.map(Kept))
    }

    /// Writes a record.
    pub fn save(&self, record: &Kept) -> Result<(), StoreError> {
        self.0.save(&record.0)
    }
}
