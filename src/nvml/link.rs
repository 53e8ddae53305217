//! The NVLinks of one GPU that are up, and where each leads.

use super::error::{Code, Error};
use super::gpu::Notes;
use super::raw::Handle;
use crate::device::{Link, PciAddress, Peer};

/// `NVML_NVLINK_MAX_LINKS` of nvml.h 13.5. Older libraries end the count themselves, with INVALID_ARGUMENT.
const MAX_LINKS: u32 = 36;

/// `nvmlIntNvLinkDeviceType_t`
const TYPE_GPU: u32 = 0;
const TYPE_SWITCH: u32 = 2;

/// Reads all links. A link whose state cannot be read is taken for down. Fails only for a stale library.
pub(super) fn read(gpu: &Handle<'_>, notes: &mut Notes) -> Result<Vec<Link>, Error> {
    let mut links = Vec::new();
    for number in 0..MAX_LINKS {
        let state = gpu.link_is_up(number);
        match &state {
            Err(Error::Symbol { .. }) => break,
            Err(error) if error.code() == Some(Code::INVALID_ARGUMENT) => break,
            _ => {}
        }
        if notes.feature("NVLink state", state)? == Some(true) {
            let version = notes.fact("NVLink version", gpu.link_version(number))?;
            let peer = notes.fact("far end of NVLinks", peer(gpu, number))?.unwrap_or(Peer::Other);
            links.push(Link { version, peer });
        }
    }
    Ok(links)
}

fn peer(gpu: &Handle<'_>, link: u32) -> Result<Peer, Error> {
    match gpu.link_peer_type(link)? {
        TYPE_SWITCH => Ok(Peer::Switch),
        TYPE_GPU => {
            let address = gpu.link_peer_bus_id(link)?;
            let call = "nvmlDeviceGetNvLinkRemotePciInfo_v2";
            PciAddress::parse(&address).map(Peer::Gpu).map_err(|error| gpu.unparsable(call, &error))
        }
        _ => Ok(Peer::Other),
    }
}
