//! What a claim costs, and what the plugin costs while no claim comes.
//!
//! Not a test: nothing here fails because it is slow. It prints ratios of what it measured in one run, because seconds
//! say more about the machine than about the plugin, with the target that each is held to.
//!
//! ```text
//!  this process                               others
//!   ├─ fake API server, fake kubelet
//!   ├─ a client on the DRA socket  ─────────▶ the plugin, as it ships
//!   └─ the same client  ────────────────────▶ floor: gRPC and fsyncs, and nothing else
//! ```
//!
//! `hack/bench` builds what is needed and runs it.

mod burst;
mod crowd;
mod floor;
mod machine;
mod mig;
mod node;
mod process;
mod report;

use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, ValueEnum};

use self::machine::Machine;
use self::node::Setup;
use self::report::Row;

/// Measures the plugin on a fake node and prints a table in Markdown.
#[derive(Debug, Parser)]
#[command(name = "bench", max_term_width = 110)]
struct Args {
    /// What to measure [default: everything]
    sections: Vec<Section>,
    /// Fewer repetitions: under a minute, for a first look
    #[arg(long)]
    quick: bool,
    /// The plugin to measure
    #[arg(long, value_name = "FILE", default_value = env!("CARGO_BIN_EXE_gpu-dra-plugin"))]
    plugin: PathBuf,
    /// Where the nodes are built: the file system of this directory is measured too
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    directory: PathBuf,
    /// Cargo says this to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
    /// Be the floor, in this directory.
    #[arg(long, hide = true)]
    serve_floor: Option<PathBuf>,
    /// As the floor, read this claim first.
    #[arg(long, hide = true, requires = "serve_floor")]
    get: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// One claim against the least that gRPC and its fsyncs take
    Floor,
    /// Many claims at once
    Burst,
    /// One claim beside many others that are prepared
    Crowd,
    /// Claims of MIG devices that are made for them, on all GPUs at once
    Mig,
    /// Memory, threads, idle CPU, start and restart
    Process,
}

fn main() -> anyhow::Result<()> {
    let Args { mut sections, quick, plugin, directory, bench: _, serve_floor, get } = Args::parse();
    if let Some(directory) = serve_floor {
        return floor::serve(&directory, get.as_deref());
    }
    if sections.is_empty() {
        sections = Section::value_variants().to_vec();
    }
    let machine = Machine::look(&directory);
    let setup = Setup::new(plugin, directory)?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    println!("{machine}\n");
    print!("{}", report::HEAD);
    for section in sections {
        let rows = runtime.block_on(async {
            match section {
                Section::Floor => floor::measure(&setup, if quick { 200 } else { 2000 }).await,
                Section::Burst => burst::measure(&setup, machine.cores, if quick { 5 } else { 40 }).await,
                Section::Crowd => crowd::measure(&setup, if quick { 50 } else { 400 }).await,
                Section::Mig => mig::measure(&setup, if quick { 1 } else { 4 }).await,
                Section::Process => process::measure(&setup, quick).await,
            }
        });
        let rows: Vec<Row> = rows.with_context(|| format!("cannot measure {section:?}"))?;
        for row in rows {
            println!("{row}");
        }
    }
    Ok(())
}
