//! Two plugins of one node, as during a rolling update.

use super::*;

/// What the plugin that was started first wants, and what the later one does.
const POOLS: [&[&[u32]]; 2] = [&[&[0, 1]], &[&[0], &[2]]];

/// Two plugins, of which the second one has what it wants.
async fn two(fake: &Fake) -> [Rig; 2] {
    let [old, new] = POOLS.map(pool);
    let mut old = Rig::start(fake, Some(old));
    old.shows(&["gpu-0", "gpu-1"]).await;
    sleep(Duration::from_secs(1)).await;
    let mut new = Rig::start(fake, Some(new));
    new.shows(&["gpu-0", "gpu-2"]).await;
    [old, new]
}

#[tokio::test(start_paused = true)]
async fn the_one_that_was_started_first_gives_way_to_the_other() {
    let fake = Fake::new();
    let [old, mut new] = two(&fake).await;
    sleep(Duration::from_secs(4 * 60)).await;
    let writes = fake.look(State::writes);
    assert_eq!(writes, 3, "one of the first, two of the second");
    hours(24).await;
    let writes = fake.look(State::writes);
    assert!(writes < 24 * 10, "{writes} writes in a day");
    new.shows(&["gpu-0", "gpu-2"]).await;
    for rig in [&old, &new] {
        assert!(matches!(&*rig.published.borrow(), Published::Accepted { .. }), "{:?}", rig.published.borrow());
    }
    assert!(fake.look(|state| state.events.is_empty()), "nobody is told of a fight");
}

#[tokio::test(start_paused = true)]
async fn the_first_one_publishes_again_when_the_other_is_gone() {
    let fake = Fake::new();
    let [mut old, new] = two(&fake).await;
    new.task.abort();
    let start = Instant::now();
    old.shows(&["gpu-0", "gpu-1"]).await;
    assert!(start.elapsed() < Duration::from_secs(11 * 60), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn news_of_the_first_one_do_not_wait() {
    let fake = Fake::new();
    let [mut old, new] = two(&fake).await;
    new.task.abort();
    sleep(Duration::from_secs(10)).await;
    let start = Instant::now();
    old.wanted.send_replace(Some(pool(&[&[0]])));
    old.shows(&["gpu-0"]).await;
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_slice_is_nobodys_and_comes_back_at_once() {
    let fake = Fake::new();
    let [mut old, new] = two(&fake).await;
    new.task.abort();
    // The first one has given way by now.
    sleep(Duration::from_secs(30)).await;
    fake.look(|state| assert_eq!(shown(state), ["gpu-0", "gpu-2"]));
    fake.change(State::wipe);
    let start = Instant::now();
    old.shows(&["gpu-0", "gpu-1"]).await;
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}
