//! Claim records that were damaged: a metric at once, and an Event about the node for whoever must look at its disk.
//!
//! What damages files is a power cut more often than not, and after one the network comes up later than the plugin.

use std::fmt::Write;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

use super::telling::tell;
use crate::cluster::Cluster;
use crate::prepare::{DamagedRecord, Preparer};

/// How many records an Event names; it has room for about 1000 characters.
const NAMED: usize = 4;

/// Reports those that were found at start, and those that are found later. Runs until it is dropped.
pub(super) fn report(
    preparer: Preparer,
    cluster: &Cluster,
    registry: &mut Registry,
) -> impl Future<Output = ()> + use<> {
    let count: Counter = Counter::default();
    let help = "Claim records that could not be read and are out of use";
    registry.register("damaged_claim_records", help, count.clone());
    let mut events = cluster.node_events("Read");
    let found = async move || {
        let records = preparer.damaged().await;
        count.inc_by(records.len() as u64);
        records
    };
    tell(found, note, async move |note: &str| events.warn("ClaimRecordDamaged", note).await)
}

fn note(records: &[DamagedRecord]) -> String {
    let mut note = match records.len() {
        1 => "a claim record was damaged and is out of use".to_owned(),
        many => format!("{many} claim records were damaged and are out of use"),
    };
    note.push_str(". Check this node's disk");
    for DamagedRecord { file, reason, gpus } in records.iter().take(NAMED) {
        let _ = write!(note, "; {}: {reason}", file.display());
        // Which they are is in the log.
        let _ = match gpus.len() {
            0 => write!(note, " (it may have had a GPU, which is not known to be in use any more)"),
            count => write!(note, " (its claim keeps its GPUs, {count}, until unprepare)"),
        };
    }
    if records.len() > NAMED {
        let _ = write!(note, "; and {} more", records.len() - NAMED);
    }
    note
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: usize) -> DamagedRecord {
        let file = format!("/plugin/claims/quarantine/{number}.json").into();
        let gpus = (0..number).map(|gpu| crate::claim::example::mk_uuid(gpu.try_into().unwrap())).collect();
        DamagedRecord { file, reason: "it is empty".to_owned(), gpus }
    }

    #[test]
    fn an_event_says_where_the_records_are_and_what_to_do() {
        assert_eq!(
            note(&[record(0)]),
            "a claim record was damaged and is out of use. Check this node's disk; /plugin/claims/quarantine/0.json: it is \
             empty (it may have had a GPU, which is not known to be in use any more)"
        );
        let records: Vec<_> = (0..6).map(record).collect();
        let several = note(&records);
        assert!(several.starts_with("6 claim records were damaged and are out of use. "), "{several}");
        let end = "/3.json: it is empty (its claim keeps its GPUs, 3, until unprepare); and 2 more";
        assert!(several.ends_with(end) && !several.contains("/4.json"), "{several}");
    }
}
