//! Device nodes, and what the kernel says about their numbers and about itself.
//!
//! ```text
//!  <dev>/nvidia0 ──stat──▶ character device ──▶ its own major and minor
//!                          placeholder file ──▶ major from <proc>/devices, minor by NVIDIA's convention   (only if allowed)
//! ```
//!
//! Numbers are read at each use and never kept: `nvidia-uvm` has a dynamic major, and minors follow the order in which
//! GPUs were found at boot.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Where the nodes of the kernel's Direct Rendering Manager are, below `/dev`.
pub const DRM: &str = "dri/";

/// Where device nodes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Devices {
    /// The directory as this process sees it.
    pub local: PathBuf,
    /// The same directory as the container runtime sees it, normally `/dev`.
    pub host: PathBuf,
    /// Where to look for nodes that are not there.
    pub elsewhere: Vec<DevRoot>,
    /// `<proc>`, for the majors of placeholders.
    pub proc: PathBuf,
    /// Accept regular files in place of device nodes. Only a machine without a GPU that an ordinary user runs has such
    /// files: nobody but root can make device nodes.
    pub placeholders: bool,
}

/// The `/dev` of a driver container. What is run there makes the driver's nodes there, and the host may not have them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevRoot {
    /// The directory as this process sees it.
    pub local: PathBuf,
    /// The same directory as the container runtime sees it.
    pub host: PathBuf,
}

/// A device node to be made in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceNode {
    /// Path under `/dev`.
    pub name: String,
    /// Where the container runtime finds it.
    pub host: PathBuf,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// What stands at a path where a device node should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    /// A character device: what it should be.
    CharacterDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A regular file: a placeholder, or the debris of a bind mount.
    File,
    /// A directory: what container engines make of a bind mount whose source is missing.
    Directory,
    /// Anything else.
    Other,
}

/// Why a device node cannot be given to a container.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// It is not there.
    #[error("the device node {} does not exist", path.display())]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// It cannot be looked at.
    #[error("cannot look at the device node {}", path.display())]
    Unreadable {
        /// Where it is.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Something else is there.
    #[error("{} is {kind}, not a character device", path.display())]
    NotADevice {
        /// Where it was looked for.
        path: PathBuf,
        /// What is there.
        kind: NodeKind,
    },
    /// A placeholder whose driver has no major.
    #[error("{} has no major for the device node {name}", path.display())]
    NoMajor {
        /// Which node.
        name: String,
        /// The table that was read.
        path: PathBuf,
    },
    /// The table of majors cannot be read.
    #[error("cannot read {}", path.display())]
    Majors {
        /// The table.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

// === impl Devices ===

impl Devices {
    /// Looks at the node of this name, for example `nvidia0`.
    pub fn node(&self, name: &str) -> Result<DeviceNode, NodeError> {
        let found = self.node_in(&self.local, &self.host, name);
        if !matches!(found, Err(NodeError::Missing { .. })) {
            return found;
        }
        let mut elsewhere = self.elsewhere.iter().map(|dev| self.node_in(&dev.local, &dev.host, name));
        elsewhere.find(|other| !matches!(other, Err(NodeError::Missing { .. }))).unwrap_or(found)
    }

    /// Whether there is anything, also a link, at a path that begins with `/dev`.
    pub fn has(&self, path: &Path) -> bool {
        path.strip_prefix("/dev").is_ok_and(|name| self.local.join(name).symlink_metadata().is_ok())
    }

    fn node_in(&self, local: &Path, host: &Path, name: &str) -> Result<DeviceNode, NodeError> {
        let path = local.join(name);
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(NodeError::Missing { path }),
            Err(source) => return Err(NodeError::Unreadable { path, source }),
        };
        let node = |(major, minor), mode| DeviceNode {
            name: name.to_owned(),
            host: host.join(name),
            major,
            minor,
            mode,
            uid: metadata.uid(),
            gid: metadata.gid(),
        };
        match NodeKind::of(&metadata) {
            NodeKind::CharacterDevice { major, minor } => Ok(node((major, minor), metadata.mode() & 0o777)),
            // What the driver gives its nodes; the placeholder's own mode says nothing.
            NodeKind::File if self.placeholders => {
                let mode = if name.starts_with(DRM) { 0o660 } else { 0o666 };
                Ok(DeviceNode { uid: 0, gid: 0, ..node(self.placeholder_numbers(name)?, mode) })
            }
            kind => Err(NodeError::NotADevice { path, kind }),
        }
    }

    fn placeholder_numbers(&self, name: &str) -> Result<(u32, u32), NodeError> {
        let path = self.proc.join("devices");
        let table = fs::read_to_string(&path).map_err(|source| NodeError::Majors { path: path.clone(), source })?;
        let numbers = conventional(name)
            .and_then(|(drivers, minor)| drivers.iter().find_map(|driver| major(&table, driver)).map(|m| (m, minor)));
        numbers.ok_or_else(|| NodeError::NoMajor { name: name.to_owned(), path })
    }
}

// === impl NodeError ===

impl NodeError {
    /// Whether it says that there is no such node, and not that none could be seen.
    pub fn is_absence(&self) -> bool {
        !matches!(self, Self::Unreadable { .. } | Self::Majors { .. })
    }

    /// Whether the node may be there a moment later. What is in its place does not go by itself.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Missing { .. } | Self::NoMajor { .. } => true,
            Self::Unreadable { .. } | Self::NotADevice { .. } | Self::Majors { .. } => false,
        }
    }
}

