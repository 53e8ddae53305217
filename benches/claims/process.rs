//! What the plugin's process costs: memory, threads, CPU while nothing happens, and the time until it is registered.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use fake_node::kubelet::proto::registration;
use fake_node::node::{DRIVER, Node};
use fake_node::plugin::Plugin;
use futures::future::try_join_all;
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;
use tokio::time::sleep;
use topology::Topology;

use crate::crowd;
use crate::node::{Connection, Setup};
use crate::report::{Row, Samples, ms};

/// MiB beside the NVML library.
const MEMORY: f64 = 15.0;
const THREADS: f64 = 10.0;
/// Per cent of one core.
const IDLE: f64 = 0.03;
const START: Duration = Duration::from_millis(100);

/// Claims that come and go, and how many of them at once.
const CLAIMS: usize = 1000;
const AT_ONCE: usize = 16;

/// How long it takes until what calls have left to do is done, and threads that have nothing to do have ended.
const SETTLED: Duration = Duration::from_secs(3);

/// How long a plugin may take to be registered.
const PATIENCE: Duration = Duration::from_secs(10);

/// One process's memory, in KiB.
#[derive(Debug, Clone, Copy, Default)]
struct Memory {
    /// Resident, without what of the NVML library is mapped.
    ours: u64,
    /// What of that no file has: heap and stacks, those of NVML included.
    anonymous: u64,
    /// What of the NVML library is mapped.
    nvml: u64,
}

/// A process while nobody calls it.
struct AtRest {
    /// Per cent of one core.
    cpu: f64,
    /// The most at one time.
    threads: usize,
}

/// Measures all of it.
pub(crate) async fn measure(setup: &Setup, quick: bool) -> anyhow::Result<Vec<Row>> {
    let small = setup.node_of(Topology::builtin("one-gpu")?).await?;
    let (idle, busy) = (setup.node().await?, setup.node().await?);
    let (idle_pid, busy_pid) = (pid(&idle.plugin)?, pid(&busy.plugin)?);
    crowd::fill(&busy, 8).await?;

    // A multiple of the time between two looks at the machine.
    let seconds = if quick { 10 } else { 60 };
    let rests = at_rest([pid(&small.plugin)?, idle_pid, busy_pid], seconds).await?;
    let mut rows = Vec::new();
    for (what, rest) in ["1 GPU without NVLink", "8 GPUs", "8 GPUs, 8 claims prepared"].into_iter().zip(&rests) {
        let reads = format!("{:.3} % of a core", rest.cpu);
        let what = format!("CPU in {seconds} s without calls, {what}");
        rows.push(Row::limit(what, rest.cpu, reads, Some((IDLE, format!("{IDLE} %")))));
    }
    let threads_then = rests.iter().map(|rest| rest.threads).max().unwrap_or_default();
    rows.push(threads_row("most threads in that time", threads_then));
    rows.push(memory_row("memory, no claim yet", memory(idle_pid)?));

    let claims = busy.admin_claims("many", CLAIMS)?;
    for some in claims.chunks(AT_ONCE) {
        try_join_all(some.iter().map(|claim| busy.dra.prepare(claim))).await?;
    }
    rows.push(threads_row("threads while 1000 claims come, 16 at once", threads(busy_pid)?));
    rows.push(memory_row("memory with 1000 claims prepared", memory(busy_pid)?));
    for some in claims.chunks(AT_ONCE) {
        try_join_all(some.iter().map(|claim| busy.dra.unprepare(claim))).await?;
    }
    rows.push(memory_row("memory after 1000 claims", memory(busy_pid)?));
    drop((small, idle, busy));

    rows.extend(starts(setup, if quick { 5 } else { 25 }).await?);
    Ok(rows)
}

fn memory_row(what: &str, memory: Memory) -> Row {
    let ours = mib(memory.ours);
    let reads = format!("{ours:.1} MiB ({:.1} of it anonymous; NVML {:.1})", mib(memory.anonymous), mib(memory.nvml));
    Row::limit(what, ours, reads, Some((MEMORY, format!("{MEMORY} MiB"))))
}

#[expect(clippy::cast_precision_loss, reason = "few")]
fn threads_row(what: &str, threads: usize) -> Row {
    Row::limit(what, threads as f64, threads.to_string(), Some((THREADS, THREADS.to_string())))
}

#[expect(clippy::cast_precision_loss, reason = "memory of one process")]
fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

