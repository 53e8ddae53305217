//! Any sequence of calls, restarts, reboots, losses and crashes, beside a small model of what must come out.
//!
//! The model knows no files. It knows which claim holds what, and that is compared with the disk after each step.

mod shape;

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use tokio::runtime::Builder;

use self::shape::{Shape, any_shape};
use super::*;
use crate::host::atomic::faults::{Fault, FaultyDisk, Unsynced};

const GPUS: u32 = 3;
const CLAIMS: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Debug, Clone, Copy)]
enum Call {
    /// With this allocation, or with the one that the claim has.
    Prepare(usize, Option<Shape>),
    Unprepare(usize),
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Call(Call),
    /// A call that does not end.
    Crash(Call, usize, Fault),
    PowerCut(Call, usize, Unsynced),
    Restart,
    CrashedStart(usize),
    /// After which the GPUs have other minors and the specs are gone.
    Reboot,
    LoseGpu(u32),
    GpusAreBack,
    DeleteSpec(usize),
    DamageRecord(usize),
}

/// A claim that is prepared.
#[derive(Debug, Clone)]
struct Held {
    shape: Shape,
    boot: String,
    has_spec: bool,
    /// Nobody has read it since.
    is_damaged: bool,
}

struct World {
    disk: Disk,
    faulty: FaultyDisk,
    /// The process.
    preparer: Option<Preparer>,
    boots: u32,
    lost: BTreeSet<u32>,
    held: BTreeMap<&'static str, Held>,
    /// Claims that have nothing but a spec, of a record that was damaged.
    specs: BTreeSet<&'static str>,
}

/// What a call must answer.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// As the metric of failures calls it.
    Refused(&'static str),
}

// === impl Call ===

impl Call {
    fn uid(self) -> &'static str {
        let (Self::Prepare(claim, _) | Self::Unprepare(claim)) = self;
        CLAIMS[claim]
    }
}

// === impl World ===

