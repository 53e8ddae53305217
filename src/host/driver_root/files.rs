//! The driver's files that a container gets.
//!
//! There is no list of libraries to go stale: whatever carries the driver's version in its name belongs to the driver.
//! Everything but the libraries is optional, for installations differ in what they ship.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::elf::{self, Elf};
use super::graphics::Graphics;
use super::{Directory, DriverRoot, relative, under};

/// Where programs are looked for, and found by people in a container.
const BINARY_DIRECTORIES: &[&str] = &["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Where Bottlerocket has the programs that it has no link for in `/usr/bin`, and where containers get them.
const HIDDEN_BINARIES: (&str, &str) = ("usr/libexec/nvidia/tesla/bin", "/usr/bin");

/// Programs for compute and monitoring.
const BINARIES: &[&str] = &[
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
];

/// Programs for X.
const GRAPHICS_BINARIES: &[&str] = &["nvidia-xconfig"];

/// Where the driver's daemons listen: both spellings, of which one is usually a link to the other.
const SOCKET_DIRECTORIES: &[&str] = &["/run", "/var/run"];

/// The daemons' sockets. An MPS daemon's pipe (`/tmp/nvidia-mps`) is not among them: a container that is not meant to
/// share its GPU must not attach to a daemon that happens to run on the host.
const SOCKETS: &[&str] = &["nvidia-persistenced/socket", "nvidia-fabricmanager/socket"];

/// What a container runs CUDA with.
const CUDA: &str = "libcuda.so.";

/// Libraries that programs also ask for by the name that only development packages install. That name is made where the
/// host has it, and for these always, as NVIDIA's tools do.
const BARE: &[&str] = &["libcuda", "libnvidia-opticalflow", "libnvidia-vulkan-producer"];

/// The driver's library that GLVND asks for by another name where no X server says which vendor to take.
const INDIRECT: (&str, &str) = ("libGLX_nvidia", "libGLX_indirect.so.0");

/// What the kernel says about where firmware is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kernel {
    /// `uname -r`.
    pub release: Option<String>,
    /// `/sys/module/firmware_class/parameters/path`.
    pub firmware_path: Option<PathBuf>,
    /// See [`module_version`].
    pub driver_version: Option<String>,
}

/// What was found under a driver root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverFiles {
    /// The driver's version.
    pub version: String,
    /// `*.so.<version>`, and with graphics some that have a version of their own; `libcuda` is among them.
    pub libraries: Vec<Library>,
    /// What is mounted as it is: files by which loaders find the driver's libraries, and modules of X.
    pub data: Vec<Mapped>,
    /// Names of `data` that are links beside it: where, and to which file name.
    pub links: Vec<(PathBuf, String)>,
    /// Programs.
    pub binaries: Vec<Mapped>,
    /// Firmware that the driver reloads into a GPU.
    pub firmware: Vec<Mapped>,
    /// Sockets of the driver's daemons.
    pub sockets: Vec<Mapped>,
    /// What is optional and was not found.
    pub absent: Vec<&'static str>,
}

/// A file of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapped {
    /// Where the container runtime finds it, without links.
    pub host: PathBuf,
    /// Where it appears in a container.
    pub container: PathBuf,
}

/// A library of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    /// The file.
    pub file: Mapped,
    /// The name that the dynamic loader asks for; that of the file if it says no other.
    pub soname: String,
    /// Other paths in a container under which programs and the dynamic loader ask for it.
    pub aliases: Vec<PathBuf>,
}

/// No libcuda of the driver's version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("libcuda.so.{} is in none of the library directories {} of the driver root {}",
    version.as_deref().unwrap_or("<version>"), list(looked), root.display())]
pub struct NoLibraries {
    /// The version that was looked for; `None` if any would have done.
    pub version: Option<String>,
    /// The root, as the container runtime sees it.
    pub root: PathBuf,
    /// The directories that exist and were looked into, below the root.
    pub looked: Vec<PathBuf>,
}

/// The version of the driver's kernel module, while it is loaded.
pub fn module_version(sys: &Path) -> Option<String> {
    line(&sys.join("module/nvidia/version"))
}

/// The line that a file of the kernel holds, unless it is empty.
fn line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

// === impl Kernel ===

impl Kernel {
    /// Reads what there is to read.
    pub fn read(proc: &Path, sys: &Path) -> Self {
        Self {
            release: line(&proc.join("sys/kernel/osrelease")),
            firmware_path: line(&sys.join("module/firmware_class/parameters/path")).map(PathBuf::from),
            driver_version: module_version(sys),
        }
    }
}

// === impl Library ===

impl Library {
    /// Whether this is libcuda, without which a container cannot use its GPU.
    pub fn is_cuda(&self) -> bool {
        self.file.container.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(CUDA.as_bytes()))
    }

    /// Where a loader that searches the library's directory looks for it.
    pub fn soname_path(&self) -> PathBuf {
        self.file.container.with_file_name(&self.soname)
    }
}

