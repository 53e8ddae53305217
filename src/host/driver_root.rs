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
//! A root is a whole system, as that of a driver container, or a directory of one, as on systems whose `/usr` cannot be
//! written. Absolute links in it mean the system: `/run/opengl-driver/lib/libcuda.so.1` of NixOS leads to `/nix/store`.
//!
//! Nothing here is cached: a driver can be installed, upgraded or replaced while we run, and the next claim must get what
//! is there then.

mod beneath;
mod elf;
#[cfg(test)]
pub(crate) mod example;
mod files;
mod graphics;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use super::node::DevRoot;

pub use files::{DriverFiles, Kernel, Library, Mapped, NoLibraries, module_version};

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
    // Bottlerocket.
    "/usr/lib/nvidia/tesla",
    // Talos: beside a system of musl, with a C library of their own.
    "/glibc/usr/lib",
    "/glibc/lib",
    "/glibc/lib64",
];

/// Libraries of which a driver root has at least one: without the first no GPU is found, without the second none is of
/// use.
const MARKS: &[&str] = &["libnvidia-ml.so.1", "libcuda.so.1"];

/// A place where drivers are known to be.
enum Place {
    /// A whole system: its files appear in a container where they are in that system.
    System(&'static str),
    /// A directory of the host's own system, and where it appears in a container.
    Directory(&'static str, &'static str),
}

/// All known places, best first. They are looked through, so that nobody has to say what system a node runs.
const KNOWN: &[Place] = &[
    // Installed on the host itself: packages, the `.run` installer, Bottlerocket, Flatcar's system extension.
    Place::System("/"),
    // The driver container of NVIDIA's GPU Operator, and what Talos shows to it.
    Place::System("/run/nvidia/driver"),
    // Google's Container-Optimized OS, on GKE and elsewhere. Images made for it look in /usr/local/nvidia.
    Place::Directory("/home/kubernetes/bin/nvidia", "/usr/local/nvidia"),
    Place::Directory("/var/lib/nvidia", "/usr/local/nvidia"),
    // NixOS. Programs that were built for it look there.
    Place::Directory("/run/opengl-driver", "/run/opengl-driver"),
    // Talos: a system extension, with the libraries below glibc.
    Place::Directory("/usr/local", "/usr/local"),
    // Flatcar without the system extension.
    Place::Directory("/opt/nvidia/current", "/"),
];

/// A directory under which the driver's files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverRoot {
    /// The root of the system that it belongs to, as the container runtime sees it.
    system_host: PathBuf,
    /// The same as this process sees it.
    system_local: PathBuf,
    /// The driver's directory in that system; empty if it is the whole system.
    directory: PathBuf,
    /// Where its content appears in a container.
    container: PathBuf,
}

/// The root to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice<'a> {
    /// Which one.
    pub root: &'a DriverRoot,
    /// Why that one.
    pub reason: Reason,
}

/// Why a root was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It has the libraries of the kernel module that is loaded.
    FitsModule,
    /// It is the first that has a driver, and none has that of the kernel module that is loaded.
    NoneFitsModule,
    /// It is the first that has a driver. No kernel module is loaded that says which.
    First,
}

/// No candidate holds a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotFound {
    /// The candidates that were looked at.
    pub looked: Vec<DriverRoot>,
}

/// A directory that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Directory {
    /// From the root of the system, without links.
    real: PathBuf,
    /// Where its files appear in a container.
    container: PathBuf,
}

// === impl DriverRoot ===

impl DriverRoot {
    /// A root that is a whole system, as a driver container is.
    pub fn new(host: impl Into<PathBuf>, local: impl Into<PathBuf>) -> Self {
        Self { system_host: host.into(), system_local: local.into(), directory: PathBuf::new(), container: "/".into() }
    }

    /// The same, with its content elsewhere in a container.
    pub fn appearing_at(self, container: impl Into<PathBuf>) -> Self {
        Self { container: container.into(), ..self }
    }

    /// All roots that are known, for a process that sees the host's `/` at `host_mount`.
    pub fn known(host_mount: &Path) -> Vec<Self> {
        let root = |place: &Place| match place {
            Place::System(host) => Self::new(host, under(host_mount, Path::new(host))),
            Place::Directory(host, container) => Self {
                directory: relative(Path::new(host)).to_owned(),
                ..Self::new("/", host_mount).appearing_at(container)
            },
        };
        KNOWN.iter().map(root).collect()
    }

    /// The root as the container runtime sees it.
    pub fn host(&self) -> PathBuf {
        under(&self.system_host, &self.directory)
    }

    /// The root as this process sees it.
    pub fn local(&self) -> PathBuf {
        under(&self.system_local, &self.directory)
    }

