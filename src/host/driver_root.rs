//! Where the NVIDIA driver's user-space files are, on whatever system the node runs.
//!
//! A driver root is a directory under which the driver's files lie as they would under `/`. The same file has three
//! paths, and all of them matter:
//!
//! ```text
//!  local      /driver-root            /usr/lib64/libcuda.so.580.105.08    this process opens it
//!  host       /run/nvidia/driver      /usr/lib64/libcuda.so.580.105.08    the container runtime mounts it from there
//!  container                          /usr/lib64/libcuda.so.580.105.08    the workload finds it there
//! ```
//!
//! Nothing here is cached: a driver can be installed, upgraded or replaced while we run, and the next claim must get what
//! is there then.

mod beneath;
mod elf;
#[cfg(test)]
pub(crate) mod example;
mod files;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

pub use files::{DriverFiles, Kernel, Library, Mapped, NoLibraries};

/// Directories that can hold driver libraries, in the order in which they are looked at: that of NVIDIA's own tools,
/// then those of systems that they find through the loader's cache.
const LIBRARY_DIRECTORIES: &[&str] = &[
    "/",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu/nvidia/current",
    "/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib",
    "/lib",
    "/glibc/usr/lib",
];

/// Libraries of which a driver root has at least one: without the first no GPU is found, without the second none is of
/// use.
const MARKS: &[&str] = &["libnvidia-ml.so.1", "libcuda.so.1"];

/// Where drivers are known to be: path on the host, and where its content appears in a container. A root that is a whole
/// system appears at `/`; one that holds nothing but the driver keeps a directory of its own.
const KNOWN: &[(&str, &str)] = &[
    // Installed on the host itself.
    ("/", "/"),
    // The driver container of NVIDIA's GPU Operator.
    ("/run/nvidia/driver", "/"),
    // Google's Container-Optimized OS. Images made for it look in /usr/local/nvidia.
    ("/home/kubernetes/bin/nvidia", "/usr/local/nvidia"),
    // NixOS.
    ("/run/opengl-driver", "/run/opengl-driver"),
    // Talos: a system extension, with the libraries in glibc/usr/lib.
    ("/usr/local", "/usr/local"),
];

/// A directory under which the driver's files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverRoot {
    /// As the container runtime sees it.
    pub host: PathBuf,
    /// As this process sees it.
    pub local: PathBuf,
    /// Where its content appears in a container.
    pub container: PathBuf,
}

/// No candidate holds a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotFound {
    /// The candidates that were looked at.
    pub looked: Vec<DriverRoot>,
}

// === impl DriverRoot ===

impl DriverRoot {
    /// A root that is a whole system, as a driver container is.
    pub fn new(host: impl Into<PathBuf>, local: impl Into<PathBuf>) -> Self {
        Self { host: host.into(), local: local.into(), container: "/".into() }
    }

    /// All roots that are known, for a process that sees the host's `/` at `host_mount`.
    pub fn known(host_mount: &Path) -> Vec<Self> {
        let root = |&(host, container): &(&str, &str)| Self {
            host: host.into(),
            local: under(host_mount, Path::new(host)),
            container: container.into(),
        };
        KNOWN.iter().map(root).collect()
    }

    /// The local path of a library by the name that programs ask for, for example `libnvidia-ml.so.1`.
    pub fn library(&self, name: &str) -> Option<PathBuf> {
        let found = self.library_directories().into_iter().find_map(|directory| self.file(&directory, name));
        found.map(|relative| self.local.join(relative))
    }

    /// Directories that can hold libraries; see [`directories`](Self::directories).
    fn library_directories(&self) -> Vec<PathBuf> {
        self.directories(LIBRARY_DIRECTORIES.iter().copied())
    }

    /// Those that exist, without links, relative to the root, each once.
    fn directories<P: AsRef<Path>>(&self, candidates: impl IntoIterator<Item = P>) -> Vec<PathBuf> {
        let mut seen = BTreeSet::new();
        let resolved = candidates.into_iter().filter_map(|path| beneath::resolve(&self.local, path.as_ref()).ok());
        resolved.filter(|path| self.local.join(path).is_dir() && seen.insert(path.clone())).collect()
    }

    /// The real path, relative to the root, of a regular file in one of the [`directories`](Self::directories).
    fn file(&self, directory: &Path, name: impl AsRef<OsStr>) -> Option<PathBuf> {
        beneath::regular_file(&self.local, directory, name.as_ref())
    }
}

/// The first candidate that holds a driver.
pub fn find(candidates: &[DriverRoot]) -> Result<&DriverRoot, NotFound> {
    let holds_driver = |root: &&DriverRoot| MARKS.iter().any(|library| root.library(library).is_some());
    candidates.iter().find(holds_driver).ok_or_else(|| NotFound { looked: candidates.to_vec() })
}

/// `path` seen from a process whose `/` is elsewhere.
fn under(root: &Path, path: &Path) -> PathBuf {
    // Collected anew, because joining an empty path would leave a slash at the end.
    root.join(path.strip_prefix("/").unwrap_or(path)).components().collect()
}

// === impl NotFound ===

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no NVIDIA driver: neither {} is in a library directory of ", MARKS.join(" nor "))?;
        if self.looked.is_empty() {
            return f.write_str("any driver root, for none is set");
        }
        for (index, root) in self.looked.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{}", root.host.display())?;
            if root.local != root.host {
                write!(f, " (seen at {})", root.local.display())?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for NotFound {}

#[cfg(test)]
mod tests {
    use super::example::Tree;
    use super::*;

    #[test]
    fn the_first_candidate_with_a_driver_is_found() {
        let empty = tempfile::tempdir().unwrap();
        let tree = Tree::debian();
        let candidates = [DriverRoot::new("/", empty.path()), tree.root()];
        assert_eq!(find(&candidates).unwrap(), &tree.root());
    }

    #[test]
    fn a_driver_at_a_known_path_is_found_without_configuration() {
        let host = tempfile::tempdir().unwrap();
        Tree::debian_at(&host.path().join("home/kubernetes/bin/nvidia"));
        let candidates = DriverRoot::known(host.path());
        let found = find(&candidates).unwrap();
        assert_eq!(found.host, Path::new("/home/kubernetes/bin/nvidia"));
        assert_eq!(found.container, Path::new("/usr/local/nvidia"));
    }

    #[test]
    fn where_no_driver_was_found_is_said() {
        let empty = tempfile::tempdir().unwrap();
        let error = find(&[DriverRoot::new("/run/nvidia/driver", empty.path())]).unwrap_err();
        let expected = format!(
            "no NVIDIA driver: neither libnvidia-ml.so.1 nor libcuda.so.1 is in a library directory of \
             /run/nvidia/driver (seen at {})",
            empty.path().display()
        );
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_library_is_found_by_the_name_that_programs_ask_for() {
        let tree = Tree::debian();
        let path = tree.root().library("libnvidia-ml.so.1").unwrap();
        assert!(path.ends_with("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.105.08"), "{path:?}");
        assert_eq!(tree.root().library("libnvidia-ml.so.2"), None);
    }
}
