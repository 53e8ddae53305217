//! What an administrator does with `nvidia-smi mig` on a real node.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use topology::mig::Table;
use topology::{NodeDir, Switched, Topology};

/// Where the state of the mock NVML is, from the directory of a node.
const STATE: &str = "nvml";

#[derive(Debug, Args)]
pub(super) struct Mig {
    /// The node's directory
    #[arg(long, value_name = "DIR", env = "FAKE_NODE_DIR")]
    dir: PathBuf,
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Show the instances of all GPUs, and how many more of each profile there is room for
    List,
    /// Switch MIG mode on: `nvidia-smi -i GPU -mig 1`
    On {
        /// Index of the GPU
        gpu: usize,
    },
    /// Switch MIG mode off: `nvidia-smi -i GPU -mig 0`
    Off {
        /// Index of the GPU
        gpu: usize,
    },
    /// Create an instance and the MIG device that fills it: `nvidia-smi mig -i GPU -cgi PROFILE[:START] -C`
    Create {
        /// Index of the GPU
        gpu: usize,
        /// Id or name of the profile
        profile: String,
        /// The first memory slice; the driver chooses one if there is none
        start: Option<u32>,
    },
    /// Destroy an instance and the MIG devices in it: `nvidia-smi mig -dci`, then `-dgi`
    Destroy {
        /// Index of the GPU
        gpu: usize,
        /// Id of the GPU instance
        gpu_instance: u32,
    },
    /// Reset a GPU: its instances are gone, and the MIG mode that was waiting for it comes into force
    Reset {
        /// Index of the GPU
        gpu: usize,
    },
}

// === impl Mig ===

impl Mig {
    pub(super) fn run(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let node = NodeDir::open(self.dir.join(STATE));
        let topology = node.topology().with_context(|| format!("{} is no directory of a node", self.dir.display()))?;
        match &self.act {
            Act::List => list(out, &node, &topology)?,
            Act::On { gpu } => switch(out, &node, *gpu, true)?,
            Act::Off { gpu } => switch(out, &node, *gpu, false)?,
            Act::Create { gpu, profile, start } => {
                let id = profile_id(&topology, *gpu, profile)?;
                let created = node.create_instance(*gpu, id, *start);
                let created = created.with_context(|| format!("cannot create {profile} on GPU {gpu}"))?;
                let (gi, ci) = (created.gpu_instance, created.compute_instance);
                writeln!(out, "GPU {gpu}: created GPU instance {gi} with compute instance {ci}, {}", created.uuid)?;
            }
            Act::Destroy { gpu, gpu_instance } => {
                let destroyed = node.destroy_instance(*gpu, *gpu_instance);
                destroyed.with_context(|| format!("cannot destroy GPU instance {gpu_instance} on GPU {gpu}"))?;
            }
            Act::Reset { gpu } => node.reset(*gpu).with_context(|| format!("cannot reset GPU {gpu}"))?,
        }
        Ok(())
    }
}

fn switch(out: &mut impl Write, node: &NodeDir, gpu: usize, on: bool) -> anyhow::Result<()> {
    let word = if on { "on" } else { "off" };
    match node.switch_mig(gpu, on).with_context(|| format!("cannot switch MIG mode of GPU {gpu} {word}"))? {
        Switched::Now => writeln!(out, "GPU {gpu}: MIG mode is {word}")?,
        Switched::AfterReset => writeln!(out, "GPU {gpu}: MIG mode will be {word} after a reset")?,
    }
    Ok(())
}

/// The id of a profile, given as id or as name; two of one name can be told by their ids alone.
fn profile_id(topology: &Topology, gpu: usize, profile: &str) -> anyhow::Result<u32> {
    if let Ok(id) = profile.parse() {
        return Ok(id);
    }
    let Some(table) = table(topology, gpu) else { bail!("there is no GPU {gpu}, or it cannot be partitioned") };
    let mut alike = table.profiles.iter().filter(|known| known.name == profile).map(|known| known.id);
    match (alike.next(), alike.next()) {
        (Some(id), None) => Ok(id),
        (Some(_), Some(_)) => bail!("GPU {gpu} has several profiles {profile}: give the id of one"),
        (None, _) => {
            let known: Vec<_> = table.profiles.iter().map(|known| known.name.as_str()).collect();
            bail!("GPU {gpu} has no profile {profile}; it has {}", known.join(", "))
        }
    }
}

fn list(out: &mut impl Write, node: &NodeDir, topology: &Topology) -> anyhow::Result<()> {
    let state = node.state().context("cannot read the state of the node")?;
    for (index, gpu) in topology.gpus.iter().enumerate() {
        let name = &topology.board(gpu).product_name;
        let Some(table) = table(topology, index) else {
            writeln!(out, "GPU {index}: {name}, cannot be partitioned")?;
            continue;
        };
        let of_gpu = state.gpus.get(&index).cloned().unwrap_or_default();
        let on = of_gpu.mig_on(gpu);
        let pending = of_gpu.mig_pending.filter(|pending| *pending != on).map_or("", |_| ", changes with a reset");
        writeln!(out, "GPU {index}: {name}, MIG mode {}{pending}", if on { "on" } else { "off" })?;
        if !on {
            continue;
        }
        for gi in &of_gpu.mig.gpu_instances {
            let profile = table.profile(gi.profile).map_or("?", |profile| &profile.name);
            let at = gi.placement;
            writeln!(out, "  GPU instance {:<2} {profile:12} slices {}:{}", gi.id, at.start, at.size)?;
            for ci in &gi.compute_instances {
                let (id, index, uuid) = (ci.id, ci.index, &ci.uuid);
                writeln!(out, "    compute instance {id}, MIG device {index}: {uuid}")?;
            }
        }
        let room = table.profiles.iter().map(|profile| {
            let room = of_gpu.mig.room(table, profile.id).unwrap_or(0);
            format!("{} {} (id {})", room, profile.name, profile.id)
        });
        writeln!(out, "  room for {}", room.collect::<Vec<_>>().join(", "))?;
    }
    Ok(())
}

fn table(topology: &Topology, gpu: usize) -> Option<&Table> {
    topology.gpus.get(gpu).and_then(|gpu| topology.mig_table(topology.board(gpu)))
}
