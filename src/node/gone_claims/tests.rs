use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use super::*;
use crate::cdi::{self, example::Machine as Host};
use crate::claim::Claim;
use crate::claim::example::{POOL, mk_claim, mk_node, mk_uid, mk_uuid};
use crate::cluster::fake::{Fake, Fault};
use crate::device::Node;
use crate::inventory::Views;

const MINUTE: Duration = Duration::from_secs(60);

fn held(claims: &[&str]) -> BTreeSet<ClaimUid> {
    claims.iter().map(|claim| mk_uid(claim)).collect()
}

fn ask(claim: &str) -> Next {
    Next::Ask(mk_uid(claim))
}

#[test]
fn claims_take_turns_and_none_is_asked_for_without_need() {
    let start = Instant::now();
    let mut schedule = Schedule::new(start);
    let claims = held(&["a", "b", "c"]);
    let mut now = start;
    for expected in ["a", "b", "c", "a"] {
        assert_eq!(schedule.next(&claims, now), Next::Wait(now + EVERY));
        now += EVERY;
        assert_eq!(schedule.next(&claims, now), ask(expected));
        schedule.answered(&mk_uid(expected), false, now);
    }
    // The next after one that is no more, and nobody if there is none.
    now += EVERY;
    assert_eq!(schedule.next(&held(&["c"]), now), ask("c"));
    now += EVERY;
    assert_eq!(schedule.next(&held(&[]), now), Next::Wait(now + EVERY));
}

#[test]
fn a_claim_in_the_way_is_asked_for_at_once_and_not_again_within_a_minute() {
    let start = Instant::now();
    let mut schedule = Schedule::new(start);
    let claims = held(&["a", "b"]);
    schedule.contest(held(&["b", "another"]));
    assert_eq!(schedule.next(&claims, start), ask("b"));
    assert_eq!(schedule.answered(&mk_uid("b"), false, start), None);
    assert_eq!(schedule.next(&claims, start), Next::Wait(start + EVERY));
    schedule.contest(held(&["b"]));
    assert_eq!(schedule.next(&claims, start), Next::Wait(start + ASK_AGAIN));
    assert_eq!(schedule.next(&claims, start + ASK_AGAIN), ask("b"));
}

#[test]
fn a_claim_is_gone_since_the_first_answer_with_which_all_later_ones_agree() {
    let start = Instant::now();
    let mut schedule = Schedule::new(start);
    let (claims, uid) = (held(&["a"]), mk_uid("a"));
    assert_eq!(schedule.answered(&uid, true, start), Some(start));
    assert_eq!(schedule.next(&claims, start), Next::Wait(start + ASK_AGAIN));
    assert_eq!(schedule.next(&claims, start + ASK_AGAIN), ask("a"));
    assert_eq!(schedule.answered(&uid, true, start + ASK_AGAIN), Some(start));
    // It was there, or nobody knows.
    assert_eq!(schedule.answered(&uid, false, start + 2 * ASK_AGAIN), None);
    assert_eq!(schedule.answered(&uid, true, start + 3 * ASK_AGAIN), Some(start + 3 * ASK_AGAIN));
    // It was unprepared meanwhile, and is forgotten.
    schedule.next(&held(&[]), start + 3 * ASK_AGAIN);
    assert_eq!(schedule.answered(&uid, true, start + 4 * ASK_AGAIN), Some(start + 4 * ASK_AGAIN));
}

/// A node with a collector at work, whose time flies.
struct Rig {
    fake: Fake,
    host: Host,
    _inventory: watch::Sender<Option<Arc<Node>>>,
    preparer: Preparer,
    released: Counter,
    tasks: TaskTracker,
    task: tokio::task::JoinHandle<()>,
}

// === impl Rig ===

