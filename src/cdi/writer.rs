//! Claims' specs on disk.
//!
//! Other files in the directory are never read, let alone parsed: a write costs the same whether one claim is prepared or
//! a thousand, and what others wrote cannot make it fail.

use std::fs;
use std::io;
use std::path::PathBuf;

use serde_json::Value;

use super::spec::{Kind, Spec};
use crate::host::atomic;

/// Runtimes run as root, tools that list devices do not.
const MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

const SUFFIX: &str = ".json";

/// The specs of one kind in a CDI directory. A claim's is `<vendor>-<class>_<claim uid>.json`.
#[derive(Debug, Clone)]
pub struct Writer {
    directory: PathBuf,
    kind: Kind,
}

/// A spec could not be written, removed or listed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The directory cannot be made or read.
    #[error("cannot {act} the CDI directory {}", path.display())]
    Directory {
        /// What was tried: "create", "list".
        act: &'static str,
        /// Which directory.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A path in it is not UTF-8.
    #[error("cannot express the CDI spec {} in JSON", path.display())]
    Encode {
        /// The spec's file.
        path: PathBuf,
        /// What cannot be expressed.
        #[source]
        source: serde_json::Error,
    },
    /// The file system refused.
    #[error("the CDI directory refused")]
    File(#[source] atomic::Error),
}

// === impl Writer ===

impl Writer {
    /// Makes the directory if it is missing, and removes what interrupted writes left there.
    pub fn open(directory: PathBuf, kind: Kind) -> Result<Self, WriteError> {
        atomic::make_directory(&directory, DIRECTORY_MODE).map_err(|source| WriteError::Directory {
            act: "create",
            path: directory.clone(),
            source,
        })?;
        atomic::sweep(&directory).map_err(WriteError::File)?;
        Ok(Self { directory, kind })
    }

    /// The kind of the specs.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Where the spec of a claim is. The UID is a plain file name.
    pub fn path(&self, claim: &str) -> PathBuf {
        self.directory.join(format!("{}{claim}{SUFFIX}", self.kind.file_prefix()))
    }

    /// Whether a claim has a spec, and not what a disk or a hand has made of it.
    pub fn exists(&self, claim: &str) -> bool {
        let spec = fs::read(self.path(claim)).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        spec.is_some_and(|spec| spec["kind"] == self.kind.to_string())
    }

    /// Makes the spec of a claim be this one; answers whether it was another one before. One that is right already is
    /// left alone: runtimes watch the directory, and read everything in it again at each change.
    pub fn write(&self, claim: &str, spec: &Spec) -> Result<bool, WriteError> {
        let path = self.path(claim);
        let mut bytes =
            serde_json::to_vec_pretty(spec).map_err(|source| WriteError::Encode { path: path.clone(), source })?;
        bytes.push(b'\n');
        if fs::read(&path).is_ok_and(|old| old == bytes) {
            return Ok(false);
        }
        atomic::write(&path, &bytes, MODE).map_err(WriteError::File)?;
        Ok(true)
    }

    /// Removes the spec of a claim. One that is not there is success.
    pub fn remove(&self, claim: &str) -> Result<(), WriteError> {
        atomic::remove(&self.path(claim)).map_err(WriteError::File)
    }

    /// The claims that have a spec of this kind, by what their file names say.
    pub fn claims(&self) -> Result<Vec<String>, WriteError> {
        let failed = |source| WriteError::Directory { act: "list", path: self.directory.clone(), source };
        let prefix = self.kind.file_prefix();
        let mut claims = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let claim = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.strip_suffix(SUFFIX));
            claims.extend(claim.map(str::to_owned));
        }
        Ok(claims)
    }
}
