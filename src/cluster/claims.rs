//! ResourceClaims, read live when the kubelet asks for one to be prepared.
//!
//! A claim is read from the API server, never from a cache: an allocation that is seconds old decides which GPU a
//! container gets. The kubelet repeats a failed prepare only after 60 to 90 s, so what passes by itself is waited out
//! here, for as long as the caller says. The answer is input like any other: types are checked, and sizes that no API
//! server would have stored are refused.
//!
//! The kubelet asks for a prepare only for a pod that the claim is reserved for. A prepare that comes late can find the
//! claim as it was left after that pod: gone, replaced, not allocated, or reserved for nobody. Nobody would unprepare it.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep, timeout_at};

use super::request::RequestError;
use super::{Cluster, is_name};
use crate::claim::{AllocationResult, Claim, ClaimName, ClaimUid, OpaqueConfig};

/// Between attempts, from and to; each is drawn out at random to at most double.
const PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(2)];

/// The limits of `resource.k8s.io`: devices and configs of an allocation, bytes of one config's parameters.
const MAX_RESULTS: usize = 32;
const MAX_CONFIGS: usize = 64;
const MAX_PARAMETERS: usize = 10 * 1024;

/// The longest pool name; the longest of all names in an allocation.
const MAX_NAME: usize = 253;

/// Of what is wrong with an allocation: a message may quote what it found.
const MAX_WHAT: usize = 200;

/// Why a claim could not be read. The message reaches the pod's events, where the namespace is known already.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// It was deleted.
    #[error("claim {claim} does not exist any more; delete the pod so that it is created again")]
    NotFound {
        /// Its name.
        claim: String,
    },
    /// Another claim has taken its name.
    #[error("claim {claim} was replaced by another of the same name; delete the pod so that it is created again")]
    Replaced {
        /// Its name.
        claim: String,
    },
    /// The scheduler has not chosen devices, or has taken them back.
    #[error("claim {claim} is not allocated; delete the pod so that it is scheduled again")]
    NotAllocated {
        /// Its name.
        claim: String,
    },
    /// Allocated, but no pod is to use it: the last one that was is gone.
    #[error("claim {claim} is not reserved for any pod any more; delete the pod so that it is scheduled again")]
    NotReserved {
        /// Its name.
        claim: String,
    },
    /// Whatever was allocated, it is for other drivers to prepare.
    #[error("claim {claim} has no device of driver {driver}")]
    NotOurs {
        /// Its name.
        claim: String,
        /// Our driver.
        driver: String,
    },
    /// The allocation is not what the API allows.
    #[error("claim {claim} has an allocation that cannot be read: {what}")]
    Malformed {
        /// Its name.
        claim: String,
        /// What is wrong, with its place.
        what: String,
    },
    /// The driver's permissions are not enough.
    #[error("cannot read claim {claim}: the API server does not allow it; grant the driver get on resourceclaims")]
    Forbidden {
        /// Its name.
        claim: String,
        /// The answer.
        #[source]
        source: RequestError,
    },
    /// There was no answer, or none that helps.
    #[error("cannot read claim {claim}: {}", brief(.source))]
    Api {
        /// Its name.
        claim: String,
        /// What went wrong.
        #[source]
        source: RequestError,
    },
}

/// What is read of a ResourceClaim. Anything else in it is ignored.
#[derive(Deserialize)]
struct Document {
    metadata: Metadata,
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Deserialize)]
struct Metadata {
    uid: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    allocation: Option<Allocation>,
    /// For which pods is the kubelet's to know.
    #[serde(default)]
    reserved_for: Option<Vec<Value>>,
    #[serde(default)]
    devices: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct Allocation {
    #[serde(default)]
    devices: Option<Devices>,
}

/// Entries of other drivers are none of our business, not even whether they are well-formed. Configs are kept as they
/// are written: what a [`Value`] no longer shows, a field that is there twice, is for their decoder to judge.
#[derive(Default, Deserialize)]
struct Devices {
    #[serde(default)]
    results: Option<Vec<Value>>,
    #[serde(default)]
    config: Option<Vec<Box<RawValue>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResultEntry {
    request: String,
    pool: String,
    device: String,
    #[serde(rename = "shareID", default)]
    share_id: Option<String>,
    #[serde(default)]
    admin_access: Option<bool>,
}

#[derive(Deserialize)]
struct ConfigEntry {
    source: Source,
    #[serde(default)]
    requests: Option<Vec<String>>,
    opaque: Opaque,
}

#[derive(Deserialize)]
struct Opaque {
    parameters: Box<RawValue>,
}

/// Of a config, whom it is for.
#[derive(Deserialize)]
struct Addressed {
    opaque: Addressee,
}

#[derive(Deserialize)]
struct Addressee {
    driver: String,
}

/// Who wrote a config. In the order in which they apply: the later overrides the earlier.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    FromClass,
    FromClaim,
}

// === impl Cluster ===

impl Cluster {
    /// Reads a claim live and keeps what is ours. Waits until `deadline` for what passes by itself.
    pub async fn claim(&self, name: &ClaimName, uid: &ClaimUid, deadline: Instant) -> Result<Claim, ClaimError> {
        if !is_name(&name.namespace) || !is_name(&name.name) {
            // No API server could have stored it, and a path must not be built from it.
            return Err(ClaimError::NotFound { claim: name.name.clone() });
        }
        let document = self.fetch(name, deadline).await?;
        parse(&document, name, uid, &self.driver)
    }

