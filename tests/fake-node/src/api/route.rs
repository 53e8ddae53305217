//! From a request line to the object or collection that it is about.

use http::Method;

use super::kind::{GroupVersion, Kind};

/// What a request does, in the words of RBAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// GET of an object
    Get,
    /// GET of a collection
    List,
    /// GET of a collection that goes on
    Watch,
    /// POST
    Create,
    /// PUT
    Update,
    /// PATCH
    Patch,
    /// DELETE of an object
    Delete,
    /// DELETE of a collection
    DeleteCollection,
}

/// The object or collection of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) version: GroupVersion,
    pub(super) kind: Kind,
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) subresource: Option<String>,
}

// === impl Verb ===

impl Verb {
    /// Whether the verb changes something.
    pub fn is_write(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }

    /// The verb of a request; `None` for methods that the API does not have.
    pub(super) fn of(method: &Method, target: &Target, watch: bool) -> Option<Self> {
        let one = target.name.is_some();
        match *method {
            Method::GET if one => Some(Self::Get),
            Method::GET if watch => Some(Self::Watch),
            Method::GET => Some(Self::List),
            Method::POST => Some(Self::Create),
            Method::PUT => Some(Self::Update),
            Method::PATCH => Some(Self::Patch),
            Method::DELETE if one => Some(Self::Delete),
            Method::DELETE => Some(Self::DeleteCollection),
            _ => None,
        }
    }
}

// === impl Target ===

impl Target {
    /// Reads `/api/v1/…` and `/apis/<group>/<version>/…`; `None` for paths of other kinds.
    pub(super) fn parse(path: &str) -> Option<Self> {
        let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => (GroupVersion::parse(version)?, rest),
            ["apis", group, version, rest @ ..] if !rest.is_empty() => {
                (GroupVersion::parse(&format!("{group}/{version}"))?, rest)
            }
            _ => return None,
        };
        let kind_of = |plural: &str| Kind::ALL.into_iter().find(|k| k.plural() == plural && k.served_in(version.group));
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if rest.first().is_some_and(|plural| kind_of(plural).is_some()) => {
                (Some((*namespace).to_owned()), rest)
            }
            rest => (None, rest),
        };
        let (plural, rest) = rest.split_first()?;
        let (name, subresource) = match rest {
            [] => (None, None),
            [name] => (Some((*name).to_owned()), None),
            [name, subresource] => (Some((*name).to_owned()), Some((*subresource).to_owned())),
            _ => return None,
        };
        let kind = kind_of(plural)?;
        // An object of a namespace has one, and only those have.
        let scoped = namespace.is_some() == kind.namespaced() || (namespace.is_none() && name.is_none());
        scoped.then_some(Self { version, kind, namespace, name, subresource })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn parsed(path: &str) -> (String, Kind, Option<String>, Option<String>, Option<String>) {
        let target = Target::parse(path).unwrap();
        (target.version.to_string(), target.kind, target.namespace, target.name, target.subresource)
    }

    #[test]
    fn paths_name_objects_and_collections() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(parsed("/api/v1/nodes"), ("v1".into(), Kind::Node, None, None, None));
        assert_eq!(parsed("/api/v1/namespaces/a"), ("v1".into(), Kind::Namespace, None, some("a"), None));
        assert_eq!(parsed("/api/v1/namespaces/a/status").4, some("status"));
        assert_eq!(
            parsed("/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/c/status"),
            ("resource.k8s.io/v1".into(), Kind::ResourceClaim, some("a"), some("c"), some("status"))
        );
        assert_eq!(parsed("/apis/resource.k8s.io/v1beta1/resourceclaims").2, None, "all namespaces");
        assert_eq!(parsed("/apis/events.k8s.io/v1/namespaces/a/events").1, Kind::Event);
    }

    #[test]
    fn other_paths_name_nothing() {
        for path in [
            "/",
            "/api",
            "/apis/resource.k8s.io/v1",
            "/apis/apps/v1/deployments",
            "/api/v1/secrets",
            "/api/v1/resourceslices",
            "/apis/resource.k8s.io/v1/namespaces/a/resourceslices",
            "/apis/resource.k8s.io/v1/resourceclaims/c",
            "/apis/resource.k8s.io/v2/resourceslices",
        ] {
            assert_eq!(Target::parse(path), None, "{path}");
        }
    }
}
