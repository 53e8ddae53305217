//! Collecting field errors, and the checks that every list and map gets.

use serde_json::{Value, json};

use super::super::failure::{FieldError, Problem};

/// The errors found so far.
#[derive(Debug, Default)]
pub(super) struct Errors(Vec<FieldError>);

// === impl Errors ===

impl Errors {
    pub(super) fn push(&mut self, field: &str, problem: Problem) {
        self.0.push(FieldError { field: field.to_owned(), problem });
    }

    pub(super) fn required(&mut self, field: &str, detail: &str) {
        self.push(field, Problem::Required(detail.to_owned()));
    }

    pub(super) fn invalid(&mut self, field: &str, value: impl Into<Value>, detail: impl Into<String>) {
        self.push(field, Problem::Invalid(value.into(), detail.into()));
    }

    pub(super) fn forbidden(&mut self, field: &str, detail: &str) {
        self.push(field, Problem::Forbidden(detail.to_owned()));
    }

    /// The value must be one of `allowed`; an empty one is reported as missing.
    pub(super) fn one_of(&mut self, field: &str, value: &str, allowed: &[&str]) {
        if value.is_empty() {
            self.required(field, "");
        } else if !allowed.contains(&value) {
            let allowed = allowed.iter().map(ToString::to_string).collect();
            self.push(field, Problem::NotSupported(value.to_owned(), allowed));
        }
    }

    /// Reports a string of more than `max` bytes.
    pub(super) fn max_bytes(&mut self, field: &str, value: &str, max: usize) -> bool {
        self.max_bytes_of(field, value.len(), max)
    }

    /// As [`Self::max_bytes`], for a size that is known already.
    pub(super) fn max_bytes_of(&mut self, field: &str, bytes: usize, max: usize) -> bool {
        let fits = bytes <= max;
        if !fits {
            self.push(field, Problem::TooLong(max));
        }
        fits
    }

    /// Reports a list or map of more than `max` entries. Entries of one that is too long are not looked at.
    pub(super) fn max_items(&mut self, field: &str, actual: usize, max: usize) -> bool {
        let fits = actual <= max;
        if !fits {
            self.push(field, Problem::TooMany { actual, max });
        }
        fits
    }

    /// Reports every entry whose key occurred before.
    pub(super) fn unique(&mut self, field: &str, keys: impl Iterator<Item = Value>) {
        let mut seen = Vec::new();
        for (i, key) in keys.enumerate() {
            if seen.contains(&key) {
                self.push(&format!("{field}[{i}]"), Problem::Duplicate(key));
            } else {
                seen.push(key);
            }
        }
    }

    /// Reports a field whose value is not the old one.
    pub(super) fn immutable(&mut self, field: &str, new: &Value, old: &Value) {
        if new != old {
            self.invalid(field, new.clone(), "field is immutable");
        }
    }

    pub(super) fn into_inner(self) -> Vec<FieldError> {
        self.0
    }
}

/// The entries of a list; none if it is absent.
pub(super) fn items<'a>(object: &'a Value, key: &str) -> &'a [Value] {
    object[key].as_array().map_or(&[], Vec::as_slice)
}

/// The entries of a map, in the order of their keys.
pub(super) fn entries<'a>(object: &'a Value, key: &str) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
    object[key].as_object().into_iter().flatten()
}

/// A string; empty if it is absent.
pub(super) fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object[key].as_str().unwrap_or_default()
}

/// The texts of several keys as one comparable key.
pub(super) fn key_of(object: &Value, keys: &[&str]) -> Value {
    json!(keys.iter().map(|key| text(object, key)).collect::<Vec<_>>().join("/"))
}