    /// Whether a claim is certainly gone: deleted, or another has taken its name. Asks once; an answer that says neither
    /// that it is nor that it is not is an error.
    pub async fn is_gone(&self, name: &ClaimName, uid: &ClaimUid) -> Result<bool, RequestError> {
        if !is_name(&name.namespace) || !is_name(&name.name) {
            // Nobody can be asked for it.
            return Ok(false);
        }
        let document = match self.fetch_once(name).await {
            Ok(document) => document,
            Err(error) if error.is_object_missing() => return Ok(true),
            Err(error) => return Err(error),
        };
        let document: Value = serde_json::from_str(document.get()).unwrap_or_default();
        let metadata = &document["metadata"];
        match metadata["uid"].as_str() {
            Some(found) if !found.is_empty() && metadata["name"] == *name.name => Ok(found != uid.as_str()),
            _ => Err(RequestError::Missing("claim")),
        }
    }

    async fn fetch(&self, name: &ClaimName, deadline: Instant) -> Result<Box<RawValue>, ClaimError> {
        let [min, max] = PAUSES;
        let backoff = ExponentialBuilder::new().with_min_delay(min).with_max_delay(max).with_jitter();
        let mut pauses = backoff.without_max_times().build();
        loop {
            let attempt = timeout_at(deadline, self.fetch_once(name)).await.unwrap_or(Err(RequestError::Timeout));
            let error = match attempt {
                Ok(document) => return Ok(document),
                Err(error) => error,
            };
            let pause = pauses.next().unwrap_or(max).max(error.retry_after().unwrap_or_default());
            // A path that is not served is negotiated anew by the next attempt.
            let again = error.is_transient() || error.is_path_missing();
            if !again || Instant::now() + pause >= deadline {
                return Err(ClaimError::from_request(name, error));
            }
            tracing::debug!(claim = %name, %error, ?pause, "trying again to read the claim");
            sleep(pause).await;
        }
    }

    async fn fetch_once(&self, claim: &ClaimName) -> Result<Box<RawValue>, RequestError> {
        let ClaimName { namespace, name } = claim;
        let version = self.negotiated.get(&self.requests).await?;
        let path = version.path(&format!("namespaces/{namespace}/resourceclaims/{name}"));
        let answer = self.requests.get_text(&path).await;
        if answer.as_ref().is_err_and(RequestError::is_path_missing) {
            self.negotiated.forget(version);
        }
        answer
    }
}

// === impl ClaimError ===

impl ClaimError {
    /// What kind of failure it is, as the metric `claim_failures` labels it: whose turn it is to do something.
    pub fn cause(&self) -> &'static str {
        match self {
            // The API server's, or whoever grants permissions there.
            Self::Forbidden { .. } | Self::Api { .. } => "api_server",
            // That of the claim's author, or of the pod's.
            Self::NotFound { .. }
            | Self::Replaced { .. }
            | Self::NotAllocated { .. }
            | Self::NotReserved { .. }
            | Self::NotOurs { .. }
            | Self::Malformed { .. } => "claim",
        }
    }

    fn from_request(name: &ClaimName, source: RequestError) -> Self {
        let claim = name.name.clone();
        match source.code() {
            Some(http::StatusCode::NOT_FOUND) if source.is_object_missing() => Self::NotFound { claim },
            Some(http::StatusCode::FORBIDDEN) => Self::Forbidden { claim, source },
            _ => Self::Api { claim, source },
        }
    }
}

/// What a person who looks at a pod needs to know; the log has the rest. The server's own text may name the namespace.
fn brief(error: &RequestError) -> String {
    match error.code() {
        Some(code) if error.is_transient() => {
            format!("the API server answered {code}; the kubelet will try again")
        }
        Some(code) => format!("the API server answered {code}"),
        None if error.is_transient() => format!("{error}; the kubelet will try again"),
        None => error.to_string(),
    }
}

