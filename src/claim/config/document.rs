//! JSON documents, read more strictly than serde and serde_json do by themselves.
//!
//! * Of two fields with one name serde_json keeps the last. Here they are an error.
//! * serde takes a list for an object, its items for the fields in their order, and `{"MPS": null}` for the word `"MPS"`.
//!   [`object`] and [`word`] do not.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Error, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Number, Value};

/// The longest quotation from a document, in characters. A key may be as long as the document.
const MAX_QUOTED: usize = 160;

/// What is wrong with a document, and where. Fits into one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    /// The field, as in `sharing.strategy`; empty for the document itself.
    path: String,
    message: String,
}

/// A value in which no object has two fields of one name.
struct Unique(Value);

/// Takes an object and nothing else, or null.
struct OnlyObject<T>(PhantomData<T>);

// === impl Wrong ===

impl Wrong {
    pub(super) fn new(path: &str, message: &str) -> Self {
        Self { path: quoted(path), message: quoted(message) }
    }

    fn of(error: &serde_path_to_error::Error<serde_json::Error>) -> Self {
        let (path, error) = (error.path().to_string(), error.inner());
        let message = error.to_string();
        // The document has long been on one line of somebody else's making.
        let place = format!(" at line {} column {}", error.line(), error.column());
        Self::new(if path == "." { "" } else { &path }, message.strip_suffix(&place).unwrap_or(&message))
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, message } = self;
        if path.is_empty() { f.write_str(message) } else { write!(f, "{path}: {message}") }
    }
}

// === impl Unique ===

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Unique;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_unit<E>(self) -> Result<Unique, E> {
                Ok(Unique(Value::Null))
            }

            fn visit_bool<E>(self, bool: bool) -> Result<Unique, E> {
                Ok(Unique(Value::Bool(bool)))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Unique, E> {
                Ok(Unique(number.into()))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Unique, E> {
                Ok(Unique(number.into()))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Unique, E> {
                let number = Number::from_f64(number).ok_or_else(|| E::custom("number out of range"))?;
                Ok(Unique(Value::Number(number)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Unique, E> {
                Ok(Unique(text.into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Unique, A::Error> {
                let mut list = Vec::new();
                while let Some(Unique(item)) = items.next_element()? {
                    list.push(item);
                }
                Ok(Unique(Value::Array(list)))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Unique, A::Error> {
                let mut object = Map::new();
                while let Some(name) = fields.next_key::<String>()? {
                    if object.contains_key(&name) {
                        return Err(A::Error::custom(format!("duplicate field `{name}`")));
                    }
                    let Unique(value) = fields.next_value()?;
                    object.insert(name, value);
                }
                Ok(Unique(Value::Object(object)))
            }
        }

        deserializer.deserialize_any(Any)
    }
}

// === impl OnlyObject ===

impl<'de, T: Deserialize<'de>> Visitor<'de> for OnlyObject<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Option<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields)).map(Some)
    }
}

/// Reads a text that is one JSON document.
pub(super) fn read(text: &str) -> Result<Value, Wrong> {
    let mut json = serde_json::Deserializer::from_str(text);
    let Unique(document) = serde_path_to_error::deserialize(&mut json).map_err(|error| Wrong::of(&error))?;
    json.end().map_err(|_| Wrong::new("", "more than one JSON document"))?;
    Ok(document)
}

/// Decodes what was read.
pub(super) fn decode<T: DeserializeOwned>(document: Value) -> Result<T, Wrong> {
    serde_path_to_error::deserialize(document).map_err(|error| Wrong::of(&error))
}

/// For a field that is an object. Null is as good as absent.
pub(super) fn object<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_any(OnlyObject(PhantomData))
}

/// For a field that is one of several words.
pub(super) fn word<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    T::deserialize(String::deserialize(deserializer)?.into_deserializer())
}

/// The same, where null is as good as absent.
pub(super) fn optional_word<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| T::deserialize(text.into_deserializer())).transpose()
}

/// The same, where the empty text is too.
pub(super) fn word_or_empty<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let text = Option::<String>::deserialize(deserializer)?.filter(|text| !text.is_empty());
    text.map(|text| T::deserialize(text.into_deserializer())).transpose()
}

/// As much of a text as a message may quote, on one line.
pub(super) fn quoted(text: &str) -> String {
    let printable = |character: char| if character.is_control() { '\u{fffd}' } else { character };
    let mut characters = text.chars().map(printable);
    let mut quoted: String = characters.by_ref().take(MAX_QUOTED).collect();
    if characters.next().is_some() {
        quoted.push('…');
    }
    quoted
}
