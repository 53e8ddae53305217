//! The resource types that the server knows, and under which group and version it serves them.

use std::fmt;

use crate::release::Release;

/// A resource type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// v1 Namespace
    Namespace,
    /// v1 Node
    Node,
    /// v1 Pod: stored, never run.
    Pod,
    /// v1 Event, also served as events.k8s.io/v1 Event.
    Event,
    /// resource.k8s.io DeviceClass
    DeviceClass,
    /// resource.k8s.io ResourceClaim
    ResourceClaim,
    /// resource.k8s.io ResourceClaimTemplate
    ResourceClaimTemplate,
    /// resource.k8s.io ResourceSlice
    ResourceSlice,
}

/// An API group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// The group without a name, under `/api`.
    Core,
    /// events.k8s.io
    Events,
    /// resource.k8s.io
    Resource,
}

/// A version within a group. Ordered by preference, most preferred first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// v1
    V1,
    /// v1beta2: shaped like v1.
    V1Beta2,
    /// v1beta1: devices under `basic`, requests flat.
    V1Beta1,
}

/// A group and a version, written `v1` or `resource.k8s.io/v1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupVersion {
    /// The group.
    pub group: Group,
    /// The version in it.
    pub version: Version,
}

// === impl Kind ===

impl Kind {
    /// Every type.
    pub const ALL: [Self; 8] = [
        Self::Namespace,
        Self::Node,
        Self::Pod,
        Self::Event,
        Self::DeviceClass,
        Self::ResourceClaim,
        Self::ResourceClaimTemplate,
        Self::ResourceSlice,
    ];

    /// The name in objects: `ResourceSlice`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Namespace => "Namespace",
            Self::Node => "Node",
            Self::Pod => "Pod",
            Self::Event => "Event",
            Self::DeviceClass => "DeviceClass",
            Self::ResourceClaim => "ResourceClaim",
            Self::ResourceClaimTemplate => "ResourceClaimTemplate",
            Self::ResourceSlice => "ResourceSlice",
        }
    }

    /// The name in paths: `resourceslices`.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Namespace => "namespaces",
            Self::Node => "nodes",
            Self::Pod => "pods",
            Self::Event => "events",
            Self::DeviceClass => "deviceclasses",
            Self::ResourceClaim => "resourceclaims",
            Self::ResourceClaimTemplate => "resourceclaimtemplates",
            Self::ResourceSlice => "resourceslices",
        }
    }

    pub(super) fn short_names(self) -> &'static [&'static str] {
        match self {
            Self::Namespace => &["ns"],
            Self::Node => &["no"],
            Self::Pod => &["po"],
            Self::Event => &["ev"],
            _ => &[],
        }
    }

    /// Whether objects live in a namespace.
    pub fn namespaced(self) -> bool {
        matches!(self, Self::Pod | Self::Event | Self::ResourceClaim | Self::ResourceClaimTemplate)
    }

    /// Whether the status is written through a subresource of its own.
    pub fn has_status(self) -> bool {
        matches!(self, Self::Namespace | Self::Node | Self::Pod | Self::ResourceClaim)
    }

    /// Whether `metadata.generation` counts the changes of the spec.
    pub(super) fn has_generation(self) -> bool {
        matches!(self, Self::DeviceClass | Self::ResourceSlice)
    }

    /// The group in which objects are stored; events have a second one.
    pub fn group(self) -> Group {
        match self {
            Self::Namespace | Self::Node | Self::Pod | Self::Event => Group::Core,
            _ => Group::Resource,
        }
    }

    /// Group and version of the stored form.
    pub fn stored_as(self) -> GroupVersion {
        GroupVersion { group: self.group(), version: Version::V1 }
    }

    /// Whether the type is found in a group.
    pub(super) fn served_in(self, group: Group) -> bool {
        self.group() == group || (self == Self::Event && group == Group::Events)
    }

    /// The type that an object claims to be; `None` for types that are not served.
    pub fn of(api_version: &str, kind: &str) -> Option<(Self, GroupVersion)> {
        let group_version = GroupVersion::parse(api_version)?;
        Self::ALL.into_iter().find(|k| k.name() == kind && k.served_in(group_version.group)).map(|k| (k, group_version))
    }

    /// `resourceslices.resource.k8s.io`, as messages name a resource.
    pub(super) fn qualified_plural(self) -> String {
        qualified(self.plural(), self.group())
    }

    /// `ResourceSlice.resource.k8s.io`, as messages name a kind.
    pub(super) fn qualified_name(self) -> String {
        qualified(self.name(), self.group())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// === impl Group ===

impl Group {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Core => "",
            Self::Events => "events.k8s.io",
            Self::Resource => "resource.k8s.io",
        }
    }
}

// === impl Version ===

impl Version {
    /// `v1`, `v1beta2`, `v1beta1`.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V1Beta2 => "v1beta2",
            Self::V1Beta1 => "v1beta1",
        }
    }

    /// The versions of resource.k8s.io that exist in a release.
    pub(super) fn known(release: Release) -> &'static [Self] {
        match release {
            Release::V1_32 => &[Self::V1Beta1],
            Release::V1_33 => &[Self::V1Beta2, Self::V1Beta1],
            _ => &[Self::V1, Self::V1Beta2, Self::V1Beta1],
        }
    }

    /// The versions of resource.k8s.io that are served unless the administrator says otherwise. Before 1.34 that is
    /// none; a cluster with DRA has had its beta versions switched on.
    pub fn served(release: Release) -> Vec<Self> {
        match release {
            Release::V1_32 | Release::V1_33 => Self::known(release).to_vec(),
            _ => vec![Self::V1],
        }
    }
}

// === impl GroupVersion ===

impl GroupVersion {
    /// Reads `v1` or `resource.k8s.io/v1beta1`; `None` for groups and versions that no release serves.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (group, version) = text.split_once('/').unwrap_or(("", text));
        let group = [Group::Core, Group::Events, Group::Resource].into_iter().find(|g| g.name() == group)?;
        let version = [Version::V1, Version::V1Beta2, Version::V1Beta1].into_iter().find(|v| v.name() == version)?;
        Some(Self { group, version })
    }
}

impl fmt::Display for GroupVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group {
            Group::Core => f.write_str(self.version.name()),
            group => write!(f, "{}/{}", group.name(), self.version.name()),
        }
    }
}

fn qualified(name: &str, group: Group) -> String {
    match group {
        Group::Core => name.to_owned(),
        group => format!("{name}.{}", group.name()),
    }
}
