//! One claim from the plugin's start to the pod's end, told as it happens.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, ensure};
use fake_node::allocator::AllocateError;
use fake_node::host::DeviceNodes;
use fake_node::manifest;
use fake_node::node::{DRIVER, Node, NodeError, Workload};
use fake_node::plugin::Plugin;

use super::show;

/// The pod that asks for GPUs.
const POD: &str = "demo";

/// What the end of the story needs.
pub(super) struct Running {
    plugin: Plugin,
    workload: Workload,
}

/// From the plugin's start to a pod that could start its containers.
pub(super) async fn run(node: &Node, out: &mut impl Write, full: bool) -> anyhow::Result<Running> {
    let nodes = match node.host.device_nodes() {
        DeviceNodes::Real => "real device nodes",
        DeviceNodes::Placeholders { .. } => "placeholders for device nodes",
    };
    writeln!(out, "A machine without a GPU plays: {}", node.host.topology().description)?;
    writeln!(out, "Kubernetes {}, in {}, with {nodes}", node.api.release(), node.dir().display())?;

    heading(out, 1, "the plugin starts, and the kubelet finds it")?;
    let plugin = node.start_ready_plugin().await?;
    let registered = node.kubelet.wait_for_plugin(DRIVER).await;
    writeln!(out, "registered as {DRIVER}, called as {} at {}", registered.service, registered.endpoint.display())?;

    heading(out, 2, "the GPUs are published as ResourceSlices")?;
    show::devices(out, &node.slices())?;

    heading(out, 3, "a pod asks for GPUs, and gets them")?;
    let workload = ask(node, out).await?;
    let devices = workload.devices();
    writeln!(out, "allocated and prepared: {}", devices.join(" and "))?;

    heading(out, 4, "the container runtime finds this CDI spec")?;
    let uid = workload.claim_uids().pop().context("the pod has no claim")?;
    let path = find(&node.host.cdi_dir(), &uid)?;
    let spec = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    writeln!(out, "{}", path.display())?;
    if full {
        writeln!(out, "{spec}")?;
    } else {
        show::spec(out, &serde_json::from_str(&spec)?)?;
    }
    Ok(Running { plugin, workload })
}

/// From the pod's end to the plugin's, with proof that nothing is left.
pub(super) async fn end(node: &Node, running: Running, out: &mut impl Write) -> anyhow::Result<()> {
    let Running { plugin, workload } = running;
    heading(out, 5, "the pod ends, and nothing is left of it")?;
    node.end_pod(workload).await?;
    let specs = files(&node.host.cdi_dir())?;
    let records = files(&node.plugin_dir().join("claims"))?;
    writeln!(out, "unprepared: {} CDI specs and {} claim records left", specs.len(), records.len())?;
    ensure!(specs.is_empty() && records.is_empty(), "left behind: {specs:?} {records:?}");
    let status = plugin.terminate().await?;
    ensure!(status.success(), "the plugin ended with {status}");
    writeln!(out, "the plugin ended when it was asked to")?;
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
