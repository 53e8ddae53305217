//! What events and probes add up to.

mod properties;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::cause::KINDS;
use super::ledger::SETTLE;
use super::*;
use crate::device::mig::{ComputeInstance, GpuInstance, Placement};
use crate::device::{self, DeviceName, Driver, GpuUuid, Mig, MigUuid, Node, Partitioning, PciAddress};

const DRIVER: &str = "gpu.nvidia.com";

/// A GPU that says that it is well.
const WELL: Reading = Reading {
    recovery: Some(Recovery::NotNeeded),
    row_remap_failure: Some(false),
    row_remap_pending: Some(false),
    uncorrectable: Some(false),
    fabric: Some(Fabric::Healthy),
    links_down: Some(false),
};

/// The same of a driver that does not know recovery actions.
const OLD: Reading = Reading { recovery: Some(Recovery::NotReported), ..WELL };

/// A ledger, and seconds since it began.
struct Scene {
    ledger: Ledger,
    start: Instant,
    gpu: GpuUuid,
}

impl Scene {
    fn new() -> Self {
        Self::with_policy("")
    }

    /// A GPU that was probed and is well.
    fn with_policy(rules: &str) -> Self {
        let rules = rules.split_whitespace().map(|rule| rule.parse::<Rule>().unwrap());
        let ledger = Ledger::new(rules.collect());
        let mut scene = Self { ledger, start: Instant::now(), gpu: GpuUuid::parse("GPU-1").unwrap() };
        scene.answers(0, WELL);
        scene
    }

    fn at(&self, seconds: u64) -> Instant {
        self.start + Duration::from_secs(seconds)
    }

    fn event(&mut self, seconds: u64, cause: impl Into<Cause>, place: Place) -> Reach {
        let at = self.at(seconds);
        self.ledger.event(&self.gpu, Event { cause: Some(cause.into()), place }, at)
    }

    fn xid(&mut self, seconds: u64, number: u64) -> Reach {
        self.event(seconds, Cause::Xid(Xid::new(number)), Place::Gpu)
    }

    fn probe(&mut self, seconds: u64, outcome: Outcome) {
        let at = self.at(seconds);
        self.ledger.probe(&self.gpu, outcome, at);
    }

    fn answers(&mut self, seconds: u64, reading: Reading) {
        self.probe(seconds, Outcome::Answered(reading));
    }

    fn verdict(&self) -> Verdict {
        self.ledger.verdict(&self.gpu, None)
    }

    fn level(&self) -> Level {
        self.verdict().level
    }

    fn taints(&self) -> Vec<String> {
        let taints = self.verdict().taints(DRIVER);
        taints.iter().map(|taint| format!("{}={}:{:?}", taint.key, taint.value, taint.effect)).collect()
    }

    /// The MIG device in GPU instance `gpu`, compute instance `compute`.
    fn part(&self, gpu: u32, compute: u32) -> Level {
        self.ledger.verdict(&self.gpu, Some(&mig_uuid(gpu, compute))).level
    }

    fn look(&mut self, instances: &[(u32, &[u32])]) {
        let compute = |gpu: u32, ids: &[u32]| {
            ids.iter().map(|id| ComputeInstance { id: *id, slices: 1, uuid: mig_uuid(gpu, *id) }).collect()
        };
        let instance = |(id, ids): &(u32, &[u32])| GpuInstance {
            id: *id,
            profile: 19,
            placement: Placement { start: *id, size: 1 },
            compute: compute(*id, ids),
            foreign: false,
        };
        let instances = instances.iter().map(instance).collect();
        let mig = Mig { capable: true, enabled: true, instances, ..Mig::default() };
        self.ledger.look(&Node { driver: Driver::default(), gpus: vec![gpu(self.gpu.clone(), mig)], absent: vec![] });
    }
}

fn mig_uuid(gpu: u32, compute: u32) -> MigUuid {
    MigUuid::parse(&format!("MIG-{gpu}-{compute}")).unwrap()
}

fn gpu(uuid: GpuUuid, mig: Mig) -> device::Gpu {
    device::Gpu {
        name: DeviceName::gpu(0),
        uuid,
        minor: 0,
        pci: PciAddress { domain: 0, bus: 1, device: 0, function: 0 },
        product_name: None,
        brand: None,
        architecture: None,
        cuda_compute_capability: None,
        memory_bytes: None,
        addressing_mode: None,
        mig,
        partitioning: Partitioning::Static,
        links: vec![],
        fabric: None,
        place: device::Place::default(),
        has_node: true,
    }
}

