//! One request to the API server: bounded in time and size, and an error that says whether a repeat can help.
//!
//! Documents are JSON values: what the server may add in a later release passes through, and what it may leave out is
//! noticed where it is needed. Requests are made below kube's typed API because that one hides the `Retry-After`
//! header.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body::Body as _;
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

/// For one answer. A healthy server answers in milliseconds; two attempts of this length fit into what a claim may
/// take.
const ANSWER: Duration = Duration::from_secs(8);

/// The longest document that is read. All slices of a 16-GPU node in MIG mode are 300 KiB.
const MAX_BYTES: usize = 8 << 20;

/// The longest text of an error that is kept: enough for the first rule that an object broke.
const MAX_MESSAGE: usize = 1024;

/// Makes requests. Cheap to clone.
#[derive(Clone)]
pub(super) struct Requests {
    client: kube::Client,
}

/// The events of a watch.
pub(super) struct Events {
    body: Body,
    buffer: BytesMut,
}

/// Why a request did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No answer in time.
    #[error("the API server did not answer in time")]
    Timeout,
    /// Refused, reset, not resolved, not trusted, or no credentials at hand.
    #[error("the API server cannot be reached")]
    Unreachable(#[source] Box<kube::Error>),
    /// An answer that says no.
    #[error("the API server answered {}: {}", .0.code.as_u16(), .0.message)]
    Refused(Box<Refusal>),
    /// An answer that is not JSON.
    #[error("the API server's answer is not JSON")]
    NotJson(#[source] serde_json::Error),
    /// An answer that is JSON and not what was asked for.
    #[error("the API server's answer has no {0}")]
    Missing(&'static str),
    /// An answer of a size that cannot be right.
    #[error("the API server's answer is longer than {MAX_BYTES} bytes")]
    TooLong,
    /// The request cannot be put into words: a name with characters that no name has.
    #[error("cannot write the request")]
    Unsayable(#[source] http::Error),
    /// Dynamic resource allocation is off.
    #[error(
        "the API server does not serve resource.k8s.io: it needs Kubernetes 1.34, or 1.32 with the feature gate \
         DynamicResourceAllocation and the API group enabled"
    )]
    NoGroup,
    /// Only versions that this driver does not speak.
    #[error("the API server serves resource.k8s.io only in {served}; this driver speaks v1, v1beta2 and v1beta1")]
    NoVersion {
        /// What it serves.
        served: String,
    },
}

/// An answer that says no.
#[derive(Debug)]
pub struct Refusal {
    /// The HTTP status.
    pub code: StatusCode,
    /// What the server says of it.
    pub message: String,
    /// How long to wait before a repeat, where the server says so.
    pub retry_after: Option<Duration>,
    /// The object that it speaks of; empty for a path that it does not serve. A refused creation has a name that the
    /// server has made up for it.
    object: String,
}

// === impl Requests ===

impl Requests {
    pub(super) fn new(client: kube::Client) -> Self {
        Self { client }
    }

    /// For what kube has words for.
    pub(super) fn client(&self) -> &kube::Client {
        &self.client
    }

    /// Reads a document.
    pub(super) async fn get(&self, path: &str) -> Result<Value, RequestError> {
        self.send(Method::GET, path, None).await
    }

    /// Reads a document as it is written.
    pub(super) async fn get_text(&self, path: &str) -> Result<Box<RawValue>, RequestError> {
        self.answer(Method::GET, path, None).await
    }

    /// Makes a request and reads the answer.
    pub(super) async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, RequestError> {
        self.answer(method, path, body).await
    }

    async fn answer<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, RequestError> {
        in_time(async {
            let mut body = self.open(method, path, body).await?;
            let bytes = read(&mut body, MAX_BYTES).await?;
            serde_json::from_slice(&bytes).map_err(RequestError::NotJson)
        })
        .await
    }

    /// Starts a watch. The time that it may last is for the path to say and for the caller to enforce.
    pub(super) async fn watch(&self, path: &str) -> Result<Events, RequestError> {
        let body = in_time(self.open(Method::GET, path, None)).await?;
        Ok(Events { body, buffer: BytesMut::new() })
    }

    async fn open(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Body, RequestError> {
        let request = Request::builder().method(&method).uri(path).header(ACCEPT, "application/json");
        let request = match body {
            Some(body) => {
                // The only patch that is sent is server-side apply, and JSON is YAML.
                let is_apply = method == Method::PATCH;
                let media_type = if is_apply { "application/apply-patch+yaml" } else { "application/json" };
                request.header(CONTENT_TYPE, media_type).body(Body::from(body.to_string().into_bytes()))
            }
            None => request.body(Body::empty()),
        };
        let request = request.map_err(RequestError::Unsayable)?;
        let answer = self.client.send(request).await.map_err(unreachable)?;
        let (head, mut body) = answer.into_parts();
        if head.status.is_success() {
            return Ok(body);
        }
        // The status alone is worth telling when its text does not come.
        let text = read(&mut body, MAX_BYTES).await.unwrap_or_default();
        Err(RequestError::Refused(Box::new(Refusal::new(head.status, &head.headers, &text))))
    }
}

// === impl Events ===

impl Events {
    /// The next event, an object with `type` and `object`; `None` when the server has ended the watch.
    pub(super) async fn next(&mut self) -> Result<Option<Value>, RequestError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end + 1);
                if line.trim_ascii().is_empty() {
                    continue;
                }
                let event: Value = serde_json::from_slice(&line).map_err(RequestError::NotJson)?;
                if event["type"] == "ERROR" {
                    return Err(RequestError::Refused(Box::new(Refusal::from_status(&event["object"]))));
                }
                return Ok(Some(event));
            }
            let Some(chunk) = chunk(&mut self.body).await? else {
                return Ok(None);
            };
            if self.buffer.len() + chunk.len() > MAX_BYTES {
                return Err(RequestError::TooLong);
            }
            self.buffer.extend_from_slice(&chunk);
        }
    }
}

