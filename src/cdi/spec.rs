//! The part of the CDI specification that we write.
//!
//! Source: <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::device::ParseError;

/// A file in the CDI directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    cdi_version: &'static str,
    kind: Kind,
    devices: Vec<Device>,
    container_edits: ContainerEdits,
}

/// `<vendor>/<class>`, the first half of every device id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct Kind {
    vendor: String,
    class: String,
}

/// A device that a container can be given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Unique in the spec. Letters, digits, `.`, `-`, `_` and `:`, the first and the last a letter or a digit.
    pub name: String,
    /// Never empty: runtimes refuse such a device.
    pub container_edits: ContainerEdits,
}

/// What changes in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerEdits {
    /// `NAME=value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes to make.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Files and directories to bind-mount.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Programs that the runtime runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    /// Groups that the container's process joins, to reach nodes that are not open to all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
}

/// A device node to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNode {
    /// In the container.
    pub path: PathBuf,
    /// On the host, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_path: Option<PathBuf>,
    /// `c` for a character device.
    pub r#type: &'static str,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Permission bits.
    pub file_mode: u32,
    /// What the device cgroup allows: of `r` read, `w` write, `m` mknod.
    pub permissions: &'static str,
    /// Owner, if not root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group, if not root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

/// A program that the runtime runs as root, on the host, for each container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// When: `createContainer` is after all mounts are made and before the container's root becomes `/`.
    pub hook_name: &'static str,
    /// The program, on the host.
    pub path: PathBuf,
    /// Its name and its arguments.
    pub args: Vec<String>,
    /// Its whole environment. Never empty: runc gives a hook without one the environment of the image.
    pub env: Vec<String>,
}

/// A bind mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// On the host.
    pub host_path: PathBuf,
    /// In the container.
    pub container_path: PathBuf,
    /// Options of mount(8).
    pub options: &'static [&'static str],
}

// === impl Spec ===

impl Spec {
    /// A spec of the lowest version that has everything it contains, so that old runtimes can read it too.
    pub fn new(kind: Kind, devices: Vec<Device>, container_edits: ContainerEdits) -> Self {
        let cdi_version = minimum_version(&devices, &container_edits);
        Self { cdi_version, kind, devices, container_edits }
    }
}

fn minimum_version(devices: &[Device], common: &ContainerEdits) -> &'static str {
    let mut edits = devices.iter().map(|device| &device.container_edits).chain([common]);
    let mut nodes = edits.clone().flat_map(|edits| &edits.device_nodes);
    if edits.any(|edits| !edits.additional_gids.is_empty()) {
        "0.7.0"
    } else if nodes.any(|node| node.host_path.is_some())
        || devices.iter().any(|device| !device.name.starts_with(|first: char| first.is_ascii_alphabetic()))
    {
        "0.5.0"
    } else {
        "0.3.0"
    }
}

// === impl Kind ===

impl Kind {
    /// The kind of the claims of a driver: `k8s.<driver>/claim`, as NVIDIA's driver has it.
    pub fn claims_of(driver: &str) -> Result<Self, ParseError> {
        Self::parse(&format!("k8s.{driver}/claim"))
    }

    /// Accepts a vendor like a domain name and a class of letters, digits, `-` and `_`.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let error = || ParseError { text: text.to_owned(), expected: "a CDI kind (<vendor>/<class>)" };
        let (vendor, class) = text.split_once('/').ok_or_else(error)?;
        let valid = |part: &str, inner: &[u8]| {
            let bytes = part.as_bytes();
            bytes.first().is_some_and(u8::is_ascii_alphabetic)
                && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
                && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || inner.contains(byte))
        };
        if !valid(vendor, b".-_") || !valid(class, b"-_") {
            return Err(error());
        }
        Ok(Self { vendor: vendor.to_owned(), class: class.to_owned() })
    }

    /// The id by which the kubelet and the runtime know a device.
    pub fn id(&self, device: &str) -> String {
        format!("{self}={device}")
    }

    /// How the names of this kind's files begin.
    pub(super) fn file_prefix(&self) -> String {
        format!("{}-{}_", self.vendor, self.class)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.vendor, self.class)
    }
}

impl From<Kind> for String {
    fn from(kind: Kind) -> Self {
        kind.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(name: &str, common: &ContainerEdits) -> &'static str {
        let device = Device { name: name.to_owned(), container_edits: ContainerEdits::default() };
        minimum_version(&[device], common)
    }

    #[test]
    fn the_version_is_as_low_as_the_content_allows() {
        assert_eq!(version("claim-gpu-0", &ContainerEdits::default()), "0.3.0");
        assert_eq!(version("4f1c-gpu-0", &ContainerEdits::default()), "0.5.0");
        let grouped = ContainerEdits { additional_gids: vec![44], ..ContainerEdits::default() };
        assert_eq!(version("claim-gpu-0", &grouped), "0.7.0");
    }

    #[test]
    fn only_kinds_that_runtimes_accept_are_accepted() {
        assert_eq!(Kind::claims_of("gpu.nvidia.com").unwrap().id("a-gpu-0"), "k8s.gpu.nvidia.com/claim=a-gpu-0");
        for text in ["", "claim", "/claim", "vendor/", "1vendor/claim", "vendor./claim", "vendor/a.b", "a/b/c", "a b/c"]
        {
            assert!(Kind::parse(text).is_err(), "{text:?} was accepted");
        }
    }
}