// === impl DriverRoot ===

impl DriverRoot {
    /// Finds the files of the driver. The version is NVML's word if it is known, else that of the first libcuda.
    pub fn files(&self, version: Option<&str>, kernel: &Kernel, graphics: bool) -> Result<DriverFiles, NoLibraries> {
        let directories = self.library_directories();
        let below = |directory: &Directory| {
            let real = directory.real.strip_prefix(&self.directory);
            Path::new("/").join(real.unwrap_or(&directory.real))
        };
        let missing = || NoLibraries {
            version: version.map(str::to_owned),
            root: self.host(),
            looked: directories.iter().map(below).collect(),
        };
        let found = version.map(str::to_owned).or_else(|| self.version_of_cuda(&directories));
        let version = found.ok_or_else(missing)?;
        let mut libraries = self.libraries(&directories, &version);
        if !libraries.iter().any(Library::is_cuda) {
            return Err(missing());
        }
        let mut absent = Vec::new();
        let mut binaries = self.binaries(BINARIES, &mut absent);
        let mut data = self.opencl(&mut absent);
        let mut links = Vec::new();
        if graphics {
            let Graphics { libraries: own, data: files, links: names } = self.graphics(&directories, &version);
            self.name_for_gbm(&directories, &mut libraries);
            libraries.extend(own);
            data.extend(files);
            links.extend(names);
            binaries.extend(self.binaries(GRAPHICS_BINARIES, &mut absent));
        }
        Ok(DriverFiles {
            libraries,
            data,
            links,
            binaries,
            firmware: self.firmware(&version, kernel, &mut absent),
            sockets: self.sockets(&mut absent),
            absent,
            version,
        })
    }

    fn libraries(&self, directories: &[Directory], version: &str) -> Vec<Library> {
        let suffix = format!(".so.{version}");
        let mut libraries: Vec<Library> = Vec::new();
        let vdpau =
            |directory: &Directory| self.directory_at(&directory.real.join("vdpau"), directory.container.join("vdpau"));
        for directory in directories.iter().flat_map(|directory| [Some(directory.clone()), vdpau(directory)]).flatten()
        {
            for name in self.names(&directory, |name| name.ends_with(&suffix)) {
                let Some(library) = self.library_in(&directory, &name, directories) else { continue };
                if !libraries.iter().any(|known| known.file.host == library.file.host) {
                    libraries.push(library);
                }
            }
        }
        libraries
    }

    /// A library by its file name, if a container could load it.
    pub(super) fn library_in(&self, directory: &Directory, name: &str, all: &[Directory]) -> Option<Library> {
        let real = self.file_of(directory, name)?;
        let soname = match elf::read(&self.system_local.join(&real)) {
            Ok(Elf::Native(soname)) => soname,
            Ok(Elf::Other) => None,
            // A 32-bit library beside the real ones, or a file that no container could read either.
            Ok(Elf::Foreign) | Err(_) => return None,
        };
        let soname = soname.unwrap_or_else(|| name.to_owned());
        let aliases = self.aliases(directory, name, &real, &soname, all);
        let file = Mapped { host: self.system_host.join(real), container: directory.container.join(name) };
        Some(Library { file, soname, aliases })
    }

    /// Where the loader of this system finds the library by its SONAME: wherever that name leads to it, or beside it if
    /// nobody has made the link. And beside that, its other names.
    fn aliases(&self, own: &Directory, name: &str, real: &Path, soname: &str, all: &[Directory]) -> Vec<PathBuf> {
        let leads_to_it = |directory: &&Directory| self.file_of(directory, soname).is_some_and(|target| target == real);
        let mut directories: Vec<&Directory> = all.iter().filter(leads_to_it).collect();
        if directories.is_empty() {
            directories.push(own);
        }
        let sonames = directories.iter().map(|directory| directory.container.join(soname));
        let others = directories.iter().flat_map(|directory| self.other_names(directory, soname));
        let file = own.container.join(name);
        sonames.chain(others).filter(|alias| *alias != file).collect()
    }

    /// What else a library is called in a directory where it is called by its SONAME.
    fn other_names(&self, directory: &Directory, soname: &str) -> Vec<PathBuf> {
        let Some((stem, _)) = soname.split_once(".so.") else { return Vec::new() };
        let bare = format!("{stem}.so");
        let is_asked_for =
            BARE.contains(&stem) || self.system_local.join(&directory.real).join(&bare).symlink_metadata().is_ok();
        let indirect = (stem == INDIRECT.0).then_some(INDIRECT.1);
        let names = is_asked_for.then_some(&*bare).into_iter().chain(indirect);
        names.map(|name| directory.container.join(name)).collect()
    }

