//! Releases claims whose object is gone and that nobody unprepares.
//!
//! The kubelet unprepares a claim when its last pod has ended, also one that was deleted by force. It does not when it
//! has lost its own records: they were damaged, or its directory was set up anew. What such a claim holds would be held
//! for ever, because nobody asks for it any more.
//!
//! ```text
//!  a prepare finds a GPU held ──▶ its holder, at once ─┐
//!  every 5 min ─────────────────▶ the next claim ──────┼─▶ ask the API server ─┬─▶ there, or no answer: not suspected
//!  ┌─ a minute later ──────────── a suspect ───────────┘                       └─▶ gone, for less than 3 min ─┐
//!  └──────────────────────────────────────────────────────────────────────────────────────────────────────────┤
//!                                                                              gone for 3 min ◀───────────────┘
//!                                                                                │
//!                                                                                └─▶ unprepare, log, Event, metric
//! ```
//!
//! # What is certain, and what is not
//!
//! A claim counts as gone when the API server says that there is no such object, or one with another UID; nothing else
//! counts, least of all a server that fails or does not serve the path. A single answer that says otherwise, and every
//! one that does not come, begins the wait anew, as does a start of the plugin.
//!
//! Whether a container still uses the GPU is not looked at. That is what the wait is for: it is longer than two rounds of
//! the kubelet's own loop (60 s each), which ends the containers of pods that are gone and then unprepares. A kubelet that
//! is itself away for longer ends them when it is back; until then they run on a GPU that nobody else can be given, since
//! it takes a kubelet to ask for that. What is left is the moment after its return, when a new pod may be prepared while
//! the old container is being ended. NVML's list of processes could narrow it, for containers that use the GPU just then.
//!
//! Records that are damaged, or that only a newer version of this driver understands, are left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::ops::Bound;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use super::telling::tell;
use crate::claim::{ClaimName, ClaimUid};
use crate::cluster::Cluster;
use crate::prepare::{self, Preparer};

/// For how long a claim must have been gone. More than two rounds of the kubelet's loop, with time for the second.
const GRACE: Duration = Duration::from_secs(180);

/// Between two questions about one claim.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// Between two claims that nobody suspects. An idle node makes at most one request a minute, of which the publisher
/// makes more than half.
const EVERY: Duration = Duration::from_secs(300);

/// How many claims an Event names; it has room for about 1000 characters, and names can have 300.
const NAMED: usize = 3;

/// Asks and releases, for as long as it runs.
pub(super) struct Collector {
    cluster: Cluster,
    preparer: Preparer,
    /// Where releases run, so that none is cut off midway at the end.
    tasks: TaskTracker,
    schedule: Schedule,
    released: Counter,
}

/// A claim that was released.
struct Release {
    uid: ClaimUid,
    name: ClaimName,
}

/// Which claim to ask for, and when. Knows neither clock nor API server.
#[derive(Debug)]
struct Schedule {
    /// When each was asked for last. Forgotten with the claim.
    asked: BTreeMap<ClaimUid, Instant>,
    /// Claims that have been gone in every answer since then.
    gone: BTreeMap<ClaimUid, Instant>,
    /// Claims in another's way.
    contested: BTreeSet<ClaimUid>,
    /// Whose turn it was.
    turn: Option<ClaimUid>,
    next_turn: Instant,
}

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Ask(ClaimUid),
    Wait(Instant),
}

// === impl Collector ===

impl Collector {
    /// One whose releases run in `tasks`, which are to be waited for at the end.
    pub(super) fn new(cluster: Cluster, preparer: Preparer, tasks: TaskTracker, registry: &mut Registry) -> Self {
        let released = Counter::default();
        registry.register(
            "gone_claims_released",
            "Claims that were released because the API server has had no such object for minutes",
            released.clone(),
        );
        Self { cluster, preparer, tasks, schedule: Schedule::new(Instant::now()), released }
    }

    pub(super) async fn run(self) {
        let (release, mut releases) = mpsc::unbounded_channel();
        let found = async move || {
            let mut found = Vec::new();
            releases.recv_many(&mut found, usize::MAX).await;
            found
        };
        let mut events = self.cluster.node_events("Release");
        let told = async move |note: &str| events.warn("GoneClaimReleased", note).await;
        tokio::join!(self.collect(release), tell(found, note, told));
    }

