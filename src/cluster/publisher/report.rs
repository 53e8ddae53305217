//! What others learn of the publisher's work: readiness, log, metrics, and Events about the Node.
//!
//! Everything is said once per change. A trouble that goes on is a state, which readiness and metrics show.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::metrics::Metrics;
use crate::cluster::node_events::NodeEvents;
use crate::cluster::request::RequestError;
use crate::device::DeviceName;
use crate::slice::fallback::Extras;

/// What the API server has of this node's pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Published {
    /// Nothing was accepted since the plugin has started.
    Never {
        /// What stands in the way.
        reason: String,
    },
    /// The slices are as they should be.
    Accepted {
        /// The pool's generation.
        generation: u64,
        /// Since when.
        at: SystemTime,
    },
    /// They were, and since then something could not be written or checked.
    Failing {
        /// What stands in the way.
        reason: String,
        /// Since when.
        since: SystemTime,
        /// The generation that was accepted last.
        generation: u64,
    },
}

/// As long as nothing is wanted.
const UNKNOWN: &str = "the node's devices are not known yet";

/// As long as nothing has come back.
const UNDER_WAY: &str = "the API server has not answered yet";

/// Once something else is wanted for longer than [`SOON`].
const BEING_WRITTEN: &str = "ResourceSlices are being written";

/// What is wanted is accepted so soon, as a rule, and readiness says nothing of it.
const SOON: Duration = Duration::from_secs(5);

/// Two plugins with one driver name on one node, an admission webhook, or a controller that means well.
const CONTESTED: &str = "what is written is changed or deleted at once; who else writes ResourceSlices of this driver \
                         and node?";

const THROTTLED: &str = "there is more to write than may be written in a minute";

/// What a server that does not keep something is said to lack, the gate that may be off, and what follows.
const WITHOUT_LISTS: &str =
    "lists (feature gate DRAListTypeAttributes), so attributes have one value each or are missing";
const WITHOUT_COUNTERS: &str =
    "counters (DRAPartitionableDevices), so GPUs that are offered whole and in parts are withdrawn";
const WITHOUT_TAINTS: &str = "taints (DRADeviceTaints), so devices that must not be used are withdrawn";

/// Tells them.
pub(super) struct Report {
    published: watch::Sender<Published>,
    /// Since when something else is wanted than was accepted.
    pending: watch::Sender<Option<Instant>>,
    metrics: Metrics,
    events: NodeEvents,
    trouble: Said,
    /// What was said last of slices being reduced, and the Events about it: no other trouble keeps them back.
    reduced: (Said, NodeEvents),
    /// The same of slices that are not stored as sent.
    altered: (Said, NodeEvents),
}

/// Something that is said once.
#[derive(Default)]
struct Said {
    gist: String,
    /// Whether an Event about it was taken. Where not, the next look tries again.
    has_event: bool,
}

// === impl Report ===

impl Report {
    pub(super) fn new(
        metrics: Metrics,
        [events, reductions, alterations]: [NodeEvents; 3],
    ) -> (Self, watch::Receiver<Published>) {
        let (published, receiver) = watch::channel(Published::Never { reason: UNKNOWN.to_owned() });
        let [reduced, altered] = [reductions, alterations].map(|events| (Said::default(), events));
        let pending = watch::Sender::new(None);
        (Self { published, pending, metrics, events, trouble: Said::default(), reduced, altered }, receiver)
    }

    /// From now on something is wanted, and something else if it has changed.
    pub(super) fn wanted(&self, has_changed: bool) {
        if has_changed {
            self.pending.send_if_modified(|since| since.is_none() && since.replace(Instant::now()).is_none());
        }
        self.published.send_if_modified(|published| match published {
            Published::Never { reason } if reason == UNKNOWN => {
                UNDER_WAY.clone_into(reason);
                true
            }
            _ => false,
        });
    }

    /// Takes readiness back while something else is wanted and not accepted soon. To be run beside the work, which may
    /// be held up by a request.
    pub(super) fn overdue(&self) -> impl Future<Output = ()> + use<> {
        let (published, mut pending) = (self.published.clone(), self.pending.subscribe());
        async move {
            while let Ok(since) = pending.wait_for(Option::is_some).await.map(|since| *since) {
                let at = since.map_or_else(Instant::now, |since| since + SOON);
                if timeout_at(at, pending.wait_for(|now| *now != since)).await.is_err() {
                    published.send_if_modified(|published| {
                        let Published::Accepted { generation, .. } = *published else { return false };
                        let (reason, since) = (BEING_WRITTEN.to_owned(), SystemTime::now());
                        *published = Published::Failing { reason, since, generation };
                        true
                    });
                    let _ = pending.wait_for(|now| *now != since).await;
                }
            }
        }
    }

