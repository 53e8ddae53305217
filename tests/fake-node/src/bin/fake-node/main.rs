//! `fake-node`: a Kubernetes node without a GPU, from the command line.

mod demo;
mod mig;
mod show;
mod signals;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use fake_node::host::{DeviceNodes, HostBuilder, Layout, refuse_real_driver};
use fake_node::node::{DRIVER, NODE, Node, Settings, Workload};
use fake_node::plugin::Plugin;
use fake_node::release::Release;
use topology::Topology;

use self::signals::{Interrupted, Signals, exit_code};

/// `EX_USAGE` of sysexits.h: the command line is wrong.
const USAGE: u8 = 64;

/// What shells answer for a command that is there and cannot be run, and for one that is not there.
const CANNOT_RUN: u8 = 126;
const NO_SUCH_COMMAND: u8 = 127;

/// A Kubernetes node without a GPU: host tree, mock NVML, fake kubelet and fake API server, with the real plugin on it.
#[derive(Debug, Parser)]
#[command(name = "fake-node", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Take one claim from the plugin's start to the pod's end, and explain each step
    Demo {
        #[command(flatten)]
        machine: Machine,
        /// Leave the node up afterwards, with a kubeconfig for kubectl; Ctrl-C ends it
        #[arg(long)]
        keep: bool,
        /// Print the whole CDI spec instead of its beginning
        #[arg(long)]
        full: bool,
        /// Divide GPUs: two parts of one, and a whole GPU beside it
        #[arg(long, value_name = "HOW", value_enum)]
        mig: Option<demo::Mig>,
    },
    /// Start a node with the plugin and leave it up until Ctrl-C
    Run {
        #[command(flatten)]
        machine: Machine,
    },
    /// Start a node with the plugin, run a command beside it, and end with the command's exit code
    ///
    /// As in a shell, 128 + N is a command that signal N ended, 127 one that was not found, 126 one that cannot be run.
    /// The command finds KUBECONFIG, NODE_NAME, FAKE_NODE_DIR and FAKE_NODE_REGISTRAR (the plugin's registrar socket) in
    /// its environment, and FAKE_NODE_CDI_DEVICES: for each pod a line with the devices that its containers get.
    Exec {
        #[command(flatten)]
        machine: Machine,
        /// Before the command, run a pod of this manifest until its claims are prepared; several times for several pods
        #[arg(long = "pod", value_name = "FILE")]
        pods: Vec<PathBuf>,
        /// A flag of the plugin, such as --plugin-flag=--hook=none; several times for several flags
        #[arg(long = "plugin-flag", value_name = "FLAG")]
        flags: Vec<String>,
        /// The command and its arguments
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Build the files of a machine alone and leave them: for a real kubelet, or any program that reads NVML
    Host {
        #[command(flatten)]
        hardware: Hardware,
        /// Where to build them: a new or empty directory with a short path
        dir: PathBuf,
    },
    /// Create, destroy and list MIG instances of a node that is up, as its administrator does with nvidia-smi
    Mig(mig::Mig),
    /// List the machines that can be played
    Topologies {
        /// Names alone, one a line
        #[arg(long)]
        names: bool,
    },
}

#[derive(Debug, Args)]
struct Hardware {
    /// Which machine to play: a name or enough of its beginning, `help` for a list of them, or a file, whose name ends in
    /// `.json`
    #[arg(long, value_name = "NAME", default_value = "dgx-h100")]
    topology: String,
    /// How its NVIDIA driver is installed
    #[arg(long, value_name = "LAYOUT", value_enum, default_value_t = Layout::Debian)]
    layout: Layout,
    /// Give its GPUs DRM nodes, as the module nvidia-drm does
    #[arg(long)]
    drm: bool,
}

