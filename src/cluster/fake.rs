//! A few lines of API server in this process, for tests.
//!
//! It has no sockets, so that tests can let time fly, and no rules but preconditions and field selectors.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Frame;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::Sleep;

use super::Cluster;

pub(crate) const DRIVER: &str = "gpu.nvidia.com";
pub(crate) const NODE: &str = "node-a";

/// Time flies when nothing else is left to do, so this only has to be longer than anything is meant to take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Clones are one server.
#[derive(Clone)]
pub(crate) struct Fake {
    state: Arc<watch::Sender<State>>,
}

pub(crate) struct State {
    /// Versions of resource.k8s.io; empty takes the group away.
    pub(crate) served: Vec<&'static str>,
    /// The node's UID.
    pub(crate) node_uid: String,
    /// As stored, by name, in the shape of the version that wrote them.
    pub(crate) slices: BTreeMap<String, Value>,
    /// By path below the version.
    pub(crate) claims: BTreeMap<String, Value>,
    /// What was applied to their status.
    pub(crate) applied: Vec<Value>,
    /// Events, as they are after the last repeat.
    pub(crate) events: Vec<Value>,
    /// `METHOD path` of every request, without the query; dry runs begin with `DRY`.
    pub(crate) log: Vec<String>,
    fault: Script,
    /// What the server does to a slice before it stores it.
    pub(crate) mutate: fn(&mut Value),
    /// What it then has against the slice, if anything.
    pub(crate) refuse: fn(&Value) -> Option<String>,
    version: u64,
    history: Vec<(u64, Bytes)>,
    watches: Vec<mpsc::UnboundedSender<Bytes>>,
}

/// What happens to a request (as it stands in the log, where it is the last) instead of an answer; `None` lets it pass.
type Script = Arc<dyn Fn(&State, &str) -> Option<Fault> + Send + Sync>;

pub(crate) enum Fault {
    Refuse,
    Hang,
    Answer { code: u16, headers: &'static [(&'static str, &'static str)], body: &'static str },
}

enum Reply {
    Whole(u16, Value),
    Plain(u16, &'static [(&'static str, &'static str)], &'static str),
    Stream(mpsc::UnboundedReceiver<Bytes>, Pin<Box<Sleep>>),
}

enum ReplyBody {
    Whole(Option<Bytes>),
    /// Ends when its time is up.
    Stream(mpsc::UnboundedReceiver<Bytes>, Pin<Box<Sleep>>),
}

// === impl Fake ===

impl Fake {
    pub(crate) fn new() -> Self {
        let state = State {
            served: vec!["v1", "v1beta2", "v1beta1"],
            node_uid: "node-uid-1".into(),
            slices: BTreeMap::new(),
            claims: BTreeMap::new(),
            applied: Vec::new(),
            events: Vec::new(),
            log: Vec::new(),
            fault: Arc::new(|_, _| None),
            mutate: |_| {},
            refuse: |_| None,
            version: 100,
            history: Vec::new(),
            watches: Vec::new(),
        };
        Self { state: Arc::new(watch::Sender::new(state)) }
    }

    pub(crate) fn cluster(&self) -> Cluster {
        let fake = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let fake = fake.clone();
            async move { fake.serve(request).await }
        });
        Cluster::new(kube::Client::new(service, "default"), DRIVER, NODE)
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        self.state.send_modify(change);
    }

    pub(crate) fn on_request(&self, script: impl Fn(&State, &str) -> Option<Fault> + Send + Sync + 'static) {
        self.change(|state| state.fault = Arc::new(script));
    }

    pub(crate) fn look<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.borrow())
    }

    pub(crate) async fn until(&self, condition: impl FnMut(&State) -> bool) {
        let mut state = self.state.subscribe();
        tokio::time::timeout(PATIENCE, state.wait_for(condition)).await.expect("it never happened").unwrap();
    }

    async fn serve(&self, request: Request<Body>) -> Result<Response<ReplyBody>, std::io::Error> {
        let (head, body) = request.into_parts();
        let body: Value = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or_default();
        let (path, query) = (head.uri.path().to_owned(), head.uri.query().unwrap_or_default().to_owned());
        let mut reply = None;
        let mut fault = None;
        self.state.send_modify(|state| {
            let line = format!("{}{} {path}", if query.contains("dryRun=All") { "DRY " } else { "" }, head.method);
            state.log.push(line.clone());
            fault = state.fault.clone()(state, &line);
            if fault.is_none() {
                reply = Some(state.answer(&head.method, &path, &query, body));
            }
        });
        let reply = match fault {
            Some(Fault::Refuse) => return Err(std::io::ErrorKind::ConnectionRefused.into()),
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Answer { code, headers, body }) => Reply::Plain(code, headers, body),
            None => reply.unwrap(),
        };
        Ok(reply.into_response())
    }
}

