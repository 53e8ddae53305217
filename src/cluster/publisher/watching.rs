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
/// upgrade, and is asked anew for the versions that it serves; one that does not end it has stalled.
const WATCH_SLACK: u64 = 15;

/// Why a watch ended.
pub(super) enum Wake {
    WantedChanged,
    /// Somebody touched our slices.
    Disturbed,
    /// Its time was up.
    Expired,
    /// The server ended it before.
    Ended,
}

/// Watches from where a list ended. That something else is wanted is left for the next look to find.
pub(super) async fn wait(
    cluster: &Cluster,
    mut wanted: watch::Receiver<Option<Pool>>,
    version: Version,
    resource_version: &str,
) -> Result<Wake, RequestError> {
    let [min, max] = WATCH_SECONDS;
    let seconds = min + random() % (max - min);
    let selector = cluster.selector();
    let path = version.path(&format!(
        "resourceslices?watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}\
         &resourceVersion={resource_version}&{selector}"
    ));
    let start = Instant::now();
    let [early, late] = [seconds.saturating_sub(WATCH_SLACK), seconds + WATCH_SLACK].map(Duration::from_secs);
    let opened = tokio::select! {
        _ = wanted.changed() => return Ok(Wake::WantedChanged),
        opened = cluster.requests.watch(&path) => opened,
    };
    let mut events = cluster.served(version, opened)?;
    tokio::select! {
        _ = wanted.changed() => Ok(Wake::WantedChanged),
        disturbed = timeout_at(start + late, disturbed(&mut events)) => match disturbed {
            Ok(Ok(true)) => Ok(Wake::Disturbed),
            Ok(Ok(false)) if start.elapsed() < early => Ok(Wake::Ended),
            Ok(Ok(false)) | Err(_) => Ok(Wake::Expired),
            Ok(Err(error)) => Err(error),
        },
    }
}

/// Reads until an event says that a slice has changed; false when the watch has ended before.
async fn disturbed(events: &mut Events) -> Result<bool, RequestError> {
    while let Some(event) = events.next().await? {
        if event["type"] != "BOOKMARK" {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A number that differs from node to node and from time to time; the standard library seeds its hashers so.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}
