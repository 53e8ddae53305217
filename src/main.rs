//! The binary: parse, log, run, exit.

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use gpu_dra_plugin::args::{Args, LogFormat};
use tracing_subscriber::EnvFilter;

/// `EX_USAGE` of sysexits.h: the command line is wrong, and running it again will not help.
const USAGE: u8 = 64;

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
    let filter =
        EnvFilter::try_new(&args.log_level).with_context(|| format!("cannot use --log-level {:?}", args.log_level))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    Ok(())
}

fn run(args: Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(gpu_dra_plugin::node::WORKERS)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(gpu_dra_plugin::node::run(args));
    // A call into the driver that hangs keeps its thread for ever; the process ends without it.
    runtime.shutdown_background();
    result
}
