//! Reading bodies into the stored form, and writing the stored form as a client asked for it.

use serde_json::{Value, json};

use super::failure::Failure;
use super::kind::{GroupVersion, Kind};
use super::{admit, convert, ids, schema, table};
use crate::release::Release;

/// The type and version that a request speaks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Codec {
    pub(super) kind: Kind,
    pub(super) version: GroupVersion,
    pub(super) release: Release,
}

/// What the client wants to see of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// The objects.
    Objects,
    /// Rows and columns, as `kubectl get` asks for.
    Table,
    /// The metadata alone.
    Metadata,
}

/// What to do about fields that the server does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

// === impl Codec ===

impl Codec {
    /// Turns an object of the request's version into the stored form, with defaults. Returns warnings as well.
    pub(super) fn read(self, mut object: Value, validation: FieldValidation) -> Result<(Value, Vec<String>), Failure> {
        self.check_type(&mut object)?;
        let warnings = self.read_partial(&mut object, validation)?;
        admit::default(self.kind, &mut object, &ids::now());
        Ok((object, warnings))
    }

    /// As [`Self::read`], without defaults: the configuration of a server-side apply is only what it says.
    pub(super) fn read_partial(self, object: &mut Value, validation: FieldValidation) -> Result<Vec<String>, Failure> {
        if !object.is_object() {
            let why = "json: cannot unmarshal into a Go struct: the body is not an object";
            return Err(Failure::unreadable(self.kind, self.version, why));
        }
        convert::to_stored(self.kind, self.version, object);
        let unknown = schema::decode(object, schema::of(self.kind), self.release)
            .map_err(|error| Failure::unreadable(self.kind, self.version, &error.to_string()))?;
        let mut unknown: Vec<_> = unknown.iter().map(|path| format!("unknown field {path:?}")).collect();
        if validation == FieldValidation::Strict && !unknown.is_empty() {
            let why = format!("strict decoding error: {}", unknown.join(", "));
            return Err(Failure::unreadable(self.kind, self.version, &why));
        }
        unknown.retain(|_| validation == FieldValidation::Warn);
        unknown.extend(self.capital_driver(object));
        Ok(unknown)
    }

    /// From 1.35 on the server warns about capitals in the names of drivers.
    fn capital_driver(self, object: &Value) -> Option<String> {
        let driver = object["spec"]["driver"].as_str()?;
        let warned = self.kind == Kind::ResourceSlice && self.release >= Release::V1_35;
        (warned && driver != driver.to_lowercase())
            .then(|| format!("spec.driver: driver names should be lowercase; {driver:?} contains uppercase characters"))
    }

    fn check_type(self, object: &mut Value) -> Result<(), Failure> {
        let expected =
            [("apiVersion", "API version", self.version.to_string()), ("kind", "kind", self.kind.to_string())];
        for (field, noun, expected) in expected {
            match object.get(field).and_then(Value::as_str).unwrap_or_default() {
                "" => object[field] = json!(expected),
                found if found == expected => {}
                found => {
                    return Err(Failure::bad_request(format!(
                        "the {noun} in the data ({found}) does not match the expected {noun} ({expected})"
                    )));
                }
            }
        }
        Ok(())
    }

    /// The object in the request's version.
    pub(super) fn write(self, object: &Value) -> Value {
        let mut object = object.clone();
        convert::to_wire(self.kind, self.version, &mut object);
        object
    }

    /// One object in the wanted form.
    pub(super) fn show(self, object: &Value, form: Form) -> Value {
        match form {
            Form::Objects => self.write(object),
            Form::Table => {
                table::table(self, &[object], &json!({"resourceVersion": object["metadata"]["resourceVersion"]}))
            }
            Form::Metadata => metadata(object),
        }
    }

    /// A list in the wanted form. `meta` is the list's metadata.
    pub(super) fn show_list(self, objects: &[&Value], form: Form, meta: &Value) -> Value {
        match form {
            Form::Objects => json!({
                "kind": format!("{}List", self.kind), "apiVersion": self.version.to_string(), "metadata": meta,
                "items": objects.iter().map(|object| self.write(object)).collect::<Vec<_>>(),
            }),
            Form::Table => table::table(self, objects, meta),
            Form::Metadata => json!({
                "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta,
                "items": objects.iter().map(|object| metadata(object)).collect::<Vec<_>>(),
            }),
        }
    }
}

fn metadata(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}
