//! What NVML says of each GPU.
//!
//! Every fact is asked for on its own. One that fails stays what the last scan knew, or is left out where it knew
//! nothing, and costs nothing else: a GPU is worth publishing without its brand. Three facts it cannot do without: the
//! UUID (who it is), the minor (its device node) and the PCI address (its place). A fourth it must not do without is the
//! MIG mode: nobody can use a GPU in MIG mode as a whole. Without one of them the GPU is left out, and the others stay.
//!
//! ```text
//!  answer                      fact is
//!  a value                     the value
//!  NOT_SUPPORTED, no symbol    none: the GPU or its driver does not have it
//!  any other code              what the last scan knew of the same UUID
//! ```

use std::collections::BTreeMap;

use nvml_wrapper::Nvml;

use super::error::{Code, Error};
use super::link;
use super::raw::{self, FabricInfo, Handle};
use crate::device::{AddressingMode, Driver, Fabric, GpuUuid, LeftOut, Link, Mig, PciAddress, Peer};

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
    /// By link number: a link that cannot be read stays what it was.
    pub links: BTreeMap<u32, Link>,
    pub fabric: Registration,
}

/// How a GPU stands with the NVLink fabric. The default is that of a GPU without one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registration {
    /// It is about to be registered, or that failed.
    pub keeps_out: bool,
    /// The multi-node cluster that it is registered with.
    pub cluster: Option<Fabric>,
}

