//! Claim records that were damaged: a metric at once, and an Event about the node for whoever must look at its disk.
//!
//! ```text
//!  found ──▶ counted ──▶ Event, of all that there are ──▶ the API server took it: forgotten
//!                            ▲                          └▶ not: again, with those that came since
//!                            └──────────── a minute ────────────┘
//! ```
//!
//! What damages files is a power cut more often than not, and after one the network comes up later than the plugin. So
//! the Event is tried until the API server has taken it.

use std::fmt::Write;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::time::{Instant, sleep_until};

use crate::cluster::{Cluster, NodeEvents};
use crate::prepare::{DamagedRecord, Preparer};

/// Between two Events: [`NodeEvents`] leaves out what comes faster.
const BETWEEN: Duration = NodeEvents::AT_MOST_EVERY;

/// How many records an Event names; it has room for about 1000 characters.
const NAMED: usize = 4;

/// Reports those that were found at start, and those that are found later. Runs until it is dropped.
pub(super) fn report(
    preparer: Preparer,
    cluster: &Cluster,
    registry: &mut Registry,
) -> impl Future<Output = ()> + use<> {
    let count = Counter::default();
    let help = "Claim records that could not be read and were moved aside";
    registry.register("damaged_claim_records", help, count.clone());
    let mut events = cluster.node_events("Read");
    let found = async move || preparer.damaged().await;
    let told = async move |note: &str| events.warn("ClaimRecordDamaged", note).await;
    pass_on(found, count, told)
}

/// Takes what `found` waits for to `told`, which answers whether it got through.
async fn pass_on(
    mut found: impl AsyncFnMut() -> Vec<DamagedRecord>,
    count: Counter,
    mut told: impl AsyncFnMut(&str) -> bool,
) {
    let mut untold = Vec::new();
    let mut next = Instant::now();
    loop {
        tokio::select! {
            mut records = found() => {
                count.inc_by(records.len() as u64);
                untold.append(&mut records);
            }
            () = sleep_until(next), if !untold.is_empty() => {
                if told(&note(&untold)).await {
                    untold.clear();
                }
                next = Instant::now() + BETWEEN;
            }
        }
    }
}

fn note(records: &[DamagedRecord]) -> String {
    let mut note = match records.len() {
        1 => "a claim record was damaged and is out of use".to_owned(),
        many => format!("{many} claim records were damaged and are out of use"),
    };
    note.push_str("; what the claim had is forgotten, other claims are not affected. Check this node's disk");
    for DamagedRecord { file, reason } in records.iter().take(NAMED) {
        let _ = write!(note, "; {}: {reason}", file.display());
    }
    if records.len() > NAMED {
        let _ = write!(note, "; and {} more", records.len() - NAMED);
    }
    note
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use tokio::time::sleep;

    use super::*;

    fn record(number: usize) -> DamagedRecord {
        let file = format!("/plugin/claims/quarantine/{number}.json").into();
        DamagedRecord { file, reason: "it is empty".to_owned() }
    }

    #[test]
    fn an_event_says_where_the_records_are_and_what_to_do() {
        assert_eq!(
            note(&[record(0)]),
            "a claim record was damaged and is out of use; what the claim had is forgotten, other claims are not \
             affected. Check this node's disk; /plugin/claims/quarantine/0.json: it is empty"
        );
        let records: Vec<_> = (0..6).map(record).collect();
        let several = note(&records);
        assert!(several.starts_with("6 claim records were damaged and are out of use; "), "{several}");
        assert!(several.ends_with("/3.json: it is empty; and 2 more") && !several.contains("/4.json"), "{several}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_comes_once_a_minute_until_it_is_taken_and_the_count_at_once() {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let found = async move || vec![receiver.recv().await.unwrap()];
        let (tell, mut told) = mpsc::unbounded_channel();
        let start = Instant::now();
        let mut attempts = 0;
        let tell = async move |note: &str| {
            attempts += 1;
            tell.send((start.elapsed().as_secs(), note.split(' ').next().unwrap().to_owned())).unwrap();
            attempts > 2
        };
        let count = Counter::default();
        let _task = tokio::spawn(pass_on(found, count.clone(), tell));
        sender.send(record(0)).unwrap();
        assert_eq!(told.recv().await.unwrap(), (0, "a".to_owned()));
        sleep(BETWEEN / 2).await;
        sender.send(record(1)).unwrap();
        sleep(Duration::from_millis(1)).await;
        assert_eq!(count.get(), 2);
        assert_eq!(told.recv().await.unwrap(), (60, "2".to_owned()));
        assert_eq!(told.recv().await.unwrap(), (120, "2".to_owned()));
        sender.send(record(2)).unwrap();
        assert_eq!(told.recv().await.unwrap(), (180, "a".to_owned()));
        sleep(10 * BETWEEN).await;
        assert!(told.try_recv().is_err());
    }
}
