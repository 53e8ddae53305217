//! Claims from the plugin's start to the pods' end, told as it happens.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, ensure};
use fake_node::allocator::AllocateError;
use fake_node::host::DeviceNodes;
use fake_node::manifest;
use fake_node::node::{DRIVER, Node, NodeError, Workload};
use fake_node::plugin::Plugin;
use topology::mig::GpuInstance;

use super::show;

/// The pod that asks for GPUs.
const POD: &str = "demo";

/// What an administrator makes of a GPU with seven compute slices: how many of them, from which memory slice on.
const MADE_BY_ADMIN: [(u32, u32); 2] = [(4, 0), (3, 4)];

/// `NVML_DEVICE_ARCH_HOPPER`: since then MIG mode is switched without a reset.
const HOPPER: u32 = 9;

/// Who divides GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Mig {
    /// An administrator, before the plugin starts: the first GPU, into a 4g and a 3g
    Static,
    /// The plugin, when a pod asks for it
    Dynamic,
}

/// What the end of the story needs.
pub(super) struct Running {
    plugin: Plugin,
    workloads: Vec<Workload>,
    /// How the GPUs were divided before the plugin started.
    found: Vec<Division>,
}

/// How a GPU is divided.
#[derive(Debug, PartialEq)]
struct Division {
    mig_mode: bool,
    instances: Vec<GpuInstance>,
}

/// From the plugin's start to a pod that could start its containers.
pub(super) async fn run(node: &Node, mig: Option<Mig>, out: &mut impl Write, full: bool) -> anyhow::Result<Running> {
    let nodes = match node.host.device_nodes() {
        DeviceNodes::Real => "real device nodes",
        DeviceNodes::Placeholders { .. } => "placeholders for device nodes",
    };
    writeln!(out, "A machine without a GPU plays: {}", node.host.topology().description)?;
    writeln!(out, "Kubernetes {}, in {}, with {nodes}", node.api.release(), node.dir().display())?;

    if let Some(mig) = mig {
        divide(node, mig, out)?;
    }
    let found = divisions(node)?;
    heading(out, 1, "the plugin starts, and the kubelet finds it")?;
    let mut settings = node.plugin_settings();
    if mig == Some(Mig::Dynamic) {
        settings.args.push("--dynamic-mig=all".to_owned());
    }
    let mut plugin = Plugin::start(&settings)?;
    plugin.wait_until_ready().await?;
    let registered = node.kubelet.wait_for_plugin(DRIVER).await;
    writeln!(out, "registered as {DRIVER}, called as {} at {}", registered.service, registered.endpoint.display())?;

    heading(out, 2, "the GPUs are published as ResourceSlices")?;
    show::devices(out, &node.slices())?;

    heading(out, 3, "a pod asks for GPUs, and gets them")?;
    let mut workloads = vec![if mig.is_some() { ask_for_parts(node, out).await? } else { ask(node, out).await? }];
    tell(out, &workloads[0])?;
    if mig.is_some() {
        writeln!(out, "deploy/examples/one-gpu: count 1, beside it")?;
        let whole = node.run_prepared_pod(manifest::ONE_GPU, "demo-whole").await?;
        tell(out, &whole)?;
        workloads.push(whole);
    }

    heading(out, 4, "the container runtime finds this CDI spec")?;
    let uid = workloads[0].claim_uids().pop().context("the pod has no claim")?;
    let path = find(&node.host.cdi_dir(), &uid)?;
    let spec = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    writeln!(out, "{}", path.display())?;
    if full {
        writeln!(out, "{spec}")?;
    } else {
        show::spec(out, &serde_json::from_str(&spec)?)?;
    }
    Ok(Running { plugin, workloads, found })
}

/// From the pod's end to the plugin's, with proof that nothing is left.
pub(super) async fn end(node: &Node, running: Running, out: &mut impl Write) -> anyhow::Result<()> {
    let Running { plugin, workloads, found } = running;
    heading(out, 5, "the pods end, and nothing is left of them")?;
    for workload in workloads {
        node.end_pod(workload).await?;
    }
    let specs = files(&node.host.cdi_dir())?;
    let records = files(&node.plugin_dir().join("claims"))?;
    writeln!(out, "unprepared: {} CDI specs and {} claim records left", specs.len(), records.len())?;
    ensure!(specs.is_empty() && records.is_empty(), "left behind: {specs:?} {records:?}");
    let left = divisions(node)?;
    let instances: usize = left.iter().map(|gpu| gpu.instances.len()).sum();
    let in_mig_mode = left.iter().filter(|gpu| gpu.mig_mode).count();
    ensure!(left == found, "the GPUs were {found:?} and are left as {left:?}");
    writeln!(out, "the GPUs are as they were found: {instances} GPU instances, {in_mig_mode} in MIG mode")?;
    let status = plugin.terminate().await?;
    ensure!(status.success(), "the plugin ended with {status}");
    writeln!(out, "the plugin ended when it was asked to")?;
    Ok(())
}

