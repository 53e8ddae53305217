//! Every step on disk is the last one of its process, in every situation in which there are steps.
//!
//! ```text
//!  call ── step n: the fault ──▶ start, a look at the GPUs
//!                                  no spec without a record, none half done, no GPU twice, other claims as they were
//!          ──▶ the call again, to another process, if one was there all the time
//!          ──▶ the call again ──▶ what it answers when nothing goes wrong
//!          ──▶ and again ───────▶ the same, and nothing changes
//!          ──▶ a power cut ─────▶ what was answered lasts
//!          ──▶ unprepare all ───▶ nothing is left
//! ```

use super::*;
use crate::causes::with_causes;
use crate::host::atomic::faults::{Fault, FaultyDisk, Unsynced};

/// What the process is at when the fault happens.
enum Act {
    Start,
    Prepare(Claim),
    Unprepare(&'static str),
}

/// The fault, and what the power does.
const FAULTS: [(Fault, Option<Unsynced>); 6] = [
    (Fault::Death, None),
    (Fault::DeathMidway, None),
    (Fault::Refusal, None),
    (Fault::Refusal, Some(Unsynced::Lost)),
    (Fault::Death, Some(Unsynced::Lost)),
    (Fault::Death, Some(Unsynced::EntriesKept)),
];

/// The claim beside all this, and a file that is nobody's business.
const NEIGHBOUR: &str = "b";
const STRANGER: &str = "cdi/nvidia.yaml";

type Answer = Result<Vec<PreparedDevice>, String>;

/// One way through the picture above.
struct Run<'a> {
    disk: Disk,
    faulty: FaultyDisk,
    act: &'a Act,
    /// Another process is there all the time.
    beside_another: bool,
    /// What the call answers when nothing goes wrong.
    wanted: &'a Answer,
}

// === impl Act ===

impl Act {
    /// Errors without the directory that this disk is in.
    async fn call(&self, preparer: &Preparer, disk: &Disk) -> Answer {
        let answer = match self {
            Self::Start => Ok(Vec::new()),
            Self::Prepare(claim) => preparer.prepare(claim.clone()).await,
            Self::Unprepare(uid) => preparer.unprepare(&mk_uid(uid)).await.map(|()| Vec::new()),
        };
        answer.map_err(|error| error.to_string().replace(&*disk.host.dev().to_string_lossy(), "/dev"))
    }
}

// === impl Run ===

