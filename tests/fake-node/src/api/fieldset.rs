//! Sets of fields, as `metadata.managedFields` records them.
//!
//! A set is a tree whose edges are spelt as on the wire: `f:name` for a member, `k:{"uid":"…"}` for the entry of a
//! keyed list, `v:"…"` for the entry of a set. The same walk over value and schema builds a set, compares two objects,
//! merges one into another and removes what a set names.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::schema::{Merge, Type};

/// A set of fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FieldSet {
    /// Whether the field itself is in the set.
    own: bool,
    /// What is in the set below it.
    below: BTreeMap<String, Self>,
}

/// Metadata that the server sets; nobody owns it.
const UNOWNED: [&str; 9] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "selfLink",
    "managedFields",
];

// === impl FieldSet ===

impl FieldSet {
    /// The fields that an object sets, without type and identity.
    pub(super) fn of_object(object: &Value, ty: &Type) -> Self {
        let mut set = Self::of(object, ty);
        set.forget_identity();
        set
    }

    fn forget_identity(&mut self) {
        self.below.remove("f:apiVersion");
        self.below.remove("f:kind");
        if let Some(meta) = self.below.get_mut("f:metadata") {
            meta.below.retain(|edge, _| !edge.strip_prefix("f:").is_some_and(|name| UNOWNED.contains(&name)));
            if meta.below.is_empty() {
                self.below.remove("f:metadata");
            }
        }
    }

    fn of(value: &Value, ty: &Type) -> Self {
        let children = children(value, ty);
        let below: BTreeMap<_, _> = children
            .iter()
            .map(|(edge, child, ty)| {
                let mut set = ty.map_or_else(Self::leaf, |ty| Self::of(child, ty));
                set.own |= !edge.starts_with("f:");
                (edge.clone(), set)
            })
            .collect();
        Self { own: below.is_empty(), below }
    }

    fn leaf() -> Self {
        Self { own: true, below: BTreeMap::new() }
    }

    /// The fields that `new` adds or changes, and those that it lacks.
    pub(super) fn compare(old: &Value, new: &Value, ty: &Type) -> (Self, Self) {
        let (mut changed, mut removed) = Self::differences(old, new, ty);
        changed.forget_identity();
        removed.forget_identity();
        (changed, removed)
    }

    fn differences(old: &Value, new: &Value, ty: &Type) -> (Self, Self) {
        let (mut changed, mut removed) = (Self::default(), Self::default());
        let (before, after) = (children(old, ty), children(new, ty));
        if before.is_empty() || after.is_empty() {
            if old != new {
                changed = Self::of(new, ty);
                removed = if before.is_empty() { Self::default() } else { Self::of(old, ty) };
            }
            return (changed, removed);
        }
        for (edge, child, ty) in &after {
            let (mut differs, mut gone) = (Self::default(), Self::default());
            match (before.iter().find(|(e, ..)| e == edge), ty) {
                (Some((_, old, _)), Some(ty)) => (differs, gone) = Self::differences(old, child, ty),
                (Some((_, old, _)), None) => differs.own = old != child,
                (None, Some(ty)) => {
                    differs = Self::of(child, ty);
                    differs.own = true;
                }
                (None, None) => differs = Self::leaf(),
            }
            changed.put(edge, differs);
            removed.put(edge, gone);
        }
        for (edge, child, ty) in before.iter().filter(|(edge, ..)| !after.iter().any(|(e, ..)| e == edge)) {
            let mut gone = ty.map_or_else(Self::leaf, |ty| Self::of(child, ty));
            gone.own = true;
            removed.put(edge, gone);
        }
        (changed, removed)
    }

    fn put(&mut self, edge: &str, set: Self) {
        if !set.is_empty() {
            self.below.insert(edge.to_owned(), set);
        }
    }

    /// Whether nothing is in the set.
    pub(super) fn is_empty(&self) -> bool {
        !self.own && self.below.values().all(Self::is_empty)
    }