#[test]
fn a_gpu_that_nobody_has_probed_is_not_known() {
    let ledger = Ledger::default();
    let verdict = ledger.verdict(&GpuUuid::parse("GPU-1").unwrap(), None);
    assert_eq!((verdict.level, verdict.message().as_str()), (Level::Unknown, "not probed yet"));
    assert_eq!(verdict.taints(DRIVER), []);
}

#[test]
fn a_fatal_xid_stays_through_a_harmless_one_until_a_probe_is_good() {
    let mut scene = Scene::new();
    assert_eq!(scene.level(), Level::Healthy);
    assert_eq!(scene.xid(10, 79), Reach::Gpu);
    assert_eq!(scene.xid(11, 43), Reach::Nothing);
    assert_eq!(scene.taints(), ["gpu.nvidia.com/xid=79:NoSchedule"]);
    scene.probe(20, Outcome::Lost);
    assert_eq!(scene.taints(), ["gpu.nvidia.com/xid=79:NoSchedule", "gpu.nvidia.com/gpu-lost=:NoSchedule"]);
    let verdict = scene.verdict();
    assert_eq!((verdict.level, verdict.since), (Level::Unhealthy, Some(scene.at(10))));
    let message = "XID 79: the GPU has fallen off the bus; the GPU is lost: it cannot be reached over the bus";
    assert_eq!(verdict.message(), message);
    scene.answers(30, WELL);
    assert_eq!(scene.level(), Level::Healthy);
    assert_eq!((scene.taints(), scene.verdict().message()), (vec![], String::new()));
}

#[test]
fn a_probe_that_finds_a_recovery_action_keeps_the_xid_until_none_is_due() {
    let mut scene = Scene::new();
    scene.xid(10, 119);
    let reset = Action::new(1).unwrap();
    scene.answers(60, Reading { recovery: Some(Recovery::Needed(reset)), ..WELL });
    let both = ["gpu.nvidia.com/xid=119:NoSchedule", "gpu.nvidia.com/recovery-action=reset:NoSchedule"];
    assert_eq!(scene.taints(), both);
    scene.answers(70, Reading { recovery: None, ..WELL });
    assert_eq!(scene.taints(), both, "what cannot be read is no news");
    scene.answers(80, Reading { recovery: Action::new(2).map(Recovery::Needed), ..WELL });
    assert_eq!(scene.taints()[1], "gpu.nvidia.com/recovery-action=reboot:NoSchedule");
    scene.answers(90, WELL);
    assert_eq!(scene.taints(), Vec::<String>::new());
}

#[test]
fn a_probe_takes_back_an_event_only_when_it_has_settled() {
    let settle = SETTLE.as_secs();
    let mut scene = Scene::new();
    scene.xid(10, 48);
    scene.answers(5, WELL);
    scene.answers(10 + settle - 1, WELL);
    assert_eq!(scene.level(), Level::Unhealthy, "a probe from before it, and one too soon");
    scene.xid(20, 48);
    scene.answers(10 + settle, WELL);
    assert_eq!(scene.level(), Level::Unhealthy, "it came again");
    assert_eq!(scene.verdict().since, Some(scene.at(10)), "it keeps its date");
    scene.answers(20 + settle, WELL);
    assert_eq!(scene.level(), Level::Healthy);
}

#[test]
fn without_recovery_actions_only_a_gpu_that_was_away_is_rid_of_a_fatal_xid() {
    for (away, comes_back) in [(Outcome::Silent, false), (Outcome::Closed, true), (Outcome::Lost, true)] {
        let mut scene = Scene::new();
        scene.xid(10, 119);
        scene.xid(10, 94);
        scene.answers(100, OLD);
        assert_eq!(scene.taints(), ["gpu.nvidia.com/xid=119:NoSchedule"], "94 is over when the GPU answers");
        scene.probe(110, away);
        scene.answers(120, OLD);
        assert_eq!(scene.level() == Level::Healthy, comes_back, "{away:?}");
    }
}