impl Run<'_> {
    /// The whole of it. Whether the fault was past the last step: then it is the answer that is lost.
    async fn go(mut self, step: usize, fault: Fault, power: Option<Unsynced>) -> bool {
        let neighbour = fs::read(self.disk.record_path(NEIGHBOUR)).ok();
        let litter = self.disk.temporaries().len();

        let other = if self.beside_another { Some(self.disk.start().await) } else { None };
        let process = self.fail(step, fault).await;
        let is_past = !self.faulty.has_failed();
        self.faulty.revive();
        // Who lives tidies up.
        assert!(self.disk.temporaries().len() <= litter + usize::from(process.is_none()));
        if !matches!(self.act, Act::Start) {
            self.disk.assert_no_spec_without_a_record();
        }
        for process in process.iter().chain(&other) {
            self.call_again(process).await;
        }
        drop(other);
        if let Some(unsynced) = power {
            self.reboot(unsynced);
            if process.is_some() && !matches!(self.act, Act::Start) {
                self.assert_lasts();
            }
        }

        let process = self.start().await;
        assert_eq!(fs::read(self.disk.record_path(NEIGHBOUR)).ok(), neighbour);
        self.call_again(&process).await;
        if matches!(self.act, Act::Start) {
            let files = self.disk.contents();
            self.start().await;
            assert_eq!(self.disk.contents(), files, "another start changes nothing");
            process.prepare(mk_late_claim()).await.unwrap();
        }

        self.reboot(Unsynced::Lost);
        self.assert_lasts();
        let process = self.start().await;
        self.call_again(&process).await;

        for uid in self.disk.uids_of_records().into_iter().chain(["a".to_owned()]) {
            process.unprepare(&mk_uid(&uid)).await.unwrap();
        }
        self.disk.age_temporaries();
        self.disk.settle().await;
        let left: Vec<_> = self.disk.files().into_iter().filter(|name| name != STRANGER).collect();
        assert_eq!(left, Vec::<String>::new());
        is_past
    }

    /// Starts, acts, and has the fault at a step. The process, if it lives.
    async fn fail(&self, step: usize, fault: Fault) -> Option<Preparer> {
        let (preparer, answer) = if matches!(self.act, Act::Start) {
            self.faulty.arm(step, fault);
            let (settings, gpus) = (self.disk.settings(), self.disk.gpus());
            match Preparer::open(settings, gpus, Metrics::default()).await {
                Ok(preparer) => {
                    Keeper::new(Arc::clone(&preparer.shared)).keep().await;
                    (Some(preparer), self.wanted.clone())
                }
                Err(error) => (None, Err(with_causes(&error))),
            }
        } else {
            let preparer = self.disk.start().await;
            self.faulty.arm(step, fault);
            let answer = self.act.call(&preparer, &self.disk).await;
            (Some(preparer), answer)
        };
        if !self.faulty.has_failed() {
            assert_eq!(answer, *self.wanted);
        }
        if fault != Fault::Refusal {
            return None;
        }
        if answer != *self.wanted {
            let error = answer.unwrap_err();
            let names_the_cause = error.contains("No space left on device") || error.contains("Input/output error");
            assert!(error.contains("cannot ") && names_the_cause, "{error}");
        }
        preparer
    }

    async fn start(&self) -> Preparer {
        let preparer = self.disk.settle().await;
        self.disk.assert_sound();
        preparer
    }

    /// Makes the call again and again.
    async fn call_again(&self, preparer: &Preparer) {
        assert_eq!(self.act.call(preparer, &self.disk).await, *self.wanted);
        if self.wanted.is_ok() {
            let files = self.disk.contents();
            assert_eq!(self.act.call(preparer, &self.disk).await, *self.wanted);
            assert_eq!(self.disk.contents(), files, "a repeat changes nothing");
        }
    }

    fn reboot(&mut self, unsynced: Unsynced) {
        self.faulty.cut_power(unsynced);
        self.disk.boot = if self.disk.boot == NEXT_BOOT { BOOT } else { NEXT_BOOT };
        if unsynced == Unsynced::EntriesKept {
            // As where CDI specs are kept in memory.
            self.disk.lose_specs();
        }
    }

    /// After a power cut: what was answered before it lasts.
    fn assert_lasts(&self) {
        let records = self.disk.recorded();
        let is_prepared = |uid: &str| {
            records.iter().any(|record| record.claim.uid.as_str() == uid && record.state == State::PrepareCompleted)
        };
        match self.act {
            Act::Start => assert!(is_prepared(mk_late_claim().uid.as_str())),
            Act::Prepare(claim) => assert_eq!(is_prepared(claim.uid.as_str()), self.wanted.is_ok()),
            Act::Unprepare(uid) => assert!(!self.disk.record_path(uid).exists(), "it comes back"),
        }
    }
}

impl Disk {
    fn lose_specs(&self) {
        if self.host.state("cdi").exists() {
            fs::remove_dir_all(self.host.state("cdi")).unwrap();
        }
    }

    /// All files of claims and specs.
    fn contents(&self) -> Vec<(String, Vec<u8>)> {
        self.files().into_iter().map(|name| (name.clone(), fs::read(self.host.state(&name)).unwrap())).collect()
    }
}

/// Has everything go wrong at every step of an act.
async fn interrupt_everywhere(before: impl AsyncFn(&mut Disk), act: Act) {
    interrupt(before, act, false).await;
}

async fn interrupt(before: impl AsyncFn(&mut Disk), act: Act, beside_another: bool) {
    let ready = async || {
        let mut disk = Disk::new();
        fs::write(disk.host.dev().join("nvidia2"), "").unwrap();
        disk.see(mk_node(3));
        disk.start().await.prepare(mk_claim(NEIGHBOUR, &[("main", "gpu-2")])).await.unwrap();
        fs::write(disk.host.state(STRANGER), "other").unwrap();
        before(&mut disk).await;
        disk
    };
    let undisturbed = ready().await;
    let wanted = act.call(&undisturbed.settle().await, &undisturbed).await;
    for (fault, power) in FAULTS {
        for step in 1.. {
            // Shown if the test fails.
            println!("step {step}: {fault:?}, then {power:?}");
            let disk = ready().await;
            let faulty = FaultyDisk::new(disk.host.state(""));
            if (Run { disk, faulty, act: &act, beside_another, wanted: &wanted }).go(step, fault, power).await {
                break;
            }
        }
    }
}

/// One that goes with all others.
fn mk_late_claim() -> Claim {
    let mut claim = mk_claim("late", &[("main", "gpu-2")]);
    claim.results[0].admin_access = true;
    claim
}

async fn prepared(disk: &mut Disk) {
    disk.start().await.prepare(mk_claim_a()).await.unwrap();
}

async fn half_prepared(disk: &mut Disk) {
    prepared(disk).await;
    disk.edit_record("a", |record| record["state"] = json!("PrepareStarted"));
}

