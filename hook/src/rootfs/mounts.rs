//! Whose a file system in memory is that is mounted into the container.
//!
//! The runtime makes one for `/dev`, and links go there. A pod can have the host's own `/dev` or `/run` mounted, or a volume
//! in memory that its containers share. Those are mounted somewhere else too; the runtime's is mounted beneath the
//! container's root and nowhere else.

use std::collections::HashMap;

/// One line of `/proc/self/mountinfo`: what this mount is on, and the device of its file system (`0:25`).
struct Mount<'a> {
    parent: u64,
    device: &'a str,
}

/// Whether the file system of `mount` is mounted beneath the mount `root` and nowhere else, in the words of proc(5).
pub(super) fn is_only_beneath(mountinfo: &str, root: u64, mount: u64) -> bool {
    let mounts: HashMap<u64, Mount<'_>> = mountinfo.lines().filter_map(parse).collect();
    let Some(device) = mounts.get(&mount).map(|mount| mount.device) else { return false };
    let is_beneath = |mut mount: u64| {
        // A chain is not longer than there are mounts, whatever the kernel says.
        for _ in 0..mounts.len() {
            match mounts.get(&mount) {
                Some(found) if found.parent == root => return true,
                Some(found) => mount = found.parent,
                None => return false,
            }
        }
        false
    };
    mounts.iter().filter(|(_, mount)| mount.device == device).all(|(id, _)| is_beneath(*id))
}

fn parse(line: &str) -> Option<(u64, Mount<'_>)> {
    let mut fields = line.split(' ');
    let id = fields.next()?.parse().ok()?;
    let parent = fields.next()?.parse().ok()?;
    Some((id, Mount { parent, device: fields.next()? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The container's root is mount 50.
    const MOUNTINFO: &str = "\
1 0 8:1 / / rw - ext4 /dev/vda rw
20 1 0:5 / /dev rw - devtmpfs udev rw
21 1 0:40 / /var/lib/kubelet/pods/a/volumes/memory rw - tmpfs tmpfs rw
50 1 0:50 / /run/containerd/rootfs rw - overlay overlay rw
60 50 0:60 / /run/containerd/rootfs/dev rw - tmpfs tmpfs rw
61 60 0:61 / /run/containerd/rootfs/dev/shm rw - tmpfs tmpfs rw
62 50 0:40 / /run/containerd/rootfs/memory rw - tmpfs tmpfs rw
63 50 0:5 /dri /run/containerd/rootfs/host-dev rw - devtmpfs udev rw
64 64 0:64 / /nowhere rw - tmpfs tmpfs rw
damaged
";

    #[test]
    fn what_the_runtime_mounts_for_one_container_is_its_own() {
        assert!(is_only_beneath(MOUNTINFO, 50, 60));
        assert!(is_only_beneath(MOUNTINFO, 50, 61));
    }

    #[test]
    fn what_is_mounted_elsewhere_too_is_somebody_elses() {
        for mount in [62, 63, 20, 1] {
            assert!(!is_only_beneath(MOUNTINFO, 50, mount), "{mount}");
        }
    }

    #[test]
    fn what_is_not_told_or_makes_no_sense_is_not_its_own() {
        for mount in [64, 99] {
            assert!(!is_only_beneath(MOUNTINFO, 50, mount), "{mount}");
        }
        assert!(!is_only_beneath("", 50, 60));
    }
}
