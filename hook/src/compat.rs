//! CUDA forward compatibility: an image that is newer than the host's driver can bring user-space libraries of a newer
//! driver, which work with the older kernel modules.
//!
//! Such an image keeps them in one directory (the package `cuda-compat-*`), out of the loader's sight, because they must
//! not win on a host whose driver is as new. Which one it is, the version in the name of the one `libcuda.so.<version>`
//! there says. What is decided is decided from names; the files are not read.

use std::str::FromStr;

use crate::rootfs::{Error, Place, Rootfs};

/// Where the package puts the libraries.
const DIRECTORY: &str = "/usr/local/cuda/compat";
/// The package has about fifteen files.
const MAX_NAMES: usize = 256;

/// A driver's branch, which is the first number of its version: 580 of 580.105.08. What user space of one branch needs
/// of the kernel, all kernel modules of that branch have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Branch(u32);

/// Text that is no driver version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no driver version, as 580.105.08 is")]
pub(crate) struct NotAVersion(String);

/// The image's libraries that win over the host's, which is none where the host is as new.
pub(crate) fn libraries(rootfs: &Rootfs, host: Branch) -> Result<Vec<Place>, Error> {
    let Some(directory) = rootfs.directory(DIRECTORY)? else { return Ok(vec![]) };
    let won = winners(directory.names(MAX_NAMES)?, host);
    Ok(won.iter().filter_map(|name| format!("{DIRECTORY}/{name}").parse().ok()).collect())
}

fn winners(mut names: Vec<String>, host: Branch) -> Vec<String> {
    let mut drivers = names.iter().filter_map(|name| name.strip_prefix("libcuda.so.")?.parse::<Driver>().ok());
    // With two there is no telling which of them the links there mean.
    let newer = matches!((drivers.next(), drivers.next()), (Some(Driver(image)), None) if image > host);
    names.retain(|name| newer && is_driver_library(name));
    // The order of a directory is that of its disk.
    names.sort_unstable();
    names
}

/// `libcuda.so.1`, `libnvidia-nvvm.so.4`, `libnvidia-gpucomp.so.580.65.06`: what a loader is asked for.
fn is_driver_library(name: &str) -> bool {
    let driver = name.starts_with("libcuda") || name.starts_with("libnvidia-");
    let version = name.split_once(".so.").map(|(_, version)| version);
    driver && version.is_some_and(|version| version.split('.').all(is_number))
}

/// The branch of a whole version: two or three numbers.
struct Driver(Branch);

// === impl Driver ===

impl FromStr for Driver {
    type Err = NotAVersion;

    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        match text.split('.').count() {
            2 | 3 => text.parse().map(Self),
            _ => Err(NotAVersion(text.to_owned())),
        }
    }
}

// === impl Branch ===

impl FromStr for Branch {
    type Err = NotAVersion;

    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let number = text.split('.').all(is_number).then(|| text.split('.').next()?.parse().ok()).flatten();
        number.map(Self).ok_or_else(|| NotAVersion(text.to_owned()))
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PACKAGE: [&str; 11] = [
        "libcuda.so",
        "libcuda.so.1",
        "libcuda.so.580.65.06",
        "libcudadebugger.so.1",
        "libcudadebugger.so.580.65.06",
        "libnvidia-gpucomp.so.580.65.06",
        "libnvidia-nvvm.so.4",
        "libnvidia-ptxjitcompiler.so.1",
        "libc.so.6",
        "README",
        "libcuda.so.1.bak",
    ];

    fn decide(names: &[&str], host: &str) -> Vec<String> {
        winners(names.iter().map(ToString::to_string).collect(), host.parse().unwrap())
    }

    #[test]
    fn a_newer_image_wins_with_the_driver_libraries_that_it_has() {
        let won = decide(&PACKAGE, "570.172.08");
        assert_eq!(won, PACKAGE[1..8]);
    }

    #[test]
    fn a_host_of_the_same_branch_or_a_newer_one_wins() {
        assert_eq!(decide(&PACKAGE, "580.20"), <[&str; 0]>::default());
        assert_eq!(decide(&PACKAGE, "595.10.01"), <[&str; 0]>::default());
    }

    #[test]
    fn without_exactly_one_driver_nothing_wins() {
        let two = [&PACKAGE[..], &["libcuda.so.590.1.1"]].concat();
        assert_eq!(decide(&two, "470.1"), <[&str; 0]>::default());
        assert_eq!(decide(&["libcuda.so.1", "libcuda.so.580", "libcuda.so.580.x"], "470.1"), <[&str; 0]>::default());
    }

    #[test]
    fn versions_have_numbers_only() {
        for text in ["", ".", "580.", "580.105.x", "-1.2", "+580.1", "99999999999.1", "580 .1"] {
            assert_eq!(text.parse::<Branch>(), Err(NotAVersion(text.to_owned())));
        }
        assert_eq!("580.105.08".parse::<Branch>(), "580".parse());
    }

    proptest! {
        #[test]
        fn a_host_that_is_as_new_is_never_overruled(
            names in prop::collection::vec("lib(cuda|nvidia-x)\\.so\\.[0-9.]{1,9}", 0..6), host in 1_u32..999
        ) {
            let claims: Vec<u32> = names.iter()
                .filter_map(|name| name.strip_prefix("libcuda.so."))
                .filter_map(|version| version.split('.').next()?.parse().ok())
                .collect();
            let won = winners(names, Branch(host));
            prop_assert!(won.is_empty() || claims.iter().any(|claim| *claim > host));
        }
    }
}
