//! What NVML says of each GPU.
//!
//! Every fact is asked for on its own. One that fails stays what the last scan knew, or is left out where it knew
//! nothing, and costs nothing else: a GPU is worth publishing without its brand. Three facts it cannot do without: the
//! UUID (who it is), the minor (its device node) and the PCI address (its place). A fourth it must not do without is the
//! MIG mode: nobody can use a GPU in MIG mode as a whole. Without one of them the GPU is left out, and the others stay.

use std::collections::BTreeMap;

use nvml_wrapper::Nvml;

use super::error::Error;
use super::fabric::{Registration, registration};
use super::link;
use super::mig::{self, Compute};
use super::notes::Notes;
use super::raw::{self, Handle};
use crate::device::{AddressingMode, Driver, GpuUuid, LeftOut, Link, Mig, PciAddress, Peer};

/// All GPUs, in the order of their NVML index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scan {
    /// What the driver says of itself.
    pub driver: Driver,
    /// GPUs that can be used.
    pub gpus: Vec<Facts>,
    /// What could not be read, and why.
    pub left_out: Vec<LeftOut>,
}

/// What NVML knows of one GPU; see [`device::Gpu`](crate::device::Gpu) for the meaning of each.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of device::Gpu")]
pub struct Facts {
    pub uuid: GpuUuid,
    pub minor: u32,
    pub pci: PciAddress,
    pub product_name: Option<String>,
    pub brand: Option<&'static str>,
    pub architecture: Option<&'static str>,
    pub cuda_compute_capability: Option<(u32, u32)>,
    pub memory_bytes: Option<u64>,
    pub addressing_mode: Option<AddressingMode>,
    pub mig: Mig,
    /// Of what kinds compute instances can be, by the profile of their GPU instance.
    pub(super) compute: Compute,
    /// By link number: a link that cannot be read stays what it was.
    pub links: BTreeMap<u32, Link>,
    pub fabric: Registration,
}

/// Reads all GPUs. What fails to be read stays what it was in the last scan.
///
/// # Errors
/// When GPUs cannot even be counted, or the library turns out to be stale: then nothing is known, which is not the same
/// as a machine without GPUs.
pub fn scan(nvml: &Nvml, last: &Scan) -> Result<Scan, Error> {
    let mut scan = Scan::default();
    let mut notes = Notes::new("the driver".to_owned());
    scan.driver = Driver {
        version: notes.fact("version", raw::driver_version(nvml), last.driver.version.clone())?,
        cuda_version: notes.fact("CUDA version", raw::cuda_version(nvml), last.driver.cuda_version)?,
    };
    scan.left_out = notes.left_out;
    for index in 0..raw::device_count(nvml)? {
        let found = Handle::by_index(nvml, index).and_then(|gpu| read(&gpu, last, &scan.driver));
        match found {
            Ok((facts, left_out)) => {
                scan.gpus.push(facts);
                scan.left_out.extend(left_out);
            }
            Err(error) if error.is_stale() => return Err(error),
            Err(error) => scan.left_out.push(LeftOut::new(format!("GPU {index}"), &error)),
        }
    }
    Ok(scan)
}

/// Reads one GPU. Fails where the GPU cannot be used at all, or the library is stale.
fn read(gpu: &Handle<'_>, last: &Scan, driver: &Driver) -> Result<(Facts, Vec<LeftOut>), Error> {
    let uuid = uuid(gpu)?;
    let same_driver = last.driver.version == driver.version;
    let last = last.gpus.iter().find(|facts| facts.uuid == uuid);
    let mut notes = Notes::new(uuid.to_string());
    let architecture = notes.fact("architecture", known_architecture(gpu), last.and_then(|last| last.architecture))?;
    let mut links = link::read(gpu, architecture, last.map(|last| &last.links), &mut notes)?;
    let last_fabric = last.map(|last| last.fabric.clone());
    let fabric = notes.feature("NVLink fabric", gpu.fabric().map(registration), last_fabric)?.unwrap_or_default();
    if fabric.keeps_out {
        links.values_mut().filter(|link| link.peer == Peer::Switch).for_each(|link| link.peer = Peer::Other);
    }
    let memory_bytes = notes.fact("memory size", gpu.memory(), last.and_then(|last| last.memory_bytes))?;
    let (mig, compute) = mig::read(gpu, memory_bytes, last, same_driver, &mut notes)?;
    let facts = Facts {
        minor: gpu.minor()?,
        pci: pci(gpu)?,
        product_name: notes.fact("product name", gpu.name(), last.and_then(|last| last.product_name.clone()))?,
        brand: notes.fact("brand", known_brand(gpu), last.and_then(|last| last.brand))?,
        architecture,
        cuda_compute_capability: notes.fact(
            "CUDA compute capability",
            compute_capability(gpu),
            last.and_then(|last| last.cuda_compute_capability),
        )?,
        memory_bytes,
        addressing_mode: notes.feature(
            "addressing mode",
            addressing_mode(gpu),
            last.and_then(|last| last.addressing_mode),
        )?,
        mig,
        compute,
        links,
        fabric,
        uuid,
    };
    if notes.lost {
        // One query that says "lost" costs its fact. A GPU that cannot even say who it is any more is gone.
        gpu.uuid()?;
    }
    Ok((facts, notes.left_out))
}

