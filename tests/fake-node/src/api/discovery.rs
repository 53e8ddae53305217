//! Which groups, versions and types there are, for clients that ask before they speak.

use serde_json::{Map, Value, json};

use super::kind::{Group, GroupVersion, Kind, Version};
use super::schema::{self, Merge, Type};
use crate::release::Release;

/// What is served.
#[derive(Debug, Clone)]
pub(super) struct Discovery {
    pub(super) release: Release,
    /// Served versions of resource.k8s.io.
    pub(super) versions: Vec<Version>,
}

// === impl Discovery ===

impl Discovery {
    /// Whether requests to a group and version are answered.
    pub(super) fn serves(&self, version: GroupVersion) -> bool {
        self.versions_of(version.group).contains(&version.version)
    }

    fn versions_of(&self, group: Group) -> &[Version] {
        match group {
            Group::Core | Group::Events => &[Version::V1],
            Group::Resource => &self.versions,
        }
    }

    fn named_groups(&self) -> impl Iterator<Item = Group> + use<'_> {
        [Group::Events, Group::Resource].into_iter().filter(|group| !self.versions_of(*group).is_empty())
    }

    /// The document at a discovery path, if it is one.
    pub(super) fn document(&self, path: &str, server: &str) -> Option<Value> {
        let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
        match parts.as_slice() {
            ["version"] => Some(self.version()),
            ["api"] => Some(json!({"kind": "APIVersions", "versions": ["v1"],
                "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server}]})),
            ["apis"] => Some(json!({"kind": "APIGroupList", "apiVersion": "v1",
                "groups": self.named_groups().map(|group| self.group(group)).collect::<Vec<_>>()})),
            ["apis", group] => {
                let group = self.named_groups().find(|known| known.name() == *group)?;
                let mut document = self.group(group);
                document["kind"] = json!("APIGroup");
                document["apiVersion"] = json!("v1");
                Some(document)
            }
            ["api", version] => self.resources(version),
            ["apis", group, version] => self.resources(&format!("{group}/{version}")),
            ["openapi", "v3"] => Some(json!({"paths": self.openapi_paths()})),
            ["openapi", "v3", "api", version] => self.openapi(version),
            ["openapi", "v3", "apis", group, version] => self.openapi(&format!("{group}/{version}")),
            _ => None,
        }
    }

    fn version(&self) -> Value {
        let minor = self.release.minor();
        json!({"major": "1", "minor": minor.to_string(), "gitVersion": format!("v1.{minor}.0"), "gitCommit": "",
            "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "fake-node",
            "platform": "linux/amd64"})
    }

    fn group(&self, group: Group) -> Value {
        let version = |version: &Version| {
            let version = GroupVersion { group, version: *version };
            json!({"groupVersion": version.to_string(), "version": version.version.name()})
        };
        let versions = self.versions_of(group);
        json!({"name": group.name(), "versions": versions.iter().map(version).collect::<Vec<_>>(),
            "preferredVersion": versions.first().map(version)})
    }

    fn resources(&self, version: &str) -> Option<Value> {
        let version = GroupVersion::parse(version).filter(|version| self.serves(*version))?;
        let mut resources = Vec::new();
        for kind in Kind::ALL.into_iter().filter(|kind| kind.served_in(version.group)) {
            resources.push(json!({
                "name": kind.plural(), "singularName": kind.name().to_lowercase(), "namespaced": kind.namespaced(),
                "kind": kind.name(), "shortNames": kind.short_names(),
                "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            }));
            if kind.has_status() {
                resources.push(json!({"name": format!("{}/status", kind.plural()), "singularName": "",
                    "namespaced": kind.namespaced(), "kind": kind.name(), "verbs": ["get", "patch", "update"]}));
            }
        }
        Some(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version.to_string(),
            "resources": resources}))
    }

    fn openapi_paths(&self) -> Value {
        let groups = [Group::Core, Group::Events, Group::Resource];
        let versions = groups.into_iter().flat_map(|group| {
            self.versions_of(group).iter().map(move |version| GroupVersion { group, version: *version })
        });
        let path = |version: GroupVersion| match version.group {
            Group::Core => format!("api/{version}"),
            _ => format!("apis/{version}"),
        };
        let paths: Map<_, _> = versions
            .map(|version| (path(version), json!({"serverRelativeURL": format!("/openapi/v3/{}", path(version))})))
            .collect();
        Value::Object(paths)
    }

    /// Enough of an OpenAPI document for kubectl: which kinds there are, that patches know `fieldValidation`, and the
    /// fields of the stored version for `kubectl explain`.
    fn openapi(&self, version: &str) -> Option<Value> {
        let version = GroupVersion::parse(version).filter(|version| self.serves(*version))?;
        let (mut paths, mut schemas) = (Map::new(), Map::new());
        for kind in Kind::ALL.into_iter().filter(|kind| kind.served_in(version.group)) {
            let identity =
                json!({"group": version.group.name(), "version": version.version.name(), "kind": kind.name()});
            let scope = if kind.namespaced() { "/namespaces/{namespace}" } else { "" };
            let root = if version.group == Group::Core { "api" } else { "apis" };
            let parameter = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string"}});
            let operation = json!({
                "x-kubernetes-group-version-kind": identity,
                "parameters": [parameter("dryRun"), parameter("fieldManager"), parameter("fieldValidation")],
                "responses": {"200": {"description": "OK"}},
            });
            paths.insert(
                format!("/{root}/{version}{scope}/{}/{{name}}", kind.plural()),
                json!({"get": operation, "put": operation, "patch": operation, "delete": operation}),
            );
            let mut shape = openapi_schema(schema::of(kind), self.release);
            shape["x-kubernetes-group-version-kind"] = json!([identity]);
            schemas.insert(format!("{}.{}.{}", version.group.name(), version.version.name(), kind.name()), shape);
        }
        Some(json!({"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": self.version()["gitVersion"]},
            "paths": paths, "components": {"schemas": schemas}}))
    }
}

fn openapi_schema(ty: &Type, release: Release) -> Value {
    match ty {
        Type::Str | Type::StrPtr | Type::Quantity => json!({"type": "string"}),
        Type::Time | Type::MicroTime => json!({"type": "string", "format": "date-time"}),
        Type::Bool | Type::BoolPtr => json!({"type": "boolean"}),
        Type::Int | Type::IntPtr => json!({"type": "integer", "format": "int64"}),
        Type::Raw => json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        Type::Struct(fields) | Type::AtomicStruct(fields) | Type::Open(fields) => {
            let known = fields.iter().filter(|field| field.known_in(release));
            let properties: Map<_, _> =
                known.map(|field| (field.name.to_owned(), openapi_schema(&field.ty, release))).collect();
            let mut schema = json!({"type": "object", "properties": properties});
            match ty {
                Type::AtomicStruct(_) => schema["x-kubernetes-map-type"] = json!("atomic"),
                Type::Open(_) => schema["x-kubernetes-preserve-unknown-fields"] = json!(true),
                _ => {}
            }
            schema
        }
        Type::Map(ty) => json!({"type": "object", "additionalProperties": openapi_schema(ty, release)}),
        Type::List(ty, merge) => {
            let mut schema = json!({"type": "array", "items": openapi_schema(ty, release)});
            match merge {
                Merge::Atomic => schema["x-kubernetes-list-type"] = json!("atomic"),
                Merge::Set => schema["x-kubernetes-list-type"] = json!("set"),
                Merge::Keyed(keys) => {
                    schema["x-kubernetes-list-type"] = json!("map");
                    schema["x-kubernetes-list-map-keys"] = json!(keys);
                }
            }
            schema
        }
    }
}
