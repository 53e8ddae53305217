//! A PCI device's place in the machine, from sysfs.
//!
//! ```text
//!  <sys>/bus/pci/devices/0000:1b:00.0 ─▶ <sys>/devices/pci0000:15/0000:15:01.0/0000:1b:00.0
//!                                                     └ PCIe root                ├ numa_node
//!                                                                                └ iommu_group ─▶ …/iommu_groups/40
//! ```
//!
//! Each of the three is read on its own; one that cannot be read is left out with the reason.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::numa;
use crate::device::{LeftOut, PciAddress, Place};

/// The standard attribute's definition takes larger numbers for garbage.
const NUMA_NODES: u32 = 1024;

/// Why a part of the place is not known.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} holds {text:?}, which is not {expected}", path.display())]
    Content { path: PathBuf, text: String, expected: &'static str },
    #[error("{} is not below a PCIe root: the platform hides the bus", path.display())]
    Hidden { path: PathBuf },
}

/// Reads the place of the device at `address` from the sysfs at `sys`. `owner` names the device in what is left out.
pub fn place(sys: &Path, address: PciAddress, owner: &str) -> (Place, Vec<LeftOut>) {
    let device = sys.join("bus/pci/devices").join(address.to_string());
    let mut left_out = Vec::new();
    let numa_node = known(numa_node(&device), "NUMA node", owner, &mut left_out);
    let place = Place {
        pcie_root: known(pcie_root(sys, &device).map(Some), "PCIe root", owner, &mut left_out),
        numa_node,
        numa_siblings: numa_node.map(|node| numa::siblings(sys, node)).unwrap_or_default(),
        iommu_group: known(iommu_group(&device), "IOMMU group", owner, &mut left_out),
    };
    (place, left_out)
}

/// The names that the Direct Rendering Manager has for the GPUs of NVIDIA's driver, such as `card1` and `renderD128`.
/// There are none while the module nvidia-drm is not loaded.
pub fn drm_names(sys: &Path) -> BTreeMap<PciAddress, Vec<String>> {
    let names = |directory: &Path| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>()
    };
    let driver = sys.join("bus/pci/drivers/nvidia");
    let gpus = names(&driver).into_iter().filter_map(|name| Some((PciAddress::parse(&name).ok()?, name)));
    let drm = gpus.map(|(address, name)| {
        // `card1-DP-1` and the like are connectors of a card.
        let is_node = |name: &String| (name.starts_with("card") || name.starts_with("renderD")) && !name.contains('-');
        let mut nodes = names(&driver.join(name).join("drm"));
        nodes.retain(is_node);
        nodes.sort();
        (address, nodes)
    });
    drm.filter(|(_, nodes)| !nodes.is_empty()).collect()
}

fn known<T>(read: Result<Option<T>, Error>, what: &str, owner: &str, left_out: &mut Vec<LeftOut>) -> Option<T> {
    read.unwrap_or_else(|error| {
        left_out.push(LeftOut::new(format!("the {what} of {owner}"), &error));
        None
    })
}

/// The first directory of the device's real path below `<sys>/devices`. It is `pci<domain>:<bus>` where the machine has
/// its own PCIe; elsewhere (Hyper-V) devices hang off something else.
fn pcie_root(sys: &Path, device: &Path) -> Result<String, Error> {
    let real = real_path(device)?;
    let hidden = || Error::Hidden { path: real.clone() };
    let below = real.strip_prefix(real_path(&sys.join("devices"))?).map_err(|_| hidden())?;
    let first = below.components().next().and_then(|first| first.as_os_str().to_str()).ok_or_else(hidden)?;
    if real.file_name() == device.file_name() && is_root(first) { Ok(first.to_owned()) } else { Err(hidden()) }
}

fn is_root(name: &str) -> bool {
    let hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    name.strip_prefix("pci")
        .and_then(|rest| rest.split_once(':'))
        .is_some_and(|(domain, bus)| matches!(domain.len(), 4..=8) && bus.len() == 2 && hex(domain) && hex(bus))
}

