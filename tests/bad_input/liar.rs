//! An API server that answers what it likes. The fake one stores nothing that a real one would refuse, so what no API
//! server should ever answer comes from here.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::extract;
use axum::http::StatusCode;
use axum::routing::get;
use serde_json::json;
use tokio::net::TcpListener;

/// Starts one that answers these bodies when it is asked for the claims of these names; it ends with the test's runtime.
pub(crate) async fn start(claims: BTreeMap<String, String>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let claims = Arc::new(claims);
    let claim = move |extract::Path(name): extract::Path<String>| async move {
        claims.get(&name).cloned().ok_or(StatusCode::NOT_FOUND)
    };
    let group = json!({"kind": "APIGroup", "versions": [{"version": "v1"}]}).to_string();
    let app = Router::new()
        .route("/apis/resource.k8s.io", get(|| async { group }))
        .route("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}", get(claim));
    tokio::spawn(axum::serve(listener, app).into_future());
    address
}

/// A kubeconfig for it.
pub(crate) fn write_kubeconfig(address: SocketAddr, path: &Path) {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "liar",
        "clusters": [{"name": "liar", "cluster": {"server": format!("http://{address}")}}],
        "contexts": [{"name": "liar", "context": {"cluster": "liar", "user": "liar"}}],
        "users": [{"name": "liar", "user": {}}],
    });
    std::fs::write(path, config.to_string()).unwrap();
}