/// Watches plugins for a time in which nobody calls them.
async fn at_rest<const N: usize>(pids: [u32; N], seconds: u64) -> anyhow::Result<Vec<AtRest>> {
    sleep(SETTLED).await;
    let before = pids.into_iter().map(cpu).collect::<anyhow::Result<Vec<_>>>()?;
    let start = Instant::now();
    let mut most = [0; N];
    while start.elapsed() < Duration::from_secs(seconds) {
        sleep(Duration::from_millis(20)).await;
        for (pid, most) in pids.into_iter().zip(&mut most) {
            *most = threads(pid)?.max(*most);
        }
    }
    let mut rests = Vec::new();
    for ((pid, before), threads) in pids.into_iter().zip(before).zip(most) {
        let used = cpu(pid)?.saturating_sub(before);
        rests.push(AtRest { cpu: used.as_secs_f64() / start.elapsed().as_secs_f64() * 100.0, threads });
    }
    Ok(rests)
}

/// From the start of the process until it has been told that it is registered, by a kubelet that is waiting for it.
async fn starts(setup: &Setup, rounds: usize) -> anyhow::Result<Vec<Row>> {
    let (node, _directory) = setup.machine(Topology::builtin("dgx-h100")?).await?;
    // It would take up to a second to notice.
    node.kubelet.stop().await;
    let (mut starts, mut restarts) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let start = Instant::now();
        let plugin = node.start_plugin()?;
        register(&node).await?;
        starts.push(start.elapsed());
        // With what a crash leaves behind: sockets that nobody listens on.
        plugin.kill().await?;
        let start = Instant::now();
        let mut plugin = node.start_plugin()?;
        register(&node).await?;
        restarts.push(start.elapsed());
        plugin.wait_until_ready().await?;
        plugin.terminate().await?;
    }
    let row = |what: &str, time: Duration| {
        let (figure, limit) = (time.as_secs_f64(), START.as_secs_f64());
        Row::limit(what, figure, ms(time), Some((limit, format!("{} ms", START.as_millis()))))
    };
    let (starts, restarts) = (Samples::new(starts), Samples::new(restarts));
    Ok(vec![
        row("start until registered, p50", starts.p50()),
        row("restart after kill -9 until registered, p50", restarts.p50()),
    ])
}

/// Does what the kubelet does when it finds a registrar's socket.
async fn register(node: &Node) -> anyhow::Result<()> {
    let socket = node.host.kubelet_root().join("plugins_registry").join(format!("{DRIVER}-reg.sock"));
    let registrar = dial(&socket).await?;
    let path = "/pluginregistration.Registration/GetInfo";
    let info: registration::PluginInfo = registrar.call(path, registration::InfoRequest {}).await?;
    Connection::dial(Path::new(&info.endpoint)).await?;
    let path = "/pluginregistration.Registration/NotifyRegistrationStatus";
    let status = registration::RegistrationStatus { plugin_registered: true, error: String::new() };
    let _: registration::RegistrationStatusResponse = registrar.call(path, status).await?;
    Ok(())
}

async fn dial(socket: &Path) -> anyhow::Result<Connection> {
    let start = Instant::now();
    loop {
        match Connection::dial(socket).await {
            Err(_) if start.elapsed() < PATIENCE => sleep(Duration::from_millis(1)).await,
            outcome => return outcome,
        }
    }
}

fn pid(plugin: &Plugin) -> anyhow::Result<u32> {
    plugin.pid().context("the plugin has ended")
}

/// All CPU time that a process has used, in threads that have ended too.
fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let clock: ClockId = clock_getcpuclockid(Pid::from_raw(pid.cast_signed()))?;
    Ok(clock.now()?.into())
}

/// How many threads a process has now.
fn threads(pid: u32) -> anyhow::Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/task"))?.count())
}

/// Adds up a process's mappings, by proc_pid_smaps(5).
fn memory(pid: u32) -> anyhow::Result<Memory> {
    let mut memory = Memory::default();
    let mut in_nvml = false;
    for line in fs::read_to_string(format!("/proc/{pid}/smaps"))?.lines() {
        let Some((key, value)) = line.split_once(':').filter(|(key, _)| !key.contains(' ')) else {
            in_nvml = line.contains("/libnvidia-ml.so");
            continue;
        };
        let kib = || value.trim().trim_end_matches(" kB").parse::<u64>().with_context(|| line.to_owned());
        match key {
            "Rss" if in_nvml => memory.nvml += kib()?,
            "Rss" => memory.ours += kib()?,
            "Anonymous" if !in_nvml => memory.anonymous += kib()?,
            _ => {}
        }
    }
    Ok(memory)
}