    async fn collect(mut self, released: mpsc::UnboundedSender<Release>) {
        loop {
            match self.schedule.next(&self.preparer.claims(), Instant::now()) {
                Next::Ask(claim) => {
                    if let Some(release) = self.ask(&claim).await {
                        // Its receiver lives as long as this does.
                        let _ = released.send(release);
                    }
                }
                Next::Wait(until) => {
                    tokio::select! {
                        contested = self.preparer.contested() => self.schedule.contest(contested),
                        () = sleep_until(until) => {}
                    }
                }
            }
        }
    }

    /// Asks for a claim, and releases it if it has been gone for long enough.
    async fn ask(&mut self, uid: &ClaimUid) -> Option<Release> {
        let name = self.preparer.name_of(uid).await;
        let gone = match &name {
            Some(name) => self.cluster.is_gone(name, uid).await,
            // Released meanwhile, or damaged.
            None => Ok(false),
        };
        if let Err(error) = &gone {
            debug!(claim.uid = %uid, error = error as &dyn std::error::Error, "cannot ask whether a claim is gone");
        }
        let now = Instant::now();
        let since = self.schedule.answered(uid, gone.unwrap_or_default(), now);
        let (claim, since) = (name?, since?);
        let wait = GRACE.saturating_sub(now - since);
        if !wait.is_zero() {
            if since == now {
                warn!(claim.uid = %uid, %claim, ?wait, "a prepared claim is gone; releasing it unless the kubelet does");
            }
            return None;
        }
        let released = self.tasks.spawn(self.preparer.unprepare(uid)).await;
        match released.unwrap_or(Err(prepare::Error::Internal)) {
            Ok(()) => {
                self.released.inc();
                info!(claim.uid = %uid, %claim, "released a claim that is gone");
                Some(Release { uid: uid.clone(), name: claim })
            }
            Err(error) => {
                warn!(claim.uid = %uid, %claim, %error, "cannot release a claim that is gone; trying again");
                None
            }
        }
    }
}

fn note(releases: &[Release]) -> String {
    let mut note = match releases.len() {
        1 => "released a claim that is gone and that the kubelet has not unprepared".to_owned(),
        many => format!("released {many} claims that are gone and that the kubelet has not unprepared"),
    };
    for Release { uid, name } in releases.iter().take(NAMED) {
        let _ = write!(note, "; {name} ({uid})");
    }
    if releases.len() > NAMED {
        let _ = write!(note, "; and {} more", releases.len() - NAMED);
    }
    note
}

// === impl Schedule ===

impl Schedule {
    fn new(now: Instant) -> Self {
        Self {
            asked: BTreeMap::new(),
            gone: BTreeMap::new(),
            contested: BTreeSet::new(),
            turn: None,
            next_turn: now + EVERY,
        }
    }

    /// Claims stand in another's way.
    fn contest(&mut self, claims: BTreeSet<ClaimUid>) {
        self.contested.extend(claims);
    }

    /// What to do, if these are the claims that hold anything.
    fn next(&mut self, held: &BTreeSet<ClaimUid>, now: Instant) -> Next {
        self.asked.retain(|claim, _| held.contains(claim));
        self.gone.retain(|claim, _| held.contains(claim));
        self.contested.retain(|claim| held.contains(claim));
        let pressing = self.contested.iter().chain(self.gone.keys());
        let due = pressing.map(|claim| (self.asked.get(claim).map_or(now, |asked| *asked + ASK_AGAIN), claim)).min();
        if let Some((due, claim)) = due.filter(|(due, _)| *due <= now.max(self.next_turn)) {
            return if due <= now { Next::Ask(claim.clone()) } else { Next::Wait(due) };
        }
        if self.next_turn > now {
            return Next::Wait(self.next_turn);
        }
        self.next_turn = now + EVERY;
        let after = self.turn.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        self.turn = held.range((after, Bound::Unbounded)).next().or(held.first()).cloned();
        self.turn.clone().map_or(Next::Wait(self.next_turn), Next::Ask)
    }

    /// Takes note of an answer; since when the claim has been gone, if it is.
    fn answered(&mut self, claim: &ClaimUid, gone: bool, now: Instant) -> Option<Instant> {
        self.contested.remove(claim);
        self.asked.insert(claim.clone(), now);
        if !gone {
            self.gone.remove(claim);
            return None;
        }
        Some(*self.gone.entry(claim.clone()).or_insert(now))
    }
}

#[cfg(test)]
mod tests;
