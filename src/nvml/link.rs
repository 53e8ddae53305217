//! The NVLinks of one GPU that are up, and where each leads.

use std::collections::BTreeMap;

use super::error::{Code, Error};
use super::notes::Notes;
use super::raw::Handle;
use crate::device::{Link, PciAddress, Peer};

/// `NVML_NVLINK_MAX_LINKS` of nvml.h 13.5. Older libraries end the count themselves, with INVALID_ARGUMENT.
pub(super) const MAX_LINKS: u32 = 36;

/// `nvmlIntNvLinkDeviceType_t`
const TYPE_GPU: u32 = 0;
const TYPE_SWITCH: u32 = 2;

/// Reads the links below `numbers`, by number, and from which number on there are none. A link whose state cannot be read
/// is what it was in the `last` scan, and down where that did not know either. Fails only for a stale library.
pub(super) fn read(
    gpu: &Handle<'_>,
    architecture: Option<&'static str>,
    numbers: u32,
    last: Option<&BTreeMap<u32, Link>>,
    notes: &mut Notes,
) -> Result<(BTreeMap<u32, Link>, u32), Error> {
    let (mut links, mut end) = (BTreeMap::new(), 0);
    for number in 0..numbers {
        let was_up = last.map(|links| links.contains_key(&number));
        let last = last.and_then(|links| links.get(&number));
        let state = gpu.link_is_up(number);
        match &state {
            Err(Error::Symbol { .. }) => break,
            Err(error) if error.code() == Some(Code::INVALID_ARGUMENT) => break,
            Err(error) if error.is_absent() => {}
            _ => end = number + 1,
        }
        if notes.feature("NVLink state", state, was_up)? == Some(true) {
            let version = match architecture.and_then(generation) {
                Some(generation) => Some(generation),
                None => notes.fact("NVLink version", version(gpu, number), last.and_then(|last| last.version))?,
            };
            let peer = match last.map(|last| last.peer) {
                // Nobody plugs a link that is up into another place, and asking again is a third of all calls of a scan.
                Some(peer @ (Peer::Switch | Peer::Gpu(_))) => peer,
                last => notes.fact("far end of NVLinks", peer(gpu, number), last)?.unwrap_or(Peer::Other),
            };
            links.insert(number, Link { version, peer });
        }
    }
    Ok((links, end))
}

/// An architecture has one generation of NVLink. It is the better source: `nvmlDeviceGetNvLinkVersion` is documented to
/// answer with an enum (4 is NVLink 3.0, 6 is 4.0), but drivers in the field answer with the numbers of the kernel
/// interface, where 5 is NVLink 3.0 (A100) and 7 is 4.0 (H100).
fn generation(architecture: &'static str) -> Option<u32> {
    Some(match architecture {
        "Pascal" => 1,
        "Volta" | "Turing" => 2,
        "Ampere" => 3,
        "Hopper" => 4,
        "Blackwell" => 5,
        "Rubin" => 6,
        _ => return None,
    })
}

/// `nvmlNvlinkVersion_t`, as documented.
fn version(gpu: &Handle<'_>, link: u32) -> Result<u32, Error> {
    Ok(match gpu.link_version(link)? {
        1 => 1,
        2 | 3 => 2,
        4 | 5 => 3,
        6 => 4,
        7 => 5,
        8 => 6,
        number => {
            return Err(gpu.nonsense("nvmlDeviceGetNvLinkVersion", &number, "a version that this program knows"));
        }
    })
}

fn peer(gpu: &Handle<'_>, link: u32) -> Result<Peer, Error> {
    match gpu.link_peer_type(link)? {
        TYPE_SWITCH => Ok(Peer::Switch),
        TYPE_GPU => {
            let call = "nvmlDeviceGetNvLinkRemotePciInfo_v2";
            let address = gpu.link_peer_bus_id(link)?;
            PciAddress::parse(&address).map(Peer::Gpu).map_err(|error| gpu.unparsable(call, &error))
        }
        _ => Ok(Peer::Other),
    }
}
