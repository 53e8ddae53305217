//! Two plugins on one node, as during a rolling update, while claims come and go.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use fake_node::api::{Kind, Matching, Verb};
use fake_node::kubelet::{ClaimRef, Kubelet};
use fake_node::manifest::{ONE_GPU, TWO_GPUS_ONE_NVLINK_DOMAIN};
use fake_node::node::DRIVER;
use fake_node::plugin::Plugin;
use futures::future::join_all;
use tokio::time::sleep;

use crate::node::{TestNode, eventually, terminate, within};

/// Claims that are wanted at once, and the GPUs that they have to share out among themselves.
const WORKERS: usize = 6;
const GPUS: usize = 2;

/// How long a refused claim waits. The kubelet waits a minute; the tighter, the more meet.
const REFUSED: Duration = Duration::from_millis(10);

/// Why a claim may be refused meanwhile: another worker has its GPU, or the plugin that was asked ends.
const REFUSALS: [&str; 2] = ["is in use by claim", "the GPU plugin is stopping"];

/// Which plugin ends in an update, and how.
#[derive(Debug, Clone, Copy)]
enum End {
    OldBySigterm,
    OldBySigkill,
    NewBySigkill,
}

/// Who has which GPU by what the plugin said.
#[derive(Default)]
struct Books {
    holders: RefCell<BTreeMap<usize, String>>,
    given: Cell<usize>,
    abandoned: Cell<usize>,
    done: Cell<bool>,
}

/// Starts a plugin in a pod of its own, and waits until the kubelet prefers it.
async fn start(node: &TestNode, pod: usize) -> Plugin {
    let uid = format!("0a1b2c3d-0000-4000-8000-{pod:012}");
    let mut plugin = Plugin::start(&node.settings_of_pod(&uid)).unwrap();
    plugin.wait_until_ready().await.unwrap();
    let endpoint = node.plugin_dir().join(format!("dra-{uid}.sock"));
    let found = |kubelet: &Kubelet| {
        kubelet.plugins().iter().any(|plugin| plugin.connected && plugin.endpoint == endpoint).then_some(())
    };
    node.until("the new plugin is registered", found).await;
    plugin
}

fn reads(claim: &str) -> Matching {
    Matching::any().verb(Verb::Get).kind(Kind::ResourceClaim).name(claim)
}

async fn until_plugins(node: &TestNode, count: usize) {
    let connected = |kubelet: &Kubelet| kubelet.plugins().iter().filter(|plugin| plugin.connected).count();
    node.until("the number of plugins", |kubelet| (connected(kubelet) == count).then_some(())).await;
}

/// Nothing of any claim, but for files that a plugin was writing when it was killed: a later start removes those.
async fn until_clean(node: &TestNode) {
    let files =
        || [node.specs(), node.records()].into_iter().flatten().filter(|(name, _)| !name.starts_with('.')).count();
    eventually("no file of any claim", || (files() == 0).then_some(())).await;
}

fn names(directory: &std::path::Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test]
async fn claims_pass_from_the_old_plugin_to_the_new_and_back() {
    let node = TestNode::start("dgx-h100").await;
    let old = start(&node, 1).await;
    let [one, two] = [ONE_GPU, TWO_GPUS_ONE_NVLINK_DOMAIN];
    let of_old = [node.run_prepared_pod(one, "one").await.unwrap(), node.run_prepared_pod(two, "two").await.unwrap()];

    let new = start(&node, 2).await;
    let of_new =
        [node.run_prepared_pod(one, "three").await.unwrap(), node.run_prepared_pod(two, "four").await.unwrap()];
    let [first, second] = of_old;
    node.end_pod(first).await.unwrap();

    // The update is taken back: the kubelet asks the old one again.
    terminate(new).await;
    until_plugins(&node, 1).await;
    for pod in of_new.into_iter().chain([second]) {
        node.end_pod(pod).await.unwrap();
    }
    let all = node.run_prepared_pod(two, "five").await.unwrap();
    node.end_pod(all).await.unwrap();
    until_clean(&node).await;
    terminate(old).await;
}

#[tokio::test]
async fn a_prepare_that_waits_in_the_old_plugin_is_called_off_by_the_new_one() {
    let node = TestNode::start("one-gpu").await;
    let mut old = start(&node, 1).await;
    let claim = node.allocated_claim("late", "gpu-0");
    let stall = node.api.stall(reads("late"));
    let unprepare = async {
        eventually("the old plugin reads the claim", || (node.api.count(&reads("late")) > 0).then_some(())).await;
        let new = start(&node, 2).await;
        assert_eq!(node.unprepare(&claim).await, Ok(()));
        drop(stall);
        new
    };
    let (prepared, new) = tokio::join!(node.prepare(&claim), unprepare);
    let error = prepared.unwrap_err();
    assert!(error.contains("the claim was unprepared before it was prepared"), "{error}");
    old.wait_for_log("cannot prepare the claim").await.unwrap();
    terminate(old).await;
    until_plugins(&node, 1).await;
    until_clean(&node).await;
    terminate(new).await;
}