    /// What is in either.
    pub(super) fn union(&self, other: &Self) -> Self {
        let mut union = self.clone();
        union.own |= other.own;
        for (edge, set) in &other.below {
            let merged = union.below.get(edge).map_or_else(|| set.clone(), |mine| mine.union(set));
            union.below.insert(edge.clone(), merged);
        }
        union
    }

    /// What is in both.
    pub(super) fn intersection(&self, other: &Self) -> Self {
        let mut both = Self { own: self.own && other.own, below: BTreeMap::new() };
        for (edge, set) in &self.below {
            if let Some(theirs) = other.below.get(edge) {
                both.put(edge, set.intersection(theirs));
            }
        }
        both
    }

    /// What is in `self` only.
    pub(super) fn difference(&self, other: &Self) -> Self {
        let mut rest = Self { own: self.own && !other.own, below: BTreeMap::new() };
        for (edge, set) in &self.below {
            rest.put(edge, other.below.get(edge).map_or_else(|| set.clone(), |theirs| set.difference(theirs)));
        }
        rest
    }

    /// Reads `fieldsV1`.
    pub(super) fn from_wire(fields: &Value) -> Self {
        let Some(map) = fields.as_object() else { return Self::default() };
        let below: BTreeMap<_, _> = map
            .iter()
            .filter(|(edge, _)| *edge != ".")
            .map(|(edge, set)| (edge.clone(), Self::from_wire(set)))
            .collect();
        Self { own: below.is_empty() || map.contains_key("."), below }
    }

    /// Writes `fieldsV1`.
    pub(super) fn to_wire(&self) -> Value {
        let mut map: Map<_, _> = self.below.iter().map(|(edge, set)| (edge.clone(), set.to_wire())).collect();
        if self.own && !map.is_empty() {
            map.insert(".".to_owned(), json!({}));
        }
        Value::Object(map)
    }

    /// The paths of the set, as messages write them: `.spec.requests[name="a"]`.
    pub(super) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect("", &mut paths);
        paths
    }

    fn collect(&self, path: &str, paths: &mut Vec<String>) {
        if self.own {
            paths.push(path.to_owned());
        }
        for (edge, set) in &self.below {
            let step = match edge.split_at(2) {
                ("f:", name) => format!(".{name}"),
                ("k:", keys) => {
                    let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
                    let keys: Vec<_> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
                    format!("[{}]", keys.join(","))
                }
                (_, value) => format!("[={value}]"),
            };
            set.collect(&format!("{path}{step}"), paths);
        }
    }
}

/// Merges what `applied` sets into `live`.
pub(super) fn merge(live: &mut Value, applied: &Value, ty: &Type) {
    match (ty, live, applied) {
        (Type::Struct(_) | Type::Open(_) | Type::Map(_), Value::Object(live), Value::Object(applied)) => {
            for (key, value) in applied {
                match (live.get_mut(key), ty.member(key)) {
                    (Some(live), Some(ty)) => merge(live, value, ty),
                    _ => {
                        live.insert(key.clone(), value.clone());
                    }
                }
            }
        }
        (Type::List(item, merge_by @ (Merge::Set | Merge::Keyed(_))), Value::Array(live), Value::Array(applied)) => {
            for value in applied {
                let edge = edge(value, *merge_by);
                match live.iter_mut().find(|live| self::edge(live, *merge_by) == edge) {
                    Some(live) => merge(live, value, item),
                    None => live.push(value.clone()),
                }
            }
        }
        (_, live, applied) => *live = applied.clone(),
    }
}