// === impl NodeKind ===

impl NodeKind {
    fn of(metadata: &fs::Metadata) -> Self {
        let kind = metadata.file_type();
        if kind.is_char_device() {
            let device = metadata.rdev();
            Self::CharacterDevice { major: rustix::fs::major(device), minor: rustix::fs::minor(device) }
        } else if kind.is_file() {
            Self::File
        } else if kind.is_dir() {
            Self::Directory
        } else {
            Self::Other
        }
    }
}

impl std::fmt::Display for NodeKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::CharacterDevice { .. } => "a character device",
            Self::File => "a regular file",
            Self::Directory => "a directory",
            Self::Other => "a special file",
        })
    }
}

/// The id of this boot of the machine: another one means that device nodes, MIG instances and everything under `/run`
/// are gone.
pub fn boot_id(proc: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(proc.join("sys/kernel/random/boot_id"))?.trim().to_owned())
}

/// The drivers whose major a node has, newest name first, and its minor. Drivers before 560 list all of major 195 as
/// `nvidia-frontend`.
fn conventional(name: &str) -> Option<(&'static [&'static str], u32)> {
    match name {
        "nvidiactl" => Some((&["nvidiactl", "nvidia", "nvidia-frontend"], 255)),
        "nvidia-modeset" => Some((&["nvidia-modeset", "nvidia", "nvidia-frontend"], 254)),
        "nvidia-uvm" => Some((&["nvidia-uvm"], 0)),
        "nvidia-uvm-tools" => Some((&["nvidia-uvm"], 1)),
        _ => match name.strip_prefix(DRM) {
            Some(name) => Some((&["drm"], name.trim_start_matches(char::is_alphabetic).parse().ok()?)),
            None => Some((&["nvidia", "nvidia-frontend"], name.strip_prefix("nvidia")?.parse().ok()?)),
        },
    }
}

