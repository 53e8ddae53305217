//! Which driver root and which NVML library, said in the log once per change.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;

use tracing::{info, warn};

use crate::args::Args;
use crate::host::driver_root::{Choice, DriverRoot, find, module_version};

/// The library by the name that programs ask for.
const NVML: &str = "libnvidia-ml.so.1";

/// Finds the NVML library each time one is to be opened.
pub(super) struct NvmlLibrary {
    fixed: Option<PathBuf>,
    candidates: Vec<DriverRoot>,
    /// `/sys`, for the version of the kernel module.
    sys: PathBuf,
    /// What was said last.
    said: Mutex<Option<String>>,
}

/// The driver roots to look through, best first: the one that was set, or all that are known.
pub(super) fn candidates(args: &Args) -> Vec<DriverRoot> {
    let mount = args.container_driver_root.as_deref();
    let host_mount = host_mount(args);
    let known = DriverRoot::known(host_mount.as_deref().unwrap_or(Path::new("/")));
    let Some(host) = &args.driver_root else { return known };
    let known = known.into_iter().find(|root| root.host() == *host);
    vec![match (host_mount, known) {
        (Some(_), Some(known)) => known,
        // What is not known is a whole system.
        (Some(mount), None) => DriverRoot::new(host, below(&mount, host)),
        // A known root knows where its files belong in a container.
        (None, known) => DriverRoot::new(host, mount.unwrap_or(host))
            .appearing_at(known.map_or_else(|| "/".into(), |known| known.container().to_owned())),
    }]
}

/// Where this process sees the host's `/`, if it does. What is mounted is that, or the driver root alone.
pub(super) fn host_mount(args: &Args) -> Option<PathBuf> {
    let mount = args.container_driver_root.as_deref();
    let is_host = args.driver_root.as_deref().is_none_or(|root| {
        // The driver may not be there yet, but a kubelet is.
        let has = |path: &Path| mount.is_some_and(|mount| below(mount, path).is_dir());
        root == Path::new("/") || has(root) || has(&args.kubelet.kubelet_root)
    });
    is_host.then(|| mount.unwrap_or(Path::new("/")).to_owned())
}

fn below(mount: &Path, path: &Path) -> PathBuf {
    mount.join(path.strip_prefix("/").unwrap_or(path))
}

// === impl NvmlLibrary ===

impl NvmlLibrary {
    /// The library of the first of the driver roots that has a driver, unless `fixed` names one.
    pub(super) fn new(fixed: Option<PathBuf>, candidates: Vec<DriverRoot>, sys: PathBuf) -> Self {
        Self { fixed, candidates, sys, said: Mutex::default() }
    }

    /// The library to open; `None` leaves it to the loader.
    pub(super) fn locate(&self) -> Option<PathBuf> {
        if let Some(path) = &self.fixed {
            return Some(path.clone());
        }
        match find(&self.candidates, module_version(&self.sys).as_deref()) {
            Ok(Choice { root, reason }) => {
                let text = format!("the NVIDIA driver is in {} on the host: {reason}", root.host().display());
                self.say(text, |text| info!(seen_at = %root.local().display(), "{text}"));
                root.library(NVML)
            }
            Err(not_found) => {
                self.say(not_found.to_string(), |text| warn!("{text}; is the driver installed, and mounted here?"));
                None
            }
        }
    }

    fn say(&self, text: String, log: impl FnOnce(&str)) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.as_deref() != Some(&text) {
            log(&text);
            *said = Some(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn roots(args: &[&str]) -> Vec<(String, String, String)> {
        let args = Args::try_parse_from(["gpu-dra-plugin", "--node-name=a"].iter().chain(args)).unwrap();
        let text = |path: &Path| path.to_string_lossy().into_owned();
        candidates(&args).iter().map(|root| (text(&root.host()), text(&root.local()), text(root.container()))).collect()
    }

    fn root(host: &str, local: &str, container: &str) -> (String, String, String) {
        (host.to_owned(), local.to_owned(), container.to_owned())
    }

    #[test]
    fn a_driver_root_that_is_set_is_the_only_one() {
        assert_eq!(roots(&["--driver-root=/opt/d"]), [root("/opt/d", "/opt/d", "/")]);
        let mounted = roots(&["--driver-root=/run/nvidia/driver", "--container-driver-root=/driver-root"]);
        assert_eq!(mounted, [root("/run/nvidia/driver", "/driver-root", "/")]);
        let gke = roots(&["--driver-root=/home/kubernetes/bin/nvidia"]);
        assert_eq!(gke[0].2, "/usr/local/nvidia", "a known root keeps its place in the container");
    }

    #[test]
    fn a_driver_root_that_is_set_is_looked_for_below_the_mount_if_that_is_the_hosts() {
        for (made, set, container) in [
            ("opt/x", "/opt/x", "/"),
            ("var/lib/kubelet", "/opt/x", "/"),
            ("var/lib/kubelet", "/run/nvidia/driver", "/"),
            ("home/kubernetes/bin/nvidia", "/home/kubernetes/bin/nvidia", "/usr/local/nvidia"),
        ] {
            let directory = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(directory.path().join(made)).unwrap();
            let mount = directory.path().to_str().unwrap();
            let found = roots(&[&format!("--driver-root={set}"), &format!("--container-driver-root={mount}")]);
            assert_eq!(found, [root(set, &format!("{mount}{set}"), container)], "{made}");
        }
    }

    #[test]
    fn known_driver_roots_are_looked_for_below_the_mount() {
        let found = roots(&["--container-driver-root=/host"]);
        assert_eq!(found[0], root("/", "/host", "/"));
        assert!(found.contains(&root("/run/nvidia/driver", "/host/run/nvidia/driver", "/")));
        assert!(found.contains(&root("/run/opengl-driver", "/host/run/opengl-driver", "/run/opengl-driver")));
    }
}