/// Takes from a ResourceClaim what is ours.
pub(super) fn parse(document: &RawValue, name: &ClaimName, uid: &ClaimUid, driver: &str) -> Result<Claim, ClaimError> {
    let claim = || name.name.clone();
    let malformed = |what: String| {
        let what = what.chars().take(MAX_WHAT).collect();
        ClaimError::Malformed { claim: claim(), what }
    };
    let document: Document = serde_json::from_str(document.get()).map_err(|error| malformed(error.to_string()))?;
    if document.metadata.uid != uid.as_str() {
        return Err(ClaimError::Replaced { claim: claim() });
    }
    let Some(Status { allocation: Some(allocation), reserved_for, devices: statuses }) = document.status else {
        return Err(ClaimError::NotAllocated { claim: claim() });
    };
    if reserved_for.is_none_or(|consumers| consumers.is_empty()) {
        return Err(ClaimError::NotReserved { claim: claim() });
    }
    let devices = allocation.devices.unwrap_or_default();
    let results = results(devices.results.unwrap_or_default(), driver).map_err(malformed)?;
    if results.is_empty() {
        return Err(ClaimError::NotOurs { claim: claim(), driver: driver.to_owned() });
    }
    let configs = configs(devices.config.unwrap_or_default(), driver).map_err(malformed)?;
    let statuses = statuses.into_iter().flatten().filter(|status| status["driver"] == driver).collect();
    Ok(Claim { uid: uid.clone(), name: name.clone(), results, configs, statuses })
}

fn results(entries: Vec<Value>, driver: &str) -> Result<Vec<AllocationResult>, String> {
    if entries.len() > MAX_RESULTS {
        return Err(format!("{} devices, {MAX_RESULTS} are allowed", entries.len()));
    }
    let ours = |(_, entry): &(usize, Value)| entry["driver"] == driver;
    entries.into_iter().enumerate().filter(ours).map(|(index, entry)| result(index, entry)).collect()
}

fn result(index: usize, entry: Value) -> Result<AllocationResult, String> {
    let entry: ResultEntry = serde_json::from_value(entry).map_err(|error| format!("results[{index}]: {error}"))?;
    let names = [("request", &entry.request), ("pool", &entry.pool), ("device", &entry.device)];
    for (field, text) in names.into_iter().chain(entry.share_id.iter().map(|id| ("shareID", id))) {
        // Pool names are subdomains joined by '/', as are a request and its alternative; share ids are UUIDs.
        if !text.split('/').all(is_name) || text.len() > MAX_NAME {
            return Err(format!("results[{index}].{field}: not a name"));
        }
    }
    Ok(AllocationResult {
        request: entry.request,
        pool: entry.pool,
        device: entry.device,
        share_id: entry.share_id,
        admin_access: entry.admin_access.unwrap_or_default(),
    })
}

fn configs(entries: Vec<Box<RawValue>>, driver: &str) -> Result<Vec<OpaqueConfig>, String> {
    if entries.len() > MAX_CONFIGS {
        return Err(format!("{} configs, {MAX_CONFIGS} are allowed", entries.len()));
    }
    let ours = |(_, entry): &(usize, Box<RawValue>)| {
        serde_json::from_str::<Addressed>(entry.get()).is_ok_and(|entry| entry.opaque.driver == driver)
    };
    let configs = entries.into_iter().enumerate().filter(ours).map(|(index, entry)| config(index, &entry));
    let mut configs: Vec<_> = configs.collect::<Result<_, _>>()?;
    // The allocator stores them so already; what overrides what must not depend on that.
    configs.sort_by_key(|(source, _)| *source);
    Ok(configs.into_iter().map(|(_, config)| config).collect())
}

fn config(index: usize, entry: &RawValue) -> Result<(Source, OpaqueConfig), String> {
    let entry: ConfigEntry = serde_json::from_str(entry.get()).map_err(|error| format!("config[{index}]: {error}"))?;
    let requests = entry.requests.unwrap_or_default();
    if requests.len() > MAX_RESULTS {
        return Err(format!("config[{index}].requests: {} names, {MAX_RESULTS} are allowed", requests.len()));
    }
    let parameters = entry.opaque.parameters.get();
    if parameters.len() > MAX_PARAMETERS {
        return Err(format!("config[{index}].opaque.parameters: more than {MAX_PARAMETERS} bytes"));
    }
    Ok((entry.source, OpaqueConfig { requests, parameters: parameters.to_owned() }))
}

#[cfg(test)]
mod tests;
