//! What is left when a claim's work ends at any call of NVML: by the death of the process, or because the call fails.
//!
//! ```text
//!  prepare    call ─ call ─ call ─ … ─ call
//!               ▲killed before   ▲killed after ──▶ next process ──▶ nothing without a record, and all goes on
//! ```

use fake_node::kubelet::ClaimRef;
use fake_node::plugin::Plugin;
use topology::Fault;

use crate::node::{eventually, terminate};
use crate::scene::{FOUR, Scene, THREE_AT_4, part};

/// Which calls the work of a claim makes, with the number of each.
///
/// Of calls of one name in a row, which only read, the first and the last: nothing changes between them.
fn points(calls: &[String]) -> Vec<(usize, &str)> {
    let name = |at: usize| calls.get(at).map(|call| call.split(' ').next().unwrap());
    let is_within = |at: usize| at > 0 && name(at - 1) == name(at) && name(at) == name(at + 1);
    (0..calls.len()).filter(|at| !is_within(*at)).map(|at| (at, name(at).unwrap())).collect()
}

fn is_change(call: &str) -> bool {
    ["Create", "Destroy", "Set"].iter().any(|verb| call.contains(verb))
}

/// The next process, once it has taken back what was half done.
async fn next(scene: &Scene, what: &str) -> Plugin {
    scene.mend();
    let plugin = scene.plugin().await;
    eventually(&format!("{what}: nothing without a record"), || scene.unknown().is_empty().then_some(())).await;
    plugin
}

async fn prepare_and_unprepare(scene: &Scene, claims: &[&ClaimRef]) {
    for claim in claims {
        scene.node.prepare(claim).await.unwrap();
    }
    assert_eq!(scene.existing(), scene.recorded());
    for claim in claims {
        scene.node.unprepare(claim).await.unwrap();
    }
}

/// Kills the process at every call of what `begin` leaves to do, and has `end` done by the next one.
async fn whenever_it_is_killed(
    begin: impl AsyncFn(&Scene, &[ClaimRef; 2]),
    work: impl AsyncFn(&Scene, &ClaimRef) -> Result<(), String>,
) {
    let scene = Scene::h100(1).await;
    let mut plugin = scene.plugin().await;
    let claims = [scene.claim("one", &[&part(0, FOUR)]), scene.claim("two", &[&part(0, THREE_AT_4)])];
    let [one, two] = &claims;
    begin(&scene, &claims).await;
    let (done, calls) = scene.calls(work(&scene, one)).await;
    done.unwrap();
    for claim in [two, one] {
        scene.node.unprepare(claim).await.unwrap();
    }
    scene.until_as_found("in one go").await;

    let mut killed = 0;
    for (number, (at, call)) in points(&calls).into_iter().enumerate() {
        let late: &[bool] = if is_change(call) { &[false, true] } else { &[false] };
        for late in late.iter().copied() {
            let what = format!("killed {} call {at}, {call}", if late { "after" } else { "before" });
            begin(&scene, &claims).await;
            let after = u64::try_from(at).unwrap();
            scene.fault(Fault { call: "*".to_owned(), after, kill: true, late, ..Fault::default() });
            work(&scene, one).await.unwrap_err();
            plugin.wait(&what).await.unwrap();
            plugin = next(&scene, &what).await;
            killed += 1;
            // Whether the kubelet goes on or gives up.
            if number % 2 == 0 {
                scene.node.prepare(one).await.unwrap();
                assert_eq!(scene.existing(), scene.recorded(), "{what}");
                assert_eq!(scene.given(one).len(), 1, "{what}");
            }
            for claim in [one, two] {
                scene.node.unprepare(claim).await.unwrap();
            }
            scene.until_as_found(&what).await;
        }
    }
    assert!(killed > 20, "{calls:?}");
    prepare_and_unprepare(&scene, &[one, two]).await;
    assert_eq!(scene.left(), None);
    terminate(plugin).await;
}

#[tokio::test]
async fn a_prepare_that_is_killed_at_any_call_leaves_nothing_behind() {
    let work = async |scene: &Scene, claim: &ClaimRef| scene.node.prepare(claim).await.map(drop);
    Box::pin(whenever_it_is_killed(async |_, _| {}, work)).await;
}

#[tokio::test]
async fn an_unprepare_that_is_killed_at_any_call_is_finished_by_the_next() {
    let begin = async |scene: &Scene, [one, _]: &[ClaimRef; 2]| {
        scene.node.prepare(one).await.unwrap();
    };
    let work = async |scene: &Scene, claim: &ClaimRef| scene.node.unprepare(claim).await;
    Box::pin(whenever_it_is_killed(begin, work)).await;
}
