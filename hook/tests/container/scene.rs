//! A bundle with a root file system, and a host beside it that must stay as it is.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Where the runtime has mounted the one library of most tests.
pub(crate) const FILE: &str = "/usr/lib64/libcuda.so.580.105.08";
pub(crate) const LINK: &str = "/usr/lib64/libcuda.so.1";
pub(crate) const LIBRARY: &str = "--library=libcuda.so.1=/usr/lib64/libcuda.so.580.105.08";

/// Files of the machine that runs the tests, to which a hook that leaves its root would write.
const MACHINE: [&str; 4] = ["/etc/ld.so.cache", "/etc/ld.so.conf.d", "/ld.so.cache", "/usr/lib64"];

pub(crate) struct Scene {
    directory: tempfile::TempDir,
}

/// How the hook ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) said: String,
}

/// Everything about a tree that a write would change.
pub(crate) type Snapshot = BTreeMap<PathBuf, (u32, i64, i64, Vec<u8>)>;

// === impl Scene ===

impl Scene {
    /// A root file system that is empty but for the mounted library.
    pub(crate) fn new() -> Self {
        let scene = Self { directory: tempfile::tempdir().unwrap() };
        fs::create_dir_all(scene.root()).unwrap();
        fs::write(scene.bundle().join("config.json"), r#"{"root": {"path": "rootfs"}}"#).unwrap();
        for (path, content) in [
            ("etc/passwd", "root:x:0:0::/:/bin/sh\n"),
            ("etc/ld.so.cache", "the host's"),
            ("etc/ld.so.conf", "/usr/lib/host\n"),
            ("etc/ld.so.conf.d/host.conf", "/usr/lib/host\n"),
            ("lib/libcuda.so.1", "the host's"),
        ] {
            let path = scene.host().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        scene.write(FILE, b"the driver's");
        scene
    }

    pub(crate) fn bundle(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.bundle().join("rootfs")
    }

    /// A directory outside of the container.
    pub(crate) fn host(&self) -> PathBuf {
        self.bundle().join("host")
    }

    /// Where a path of the container is.
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.root().join(path.trim_start_matches('/'))
    }

    pub(crate) fn write(&self, path: &str, content: &[u8]) {
        self.make_directory(Path::new(path).parent().unwrap().to_str().unwrap());
        fs::write(self.at(path), content).unwrap();
    }

    pub(crate) fn make_directory(&self, path: &str) {
        fs::create_dir_all(self.at(path)).unwrap();
    }

    pub(crate) fn link(&self, path: &str, target: impl AsRef<Path>) {
        self.make_directory(Path::new(path).parent().unwrap().to_str().unwrap());
        symlink(target, self.at(path)).unwrap();
    }

    pub(crate) fn read(&self, path: &str) -> String {
        String::from_utf8(fs::read(self.at(path)).unwrap()).unwrap()
    }

    pub(crate) fn target(&self, path: &str) -> String {
        fs::read_link(self.at(path)).unwrap().into_os_string().into_string().unwrap()
    }

    pub(crate) fn mode(&self, path: &str) -> u32 {
        self.at(path).metadata().unwrap().permissions().mode() & 0o7777
    }

    pub(crate) fn state(&self) -> String {
        format!(r#"{{"ociVersion": "1.0.2", "id": "test", "pid": 1, "bundle": "{}"}}"#, self.bundle().display())
    }

    /// Runs the hook, and sees to it that the host stays as it was.
    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome {
        let mut hook = Command::new(env!("CARGO_BIN_EXE_gpu-dra-hook"));
        hook.arg("create-container").args(arguments);
        self.finish(hook)
    }

    /// The same in a mount namespace of its own, after the commands of a script in which `$root` is the container's root
    /// and which ends with `exec "$@"`, or runs `"$@"` and more.
    pub(crate) fn run_in_namespace(&self, script: &str, arguments: &[&str]) -> Outcome {
        let mut hook = Command::new("unshare");
        hook.args(["--mount", "--propagation=private", "sh", "-euc", script, "sh"]);
        hook.arg(env!("CARGO_BIN_EXE_gpu-dra-hook")).arg("create-container").args(arguments).env("root", self.root());
        self.finish(hook)
    }

    /// Runs a program with the container's state on its standard input.
    pub(crate) fn finish(&self, mut hook: Command) -> Outcome {
        let before = self.outside();
        hook.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut hook = hook.spawn().unwrap();
        // A hook that fails before it reads leaves nobody to write to.
        let _ = hook.stdin.take().unwrap().write_all(self.state().as_bytes());
        let Output { status, stdout, stderr } = hook.wait_with_output().unwrap();
        assert_eq!(self.outside(), before, "the hook has changed the host");
        let said = String::from_utf8([stdout, stderr].concat()).unwrap();
        Outcome { code: status.code(), said }
    }

    fn outside(&self) -> (Snapshot, Vec<Option<(i64, i64)>>) {
        let times = MACHINE.map(|path| Path::new(path).symlink_metadata().ok());
        (snapshot(&self.host()), times.map(|found| found.map(|file| (file.mtime(), file.mtime_nsec()))).to_vec())
    }
}

// === impl Outcome ===

impl Outcome {
    #[track_caller]
    pub(crate) fn succeeds(&self) {
        assert!(self.code == Some(0) && self.said.is_empty(), "{self:?}");
    }

    /// With one line, which has this in it.
    #[track_caller]
    pub(crate) fn fails(&self, sentence: &str) {
        assert_eq!(self.code, Some(1), "{self:?}");
        assert!(self.said.starts_with("gpu-dra-hook: ") && self.said.lines().count() == 1, "{self:?}");
        assert!(self.said.contains(sentence), "{self:?}");
    }
}

pub(crate) fn snapshot(tree: &Path) -> Snapshot {
    let mut found = Snapshot::new();
    let mut pending = vec![tree.to_owned()];
    while let Some(path) = pending.pop() {
        let metadata = path.symlink_metadata().unwrap();
        let content = match metadata.file_type() {
            kind if kind.is_symlink() => fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes(),
            kind if kind.is_file() => fs::read(&path).unwrap(),
            kind if kind.is_dir() => {
                pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                vec![]
            }
            _ => vec![],
        };
        found.insert(path, (metadata.mode(), metadata.mtime(), metadata.mtime_nsec(), content));
    }
    found
}

/// Whether a test can do what only root can. Says so, past the test runner that would hide it, where it cannot.
pub(crate) fn is_root(what: &str) -> bool {
    // Files that we make are ours.
    let root = tempfile::tempdir().unwrap().path().metadata().unwrap().uid() == 0;
    if !root {
        skipped(&format!("{what} needs root"));
    }
    root
}

/// The path of a program of this machine, if it is there.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = directories.map(|directory| directory.join(name)).find(|path| path.is_file());
    if found.is_none() {
        skipped(&format!("there is no {name} here"));
    }
    found
}

fn skipped(why: &str) {
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let _ = writeln!(io::stderr(), "SKIPPED {test}: {why}");
}