impl Rig {
    /// With two GPUs.
    async fn start() -> Self {
        let (fake, host) = (Fake::new(), Host::new());
        let inventory = watch::Sender::new(Some(Arc::new(mk_node(2))));
        let settings = prepare::Settings {
            claims_dir: host.state("claims"),
            cdi_dir: host.state("cdi"),
            cdi_kind: cdi::Kind::claims_of("gpu.nvidia.com").unwrap(),
            sources: host.sources(),
            pool: POOL.to_owned(),
            boot_id: "boot".to_owned(),
        };
        let views = Views {
            current: inventory.subscribe(),
            looked: watch::Sender::new(None).subscribe(),
            failure: watch::Sender::new(None).subscribe(),
        };
        let preparer =
            Preparer::open(settings, prepare::Gpus::without_nvml(views), prepare::Metrics::default()).await.unwrap();
        let tasks = TaskTracker::new();
        let collector = Collector::new(fake.cluster(), preparer.clone(), tasks.clone(), &mut Registry::default());
        let released = collector.released.clone();
        let task = tokio::spawn(collector.run());
        Self { fake, host, _inventory: inventory, preparer, released, tasks, task }
    }

    /// Prepares a claim for a GPU; it exists.
    async fn prepare(&self, claim: &str, gpu: &str) {
        self.set(claim, Some(json!({"metadata": {"name": claim, "uid": claim}})));
        self.preparer.prepare(mk_claim(claim, &[("main", gpu)])).await.unwrap();
    }

    fn set(&self, claim: &str, object: Option<Value>) {
        let path = path(claim);
        self.fake.change(|state| match object {
            Some(object) => _ = state.claims.insert(path, object),
            None => _ = state.claims.remove(&path),
        });
    }

    fn reads(&self, claim: &str) -> usize {
        self.fake.look(|state| state.count(&format!("GET /apis/resource.k8s.io/v1/{}", path(claim))))
    }

    fn is_held(&self, claim: &str) -> bool {
        let record = self.host.state("claims").join(format!("{claim}.json"));
        assert_eq!(record.exists(), self.preparer.claims().contains(&mk_uid(claim)));
        record.exists()
    }
}

fn path(claim: &str) -> String {
    format!("namespaces/team/resourceclaims/{claim}")
}

