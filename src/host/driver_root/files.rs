//! The driver's files that a container gets.
//!
//! There is no list of libraries to go stale: whatever carries the driver's version in its name belongs to the driver.
//! Everything but the libraries is optional, for installations differ in what they ship.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::elf::{self, Elf};
use super::{DriverRoot, beneath, under};

/// Where programs are looked for.
const BINARY_DIRECTORIES: &[&str] = &["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

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

/// Where the driver's daemons listen: both spellings, of which one is usually a link to the other.
const SOCKET_DIRECTORIES: &[&str] = &["/run", "/var/run"];

/// The daemons' sockets. An MPS daemon's pipe (`/tmp/nvidia-mps`) is not among them: a container that is not meant to
/// share its GPU must not attach to a daemon that happens to run on the host.
const SOCKETS: &[&str] = &["nvidia-persistenced/socket", "nvidia-fabricmanager/socket"];

/// What a container runs CUDA with.
const CUDA: &str = "libcuda.so.";

/// Libraries that programs also ask for by the name that only development packages install. That name is made where the
/// host has it, and for these always, as NVIDIA's tools do.
const BARE: &[&str] = &["libcuda", "libnvidia-opticalflow"];

/// The driver's library that GLVND asks for by another name where no X server says which vendor to take.
const INDIRECT: (&str, &str) = ("libGLX_nvidia", "libGLX_indirect.so.0");

/// What the kernel says about where firmware is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kernel {
    /// `uname -r`.
    pub release: Option<String>,
    /// `/sys/module/firmware_class/parameters/path`.
    pub firmware_path: Option<PathBuf>,
}

/// What was found under a driver root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverFiles {
    /// The driver's version.
    pub version: String,
    /// `*.so.<version>`; `libcuda` is among them.
    pub libraries: Vec<Library>,
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

// === impl Kernel ===

