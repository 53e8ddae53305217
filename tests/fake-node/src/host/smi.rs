//! A stand-in for `nvidia-smi`.
//!
//! The real one talks to NVML through a private table, so no mock can serve it. This one is a POSIX shell script that
//! prints files which lie next to it and writes down how it was called. A scenario changes the files.
//!
//! ```text
//!  nvidia-smi, nvidia-smi.d/table     printed without arguments
//!                           list      printed for -L, a line for each GPU
//!                           mig-<n>   printed below the line of GPU n, written by who creates or destroys MIG instances
//!                           version   printed for --version
//!                           calls     one line of arguments for each call, written by the script
//!                           fail      if it is there: printed to standard error, and the script exits with 1
//! ```

use std::fmt::Write;

use topology::Topology;

use super::Error;
use super::tree::Tree;

/// The directory beside the script.
pub(super) const DATA: &str = "nvidia-smi.d";

const SCRIPT: &str = r#"#!/bin/sh
# Stand-in for nvidia-smi on a machine without a GPU: prints the files in nvidia-smi.d.
data="${0%/*}/nvidia-smi.d"
[ -d "$data" ] || { echo "nvidia-smi stand-in: $data is missing" >&2; exit 9; }
# In a container the directory may be read-only.
{ printf '%s\n' "$*" >>"$data/calls"; } 2>/dev/null
[ -e "$data/fail" ] && { cat "$data/fail" >&2; exit 1; }
case "${1-}" in
    '') cat "$data/table" ;;
    -L | --list-gpus)
        gpu=0
        while IFS= read -r line; do
            printf '%s\n' "$line"
            [ ! -e "$data/mig-$gpu" ] || cat "$data/mig-$gpu"
            gpu=$((gpu + 1))
        done <"$data/list"
        ;;
    --version) cat "$data/version" ;;
esac
"#;

/// Writes the script and what it prints.
pub(super) fn install(tree: &Tree, dir: &str, topology: &Topology, version: &str) -> Result<(), Error> {
    let cuda = topology.system.cuda_version;
    let cuda = format!("{}.{}", cuda / 1000, cuda % 1000 / 10);
    tree.file(format!("{dir}/{DATA}/table"), table(topology, version, &cuda))?;
    tree.file(format!("{dir}/{DATA}/list"), list(topology))?;
    tree.file(
        format!("{dir}/{DATA}/version"),
        format!(
            "NVIDIA-SMI version  : {version}\nNVML version        : {}\nDRIVER version      : {version}\n\
             CUDA Version        : {cuda}\n",
            version.split('.').take(2).collect::<Vec<_>>().join("."),
        ),
    )?;
    tree.executable(format!("{dir}/nvidia-smi"), SCRIPT)
}

fn list(topology: &Topology) -> String {
    let mut text = String::new();
    for (index, gpu) in topology.gpus.iter().enumerate() {
        let _ = writeln!(text, "GPU {index}: {} (UUID: {})", topology.board(gpu).product_name, gpu.uuid);
    }
    text
}

fn table(topology: &Topology, version: &str, cuda: &str) -> String {
    let rule = format!("+{}+\n", "-".repeat(77));
    let mut text = rule.clone();
    let _ = writeln!(text, "| fake-node            Driver Version: {version:<18} CUDA Version: {cuda:<6}|");
    text += &rule;
    for (index, gpu) in topology.gpus.iter().enumerate() {
        let board = topology.board(gpu);
        let _ = writeln!(
            text,
            "| {index:>3}  {:<28} 0000{:<14} {:>8}MiB  {:>4}W{:5}|",
            board.product_name,
            gpu.bus_id.to_uppercase(),
            board.memory_mib,
            board.power_limit_watts,
            ""
        );
    }
    text + &rule
}
