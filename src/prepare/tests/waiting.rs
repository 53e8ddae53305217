//! What a prepare waits for, how long, and what ends the wait.

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::*;

/// Of the kubelet's 45 s.
const BUDGET: Duration = Duration::from_secs(30);

type Harm = fn(&Disk);

type Answer = Result<Vec<PreparedDevice>, Error>;

fn begin(preparer: &Preparer, claim: Claim) -> JoinHandle<Answer> {
    tokio::spawn(preparer.begin(&claim.uid).prepare(claim))
}

/// Lets a claim get as far as it can without anything happening.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

fn rival() -> Claim {
    mk_claim("b", &[("main", "gpu-0")])
}

#[tokio::test(start_paused = true)]
async fn a_claim_waits_for_the_first_inventory() {
    let disk = Disk::new();
    disk.inventory.send_replace(None);
    let preparer = disk.start().await;
    let waiting = begin(&preparer, mk_claim_a());
    settle().await;
    // Which needs no inventory.
    preparer.unprepare(&mk_uid("b")).await.unwrap();
    assert!(!waiting.is_finished());
    disk.see(mk_node(2));
    waiting.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_gpu_whose_release_is_under_way_is_waited_for() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.prepare(mk_claim_a()).await.unwrap();
    let waiting = begin(&preparer, rival());
    sleep(Duration::from_secs(20)).await;
    assert!(!waiting.is_finished());
    assert_eq!(disk.files().len(), 2, "who waits leaves nothing on disk");
    let start = Instant::now();
    preparer.unprepare(&mk_uid("a")).await.unwrap();
    waiting.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO, "it is told");
}

#[tokio::test(start_paused = true)]
async fn a_release_of_another_gpu_or_a_new_inventory_does_not_end_the_wait_for_a_gpu() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.prepare(mk_claim_a()).await.unwrap();
    preparer.prepare(mk_claim("c", &[("main", "gpu-1")])).await.unwrap();
    let waiting = begin(&preparer, rival());
    settle().await;
    preparer.unprepare(&mk_uid("c")).await.unwrap();
    disk.see(mk_node(3));
    let start = Instant::now();
    let message = waiting.await.unwrap().unwrap_err().to_string();
    assert_eq!(message, "gpu-0 is in use by claim team/a until that claim's pods are gone from this node");
    assert_eq!(start.elapsed().as_secs(), BUDGET.as_secs() - 1, "all that was left");
}

