//! The one CDI hook: what has to be done in a container between the mounts and its first program, in one small process.
//!
//! ```text
//!  stdin, arguments ─▶ bundle ─▶ rootfs ─▶ links ─▶ compat ─▶ cache, directories ─▶ params
//! ```
//!
//! | room | what |
//! |---|---|
//! | `args` | the command line: the contract with our CDI specs |
//! | `bundle` | the OCI state and configuration: where the root file system is |
//! | `rootfs` | all reading and writing beneath that root, which the image controls |
//! | `links` | the links beside the mounted libraries |
//! | `compat` | whether the image's own CUDA compatibility libraries win |
//! | `cache` | the loader's cache, without running `ldconfig` |
//! | `directories` | the same for a later `ldconfig`, and for musl |
//! | `params` | the mask that keeps programs from making device nodes |
//!
//! It is linked statically and reads no variable: runc runs hooks with the image's environment, `LD_PRELOAD` included.

mod args;
mod bundle;
mod cache;
mod compat;
mod directories;
mod links;
mod params;
mod rootfs;

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};
use std::iter;
use std::process::ExitCode;

use args::{Command, Work};
use rootfs::{Place, Rootfs};

/// `EX_USAGE` of sysexits.h: the command line is wrong, and running it again will not help.
const USAGE: u8 = 64;

/// Nobody but the owner writes to what is made here, whatever the runtime's mask is.
const UMASK: u32 = 0o022;

fn main() -> ExitCode {
    match Command::parse(env::args_os().skip(1)) {
        Ok(Command::Help) => print(args::HELP),
        Ok(Command::Version) => print(version()),
        Ok(Command::CreateContainer(work)) => match create_container(&work) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&*error, 1),
        },
        Err(error) => fail(&error, USAGE),
    }
}

fn create_container(work: &Work) -> Result<(), Box<dyn Error>> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(UMASK));
    let rootfs = Rootfs::open(&bundle::root(io::stdin())?)?;
    rootfs.while_writable(|| finish(&rootfs, work))
}

fn finish(rootfs: &Rootfs, work: &Work) -> Result<(), Box<dyn Error>> {
    let Work { libraries, links, driver, mask_params } = work;
    links::make(rootfs, libraries, links)?;

    let compat = driver.map_or(Ok(vec![]), |host| compat::libraries(rootfs, host))?;
    let mounted = libraries.iter().map(|library| &library.soname);
    let named: BTreeMap<_, _> = mounted.clone().chain(&compat).map(|place| (place.name(), place)).collect();
    let mut directories = Vec::new();
    for directory in compat.iter().chain(mounted).map(Place::directory) {
        if !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    if !named.is_empty() {
        let unknown = cache::add(rootfs, &named, &directories)?;
        directories::tell_ldconfig(rootfs, &unknown)?;
        directories::tell_musl(rootfs, &directories)?;
    }
    if *mask_params {
        params::mask(rootfs)?;
    }
    Ok(())
}

fn version() -> String {
    let linked = if cfg!(target_feature = "crt-static") { "static" } else { "dynamic, for development only" };
    format!("gpu-dra-hook {} ({linked})", env!("CARGO_PKG_VERSION"))
}

// A line that cannot be written, to a reader that has gone, is lost; the macros of the standard library would panic.

fn print(text: impl Display) -> ExitCode {
    let _ = writeln!(io::stdout(), "{text}");
    ExitCode::SUCCESS
}

/// Says what went wrong and why, in one line.
fn fail(error: &(dyn Error + 'static), code: u8) -> ExitCode {
    let chain: Vec<_> = iter::successors(Some(error), |error| (*error).source()).map(ToString::to_string).collect();
    let _ = writeln!(io::stderr(), "gpu-dra-hook: {}", chain.join(": "));
    ExitCode::from(code)
}

/// A program of this machine that a test compares with. Says so, past the test runner that would hide it, where it is
/// missing.
#[cfg(test)]
fn test_program(name: &str) -> Option<std::path::PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = directories.map(|directory| directory.join(name)).find(|path| path.is_file());
    if found.is_none() {
        let _ = writeln!(io::stderr(), "SKIPPED, for there is no {name} here: a comparison with it");
    }
    found
}
