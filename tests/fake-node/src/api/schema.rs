//! The shape of every served type: one table from which the server prunes, checks, drops, merges and documents.
//!
//! ```text
//!                    ┌─▶ decode    unknown fields, wrong types, null, canonical quantities
//!  tables of fields ─┼─▶ drop      what the gates of the release do not keep
//!  (name, type,      ├─▶ compact   what Go's `omitempty` leaves out, what it always writes
//!   since, gate)     ├─▶ apply     which lists merge by key, which are atomic      (server-side apply)
//!                    ├─▶ patch     merge keys                                      (strategic merge patch)
//!                    └─▶ discovery the OpenAPI document that kubectl asks for
//! ```
//!
//! Objects of `resource.k8s.io` are described in full, in the shape of v1. Core objects are *open*: the fields that
//! matter here are described, others are stored as they came.

mod core;
mod decode;
mod resource;

use serde_json::Value;

pub(super) use self::decode::{compact, decode};
use super::gates::{Gate, Gates};
use super::kind::Kind;
use crate::release::Release;

/// The type of a value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Type {
    /// A string that Go holds by value: empty is absent.
    Str,
    /// A string behind a pointer: empty is a value of its own.
    StrPtr,
    /// A boolean held by value.
    Bool,
    /// A boolean behind a pointer.
    BoolPtr,
    /// An integer held by value: zero is absent.
    Int,
    /// An integer behind a pointer.
    IntPtr,
    /// A `resource.Quantity`.
    Quantity,
    /// A time stamp, in seconds.
    Time,
    /// A time stamp, in microseconds.
    MicroTime,
    /// Any JSON.
    Raw,
    /// Named fields and no others.
    Struct(&'static [Field]),
    /// As `Struct`, but owned and replaced as a whole.
    AtomicStruct(&'static [Field]),
    /// Named fields; others are kept unread.
    Open(&'static [Field]),
    /// Free keys, values of one type.
    Map(&'static Type),
    /// A list.
    List(&'static Type, Merge),
}

/// How a list merges in server-side apply.
#[derive(Debug, Clone, Copy)]
pub(super) enum Merge {
    /// Replaced as a whole.
    Atomic,
    /// A set of scalars.
    Set,
    /// Objects, found again by these keys.
    Keyed(&'static [&'static str]),
}

/// One field of a struct.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    /// The name in JSON.
    pub(super) name: &'static str,
    /// The type of its value.
    pub(super) ty: Type,
    /// Written even when empty.
    pub(super) always: bool,
    /// The first release that knows the field.
    since: Release,
    /// The last release that knows the field.
    until: Release,
    /// The gate that keeps the field.
    gate: Option<Gate>,
    /// How a strategic merge patch finds the entries of the list again; lists without one are replaced.
    pub(super) patch_key: Option<&'static str>,
}

// === impl Field ===

impl Field {
    const fn new(name: &'static str, ty: Type) -> Self {
        let (since, until) = (Release::V1_32, Release::V1_37);
        Self { name, ty, always: false, since, until, gate: None, patch_key: None }
    }

    const fn always(mut self) -> Self {
        self.always = true;
        self
    }

    const fn since(mut self, release: Release) -> Self {
        self.since = release;
        self
    }

    const fn until(mut self, release: Release) -> Self {
        self.until = release;
        self
    }

    const fn gate(mut self, gate: Gate) -> Self {
        self.gate = Some(gate);
        self
    }

    const fn patch_key(mut self, key: &'static str) -> Self {
        self.patch_key = Some(key);
        self
    }

    /// Whether the server of a release has the field.
    pub(super) fn known_in(&self, release: Release) -> bool {
        (self.since..=self.until).contains(&release)
    }
}

// === impl Type ===

impl Type {
    /// The described fields, if the type is an object with named fields.
    pub(super) fn fields(&self) -> &'static [Field] {
        match self {
            Self::Struct(fields) | Self::AtomicStruct(fields) | Self::Open(fields) => fields,
            _ => &[],
        }
    }

    /// The description of a member.
    pub(super) fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields().iter().find(|field| field.name == name)
    }

    /// The type of a member, where anything is said about it.
    pub(super) fn member(&self, name: &str) -> Option<&'static Type> {
        match self {
            Self::Map(ty) => Some(ty),
            _ => self.field(name).map(|field| &field.ty),
        }
    }
}

/// The shape of a kind, in its stored version.
pub(super) fn of(kind: Kind) -> &'static Type {
    match kind {
        Kind::Namespace => &core::NAMESPACE,
        Kind::Node => &core::NODE,
        Kind::Pod => &core::POD,
        Kind::Event => &core::EVENT,
        Kind::DeviceClass => &resource::DEVICE_CLASS,
        Kind::ResourceClaim => &resource::CLAIM,
        Kind::ResourceClaimTemplate => &resource::CLAIM_TEMPLATE,
        Kind::ResourceSlice => &resource::SLICE,
    }
}

/// Removes the fields whose gates are off, except those of a gate that the old object uses already.
///
/// Source: `dropDisabledFields` in the strategies of `pkg/registry/resource`.
pub(super) fn drop_disabled(kind: Kind, object: &mut Value, old: Option<&Value>, gates: &Gates) {
    let ty = of(kind);
    for gate in Gate::all().filter(|gate| !gates.enabled(*gate)) {
        if !old.is_some_and(|old| uses(old, ty, gate)) {
            drop_gate(object, ty, gate);
        }
    }
}

fn uses(value: &Value, ty: &Type, gate: Gate) -> bool {
    match (value, ty) {
        (Value::Object(map), ty) => map.iter().any(|(key, value)| {
            ty.field(key).is_some_and(|field| field.gate == Some(gate))
                || ty.member(key).is_some_and(|ty| uses(value, ty, gate))
        }),
        (Value::Array(items), Type::List(ty, _)) => items.iter().any(|item| uses(item, ty, gate)),
        _ => false,
    }
}

fn drop_gate(value: &mut Value, ty: &Type, gate: Gate) {
    match (value, ty) {
        (Value::Object(map), ty) => {
            map.retain(|key, _| ty.field(key).is_none_or(|field| field.gate != Some(gate)));
            for (key, value) in map {
                if let Some(ty) = ty.member(key) {
                    drop_gate(value, ty, gate);
                }
            }
        }
        (Value::Array(items), Type::List(ty, _)) => items.iter_mut().for_each(|item| drop_gate(item, ty, gate)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_behind_closed_gates_are_dropped_unless_the_old_object_used_them() {
        let gates = Gates::new(Release::V1_34);
        let sent = json!({"spec": {"devices": [
            {"name": "a", "taints": [{"key": "k", "effect": "NoSchedule"}], "allowMultipleAllocations": true},
            {"name": "b", "consumesCounters": [], "capacity": {"memory": {"value": "1", "requestPolicy": {}}}}]}});

        let mut stored = sent.clone();
        drop_disabled(Kind::ResourceSlice, &mut stored, None, &gates);
        assert_eq!(
            stored,
            json!({"spec": {"devices": [{"name": "a"}, {"name": "b", "capacity": {"memory": {"value": "1"}}}]}})
        );

        let old = json!({"spec": {"devices": [{"name": "z", "taints": [{"key": "k"}]}]}});
        let mut stored = sent;
        drop_disabled(Kind::ResourceSlice, &mut stored, Some(&old), &gates);
        assert!(stored["spec"]["devices"][0].get("taints").is_some(), "taints were in use");
        assert!(stored["spec"]["devices"][0].get("allowMultipleAllocations").is_none(), "sharing was not");
    }
}
