//! A small driver root for tests.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode};
use tempfile::TempDir;

use super::DriverRoot;

pub(crate) const VERSION: &str = "580.105.08";

/// A driver root in a temporary directory, or somewhere in another one.
pub(crate) struct Tree {
    path: PathBuf,
    _temporary: Option<TempDir>,
}

// === impl Tree ===

impl Tree {
    /// No driver in it.
    pub(crate) fn empty() -> Self {
        let temporary = temporary_directory();
        Self { path: temporary.path().to_owned(), _temporary: Some(temporary) }
    }

    /// Laid out as on Debian and Ubuntu.
    pub(crate) fn debian() -> Self {
        let tree = Self::empty();
        tree.fill();
        tree
    }

    pub(crate) fn debian_at(path: &Path) {
        Self { path: path.to_owned(), _temporary: None }.fill();
    }

    /// As the driver container of the GPU Operator is seen.
    pub(crate) fn root(&self) -> DriverRoot {
        DriverRoot::new("/run/nvidia/driver", &self.path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn write(&self, relative: &str, bytes: &[u8]) {
        let path = self.path.join(relative);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// A socket that nobody serves.
    pub(crate) fn socket(&self, relative: &str) {
        let path = self.path.join(relative);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        rustix::fs::mknodat(CWD, path, FileType::Socket, Mode::from_raw_mode(0o666), 0).unwrap();
    }

    fn fill(&self) {
        let libraries = "usr/lib/x86_64-linux-gnu";
        for library in ["libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"] {
            let soname = format!("{library}.so.1");
            let name = format!("{library}.so.{VERSION}");
            self.write(&format!("{libraries}/{name}"), &shared_object(&soname));
            symlink(name, self.path.join(libraries).join(soname)).unwrap();
        }
        self.write("usr/bin/nvidia-smi", b"#!/bin/sh\n");
        fs::set_permissions(self.path.join("usr/bin/nvidia-smi"), fs::Permissions::from_mode(0o755)).unwrap();
        for chip in ["ga10x", "tu10x"] {
            self.write(&format!("usr/lib/firmware/nvidia/{VERSION}/gsp_{chip}.bin"), b"");
        }
        symlink("usr/lib", self.path.join("lib")).unwrap();
        self.socket("run/nvidia-persistenced/socket");
    }
}

/// In memory where there is room for it: tests make many files, and some wait for the disk at each.
pub(crate) fn temporary_directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// The smallest ELF file that a loader would find a SONAME in: one segment that holds everything, one that points at
/// the dynamic section, and after that the strings.
pub(crate) fn shared_object(soname: &str) -> Vec<u8> {
    const DYNAMIC: u64 = 64 + 2 * 56;
    const STRINGS: u64 = DYNAMIC + 3 * 16;
    // Where the file is loaded: anything but 0, so that address and offset differ.
    const BASE: u64 = 0x1000;
    let length = STRINGS + 1 + soname.len() as u64 + 1;
    let mut file = vec![];
    file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    file.extend([3, 0, 62, 0, 1, 0, 0, 0]); // shared object, x86-64, version 1
    for word in [0, 64, 0] {
        file.extend(u64::to_le_bytes(word)); // entry, program headers, section headers
    }
    file.extend([0; 4]);
    for half in [64_u16, 56, 2, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    for (kind, offset, size) in [(1_u32, 0, length), (2, DYNAMIC, 3 * 16)] {
        file.extend(kind.to_le_bytes());
        file.extend(4_u32.to_le_bytes());
        for word in [offset, BASE + offset, BASE + offset, size, size, 8] {
            file.extend(word.to_le_bytes());
        }
    }
    for (tag, value) in [(5, BASE + STRINGS), (14, 1), (0, 0)] {
        file.extend(u64::to_le_bytes(tag));
        file.extend(value.to_le_bytes());
    }
    file.push(0);
    file.extend(soname.as_bytes());
    file.push(0);
    file
}
