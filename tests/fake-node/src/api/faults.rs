//! What a scenario does to requests: fail them, hold them, and read afterwards what was asked.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::watch;

use super::failure::Failure;
use super::kind::Kind;
use super::route::Verb;

/// One request, as it arrived.
#[derive(Debug, Clone)]
pub struct Request {
    /// What it does; `None` for discovery and for methods that the API does not have.
    pub verb: Option<Verb>,
    /// The type that it is about; `None` for discovery and unknown paths.
    pub kind: Option<Kind>,
    /// The namespace in the path.
    pub namespace: Option<String>,
    /// The name in the path; a creation has none.
    pub name: Option<String>,
    /// The subresource in the path.
    pub subresource: Option<String>,
    /// Path and query.
    pub path: String,
    /// Whether nothing of it is to be stored.
    pub dry_run: bool,
    /// The `User-Agent` header, empty if there was none.
    pub user_agent: String,
    /// When it arrived.
    pub time: SystemTime,
}

/// Which requests are meant. What is not set matches all.
#[derive(Debug, Clone, Default)]
pub struct Matching {
    verb: Option<Verb>,
    kind: Option<Kind>,
    name: Option<String>,
    subresource: Option<String>,
}

/// Requests that fail instead of being served.
#[derive(Debug, Clone)]
pub struct FailureRule {
    /// Which requests.
    pub requests: Matching,
    /// What they get.
    pub failure: Failure,
    /// How many of them; `None` is all, until the rules are cleared.
    pub times: Option<usize>,
}

/// Requests that are accepted and not answered, until this is dropped.
#[derive(Debug)]
#[must_use = "requests are held only as long as this lives"]
pub struct Stall(#[expect(dead_code, reason = "held requests wait for its end")] watch::Sender<()>);

/// The faults in force, and the log.
#[derive(Debug, Default)]
pub(super) struct Faults {
    state: Mutex<State>,
    arrivals: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    rules: Vec<FailureRule>,
    stalls: Vec<(Matching, watch::Receiver<()>)>,
    log: Vec<Request>,
}

// === impl Matching ===

impl Matching {
    /// Every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// Only those with this verb.
    pub fn verb(mut self, verb: Verb) -> Self {
        self.verb = Some(verb);
        self
    }

    /// Only those about this type.
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = Some(kind);
        self
    }

    /// Only those with this name in their path.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Only those about this subresource.
    pub fn subresource(mut self, subresource: impl Into<String>) -> Self {
        self.subresource = Some(subresource.into());
        self
    }

    /// Whether a request is meant.
    pub fn matches(&self, request: &Request) -> bool {
        self.verb.is_none_or(|verb| request.verb == Some(verb))
            && self.kind.is_none_or(|kind| request.kind == Some(kind))
            && (self.name.is_none() || self.name == request.name)
            && (self.subresource.is_none() || self.subresource == request.subresource)
    }
}

// === impl Request ===

impl Request {
    /// Whether the request would change something.
    pub fn is_write(&self) -> bool {
        self.verb.is_some_and(Verb::is_write) && !self.dry_run
    }
}

// === impl Faults ===

impl Faults {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn fail(&self, rule: FailureRule) {
        self.lock().rules.push(rule);
    }

    pub(super) fn clear(&self) {
        self.lock().rules.clear();
    }

    pub(super) fn stall(&self, requests: Matching) -> Stall {
        let (held, receiver) = watch::channel(());
        let mut state = self.lock();
        state.stalls.retain(|(_, stall)| stall.has_changed().is_ok());
        state.stalls.push((requests, receiver));
        Stall(held)
    }

    /// Logs a request, holds it as long as a stall says, and fails it if a rule says so. The way in for every request.
    pub(super) async fn admit(&self, request: Request) -> Result<(), Failure> {
        self.lock().log.push(request.clone());
        self.arrivals.send_modify(|arrivals| *arrivals += 1);
        loop {
            let held = self.lock().stalls.iter().find_map(|(matching, stall)| {
                (stall.has_changed().is_ok() && matching.matches(&request)).then(|| stall.clone())
            });
            let Some(mut held) = held else { break };
            // Nothing is ever sent: this ends when the stall is dropped.
            while held.changed().await.is_ok() {}
        }
        let mut state = self.lock();
        let Some(index) = state.rules.iter().position(|rule| rule.requests.matches(&request)) else { return Ok(()) };
        let failure = state.rules[index].failure.clone();
        if let Some(times) = &mut state.rules[index].times {
            *times = times.saturating_sub(1);
            if *times == 0 {
                state.rules.remove(index);
            }
        }
        Err(failure)
    }

    /// Told of every request.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.arrivals.subscribe()
    }

    pub(super) fn log(&self) -> Vec<Request> {
        self.lock().log.clone()
    }

    pub(super) fn forget(&self) {
        self.lock().log.clear();
    }
}
