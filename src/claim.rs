//! A ResourceClaim as far as this driver is concerned, and the plan that follows from it.
//!
//! Pure: a [`Claim`] is read by [`cluster`](crate::cluster), planned here against the node's devices, and carried out by
//! [`prepare`](crate::prepare).

pub mod config;
#[cfg(test)]
pub(crate) mod example;
pub mod plan;

use std::fmt;

use crate::device::ParseError;

/// An allocated claim: only results and configs that name our driver, in the order of the allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The identity; a claim of the same name and another UID is another claim.
    pub uid: ClaimUid,
    /// For people: namespace and name.
    pub name: ClaimName,
    /// What was allocated from our driver.
    pub results: Vec<AllocationResult>,
    /// Opaque parameters addressed to our driver, class before claim.
    pub configs: Vec<OpaqueConfig>,
    /// What its status says of our devices (`status.devices[]`), as it is written there.
    pub statuses: Vec<serde_json::Value>,
}

/// The UID of a ResourceClaim. Safe as a file name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClaimUid(String);

/// Namespace and name of a ResourceClaim.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ClaimName {
    /// Its namespace.
    pub namespace: String,
    /// Its name in the namespace.
    pub name: String,
}

/// One device of the allocation (`status.allocation.devices.results[]`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocationResult {
    /// The request it satisfies: `main` or, from `firstAvailable`, `main/sub`.
    pub request: String,
    /// The pool it was allocated from.
    pub pool: String,
    /// The device's name in the pool.
    pub device: String,
    /// Which share of the device, where it can be allocated several times.
    pub share_id: Option<String>,
    /// Allocated to look, not to use: does not count as use.
    pub admin_access: bool,
}

/// Opaque parameters (`status.allocation.devices.config[]`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpaqueConfig {
    /// Requests it applies to; empty means all.
    pub requests: Vec<String>,
    /// The text of the JSON document, not decoded yet.
    pub parameters: String,
}

// === impl AllocationResult ===

impl AllocationResult {
    /// The name that pods know the request by: without the part after the first `/`.
    pub fn base_request(&self) -> &str {
        self.request.split_once('/').map_or(self.request.as_str(), |(main, _)| main)
    }
}

// === impl ClaimUid ===

impl ClaimUid {
    /// Accepts what can safely stand in a file name: up to 63 characters of `[0-9a-zA-Z-]`. API servers hand out
    /// UUIDs, but nothing requires them to.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        if text.is_empty() || text.len() > 63 || !text.bytes().all(plain) {
            return Err(ParseError { text: text.to_owned(), expected: "a claim UID" });
        }
        Ok(Self(text.to_owned()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClaimUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ClaimUid {
    type Error = ParseError;

    fn try_from(text: String) -> Result<Self, ParseError> {
        Self::parse(&text)
    }
}

impl From<ClaimUid> for String {
    fn from(uid: ClaimUid) -> Self {
        uid.0
    }
}

// === impl ClaimName ===

impl fmt::Display for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_uid_cannot_leave_its_directory() {
        assert!(ClaimUid::parse("4f1c0f5e-9a3b-4a43-8f0c-2f9f1f0a7b11").is_ok());
        for text in ["", ".", "..", "a/b", "a\0b", &"a".repeat(64)] {
            assert!(ClaimUid::parse(text).is_err(), "{text:?} was accepted");
        }
    }
}