#[derive(Debug, Args)]
struct Machine {
    #[command(flatten)]
    hardware: Hardware,
    /// Which Kubernetes release to play
    #[arg(long, value_name = "RELEASE", default_value = "1.36")]
    release: Release,
    /// Where to build it: a new or empty directory with a short path [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// A node's directory, removed at the end if nobody asked for it.
enum Directory {
    Temporary(tempfile::TempDir),
    Named(PathBuf),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            if let Some(interrupted) = error.downcast_ref::<Interrupted>() {
                return code(interrupted.exit_code());
            }
            eprintln!("error: {error:#}");
            let unknown = matches!(error.downcast_ref(), Some(topology::Error::Unknown { .. }));
            if unknown { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let mut out = io::stdout();
    match command {
        Command::Topologies { names } => list(&mut out, names)?,
        Command::Demo { machine, .. } | Command::Run { machine } | Command::Exec { machine, .. }
            if machine.hardware.topology == "help" =>
        {
            list(&mut out, false)?;
        }
        Command::Host { hardware, dir } => host(&hardware, &dir, &mut out)?,
        Command::Mig(mig) => mig.run(&mut out)?,
        Command::Demo { machine, keep, full, mig } => runtime.block_on(async {
            let mut signals = Signals::new()?;
            let (node, directory) = signals.or(machine.start()).await?;
            let running = signals.or(demo::run(&node, mig, &mut out, full)).await?;
            if keep {
                stay_up(&node, &mut out, &mut signals).await?;
            }
            signals.or(demo::end(&node, running, &mut out)).await?;
            drop(directory);
            anyhow::Ok(())
        })?,
        Command::Run { machine } => runtime.block_on(async {
            let mut signals = Signals::new()?;
            let (node, directory) = signals.or(machine.start()).await?;
            let plugin = signals.or(node.start_ready_plugin()).await?;
            stay_up(&node, &mut out, &mut signals).await?;
            signals.or(plugin.terminate()).await?;
            drop(directory);
            anyhow::Ok(())
        })?,
        Command::Exec { machine, pods, flags, command } => {
            return runtime.block_on(exec(&machine, &pods, flags, &command));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(out: &mut impl Write, names_alone: bool) -> anyhow::Result<()> {
    for name in Topology::names() {
        if names_alone {
            writeln!(out, "{name}")?;
        } else {
            writeln!(out, "{name:32} {}", Topology::builtin(name)?.description)?;
        }
    }
    Ok(())
}

fn host(hardware: &Hardware, dir: &Path, out: &mut impl Write) -> anyhow::Result<()> {
    let library = directory_of_binaries()?.join(Settings::LIBRARY);
    present(&library)?;
    let builder = HostBuilder::new(hardware.topology()?, library).layout(hardware.layout);
    let builder = if hardware.drm { builder.drm() } else { builder };
    refuse_real_driver(Path::new("/proc"), Path::new("/sys"))?;
    let host = builder.build(dir).context("cannot build the machine")?;
    tell_of_placeholders(host.device_nodes());
    writeln!(out, "driver root  {}", host.driver_root().display())?;
    writeln!(out, "NVML         {}", host.library().display())?;
    writeln!(out, "/sys         {}", host.sys().display())?;
    writeln!(out, "/proc        {}", host.proc().display())?;
    writeln!(out, "/dev         {}", host.dev().display())?;
    writeln!(out, "its state    {}", host.node().path().display())?;
    Ok(())
}

fn present(binary: &Path) -> anyhow::Result<()> {
    if !binary.is_file() {
        bail!("{} is missing; build it with: cargo build --workspace", binary.display());
    }
    Ok(())
}

/// Where this program is, and those it needs.
fn directory_of_binaries() -> anyhow::Result<PathBuf> {
    let program = env::current_exe().context("cannot tell where this program is")?;
    Ok(program.parent().unwrap_or(Path::new("/")).to_owned())
}

fn tell_of_placeholders(nodes: &DeviceNodes) {
    if let DeviceNodes::Placeholders { why } = nodes {
        eprintln!("note: device nodes are placeholders, because {why}");
    }
}

async fn exec(
    machine: &Machine,
    pods: &[PathBuf],
    flags: Vec<String>,
    command: &[OsString],
) -> anyhow::Result<ExitCode> {
    let Some((program, args)) = command.split_first() else { bail!("there is no command to run") };
    let mut signals = Signals::new()?;
    let (node, directory) = signals.or(machine.start()).await?;
    let mut settings = node.plugin_settings();
    settings.args.extend(flags);
    let mut plugin = Plugin::start(&settings)?;
    signals.or(plugin.wait_until_ready()).await?;
    let mut devices = Vec::new();
    let mut workloads = Vec::new();
    for (number, pod) in pods.iter().enumerate() {
        let manifest = fs::read_to_string(pod).with_context(|| format!("cannot read {}", pod.display()))?;
        let workload = signals.or(node.run_prepared_pod(&manifest, &format!("pod-{number}"))).await?;
        devices.push(cdi_devices(&node, &workload).join(" "));
        workloads.push(workload);
    }
    let started = tokio::process::Command::new(program)
        .args(args)
        .env("KUBECONFIG", node.kubeconfig())
        .env("NODE_NAME", NODE)
        .env("FAKE_NODE_DIR", node.dir())
        .env("FAKE_NODE_REGISTRAR", registrar(&node))
        .env("FAKE_NODE_CDI_DEVICES", devices.join("\n"))
        .spawn();
    let ended = match started {
        Ok(mut command) => code(exit_code(signals.wait_for(&mut command).await?)),
        Err(error) => {
            eprintln!("error: cannot run {}: {error}", program.display());
            ExitCode::from(if error.kind() == io::ErrorKind::NotFound { NO_SUCH_COMMAND } else { CANNOT_RUN })
        }
    };
    for workload in workloads {
        signals.or(node.end_pod(workload)).await?;
    }
    signals.or(plugin.terminate()).await?;
    drop(directory);
    Ok(ended)
}

/// What a container runtime is told to give to the containers of a pod.
fn cdi_devices(node: &Node, workload: &Workload) -> Vec<String> {
    let uids = workload.claim_uids();
    let claims = node.kubelet.prepared_claims();
    let claims = claims.iter().filter(|claim| uids.contains(&claim.uid));
    claims.flat_map(|claim| claim.cdi_ids(None)).map(str::to_owned).collect()
}

/// Exit codes are bytes; no other number comes from a process.
fn code(number: i32) -> ExitCode {
    u8::try_from(number).map_or(ExitCode::FAILURE, ExitCode::from)
}

async fn stay_up(node: &Node, out: &mut impl Write, signals: &mut Signals) -> anyhow::Result<()> {
    writeln!(out, "\nThe node is up until Ctrl-C. In another terminal:")?;
    writeln!(out, "  export KUBECONFIG={}", node.kubeconfig().display())?;
    writeln!(out, "  kubectl get resourceslices,deviceclasses,resourceclaims")?;
    writeln!(out, "  tail -f {}", node.plugin_log().display())?;
    out.flush()?;
    signals.next().await;
    Ok(())
}

fn registrar(node: &Node) -> PathBuf {
    node.host.kubelet_root().join("plugins_registry").join(format!("{DRIVER}-reg.sock"))
}

// === impl Hardware ===

impl Hardware {
    fn topology(&self) -> anyhow::Result<Topology> {
        let name = &self.topology;
        if Path::new(name).extension().is_none_or(|extension| extension != "json") {
            return Ok(Topology::builtin(name)?);
        }
        let json = fs::read_to_string(name).with_context(|| format!("cannot read {name}"))?;
        Topology::parse(&json).with_context(|| format!("cannot use {name}"))
    }
}

// === impl Machine ===

impl Machine {
    async fn start(&self) -> anyhow::Result<(Node, Directory)> {
        let topology = self.hardware.topology()?;
        refuse_real_driver(Path::new("/proc"), Path::new("/sys"))?;
        let directory = match &self.dir {
            Some(dir) => Directory::Named(dir.clone()),
            None => Directory::Temporary(
                tempfile::Builder::new().prefix("node-").tempdir().context("cannot make a temporary directory")?,
            ),
        };
        let defaults = Settings::new(topology, &directory_of_binaries()?);
        let Hardware { layout, drm, .. } = self.hardware;
        let settings = Settings { release: self.release, layout, drm, ..defaults };
        present(&settings.plugin)?;
        present(&settings.library)?;
        let node = Node::start(settings, directory.path()).await?;
        tell_of_placeholders(node.host.device_nodes());
        Ok((node, directory))
    }
}

// === impl Directory ===

impl Directory {
    fn path(&self) -> &Path {
        match self {
            Self::Temporary(dir) => dir.path(),
            Self::Named(dir) => dir,
        }
    }
}
