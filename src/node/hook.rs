//! Which hook containers start with, and the plugin's own put where a container runtime can run it.
//!
//! ```text
//!  own              beside this program ──copied at start──▶ <plugin dir>/gpu-dra-hook      the same path on the host
//!  nvidia-cdi-hook  --nvidia-cdi-hook-path, or a known place on the host
//!  not chosen       own where it is beside this program and the kernel is new enough for it, else none
//! ```
//!
//! Specs of prepared claims name the hook, and live longer than this process. So the path never changes, a new version
//! takes the place of the old one in one step, and the file stays when the plugin ends.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatVfsMountFlags, StatxFlags};
use rustix::io::Errno;
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
    /// What our own needs and this kernel, which is that of all containers, does not have.
    lacking: Option<&'static str>,
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
    /// The kernel is too old.
    #[error("the plugin's hook needs Linux 5.8 or newer, and this kernel has no {lacking}: choose another --hook")]
    Kernel {
        /// What it does not have.
        lacking: &'static str,
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
        Self { hook, directory, nvidia, host, lacking: lacking() }
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
        let Self { hook, directory, nvidia, host, lacking } = self;
        let shipped = program.with_file_name(NAME);
        let kind = hook.unwrap_or_else(|| {
            let why = match lacking {
                _ if !shipped.is_file() => format!("{} is not there", shipped.display()),
                Some(lacking) => format!("it needs Linux 5.8 or newer, and this kernel has no {lacking}"),
                None => return HookKind::Own,
            };
            warn!(
                why,
                "containers start without the plugin's hook: those of another family than the host's have to set \
                 LD_LIBRARY_PATH to $NVIDIA_CTK_LIBCUDA_DIR; --hook=none says that this is meant"
            );
            HookKind::None
        });
        match (kind, lacking) {
            (HookKind::None, _) => Ok(Hooks::None),
            (HookKind::Own, Some(lacking)) => Err(HookError::Kernel { lacking }),
            (HookKind::Own, None) => {
                let path = install(&shipped, directory.as_deref().unwrap_or(plugin_dir))?;
                if let Some(closed) = closed_above(&path, host.as_deref()) {
                    warn!(
                        directory = %closed.display(),
                        "only its owner can reach the hook, so pods with `hostUsers: false` cannot start: if there are \
                         any, set --hook-directory to a directory of the host that all can enter and that is mounted at \
                         the same path here"
                    );
                }
                Ok(Hooks::Own(path))
            }
            (HookKind::NvidiaCdiHook, _) => find(nvidia, host.as_deref()).map(Hooks::Nvidia),
        }
    }
}

/// What the hook does not do without: paths beneath a root, and telling one mount from another.
fn lacking() -> Option<&'static str> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = rustix::fs::openat2(CWD, "/", flags, Mode::empty(), ResolveFlags::IN_ROOT);
    // What else may be wrong here, as a filter of system calls, need not be so for a runtime.
    if matches!(opened, Err(Errno::NOSYS | Errno::INVAL)) {
        return Some("openat2");
    }
    let found = rustix::fs::statx(CWD, "/", AtFlags::empty(), StatxFlags::MNT_ID);
    match found {
        Err(Errno::NOSYS) => Some("statx"),
        Ok(found) if found.stx_mask & StatxFlags::MNT_ID.bits() == 0 => Some("mount ids in statx"),
        _ => None,
    }
}

/// The first directory above a path that not everyone can enter. Runtimes run the hook as root of the container, and in a
/// user namespace of its own that is nobody on the host.
fn closed_above(path: &Path, host: Option<&Path>) -> Option<PathBuf> {
    // Above what is mounted here are directories of this container, which say nothing.
    let host = host.unwrap_or(Path::new("/"));
    let is_closed = |directory: &&Path| {
        let metadata = fs::metadata(host.join(directory.strip_prefix("/").unwrap_or(directory)));
        metadata.is_ok_and(|metadata| metadata.permissions().mode() & 0o001 == 0)
    };
    let above: Vec<_> = path.ancestors().skip(1).collect();
    above.into_iter().rev().find(is_closed).map(Path::to_owned)
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