async fn prepared_with_a_damaged_record(disk: &mut Disk) {
    prepared(disk).await;
    fs::write(disk.record_path("a"), "{").unwrap();
}

/// Where CDI specs are kept in memory.
async fn prepared_before_a_reboot(disk: &mut Disk) {
    prepared(disk).await;
    disk.lose_specs();
    disk.boot = NEXT_BOOT;
    let mut node = mk_node(3);
    (node.gpus[0].minor, node.gpus[1].minor) = (1, 0);
    disk.see(node);
}

#[tokio::test(start_paused = true)]
async fn a_prepare_can_end_anywhere() {
    let two_gpus = [("one", "gpu-0"), ("two", "gpu-1")];
    interrupt_everywhere(async |_| {}, Act::Prepare(mk_claim("a", &two_gpus))).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_beside_another_process_can_end_anywhere() {
    interrupt(async |_| {}, Act::Prepare(mk_claim_a()), true).await;
    interrupt(half_prepared, Act::Prepare(mk_claim_a()), true).await;
    interrupt(prepared, Act::Unprepare("a"), true).await;
    interrupt(prepared_with_a_damaged_record, Act::Unprepare("a"), true).await;
}

#[tokio::test(start_paused = true)]
async fn a_prepare_that_fails_can_end_anywhere() {
    let without_its_node = async |disk: &mut Disk| fs::remove_file(disk.host.dev().join("nvidia0")).unwrap();
    interrupt_everywhere(without_its_node, Act::Prepare(mk_claim_a())).await;
}

#[tokio::test(start_paused = true)]
async fn a_repeated_prepare_has_no_steps() {
    interrupt_everywhere(prepared, Act::Prepare(mk_claim_a())).await;
    let mut disk = Disk::new();
    prepared(&mut disk).await;
    let preparer = disk.start().await;
    let faulty = FaultyDisk::new(disk.host.state(""));
    preparer.prepare(mk_claim_a()).await.unwrap();
    assert_eq!(faulty.steps(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_prepare_whose_spec_is_lost_can_end_anywhere() {
    let without_its_spec = async |disk: &mut Disk| {
        prepared(disk).await;
        fs::remove_file(disk.spec_path("a")).unwrap();
    };
    interrupt_everywhere(without_its_spec, Act::Prepare(mk_claim_a())).await;
}

#[tokio::test(start_paused = true)]
async fn a_prepare_after_a_reboot_can_end_anywhere() {
    interrupt_everywhere(prepared_before_a_reboot, Act::Prepare(mk_claim_a())).await;
}

#[tokio::test(start_paused = true)]
async fn a_prepare_whose_record_is_damaged_can_end_anywhere() {
    interrupt_everywhere(prepared_with_a_damaged_record, Act::Prepare(mk_claim_a())).await;
}

#[tokio::test(start_paused = true)]
async fn an_unprepare_can_end_anywhere() {
    interrupt_everywhere(prepared, Act::Unprepare("a")).await;
}

#[tokio::test(start_paused = true)]
async fn an_unprepare_whose_record_is_damaged_can_end_anywhere() {
    interrupt_everywhere(prepared_with_a_damaged_record, Act::Unprepare("a")).await;
}

#[tokio::test(start_paused = true)]
async fn an_unprepare_of_an_unknown_claim_can_end_anywhere() {
    interrupt_everywhere(async |_| {}, Act::Unprepare("a")).await;
}

#[tokio::test(start_paused = true)]
async fn the_first_start_of_all_can_end_anywhere() {
    let without_records = async |disk: &mut Disk| fs::remove_dir_all(disk.host.state("claims")).unwrap();
    interrupt_everywhere(without_records, Act::Start).await;
    let without_anything = async |disk: &mut Disk| {
        without_records(disk).await;
        disk.lose_specs();
    };
    interrupt_everywhere(without_anything, Act::Start).await;
}

#[tokio::test(start_paused = true)]
async fn a_start_with_half_done_work_can_end_anywhere() {
    interrupt_everywhere(half_prepared, Act::Start).await;
}

#[tokio::test(start_paused = true)]
async fn a_start_after_a_reboot_can_end_anywhere() {
    interrupt_everywhere(prepared_before_a_reboot, Act::Start).await;
}

#[tokio::test(start_paused = true)]
async fn a_start_that_tidies_up_can_end_anywhere() {
    let litter = async |disk: &mut Disk| {
        prepared_with_a_damaged_record(disk).await;
        fs::write(disk.spec_path("orphan"), "{}").unwrap();
        for directory in ["claims", "cdi"] {
            fs::write(disk.host.state(directory).join(".gpu-dra-plugin-old"), "").unwrap();
        }
        disk.age_temporaries();
    };
    interrupt_everywhere(litter, Act::Start).await;
}