#[test]
fn a_gpu_that_comes_back_keeps_what_it_still_says_and_what_came_since() {
    let mut scene = Scene::new();
    let worn = Reading { row_remap_failure: Some(true), uncorrectable: Some(true), ..WELL };
    scene.answers(10, worn);
    scene.probe(20, Outcome::Closed);
    scene.xid(31, 95);
    scene.answers(30, Reading { uncorrectable: Some(false), ..worn });
    assert_eq!(scene.taints(), ["gpu.nvidia.com/xid=95:NoSchedule", "gpu.nvidia.com/row-remap=failure:NoSchedule"]);
    let failure = &scene.verdict().findings[1];
    assert_eq!((failure.cause, failure.since), (Kind::RowRemapFailure.into(), scene.at(10)));
}

#[test]
fn each_kind_that_a_probe_sees_comes_and_goes_by_it_alone() {
    let yes = Some(true);
    for (reading, kind, level) in [
        (Reading { row_remap_failure: yes, ..WELL }, Kind::RowRemapFailure, Level::Unhealthy),
        (Reading { row_remap_pending: yes, ..WELL }, Kind::RowRemapPending, Level::Degraded),
        (Reading { uncorrectable: yes, ..WELL }, Kind::Ecc, Level::Degraded),
        (Reading { links_down: yes, ..WELL }, Kind::LinksDown, Level::Degraded),
        (Reading { fabric: Some(Fabric::Unhealthy), ..WELL }, Kind::FabricUnhealthy, Level::Unhealthy),
        (Reading { fabric: Some(Fabric::Limited), ..WELL }, Kind::FabricLimited, Level::Degraded),
    ] {
        let mut scene = Scene::new();
        scene.answers(10, reading);
        scene.answers(20, Reading::default());
        scene.answers(30, reading);
        let verdict = scene.verdict();
        let causes: Vec<_> = verdict.findings.iter().map(|finding| finding.cause).collect();
        assert_eq!((verdict.level, verdict.since, &causes[..]), (level, Some(scene.at(10)), &[kind.into()][..]));
        scene.answers(40, WELL);
        assert_eq!(scene.level(), Level::Healthy, "{kind:?}");
    }
}

#[test]
fn a_silent_gpu_is_unknown_and_not_acquitted() {
    let mut scene = Scene::new();
    scene.probe(10, Outcome::Silent);
    assert_eq!(
        (scene.level(), scene.taints()),
        (Level::Unknown, vec!["gpu.nvidia.com/unmonitored=silent:None".into()])
    );
    scene.xid(11, 62);
    assert_eq!(scene.level(), Level::Unhealthy);
    scene.answers(20, WELL);
    assert_eq!(scene.taints(), ["gpu.nvidia.com/xid=62:NoSchedule"]);
}

#[test]
fn a_gpu_without_events_is_degraded_until_it_has_them() {
    let mut scene = Scene::new();
    scene.ledger.watched(&scene.gpu, false, scene.at(10));
    scene.probe(20, Outcome::Closed);
    scene.answers(100, WELL);
    assert_eq!(scene.taints(), ["gpu.nvidia.com/unmonitored=:None"]);
    assert_eq!(scene.level(), Level::Degraded);
    scene.ledger.watched(&scene.gpu, true, scene.at(110));
    assert_eq!(scene.level(), Level::Healthy);
}

#[test]
fn an_event_reaches_what_it_is_about() {
    let mut scene = Scene::new();
    scene.look(&[(1, &[0, 1]), (2, &[0]), (3, &[])]);
    let unhealthy = |scene: &Scene| [(1, 0), (1, 1), (2, 0)].map(|(g, c)| scene.part(g, c) == Level::Unhealthy);
    let xid = Cause::Xid(Xid::new(95));
    assert_eq!(scene.event(1, xid, Place::ComputeInstance(1, 1)), Reach::Parts(1));
    assert_eq!((unhealthy(&scene), scene.level()), ([false, true, false], Level::Healthy));
    assert_eq!(scene.event(1, xid, Place::GpuInstance(1)), Reach::Parts(2));
    assert_eq!((unhealthy(&scene), scene.level()), ([true, true, false], Level::Healthy));
    for place in [Place::GpuInstance(9), Place::GpuInstance(3), Place::ComputeInstance(2, 1)] {
        assert_eq!(scene.event(1, xid, place), Reach::UnknownInstance);
    }
    assert_eq!((unhealthy(&scene), scene.level()), ([true, true, false], Level::Healthy));
    assert_eq!(scene.event(1, Cause::Xid(Xid::new(43)), Place::GpuInstance(1)), Reach::Nothing);
    assert_eq!(scene.event(1, xid, Place::Gpu), Reach::Gpu);
    assert_eq!((unhealthy(&scene), scene.level()), ([true; 3], Level::Unhealthy));
    scene.answers(100, WELL);
    assert_eq!((unhealthy(&scene), scene.level()), ([false; 3], Level::Healthy));
}

