//! What every call passes on its way to a service and back: a span with a request id, metrics, and the deadline.
//!
//! ```text
//!  h2 ──▶ span ──▶ counted ──▶ deadline ──▶ routes
//!  h2 ◀── body, watched for the gRPC status ◀──┘
//! ```
//!
//! The span here is that of the call: it does not know the claims, because a call brings a batch of them that is not
//! decoded yet, and each gets a span with its UID, inside this one, in [`dra`](super::dra).

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Frame, SizeHint};
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Code, Status};
use tower::{Layer, Service, layer::layer_fn, service_fn};
use tracing::{Instrument, error_span, warn};

use super::metrics::{Call, Metrics};

/// Methods that have a name in metrics; anybody may ask for any other.
const METHODS: [&str; 8] = [
    "/pluginregistration.Registration/GetInfo",
    "/pluginregistration.Registration/NotifyRegistrationStatus",
    "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
    "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
    "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
    "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources",
    "/v1.DRAResourceHealth/NodeWatchResources",
    "/v1alpha1.DRAResourceHealth/NodeWatchResources",
];

/// The method of all others.
const UNKNOWN_METHOD: &str = "unknown";

/// How long before the client's deadline we answer, so that it hears what was late instead of its own timer: a tenth
/// of what it allows, and no more than this.
const MAX_HEAD_START: Duration = Duration::from_millis(500);

/// Numbers the calls of this process; ids only need to tell apart lines of one log.
static NEXT_REQUEST: AtomicU64 = AtomicU64::new(1);

/// A response's body that tells its call the gRPC status, which comes after the data.
struct Watched {
    body: Body,
    call: Call,
}

/// The layer of both servers.
pub(super) fn layer(
    metrics: Metrics,
) -> impl Layer<
    Routes,
    Service = impl Service<
        Request<Body>,
        Response = Response<Body>,
        Error = Infallible,
        Future = impl Future<Output = Result<Response<Body>, Infallible>> + Send,
    > + Clone
              + Send
              + 'static,
> {
    layer_fn(move |routes: Routes| {
        let metrics = metrics.clone();
        service_fn(move |request| answer(routes.clone(), request, metrics.clone()))
    })
}

/// Answers one call.
async fn answer(mut routes: Routes, request: Request<Body>, metrics: Metrics) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path();
    let method = METHODS.into_iter().find(|method| *method == path).unwrap_or(UNKNOWN_METHOD);
    // An error span, so that it is there at every log level.
    let span = error_span!("call", request = NEXT_REQUEST.fetch_add(1, Ordering::Relaxed), method);
    let mut call = metrics.call(method, span.clone());
    let timeout = timeout(request.headers());
    let response = within(timeout, routes.call(request)).instrument(span).await?;
    if let Some(status) = Status::from_header_map(response.headers()) {
        call.answered(status.code());
    }
    Ok(response.map(|body| Body::new(Watched { body, call })))
}

/// Waits for a response, but not much longer than the client does. What the call had spawned goes on.
async fn within(
    timeout: Option<Duration>,
    response: impl Future<Output = Result<Response<Body>, Infallible>>,
) -> Result<Response<Body>, Infallible> {
    let Some(timeout) = timeout else { return response.await };
    let ours = timeout.saturating_sub((timeout / 10).min(MAX_HEAD_START));
    if let Ok(response) = tokio::time::timeout(ours, response).await {
        return response;
    }
    warn!(seconds = timeout.as_secs_f64(), "not done in the time that the client allows; the work goes on");
    let text = "the GPU plugin is not done in time and goes on working; the next try will find the result";
    Ok(Status::deadline_exceeded(text).into_http())
}

/// The client's `grpc-timeout`: up to eight digits and a unit.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(value * 60 * 60)),
        "M" => Some(Duration::from_secs(value * 60)),
        "S" => Some(Duration::from_secs(value)),
        "m" => Some(Duration::from_millis(value)),
        "u" => Some(Duration::from_micros(value)),
        "n" => Some(Duration::from_nanos(value)),
        _ => None,
    }
}

// === impl Watched ===

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(trailers) = frame.trailers_ref()
        {
            let code = Status::from_header_map(trailers).map_or(Code::Unknown, |status| status.code());
            self.call.answered(code);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
