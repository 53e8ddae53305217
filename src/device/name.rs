//! The names that devices are published under.

use std::fmt;

use super::ParseError;

/// A name of a device in a slice: a DNS label, for example `gpu-0`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceName(String);

/// The longest DNS label.
const MAX_BYTES: usize = 63;

// === impl DeviceName ===

impl DeviceName {
    /// The name of a whole GPU, numbered by the minor it had when it was first seen.
    pub fn gpu(number: u32) -> Self {
        Self(format!("gpu-{number}"))
    }

    /// Accepts DNS labels: lower-case letters, digits and inner dashes, at most 63.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let bytes = text.as_bytes();
        let inner = !text.starts_with('-') && !text.ends_with('-');
        if bytes.is_empty() || bytes.len() > MAX_BYTES || !inner || !bytes.iter().copied().all(plain) {
            return Err(ParseError { text: text.to_owned(), expected: "a device name (a DNS label)" });
        }
        Ok(Self(text.to_owned()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for DeviceName {
    type Error = ParseError;

    fn try_from(text: String) -> Result<Self, ParseError> {
        Self::parse(&text)
    }
}

impl From<DeviceName> for String {
    fn from(name: DeviceName) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dns_labels_are_names() {
        assert_eq!(DeviceName::parse("gpu-0-mig-1g5gb-19-6").unwrap().as_str(), "gpu-0-mig-1g5gb-19-6");
        for text in ["", "-a", "a-", "A", "a.b", "a/b", &"a".repeat(64)] {
            assert!(DeviceName::parse(text).is_err(), "{text:?} was accepted");
        }
    }
}