    /// The `/dev` of the system that it is the root of, if that is not the host's.
    pub fn dev(&self) -> Option<DevRoot> {
        let is_other_system = self.directory.as_os_str().is_empty() && self.system_host != Path::new("/");
        is_other_system.then(|| DevRoot { local: self.system_local.join("dev"), host: self.system_host.join("dev") })
    }

    /// Where its content appears in a container.
    pub fn container(&self) -> &Path {
        &self.container
    }

    /// The local path of a library by the name that programs ask for, for example `libnvidia-ml.so.1`.
    pub fn library(&self, name: &str) -> Option<PathBuf> {
        let found = self.library_directories().into_iter().find_map(|directory| self.file_of(&directory, name));
        found.map(|real| self.system_local.join(real))
    }

    /// Whether it has a library of a version.
    fn has_version(&self, version: &str) -> bool {
        let names = MARKS.iter().filter_map(|mark| mark.strip_suffix('1'));
        names.into_iter().any(|name| self.library(&format!("{name}{version}")).is_some())
    }

    fn holds_driver(&self) -> bool {
        MARKS.iter().any(|library| self.library(library).is_some())
    }

    /// Directories that can hold libraries and exist, each once.
    fn library_directories(&self) -> Vec<Directory> {
        self.directories(LIBRARY_DIRECTORIES)
    }

    /// Those of the candidates below the root that exist, each once. One that links lead to is called by its own name if
    /// that is a candidate too, and else by the name that led there: whatever a system has in its inside, containers get
    /// names that loaders and people know.
    fn directories(&self, candidates: &[&str]) -> Vec<Directory> {
        let mut seen = BTreeSet::new();
        let directory = |candidate: &&str| {
            let candidate = relative(Path::new(candidate));
            let real = self.resolve(&self.directory.join(candidate))?;
            if !self.system_local.join(&real).is_dir() || !seen.insert(real.clone()) {
                return None;
            }
            let own = real.strip_prefix(&self.directory).ok();
            let own = own.filter(|own| candidates.iter().any(|candidate| relative(Path::new(candidate)) == *own));
            let container = under(&self.container, own.unwrap_or(candidate));
            Some(Directory { real, container })
        };
        candidates.iter().filter_map(directory).collect()
    }

    /// A directory by its path from the root of the system.
    fn directory_at(&self, path: &Path, container: PathBuf) -> Option<Directory> {
        let real = self.resolve(path)?;
        self.system_local.join(&real).is_dir().then_some(Directory { real, container })
    }

    /// The real path of a regular file. Both are from the root of the system.
    fn file(&self, path: &Path) -> Option<PathBuf> {
        beneath::regular_file(&self.system_local, Path::new(""), path)
    }

    /// As [`file`](Self::file), of a directory.
    fn file_of(&self, directory: &Directory, name: &str) -> Option<PathBuf> {
        beneath::regular_file(&self.system_local, &directory.real, Path::new(name))
    }

    fn resolve(&self, path: &Path) -> Option<PathBuf> {
        beneath::resolve(&self.system_local, path).ok()
    }
}

/// The candidate to use: the first that fits the kernel module of a version, if one is loaded, and else the first that
/// holds a driver. A driver that was replaced by another way of installing it often leaves libraries behind, and with them
/// no GPU works.
pub fn find<'a>(candidates: &'a [DriverRoot], module: Option<&str>) -> Result<Choice<'a>, NotFound> {
    let fitting = module.and_then(|version| candidates.iter().find(|root| root.has_version(version)));
    if let Some(root) = fitting {
        return Ok(Choice { root, reason: Reason::FitsModule });
    }
    let reason = if module.is_some() { Reason::NoneFitsModule } else { Reason::First };
    let first = candidates.iter().find(|root| root.holds_driver());
    first.map(|root| Choice { root, reason }).ok_or_else(|| NotFound { looked: candidates.to_vec() })
}

/// `path` seen from a process whose `/` is elsewhere.
fn under(root: &Path, path: &Path) -> PathBuf {
    // Collected anew, because joining an empty path would leave a slash at the end.
    root.join(relative(path)).components().collect()
}

fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

// === impl Reason ===

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FitsModule => "its libraries are of the version of the loaded kernel module",
            Self::NoneFitsModule => {
                "it is the first place with a driver; none has libraries of the version of the loaded kernel module"
            }
            Self::First => "it is the first place with a driver",
        })
    }
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
            let (host, local) = (root.host(), root.local());
            write!(f, "{comma}{}", host.display())?;
            if local != host {
                write!(f, " (seen at {})", local.display())?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for NotFound {}

#[cfg(test)]
mod tests;