    fn binaries(&self, names: &[&'static str], absent: &mut Vec<&'static str>) -> Vec<Mapped> {
        let mut directories = self.directories(BINARY_DIRECTORIES);
        directories.extend(self.directory_at(Path::new(HIDDEN_BINARIES.0), HIDDEN_BINARIES.1.into()));
        let mut binaries = Vec::new();
        for &name in names {
            let found = directories.iter().find_map(|directory| {
                let host = self.runnable(self.file_of(directory, name)?)?;
                Some(Mapped { host, container: directory.container.join(name) })
            });
            match found {
                Some(file) => binaries.push(file),
                None => absent.push(name),
            }
        }
        binaries
    }

    /// Where a program really is on the host, if it is there and may be run. The path is from the root of the system.
    pub fn program(&self, path: &Path) -> Option<PathBuf> {
        self.runnable(self.file(path)?)
    }

    fn runnable(&self, real: PathBuf) -> Option<PathBuf> {
        let mode = self.system_local.join(&real).metadata().ok()?.permissions().mode();
        (mode & 0o111 != 0).then(|| self.system_host.join(real))
    }

    fn firmware(&self, version: &str, kernel: &Kernel, absent: &mut Vec<&'static str>) -> Vec<Mapped> {
        for directory in self.firmware_directories(version, kernel) {
            let is_firmware =
                |name: &str| name.starts_with("gsp") && Path::new(name).extension() == Some(OsStr::new("bin"));
            let files: Vec<_> =
                self.names(&directory, is_firmware).iter().filter_map(|name| self.file_in(&directory, name)).collect();
            if !files.is_empty() {
                return files;
            }
        }
        absent.push("GSP firmware");
        Vec::new()
    }

    /// In the kernel's own search order, see `drivers/base/firmware_loader/main.c`: first what it was told, as far as that
    /// is in this system, then its own places, in the root and in the system that it belongs to.
    fn firmware_directories(&self, version: &str, kernel: &Kernel) -> Vec<Directory> {
        let release = |base: &str| kernel.release.as_deref().map(|release| Path::new(base).join(release));
        let standard = [
            release("lib/firmware/updates"),
            Some("lib/firmware/updates".into()),
            release("lib/firmware"),
            Some("lib/firmware".into()),
        ];
        let custom = kernel.firmware_path.as_deref().and_then(|path| path.strip_prefix(&self.system_host).ok());
        let custom = custom.map(|path| {
            let own = path.strip_prefix(&self.directory);
            (path.to_owned(), own.map_or_else(|_| under(Path::new("/"), path), |own| under(&self.container, own)))
        });
        let bases = standard.into_iter().flatten().flat_map(|base| {
            let (own, of_system) = (under(&self.container, &base), under(Path::new("/"), &base));
            [(self.directory.join(&base), own), (base, of_system)]
        });
        let named = Path::new("nvidia").join(version);
        let directory =
            |(real, container): (PathBuf, PathBuf)| self.directory_at(&real.join(&named), container.join(&named));
        custom.into_iter().chain(bases).filter_map(directory).collect()
    }

    /// Sockets are where the daemons' clients look for them, also where the rest of the root is elsewhere.
    fn sockets(&self, absent: &mut Vec<&'static str>) -> Vec<Mapped> {
        let mut sockets: Vec<Mapped> = Vec::new();
        for name in SOCKETS {
            let paths = SOCKET_DIRECTORIES.iter().map(|directory| Path::new(directory).join(name));
            let found = paths.into_iter().find_map(|container| {
                let path = relative(&container);
                // What a runtime made of a mount without a source is a directory.
                let socket = |path: &Path| {
                    let real = self.resolve(path)?;
                    let metadata = fs::metadata(self.system_local.join(&real)).ok()?;
                    metadata.file_type().is_socket().then_some(real)
                };
                let real = socket(&self.directory.join(path)).or_else(|| socket(path))?;
                Some(Mapped { host: self.system_host.join(real), container })
            });
            match found {
                Some(socket) => sockets.push(socket),
                None => absent.push(name),
            }
        }
        sockets
    }

    fn version_of_cuda(&self, directories: &[Directory]) -> Option<String> {
        let numbered = |name: &str| {
            let version = name.strip_prefix(CUDA)?;
            let numbers = version.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
            (numbers && version.contains('.')).then(|| version.to_owned())
        };
        let mut names = directories.iter().flat_map(|directory| self.names(directory, |name| numbered(name).is_some()));
        names.find_map(|name| numbered(&name))
    }

    /// Names in a directory, sorted so that the same files always give the same specs.
    fn names(&self, directory: &Directory, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.system_local.join(&directory.real)) else { return Vec::new() };
        let names = entries.filter_map(|entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| wanted(name)).collect();
        names.sort();
        names
    }

    /// A file of a directory.
    pub(super) fn file_in(&self, directory: &Directory, name: &str) -> Option<Mapped> {
        let real = self.file_of(directory, name)?;
        Some(Mapped { host: self.system_host.join(real), container: directory.container.join(name) })
    }
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}

#[cfg(test)]
mod tests;
