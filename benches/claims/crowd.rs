//! One claim beside many that are prepared already.
//!
//! Each number of others has a node of its own, and the nodes take turns, so that what disturbs the machine disturbs all
//! of them.

use futures::future::try_join_all;

use crate::node::{BenchNode, Setup, timed};
use crate::report::{Row, Samples};

/// Other claims on the node. 56 are 8 GPUs in 7 partitions each.
const OTHERS: [usize; 5] = [0, 8, 56, 200, 1000];

/// Times what the claim takes when it is alone.
const TARGET: f64 = 1.2;

/// How many of the others are prepared at once.
const AT_ONCE: usize = 16;

/// Rounds before those that count.
const WARM_UP: usize = 5;

/// Prepares and unprepares one claim `rounds` times on each node.
pub(crate) async fn measure(setup: &Setup, rounds: usize) -> anyhow::Result<Vec<Row>> {
    let mut nodes = Vec::new();
    for others in OTHERS {
        let node = setup.node().await?;
        fill(&node, others).await?;
        let claim = node.claim("one", "gpu-0")?;
        nodes.push((node, claim, Vec::new(), Vec::new()));
    }
    for round in 0..WARM_UP + rounds {
        for (node, claim, prepares, unprepares) in &mut nodes {
            let prepare = timed(node.dra.prepare(claim)).await?;
            let unprepare = timed(node.dra.unprepare(claim)).await?;
            if round >= WARM_UP {
                prepares.push(prepare);
                unprepares.push(unprepare);
            }
        }
    }
    let samples =
        nodes.into_iter().map(|(_, _, prepares, unprepares)| (Samples::new(prepares), Samples::new(unprepares)));
    let samples: Vec<_> = samples.collect();
    let (prepare_alone, unprepare_alone) = (samples[0].0.p50(), samples[0].1.p50());
    let mut rows = Vec::new();
    for (others, (prepares, unprepares)) in OTHERS.into_iter().zip(&samples).skip(1) {
        for (what, samples, alone) in [("prepare", prepares, prepare_alone), ("unprepare", unprepares, unprepare_alone)]
        {
            let what = format!("{what} beside {others} claims, p50");
            rows.push(Row::ratio(what, samples.p50(), ("alone", alone), Some(TARGET)));
        }
    }
    Ok(rows)
}

/// Has claims prepared that stay.
pub(crate) async fn fill(node: &BenchNode, claims: usize) -> anyhow::Result<()> {
    for some in node.admin_claims("other", claims)?.chunks(AT_ONCE) {
        try_join_all(some.iter().map(|claim| node.dra.prepare(claim))).await?;
    }
    Ok(())
}
