//! NVLinks: how many there are, whether they are up, and where they lead.
//!
//! The link number is checked as the real library does: beyond what any GPU can have is INVALID_ARGUMENT, beyond what
//! this GPU has is NOT_SUPPORTED.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlEnableState_t, nvmlIntNvLinkDeviceType_t, nvmlNvLinkCapability_t, nvmlNvLinkErrorCounter_t, nvmlNvLinkInfo_t,
    nvmlNvLinkInfo_v1_t, nvmlNvLinkInfo_v2_t, nvmlPciInfo_t,
};
use topology::{LinkEnd, LinkState};

use crate::call::{Device, nvml};
use crate::code::{Answer, Code, require};
use crate::fabric::is_registered;
use crate::out::{blank, put, version_word, word};
use crate::pci::{Address, Extent, device_id, store};

/// `NVML_NVLINK_MAX_LINKS` of NVML 13.5.
const MAX_LINKS: c_uint = 36;

/// `nvmlIntNvLinkDeviceType_t`.
const REMOTE_GPU: c_uint = 0;
const REMOTE_SWITCH: c_uint = 2;

/// The NVSwitch of HGX boards, device and vendor in one word.
const SWITCH_DEVICE_ID: c_uint = 0x22A3_10DE;

/// `NVML_NVLINK_CAP_COUNT` and the capabilities that every link of a data-centre board has: peer-to-peer, its atomics,
/// and being a link at all.
const CAPABILITIES: c_uint = 6;
const CAPABLE: [c_uint; 3] = [0, 2, 5];

/// `NVML_NVLINK_ERROR_COUNT`.
const ERROR_COUNTERS: c_uint = 5;

/// One link of a GPU.
pub(crate) struct Link<'a> {
    pub(crate) up: bool,
    pub(crate) to: &'a LinkEnd,
}

nvml! {
    fn nvmlDeviceGetNvLinkState(gpu: Device, link: c_uint, active: *mut nvmlEnableState_t) {
        put(active, nvmlEnableState_t::from(gpu.link(link)?.up))
    }

    fn nvmlDeviceGetNvLinkVersion(gpu: Device, link: c_uint, version: *mut c_uint) {
        gpu.link(link)?;
        put(version, gpu.nvlink_version()?)
    }

    fn nvmlDeviceGetNvLinkCapability(
        gpu: Device, link: c_uint, capability: nvmlNvLinkCapability_t, result: *mut c_uint
    ) {
        if capability >= CAPABILITIES {
            return Err(Code::INVALID_ARGUMENT);
        }
        gpu.link(link)?;
        put(result, c_uint::from(CAPABLE.contains(&capability)))
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu: Device, link: c_uint, pci: *mut nvmlPciInfo_t) {
        store(pci, remote(gpu, link)?, Extent::Full)
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo(gpu: Device, link: c_uint, pci: *mut nvmlPciInfo_t) {
        store(pci, remote(gpu, link)?, Extent::ToDevice)
    }

    fn nvmlDeviceGetNvLinkRemoteDeviceType(gpu: Device, link: c_uint, kind: *mut nvmlIntNvLinkDeviceType_t) {
        put(kind, match gpu.link(link)?.to {
            LinkEnd::Gpu(_) => REMOTE_GPU,
            LinkEnd::Switch(_) | LinkEnd::Fabric => REMOTE_SWITCH,
        })
    }

    fn nvmlDeviceGetNvLinkErrorCounter(
        gpu: Device, link: c_uint, counter: nvmlNvLinkErrorCounter_t, value: *mut c_ulonglong
    ) {
        if counter >= ERROR_COUNTERS {
            return Err(Code::INVALID_ARGUMENT);
        }
        gpu.link(link)?;
        put(value, 0)
    }

    fn nvmlDeviceResetNvLinkErrorCounters(gpu: Device, link: c_uint) {
        gpu.link(link).map(drop)
    }

    fn nvmlDeviceGetNvLinkInfo(gpu: Device, info: *mut nvmlNvLinkInfo_t) {
        let version = word(info.cast())?;
        let v2 = version == version_word::<nvmlNvLinkInfo_v2_t>(2);
        if !v2 && version != version_word::<nvmlNvLinkInfo_v1_t>(1) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        require(gpu.link_count() > 0)?;
        // No encryption; and no firmware is listed in the part that the second version adds.
        if v2 {
            blank(info)?.version = version;
        } else {
            blank(info.cast::<nvmlNvLinkInfo_v1_t>())?.version = version;
        }
        Ok(())
    }
}

impl Device<'_> {
    /// A link by number, or the code that the number deserves.
    pub(crate) fn link(&self, link: c_uint) -> Answer<Link<'_>> {
        if link >= MAX_LINKS {
            return Err(Code::INVALID_ARGUMENT);
        }
        self.links().nth(link as usize).ok_or(Code::NOT_SUPPORTED)
    }

    /// All links in order.
    pub(crate) fn links(&self) -> impl Iterator<Item = Link<'_>> {
        let groups = self.facts.nvlinks.iter();
        let ends = groups.flat_map(|group| (0..group.count).map(move |_| (group.active, &group.to)));
        ends.zip(0..).map(|((active, to), number)| {
            let up = self.state.links.get(&number).map_or(active, |state| *state == LinkState::Up);
            Link { up, to }
        })
    }

    /// How many links this GPU has, up or down.
    pub(crate) fn link_count(&self) -> u32 {
        self.facts.nvlinks.iter().map(|group| group.count).sum()
    }

    /// The generation of this GPU's links as an `nvmlNvlinkVersion_t`, which also counts 2.2 and 3.1.
    pub(crate) fn nvlink_version(&self) -> Answer<c_uint> {
        match self.facts.nvlink_version.ok_or(Code::NOT_SUPPORTED)? {
            generation @ (1 | 2) => Ok(generation),
            3 => Ok(4),
            generation => Ok(generation + 2),
        }
    }

    /// Whether NVLink connects two GPUs now: directly, or through switches that both still reach.
    pub(crate) fn linked_with(&self, other: &Device<'_>) -> bool {
        let leads = |from: &Device<'_>, to: usize| from.links().any(|link| link.up && *link.to == LinkEnd::Gpu(to));
        if leads(self, other.index) && leads(other, self.index) {
            return true;
        }
        let switched = |gpu: &Device<'_>| gpu.links().any(|link| link.up && !matches!(link.to, LinkEnd::Gpu(_)));
        switched(self) && switched(other) && same_fabric(self, other)
    }
}

/// Whether the switches pass traffic between two GPUs: from Hopper on only between GPUs that completed registration
/// with the same clique. Before there is no registration.
fn same_fabric(a: &Device<'_>, b: &Device<'_>) -> bool {
    match (a.fabric(), b.fabric()) {
        (Ok(a), Ok(b)) => is_registered(a) && a == b,
        (Err(_), Err(_)) => true,
        _ => false,
    }
}

fn remote(gpu: &Device<'_>, link: c_uint) -> Answer<nvmlPciInfo_t> {
    match gpu.link(link)?.to {
        LinkEnd::Gpu(peer) => {
            let topology = &gpu.call.node.topology;
            let peer = &topology.gpus[*peer];
            let address = Address::parse(&peer.bus_id).ok_or(Code::UNKNOWN)?;
            Ok(address.info(device_id(topology.board(peer)), 0))
        }
        LinkEnd::Switch(address) => Ok(Address::parse(address).ok_or(Code::UNKNOWN)?.info(SWITCH_DEVICE_ID, 0)),
        LinkEnd::Fabric => Ok(Address::NOWHERE.info(0, 0)),
    }
}