impl World {
    async fn new() -> Self {
        let disk = Disk::new();
        for gpu in 2..GPUS {
            fs::write(disk.host.dev().join(format!("nvidia{gpu}")), "").unwrap();
        }
        let faulty = FaultyDisk::new(disk.host.state(""));
        let (lost, held, specs) = (BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
        let mut world = Self { disk, faulty, preparer: None, boots: 0, lost, held, specs };
        world.look();
        world.start().await;
        world
    }

    async fn go_through(&mut self, event: Event) {
        match event {
            Event::Call(call) => self.call(call).await,
            Event::Crash(call, step, fault) => self.crash(call, (step, fault), None).await,
            Event::PowerCut(call, step, unsynced) => self.crash(call, (step, Fault::Death), Some(unsynced)).await,
            Event::Restart => self.start().await,
            Event::CrashedStart(step) => {
                self.faulty.arm(step, Fault::Death);
                let (settings, gpus) = (self.disk.settings(), self.disk.gpus());
                drop(Preparer::open(settings, gpus, Metrics::default()).await);
                self.faulty.revive();
                self.start().await;
            }
            Event::Reboot => {
                self.reboot();
                fs::remove_dir_all(self.disk.host.state("cdi")).unwrap();
                self.specs.clear();
                self.held.values_mut().for_each(|held| held.has_spec = false);
                self.start().await;
            }
            Event::LoseGpu(gpu) => {
                self.lost.insert(gpu);
                self.look();
                self.keep().await;
            }
            Event::GpusAreBack => {
                self.lost.clear();
                self.look();
                self.keep().await;
            }
            Event::DeleteSpec(claim) => {
                let _ = fs::remove_file(self.disk.spec_path(CLAIMS[claim]));
                self.specs.remove(CLAIMS[claim]);
                if let Some(held) = self.held.get_mut(CLAIMS[claim]) {
                    held.has_spec = false;
                }
            }
            Event::DamageRecord(claim) => {
                if let Some(held) = self.held.get_mut(CLAIMS[claim]) {
                    fs::write(self.disk.record_path(CLAIMS[claim]), "{").unwrap();
                    held.is_damaged = true;
                }
            }
        }
    }

    /// A call that ends, and its repeat.
    async fn call(&mut self, call: Call) {
        let wanted = self.model(call);
        assert_eq!(self.answer(call).await, wanted);
        self.faulty.revive();
        assert_eq!(self.answer(call).await, wanted);
        assert!(matches!(call, Call::Unprepare(_)) || self.faulty.steps() == 0, "a repeat changes nothing");
    }

    /// A call in which the process dies, or after it, if it has fewer steps. Afterwards it was either made or not.
    async fn crash(&mut self, call: Call, (step, fault): (usize, Fault), power: Option<Unsynced>) {
        let uid = call.uid();
        self.faulty.arm(step, fault);
        let answer = self.answer(call).await;
        let has_died = self.faulty.has_failed();
        self.disk.assert_no_spec_without_a_record();
        let before = (self.held.get(uid).cloned(), self.specs.contains(uid));
        let wanted = self.model(call);
        assert!(has_died || answer == wanted, "{answer:?} is not {wanted:?}");
        let after = (self.held.get(uid).cloned(), self.specs.contains(uid));

        self.faulty.revive();
        if let Some(unsynced) = power {
            self.faulty.cut_power(unsynced);
            self.reboot();
        }
        if has_died {
            let was_damaged = before.0.as_ref().is_some_and(|held| held.is_damaged);
            let before_that = before.0.filter(|held| !held.is_damaged);
            drop(self.disk.start().await);
            let record = self.disk.recorded().into_iter().find(|record| record.claim.uid.as_str() == uid);
            let has_spec = self.disk.spec_path(uid).exists();
            self.specs.remove(uid);
            self.held.remove(uid);
            if let Some(record) = record {
                let Held { shape, .. } = after.0.or(before_that).expect("it was or is prepared");
                self.held.insert(uid, Held { shape, boot: record.boot_id, has_spec, is_damaged: false });
            } else {
                assert!(after.0.is_none() || before_that.is_none(), "it is lost");
                assert!(!has_spec || before.1 || after.1 || was_damaged, "a spec of nothing");
                self.specs.extend(has_spec.then_some(uid));
            }
        }
        self.start().await;
    }

    async fn answer(&self, call: Call) -> Outcome {
        let (uid, preparer) = (call.uid(), self.preparer.as_ref().unwrap());
        let done = match call {
            Call::Prepare(_, shape) => {
                let shape = self.shape(uid, shape);
                preparer.prepare(shape.claim(uid)).await.map(|answer| assert_eq!(answer, shape.answer(uid)))
            }
            Call::Unprepare(_) => preparer.unprepare(&mk_uid(uid)).await,
        };
        done.map_or_else(|error| Outcome::Refused(error.cause()), |()| Outcome::Done)
    }

    /// What a call must answer, and what comes of it.
    fn model(&mut self, call: Call) -> Outcome {
        let (uid, boot) = (call.uid(), self.disk.boot);
        let Call::Prepare(_, shape) = call else {
            self.held.remove(uid);
            self.specs.remove(uid);
            return Outcome::Done;
        };
        let shape = self.shape(uid, shape);
        if self.held.get(uid).is_some_and(|held| held.is_damaged) {
            self.forget(uid);
        }
        if let Some(held) = self.held.get_mut(uid) {
            if shape != held.shape {
                return Outcome::Refused("in_use");
            }
            if !held.shape.gpus().is_disjoint(&self.lost) {
                held.has_spec = false;
                return Outcome::Refused("incomplete");
            }
            (held.has_spec, held.boot) = (true, boot.to_owned());
            return Outcome::Done;
        }
        if !shape.gpus().is_disjoint(&self.lost) {
            return Outcome::Refused("claim");
        }
        if self.held.values().any(|other| !shape.goes_with(other.shape)) {
            return Outcome::Refused("in_use");
        }
        self.specs.remove(uid);
        self.held.insert(uid, Held { shape, boot: boot.to_owned(), has_spec: true, is_damaged: false });
        Outcome::Done
    }

    fn shape(&self, uid: &str, wanted: Option<Shape>) -> Shape {
        wanted.or(self.held.get(uid).map(|held| held.shape)).unwrap_or(Shape::Whole(0))
    }

    fn forget(&mut self, uid: &'static str) {
        if self.held.remove(uid).is_some_and(|held| held.has_spec) {
            self.specs.insert(uid);
        }
    }

    async fn start(&mut self) {
        self.preparer = Some(self.disk.start().await);
        self.keep().await;
    }

    async fn keep(&mut self) {
        let shared = Arc::clone(&self.preparer.as_ref().unwrap().shared);
        Keeper::new(shared).keep().await;
        for uid in CLAIMS {
            match self.held.get_mut(uid) {
                Some(held) if held.is_damaged => self.forget(uid),
                Some(held) => held.has_spec = held.shape.gpus().is_disjoint(&self.lost),
                None => {}
            }
        }
    }

    fn reboot(&mut self) {
        self.boots += 1;
        self.disk.boot = format!("boot {}", self.boots).leak();
        self.look();
    }

    fn minor(&self, gpu: u32) -> u32 {
        (gpu + self.boots) % GPUS
    }

    fn look(&self) {
        let mut node = mk_node(GPUS);
        for (gpu, number) in node.gpus.iter_mut().zip(0..) {
            gpu.minor = self.minor(number);
        }
        node.gpus.retain(|gpu| !self.lost.iter().any(|lost| gpu.uuid == mk_uuid(*lost)));
        self.disk.see(node);
    }

    /// What the model says is what there is.
    fn check(&self) {
        let texts = |uids: Vec<&str>| uids.into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
        assert_eq!(self.disk.uids_of_records(), texts(self.held.keys().copied().collect()));
        let with_specs = self.held.iter().filter(|(_, held)| held.has_spec).map(|(uid, _)| *uid);
        assert_eq!(self.disk.uids_of_specs(), texts(with_specs.chain(self.specs.iter().copied()).collect()));
        for (uid, held) in &self.held {
            if held.has_spec {
                let minors = held.shape.gpus().into_iter().map(|gpu| i64::from(self.minor(gpu))).collect();
                assert_eq!(self.disk.minors_given(uid), minors, "{uid}");
            }
            let others = self.held.iter().filter(|(other, _)| *other != uid);
            assert!(others.into_iter().all(|(_, other)| held.shape.goes_with(other.shape)), "{:?}", self.held);
        }
    }

    async fn end(mut self) {
        for uid in CLAIMS {
            self.preparer.as_ref().unwrap().unprepare(&mk_uid(uid)).await.unwrap();
        }
        self.disk.age_temporaries();
        self.held.clear();
        self.start().await;
        assert_eq!(self.disk.files(), Vec::<String>::new());
    }
}

fn any_call() -> impl Strategy<Value = Call> {
    let claim = 0..CLAIMS.len();
    prop_oneof![
        4 => (claim.clone(), any_shape()).prop_map(|(claim, shape)| Call::Prepare(claim, Some(shape))),
        1 => claim.clone().prop_map(|claim| Call::Prepare(claim, None)),
        2 => claim.prop_map(Call::Unprepare),
    ]
}

/// An unprepare has few steps on disk, a prepare has some twenty and three writes. What has fewer dies after the last.
fn any_step() -> impl Strategy<Value = usize> {
    prop_oneof![1_usize..6, 1_usize..22]
}

fn any_event() -> impl Strategy<Value = Event> {
    let claim = 0..CLAIMS.len();
    let death = prop_oneof![
        any_step().prop_map(|step| (step, Fault::Death)),
        (1_usize..4).prop_map(|write| (write, Fault::DeathMidway)),
    ];
    let unsynced = prop_oneof![Just(Unsynced::Lost), Just(Unsynced::EntriesKept)];
    prop_oneof![
        10 => any_call().prop_map(Event::Call),
        3 => (any_call(), death).prop_map(|(call, (step, fault))| Event::Crash(call, step, fault)),
        2 => (any_call(), any_step(), unsynced).prop_map(|(call, step, unsynced)| Event::PowerCut(call, step, unsynced)),
        1 => Just(Event::Restart),
        1 => any_step().prop_map(Event::CrashedStart),
        1 => Just(Event::Reboot),
        1 => (0..GPUS).prop_map(Event::LoseGpu),
        1 => Just(Event::GpusAreBack),
        1 => claim.clone().prop_map(Event::DeleteSpec),
        1 => claim.prop_map(Event::DamageRecord),
    ]
}

proptest! {
    // A case takes some 50 ms.
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn whatever_happens_claims_have_what_they_were_answered_and_nothing_else(events in vec(any_event(), 4..28)) {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut world = World::new().await;
            for event in events {
                world.go_through(event).await;
                world.check();
            }
            world.end().await;
        });
    }
}
