//! WATCH: a stream of changes from a revision on.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use super::codec::{Codec, Form};
use super::failure::Failure;
use super::registry::Registry;
use super::selector::Selector;
use super::store::Change;

/// How long a watch lasts when the client does not say.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1800);
/// How often an idle watch that wants bookmarks gets one.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// Events that wait for a slow client before the watch waits for it.
const IN_FLIGHT: usize = 64;

/// What is watched, and how it is shown.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    pub(super) codec: Codec,
    pub(super) form: Form,
    pub(super) namespace: Option<String>,
    pub(super) selector: Selector,
    pub(super) bookmarks: bool,
    pub(super) timeout: Option<Duration>,
    pub(super) from: From,
}

/// Where a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    /// What exists now, as additions; then changes.
    Now,
    /// What exists now, as additions; a bookmark that says so; then changes.
    NowWithBookmark,
    /// Changes after this revision.
    Revision(u64),
}

// === impl Watch ===

impl Watch {
    /// Starts the watch; the stream ends with `cut`, with the timeout, or with its reader.
    pub(super) fn start(
        self,
        registry: Arc<Registry>,
        cut: watch::Receiver<u64>,
    ) -> ReceiverStream<Result<Bytes, Infallible>> {
        let revised = registry.store.subscribe();
        // A watch from too far back is a stream as well, of one event that says so.
        let (first, seen) = self
            .first_events(&registry)
            .map_or_else(|failure| (vec![error(&failure)], None), |(first, seen)| (first, Some(seen)));
        let (sender, receiver) = mpsc::channel(IN_FLIGHT);
        tokio::spawn(self.run(registry, first, seen, sender, revised, cut));
        ReceiverStream::new(receiver)
    }

    fn first_events(&self, registry: &Registry) -> Result<(Vec<Value>, u64), Failure> {
        let data = registry.store.lock();
        let revision = data.revision();
        if let From::Revision(revision) = self.from {
            return data.begin_at(revision).map(|()| (Vec::new(), revision));
        }
        let objects = data.list(self.codec.kind, self.namespace.as_deref()).map(|(_, object)| object);
        let mut events: Vec<_> =
            objects.filter(|object| self.selector.matches(object)).map(|object| self.event("ADDED", object)).collect();
        if self.from == From::NowWithBookmark {
            events.push(self.bookmark(revision, true));
        }
        Ok((events, revision))
    }

    async fn run(
        self,
        registry: Arc<Registry>,
        mut events: Vec<Value>,
        seen: Option<u64>,
        sender: mpsc::Sender<Result<Bytes, Infallible>>,
        mut revised: watch::Receiver<u64>,
        mut cut: watch::Receiver<u64>,
    ) {
        let deadline = tokio::time::sleep(self.timeout.unwrap_or(DEFAULT_TIMEOUT));
        let mut bookmark = tokio::time::interval(BOOKMARK_EVERY);
        bookmark.reset();
        tokio::pin!(deadline);
        let mut seen = seen;
        loop {
            for event in events.drain(..) {
                let mut line = event.to_string();
                line.push('\n');
                if sender.send(Ok(Bytes::from(line))).await.is_err() {
                    return;
                }
            }
            let Some(seen) = &mut seen else { return };
            tokio::select! {
                biased;
                () = sender.closed() => return,
                _ = cut.changed() => return,
                () = &mut deadline => return self.end(*seen, &sender).await,
                _ = bookmark.tick(), if self.bookmarks => events.push(self.bookmark(*seen, false)),
                next = self.next(&registry, &mut revised, seen) => match next {
                    Ok(next) => events = next,
                    Err(failure) => {
                        drop(sender.send(Ok(Bytes::from(format!("{}\n", error(&failure))))).await);
                        return;
                    }
                },
            }
        }
    }

    /// A watch that ends in order tells its client how far it came.
    async fn end(&self, seen: u64, sender: &mpsc::Sender<Result<Bytes, Infallible>>) {
        if self.bookmarks {
            drop(sender.send(Ok(Bytes::from(format!("{}\n", self.bookmark(seen, false))))).await);
        }
    }

    /// Waits for changes after `seen`, and moves it on. Nothing is lost when this is cancelled: it only ever waits with
    /// no events in hand.
    async fn next(
        &self,
        registry: &Registry,
        revised: &mut watch::Receiver<u64>,
        seen: &mut u64,
    ) -> Result<Vec<Value>, Failure> {
        loop {
            // Marked as seen before looking, so that a write in between wakes the wait below.
            revised.borrow_and_update();
            let events: Vec<_> = {
                let data = registry.store.lock();
                let events = data.changes_since(*seen)?.filter_map(|change| self.see(change)).collect();
                *seen = data.revision().max(*seen);
                events
            };
            if !events.is_empty() {
                return Ok(events);
            }
            // The sender lives in the registry that is borrowed here.
            drop(revised.changed().await);
        }
    }

    /// The event that a change is to this watch: objects enter and leave a selection.
    fn see(&self, change: &Change) -> Option<Value> {
        let here = change.key.kind == self.codec.kind
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == change.key.namespace);
        let selected =
            |object: &Option<Arc<Value>>| object.clone().filter(|object| here && self.selector.matches(object));
        match (selected(&change.before), selected(&change.after)) {
            (None, None) => None,
            (None, Some(after)) => Some(self.event("ADDED", &after)),
            (Some(_), Some(after)) => Some(self.event("MODIFIED", &after)),
            (Some(before), None) => {
                // A deletion has a revision of its own; the object is otherwise as it last was.
                let mut last = Value::clone(&before);
                last["metadata"]["resourceVersion"] = json!(change.revision.to_string());
                Some(self.event("DELETED", &last))
            }
        }
    }

    fn event(&self, what: &str, object: &Value) -> Value {
        json!({"type": what, "object": self.codec.show(object, self.form)})
    }

    fn bookmark(&self, revision: u64, initial_events_end: bool) -> Value {
        let mut object = json!({"kind": self.codec.kind.name(), "apiVersion": self.codec.version.to_string(),
            "metadata": {"resourceVersion": revision.to_string(), "creationTimestamp": null}});
        if initial_events_end {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        json!({"type": "BOOKMARK", "object": object})
    }
}

fn error(failure: &Failure) -> Value {
    json!({"type": "ERROR", "object": failure.to_status()})
}
