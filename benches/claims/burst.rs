//! Many claims at once, as when many pods start: how long until the last of them is prepared.
//!
//! Each claim comes in a call of its own, as from pods of their own. They have admin access, so that any number of them
//! goes on one GPU; claims on one GPU still wait for each other.

use std::time::Duration;

use anyhow::ensure;
use fake_node::kubelet::proto::v1;
use futures::future::try_join_all;
use topology::Topology;

use crate::node::{BenchNode, Setup, timed};
use crate::report::{Row, Samples};

/// Claims at once. The first is what the others are compared with.
const AT_ONCE: [usize; 4] = [1, 4, 16, 64];

/// Runs each number of claims `rounds` times, in turn.
pub(crate) async fn measure(setup: &Setup, cores: usize, rounds: usize) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let eight = Topology::builtin("dgx-h100")?;
    for (gpus, topology) in [(8, eight.clone()), (16, doubled(eight))] {
        let node = setup.node_of(topology).await?;
        ensure!(node.devices().len() == gpus, "the machine should have {gpus} GPUs");
        let claims = node.admin_claims("burst", AT_ONCE[3])?;
        let mut times = AT_ONCE.map(|_| Vec::new());
        for round in 0..=rounds {
            for (count, times) in AT_ONCE.into_iter().zip(&mut times) {
                let makespan = burst(&node, &claims[..count]).await?;
                // The first round warms up.
                if round > 0 {
                    times.push(makespan);
                }
            }
        }
        let [one, more @ ..] = times.map(|times| Samples::new(times).p50());
        for (count, makespan) in AT_ONCE[1..].iter().zip(more) {
            rows.push(Row::ratio(
                format!("{count} claims at once on {gpus} GPUs, p50 of all being prepared and unprepared"),
                makespan,
                ("one claim", one),
                Some(target(*count, cores)),
            ));
        }
    }
    Ok(rows)
}

/// The work divided by the cores.
#[expect(clippy::cast_precision_loss, reason = "both are small")]
fn target(claims: usize, cores: usize) -> f64 {
    (claims as f64 / cores as f64).max(1.0)
}

/// Prepares all, and when the last one is, unprepares all.
async fn burst(node: &BenchNode, claims: &[v1::Claim]) -> anyhow::Result<Duration> {
    let prepare = timed(try_join_all(claims.iter().map(|claim| node.dra.prepare(claim)))).await?;
    let unprepare = timed(try_join_all(claims.iter().map(|claim| node.dra.unprepare(claim)))).await?;
    Ok(prepare + unprepare)
}

/// A machine with every GPU twice, the second time in another PCI domain.
fn doubled(mut machine: Topology) -> Topology {
    let first = u32::try_from(machine.gpus.len()).unwrap_or(u32::MAX);
    let elsewhere = |path: &mut String| *path = path.replace("0000:", "0001:");
    let mut more = machine.gpus.clone();
    for gpu in &mut more {
        gpu.uuid = gpu.uuid.replace("GPU-", "GPU-f").chars().take(gpu.uuid.len()).collect();
        gpu.minor += first;
        gpu.iommu_group = None;
        elsewhere(&mut gpu.bus_id);
        gpu.bridges.iter_mut().for_each(elsewhere);
        gpu.pcie_root.iter_mut().for_each(elsewhere);
    }
    machine.gpus.extend(more);
    machine
}
