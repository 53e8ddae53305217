//! Which hook containers start with, and the plugin's own put where a container runtime can run it.
//!
//! ```text
//!  own              beside this program ──copied at start──▶ <plugin dir>/gpu-dra-hook      the same path on the host
//!  nvidia-cdi-hook  --nvidia-cdi-hook-path, or a known place on the host
//!  not chosen       own where it is beside this program, else none
//! ```
//!
//! Specs of prepared claims name the hook, and live longer than this process. So the path never changes, a new version
//! takes the place of the old one in one step, and the file stays when the plugin ends.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;
use tracing::{info, warn};

use crate::args::{Containers, HookKind};
use crate::cdi::Hooks;
use crate::host::atomic;
use crate::host::driver_root::DriverRoot;

/// The hook's file name, beside this program and where it is installed.
const NAME: &str = "gpu-dra-hook";

/// Runtimes run it as root.
const MODE: u32 = 0o755;

/// Where NVIDIA's container toolkit puts its hook: as a package, from the GPU Operator, on Talos, on GKE.
const NVIDIA_PLACES: &[&str] = &[
    "/usr/bin/nvidia-cdi-hook",
    "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
    "/usr/local/bin/nvidia-cdi-hook",
    "/home/kubernetes/bin/nvidia/toolkit/nvidia-cdi-hook",
];

/// What was asked for.
pub(super) struct Choice {
    /// Which hook, if it was said.
    hook: Option<HookKind>,
    /// Where to install our own.
    directory: Option<PathBuf>,
    /// Where NVIDIA's is on the host.
    nvidia: Option<PathBuf>,
    /// Where this process sees the host's `/`, if it does.
    host: Option<PathBuf>,
}

/// Why containers cannot start with the hook that was asked for.
#[derive(Debug, thiserror::Error)]
pub(super) enum HookError {
    /// This program's own place is not known.
    #[error("cannot tell where this program is, and so not where its hook is")]
    Program(#[source] io::Error),
    /// Not shipped.
    #[error("{} does not exist: use an image that has it, or --hook=none", path.display())]
    NotShipped {
        /// Beside this program.
        path: PathBuf,
    },
    /// A mount option forbids to run it.
    #[error(
        "no program can be run from {}, because it is mounted noexec: set --hook-directory to a directory of the host \
         that allows it and is mounted at the same path here, or choose --hook=none",
        directory.display()
    )]
    NoExec {
        /// Where it would be.
        directory: PathBuf,
    },
    /// The directory cannot be made or looked at.
    #[error("cannot use {} for the hook: check --hook-directory", directory.display())]
    Directory {
        /// Where it would be.
        directory: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Our copy of it cannot be read.
    #[error("cannot read the hook {}", path.display())]
    Read {
        /// Beside this program.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The file system refused.
    #[error("cannot install the hook")]
    Install(#[source] atomic::Error),
    /// NVIDIA's is not where it was said to be, or nowhere.
    #[error("nvidia-cdi-hook is not on the host: it was looked for at {looked}; see --nvidia-cdi-hook-path and --hook")]
    NoNvidia {
        /// Paths on the host.
        looked: String,
    },
    /// NVIDIA's cannot be looked for.
    #[error("the host's / is not mounted here, so nvidia-cdi-hook cannot be looked for: set --nvidia-cdi-hook-path")]
    Blind,
}

// === impl Choice ===

impl Choice {
    /// What the command line asks for.
    pub(super) fn new(args: Containers, host: Option<PathBuf>) -> Self {
        let Containers { hook, hook_directory: directory, nvidia_cdi_hook_path: nvidia, graphics: _ } = args;
        Self { hook, directory, nvidia, host }
    }

    /// Finds or installs the hook.
    pub(super) fn carry_out(self, plugin_dir: &Path) -> Result<Hooks, HookError> {
        let program = env::current_exe().map_err(HookError::Program)?;
        let hooks = self.carry_out_beside(&program, plugin_dir)?;
        match &hooks {
            Hooks::None => info!("containers start without a hook"),
            Hooks::Own(path) | Hooks::Nvidia(path) => info!(path = %path.display(), "containers start with a hook"),
        }
        Ok(hooks)
    }

    fn carry_out_beside(self, program: &Path, plugin_dir: &Path) -> Result<Hooks, HookError> {
        let Self { hook, directory, nvidia, host } = self;
        let shipped = program.with_file_name(NAME);
        let kind = hook.unwrap_or_else(|| {
            if shipped.is_file() {
                return HookKind::Own;
            }
            warn!(
                looked_at = %shipped.display(),
                "the plugin's hook is not there: containers of another family than the host's have to set \
                 LD_LIBRARY_PATH to $NVIDIA_CTK_LIBCUDA_DIR; --hook=none says that this is meant"
            );
            HookKind::None
        });
        match kind {
            HookKind::None => Ok(Hooks::None),
            HookKind::Own => install(&shipped, directory.as_deref().unwrap_or(plugin_dir)).map(Hooks::Own),
            HookKind::NvidiaCdiHook => find(nvidia, host.as_deref()).map(Hooks::Nvidia),
        }
    }
}

/// Makes the installed hook be the shipped one. One that is already is not written.
fn install(shipped: &Path, directory: &Path) -> Result<PathBuf, HookError> {
    if !shipped.is_file() {
        return Err(HookError::NotShipped { path: shipped.to_owned() });
    }
    let read = |source| HookError::Read { path: shipped.to_owned(), source };
    let bytes = fs::read(shipped).map_err(read)?;
    let unusable = |source| HookError::Directory { directory: directory.to_owned(), source };
    atomic::make_directory(directory, MODE).map_err(unusable)?;
    if is_noexec(directory).map_err(unusable)? {
        return Err(HookError::NoExec { directory: directory.to_owned() });
    }
    atomic::sweep(directory).map_err(HookError::Install)?;
    let path = directory.join(NAME);
    let is_installed = |metadata: fs::Metadata| metadata.is_file() && metadata.permissions().mode() & 0o7777 == MODE;
    let installed = fs::symlink_metadata(&path).is_ok_and(is_installed);
    if !installed || !fs::read(&path).is_ok_and(|old| old == bytes) {
        atomic::write(&path, &bytes, MODE).map_err(HookError::Install)?;
    }
    Ok(path)
}

fn is_noexec(directory: &Path) -> io::Result<bool> {
    Ok(rustix::fs::statvfs(directory)?.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

/// NVIDIA's hook, as the host sees it. What this process cannot see is taken on trust.
fn find(fixed: Option<PathBuf>, host: Option<&Path>) -> Result<PathBuf, HookError> {
    let Some(host) = host else { return fixed.ok_or(HookError::Blind) };
    let candidates = fixed.map_or_else(|| NVIDIA_PLACES.iter().map(PathBuf::from).collect(), |path| vec![path]);
    let root = DriverRoot::new("/", host);
    let is_there = |path: &&PathBuf| root.program(path.strip_prefix("/").unwrap_or(path)).is_some();
    let found = candidates.iter().find(is_there).cloned();
    found.ok_or_else(|| {
        let looked: Vec<_> = candidates.iter().map(|path| path.display().to_string()).collect();
        HookError::NoNvidia { looked: looked.join(", ") }
    })
}

#[cfg(test)]
mod tests;