// === impl RequestError ===

impl RequestError {
    /// Whether the same request may succeed a little later with nobody's help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Timeout | Self::Unreachable(_) => true,
            Self::Refused(refusal) => {
                refusal.code.is_server_error()
                    || refusal.code == StatusCode::TOO_MANY_REQUESTS
                    || refusal.code == StatusCode::REQUEST_TIMEOUT
            }
            _ => false,
        }
    }

    /// How long the server asks to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(refusal) => refusal.retry_after,
            _ => None,
        }
    }

    /// The HTTP status, where there was an answer.
    pub fn code(&self) -> Option<StatusCode> {
        match self {
            Self::Refused(refusal) => Some(refusal.code),
            _ => None,
        }
    }

    /// What it says, but for the name of the object: a creation that is refused again is so under another name.
    pub(super) fn gist(&self) -> String {
        let text = self.to_string();
        match self {
            Self::Refused(refusal) if !refusal.object.is_empty() => text.replace(&refusal.object, ""),
            _ => text,
        }
    }

    /// The server does not want what was sent as it was sent.
    pub(super) fn is_unfit(&self) -> bool {
        self.code().is_some_and(|code| matches!(code, StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY))
    }

    /// Somebody else changed or removed the object since we looked.
    pub(super) fn is_race(&self) -> bool {
        self.code() == Some(StatusCode::CONFLICT) || self.is_object_missing()
    }

    /// The object that the request names does not exist.
    pub(super) fn is_object_missing(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.code == StatusCode::NOT_FOUND && !refusal.object.is_empty())
    }

    /// The server does not serve the path at all: its version of the API has changed.
    pub(super) fn is_path_missing(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.code == StatusCode::NOT_FOUND && refusal.object.is_empty())
    }
}

// === impl Refusal ===

impl Refusal {
    /// The text is a `Status` from the API itself, and anything from what stands before it: "404 page not found".
    fn new(code: StatusCode, headers: &HeaderMap, text: &[u8]) -> Self {
        let status: Value = serde_json::from_slice(text).unwrap_or_default();
        let mut refusal = Self::from_status(&status);
        if refusal.message.is_empty() {
            refusal.message = shortened(String::from_utf8_lossy(text).trim());
        }
        let header = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        Self { code, retry_after: header.map(Duration::from_secs).or(refusal.retry_after), ..refusal }
    }

    fn from_status(status: &Value) -> Self {
        let code = status["code"].as_u64().and_then(|code| StatusCode::from_u16(u16::try_from(code).ok()?).ok());
        Self {
            code: code.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            message: shortened(status["message"].as_str().unwrap_or_default()),
            retry_after: status["details"]["retryAfterSeconds"].as_u64().map(Duration::from_secs),
            object: status["details"]["name"].as_str().unwrap_or_default().to_owned(),
        }
    }
}

async fn in_time<T>(request: impl Future<Output = Result<T, RequestError>>) -> Result<T, RequestError> {
    tokio::time::timeout(ANSWER, request).await.unwrap_or(Err(RequestError::Timeout))
}

async fn read(body: &mut Body, limit: usize) -> Result<BytesMut, RequestError> {
    let mut bytes = BytesMut::new();
    while let Some(chunk) = chunk(body).await? {
        if bytes.len() + chunk.len() > limit {
            return Err(RequestError::TooLong);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

async fn chunk(body: &mut Body) -> Result<Option<Bytes>, RequestError> {
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
        // Trailers are of no interest.
        if let Ok(data) = frame.map_err(unreachable)?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

fn unreachable(error: kube::Error) -> RequestError {
    RequestError::Unreachable(Box::new(error))
}

fn shortened(text: &str) -> String {
    text.chars().take(MAX_MESSAGE).collect()
}
