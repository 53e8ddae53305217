//! How the API server is reached: where it is, who we are, and how long anything may take.
//!
//! Building a client reads files and makes no request, so an API server that is down does not stop the plugin from
//! starting. The client never retries on its own: whoever calls knows how much of the kubelet's patience is left.
//!
//! Tokens and certificate authorities are replaced while we run: the kubelet rewrites a service account's token once most
//! of its hour is over. kube reads the token's file again every 50 s (`TokenFile` in its `client::auth`), in a pod and
//! for a `tokenFile` of a kubeconfig alike, and keeps the last one when the file is gone; in a pod it does the same with
//! the file of authorities (`ReloadingVerifier` in its `client::tls`). The old token is good for
//! minutes after that, and a request that is refused nevertheless is made again like any other.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};

/// For TCP and TLS together. A server that has not answered by then will hardly do so later, and the kubelet's 45 s
/// for a whole prepare leave room for several attempts of this length.
const CONNECT: Duration = Duration::from_secs(5);

/// For sending a request; the largest is a slice of some 100 KiB.
const WRITE: Duration = Duration::from_secs(10);

/// What the API server's audit log and its request metrics know us by.
const AGENT: &str = concat!("gpu-dra-plugin/", env!("CARGO_PKG_VERSION"));

/// Why there is no client. All of these are mistakes in how the plugin is started, never an API server that is down.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be read, or names what it does not define.
    #[error("cannot use kubeconfig {}: {what}", .path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it. The parser's own error quotes the lines around the place, which can hold credentials.
        what: String,
    },
    /// No kubeconfig was given, and this is not a pod with a service account.
    #[error(
        "cannot find the API server: this is not a pod with a service account ({0}); name a file with --kubeconfig"
    )]
    NotInCluster(Box<InClusterError>),
    /// The certificates or credentials found there are of no use.
    #[error("cannot use the credentials for the API server")]
    Credentials(#[source] Box<kube::Error>),
    /// Driver and node name are part of requests, and the API server would not know this one.
    #[error("{text:?} is not a name of a {what}: only lower-case letters, digits, '-' and '.' are")]
    Name {
        /// "driver" or "node".
        what: &'static str,
        /// What was given.
        text: String,
    },
}

/// Builds the client from the kubeconfig, or else from the pod's service account.
pub(super) async fn client(kubeconfig: Option<&Path>) -> Result<kube::Client, ConnectError> {
    // An error means that a provider was installed before; then that one serves.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config = match kubeconfig {
        Some(path) => from_file(path).await.map_err(|error| {
            let what = error.to_string().lines().next().unwrap_or_default().to_owned();
            ConnectError::Kubeconfig { path: path.to_owned(), what }
        })?,
        None => kube::Config::incluster().map_err(|error| ConnectError::NotInCluster(Box::new(error)))?,
    };
    config.connect_timeout = Some(CONNECT);
    config.write_timeout = Some(WRITE);
    // A watch is silent for long; the time for an answer is limited per request instead.
    config.read_timeout = None;
    config.default_retry = false;
    config.headers.push((USER_AGENT, HeaderValue::from_static(AGENT)));
    kube::Client::try_from(config).map_err(|source| ConnectError::Credentials(Box::new(source)))
}

async fn from_file(path: &Path) -> Result<kube::Config, KubeconfigError> {
    kube::Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &KubeConfigOptions::default()).await
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use tokio::net::TcpListener;

    use crate::claim::{ClaimName, ClaimUid};
    use crate::cluster::{Clock, Cluster, Settings};

    use super::*;

    fn kubeconfig(server: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: '{server}'}}}}]\nusers: [{{name: u, user: {{token: t}}}}]\n"
        );
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn settings(kubeconfig: &Path) -> Settings {
        let (driver, node) = ("gpu.nvidia.com".into(), "node-a".into());
        Settings { kubeconfig: Some(kubeconfig.to_owned()), driver, node, clock: Clock::REAL }
    }

    #[tokio::test]
    async fn connecting_needs_no_api_server_and_finds_its_tls_provider() {
        let file = kubeconfig("https://127.0.0.1:1");
        Cluster::connect(&settings(file.path())).await.unwrap();
    }

    #[tokio::test]
    async fn requests_carry_the_credentials_and_say_who_asks() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let file = kubeconfig(&format!("http://{}", listener.local_addr().unwrap()));
        let (sender, mut heads) = tokio::sync::mpsc::unbounded_channel();
        let app = axum::Router::new().fallback(move |headers: http::HeaderMap| async move {
            sender.send(headers).unwrap();
            http::StatusCode::FORBIDDEN
        });
        tokio::spawn(axum::serve(listener, app).into_future());
        let cluster = Cluster::connect(&settings(file.path())).await.unwrap();
        let name = ClaimName { namespace: "default".into(), name: "a".into() };
        cluster.is_gone(&name, &ClaimUid::parse("u").unwrap()).await.unwrap_err();
        let head = heads.recv().await.unwrap();
        assert_eq!(head["user-agent"], AGENT);
        assert_eq!(head["authorization"], "Bearer t");
    }

    #[tokio::test]
    async fn mistakes_in_the_settings_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("kubeconfig");
        let error = Cluster::connect(&settings(&missing)).await.err().unwrap();
        assert!(error.to_string().starts_with(&format!("cannot use kubeconfig {}: ", missing.display())), "{error}");

        let damaged = dir.path().join("damaged");
        std::fs::write(&damaged, "users:\n- user: {token: secret\n").unwrap();
        let error = Cluster::connect(&settings(&damaged)).await.err().unwrap();
        assert!(!error.to_string().contains("secret") && error.source().is_none(), "{error}");

        let file = kubeconfig("http://127.0.0.1:1");
        let wrong = Settings { node: "Node A".into(), ..settings(file.path()) };
        let error = Cluster::connect(&wrong).await.err().unwrap();
        assert!(error.to_string().starts_with("\"Node A\" is not a name of a node"), "{error}");
    }
}