/// The major of a character device driver in the text of `/proc/devices`.
pub(super) fn major(table: &str, driver: &str) -> Option<u32> {
    let characters = table.lines().skip_while(|line| *line != "Character devices:").skip(1);
    let mut entries = characters.take_while(|line| !line.is_empty()).filter_map(|line| line.trim().split_once(' '));
    entries.find_map(|(number, name)| if name == driver { number.parse().ok() } else { None })
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode};

    use super::*;

    const TABLE: &str =
        "Character devices:\n  1 mem\n195 nvidia-frontend\n226 drm\n510 nvidia-uvm\n\nBlock devices:\n195 nvidia\n";

    fn devices(directory: &Path, placeholders: bool) -> Devices {
        fs::write(directory.join("devices"), TABLE).unwrap();
        let (local, host, proc) = (directory.to_owned(), "/dev".into(), directory.to_owned());
        Devices { local, host, elsewhere: vec![], proc, placeholders }
    }

    #[test]
    fn placeholders_get_the_numbers_of_their_driver() {
        let directory = tempfile::tempdir().unwrap();
        let devices = devices(directory.path(), true);
        for (name, numbers) in [("nvidia3", (195, 3)), ("nvidiactl", (195, 255)), ("nvidia-uvm-tools", (510, 1))] {
            fs::write(directory.path().join(name), "").unwrap();
            let node = devices.node(name).unwrap();
            assert_eq!((node.major, node.minor), numbers, "{name}");
            assert_eq!(node.host, Path::new("/dev").join(name));
            assert_eq!(node.mode, 0o666);
        }
    }

    #[test]
    fn a_node_that_only_the_driver_container_has_is_taken_from_there() {
        let directory = tempfile::tempdir().unwrap();
        let local = directory.path().join("driver");
        fs::create_dir(&local).unwrap();
        let elsewhere = vec![DevRoot { local: local.clone(), host: "/run/nvidia/driver/dev".into() }];
        let devices = Devices { elsewhere, ..devices(directory.path(), true) };
        fs::write(directory.path().join("nvidia0"), "").unwrap();
        for name in ["nvidia0", "nvidia1"] {
            fs::write(local.join(name), "").unwrap();
        }
        assert_eq!(devices.node("nvidia0").unwrap().host, Path::new("/dev/nvidia0"), "both have it");
        let node = devices.node("nvidia1").unwrap();
        assert_eq!((node.name.as_str(), node.host.as_path()), ("nvidia1", Path::new("/run/nvidia/driver/dev/nvidia1")));
        assert!(
            devices
                .node("nvidia2")
                .unwrap_err()
                .to_string()
                .contains(&format!("{}/nvidia2", directory.path().display()))
        );
    }

    #[test]
    fn a_drm_node_is_not_open_to_all() {
        let directory = tempfile::tempdir().unwrap();
        let devices = devices(directory.path(), true);
        fs::create_dir(directory.path().join("dri")).unwrap();
        fs::write(directory.path().join("dri/renderD128"), "").unwrap();
        let node = devices.node("dri/renderD128").unwrap();
        assert_eq!((node.major, node.minor, node.mode), (226, 128, 0o660));
        assert_eq!(node.host, Path::new("/dev/dri/renderD128"));
    }

    #[test]
    fn what_is_not_a_character_device_is_refused_and_named() {
        let directory = tempfile::tempdir().unwrap();
        let devices = devices(directory.path(), false);
        fs::write(directory.path().join("nvidia0"), "").unwrap();
        fs::create_dir(directory.path().join("nvidia1")).unwrap();
        for (name, end) in [
            ("nvidia0", "nvidia0 is a regular file, not a character device"),
            ("nvidia1", "nvidia1 is a directory, not a character device"),
            ("nvidia2", "nvidia2 does not exist"),
        ] {
            let message = devices.node(name).unwrap_err().to_string();
            assert!(message.ends_with(end), "{message}");
        }
    }

    #[test]
    fn a_placeholder_without_a_major_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let devices = devices(directory.path(), true);
        for name in ["nvidia-unknown", "other"] {
            fs::write(directory.path().join(name), "").unwrap();
            assert!(matches!(devices.node(name), Err(NodeError::NoMajor { .. })), "{name} was accepted");
        }
    }

    #[test]
    fn a_device_node_says_its_own_numbers() {
        let directory = tempfile::tempdir().unwrap();
        let device = rustix::fs::makedev(195, 7);
        let made = rustix::fs::mknodat(
            CWD,
            directory.path().join("nvidia0"),
            FileType::CharacterDevice,
            Mode::from_raw_mode(0o660),
            device,
        );
        let devices = devices(directory.path(), false);
        // Without the right to make device nodes, one that every Linux has must do.
        let (devices, name, numbers) = match made {
            Ok(()) => (devices, "nvidia0", (195, 7)),
            Err(_) => (Devices { local: "/dev".into(), ..devices }, "null", (1, 3)),
        };
        let node = devices.node(name).unwrap();
        assert_eq!((node.major, node.minor), numbers);
    }
}
