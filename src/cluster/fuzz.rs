//! A door for `fuzz/`, which sees only what is public: the answer to a request for a claim.

use serde_json::value::RawValue;

use super::ClaimError;
use super::claims;
use crate::claim::{Claim, ClaimName, ClaimUid};

/// What is ours of a ResourceClaim.
pub fn claim(document: &RawValue, name: &ClaimName, uid: &ClaimUid, driver: &str) -> Result<Claim, ClaimError> {
    claims::parse(document, name, uid, driver)
}
