//! What NVML says of each GPU.
//!
//! Every fact is asked for on its own. One that fails stays what the last scan knew, or is left out where it knew
//! nothing, and costs nothing else: a GPU is worth publishing without its brand. Three facts it cannot do without: the
//! UUID (who it is), the minor (its device node) and the PCI address (its place). A fourth it must not do without is the
//! MIG mode: nobody can use a GPU in MIG mode as a whole. Without one of them the GPU is left out, and the others stay.
//!
//! What lasts for as long as a driver is loaded, or what is likely to, is asked for now and then only: see [`Lasting`].

use std::collections::BTreeMap;

use nvml_wrapper::Nvml;

use super::error::Error;
use super::fabric::{Registration, registration};
use super::link;
use super::mig::{self, Compute};
use super::notes::Notes;
use super::raw::{self, Handle};
use crate::device::{AddressingMode, Driver, GpuUuid, LeftOut, Link, Mig, PciAddress, Peer};

/// After how many scans everything is read again, where nothing went wrong in between. That is within a minute, as links
/// that come where there were none have to show.
pub const ALL_EVERY: u32 = 5;

/// All GPUs, in the order of their NVML index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scan {
    /// What the driver says of itself.
    pub driver: Driver,
    /// GPUs that can be used.
    pub gpus: Vec<Facts>,
    /// What could not be read, and why.
    pub left_out: Vec<LeftOut>,
    /// How many scans may follow until one reads everything.
    pub until_all: u32,
}

/// What NVML knows of one GPU; see [`device::Gpu`](crate::device::Gpu) for the meaning of each.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of device::Gpu")]
pub struct Facts {
    pub uuid: GpuUuid,
    pub minor: u32,
    pub pci: PciAddress,
    pub lasting: Lasting,
    /// Asked for each time, as a sign of life: a GPU without NVLinks and MIG answers nothing else from its own hardware.
    pub memory_bytes: Option<u64>,
    pub mig: Mig,
    /// Of what kinds compute instances can be, by the profile of their GPU instance.
    pub(super) compute: Compute,
    /// By link number: a link that cannot be read stays what it was.
    pub links: BTreeMap<u32, Link>,
    /// From this number on there are no links.
    pub(super) link_numbers: u32,
    pub fabric: Registration,
}

/// What stays as it is for as long as the same driver is loaded. Scans that follow one in which nothing failed take it
/// from there, up to [`ALL_EVERY`] of them: it is a third of all calls of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of device::Gpu")]
pub struct Lasting {
    pub product_name: Option<String>,
    pub brand: Option<&'static str>,
    pub architecture: Option<&'static str>,
    pub cuda_compute_capability: Option<(u32, u32)>,
    pub addressing_mode: Option<AddressingMode>,
}

/// What the last scan knew of a GPU.
#[derive(Clone, Copy)]
pub(super) struct Before<'a> {
    pub(super) facts: Option<&'a Facts>,
    /// Of the driver that is loaded now.
    pub(super) same_driver: bool,
    /// What lasts is not asked for again.
    pub(super) lasts: bool,
}

/// Reads all GPUs. What fails to be read stays what it was in the last scan.
///
/// # Errors
/// When GPUs cannot even be counted, or the library turns out to be stale: then nothing is known, which is not the same
/// as a machine without GPUs.
pub fn scan(nvml: &Nvml, last: &Scan) -> Result<Scan, Error> {
    let mut scan = Scan::default();
    let mut notes = Notes::new("the driver".to_owned());
    let version = notes.fact("version", raw::driver_version(nvml), last.driver.version.clone())?;
    let same_driver = last.driver.version == version;
    let lasts = same_driver && last.until_all > 0 && last.left_out.is_empty();
    let cuda_version = match last.driver.cuda_version {
        known if lasts => known,
        known => notes.fact("CUDA version", raw::cuda_version(nvml), known)?,
    };
    scan.driver = Driver { version, cuda_version };
    scan.until_all = if lasts { last.until_all - 1 } else { ALL_EVERY - 1 };
    scan.left_out = notes.left_out;
    for index in 0..raw::device_count(nvml)? {
        let found = Handle::by_index(nvml, index).and_then(|gpu| {
            let uuid = uuid(&gpu)?;
            let facts = last.gpus.iter().find(|facts| facts.uuid == uuid);
            read(&gpu, uuid, Before { facts, same_driver, lasts })
        });
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
fn read(gpu: &Handle<'_>, uuid: GpuUuid, before: Before<'_>) -> Result<(Facts, Vec<LeftOut>), Error> {
    let mut notes = Notes::new(uuid.to_string());
    let known = before.facts.filter(|_| before.lasts);
    let lasting = match known {
        Some(known) => known.lasting.clone(),
        None => lasting(gpu, before.facts.map(|facts| &facts.lasting), &mut notes)?,
    };
    let numbers = known.map_or(link::MAX_LINKS, |known| known.link_numbers);
    let last_links = before.facts.map(|facts| &facts.links);
    let (mut links, link_numbers) = link::read(gpu, lasting.architecture, numbers, last_links, &mut notes)?;
    let last_fabric = before.facts.map(|facts| facts.fabric.clone());
    let fabric = notes.feature("NVLink fabric", gpu.fabric().map(registration), last_fabric)?.unwrap_or_default();
    if fabric.keeps_out {
        links.values_mut().filter(|link| link.peer == Peer::Switch).for_each(|link| link.peer = Peer::Other);
    }
    let last_memory = before.facts.and_then(|facts| facts.memory_bytes);
    let memory_bytes = notes.fact("memory size", gpu.memory(), last_memory)?;
    let (mig, compute) = mig::read(gpu, memory_bytes, before, &mut notes)?;
    let (minor, pci) = (gpu.minor()?, pci(gpu)?);
    if notes.lost {
        // One query that says "lost" costs its fact. A GPU that cannot even say who it is any more is gone.
        gpu.uuid()?;
    }
    let facts = Facts { uuid, minor, pci, lasting, memory_bytes, mig, compute, links, link_numbers, fabric };
    Ok((facts, notes.left_out))
}

fn lasting(gpu: &Handle<'_>, last: Option<&Lasting>, notes: &mut Notes) -> Result<Lasting, Error> {
    let last_capability = last.and_then(|last| last.cuda_compute_capability);
    let last_mode = last.and_then(|last| last.addressing_mode);
    Ok(Lasting {
        product_name: notes.fact("product name", gpu.name(), last.and_then(|last| last.product_name.clone()))?,
        brand: notes.fact("brand", known_brand(gpu), last.and_then(|last| last.brand))?,
        architecture: notes.fact("architecture", known_architecture(gpu), last.and_then(|last| last.architecture))?,
        cuda_compute_capability: notes.fact("CUDA compute capability", compute_capability(gpu), last_capability)?,
        addressing_mode: notes.feature("addressing mode", addressing_mode(gpu), last_mode)?,
    })
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
