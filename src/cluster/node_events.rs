//! Kubernetes Events about this node, for people who look with `kubectl describe node`.
//!
//! An Event is a hint beside the log and the metrics, so nothing waits for one: it is tried once, and those that come
//! thick and fast are left out. One that says the same as the one before is counted there instead of written anew.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::time::{Instant, timeout};

use super::Cluster;
use super::request::Requests;

/// For one attempt. It holds up whoever reports, who has better things to do.
const ANSWER: Duration = Duration::from_secs(3);

/// The longest note that the API accepts, in bytes.
const MAX_NOTE: usize = 1024;

/// The longest `reportingInstance` that the API accepts, in bytes.
const MAX_INSTANCE: usize = 128;

/// Writes Events about the Node.
pub struct NodeEvents {
    requests: Requests,
    reporter: Reporter,
    recorder: Recorder,
    /// What the recorder tells: it takes Events with other notes for repeats as well, and drops these notes.
    note: String,
    node: ObjectReference,
    action: &'static str,
    last: Option<Instant>,
}

// === impl Cluster ===

impl Cluster {
    /// For Events about what somebody does: a word like `Publish`.
    pub fn node_events(&self, action: &'static str) -> NodeEvents {
        let Self { requests, driver, node, .. } = self;
        let reporter =
            Reporter { controller: driver.clone(), instance: Some(shortened(node, MAX_INSTANCE).to_owned()) };
        let node = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.clone()),
            // As the kubelet does it. `kubectl describe node` looks for this one as well as for the real UID, which
            // changes when the Node is created anew.
            uid: Some(node.clone()),
            ..ObjectReference::default()
        };
        let recorder = Recorder::new(requests.client().clone(), reporter.clone());
        let requests = requests.clone();
        NodeEvents { requests, reporter, recorder, note: String::new(), node, action, last: None }
    }
}

// === impl NodeEvents ===

impl NodeEvents {
    /// Between two Events. What happens more often is a state, and has a metric.
    pub const AT_MOST_EVERY: Duration = Duration::from_secs(60);

    /// Reports a trouble. `reason` is one word in CamelCase, `note` a sentence, which may be cut. Answers
    /// whether it was taken.
    pub async fn warn(&mut self, reason: &str, note: &str) -> bool {
        let now = Instant::now();
        if self.last.is_some_and(|last| now.duration_since(last) < Self::AT_MOST_EVERY) {
            return false;
        }
        self.last = Some(now);
        let note = shortened(note, MAX_NOTE);
        if note != self.note {
            self.recorder = Recorder::new(self.requests.client().clone(), self.reporter.clone());
            note.clone_into(&mut self.note);
        }
        let event = Event {
            type_: EventType::Warning,
            reason: reason.to_owned(),
            note: Some(note.to_owned()),
            action: self.action.to_owned(),
            secondary: None,
        };
        let published = timeout(ANSWER, self.recorder.publish(&event, &self.node)).await;
        match &published {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(error = error as &dyn std::error::Error, "cannot write an Event"),
            Err(_) => tracing::debug!("the API server did not take an Event in time"),
        }
        matches!(published, Ok(Ok(())))
    }
}

fn shortened(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(shortened("slices", 99), "slices");
        assert_eq!(shortened("slices", 5), "slice");
        assert_eq!(shortened("größer", 3), "gr");
        assert_eq!(shortened("", 3), "");
    }
}
