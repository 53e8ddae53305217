//! MIG devices that come and go with their claims, as when the pods of a whole machine start: 7 on each of 8 GPUs.
//!
//! To make one or to destroy it takes NVML time, in which the GPU is changed by nobody else. So work on one GPU queues, and
//! the best that all can be done in is what one GPU takes alone. The mock's work is instant, so it is told to take time.

use std::time::Duration;

use anyhow::ensure;
use fake_node::kubelet::proto::v1;
use futures::future::try_join_all;
use topology::{Fault, Topology};

use crate::node::{BenchNode, Setup, timed};
use crate::report::{Row, Samples};

/// Parts of one GPU: of profile 19 (1g.10gb) as many as there are, each in a memory slice.
const PARTS: usize = 7;

/// What each of the calls takes that make or destroy an instance.
const CALL: Duration = Duration::from_millis(200);

/// The calls: two for a MIG device, two to destroy it.
const SLOW: [&str; 4] = [
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
];

/// Times what the slowest GPU takes alone.
const TARGET: f64 = 1.2;

/// In each round one of the GPUs has its claims one by one, then all GPUs have theirs at once.
pub(crate) async fn measure(setup: &Setup, rounds: usize) -> anyhow::Result<Vec<Row>> {
    let node = setup.node_with(Topology::builtin("dgx-h100")?, &["--dynamic-mig=all"]).await?;
    let claims = claims(&node)?;
    let slow = |call: &str| Fault {
        call: call.to_owned(),
        delay_ms: CALL.as_millis().try_into().unwrap_or(u64::MAX),
        ..Fault::default()
    };
    node.host.node().update(|state| state.faults = SLOW.map(slow).into())?;

    let (mut prepares, mut unprepares) = (Times::default(), Times::default());
    for one in claims.iter().cycle().take(rounds) {
        let (prepare, unprepare) = in_turn(&node, one).await?;
        prepares.alone.push(prepare);
        unprepares.alone.push(unprepare);
        let all = || claims.iter().flatten();
        prepares.at_once.push(timed(try_join_all(all().map(|claim| node.dra.prepare(claim)))).await?);
        unprepares.at_once.push(timed(try_join_all(all().map(|claim| node.dra.unprepare(claim)))).await?);
    }
    let (gpus, all) = (claims.len(), claims.iter().flatten().count());
    let row = |what: &str, times: Times| {
        let slowest = times.alone.into_iter().max().unwrap_or_default();
        let what = format!("{all} MIG claims on {gpus} GPUs {what} at once, p50");
        Row::ratio(what, Samples::new(times.at_once).p50(), ("slowest GPU, one by one,", slowest), Some(TARGET))
    };
    Ok(vec![row("prepared", prepares), row("unprepared", unprepares)])
}

#[derive(Default)]
struct Times {
    /// Those of one GPU, one after the other.
    alone: Vec<Duration>,
    /// Those of all GPUs.
    at_once: Vec<Duration>,
}

/// Claims of all parts, by GPU.
fn claims(node: &BenchNode) -> anyhow::Result<Vec<Vec<v1::Claim>>> {
    let devices = node.devices();
    let names = devices.iter().filter_map(|device| device["name"].as_str());
    let parts: Vec<_> = names.filter(|name| name.contains("-mig-1g10gb-19-")).collect();
    ensure!(!parts.is_empty(), "the machine should have parts of GPUs");
    let mut claims = Vec::new();
    // In the slices each GPU's are together.
    for parts in parts.chunks(PARTS) {
        claims.push(parts.iter().map(|part| node.claim(part, part)).collect::<anyhow::Result<_>>()?);
    }
    Ok(claims)
}

/// Prepares claims one after the other, then unprepares them so.
async fn in_turn(node: &BenchNode, claims: &[v1::Claim]) -> anyhow::Result<(Duration, Duration)> {
    let (mut prepares, mut unprepares) = (Duration::ZERO, Duration::ZERO);
    for claim in claims {
        prepares += timed(node.dra.prepare(claim)).await?;
    }
    for claim in claims {
        unprepares += timed(node.dra.unprepare(claim)).await?;
    }
    Ok((prepares, unprepares))
}