// === impl State ===

impl State {
    pub(crate) fn count(&self, prefix: &str) -> usize {
        self.log.iter().filter(|line| line.starts_with(prefix)).count()
    }

    pub(crate) fn writes(&self) -> usize {
        let slices = "/apis/resource.k8s.io/";
        ["POST", "PUT", "DELETE"].into_iter().map(|method| self.count(&format!("{method} {slices}"))).sum()
    }

    /// Stores a slice as anybody could, and tells the watches.
    pub(crate) fn store(&mut self, name: &str, mut slice: Value) -> Value {
        self.version += 1;
        let kind = if self.slices.contains_key(name) { "MODIFIED" } else { "ADDED" };
        slice["metadata"]["name"] = name.into();
        slice["metadata"]["resourceVersion"] = self.version.to_string().into();
        if slice["metadata"]["uid"].is_null() {
            slice["metadata"]["uid"] = format!("slice-uid-{}", self.version).into();
        }
        self.slices.insert(name.to_owned(), slice.clone());
        self.tell(kind, &slice);
        slice
    }

    /// Removes a slice as anybody could, and tells the watches.
    pub(crate) fn remove(&mut self, name: &str) {
        let slice = self.slices.remove(name).unwrap();
        self.version += 1;
        self.tell("DELETED", &slice);
    }

    pub(crate) fn wipe(&mut self) {
        for name in self.slices.keys().cloned().collect::<Vec<_>>() {
            self.remove(&name);
        }
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watches.iter().any(|watch| !watch.is_closed())
    }

    /// Ends all watches before their time.
    pub(crate) fn cut_watches(&mut self) {
        self.watches.clear();
    }

    fn tell(&mut self, kind: &str, slice: &Value) {
        let line = Bytes::from(format!("{}\n", json!({"type": kind, "object": slice})));
        self.history.push((self.version, line.clone()));
        self.watches.retain(|watch| watch.send(line.clone()).is_ok());
    }

    fn answer(&mut self, method: &Method, path: &str, query: &str, body: Value) -> Reply {
        if path == "/apis/resource.k8s.io" && !self.served.is_empty() {
            let versions: Vec<_> = self.served.iter().map(|version| json!({"version": version})).collect();
            return Reply::Whole(200, json!({"kind": "APIGroup", "versions": versions}));
        }
        if path == format!("/api/v1/nodes/{NODE}") {
            return Reply::Whole(200, json!({"metadata": {"uid": self.node_uid}}));
        }
        if let Some(name) = path.strip_prefix("/apis/events.k8s.io/v1/namespaces/default/events") {
            if *method == Method::POST {
                self.events.push(body.clone());
                return Reply::Whole(201, body);
            }
            let mut events = self.events.iter_mut();
            let Some(event) = events.find(|event| event["metadata"]["name"] == name.trim_start_matches('/')) else {
                return status(404, name);
            };
            // The patches are whole Events, notes included.
            event.clone_from(&body);
            return Reply::Whole(200, body);
        }
        let below = path.strip_prefix("/apis/resource.k8s.io/").and_then(|rest| rest.split_once('/'));
        let Some((version, below)) = below.filter(|(version, _)| self.served.contains(version)) else {
            return Reply::Plain(404, &[], "404 page not found\n");
        };
        if let Some(claim) = below.strip_suffix("/status") {
            let Some(claim) = self.claims.get_mut(claim) else { return status(404, below) };
            assert!(query.contains(&format!("fieldManager={DRIVER}/{NODE}&force=true")), "{query}");
            // Nobody else applies anything.
            claim["status"]["devices"] = body["status"]["devices"].clone();
            self.applied.push(body);
            return Reply::Whole(200, claim.clone());
        }
        if below.starts_with("namespaces/") {
            return self.claims.get(below).map_or_else(|| status(404, below), |claim| Reply::Whole(200, claim.clone()));
        }
        let name = below.strip_prefix("resourceslices/").unwrap_or_default();
        match *method {
            Method::GET => self.list_or_watch(query),
            Method::POST => {
                assert_eq!(body["apiVersion"], format!("resource.k8s.io/{version}"));
                let prefix = body["metadata"]["generateName"].as_str().unwrap().to_owned();
                self.write(&format!("{prefix}{:05}", self.log.len()), query, body, 201)
            }
            _ => {
                let Some(stored) = self.slices.get(name) else { return status(404, name) };
                let expected =
                    if *method == Method::DELETE { &body["preconditions"] } else { &body["metadata"] }.clone();
                let fields = ["uid", "resourceVersion"];
                if fields.iter().any(|field| expected[field] != stored["metadata"][field]) {
                    return status(409, name);
                }
                if *method == Method::PUT {
                    return self.write(name, query, body, 200);
                }
                self.remove(name);
                status(200, name)
            }
        }
    }