#[tokio::test]
async fn updates_under_load_lose_nothing_and_give_no_gpu_twice() {
    let node = TestNode::start("dgx-h100").await;
    let books = Books::default();
    let updates = async {
        let mut old = start(&node, 0).await;
        let ends = [End::OldBySigterm, End::OldBySigkill, End::NewBySigkill, End::OldBySigterm];
        for (pod, end) in (1..).zip(ends) {
            let given = books.given.get();
            let new = start(&node, pod).await;
            eventually("claims come and go", || (books.given.get() > given + 2 * WORKERS).then_some(())).await;
            old = match end {
                End::OldBySigterm => {
                    terminate(old).await;
                    new
                }
                End::OldBySigkill => {
                    old.kill().await.unwrap();
                    new
                }
                End::NewBySigkill => {
                    new.kill().await.unwrap();
                    old
                }
            };
            until_plugins(&node, 1).await;
        }
        let given = books.given.get();
        eventually("claims come and go", || (books.given.get() > given + 2 * WORKERS).then_some(())).await;
        books.done.set(true);
        old
    };
    let workers = join_all((0..WORKERS).map(|worker| work(&node, &books, worker)));
    let (plugin, _) = within("all updates, and all claims", async { tokio::join!(updates, workers) }).await;

    assert!(books.abandoned.get() > 0, "some of {} prepares were given up", books.given.get());
    until_clean(&node).await;
    assert_eq!(names(&node.registry()).len(), 1, "the sockets of the dead are gone");
    terminate(plugin).await;
    assert!(names(&node.registry()).is_empty());
    let mut left = names(&node.plugin_dir());
    // It is installed where it has been built beside the plugin.
    left.remove("gpu-dra-hook");
    assert_eq!(left, ["claims", "claims.lock", "names.json"].map(str::to_owned).into());
}

/// Has claim after claim prepared and unprepared, by whichever plugin the kubelet would ask.
async fn work(node: &TestNode, books: &Books, worker: usize) {
    // Until the first plugin is there, there is nothing to be allocated.
    eventually("a plugin", || (!node.kubelet.plugins().is_empty()).then_some(())).await;
    for round in 0.. {
        if books.done.get() {
            return;
        }
        let gpu = (worker + round) % GPUS;
        let name = format!("claim-{worker}-{round}");
        let claim = node.allocated_claim(&name, &format!("gpu-{gpu}"));
        if round % 3 == 2 {
            // The pod is deleted while the kubelet waits for the plugin, which has begun.
            let abandon = async {
                eventually("the claim is read", || (node.api.count(&reads(&name)) > 0).then_some(())).await;
                sleep(Duration::from_millis(round as u64 % 8)).await;
            };
            tokio::select! {
                _ = node.prepare(&claim) => {}
                () = abandon => books.abandoned.set(books.abandoned.get() + 1),
            }
        } else if until_prepared(node, books, &claim).await {
            let holder = books.holders.borrow_mut().insert(gpu, name.clone());
            assert_eq!(holder, None, "gpu-{gpu} was given to {name} as well");
            books.given.set(books.given.get() + 1);
            tokio::task::yield_now().await;
            books.holders.borrow_mut().remove(&gpu);
        }
        until_unprepared(node, &claim).await;
        node.api.delete(Kind::ResourceClaim, "default", &name).unwrap();
    }
}

/// Asks until the claim is unprepared, as the kubelet, which does not rest before. Calls may fail, with their plugin, but no
/// claim may.
async fn until_unprepared(node: &TestNode, claim: &ClaimRef) {
    loop {
        if let Ok(answer) = node.kubelet.unprepare_once(DRIVER, std::slice::from_ref(claim)).await {
            return assert_eq!(answer[&claim.uid], Ok(()));
        }
        sleep(REFUSED).await;
    }
}

/// Asks until the claim is prepared; `false` once that is not wanted any more.
async fn until_prepared(node: &TestNode, books: &Books, claim: &ClaimRef) -> bool {
    while !books.done.get() {
        if let Ok(answer) = node.kubelet.prepare_once(DRIVER, std::slice::from_ref(claim)).await {
            match &answer[&claim.uid] {
                Ok(_) => return true,
                Err(error) => assert!(REFUSALS.iter().any(|reason| error.contains(reason)), "{error}"),
            }
        }
        sleep(REFUSED).await;
    }
    false
}
