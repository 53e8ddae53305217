//! Which version of `resource.k8s.io` the API server speaks.
//!
//! Kubernetes 1.34 brought `v1`; 1.32 and 1.33 have only betas. The version is asked for when it is first needed and
//! remembered; a server that answers that it does not serve that version was upgraded or rolled back, and is asked
//! again. This is independent of the versions that the kubelet speaks: it may be three releases older.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use super::request::{RequestError, Requests};

/// The group of ResourceClaims and ResourceSlices.
const GROUP: &str = "resource.k8s.io";

/// A version of the API that this driver speaks, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Kubernetes 1.34 and later.
    V1,
    /// Kubernetes 1.33 to 1.38; the same documents as `v1`.
    V1beta2,
    /// Kubernetes 1.32 to 1.37; devices are nested one level deeper.
    V1beta1,
}

/// The version that was found, shared by all clones.
#[derive(Debug, Clone, Default)]
pub(super) struct Negotiated {
    found: Arc<Mutex<Option<Version>>>,
}

// === impl Version ===

impl Version {
    /// All of them, best first.
    pub const ALL: [Self; 3] = [Self::V1, Self::V1beta2, Self::V1beta1];

    /// As it stands in paths.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V1beta2 => "v1beta2",
            Self::V1beta1 => "v1beta1",
        }
    }

    /// As it stands in documents: `resource.k8s.io/v1`.
    pub fn api_version(self) -> String {
        format!("{GROUP}/{self}")
    }

    /// The path of what is below this version.
    pub(super) fn path(self, below: &str) -> String {
        format!("/apis/{GROUP}/{self}/{below}")
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl Negotiated ===

impl Negotiated {
    /// The remembered version, or the best that the server offers.
    pub(super) async fn get(&self, requests: &Requests) -> Result<Version, RequestError> {
        let known = *self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(version) = known {
            return Ok(version);
        }
        let group = requests.get(&format!("/apis/{GROUP}")).await.map_err(|error| {
            if error.code() == Some(http::StatusCode::NOT_FOUND) { RequestError::NoGroup } else { error }
        })?;
        let version = best(&group)?;
        tracing::info!(%version, "the API server speaks {GROUP}");
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(version);
        Ok(version)
    }

    /// Forgets a version that the server does not serve any more.
    pub(super) fn forget(&self, version: Version) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if *found == Some(version) {
            *found = None;
        }
    }
}

/// The best version that an `APIGroup` lists.
fn best(group: &Value) -> Result<Version, RequestError> {
    let versions = group["versions"].as_array().ok_or(RequestError::Missing("list of versions"))?;
    let served: Vec<&str> = versions.iter().filter_map(|version| version["version"].as_str()).collect();
    Version::ALL
        .into_iter()
        .find(|version| served.contains(&version.as_str()))
        .ok_or_else(|| RequestError::NoVersion { served: served.join(", ") })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_best_version_wins_in_whichever_order_the_server_lists_them() {
        for (served, expected) in [
            (&["v1", "v1beta2", "v1beta1"][..], Version::V1),
            (&["v1alpha3", "v1beta1", "v1beta2"], Version::V1beta2),
            (&["v1beta1"], Version::V1beta1),
            (&["v2", "v1beta1"], Version::V1beta1),
        ] {
            let versions: Vec<_> = served.iter().map(|version| json!({"version": version})).collect();
            assert_eq!(best(&json!({"versions": versions})).unwrap(), expected, "{served:?}");
        }
    }

    #[test]
    fn a_server_with_other_versions_only_is_named_with_what_it_serves() {
        let error = best(&json!({"versions": [{"version": "v1alpha3"}, {"version": "v3"}]})).unwrap_err();
        assert!(error.to_string().contains("only in v1alpha3, v3"), "{error}");
    }
}