fn wants_gpu_0(claim: &str) -> Claim {
    mk_claim(claim, &[("main", "gpu-0")])
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_gone_and_in_the_way_is_released_after_three_minutes_and_not_before() {
    let rig = Rig::start().await;
    rig.prepare("a", "gpu-0").await;
    rig.set("a", None);
    let start = Instant::now();
    // As the kubelet does it: a try of 30 s, then a minute's pause.
    while let Err(error) = rig.preparer.prepare(wants_gpu_0("b")).await {
        assert_eq!(
            error.to_string(),
            "gpu-0 is in use by claim team/a until that claim's pods are gone from this node"
        );
        assert!(start.elapsed() < GRACE + MINUTE, "{:?}", start.elapsed());
        assert!(rig.reads("a") >= 1, "it is asked for promptly");
        sleep(MINUTE).await;
    }
    assert!(start.elapsed() >= GRACE && !rig.is_held("a"), "{:?}", start.elapsed());
    assert_eq!((rig.reads("a"), rig.released.get()), (4, 1));
    rig.fake.until(|state| !state.events.is_empty()).await;
    let event = rig.fake.look(|state| state.events[0].clone());
    assert_eq!((event["reason"].as_str(), event["action"].as_str()), (Some("GoneClaimReleased"), Some("Release")));
    let note = "released a claim that is gone and that the kubelet has not unprepared; team/a (a)";
    assert_eq!(event["note"], note);
    // The kubelet finds nothing to do, should it ask after all.
    rig.preparer.unprepare(&mk_uid("a")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_when_a_claim_is_released_gets_its_gpu() {
    let rig = Rig::start().await;
    rig.prepare("a", "gpu-0").await;
    rig.set("a", None);
    rig.preparer.prepare(wants_gpu_0("b")).await.unwrap_err();
    sleep(Duration::from_secs(135)).await;
    let start = Instant::now();
    rig.preparer.prepare(wants_gpu_0("b")).await.unwrap();
    assert!(start.elapsed() <= Duration::from_secs(15), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_at_work_goes_on_when_the_collector_ends() {
    let rig = Rig::start().await;
    rig.prepare("a", "gpu-0").await;
    rig.set("a", None);
    let at_work = rig.preparer.hold(&[mk_uuid(0)].into()).await;
    let start = Instant::now();
    while rig.tasks.is_empty() {
        assert!(start.elapsed() < 2 * EVERY, "it is released");
        sleep(MINUTE / 60).await;
    }
    rig.task.abort();
    assert!(rig.is_held("a"));
    drop(at_work);
    rig.tasks.close();
    rig.tasks.wait().await;
    assert!(!rig.is_held("a"));
}

#[tokio::test(start_paused = true)]
async fn every_release_is_told_of_though_several_come_within_a_minute() {
    let rig = Rig::start().await;
    for (claim, gpu) in [("a", "gpu-0"), ("b", "gpu-1")] {
        rig.prepare(claim, gpu).await;
        rig.set(claim, None);
        rig.preparer.prepare(mk_claim("c", &[("main", gpu)])).await.unwrap_err();
    }
    while rig.is_held("a") || rig.is_held("b") {
        sleep(MINUTE / 6).await;
    }
    sleep(5 * MINUTE).await;
    let events = rig.fake.look(|state| state.events.clone());
    let notes: String = events.iter().map(|event| event["note"].to_string()).collect();
    assert!(notes.contains("team/a (a)") && notes.contains("team/b (b)"), "{notes}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_nobody_misses_is_found_gone_in_its_turn() {
    let rig = Rig::start().await;
    rig.prepare("a", "gpu-0").await;
    rig.prepare("b", "gpu-1").await;
    rig.set("b", Some(json!({"metadata": {"name": "b", "uid": "a new one"}})));
    sleep(2 * EVERY + 2 * MINUTE).await;
    assert!(rig.is_held("a") && rig.is_held("b"));
    sleep(2 * MINUTE).await;
    assert!(rig.is_held("a") && !rig.is_held("b"));
}

#[tokio::test(start_paused = true)]
async fn an_idle_node_is_quiet() {
    let rig = Rig::start().await;
    rig.prepare("a", "gpu-0").await;
    rig.prepare("b", "gpu-1").await;
    sleep(24 * 60 * MINUTE).await;
    let requests = rig.fake.look(|state| state.log.len());
    assert!((280..=290).contains(&requests), "{requests} requests a day");
    assert!(rig.is_held("a") && rig.is_held("b"));
}

#[tokio::test(start_paused = true)]
async fn no_failure_of_the_api_server_releases_a_claim() {
    let faults: [fn() -> Fault; 4] = [
        || Fault::Refuse,
        || Fault::Hang,
        || Fault::Answer { code: 404, headers: &[], body: "404 page not found\n" },
        || Fault::Answer { code: 503, headers: &[], body: "" },
    ];
    for fault in faults {
        let rig = Rig::start().await;
        rig.prepare("a", "gpu-0").await;
        rig.set("a", None);
        rig.fake.on_request(move |_, _| Some(fault()));
        rig.preparer.prepare(wants_gpu_0("b")).await.unwrap_err();
        sleep(60 * MINUTE).await;
        assert!(rig.is_held("a"));
    }
}

#[tokio::test(start_paused = true)]
async fn one_answer_that_does_not_agree_begins_the_wait_anew() {
    let rig = Rig::start().await;
    rig.prepare("a", "gpu-0").await;
    rig.set("a", None);
    // The second question gets no answer, and is the last of those that follow the first.
    rig.fake.on_request(|state, line| (state.count(line) == 2 && line.ends_with("/a")).then_some(Fault::Refuse));
    rig.preparer.prepare(wants_gpu_0("b")).await.unwrap_err();
    let start = Instant::now();
    sleep(4 * MINUTE).await;
    assert_eq!((rig.reads("a"), rig.is_held("a")), (2, true));
    while rig.is_held("a") {
        sleep(MINUTE / 6).await;
    }
    assert!(start.elapsed() >= EVERY + 2 * MINUTE, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn records_of_newer_versions_are_left_alone() {
    let rig = Rig::start().await;
    rig.prepare("a", "gpu-0").await;
    let record = rig.host.state("claims").join("a.json");
    let text = std::fs::read_to_string(&record).unwrap();
    std::fs::write(&record, text.replacen("\"version\": 1", "\"version\": 99", 1)).unwrap();
    rig.set("a", None);
    let error = rig.preparer.prepare(wants_gpu_0("a")).await.unwrap_err();
    assert!(matches!(error, prepare::Error::Newer { .. }), "{error}");
    rig.preparer.prepare(wants_gpu_0("b")).await.unwrap_err();
    sleep(60 * MINUTE).await;
    assert!(record.exists());
    assert_eq!(rig.reads("a"), 0);
}
