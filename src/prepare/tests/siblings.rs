//! Two plugin processes on one disk, as during a rolling update.

use proptest::prelude::*;

use super::*;
use crate::host::atomic::faults::{Fault, FaultyDisk, Unsynced};

/// A claim for one GPU.
fn mk_claim_for(uid: &str, gpu: usize) -> Claim {
    mk_claim(uid, &[("main", &format!("gpu-{gpu}"))])
}

fn in_use_by(holder: &str) -> String {
    format!("gpu-0 is in use by claim team/{holder} until that claim's pods are gone from this node")
}

async fn refusal(preparer: &Preparer, claim: Claim) -> String {
    preparer.prepare(claim).await.unwrap_err().to_string()
}

#[tokio::test(start_paused = true)]
async fn what_one_prepared_the_other_repeats_and_unprepares() {
    let disk = Disk::new();
    let [old, new] = [disk.start().await, disk.start().await];
    let devices = old.prepare(mk_claim_a()).await.unwrap();
    assert_eq!(new.prepare(mk_claim_a()).await.unwrap(), devices);
    let others = new.prepare(mk_claim_b()).await.unwrap();
    assert_eq!(old.prepare(mk_claim_b()).await.unwrap(), others);
    new.unprepare(&mk_uid("a")).await.unwrap();
    old.unprepare(&mk_uid("b")).await.unwrap();
    drop(old);
    Keeper::new(new.shared).keep().await;
    assert_eq!(disk.files_and_notices(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_gpu_that_the_other_gave_away_is_in_use_until_the_other_takes_it_back() {
    let disk = Disk::new();
    let [old, new] = [disk.start().await, disk.start().await];
    new.prepare(mk_claim_for("a", 0)).await.unwrap();
    assert_eq!(refusal(&old, mk_claim_for("b", 0)).await, in_use_by("a"));
    new.unprepare(&mk_uid("a")).await.unwrap();
    old.prepare(mk_claim_for("b", 0)).await.unwrap();
    assert_eq!(refusal(&new, mk_claim_for("c", 0)).await, in_use_by("b"));
}

#[tokio::test(start_paused = true)]
async fn a_prepare_waits_for_what_the_other_releases() {
    let disk = Disk::new();
    let [old, new] = [disk.start().await, disk.start().await];
    old.prepare(mk_claim_for("a", 0)).await.unwrap();
    let waiting = tokio::spawn(new.begin(&mk_uid("b")).prepare(mk_claim_for("b", 0)));
    tokio::time::sleep(Duration::from_secs(5)).await;
    old.unprepare(&mk_uid("a")).await.unwrap();
    drop(old);
    waiting.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_the_other_did_last_is_known_when_it_has_ended() {
    let disk = Disk::new();
    let [old, new] = [disk.start().await, disk.start().await];
    new.prepare(mk_claim_for("a", 0)).await.unwrap();
    old.unprepare(&mk_uid("a")).await.unwrap();
    old.prepare(mk_claim_for("b", 0)).await.unwrap();
    drop(old);
    assert_eq!(refusal(&new, mk_claim_for("c", 0)).await, in_use_by("b"));
}

#[tokio::test(start_paused = true)]
async fn one_that_came_and_went_meanwhile_is_noticed() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.prepare(mk_claim_for("x", 1)).await.unwrap();
    disk.start().await.prepare(mk_claim_for("a", 0)).await.unwrap();
    assert_eq!(refusal(&preparer, mk_claim_for("b", 0)).await, in_use_by("a"));
    disk.start().await.unprepare(&mk_uid("a")).await.unwrap();
    preparer.prepare(mk_claim_for("b", 0)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_is_alone_does_not_read_the_records_of_other_claims() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    // No process of ours writes behind its back, so what is written there is not seen before somebody else starts.
    preparer.prepare(mk_claim_for("ghost", 0)).await.unwrap();
    let ghost = fs::read(disk.record_path("ghost")).unwrap();
    preparer.unprepare(&mk_uid("ghost")).await.unwrap();
    fs::write(disk.record_path("ghost"), ghost).unwrap();
    preparer.prepare(mk_claim_for("a", 0)).await.unwrap();
    preparer.unprepare(&mk_uid("a")).await.unwrap();

    let other = disk.start().await;
    assert_eq!(refusal(&preparer, mk_claim_for("a", 0)).await, in_use_by("ghost"));
    preparer.unprepare(&mk_uid("ghost")).await.unwrap();
    preparer.prepare(mk_claim_for("a", 0)).await.unwrap();
    drop(other);
}

#[tokio::test(start_paused = true)]
async fn a_half_done_prepare_is_left_to_a_process_that_works_on_it_and_taken_back_when_that_is_dead() {
    let disk = Disk::new();
    let old = disk.start().await;
    old.prepare(mk_claim_a()).await.unwrap();
    let at_work = old.shared.locks.claim(&mk_uid("a")).await.unwrap();
    disk.edit_record("a", |record| record["state"] = json!("PrepareStarted"));

    let new = disk.start().await;
    assert_eq!(disk.record("a")["state"], "PrepareStarted");
    assert!(disk.spec_path("a").exists());
    assert_eq!(refusal(&new, mk_claim_for("b", 0)).await, in_use_by("a"));

    drop((at_work, old));
    disk.start().await;
    assert_eq!(disk.files(), Vec::<String>::new());
    new.prepare(mk_claim_for("b", 0)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_spec_whose_record_a_process_is_about_to_write_or_remove_stays() {
    let disk = Disk::new();
    let old = disk.start().await;
    old.prepare(mk_claim_a()).await.unwrap();
    let at_work = old.shared.locks.claim(&mk_uid("a")).await.unwrap();
    fs::remove_file(disk.record_path("a")).unwrap();
    disk.start().await;
    assert!(disk.spec_path("a").exists());
    drop(at_work);
    disk.start().await;
    assert!(!disk.spec_path("a").exists());
}

#[tokio::test(start_paused = true)]
async fn a_damaged_record_of_a_claim_that_is_worked_on_stays() {
    let disk = Disk::new();
    let old = disk.start().await;
    let at_work = old.shared.locks.claim(&mk_uid("a")).await.unwrap();
    fs::write(disk.record_path("a"), "{").unwrap();
    disk.start().await;
    assert!(disk.record_path("a").exists());
    drop(at_work);
    disk.start().await;
    assert!(!disk.record_path("a").exists());
}

#[tokio::test(start_paused = true)]
async fn an_unprepare_of_one_calls_off_what_the_other_has_under_way() {
    let disk = Disk::new();
    let [old, new] = [disk.start().await, disk.start().await];
    let reading = old.begin(&mk_uid("a"));
    disk.inventory.send_replace(None);
    let waiting = tokio::spawn(old.begin(&mk_uid("a")).prepare(mk_claim_a()));
    let other = tokio::spawn(old.begin(&mk_uid("b")).prepare(mk_claim_b()));

    new.unprepare(&mk_uid("a")).await.unwrap();
    disk.see(mk_node(2));
    assert!(matches!(waiting.await.unwrap(), Err(Error::CalledOff)));
    assert!(matches!(reading.prepare(mk_claim_a()).await, Err(Error::CalledOff)));
    other.await.unwrap().unwrap();
    // Both may be asked again, and again.
    for preparer in [&old, &new, &old] {
        preparer.prepare(mk_claim_a()).await.unwrap();
        preparer.unprepare(&mk_uid("a")).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_one_called_off_stays_so_when_it_has_ended_and_no_notice_outlives_its_use() {
    let disk = Disk::new();
    let [old, new] = [disk.start().await, disk.start().await];
    let reading = old.begin(&mk_uid("a"));
    for uid in ["a", "b"] {
        new.unprepare(&mk_uid(uid)).await.unwrap();
    }
    let mut keeper = Keeper::new(Arc::clone(&old.shared));
    keeper.keep().await;
    assert_eq!(
        disk.files_and_notices(),
        ["claims/a.unprepared", "claims/b.unprepared"],
        "the other may have asked for them"
    );

    drop(new);
    keeper.keep().await;
    assert_eq!(disk.files_and_notices(), ["claims/a.unprepared"]);
    assert!(matches!(reading.prepare(mk_claim_a()).await, Err(Error::CalledOff)));
    keeper.keep().await;
    assert_eq!(disk.files_and_notices(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_notice_of_the_past_is_gone_after_a_start() {
    let disk = Disk::new();
    {
        let [old, _new] = [disk.start().await, disk.start().await];
        old.unprepare(&mk_uid("a")).await.unwrap();
        assert_eq!(disk.files_and_notices(), ["claims/a.unprepared"]);
    }
    disk.start().await;
    assert_eq!(disk.files_and_notices(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn who_is_alone_leaves_no_notices() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.prepare(mk_claim_a()).await.unwrap();
    preparer.unprepare(&mk_uid("a")).await.unwrap();
    assert_eq!(disk.files_and_notices(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn the_prepared_claims_of_both_are_counted() {
    let disk = Disk::new();
    let metrics = Metrics::default();
    let new = disk.start_with(metrics.clone()).await;
    let old = disk.start().await;
    old.prepare(mk_claim_a()).await.unwrap();
    let mut keeper = Keeper::new(Arc::clone(&new.shared));
    keeper.keep().await;
    assert_eq!(metrics.prepared.get(), 1);
    old.unprepare(&mk_uid("a")).await.unwrap();
    drop(old);
    keeper.keep().await;
    assert_eq!(metrics.prepared.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn many_claims_for_one_gpu_get_it_one_after_the_other_whoever_is_asked() {
    let disk = Disk::new();
    let processes = [disk.start().await, disk.start().await, disk.start().await];
    let holder = Arc::new(std::sync::Mutex::new(None));
    let work = (0..12_usize).map(|number| {
        let (uid, holder) = (format!("claim-{number}"), Arc::clone(&holder));
        let [prepares, unprepares] = [number, number / 3].map(|at| processes[at % 3].clone());
        tokio::spawn(async move {
            while prepares.prepare(mk_claim_for(&uid, 0)).await.is_err() {}
            assert_eq!(holder.lock().unwrap().replace(uid.clone()), None);
            tokio::task::yield_now().await;
            assert_eq!(holder.lock().unwrap().take(), Some(uid.clone()));
            unprepares.unprepare(&mk_uid(&uid)).await.unwrap();
        })
    });
    for done in futures::future::join_all(work).await {
        done.unwrap();
    }
    assert_eq!(disk.files(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_is_answered_lasts_though_the_other_was_killed_before_it_made_it_so() {
    let disk = Disk::new();
    let [old, new] = [disk.start().await, disk.start().await];
    let faulty = FaultyDisk::new(disk.host.state(""));
    faulty.arm(usize::MAX, Fault::Death);
    old.prepare(mk_claim_a()).await.unwrap();
    let steps = faulty.steps();
    old.unprepare(&mk_uid("a")).await.unwrap();
    // The last step makes the completed record last.
    faulty.arm(steps, Fault::Death);
    old.prepare(mk_claim_a()).await.unwrap_err();
    faulty.revive();
    drop(old);
    assert_eq!(disk.record("a")["state"], "PrepareCompleted");
    new.prepare(mk_claim_a()).await.unwrap();
    faulty.cut_power(Unsynced::Lost);
    assert_eq!(disk.record("a")["state"], "PrepareCompleted");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_hangs_costs_the_others_no_more_than_the_budget() {
    let disk = Disk::new();
    let [hung, new] = [disk.start().await, disk.start().await];
    new.prepare(mk_claim_b()).await.unwrap();
    let _gpu = hung.shared.locks.gpus(&[mk_uuid(0)].into()).await.unwrap();
    let _claim = hung.shared.locks.claim(&mk_uid("c")).await.unwrap();
    for claim in [mk_claim_a(), mk_claim_for("c", 1)] {
        let start = Instant::now();
        let error = new.prepare(claim).await.unwrap_err();
        assert_eq!((error.cause(), start.elapsed()), ("at_work", Duration::from_secs(30)), "{error}");
    }
    let start = Instant::now();
    assert_eq!(new.unprepare(&mk_uid("c")).await.unwrap_err().cause(), "at_work");
    assert_eq!(start.elapsed(), Duration::from_secs(30));
    new.unprepare(&mk_uid("b")).await.unwrap();
    assert_eq!(disk.files(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_process_that_hangs_is_ended_by_unprepare_and_by_the_end_of_the_plugin() {
    let disk = Disk::new();
    let [hung, new] = [disk.start().await, disk.start().await];
    let _gpu = hung.shared.locks.gpus(&[mk_uuid(0)].into()).await.unwrap();
    let wait = || tokio::spawn(new.begin(&mk_uid("a")).prepare(mk_claim_a()));
    let waiting = wait();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let start = Instant::now();
    new.unprepare(&mk_uid("a")).await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Err(Error::CalledOff)));
    let waiting = wait();
    tokio::time::sleep(Duration::from_secs(5)).await;
    new.stop_waiting();
    assert!(matches!(waiting.await.unwrap(), Err(Error::Stopping)));
    assert_eq!(start.elapsed(), Duration::from_secs(5));
}

/// What happens to two processes, of which either may be asked.
#[derive(Debug, Clone)]
enum Step {
    Prepare { at: usize, claim: usize, gpu: usize },
    Unprepare { at: usize, claim: usize },
    Restart { at: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (at, claim, gpu) = (0..2_usize, 0..4_usize, 0..2_usize);
    let step = prop_oneof![
        4 => (at.clone(), claim.clone(), gpu).prop_map(|(at, claim, gpu)| Step::Prepare { at, claim, gpu }),
        3 => (at.clone(), claim).prop_map(|(at, claim)| Step::Unprepare { at, claim }),
        1 => at.prop_map(|at| Step::Restart { at }),
    ];
    proptest::collection::vec(step, 1..20)
}

/// Two processes answer as one would.
async fn answer_as_one(steps: Vec<Step>) {
    let disk = Disk::new();
    let mut processes = [Some(disk.start().await), Some(disk.start().await)];
    let mut held: [Option<usize>; 4] = [None; 4];
    for step in steps {
        match step {
            Step::Prepare { at, claim, gpu } => {
                let free = !held.contains(&Some(gpu)) && held[claim].is_none();
                let result =
                    processes[at].as_ref().unwrap().prepare(mk_claim_for(&format!("claim-{claim}"), gpu)).await;
                assert_eq!(result.is_ok(), free || held[claim] == Some(gpu), "{step:?} with {held:?}: {result:?}");
                if free {
                    held[claim] = Some(gpu);
                }
            }
            Step::Unprepare { at, claim } => {
                processes[at].as_ref().unwrap().unprepare(&mk_uid(&format!("claim-{claim}"))).await.unwrap();
                held[claim] = None;
            }
            Step::Restart { at } => {
                processes[at] = None;
                processes[at] = Some(disk.start().await);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn two_processes_answer_as_one_would(steps in steps()) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().unwrap().block_on(answer_as_one(steps));
    }
}
