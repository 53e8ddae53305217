//! What a device says of itself to CEL selectors.

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A 64-bit integer.
    Int(i64),
    /// True or false.
    Bool(bool),
    /// At most 64 bytes.
    String(String),
    /// A strict semantic version.
    Version(semver::Version),
}
