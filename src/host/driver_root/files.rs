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

/// What a container runs CUDA with. Programs also ask for it by the name that only development packages install, so that
/// name is made too, as NVIDIA's tools do.
const CUDA: (&str, &str) = ("libcuda.so.", "libcuda.so");

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
        self.file.container.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(CUDA.0.as_bytes()))
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
                let Some(real) = self.file(&directory, &name) else { continue };
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
                let aliases = self.aliases(&path, &real, soname.as_deref(), directories);
                libraries.push(Library { file: Mapped { host, container: self.container.join(&path) }, aliases });
            }
        }
        libraries
    }

    /// Where the loader of this system finds the library by its SONAME: wherever that name leads to it, or beside it if
    /// nobody has made the link.
    fn aliases(&self, path: &Path, real: &Path, soname: Option<&str>, directories: &[PathBuf]) -> Vec<PathBuf> {
        let Some(soname) = soname.filter(|soname| path.file_name() != Some(OsStr::new(soname))) else {
            return Vec::new();
        };
        let leads_here = |directory: &&PathBuf| self.file(directory, soname).is_some_and(|target| target == real);
        let mut names: Vec<_> = directories.iter().filter(leads_here).map(|directory| directory.join(soname)).collect();
        if names.is_empty() {
            names.push(path.with_file_name(soname));
        }
        if soname.starts_with(CUDA.0) {
            let plain: Vec<_> = names.iter().map(|name| name.with_file_name(CUDA.1)).collect();
            names.extend(plain);
        }
        names.into_iter().map(|name| self.container.join(name)).collect()
    }

    fn binaries(&self, absent: &mut Vec<&'static str>) -> Vec<Mapped> {
        let directories = self.directories(BINARY_DIRECTORIES);
        let mut binaries = Vec::new();
        for name in BINARIES {
            let found = directories.iter().find_map(|directory| self.executable(directory, name));
            match found {
                Some(file) => binaries.push(file),
                None => absent.push(name),
            }
        }
        binaries
    }

    fn executable(&self, directory: &Path, name: &str) -> Option<Mapped> {
        let real = self.file(directory, name)?;
        let mode = self.local.join(&real).metadata().ok()?.permissions().mode();
        (mode & 0o111 != 0).then(|| self.mapped(&directory.join(name), &real))
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
                let real = self.file(&directory, &name)?;
                Some(self.mapped(&directory.join(name), &real))
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
            let version = name.strip_prefix(CUDA.0)?;
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
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::example::{Tree, VERSION, shared_object};
    use super::*;

    const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

    fn find(tree: &Tree) -> DriverFiles {
        tree.root().files(Some(VERSION), &Kernel::default()).unwrap()
    }

    #[test]
    fn a_library_has_a_path_on_the_host_one_in_the_container_and_its_soname() {
        let files = find(&Tree::debian());
        let cuda = files.libraries.iter().find(|library| library.is_cuda()).unwrap();
        assert_eq!(cuda.file.host, Path::new("/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.580.105.08"));
        assert_eq!(cuda.file.container, Path::new("/usr/lib/x86_64-linux-gnu/libcuda.so.580.105.08"));
        let aliases = ["libcuda.so.1", "libcuda.so"].map(|name| Path::new("/usr/lib/x86_64-linux-gnu").join(name));
        assert_eq!(cuda.aliases, aliases);
    }

    #[test]
    fn a_library_whose_soname_is_its_file_name_has_no_alias() {
        let tree = Tree::debian();
        let name = format!("libnvidia-glcore.so.{VERSION}");
        tree.write(&format!("{LIBRARIES}/{name}"), &shared_object(&name));
        let files = find(&tree);
        let core = files.libraries.iter().find(|library| library.file.container.ends_with(&name)).unwrap();
        assert_eq!(core.aliases, Vec::<PathBuf>::new());
    }

    #[test]
    fn directories_that_are_links_to_each_other_count_once() {
        let tree = Tree::debian();
        let count = find(&tree).libraries.len();
        symlink("/usr/lib/x86_64-linux-gnu", tree.path().join("lib64")).unwrap();
        assert_eq!(find(&tree).libraries.len(), count);
    }

    #[test]
    fn a_soname_appears_where_the_host_has_it() {
        let tree = Tree::empty();
        let real = format!("{LIBRARIES}/nvidia/current/libcuda.so.{VERSION}");
        tree.write(&real, &shared_object("libcuda.so.1"));
        fs::create_dir_all(tree.path().join("etc/alternatives")).unwrap();
        symlink(format!("/{real}"), tree.path().join("etc/alternatives/libcuda.so.1")).unwrap();
        symlink("/etc/alternatives/libcuda.so.1", tree.path().join(LIBRARIES).join("libcuda.so.1")).unwrap();
        let files = find(&tree);
        assert_eq!(files.libraries[0].file.container, Path::new("/").join(real));
        assert_eq!(files.libraries[0].aliases[0], Path::new("/").join(LIBRARIES).join("libcuda.so.1"));
    }

    #[test]
    fn libraries_of_another_version_or_word_size_are_left_out() {
        let tree = Tree::debian();
        let count = find(&tree).libraries.len();
        tree.write(&format!("{LIBRARIES}/libnvidia-cfg.so.550.54.15"), &shared_object("libnvidia-cfg.so.1"));
        let mut narrow = shared_object("libcuda.so.1");
        narrow[4] = 1;
        tree.write(&format!("usr/lib/libcuda.so.{VERSION}"), &narrow);
        assert_eq!(find(&tree).libraries.len(), count);
    }

    #[test]
    fn the_version_is_libcudas_where_nvml_does_not_say() {
        let tree = Tree::debian();
        let files = tree.root().files(None, &Kernel::default()).unwrap();
        assert_eq!(files.version, VERSION);
    }

    #[test]
    fn a_missing_libcuda_is_named_with_where_it_was_looked_for() {
        let error = Tree::debian().root().files(Some("999.1"), &Kernel::default()).unwrap_err();
        let expected = "libcuda.so.999.1 is in none of the library directories /, /usr/lib/x86_64-linux-gnu, /usr/lib \
                        of the driver root /run/nvidia/driver";
        assert_eq!(error.to_string(), expected);
        let error = Tree::empty().root().files(None, &Kernel::default()).unwrap_err();
        assert!(error.to_string().starts_with("libcuda.so.<version> is in none"), "{error}");
    }

    #[test]
    fn optional_files_are_found_or_reported_absent() {
        let tree = Tree::debian();
        let files = find(&tree);
        let name = |file: &Mapped| file.container.file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(files.binaries.iter().map(name).collect::<Vec<_>>(), ["nvidia-smi"]);
        assert_eq!(files.firmware.iter().map(name).collect::<Vec<_>>(), ["gsp_ga10x.bin", "gsp_tu10x.bin"]);
        assert_eq!(files.sockets[0].container, Path::new("/run/nvidia-persistenced/socket"));
        assert!(files.absent.contains(&"nvidia-debugdump"));
        assert!(files.absent.contains(&"nvidia-fabricmanager/socket"));
    }

    #[test]
    fn a_program_that_nobody_may_run_is_absent() {
        let tree = Tree::debian();
        let path = tree.path().join("usr/bin/nvidia-smi");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(find(&tree).absent.contains(&"nvidia-smi"));
    }

    #[test]
    fn firmware_is_where_the_kernel_looks_first() {
        let tree = Tree::debian();
        tree.write(&format!("opt/firmware/nvidia/{VERSION}/gsp_ga10x.bin"), b"");
        let firmware_path = Some("/run/nvidia/driver/opt/firmware".into());
        let files = tree.root().files(None, &Kernel { release: None, firmware_path }).unwrap();
        let expected = format!("/run/nvidia/driver/opt/firmware/nvidia/{VERSION}/gsp_ga10x.bin");
        assert_eq!(files.firmware[0].host, Path::new(&expected));
    }
}