#[tokio::test(start_paused = true)]
async fn what_does_not_pass_is_the_answer_when_the_budget_ends() {
    let no_device: Harm = |disk| fs::remove_file(disk.host.dev().join("nvidia0")).unwrap();
    let no_uvm: Harm = |disk| fs::remove_file(disk.host.dev().join("nvidia-uvm")).unwrap();
    let no_driver: Harm = |disk| fs::remove_dir_all(disk.host.driver.root().local()).unwrap();
    let away: Harm = |disk| disk.see(Node { absent: vec![DeviceName::gpu(0)], ..Node::default() });
    let cases: [(Harm, &str); 5] = [
        (|disk| _ = disk.inventory.send_replace(None), "the node's GPUs are not known yet"),
        (no_device, "the container would not have its GPU gpu-0: the device node "),
        (no_uvm, "the container would have no /dev/nvidia-uvm: "),
        (no_driver, "the container would have no CUDA: "),
        (away, "the GPU gpu-0 is gone from the node"),
    ];
    for (harm, expected) in cases {
        let disk = Disk::new();
        let preparer = disk.start().await;
        harm(&disk);
        let start = Instant::now();
        let message = preparer.prepare(mk_claim_a()).await.unwrap_err().to_string();
        assert!(message.starts_with(expected), "{message}");
        assert_eq!(start.elapsed(), BUDGET, "{message}");
        assert_eq!(disk.files(), Vec::<String>::new(), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn while_nvml_is_silent_the_answer_says_why_as_it_is_known_in_the_end() {
    let disk = Disk::new();
    disk.inventory.send_replace(None);
    let preparer = disk.start().await;
    let waiting = begin(&preparer, mk_claim_a());
    settle().await;
    for reason in ["the driver is not loaded", "nvmlInit did not return"] {
        disk.failure.send_replace(Some(reason.to_owned()));
        settle().await;
    }
    let message = waiting.await.unwrap().unwrap_err().to_string();
    let expected = "the node's GPUs are not known yet: nvmlInit did not return; see the log of the driver on this node";
    assert_eq!(message, expected);
}

#[test]
fn claims_on_a_disk_that_hangs_leave_threads_to_others() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.max_blocking_threads(STEPS_AT_ONCE + 1).enable_time().build().unwrap();
    runtime.block_on(async {
        let disk = Disk::new();
        let preparer = disk.start().await;
        let uids: Vec<_> = (0..20).map(|number| format!("claim-{number}")).collect();
        // Whoever opens it to read waits for somebody who writes.
        for uid in &uids {
            assert!(std::process::Command::new("mkfifo").arg(disk.record_path(uid)).status().unwrap().success());
        }
        let hung: Vec<_> = uids.iter().map(|uid| tokio::spawn(preparer.unprepare(&mk_uid(uid)))).collect();
        sleep(Duration::from_millis(50)).await;
        let other = tokio::time::timeout(Duration::from_secs(30), tokio::task::spawn_blocking(|| ()));
        let is_free = other.await.is_ok();

        for path in uids.iter().map(|uid| disk.record_path(uid)) {
            std::thread::spawn(move || fs::File::options().write(true).open(path).unwrap());
        }
        for unprepare in hung {
            unprepare.await.unwrap().unwrap();
        }
        assert!(is_free);
    });
}

#[tokio::test(start_paused = true)]
async fn what_takes_somebody_to_act_is_answered_at_once() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    let directory = disk.host.dev().join("nvidia1");
    fs::remove_file(&directory).unwrap();
    fs::create_dir(&directory).unwrap();
    let mut configured = mk_claim_a();
    configured.configs.push(crate::claim::example::mk_config(&[], "NoSuchConfig", json!({})));
    preparer.prepare(mk_claim("d", &[("main", "gpu-0")])).await.unwrap();
    fs::create_dir_all(disk.spec_path("e").join("in the way")).unwrap();
    let start = Instant::now();
    for (claim, expected) in [
        (configured, "configuration 1 of the claim: "),
        (mk_claim("a", &[("main", "gpu-9")]), "the node has no device gpu-9"),
        (mk_claim("b", &[("main", "gpu-1")]), "the container would not have its GPU gpu-1: "),
        (mk_claim("d", &[("main", "gpu-1")]), "the claim was prepared for gpu-0"),
    ] {
        let message = preparer.prepare(claim).await.unwrap_err().to_string();
        assert!(message.starts_with(expected), "{message}");
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn files_that_appear_are_found_within_two_seconds() {
    for name in ["nvidia0", "nvidiactl", "nvidia-uvm-tools"] {
        let disk = Disk::new();
        let preparer = disk.start().await;
        let node = disk.host.dev().join(name);
        fs::remove_file(&node).unwrap();
        let waiting = begin(&preparer, mk_claim_a());
        sleep(Duration::from_secs(11)).await;
        assert_eq!(disk.files(), Vec::<String>::new());
        fs::write(&node, "").unwrap();
        let start = Instant::now();
        waiting.await.unwrap().unwrap();
        assert!(start.elapsed() <= Duration::from_secs(2), "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_gpu_that_comes_back_is_found_with_the_look_that_sees_it() {
    let mut disk = Disk::new();
    disk.start().await.prepare(mk_claim_a()).await.unwrap();
    // After a reboot the record is applied anew; the rival is planned for the first time.
    disk.boot = NEXT_BOOT;
    let mut away = mk_node(2);
    away.gpus.remove(0);
    away.absent.push(DeviceName::gpu(0));
    disk.see(away.clone());
    let preparer = disk.start().await;
    let prepared_before = begin(&preparer, mk_claim_a());
    settle().await;
    let mut warmer = away;
    warmer.gpus[0].has_node = false;
    disk.see(warmer);
    sleep(Duration::from_secs(20)).await;
    assert!(!prepared_before.is_finished());
    let start = Instant::now();
    disk.see(mk_node(2));
    prepared_before.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn reading_the_claim_is_part_of_the_budget() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.prepare(mk_claim_a()).await.unwrap();
    let start = Instant::now();
    let attempt = preparer.begin(&mk_uid("b"));
    assert_eq!(attempt.read_by(), start + Duration::from_secs(20));
    attempt.read(sleep(Duration::from_secs(19))).await.unwrap();
    attempt.prepare(rival()).await.unwrap_err();
    assert_eq!(start.elapsed(), BUDGET);
}

#[tokio::test(start_paused = true)]
async fn an_unprepare_ends_every_wait_at_once() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.prepare(mk_claim_a()).await.unwrap();
    let reading = preparer.begin(&mk_uid("b"));
    let reading = tokio::spawn(async move { reading.read(std::future::pending::<()>()).await });
    let waiting = begin(&preparer, rival());
    settle().await;
    let start = Instant::now();
    preparer.unprepare(&mk_uid("b")).await.unwrap();
    assert!(matches!(reading.await.unwrap(), Err(Error::CalledOff)));
    assert!(matches!(waiting.await.unwrap(), Err(Error::CalledOff)));
    assert_eq!(start.elapsed(), Duration::ZERO);

    // The next pod may have it.
    let waiting = begin(&preparer, rival());
    settle().await;
    preparer.unprepare(&mk_uid("a")).await.unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_unprepare_calls_off_what_was_asked_for_before_it_and_nothing_later() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    let before = preparer.begin(&mk_uid("a"));
    let unprepare = preparer.unprepare(&mk_uid("a"));
    let later = preparer.begin(&mk_uid("a"));
    assert!(matches!(before.prepare(mk_claim_a()).await, Err(Error::CalledOff)));
    unprepare.await.unwrap();
    later.prepare(mk_claim_a()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_one_pod_is_done_with_is_prepared_for_the_next() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    let first = preparer.prepare(mk_claim_a()).await.unwrap();
    for _ in 0..2 {
        preparer.unprepare(&mk_uid("a")).await.unwrap();
        assert_eq!(disk.files(), Vec::<String>::new());
        assert_eq!(preparer.prepare(mk_claim_a()).await.unwrap(), first);
    }
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_stops_ends_every_wait_and_no_work() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.prepare(mk_claim_a()).await.unwrap();
    let reading = preparer.begin(&mk_uid("c"));
    let reading = tokio::spawn(async move { reading.read(std::future::pending::<()>()).await });
    let waiting = begin(&preparer, rival());
    settle().await;
    let start = Instant::now();
    preparer.stop_waiting();
    assert!(matches!(reading.await.unwrap(), Err(Error::Stopping)));
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the GPU plugin is stopping; the next one on this node will prepare the claim");
    assert!(matches!(preparer.prepare(rival()).await, Err(Error::Stopping)), "those that come late do not wait either");
    preparer.prepare(mk_claim("d", &[("main", "gpu-1")])).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn when_there_will_be_no_more_looks_nobody_waits_for_one() {
    let disk = Disk::new();
    disk.inventory.send_replace(None);
    let preparer = disk.start().await;
    let waiting = begin(&preparer, mk_claim_a());
    settle().await;
    let start = Instant::now();
    drop(disk.inventory);
    assert!(matches!(waiting.await.unwrap(), Err(Error::NotReady { .. })));
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_claim_that_stands_in_the_way_is_told_once_for_each_time_it_is_found_so() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.prepare(mk_claim_a()).await.unwrap();
    assert_eq!(
        (preparer.claims(), preparer.name_of(&mk_uid("a")).await),
        ([mk_uid("a")].into(), Some(mk_claim_a().name))
    );
    assert_eq!(preparer.name_of(&mk_uid("b")).await, None);
    assert!(preparer.contested().now_or_never().is_none());
    for _ in 0..2 {
        let waiting = begin(&preparer, rival());
        assert_eq!(preparer.contested().await, [mk_uid("a")].into());
        assert!(preparer.contested().now_or_never().is_none());
        waiting.await.unwrap().unwrap_err();
    }
}

#[tokio::test(start_paused = true)]
async fn claims_that_wait_take_no_threads() {
    let disk = Disk::new();
    let preparer = disk.start().await;
    preparer.prepare(mk_claim_a()).await.unwrap();
    let waiting: Vec<_> =
        (0..20).map(|number| begin(&preparer, mk_claim(&format!("w{number}"), &[("m", "gpu-0")]))).collect();
    settle().await;
    // Time flies only while no thread is at work.
    let start = Instant::now();
    for waiting in waiting {
        waiting.await.unwrap().unwrap_err();
    }
    assert!(start.elapsed() <= BUDGET);
}
