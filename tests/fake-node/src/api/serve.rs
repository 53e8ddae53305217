//! HTTP: one handler for all paths, and the loop that accepts connections.
//!
//! ```text
//!  accept ─▶ connection ─▶ handle ─▶ log, stall, fail ─▶ token ─▶ discovery
//!                                                              └▶ target + verb ─▶ reading / writing ─▶ registry
//! ```

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::SystemTime;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Router, http};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, USER_AGENT, WARNING};
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::codec::Form;
use super::discovery::Discovery;
use super::failure::Failure;
use super::faults::{Faults, Request};
use super::registry::Registry;
use super::route::{Target, Verb};
use super::{reading, writing};

/// The largest body that the real server reads.
const BODY_BYTES: usize = 3 << 20;

/// What every connection shares.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) registry: Arc<Registry>,
    pub(super) discovery: RwLock<Discovery>,
    pub(super) faults: Faults,
    /// Changes when running watches are to end.
    pub(super) cut: watch::Sender<u64>,
    /// The bearer tokens that are accepted; `None` asks for none.
    pub(super) tokens: RwLock<Option<Vec<String>>>,
    pub(super) address: SocketAddr,
}

/// A request that names a type, with its parameters.
pub(super) struct Call<'a> {
    pub(super) shared: &'a Shared,
    pub(super) target: Target,
    pub(super) parts: &'a Parts,
    pub(super) form: Form,
}

/// A JSON answer.
pub(super) struct Answer {
    pub(super) code: StatusCode,
    pub(super) body: Value,
    pub(super) warnings: Vec<String>,
}

// === impl Shared ===

impl Shared {
    /// Looks at the token of a request, if tokens are asked for.
    fn authenticate(&self, parts: &Parts) -> Result<(), Failure> {
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        let token = header(parts, AUTHORIZATION).strip_prefix("Bearer ").map(str::trim);
        let known = |tokens: &Vec<String>| token.is_some_and(|token| tokens.iter().any(|known| known == token));
        if tokens.as_ref().is_none_or(known) { Ok(()) } else { Err(Failure::unauthorized()) }
    }

    fn discovery(&self) -> RwLockReadGuard<'_, Discovery> {
        self.discovery.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves connections until aborted; the connections end with it.
pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let app = Router::new().fallback(handle).with_state(shared);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let service = TowerToHyperService::new(app.clone());
                    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                    connections.spawn(connection);
                }
                Err(error) => tracing::warn!(%error, "cannot accept a connection to the fake API server"),
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn handle(State(shared): State<Arc<Shared>>, request: axum::extract::Request) -> Response {
    let (parts, body) = request.into_parts();
    match answer(&shared, &parts, body).await {
        Ok(response) => response,
        Err(failure) => failure.into_response(),
    }
}

async fn answer(shared: &Shared, parts: &Parts, body: Body) -> Result<Response, Failure> {
    let path = parts.uri.path();
    let target = Target::parse(path).filter(|target| shared.discovery().serves(target.version));
    let watch = parameter(parts, "watch").is_some_and(|watch| watch == "true" || watch == "1");
    let verb = target.as_ref().and_then(|target| Verb::of(&parts.method, target, watch));
    shared.faults.admit(logged(parts, target.as_ref(), verb)).await?;
    shared.authenticate(parts)?;

    let Some(target) = target else { return outside(shared, parts) };
    let form = form(parts)?;
    let call = Call { shared, target, parts, form };
    call.check_subresource()?;
    match verb.ok_or_else(Failure::method_not_allowed)? {
        Verb::Get => reading::get(&call).map(Answer::into_response),
        Verb::List => reading::list(&call).map(Answer::into_response),
        Verb::Watch => reading::watch(&call),
        verb => {
            let body = axum::body::to_bytes(body, BODY_BYTES)
                .await
                .map_err(|_| Failure::injected(413, "Request entity too large: limit is 3145728"))?;
            writing::write(&call, verb, &body).map(Answer::into_response)
        }
    }
}

/// Paths that name no resource: discovery and health.
fn outside(shared: &Shared, parts: &Parts) -> Result<Response, Failure> {
    let path = parts.uri.path();
    if matches!(path, "/healthz" | "/livez" | "/readyz") {
        return Ok("ok".into_response());
    }
    let document = shared.discovery().document(path, &shared.address.to_string());
    let body = document.ok_or_else(Failure::no_such_path)?;
    Ok(Answer { code: StatusCode::OK, body, warnings: Vec::new() }.into_response())
}

fn logged(parts: &Parts, target: Option<&Target>, verb: Option<Verb>) -> Request {
    Request {
        verb,
        kind: target.map(|target| target.kind),
        namespace: target.and_then(|target| target.namespace.clone()),
        name: target.and_then(|target| target.name.clone()),
        subresource: target.and_then(|target| target.subresource.clone()),
        path: parts.uri.path_and_query().map_or_else(String::new, ToString::to_string),
        dry_run: parameter(parts, "dryRun").is_some(),
        user_agent: header(parts, USER_AGENT).to_owned(),
        time: SystemTime::now(),
    }
}

/// Which of the forms that the client accepts comes first.
fn form(parts: &Parts) -> Result<Form, Failure> {
    let accept = header(parts, ACCEPT);
    let mut ranges = accept.split(',').map(str::trim).filter(|range| !range.is_empty()).peekable();
    if ranges.peek().is_none() {
        return Ok(Form::Objects);
    }
    let known = ranges.find_map(|range| {
        let mut parameters = range.split(';').map(str::trim);
        let media_type = parameters.next()?;
        let parameters: Vec<_> = parameters.collect();
        let wanted = parameters.iter().find_map(|parameter| parameter.strip_prefix("as="));
        match (media_type, wanted) {
            ("application/json", Some("Table")) if parameters.contains(&"v=v1") => Some(Form::Table),
            ("application/json", Some("PartialObjectMetadata" | "PartialObjectMetadataList")) => Some(Form::Metadata),
            ("application/json" | "application/*" | "*/*", None) => Some(Form::Objects),
            _ => None,
        }
    });
    known.ok_or_else(Failure::not_acceptable)
}

/// A query parameter, decoded.
pub(super) fn parameter(parts: &Parts, name: &str) -> Option<String> {
    let query: axum::extract::Query<Vec<(String, String)>> = axum::extract::Query::try_from_uri(&parts.uri).ok()?;
    query.0.into_iter().find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value)
}

/// A header as text; empty if there is none.
pub(super) fn header(parts: &Parts, name: http::HeaderName) -> &str {
    parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

// === impl Call ===

impl Call<'_> {
    /// A query parameter of the request.
    pub(super) fn parameter(&self, name: &str) -> Option<String> {
        parameter(self.parts, name)
    }

    fn check_subresource(&self) -> Result<(), Failure> {
        match self.target.subresource.as_deref() {
            None => Ok(()),
            Some("status") if self.target.kind.has_status() => Ok(()),
            Some(_) => Err(Failure::no_such_path()),
        }
    }
}

// === impl Answer ===

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let mut response = (self.code, self.body.to_string()).into_response();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for warning in &self.warnings {
            let text = format!("299 - \"{}\"", warning.replace('\\', "\\\\").replace('"', "\\\""));
            if let Ok(value) = HeaderValue::from_str(&text) {
                response.headers_mut().append(WARNING, value);
            }
        }
        response
    }
}

// === impl Failure ===

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let code = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = Answer { code, body: self.to_status(), warnings: Vec::new() }.into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
