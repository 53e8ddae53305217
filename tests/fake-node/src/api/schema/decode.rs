//! Reading an object as the Go types would, and writing it back as they would.

use serde_json::{Map, Value, json};

use super::{Field, Type};
use crate::api::quantity::Quantity;
use crate::release::Release;

/// A value that the Go type cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::api) enum Unreadable {
    /// A string where a number belongs, and the like.
    #[error("json: cannot unmarshal {found} into Go struct field .{path} of type {expected}")]
    WrongType {
        /// Where.
        path: String,
        /// What JSON holds there.
        found: &'static str,
        /// What the type wants.
        expected: &'static str,
    },
    /// A quantity or a time that does not parse; the message is that of its parser.
    #[error("{0}")]
    Text(String),
}

/// Reads `value` in place: drops nulls and fields that the release does not have, canonicalises quantities and times.
/// Returns the paths of the dropped unknown fields.
pub(in crate::api) fn decode(value: &mut Value, ty: &Type, release: Release) -> Result<Vec<String>, Unreadable> {
    let mut unknown = Vec::new();
    Decoder { release, unknown: &mut unknown }.read(value, ty, "")?;
    Ok(unknown)
}

struct Decoder<'a> {
    release: Release,
    unknown: &'a mut Vec<String>,
}

impl Decoder<'_> {
    fn read(&mut self, value: &mut Value, ty: &Type, path: &str) -> Result<(), Unreadable> {
        match (ty, value) {
            (Type::Str | Type::StrPtr, Value::String(_))
            | (Type::Bool | Type::BoolPtr, Value::Bool(_))
            | (Type::Raw, _) => Ok(()),
            (Type::Int | Type::IntPtr, Value::Number(number)) if number.is_i64() => Ok(()),
            (Type::Quantity, Value::String(text)) => {
                *text = canonical(text.trim())?;
                Ok(())
            }
            (Type::Quantity, number @ Value::Number(_)) => {
                *number = json!(canonical(&number.to_string())?);
                Ok(())
            }
            (Type::Time, Value::String(text)) => spell_time(text, "%Y-%m-%dT%H:%M:%SZ"),
            (Type::MicroTime, Value::String(text)) => spell_time(text, "%Y-%m-%dT%H:%M:%S.%6fZ"),
            (Type::Struct(fields) | Type::AtomicStruct(fields), Value::Object(map)) => {
                self.members(map, fields, false, path)
            }
            (Type::Open(fields), Value::Object(map)) => self.members(map, fields, true, path),
            (Type::Map(ty), Value::Object(map)) => {
                map.retain(|_, value| !value.is_null() || matches!(ty, Type::Raw));
                map.iter_mut().try_for_each(|(key, value)| self.read(value, ty, &join(path, key)))
            }
            (Type::List(ty, _), Value::Array(items)) => {
                items.iter_mut().enumerate().try_for_each(|(i, item)| self.read(item, ty, &format!("{path}[{i}]")))
            }
            (ty, value) => {
                Err(Unreadable::WrongType { path: path.to_owned(), found: json_name(value), expected: go_name(ty) })
            }
        }
    }

    fn members(
        &mut self,
        map: &mut Map<String, Value>,
        fields: &[Field],
        open: bool,
        path: &str,
    ) -> Result<(), Unreadable> {
        let mut failure = None;
        map.retain(|key, value| {
            let Some(field) = fields.iter().find(|f| f.name == key && f.known_in(self.release)) else {
                if !open {
                    self.unknown.push(join(path, key));
                }
                return open;
            };
            if value.is_null() && !matches!(field.ty, Type::Raw) {
                return false;
            }
            if failure.is_none() {
                failure = self.read(value, &field.ty, &join(path, key)).err();
            }
            true
        });
        failure.map_or(Ok(()), Err)
    }
}

/// Leaves out what `omitempty` leaves out, and writes what is always written. The stored and answered form.
pub(in crate::api) fn compact(value: &mut Value, ty: &Type) {
    match (ty, value) {
        (Type::Struct(fields) | Type::AtomicStruct(fields) | Type::Open(fields), Value::Object(map)) => {
            for field in *fields {
                if field.always && !map.contains_key(field.name) {
                    map.insert(field.name.to_owned(), zero(&field.ty));
                }
            }
            map.retain(|key, value| {
                let Some(field) = fields.iter().find(|field| field.name == key) else { return true };
                compact(value, &field.ty);
                let empty = is_empty(value, &field.ty);
                if field.always && empty {
                    *value = zero(&field.ty);
                }
                field.always || !empty
            });
        }
        (Type::Map(ty), Value::Object(map)) => map.values_mut().for_each(|value| compact(value, ty)),
        (Type::List(ty, _), Value::Array(items)) => items.iter_mut().for_each(|item| compact(item, ty)),
        _ => {}
    }
}

/// Whether Go's encoder leaves the value out of a field with `omitempty`. A pointer to a struct stays, and so does a
/// pointer to a zero.
fn is_empty(value: &Value, ty: &Type) -> bool {
    match (ty, value) {
        (_, Value::Null) => true,
        (Type::Str, Value::String(text)) => text.is_empty(),
        (Type::Bool, Value::Bool(set)) => !set,
        (Type::Int, Value::Number(number)) => number.as_i64() == Some(0),
        (Type::Map(_), Value::Object(map)) => map.is_empty(),
        (Type::List(..), Value::Array(items)) => items.is_empty(),
        _ => false,
    }
}

