//! Waits for a reason to look at the slices again.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::cluster::Cluster;
use crate::cluster::request::{Events, RequestError};
use crate::cluster::version::Version;
use crate::slice::Pool;

/// How long a watch lasts, drawn anew each time so that the nodes of a cluster do not list all at once. Listing again
/// after that also finds what a stalled watch did not report.
const WATCH_SECONDS: [u64; 2] = [240, 360];

/// What the server may be early or late with ending a watch. One that ends it before that is going down, maybe for an
/// upgrade, or something stands before it that ends watches; one that does not end it has stalled.
const WATCH_SLACK: Duration = Duration::from_secs(15);

/// Of so many watches in a row that end early, one at least is followed by a look: with one that is cut every minute and
/// opened again a moment later, that makes less than a request a minute.
const CUTS: u32 = 128;

/// Why a watch ended.
pub(super) enum Wake {
    WantedChanged,
    /// Somebody touched our slices.
    Disturbed,
    /// Its time was up.
    Expired,
    /// It ended before.
    Ended,
}

/// Counts watches that ended early, one after the other.
#[derive(Debug, Default)]
pub(super) struct Cuts(u32);

// === impl Cuts ===

impl Cuts {
    /// One more. True if it is time for a look: the server may have been upgraded. Something that cuts every watch is no
    /// reason for one each time, because a watch goes on where the last one ended.
    pub(super) fn count(&mut self) -> bool {
        self.0 = self.0.wrapping_add(1);
        self.0.is_power_of_two() || self.0.is_multiple_of(CUTS)
    }
}

/// Watches from a resource version on, and moves it on as far as the server says that nothing has happened. That
/// something else is wanted is left for the next look to find.
pub(super) async fn wait(
    cluster: &Cluster,
    mut wanted: watch::Receiver<Option<Pool>>,
    version: Version,
    resource_version: &mut String,
) -> Result<Wake, RequestError> {
    let [min, max] = WATCH_SECONDS;
    let time = cluster.clock.real(Duration::from_secs(min + random() % (max - min)));
    let seconds = time.as_secs().max(1);
    let selector = cluster.selector();
    let path = version.path(&format!(
        "resourceslices?watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}\
         &resourceVersion={resource_version}&{selector}"
    ));
    let start = Instant::now();
    let (time, slack) = (Duration::from_secs(seconds), cluster.clock.real(WATCH_SLACK));
    let opened = tokio::select! {
        _ = wanted.changed() => return Ok(Wake::WantedChanged),
        opened = cluster.requests.watch(&path) => opened,
    };
    let mut events = cluster.served(version, opened)?;
    tokio::select! {
        _ = wanted.changed() => Ok(Wake::WantedChanged),
        disturbed = timeout_at(start + time + slack, disturbed(&mut events, resource_version)) => match disturbed {
            Ok(Ok(true)) => Ok(Wake::Disturbed),
            // However it ends: whether the server can still be reached is for the next request to say.
            Ok(Ok(false) | Err(RequestError::Unreachable(_))) if start.elapsed() + slack < time => Ok(Wake::Ended),
            Ok(Ok(false) | Err(RequestError::Unreachable(_))) | Err(_) => Ok(Wake::Expired),
            Ok(Err(error)) => Err(error),
        },
    }
}

/// Reads until an event says that a slice has changed; false when the watch has ended before.
async fn disturbed(events: &mut Events, resource_version: &mut String) -> Result<bool, RequestError> {
    while let Some(event) = events.next().await? {
        if event["type"] != "BOOKMARK" {
            return Ok(true);
        }
        if let Some(reached) = event["object"]["metadata"]["resourceVersion"].as_str() {
            reached.clone_into(resource_version);
        }
    }
    Ok(false)
}

/// A number that differs from node to node and from time to time; the standard library seeds its hashers so.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}
