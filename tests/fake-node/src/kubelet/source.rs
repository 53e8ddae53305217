//! What the fake kubelet needs of the Kubernetes API, declared where it is needed.

use futures::future::BoxFuture;
use serde_json::Value;

/// The API server as the kubelet's DRA manager sees it.
pub trait ClaimSource: Send + Sync {
    /// A live read of a ResourceClaim, shaped as `resource.k8s.io/v1`; `None` if there is none of that name.
    ///
    /// The error is the text of the API's answer.
    fn claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Value>, String>>;

    /// Deletes the ResourceSlices with `spec.nodeName` = `node` and, if given, `spec.driver` = `driver`.
    fn delete_slices<'a>(&'a self, node: &'a str, driver: Option<&'a str>) -> BoxFuture<'a, Result<(), String>>;
}