impl Kernel {
    /// Reads what there is to read.
    pub fn read(proc: &Path, sys: &Path) -> Self {
        let line = |path: PathBuf| {
            let text = fs::read_to_string(path).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        Self {
            release: line(proc.join("sys/kernel/osrelease")),
            firmware_path: line(sys.join("module/firmware_class/parameters/path")).map(PathBuf::from),
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
    pub fn files(&self, version: Option<&str>, kernel: &Kernel) -> Result<DriverFiles, NoLibraries> {
        let directories = self.library_directories();
        let missing = || NoLibraries {
            version: version.map(str::to_owned),
            root: self.host.clone(),
            looked: directories.iter().map(|directory| Path::new("/").join(directory)).collect(),
        };
        let found = version.map(str::to_owned).or_else(|| self.version_of_cuda(&directories));
        let version = found.ok_or_else(missing)?;
        let libraries = self.libraries(&directories, &version);
        if !libraries.iter().any(Library::is_cuda) {
            return Err(missing());
        }
        let mut absent = Vec::new();
        Ok(DriverFiles {
            libraries,
            binaries: self.binaries(&mut absent),
            firmware: self.firmware(&version, kernel, &mut absent),
            sockets: self.sockets(&mut absent),
            absent,
            version,
        })
    }

    fn libraries(&self, directories: &[PathBuf], version: &str) -> Vec<Library> {
        let suffix = format!(".so.{version}");
        let mut libraries: Vec<Library> = Vec::new();
        let with_vdpau = directories.iter().flat_map(|directory| [directory.clone(), directory.join("vdpau")]);
        for directory in self.directories(with_vdpau) {
            for name in self.names(&directory, |name| name.ends_with(&suffix)) {
                let path = directory.join(&name);
                let Some(real) = self.file(&path) else { continue };
                let host = self.host.join(&real);
                if libraries.iter().any(|library| library.file.host == host) {
                    continue;
                }
                let soname = match elf::read(&self.local.join(&real)) {
                    Ok(Elf::Native(soname)) => soname,
                    Ok(Elf::Other) => None,
                    // A 32-bit library beside the real ones, or a file that no container could read either.
                    Ok(Elf::Foreign) | Err(_) => continue,
                };
                let soname = soname.unwrap_or(name);
                let aliases = self.aliases(&path, &real, &soname, directories);
                libraries.push(Library {
                    file: Mapped { host, container: self.container.join(&path) },
                    soname,
                    aliases,
                });
            }
        }
        libraries
    }

    /// Where the loader of this system finds the library by its SONAME: wherever that name leads to it, or beside it if
    /// nobody has made the link. And beside that, its other names.
    fn aliases(&self, path: &Path, real: &Path, soname: &str, directories: &[PathBuf]) -> Vec<PathBuf> {
        let candidates = directories.iter().map(|directory| directory.join(soname));
        let mut names: Vec<PathBuf> =
            candidates.filter(|name| self.file(name).is_some_and(|target| target == real)).collect();
        if names.is_empty() {
            names.push(path.with_file_name(soname));
        }
        let others: Vec<_> = names.iter().flat_map(|name| self.other_names(name, soname)).collect();
        names.extend(others);
        names.retain(|name| name != path);
        names.into_iter().map(|name| self.container.join(name)).collect()
    }

    /// What else a library is called in the directory where it is called by its SONAME.
    fn other_names(&self, beside: &Path, soname: &str) -> Vec<PathBuf> {
        let Some((stem, _)) = soname.split_once(".so.") else { return Vec::new() };
        let bare = beside.with_file_name(format!("{stem}.so"));
        let is_asked_for = BARE.contains(&stem) || self.local.join(&bare).symlink_metadata().is_ok();
        let indirect = (stem == INDIRECT.0).then(|| beside.with_file_name(INDIRECT.1));
        is_asked_for.then_some(bare).into_iter().chain(indirect).collect()
    }

    fn binaries(&self, absent: &mut Vec<&'static str>) -> Vec<Mapped> {
        let directories = self.directories(BINARY_DIRECTORIES);
        let mut binaries = Vec::new();
        for name in BINARIES {
            let found = directories.iter().find_map(|directory| self.executable(&directory.join(name)));
            match found {
                Some(file) => binaries.push(file),
                None => absent.push(name),
            }
        }
        binaries
    }

    /// A program, if it is there and may be run.
    pub fn executable(&self, path: &Path) -> Option<Mapped> {
        let real = self.file(path)?;
        let mode = self.local.join(&real).metadata().ok()?.permissions().mode();
        (mode & 0o111 != 0).then(|| self.mapped(path, &real))
    }

    fn firmware(&self, version: &str, kernel: &Kernel, absent: &mut Vec<&'static str>) -> Vec<Mapped> {
        // The kernel's own search order, in `drivers/base/firmware_loader/main.c`.
        let custom = kernel.firmware_path.as_deref().and_then(|path| path.strip_prefix(&self.host).ok());
        let release = |base: &str| kernel.release.as_deref().map(|release| Path::new(base).join(release));
        let bases = custom.map(Path::to_owned).into_iter();
        let bases = bases.chain(release("/lib/firmware/updates")).chain([PathBuf::from("/lib/firmware/updates")]);
        let bases = bases.chain(release("/lib/firmware")).chain([PathBuf::from("/lib/firmware")]);
        for directory in self.directories(bases.map(|base| base.join("nvidia").join(version))) {
            let names = self.names(&directory, |name| {
                name.starts_with("gsp") && Path::new(name).extension() == Some(OsStr::new("bin"))
            });
            let files = names.into_iter().filter_map(|name| {
                let path = directory.join(name);
                self.file(&path).map(|real| self.mapped(&path, &real))
            });
            let files: Vec<_> = files.collect();
            if !files.is_empty() {
                return files;
            }
        }
        absent.push("GSP firmware");
        Vec::new()
    }

    fn sockets(&self, absent: &mut Vec<&'static str>) -> Vec<Mapped> {
        let mut sockets: Vec<Mapped> = Vec::new();
        for name in SOCKETS {
            let paths = SOCKET_DIRECTORIES.iter().map(|directory| Path::new(directory).join(name));
            let found = paths.into_iter().find_map(|path| beneath::resolve(&self.local, &path).ok());
            match found {
                Some(real) => sockets.push(self.mapped(&real, &real)),
                None => absent.push(name),
            }
        }
        sockets
    }

    fn version_of_cuda(&self, directories: &[PathBuf]) -> Option<String> {
        let numbered = |name: &str| {
            let version = name.strip_prefix(CUDA)?;
            let numbers = version.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
            (numbers && version.contains('.')).then(|| version.to_owned())
        };
        let mut names = directories.iter().flat_map(|directory| self.names(directory, |name| numbered(name).is_some()));
        names.find_map(|name| numbered(&name))
    }

    /// Names in a directory, sorted so that the same files always give the same specs.
    fn names(&self, directory: &Path, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.local.join(directory)) else { return Vec::new() };
        let names = entries.filter_map(|entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| wanted(name)).collect();
        names.sort();
        names
    }

    fn mapped(&self, path: &Path, real: &Path) -> Mapped {
        Mapped { host: self.host.join(real), container: under(&self.container, path) }
    }
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}

#[cfg(test)]
mod tests;
