//! The three patches that are not server-side apply: JSON patch, merge patch, strategic merge patch.

use serde_json::{Map, Value};

use super::failure::Failure;
use super::kind::Kind;
use super::schema::{self, Type};

/// A patch, by its media type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PatchKind {
    /// RFC 6902
    Json,
    /// RFC 7396
    Merge,
    /// Lists merge by the keys of the type.
    Strategic,
    /// Server-side apply.
    Apply,
}

// === impl PatchKind ===

impl PatchKind {
    /// What a PATCH may carry.
    pub(super) const MEDIA_TYPES: &str = "application/json-patch+json, application/merge-patch+json, \
        application/strategic-merge-patch+json, application/apply-patch+yaml";

    pub(super) fn from_media_type(media_type: &str) -> Option<Self> {
        match media_type.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Some(Self::Json),
            "application/merge-patch+json" => Some(Self::Merge),
            "application/strategic-merge-patch+json" => Some(Self::Strategic),
            "application/apply-patch+yaml" => Some(Self::Apply),
            _ => None,
        }
    }
}

/// Changes `object` as the patch says. Server-side apply is not for here: it needs to know who applies.
pub(super) fn patch(how: PatchKind, kind: Kind, object: &mut Value, patch: &Value) -> Result<(), Failure> {
    match how {
        PatchKind::Json => {
            let operations: json_patch::Patch = serde_json::from_value(patch.clone())
                .map_err(|error| Failure::bad_request(format!("error decoding patch: {error}")))?;
            json_patch::patch(object, &operations).map_err(|error| Failure::unprocessable(error.to_string()))
        }
        PatchKind::Merge | PatchKind::Apply => {
            json_patch::merge(object, must_be_object(patch)?);
            Ok(())
        }
        PatchKind::Strategic => {
            strategic(object, must_be_object(patch)?, Some(schema::of(kind)));
            Ok(())
        }
    }
}

fn must_be_object(patch: &Value) -> Result<&Value, Failure> {
    if patch.is_object() { Ok(patch) } else { Err(Failure::bad_request("a merge patch must be a JSON object")) }
}

fn strategic(target: &mut Value, patch: &Value, ty: Option<&Type>) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    match patch.get("$patch").and_then(Value::as_str) {
        Some("delete") => {
            *target = Value::Object(Map::new());
            return;
        }
        Some("replace") => *target = Value::Object(Map::new()),
        _ if !target.is_object() => *target = Value::Object(Map::new()),
        _ => {}
    }
    let Some(target) = target.as_object_mut() else { return };
    if let Some(Value::Array(keys)) = patch.get("$retainKeys") {
        target.retain(|key, _| keys.iter().any(|kept| kept == key));
    }
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix("$deleteFromPrimitiveList/") {
            let gone = value.as_array().map_or(&[][..], Vec::as_slice);
            if let Some(Value::Array(items)) = target.get_mut(list) {
                items.retain(|item| !gone.contains(item));
            }
            continue;
        }
        // Directives: done above, or about the order of lists, which nothing here depends on.
        if key.starts_with('$') {
            continue;
        }
        let merge_key = ty.and_then(|ty| ty.field(key)).and_then(|field| field.patch_key);
        let member = ty.and_then(|ty| ty.member(key));
        match (value, merge_key) {
            (Value::Null, _) => drop(target.remove(key)),
            (Value::Object(_), _) => strategic(target.entry(key.clone()).or_insert(Value::Null), value, member),
            (Value::Array(changes), Some(merge_key)) => {
                let list = target.entry(key.clone()).or_insert_with(|| Value::Array(Vec::new()));
                let item = if let Some(Type::List(item, _)) = member { Some(*item) } else { None };
                if let Value::Array(list) = list {
                    merge_list(list, changes, merge_key, item);
                }
            }
            _ => drop(target.insert(key.clone(), value.clone())),
        }
    }
}

/// `merge_key` is empty for lists of scalars.
fn merge_list(list: &mut Vec<Value>, changes: &[Value], merge_key: &str, item: Option<&Type>) {
    if changes.iter().any(|change| change["$patch"] == "replace") {
        list.clear();
    }
    for change in changes {
        let same =
            |item: &Value| if merge_key.is_empty() { item == change } else { item[merge_key] == change[merge_key] };
        match change.get("$patch").and_then(Value::as_str) {
            Some("delete") => list.retain(|item| !same(item)),
            Some("replace") if change.get(merge_key).is_none() => {}
            _ => {
                if let Some(found) = list.iter_mut().find(|item| same(item)) {
                    strategic(found, change, item);
                } else {
                    let mut added = Value::Null;
                    strategic(&mut added, change, item);
                    list.push(added);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node() -> Value {
        json!({"metadata": {"name": "n", "labels": {"a": "1"}},
            "spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "R"}]}})
    }

    #[test]
    fn strategic_patches_merge_lists_by_the_keys_of_the_type() {
        let mut object = node();
        let change = json!({"metadata": {"labels": {"a": null, "b": "2"}},
            "spec": {"taints": [{"key": "y", "effect": "NoExecute"}]},
            "status": {"$setElementOrder/conditions": [{"type": "Ready"}],
                "conditions": [{"type": "Ready", "status": "True"}, {"type": "New", "status": "True"}]}});
        patch(PatchKind::Strategic, Kind::Node, &mut object, &change).unwrap();
        assert_eq!(object["metadata"]["labels"], json!({"b": "2"}));
        assert_eq!(object["spec"]["taints"], json!([{"key": "y", "effect": "NoExecute"}]), "no merge key: replaced");
        assert_eq!(
            object["status"]["conditions"],
            json!([{"type": "Ready", "status": "True", "reason": "R"}, {"type": "New", "status": "True"}])
        );

        let change = json!({"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}});
        patch(PatchKind::Strategic, Kind::Node, &mut object, &change).unwrap();
        assert_eq!(object["status"]["conditions"], json!([{"type": "New", "status": "True"}]));
    }

    #[test]
    fn finalizers_merge_as_a_set() {
        let mut object = json!({"metadata": {"finalizers": ["a/a", "b/b"]}});
        let change =
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/a"], "finalizers": ["c/c", "b/b"]}});
        patch(PatchKind::Strategic, Kind::ResourceClaim, &mut object, &change).unwrap();
        assert_eq!(object["metadata"]["finalizers"], json!(["b/b", "c/c"]));
    }

    #[test]
    fn merge_patches_replace_lists() {
        let mut object = node();
        let change = json!({"status": {"conditions": [{"type": "New"}]}, "spec": null});
        patch(PatchKind::Merge, Kind::Node, &mut object, &change).unwrap();
        assert_eq!(object["status"]["conditions"], json!([{"type": "New"}]));
        assert!(object.get("spec").is_none());
    }

    #[test]
    fn a_failed_test_of_a_json_patch_changes_nothing() {
        let mut object = node();
        let change =
            json!([{"op": "remove", "path": "/spec"}, {"op": "test", "path": "/metadata/name", "value": "other"}]);
        let refused = patch(PatchKind::Json, Kind::Node, &mut object, &change).unwrap_err();
        assert_eq!(refused.code, 422);
        assert_eq!(object, node());
        assert_eq!(patch(PatchKind::Json, Kind::Node, &mut object, &json!({"op": "x"})).unwrap_err().code, 400);
    }
}
