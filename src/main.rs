//! The binary: parse, log, run, exit.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use gpu_dra_plugin::args::{Args, LogFormat};
use tracing_subscriber::EnvFilter;

/// `EX_USAGE` of sysexits.h: the command line is wrong, and running it again will not help.
const USAGE: u8 = 64;

/// Threads for what blocks: the disk. Few are enough, because file systems write one journal, and work on one GPU waits
/// for its turn anyway; each that has ever been busy costs memory for as long as the process lives. Two are left by claims
/// on a disk that hangs, for the names of hosts and whatever else blocks.
const BLOCKING: usize = gpu_dra_plugin::prepare::STEPS_AT_ONCE + 2;

/// How long such a thread waits for more: a claim takes milliseconds, and the next may be hours away.
const BLOCKING_IDLE: Duration = Duration::from_secs(1);

/// Says every failed request once more, as an error; whoever made it has said so, once.
const QUIET: &str = "kube_client::client::builder=off";

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // `--help` and `--version` come this way too and print to standard output.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    if let Err(error) = log(&args) {
        eprintln!("error: {error:#}");
        return ExitCode::from(USAGE);
    }
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn log(args: &Args) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(format!("{QUIET},{}", args.log_level))
        .with_context(|| format!("--log-level {:?} is neither a level nor a filter", args.log_level))?;
    // A line that cannot be written, to a full disk or a reader that has gone, is lost; the default is a panic.
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).log_internal_errors(false);
    match args.log_format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    Ok(())
}

fn run(args: Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(gpu_dra_plugin::node::WORKERS)
        .max_blocking_threads(BLOCKING)
        .thread_keep_alive(BLOCKING_IDLE)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(gpu_dra_plugin::node::run(args));
    // A call into the driver that hangs keeps its thread for ever; the process ends without it.
    runtime.shutdown_background();
    result
}