/// `None` where firmware does not say (-1).
fn numa_node(device: &Path) -> Result<Option<u32>, Error> {
    let path = device.join("numa_node");
    let text = fs::read_to_string(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
    match text.trim().parse::<i32>().map(u32::try_from) {
        Ok(Ok(node)) if node < NUMA_NODES => Ok(Some(node)),
        Ok(Err(_)) => Ok(None),
        Ok(Ok(_)) | Err(_) => Err(Error::Content { path, text, expected: "the number of a NUMA node" }),
    }
}

/// `None` while the IOMMU is off.
fn iommu_group(device: &Path) -> Result<Option<u32>, Error> {
    let path = device.join("iommu_group");
    let target = match fs::read_link(&path) {
        Ok(target) => target,
        Err(error) if error.kind() == io::ErrorKind::NotFound && device.exists() => return Ok(None),
        Err(source) => return Err(Error::Read { path, source }),
    };
    let group = target.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
    let text = target.display().to_string();
    group.map(Some).ok_or(Error::Content { path, text, expected: "a link to an IOMMU group" })
}

fn real_path(path: &Path) -> Result<PathBuf, Error> {
    path.canonicalize().map_err(|source| Error::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const DEVICE: &str = "devices/pci0000:15/0000:15:01.0/0000:1b:00.0";

    fn address() -> PciAddress {
        PciAddress::parse("0000:1b:00.0").unwrap()
    }

    /// A sysfs in which the device is at `path`.
    fn sysfs(path: &str, numa_node: &str, iommu_group: Option<&str>) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        let device = sys.path().join(path);
        fs::create_dir_all(&device).unwrap();
        fs::create_dir_all(sys.path().join("devices")).unwrap();
        fs::create_dir_all(sys.path().join("bus/pci/devices")).unwrap();
        symlink(format!("../../../{path}"), sys.path().join("bus/pci/devices/0000:1b:00.0")).unwrap();
        fs::write(device.join("numa_node"), numa_node).unwrap();
        if let Some(group) = iommu_group {
            symlink(group, device.join("iommu_group")).unwrap();
        }
        sys
    }

    #[test]
    fn a_device_has_a_root_a_numa_node_and_an_iommu_group() {
        let sys = sysfs(DEVICE, "1\n", Some("../../../../kernel/iommu_groups/40"));
        let expected = Place {
            pcie_root: Some("pci0000:15".to_owned()),
            numa_node: Some(1),
            iommu_group: Some(40),
            ..Place::default()
        };
        assert_eq!(place(sys.path(), address(), "gpu-0"), (expected, vec![]));
    }

    #[test]
    fn firmware_that_does_not_say_and_an_iommu_that_is_off_are_no_news() {
        let sys = sysfs(DEVICE, "-1\n", None);
        let (place, left_out) = place(sys.path(), address(), "gpu-0");
        assert_eq!((place.numa_node, place.iommu_group), (None, None));
        assert_eq!(left_out, []);
    }

    #[test]
    fn a_bus_that_the_platform_hides_costs_the_root_alone() {
        let sys = sysfs("devices/LNXSYSTM:00/VMBUS:00/pci0001:00/0000:1b:00.0", "0\n", None);
        let (place, left_out) = place(sys.path(), address(), "gpu-0");
        assert_eq!((place.pcie_root, place.numa_node), (None, Some(0)));
        assert_eq!(left_out.len(), 1);
        assert_eq!(left_out[0].what, "the PCIe root of gpu-0");
        assert!(left_out[0].why.ends_with("the platform hides the bus"), "{}", left_out[0].why);
    }

    #[test]
    fn a_link_that_leaves_sysfs_is_no_root() {
        let outside = tempfile::tempdir().unwrap();
        fs::create_dir_all(outside.path().join("pci0000:15/0000:1b:00.0")).unwrap();
        let sys = sysfs(DEVICE, "0\n", None);
        let link = sys.path().join("bus/pci/devices/0000:1b:00.0");
        fs::remove_file(&link).unwrap();
        symlink(outside.path().join("pci0000:15/0000:1b:00.0"), link).unwrap();
        assert_eq!(place(sys.path(), address(), "gpu-0").0.pcie_root, None);
    }

    #[test]
    fn garbage_is_left_out_with_its_path_and_content() {
        for text in ["", "one", "1024\n", "99999999999\n"] {
            let sys = sysfs(DEVICE, text, Some("iommu_groups/none"));
            let (place, left_out) = place(sys.path(), address(), "gpu-0");
            assert_eq!((place.numa_node, place.iommu_group), (None, None));
            assert_eq!(left_out.len(), 2);
            assert!(left_out[0].why.contains("numa_node holds"), "{}", left_out[0].why);
        }
    }

    #[test]
    fn a_device_that_sysfs_does_not_have_has_no_place() {
        let sys = tempfile::tempdir().unwrap();
        let (place, left_out) = place(sys.path(), address(), "gpu-0");
        assert_eq!(place, Place::default());
        assert_eq!(left_out.len(), 3);
    }

    #[test]
    fn only_pcie_roots_are_roots() {
        assert!(["pci0000:00", "pci0000:ff", "pci10000:e0"].into_iter().all(is_root));
        let others = ["", "pci", "pci0000", "pci0000:0", "pci0000:AB", "pci000:00", "platform", "pci0000:00:1"];
        assert!(!others.into_iter().any(is_root));
    }
}