/// What somebody has done to the machine before: an administrator's MIG devices, or MIG mode where a board has to be reset
/// for it.
fn divide(node: &Node, mig: Mig, out: &mut impl Write) -> anyhow::Result<()> {
    let dir = node.host.node();
    let topology = node.host.topology();
    let first = topology.gpus.iter().position(|gpu| topology.mig_table(topology.board(gpu)).is_some());
    let first = first.context("this machine has no GPU that can be divided; --topology help lists others")?;
    let board = topology.board(&topology.gpus[first]);
    let needs_reset = board.architecture < HOPPER;
    if mig == Mig::Static || needs_reset {
        dir.update(|state| state.gpus.entry(first).or_default().mig_enabled = Some(true))?;
        writeln!(out, "An administrator has switched MIG mode on for GPU {first}.")?;
    }
    if mig == Mig::Static {
        let table = topology.mig_table(board).context("the GPU has no table of profiles")?;
        for (slices, start) in MADE_BY_ADMIN {
            let profile = table.profiles.iter().find(|profile| profile.slices == slices);
            let profile = profile.with_context(|| format!("this GPU has no parts of {slices} compute slices"))?;
            dir.create_instance(first, profile.id, Some(start))?;
            writeln!(out, "An administrator has made a {} of it.", profile.name)?;
        }
    }
    Ok(())
}

/// What the driver has of each GPU, whatever the plugin says.
fn divisions(node: &Node) -> anyhow::Result<Vec<Division>> {
    let state = node.host.node().state()?;
    let gpus = node.host.topology().gpus.iter().enumerate().map(|(index, gpu)| {
        let now = state.gpus.get(&index).cloned().unwrap_or_default();
        Division { mig_mode: now.mig_on(gpu), instances: now.mig.gpu_instances }
    });
    Ok(gpus.collect())
}

/// Asks for two parts of one GPU.
async fn ask_for_parts(node: &Node, out: &mut impl Write) -> anyhow::Result<Workload> {
    writeln!(out, "deploy/examples/mig-3g-and-4g-on-one-gpu: a 4g and a 3g, matchAttribute {DRIVER}/parentUUID")?;
    Ok(node.run_prepared_pod(manifest::MIG_3G_AND_4G_ON_ONE_GPU, POD).await?)
}

fn tell(out: &mut impl Write, workload: &Workload) -> anyhow::Result<()> {
    writeln!(out, "allocated and prepared: {}", workload.devices().join(" and "))?;
    Ok(())
}

/// Asks for two GPUs in one NVLink domain; where no two GPUs are linked, for one.
async fn ask(node: &Node, out: &mut impl Write) -> anyhow::Result<Workload> {
    writeln!(out, "deploy/examples/two-gpus-one-nvlink-domain: count 2, matchAttribute {DRIVER}/nvlinkDomain")?;
    match node.run_prepared_pod(manifest::TWO_GPUS_ONE_NVLINK_DOMAIN, POD).await {
        Err(NodeError::Allocate(AllocateError::Unsatisfiable { .. })) => {
            writeln!(out, "no: this machine has no two GPUs that are joined by NVLink, and the claim stays pending")?;
            writeln!(out, "deploy/examples/one-gpu: count 1")?;
            Ok(node.run_prepared_pod(manifest::ONE_GPU, "demo-one").await?)
        }
        result => Ok(result?),
    }
}

fn heading(out: &mut impl Write, number: u32, text: &str) -> anyhow::Result<()> {
    writeln!(out, "\n{number}. {text}")?;
    Ok(())
}

fn find(dir: &Path, part: &str) -> anyhow::Result<std::path::PathBuf> {
    let found = files(dir)?.into_iter().find(|name| name.contains(part));
    found.map(|name| dir.join(name)).with_context(|| format!("no file in {} is named after {part}", dir.display()))
}

/// The names of the regular files in a directory.
fn files(dir: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}