    fn write(&mut self, name: &str, query: &str, mut slice: Value, code: u16) -> Reply {
        (self.mutate)(&mut slice);
        if let Some(message) = (self.refuse)(&slice) {
            let message = format!("ResourceSlice.resource.k8s.io \"{name}\" is invalid: {message}");
            return Reply::Whole(422, json!({"code": 422, "message": message, "details": {"name": name}}));
        }
        if query.contains("dryRun=All") {
            return Reply::Whole(code, slice);
        }
        Reply::Whole(code, self.store(name, slice))
    }

    fn list_or_watch(&mut self, query: &str) -> Reply {
        assert!(query.contains(&format!("fieldSelector=spec.nodeName%3D{NODE},spec.driver%3D{DRIVER}")), "{query}");
        if !query.contains("watch=true") {
            let items: Vec<_> = self.slices.values().cloned().collect();
            return Reply::Whole(
                200,
                json!({"metadata": {"resourceVersion": self.version.to_string()}, "items": items}),
            );
        }
        let parameter = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)).unwrap().parse::<u64>();
        let from = parameter("resourceVersion=").unwrap();
        let (sender, receiver) = mpsc::unbounded_channel();
        for (_, line) in self.history.iter().filter(|(version, _)| *version > from) {
            sender.send(line.clone()).unwrap();
        }
        self.watches.push(sender);
        let end = tokio::time::sleep(Duration::from_secs(parameter("timeoutSeconds=").unwrap()));
        Reply::Stream(receiver, Box::pin(end))
    }
}

// === impl Reply ===

impl Reply {
    fn into_response(self) -> Response<ReplyBody> {
        let response = Response::builder();
        let response = match self {
            Self::Whole(code, body) => response.status(code).body(ReplyBody::Whole(Some(body.to_string().into()))),
            Self::Plain(code, headers, body) => headers
                .iter()
                .fold(response, |response, (name, value)| response.header(*name, *value))
                .status(code)
                .body(ReplyBody::Whole(Some(Bytes::from_static(body.as_bytes())))),
            Self::Stream(lines, end) => response.body(ReplyBody::Stream(lines, end)),
        };
        response.unwrap()
    }
}

impl http_body::Body for ReplyBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(lines, end) => match lines.poll_recv(cx) {
                Poll::Pending => end.as_mut().poll(cx).map(|()| None),
                line @ Poll::Ready(_) => line.map(|line| line.map(|line| Ok(Frame::data(line)))),
            },
        }
    }
}

fn status(code: u16, name: &str) -> Reply {
    let reason = if code == 404 { "NotFound" } else { "Conflict" };
    let message = format!("about {name}");
    let details = json!({ "name": name });
    Reply::Whole(
        code,
        json!({"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}),
    )
}
