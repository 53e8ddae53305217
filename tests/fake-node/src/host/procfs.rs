//! `/proc`: what the driver and the kernel say of themselves.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use topology::Topology;

use super::Error;
use super::devfs::{CAPS_MAJOR, DRIVER_MAJOR, UVM_MAJOR};
use super::tree::{Tree, file};

/// From this driver on `/proc/devices` names the three users of major 195 instead of `nvidia-frontend`.
const FIRST_WITHOUT_FRONTEND: u32 = 550;
/// Bounds of the driver's static table of MIG minors: GPUs, GPU instances, compute instances. It is the same on every
/// machine, whatever GPUs are in it.
const MIG_TABLE: (u32, u32, u32) = (32, 15, 8);
/// A new random UUID with every read.
const KERNEL_UUID: &str = "/proc/sys/kernel/random/uuid";

/// Writes the whole of procfs.
pub(super) fn build(proc: &Tree, topology: &Topology) -> Result<(), Error> {
    gpus(proc, topology)?;
    proc.file(
        "driver/nvidia/params",
        "ResmanDebugLevel: 4294967295\nRmLogonRC: 1\nModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\n\
         DeviceFileMode: 438\nInitializeSystemMemoryAllocations: 1\nUsePageAttributeTable: 4294967295\n\
         EnableGpuFirmware: 18\n",
    )?;
    if topology.gpus.iter().any(|gpu| topology.board(gpu).mig_capable) {
        // Modes are decimal: 256 is 0400, 292 is 0444.
        for (name, minor, mode) in [("config", 1, 256), ("monitor", 2, 292)] {
            let access = format!("DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n");
            proc.file(format!("driver/nvidia/capabilities/mig/{name}"), access)?;
        }
        proc.file("driver/nvidia-caps/mig-minors", mig_minors())?;
    }
    proc.file(
        "modules",
        "nvidia_uvm 2088960 2 - Live 0x0000000000000000 (OE)\n\
         nvidia_modeset 1822720 0 - Live 0x0000000000000000 (OE)\n\
         nvidia 14381056 19 nvidia_uvm,nvidia_modeset, Live 0x0000000000000000 (OE)\n",
    )?;
    new_boot_id(proc)?;
    driver_version(proc, &topology.system.driver_version)
}

/// What the driver says of each GPU.
pub(super) fn gpus(proc: &Tree, topology: &Topology) -> Result<(), Error> {
    for gpu in &topology.gpus {
        let board = topology.board(gpu);
        let vbios = if board.vbios_version.is_empty() { "??.??.??.??.??" } else { &board.vbios_version };
        let information = format!(
            "Model: \t\t {}\nIRQ:   \t\t {}\nGPU UUID: \t {}\nVideo BIOS: \t {vbios}\nBus Type: \t PCIe\n\
             DMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t {}\nDevice Minor: \t {}\n\
             GPU Excluded:\t No\n",
            board.product_name,
            256 + gpu.minor,
            gpu.uuid,
            gpu.bus_id,
            gpu.minor,
        );
        proc.file(format!("driver/nvidia/gpus/{}/information", gpu.bus_id), information)?;
    }
    Ok(())
}

/// What names the driver's version; changes with the driver.
pub(super) fn driver_version(proc: &Tree, version: &str) -> Result<(), Error> {
    let arch = std::env::consts::ARCH;
    proc.file(
        "driver/nvidia/version",
        format!(
            "NVRM version: NVIDIA UNIX Open Kernel Module for {arch}  {version}  Release Build  (fake-node)  \
             Wed Jan  1 00:00:00 UTC 2025\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)\n"
        ),
    )?;
    proc.file("devices", devices(version))
}

/// Starts a new boot.
pub(super) fn new_boot_id(proc: &Tree) -> Result<(), Error> {
    let path = Path::new(KERNEL_UUID);
    proc.file("sys/kernel/random/boot_id", fs::read_to_string(path).map_err(file("read", path))?)
}

fn devices(version: &str) -> String {
    let major = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
    let driver: &[&str] =
        if major < FIRST_WITHOUT_FRONTEND { &["nvidia-frontend"] } else { &["nvidia", "nvidia-modeset", "nvidiactl"] };
    let mut text = "Character devices:\n  1 mem\n  5 /dev/tty\n 10 misc\n136 pts\n".to_owned();
    for name in driver {
        let _ = writeln!(text, "{DRIVER_MAJOR} {name}");
    }
    let _ = writeln!(text, "226 drm\n{CAPS_MAJOR} nvidia-caps\n{UVM_MAJOR} nvidia-uvm");
    text + "\nBlock devices:\n  8 sd\n259 blkext\n"
}

fn mig_minors() -> String {
    let (gpus, gpu_instances, compute_instances) = MIG_TABLE;
    let mut minor = 3;
    let mut text = "config 1\nmonitor 2\n".to_owned();
    for gpu in 0..gpus {
        for gi in 0..gpu_instances {
            let _ = writeln!(text, "gpu{gpu}/gi{gi}/access {minor}");
            for ci in 0..compute_instances {
                let _ = writeln!(text, "gpu{gpu}/gi{gi}/ci{ci}/access {}", minor + 1 + ci);
            }
            minor += 1 + compute_instances;
        }
    }
    text
}