fn zero(ty: &Type) -> Value {
    match ty {
        Type::Str | Type::StrPtr => json!(""),
        Type::Bool | Type::BoolPtr => json!(false),
        Type::Int | Type::IntPtr => json!(0),
        Type::Quantity => json!("0"),
        Type::Struct(_) | Type::AtomicStruct(_) | Type::Open(_) => {
            let mut value = json!({});
            compact(&mut value, ty);
            value
        }
        Type::Time | Type::MicroTime | Type::Raw | Type::Map(_) | Type::List(..) => Value::Null,
    }
}

fn canonical(text: &str) -> Result<String, Unreadable> {
    Quantity::parse(text).map(Quantity::canonical).map_err(|error| Unreadable::Text(error.to_string()))
}

/// Times are kept in UTC, and no finer than their type.
fn spell_time(text: &mut String, format: &str) -> Result<(), Unreadable> {
    let time: jiff::Timestamp = text
        .parse()
        .map_err(|_| Unreadable::Text(format!("parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\"")))?;
    *text = time.strftime(format).to_string();
    Ok(())
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn json_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn go_name(ty: &Type) -> &'static str {
    match ty {
        Type::Str | Type::StrPtr => "string",
        Type::Bool | Type::BoolPtr => "bool",
        Type::Int | Type::IntPtr => "int64",
        Type::Quantity => "resource.Quantity",
        Type::Time => "v1.Time",
        Type::MicroTime => "v1.MicroTime",
        Type::Raw => "runtime.RawExtension",
        Type::Struct(_) | Type::AtomicStruct(_) | Type::Open(_) => "struct",
        Type::Map(_) => "map[string]",
        Type::List(..) => "[]",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::kind::Kind;
    use crate::api::schema;

    fn read(release: Release, mut value: Value) -> Result<(Value, Vec<String>), Unreadable> {
        let unknown = decode(&mut value, schema::of(Kind::ResourceSlice), release)?;
        Ok((value, unknown))
    }

    #[test]
    fn fields_that_a_release_does_not_have_are_pruned_and_named() {
        let slice =
            json!({"spec": {"driver": "d", "magic": 1, "devices": [{"name": "a", "taints": []}], "nodeName": null}});
        let (read_by_32, unknown) = read(Release::V1_32, slice.clone()).unwrap();
        assert_eq!(read_by_32, json!({"spec": {"driver": "d", "devices": [{"name": "a"}]}}));
        assert_eq!(unknown, ["spec.devices[0].taints", "spec.magic"]);
        let (_, unknown) = read(Release::V1_33, slice).unwrap();
        assert_eq!(unknown, ["spec.magic"]);
    }

    #[test]
    fn quantities_are_stored_in_their_canonical_spelling() {
        let capacity = json!({"memory": {"value": "1024Mi"}, "n": {"value": 1000}});
        let slice = json!({"spec": {"devices": [{"name": "a", "capacity": capacity}]}});
        let (slice, _) = read(Release::V1_36, slice).unwrap();
        assert_eq!(slice["spec"]["devices"][0]["capacity"], json!({"memory": {"value": "1Gi"}, "n": {"value": "1k"}}));
    }

    #[test]
    fn times_are_kept_in_utc_and_whole_seconds() {
        let mut event =
            json!({"firstTimestamp": "2026-01-01T02:00:00.9+02:00", "eventTime": "2026-01-01T00:00:00.0000019Z"});
        decode(&mut event, schema::of(Kind::Event), Release::V1_36).unwrap();
        assert_eq!(
            event,
            json!({"firstTimestamp": "2026-01-01T00:00:00Z", "eventTime": "2026-01-01T00:00:00.000001Z"})
        );
    }

    #[test]
    fn values_of_a_wrong_type_are_refused_with_their_path() {
        let refused = |slice| read(Release::V1_36, slice).unwrap_err().to_string();
        let message = refused(json!({"spec": {"devices": [{"name": 7}]}}));
        assert!(message.contains("number") && message.contains(".spec.devices[0].name of type string"), "{message}");
        let message = refused(json!({"spec": {"sharedCounters": [{"counters": {"memory": {"value": "many"}}}]}}));
        assert!(message.starts_with("quantities must match"), "{message}");
        refused(json!({"spec": {"pool": {"generation": 1.5}}}));
        refused(json!({"metadata": {"creationTimestamp": "yesterday"}}));
    }

    #[test]
    fn the_written_form_has_what_go_always_writes_and_nothing_empty() {
        let mut slice = json!({"spec": {"driver": "d", "devices": [], "nodeName": "", "allNodes": false}});
        compact(&mut slice, schema::of(Kind::ResourceSlice));
        let pool = json!({"name": "", "generation": 0, "resourceSliceCount": 0});
        assert_eq!(slice, json!({"spec": {"driver": "d", "pool": pool, "nodeName": "", "allNodes": false}}));

        let mut claim = json!({"spec": {}, "status": {"devices": [{"driver": "d", "pool": "p", "device": "x"}]}});
        compact(&mut claim, schema::of(Kind::ResourceClaim));
        assert_eq!(claim["spec"], json!({"devices": {}}));
        assert_eq!(claim["status"]["devices"][0]["conditions"], Value::Null);
        assert!(claim["status"]["devices"][0].as_object().unwrap().contains_key("conditions"));
    }
}