/// `nvmlGpuFabricState_t`: the GPU has no such fabric; the GPU is registered with it. In between it is about to be.
const FABRIC_NOT_SUPPORTED: u8 = 0;
const FABRIC_COMPLETED: u8 = 3;

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
        let found = Handle::by_index(nvml, index).and_then(|gpu| read(&gpu, &last.gpus));
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
fn read(gpu: &Handle<'_>, last: &[Facts]) -> Result<(Facts, Vec<LeftOut>), Error> {
    let uuid = uuid(gpu)?;
    let last = last.iter().find(|facts| facts.uuid == uuid);
    let mut notes = Notes::new(uuid.to_string());
    let architecture = notes.fact("architecture", known_architecture(gpu), last.and_then(|last| last.architecture))?;
    let mut links = link::read(gpu, architecture, last.map(|last| &last.links), &mut notes)?;
    let last_fabric = last.map(|last| last.fabric.clone());
    let fabric = notes.feature("NVLink fabric", gpu.fabric().map(registration), last_fabric)?.unwrap_or_default();
    if fabric.keeps_out {
        links.values_mut().filter(|link| link.peer == Peer::Switch).for_each(|link| link.peer = Peer::Other);
    }
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
        memory_bytes: notes.fact("memory size", gpu.memory(), last.and_then(|last| last.memory_bytes))?,
        addressing_mode: notes.feature(
            "addressing mode",
            addressing_mode(gpu),
            last.and_then(|last| last.addressing_mode),
        )?,
        mig: mig(gpu, last, &mut notes)?,
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

/// Fails where the mode cannot be read and never was: offered as a whole, a GPU in MIG mode would be given to pods that
/// cannot use it.
fn mig(gpu: &Handle<'_>, last: Option<&Facts>, notes: &mut Notes) -> Result<Mig, Error> {
    let answer = gpu.mig_mode().map(|enabled| Mig { capable: true, enabled, ..Mig::default() });
    match (answer, last) {
        (Err(error), None) if !error.is_absent() => Err(error),
        (answer, last) => Ok(notes.feature("MIG mode", answer, last.map(|last| last.mig.clone()))?.unwrap_or_default()),
    }
}

/// A switch carries nothing for a GPU until its registration has succeeded, though its links may be up. A cluster has an
/// identity: a single machine's fabric reports all zeros.
fn registration(info: FabricInfo) -> Registration {
    let is_registered = info.state == FABRIC_COMPLETED && info.status == Code::SUCCESS;
    let cluster = (is_registered && info.cluster != [0; 16])
        .then(|| Fabric { cluster: canonical_uuid(info.cluster), clique: info.clique });
    Registration { keeps_out: info.state != FABRIC_NOT_SUPPORTED && !is_registered, cluster }
}

fn canonical_uuid(bytes: [u8; 16]) -> String {
    let number = u128::from_be_bytes(bytes);
    let group = |from: u32, digits: u32| number >> (128 - 4 * (from + digits)) & ((1 << (4 * digits)) - 1);
    format!("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", group(0, 8), group(8, 4), group(12, 4), group(16, 4), group(20, 12))
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

/// Collects what could not be read of one owner.
pub(super) struct Notes {
    owner: String,
    left_out: Vec<LeftOut>,
    /// Some query said that the GPU is lost.
    lost: bool,
}

// === impl Notes ===

impl Notes {
    fn new(owner: String) -> Self {
        Self { owner, left_out: Vec::new(), lost: false }
    }

    /// A fact that every GPU has. Where it cannot be read it is the `last` one, with a note; where the GPU or its driver
    /// does not have it, `None`, with a note too. Fails only for a stale library.
    pub(super) fn fact<T>(
        &mut self,
        what: &str,
        answer: Result<T, Error>,
        last: Option<T>,
    ) -> Result<Option<T>, Error> {
        match answer {
            Ok(fact) => Ok(Some(fact)),
            Err(error) if error.is_stale() => Err(error),
            Err(error) => {
                self.lost |= error.code() == Some(Code::GPU_IS_LOST);
                let last = last.filter(|_| !error.is_absent());
                let mut note = LeftOut::new(format!("the {what} of {}", self.owner), &error);
                if last.is_some() {
                    note.why.push_str("; the last known one stays");
                }
                // A query that fails on 18 links fails for one reason.
                if !self.left_out.contains(&note) {
                    self.left_out.push(note);
                }
                Ok(last)
            }
        }
    }

    /// A fact that only some GPUs and drivers have: its absence is not worth a note.
    pub(super) fn feature<T>(
        &mut self,
        what: &str,
        answer: Result<T, Error>,
        last: Option<T>,
    ) -> Result<Option<T>, Error> {
        match answer {
            Err(error) if error.is_absent() => Ok(None),
            answer => self.fact(what, answer, last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(state: u8, status: u32, cluster: [u8; 16]) -> FabricInfo {
        FabricInfo { state, status: Code(status), cluster, clique: 2 }
    }

    #[test]
    fn only_a_completed_registration_with_an_identity_is_a_membership() {
        let mut cluster = [0; 16];
        cluster[3] = 1;
        let member = registration(info(3, 0, cluster)).cluster;
        let expected = Fabric { cluster: "00000001-0000-0000-0000-000000000000".to_owned(), clique: 2 };
        assert_eq!(member, Some(expected));
        assert_eq!(registration(info(3, 0, [0; 16])).cluster, None);
        assert_eq!(registration(info(2, 0, cluster)).cluster, None);
        assert_eq!(registration(info(3, 999, cluster)).cluster, None);
    }

    #[test]
    fn switches_are_closed_to_a_gpu_until_its_registration_has_succeeded() {
        let states = [(0, 0, false), (1, 0, true), (2, 0, true), (3, 0, false), (3, 999, true)];
        for (state, status, expected) in states {
            assert_eq!(
                registration(info(state, status, [0; 16])).keeps_out,
                expected,
                "state {state}, status {status}"
            );
        }
    }

    #[test]
    fn cluster_uuids_are_written_in_canonical_form() {
        let bytes = core::array::from_fn(|i| u8::try_from(i * 17).unwrap());
        assert_eq!(canonical_uuid(bytes), "00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn a_failing_query_costs_its_fact_alone() {
        let mut notes = Notes::new("GPU-1".to_owned());
        for code in [3, 15, 25, 28, 999, 4711] {
            let error = Error::Call { call: "nvmlDeviceGetBrand", gpu: None, code: Code(code) };
            assert_eq!(notes.fact("brand", Err::<u32, _>(error), None).unwrap(), None);
        }
        assert_eq!(notes.left_out.len(), 6);
        assert_eq!(notes.left_out[0].what, "the brand of GPU-1");
    }

    #[test]
    fn a_fact_that_fails_stays_what_it_was_and_one_that_is_not_supported_does_not() {
        let mut notes = Notes::new("GPU-1".to_owned());
        let error = |code| Error::Call { call: "nvmlDeviceGetBrand", gpu: None, code: Code(code) };
        assert_eq!(notes.fact("brand", Err(error(999)), Some("Tesla")).unwrap(), Some("Tesla"));
        assert_eq!(notes.fact("brand", Err(error(3)), Some("Tesla")).unwrap(), None);
        assert_eq!(notes.fact("brand", Ok("Nvidia"), Some("Tesla")).unwrap(), Some("Nvidia"));
        let [kept, lost] = &notes.left_out[..] else { panic!("{:?}", notes.left_out) };
        assert!(kept.why.ends_with("; the last known one stays") && !lost.why.contains("stays"));
    }

    #[test]
    fn a_missing_feature_is_no_news_but_a_failing_one_is() {
        let mut notes = Notes::new("GPU-1".to_owned());
        let failed = |code| Err::<u32, _>(Error::Call { call: "nvmlDeviceGetMigMode", gpu: None, code: Code(code) });
        for absent in [failed(3), failed(13), Err(Error::Symbol { call: "nvmlDeviceGetMigMode" })] {
            assert_eq!(notes.feature("MIG mode", absent, Some(1)).unwrap(), None);
        }
        assert_eq!(notes.left_out, []);
        assert_eq!(notes.feature("MIG mode", failed(999), None).unwrap(), None);
        assert_eq!(notes.left_out.len(), 1);
    }

    #[test]
    fn a_stale_library_ends_the_scan() {
        let mut notes = Notes::new("GPU-1".to_owned());
        let error = Error::Call { call: "nvmlDeviceGetBrand", gpu: None, code: Code::LIB_RM_VERSION_MISMATCH };
        assert!(notes.fact("brand", Err(error), Some(1)).is_err());
    }
}
