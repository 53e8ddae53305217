//! `/metrics`, `/healthz` and `/readyz` for those who watch the plugin.
//!
//! `/healthz` answers as long as the process can answer at all, also while NVML does not. Most of what goes wrong there
//! comes right by itself. A call that hangs for ever takes a new process to get rid of, but the driver that hung would
//! hang that one as well, and a process that is restarted again and again serves not even what needs no NVML: unprepare.
//! `/readyz` says whether the node can use its GPUs, and if not, which part is not there yet and why:
//!
//! ```text
//! HTTP/1.1 503 Service Unavailable
//!
//! ok   nvml: 8 GPUs, driver 580.105.08
//! ok   containers: driver files and device nodes are there
//! wait kubelet: not registered yet
//! ok   slices: generation 1 accepted
//! ```

use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

/// The content type of OpenMetrics text, which is what the encoder writes.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// One thing that must be true for the node to be usable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// One word.
    pub name: &'static str,
    /// Whether it is true, with a detail for people either way.
    pub state: Result<String, String>,
}

/// Asks for all conditions, now. Must not block.
pub type Conditions = Arc<dyn Fn() -> Vec<Condition> + Send + Sync>;

/// A bound server, not serving yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
}

#[derive(Clone)]
struct Shared {
    registry: Arc<Registry>,
    conditions: Conditions,
}

// === impl Server ===

impl Server {
    /// Takes the address, so that a wrong one is known at start. "All addresses" are those of IPv4 where the kernel has
    /// no IPv6.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = match TcpListener::bind(address).await {
            Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && error.kind() != io::ErrorKind::AddrInUse => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
            }
            bound => bound,
        };
        Ok(Self { listener: listener? })
    }

    /// Where it listens; differs from what was asked for where that was port 0.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves for ever. Connections that are still open must not hold up the end of the process, so the future is
    /// dropped then, not drained.
    pub async fn serve(self, registry: Arc<Registry>, conditions: Conditions) {
        let routes = Router::new()
            .route("/metrics", get(metrics))
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/readyz", get(ready))
            .with_state(Shared { registry, conditions });
        if let Err(error) = axum::serve(self.listener, routes).await {
            tracing::error!(%error, "the HTTP server for /metrics and /readyz ended");
        }
    }
}

async fn metrics(State(shared): State<Shared>) -> impl IntoResponse {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &shared.registry) {
        Ok(()) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot encode metrics: {error}\n")).into_response(),
    }
}

async fn ready(State(shared): State<Shared>) -> impl IntoResponse {
    report(&(shared.conditions)())
}

fn report(conditions: &[Condition]) -> (StatusCode, String) {
    let mut text = String::new();
    for Condition { name, state } in conditions {
        let (word, detail) = match state {
            Ok(detail) => ("ok  ", detail),
            Err(detail) => ("wait", detail),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{word} {name}: {detail}");
    }
    let all = conditions.iter().all(|condition| condition.state.is_ok());
    (if all { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_condition_that_is_not_met_makes_the_node_not_ready_and_says_why() {
        let met = Condition { name: "nvml", state: Ok("8 GPUs".to_owned()) };
        let unmet = Condition { name: "kubelet", state: Err("not registered yet".to_owned()) };
        assert_eq!(report(std::slice::from_ref(&met)), (StatusCode::OK, "ok   nvml: 8 GPUs\n".to_owned()));
        let (status, text) = report(&[met, unmet]);
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(text, "ok   nvml: 8 GPUs\nwait kubelet: not registered yet\n");
    }
}