    /// The slices were found to be as wanted.
    pub(super) fn accepted(&mut self, generation: u64) {
        self.trouble = Said::default();
        self.pending.send_replace(None);
        let now = SystemTime::now();
        let news = self.published.send_if_modified(|published| {
            if matches!(published, Published::Accepted { generation: known, .. } if *known == generation) {
                return false;
            }
            *published = Published::Accepted { generation, at: now };
            true
        });
        if news {
            tracing::info!(generation, "the API server has this node's ResourceSlices as they should be");
        }
        self.metrics.accepted_generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
        self.metrics.accepted_seconds.set(now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64());
    }

    /// A request did not succeed.
    pub(super) async fn failed(&mut self, error: &RequestError) {
        let reason = error.to_string();
        let is_news = self.fails(&error.gist(), &reason);
        {
            let error: &dyn std::error::Error = error;
            if is_news {
                tracing::warn!(error, "cannot keep this node's ResourceSlices up to date; trying again");
            } else {
                tracing::debug!(error, "still cannot keep this node's ResourceSlices up to date");
            }
        }
        // A server that is away takes no Events either.
        if !error.is_transient() {
            self.not_published(&reason).await;
        }
    }

    /// What was written is not there, or not as it was written.
    pub(super) async fn contested(&mut self) {
        if self.fails(CONTESTED, CONTESTED) {
            tracing::warn!("ResourceSlices of this node do not stay as written: {CONTESTED}");
        }
        self.not_published(CONTESTED).await;
    }

    /// More must be written than may be.
    pub(super) async fn throttled(&mut self, pause: Duration) {
        if self.fails(THROTTLED, THROTTLED) {
            tracing::warn!(?pause, "waiting with ResourceSlices of this node: {THROTTLED}");
        }
        self.not_published(THROTTLED).await;
    }

    /// The fields of slices that the server does not store as sent.
    pub(super) async fn altered(&mut self, fields: &BTreeSet<String>) {
        let (said, events) = &mut self.altered;
        let fields = fields.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let is_news = said.is_news(&fields);
        if fields.is_empty() {
            return;
        }
        if is_news {
            tracing::warn!(fields, "the API server does not store these fields of ResourceSlices as sent");
        }
        let note = format!(
            "the API server does not store these fields of ResourceSlices as sent: {fields}; is it older, is a feature \
             gate off, or does a webhook change them?"
        );
        said.tell(events, "ResourceSlicesAltered", &note).await;
    }

    /// What of the slices the server does not keep, and the devices that are not offered for that.
    pub(super) async fn reduced(&mut self, without: Extras, withdrawn: &[&DeviceName]) {
        self.metrics.reduce(without);
        let Extras { lists, counters, taints } = without;
        let reasons = [(lists, WITHOUT_LISTS), (counters, WITHOUT_COUNTERS), (taints, WITHOUT_TAINTS)];
        let mut note =
            reasons.iter().filter(|(is_lost, _)| *is_lost).map(|(_, why)| *why).collect::<Vec<_>>().join("; ");
        if !withdrawn.is_empty() {
            let names: Vec<_> = withdrawn.iter().map(|name| name.as_str()).collect();
            note += "; not offered: ";
            note += &names.join(", ");
        }
        let (said, events) = &mut self.reduced;
        let is_news = said.is_news(&note);
        if note.is_empty() {
            if is_news {
                tracing::info!("nothing is missing any more in this node's ResourceSlices");
            }
            return;
        }
        let note = format!("the API server does not keep all parts of ResourceSlices. Missing are {note}");
        if is_news {
            tracing::warn!("publishing less than there is: {note}");
        }
        said.tell(events, "ResourceSlicesReduced", &note).await;
    }

    async fn not_published(&mut self, reason: &str) {
        let note = format!("cannot keep this node's ResourceSlices up to date: {reason}");
        self.trouble.tell(&mut self.events, "ResourceSlicesNotPublished", &note).await;
    }

    /// Whether this is news.
    fn fails(&mut self, gist: &str, reason: &str) -> bool {
        if !self.trouble.is_news(gist) {
            return false;
        }
        self.published.send_modify(|published| {
            *published = match &*published {
                Published::Never { .. } => Published::Never { reason: reason.to_owned() },
                Published::Accepted { generation, .. } => {
                    Published::Failing { reason: reason.to_owned(), since: SystemTime::now(), generation: *generation }
                }
                Published::Failing { since, generation, .. } => {
                    Published::Failing { reason: reason.to_owned(), since: *since, generation: *generation }
                }
            };
        });
        true
    }
}

// === impl Said ===

impl Said {
    /// Whether it was not said last.
    fn is_news(&mut self, gist: &str) -> bool {
        let is_news = self.gist != gist;
        if is_news {
            *self = Self { gist: gist.to_owned(), has_event: false };
        }
        is_news
    }

    /// Writes an Event, unless there is one.
    async fn tell(&mut self, events: &mut NodeEvents, reason: &str, note: &str) {
        if !self.has_event {
            self.has_event = events.warn(reason, note).await;
        }
    }
}