#[test]
fn a_mig_device_that_is_made_anew_has_no_past() {
    let mut scene = Scene::new();
    scene.look(&[(1, &[0])]);
    scene.event(1, Cause::Xid(Xid::new(95)), Place::GpuInstance(1));
    scene.look(&[(1, &[0])]);
    assert_eq!(scene.part(1, 0), Level::Unhealthy);
    scene.look(&[]);
    scene.look(&[(1, &[0])]);
    assert_eq!(scene.part(1, 0), Level::Healthy);
}

#[test]
fn an_operator_decides_what_is_done() {
    let mut scene = Scene::with_policy("79=NoExecute 43=warn 119=ignore row-remap-pending=NoSchedule ecc=ignore");
    scene.answers(0, Reading { row_remap_pending: Some(true), uncorrectable: Some(true), ..WELL });
    assert_eq!(scene.xid(10, 119), Reach::Nothing);
    scene.xid(10, 43);
    assert_eq!(scene.taints(), ["gpu.nvidia.com/row-remap=pending:NoSchedule", "gpu.nvidia.com/xid=43:None"]);
    scene.xid(10, 79);
    assert_eq!(scene.taints()[0], "gpu.nvidia.com/xid=79:NoExecute");
}

#[test]
fn a_burst_of_events_is_one_finding_for_each_xid() {
    let mut scene = Scene::new();
    for number in 0..500 {
        scene.xid(number / 100, [48, 79, 13][usize::try_from(number % 3).unwrap()]);
    }
    assert_eq!(scene.taints(), ["gpu.nvidia.com/xid=48:NoSchedule", "gpu.nvidia.com/xid=79:NoSchedule"]);
}

/// The rules of the API for the name and the value of a label.
fn is_label_text(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let ends = [text.chars().next(), text.chars().next_back()];
    text.len() <= 63 && text.chars().all(inner) && ends.iter().flatten().all(char::is_ascii_alphanumeric)
}

#[test]
fn every_cause_has_a_taint_and_words_that_can_be_written() {
    let names: BTreeSet<_> = KINDS.iter().map(|kind| kind.name).collect();
    assert_eq!(names.len(), KINDS.len());
    let kinds = [
        Kind::Lost,
        Kind::Recovery(Action::new(u32::MAX).unwrap()),
        Kind::RowRemapFailure,
        Kind::RowRemapPending,
        Kind::Poison,
        Kind::Unavailable,
        Kind::FabricUnhealthy,
        Kind::FabricLimited,
        Kind::LinksDown,
        Kind::Ecc,
        Kind::Silent,
        Kind::Unwatched,
    ];
    assert!(kinds.iter().map(|kind| kind.facts()).eq(KINDS), "in the same order");
    let actions = (1..9).map(|number| Kind::Recovery(Action::new(number).unwrap()));
    let xids = (0..=999).map(|number| Cause::Xid(Xid::new(number)));
    let mut labels = BTreeSet::new();
    for cause in kinds.into_iter().chain(actions).map(Cause::Kind).chain(xids) {
        let (name, value) = cause.taint();
        assert!(is_label_text(name) && !name.is_empty() && is_label_text(&value), "{cause}");
        assert!(cause.to_string().is_ascii() && cause.to_string().len() < 200, "{cause}");
        labels.insert(cause.label());
    }
    assert!(labels.len() < 150, "metrics have a bounded number of labels");
    assert_eq!(Cause::Xid(Xid::new(79)).label(), "xid-79");
    assert_eq!(Cause::Xid(Xid::new(400)).label(), "xid-other");
}