/// Removes the fields of `gone` from `value`, except where something of `keep` lies at or below them.
pub(super) fn remove(value: &mut Value, ty: &Type, gone: &FieldSet, keep: &FieldSet) {
    let nothing = FieldSet::default();
    let stays = |edge: &str, child: &mut Value, ty: Option<&Type>| {
        let Some(gone) = gone.below.get(edge) else { return true };
        let keep = keep.below.get(edge).unwrap_or(&nothing);
        if gone.own && keep.is_empty() {
            return false;
        }
        if let Some(ty) = ty {
            remove(child, ty, gone, keep);
        }
        true
    };
    match (ty, value) {
        (Type::Struct(_) | Type::Open(_) | Type::Map(_), Value::Object(map)) => {
            map.retain(|key, child| stays(&format!("f:{key}"), child, ty.member(key)));
        }
        (Type::List(item, merge_by @ (Merge::Set | Merge::Keyed(_))), Value::Array(items)) => {
            items.retain_mut(|child| stays(&edge(child, *merge_by), child, Some(item)));
        }
        _ => {}
    }
}

/// The parts of a value that can be owned apart, with the edges that lead to them. None for what is owned as a whole.
fn children<'a>(value: &'a Value, ty: &Type) -> Vec<(String, &'a Value, Option<&'static Type>)> {
    match (ty, value) {
        (Type::Struct(_) | Type::Open(_) | Type::Map(_), Value::Object(map)) => {
            map.iter().map(|(key, child)| (format!("f:{key}"), child, ty.member(key))).collect()
        }
        (Type::List(item, merge_by @ (Merge::Set | Merge::Keyed(_))), Value::Array(items)) => {
            let item: &'static Type = item;
            items.iter().map(|child| (edge(child, *merge_by), child, Some(item))).collect()
        }
        _ => Vec::new(),
    }
}

fn edge(item: &Value, merge_by: Merge) -> String {
    match merge_by {
        Merge::Keyed(keys) => {
            // Keys that an entry lacks are left out, as `shareID` often is.
            let keys: BTreeMap<_, _> = keys.iter().filter_map(|key| Some((*key, item.get(*key)?))).collect();
            format!("k:{}", json!(keys))
        }
        _ => format!("v:{item}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::kind::Kind;
    use crate::api::schema;

    fn claim() -> Value {
        json!({"metadata": {"name": "c", "labels": {"a": "1"}, "finalizers": ["x/y"]}, "status": {"devices": [
            {"driver": "d", "pool": "p", "device": "one", "data": {"uuid": "u"}},
            {"driver": "d", "pool": "p", "device": "two", "shareID": "s"}]}})
    }

    #[test]
    fn a_set_is_written_like_managed_fields_and_reads_back() {
        let set = FieldSet::of_object(&claim(), schema::of(Kind::ResourceClaim));
        let wire = set.to_wire();
        assert_eq!(
            wire,
            json!({
                "f:metadata": {"f:labels": {"f:a": {}}, "f:finalizers": {"v:\"x/y\"": {}}},
                "f:status": {"f:devices": {
                    "k:{\"device\":\"one\",\"driver\":\"d\",\"pool\":\"p\"}":
                        {".": {}, "f:driver": {}, "f:pool": {}, "f:device": {}, "f:data": {}},
                    "k:{\"device\":\"two\",\"driver\":\"d\",\"pool\":\"p\",\"shareID\":\"s\"}":
                        {".": {}, "f:driver": {}, "f:pool": {}, "f:device": {}, "f:shareID": {}}}}
            })
        );
        assert_eq!(FieldSet::from_wire(&wire), set);
    }

    #[test]
    fn comparing_finds_what_changed_and_what_is_gone() {
        let mut new = claim();
        new["status"]["devices"][0]["data"] = json!({"uuid": "v"});
        new["status"]["devices"].as_array_mut().unwrap().remove(1);
        new["metadata"]["labels"]["b"] = json!("2");
        let (changed, removed) = FieldSet::compare(&claim(), &new, schema::of(Kind::ResourceClaim));
        let one = ".status.devices[device=\"one\",driver=\"d\",pool=\"p\"]";
        assert_eq!(changed.paths(), [".metadata.labels.b".to_owned(), format!("{one}.data")]);
        assert!(
            removed.paths().contains(&".status.devices[device=\"two\",driver=\"d\",pool=\"p\",shareID=\"s\"]".into())
        );
    }
}