fn uuid(gpu: &Handle<'_>) -> Result<GpuUuid, Error> {
    GpuUuid::parse(&gpu.uuid()?).map_err(|error| gpu.unparsable("nvmlDeviceGetUUID", &error))
}

fn pci(gpu: &Handle<'_>) -> Result<PciAddress, Error> {
    PciAddress::parse(&gpu.bus_id()?).map_err(|error| gpu.unparsable("nvmlDeviceGetPciInfo_v3", &error))
}

fn known_brand(gpu: &Handle<'_>) -> Result<&'static str, Error> {
    let number = gpu.brand()?;
    brand(number).ok_or_else(|| gpu.nonsense("nvmlDeviceGetBrand", &number, "a brand that this program knows"))
}

fn known_architecture(gpu: &Handle<'_>) -> Result<&'static str, Error> {
    let number = gpu.architecture()?;
    let expected = "an architecture that this program knows";
    architecture(number).ok_or_else(|| gpu.nonsense("nvmlDeviceGetArchitecture", &number, expected))
}

fn compute_capability(gpu: &Handle<'_>) -> Result<(u32, u32), Error> {
    let (major, minor) = gpu.compute_capability()?;
    let call = "nvmlDeviceGetCudaComputeCapability";
    let nonsense = |_| gpu.nonsense(call, &format_args!("{major}.{minor}"), "a compute capability");
    Ok((u32::try_from(major).map_err(nonsense)?, u32::try_from(minor).map_err(nonsense)?))
}

fn addressing_mode(gpu: &Handle<'_>) -> Result<AddressingMode, Error> {
    match gpu.addressing_mode()? {
        0 => Ok(AddressingMode::None),
        1 => Ok(AddressingMode::Hmm),
        2 => Ok(AddressingMode::Ats),
        number => Err(gpu.nonsense("nvmlDeviceGetAddressingMode", &number, "a mode that this program knows")),
    }
}

/// `nvmlBrandType_t` in the spelling that NVIDIA's driver publishes.
fn brand(number: u32) -> Option<&'static str> {
    Some(match number {
        0 => "Unknown",
        1 => "Quadro",
        2 => "Tesla",
        3 => "NVS",
        4 => "Grid",
        5 => "GeForce",
        6 => "Titan",
        7 => "NvidiaVApps",
        8 => "NvidiaVPC",
        9 => "NvidiaVCS",
        10 => "NvidiaVWS",
        11 => "NvidiaCloudGaming",
        12 => "QuadroRTX",
        13 => "NvidiaRTX",
        14 => "Nvidia",
        15 => "GeForceRTX",
        16 => "TitanRTX",
        _ => return None,
    })
}

/// `nvmlDeviceArchitecture_t` in the spelling that NVIDIA's driver publishes.
fn architecture(number: u32) -> Option<&'static str> {
    Some(match number {
        2 => "Kepler",
        3 => "Maxwell",
        4 => "Pascal",
        5 => "Volta",
        6 => "Turing",
        7 => "Ampere",
        8 => "Ada Lovelace",
        9 => "Hopper",
        10 => "Blackwell",
        13 => "Rubin",
        u32::MAX => "Unknown",
        _ => return None,
    })
}
