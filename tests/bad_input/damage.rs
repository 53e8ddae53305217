//! Who is told of a damaged claim record, besides the log: people who look at the node, and those who watch metrics.

use std::fs;
use std::time::Duration;

use fake_node::api::Kind;
use fake_node::kubelet::ClaimRef;
use fake_node::node::NODE;
use fake_node::plugin::Plugin;
use serde_json::Value;

use super::machine::Machine;

/// Longer than a test waits on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn damage(machine: &Machine, claim: &ClaimRef) {
    fs::write(machine.record(claim), "{\"version\": 1, \"bootId\"").unwrap();
}

/// Where the record of a claim is put aside.
fn aside(machine: &Machine, claim: &ClaimRef) -> String {
    machine.claims_dir().join(format!("quarantine/{}.json", claim.uid)).display().to_string()
}

/// The Events about damaged records, as soon as there are so many.
async fn events(machine: &Machine, count: usize) -> Vec<Value> {
    let look = |_: &_| {
        let about = |event: &Value| event["reason"] == "ClaimRecordDamaged" && event["involvedObject"]["name"] == NODE;
        let events: Vec<_> = machine.node.api.list(Kind::Event).into_iter().filter(about).collect();
        (events.len() >= count).then_some(events)
    };
    let events = tokio::time::timeout(PATIENCE, machine.node.api.until(look)).await.expect("Events about the damage");
    assert_eq!(events.len(), count);
    events
}

async fn damaged_records(plugin: &mut Plugin) -> String {
    let (_, metrics) = plugin.get("/metrics").await.unwrap();
    let name = "nvidia_dra_damaged_claim_records_total ";
    metrics.lines().find_map(|line| line.strip_prefix(name)).expect("the metric").to_owned()
}

#[tokio::test]
async fn a_damaged_record_is_told_by_an_event_a_metric_and_the_log_at_start_and_later() {
    let machine = Machine::builtin("hgx-a100-4gpu").await;
    let mut plugin = machine.start_ready().await;
    assert_eq!(damaged_records(&mut plugin).await, "0");
    let [one, two, later, whole] = [("one", "gpu-0"), ("two", "gpu-1"), ("later", "gpu-2"), ("whole", "gpu-3")]
        .map(|(n, g)| machine.claim(n, &[g]));
    let all = [&one, &two, &later, &whole].map(Clone::clone);
    assert_eq!(machine.prepare(&all).await, vec![Ok(()); 4]);
    plugin.terminate().await.unwrap();

    damage(&machine, &one);
    damage(&machine, &two);
    let mut plugin = machine.start_ready().await;
    let [event] = events(&machine, 1).await.try_into().unwrap();
    let message = event["message"].as_str().unwrap();
    assert!(message.starts_with("2 claim records were damaged and are out of use. "), "{message}");
    assert!(message.contains("Check this node's disk"), "{message}");
    for claim in [&one, &two] {
        let place = format!("; {}: it is not a claim record: EOF while parsing", aside(&machine, claim));
        assert!(message.contains(&place) && fs::exists(aside(&machine, claim)).unwrap(), "{message}");
    }
    assert_eq!((&event["type"], &event["action"]), (&"Warning".into(), &"Read".into()));
    assert_eq!(damaged_records(&mut plugin).await, "2");

    assert_eq!(machine.prepare(&[one, two, whole.clone()]).await, vec![Ok(()); 3], "no other claim is harmed");
    let log = plugin.log().unwrap();
    assert_eq!(log.matches("moved a damaged claim record aside").count(), 2, "{log}");
    plugin.terminate().await.unwrap();

    // While it runs. Another process, because one that has just written an Event waits for a minute with the next.
    let mut plugin = machine.start_ready().await;
    damage(&machine, &later);
    assert_eq!(machine.unprepare_one(&later).await, Ok(()));
    let second = events(&machine, 2).await.into_iter().find(|second| second["metadata"] != event["metadata"]).unwrap();
    let message = second["message"].as_str().unwrap();
    assert!(
        message.starts_with("a claim record was damaged") && message.contains(&aside(&machine, &later)),
        "{message}"
    );
    assert_eq!(damaged_records(&mut plugin).await, "1");
    assert_eq!(machine.prepare_one(&whole).await, Ok(()), "no other claim is harmed");
    assert!(plugin.terminate().await.unwrap().success());
}
