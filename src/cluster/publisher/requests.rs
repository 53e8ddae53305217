//! What is asked of the API server about slices and their node, in the version that it speaks.

use http::Method;
use serde_json::Value;

use crate::cluster::request::RequestError;
use crate::cluster::slices::Change;
use crate::cluster::version::Version;
use crate::cluster::{Cluster, wire};

/// A list of slices, in the shape of `v1`.
pub(super) struct Listed {
    pub(super) version: Version,
    pub(super) resource_version: String,
    pub(super) slices: Vec<Value>,
}

// === impl Cluster ===

impl Cluster {
    /// Lists those of this driver and node.
    pub(super) async fn list_slices(&self) -> Result<Listed, RequestError> {
        let version = self.negotiated.get(&self.requests).await?;
        let path = version.path(&format!("resourceslices?{}", self.selector()));
        let mut list = self.served(version, self.requests.get(&path).await)?;
        let resource_version = list["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        let Value::Array(items) = list["items"].take() else {
            return Err(RequestError::Missing("list of items"));
        };
        // What stands between us and the server may not know the selector, and what is not ours must not be deleted.
        let is_ours =
            |slice: &Value| slice["spec"]["driver"] == *self.driver && slice["spec"]["nodeName"] == *self.node;
        let slices = items.into_iter().map(|item| wire::from_wire(version, item)).filter(is_ours);
        Ok(Listed {
            version,
            resource_version: resource_version.ok_or(RequestError::Missing("resource version"))?,
            slices: slices.collect(),
        })
    }

    /// Makes the request for a change. The answer to one that is not a deletion is a slice in the shape of `v1`.
    pub(super) async fn send_change(
        &self,
        version: Version,
        change: &Change,
        dry_run: bool,
    ) -> Result<Value, RequestError> {
        let path = |name: &str| version.path(&format!("resourceslices/{name}"));
        let (method, mut path, body) = match change {
            Change::Delete { name, options } => (Method::DELETE, path(name), options.clone()),
            Change::Update { name, object, .. } => (Method::PUT, path(name), wire::to_wire(version, object.clone())),
            Change::Create { object, .. } => {
                (Method::POST, version.path("resourceslices"), wire::to_wire(version, object.clone()))
            }
        };
        if dry_run {
            path.push_str("?dryRun=All");
        }
        let answer = self.served(version, self.requests.send(method, &path, Some(&body)).await)?;
        Ok(wire::from_wire(version, answer))
    }

    /// What selects this driver's slices of this node. Without the node, every plugin would watch the whole cluster.
    pub(super) fn selector(&self) -> String {
        format!("fieldSelector=spec.nodeName%3D{},spec.driver%3D{}", self.node, self.driver)
    }

    /// Forgets the version that was negotiated when the server turns out not to serve it any more.
    pub(super) fn served<T>(&self, version: Version, result: Result<T, RequestError>) -> Result<T, RequestError> {
        if result.as_ref().is_err_and(RequestError::is_path_missing) {
            self.negotiated.forget(version);
        }
        result
    }

    /// The UID of the Node object, as it is now.
    pub(super) async fn node_uid(&self) -> Result<String, RequestError> {
        let node = self.requests.get(&format!("/api/v1/nodes/{}", self.node)).await?;
        node["metadata"]["uid"].as_str().map(str::to_owned).ok_or(RequestError::Missing("UID of the node"))
    }
}
