//! What remains to be done in a container once its files are mounted, and who does it.
//!
//! ```text
//!              none                own: gpu-dra-hook                nvidia-cdi-hook
//!  names       mounted too         --library, --link                create-symlinks
//!  loader      as the image is     (follows from --library)         update-ldcache
//!  CUDA        the host's          --cuda-compat                    enable-cuda-compat
//!  params      as the host's       --mask-params                    disable-device-node-modification
//!              no process          one process                      one process each
//! ```
//!
//! *Names* are those by which programs and loaders ask for a library: SONAMEs, and links such as `libcuda.so`. *CUDA* is
//! about images that bring a newer libcuda of their own, for drivers older than it. *Params* is the file by which the
//! driver tells its libraries whether to make device nodes themselves: in a container they would make those of all GPUs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::spec::Hook;
use crate::host::driver_root::{DriverFiles, Library};

/// After all mounts and device nodes, before the container's root becomes `/`.
const CREATE_CONTAINER: &str = "createContainer";

/// The only variable of our hook, which reads none.
const OWN_ENVIRONMENT: &str = "LC_ALL=C";

/// As in NVIDIA's own specs.
const NVIDIA_ENVIRONMENT: &str = "NVIDIA_CTK_DEBUG=false";

/// Who finishes containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hooks {
    /// Nobody: what can be done by mounts is done by mounts.
    None,
    /// Our own `gpu-dra-hook`, by its path on the host.
    Own(PathBuf),
    /// `nvidia-cdi-hook` of NVIDIA's container toolkit, by its path on the host.
    Nvidia(PathBuf),
}

/// A symbolic link to be made in a container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Link {
    /// Where it leads: a name beside it, or a path.
    pub(super) target: PathBuf,
    /// Where it is.
    pub(super) path: PathBuf,
}

// === impl Hooks ===

impl Hooks {
    /// Whether names are made by mounts, because nobody makes links.
    pub(super) fn mount_names(&self) -> bool {
        *self == Self::None
    }

    /// What is run for each container that gets these files.
    pub(super) fn of(&self, files: &DriverFiles) -> Vec<Hook> {
        match self {
            Self::None => Vec::new(),
            Self::Own(path) => vec![own(path, files)],
            Self::Nvidia(path) => nvidia(path, files),
        }
    }

    /// Has links made for a device. Our own hook makes those of all devices of a claim, so that it is run once: in a
    /// container that gets only some of them, the others' links lead nowhere.
    pub(super) fn add_links(&self, links: &[Link], common: &mut [Hook], device: &mut Vec<Hook>) {
        if links.is_empty() {
            return;
        }
        match self {
            Self::None => {}
            Self::Own(_) => common.iter_mut().for_each(|hook| hook.args.extend(links.iter().flat_map(own_link))),
            Self::Nvidia(path) => {
                device.push(nvidia_hook(path, "create-symlinks", links.iter().flat_map(nvidia_link)));
            }
        }
    }
}

fn own(path: &Path, files: &DriverFiles) -> Hook {
    let mut args = vec!["gpu-dra-hook".to_owned(), "create-container".to_owned()];
    for library in &files.libraries {
        args.extend(["--library".to_owned(), format!("{}={}", library.soname, library.file.container.display())]);
        // The hook makes this one by itself.
        let soname = library.soname_path();
        args.extend(names(library).filter(|link| link.path != soname).flat_map(|link| own_link(&link)));
    }
    args.extend(data_links(files).flat_map(|link| own_link(&link)));
    args.extend(["--cuda-compat".to_owned(), files.version.clone(), "--mask-params".to_owned()]);
    Hook { hook_name: CREATE_CONTAINER, path: path.to_owned(), args, env: vec![OWN_ENVIRONMENT.to_owned()] }
}

fn own_link(Link { target, path }: &Link) -> [String; 2] {
    ["--link".to_owned(), format!("{}={}", target.display(), path.display())]
}

/// In NVIDIA's order: the cache takes up what those before it have made.
fn nvidia(path: &Path, files: &DriverFiles) -> Vec<Hook> {
    let links = files.libraries.iter().flat_map(names).chain(data_links(files));
    let folders: BTreeSet<_> = files.libraries.iter().filter_map(|library| library.file.container.parent()).collect();
    let folders = folders.into_iter().flat_map(|folder| ["--folder".to_owned(), folder.display().to_string()]);
    vec![
        nvidia_hook(path, "create-symlinks", links.flat_map(|link| nvidia_link(&link))),
        nvidia_hook(path, "enable-cuda-compat", [format!("--host-driver-version={}", files.version)]),
        nvidia_hook(path, "update-ldcache", folders),
        nvidia_hook(path, "disable-device-node-modification", []),
    ]
}

fn nvidia_hook(path: &Path, command: &str, args: impl IntoIterator<Item = String>) -> Hook {
    Hook {
        hook_name: CREATE_CONTAINER,
        path: path.to_owned(),
        args: ["nvidia-cdi-hook".to_owned(), command.to_owned()].into_iter().chain(args).collect(),
        env: vec![NVIDIA_ENVIRONMENT.to_owned()],
    }
}

fn nvidia_link(Link { target, path }: &Link) -> [String; 2] {
    ["--link".to_owned(), format!("{}::{}", target.display(), path.display())]
}

/// The names of a library as links. They lead to the file itself, by its name where they are beside it.
fn names(library: &Library) -> impl Iterator<Item = Link> {
    let file = &library.file.container;
    library.aliases.iter().map(move |alias| {
        let beside = alias.parent() == file.parent();
        let target = file.file_name().filter(|_| beside).map_or_else(|| file.clone(), PathBuf::from);
        Link { target, path: alias.clone() }
    })
}

fn data_links(files: &DriverFiles) -> impl Iterator<Item = Link> {
    files.links.iter().map(|(path, name)| Link { target: name.into(), path: path.clone() })
}
