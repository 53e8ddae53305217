//! The kubelet's view of the API server: over HTTP, so that it suffers outages and injected failures as everyone does.

use std::net::SocketAddr;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;

use crate::http;
use crate::kubelet::ClaimSource;
use crate::release::Release;

/// Reads claims and wipes slices in the version that the kubelet of a release uses.
pub(super) struct ApiClaims {
    pub(super) address: SocketAddr,
    pub(super) release: Release,
}

// === impl ApiClaims ===

impl ApiClaims {
    /// Kubelets read `v1` since it exists.
    fn base(&self) -> &'static str {
        if self.release >= Release::V1_34 { "/apis/resource.k8s.io/v1" } else { "/apis/resource.k8s.io/v1beta1" }
    }

    async fn request(&self, method: &str, path: &str) -> Result<(u16, Value), String> {
        let (status, body) = http::request(method, self.address, path).await.map_err(|error| error.to_string())?;
        let body: Value = serde_json::from_str(&body).unwrap_or_default();
        if status < 400 || status == 404 {
            return Ok((status, body));
        }
        let message = body["message"].as_str().map(str::to_owned);
        Err(message.unwrap_or_else(|| format!("the server answered {status}")))
    }
}

impl ClaimSource for ApiClaims {
    fn claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Value>, String>> {
        async move {
            let path = format!("{}/namespaces/{namespace}/resourceclaims/{name}", self.base());
            let (status, claim) = self.request("GET", &path).await?;
            Ok((status != 404).then_some(claim))
        }
        .boxed()
    }

    fn delete_slices<'a>(&'a self, node: &'a str, driver: Option<&'a str>) -> BoxFuture<'a, Result<(), String>> {
        async move {
            let driver = driver.map(|driver| format!(",spec.driver%3D{driver}")).unwrap_or_default();
            let path = format!("{}/resourceslices?fieldSelector=spec.nodeName%3D{node}{driver}", self.base());
            self.request("DELETE", &path).await.map(drop)
        }
        .boxed()
    }
}
