//! PCI addresses, in the two spellings NVML has for each, and what is at an address.

use std::ffi::{c_char, c_uint};
use std::ptr;

use nvml_wrapper_sys::bindings::{nvmlPciInfo_t, nvmlPciInfoExt_t};
use topology::Board;

use crate::call::{Device, nvml};
use crate::code::{Answer, Code, require};
use crate::out::{chars, put, versioned};

/// PCI base class of every GPU here: display controller.
const BASE_CLASS: c_uint = 0x03;

/// PCI subclass of a GPU without display outputs: 3D controller.
const SUB_CLASS: c_uint = 0x02;

/// Link width of every board here.
const LINK_WIDTH: c_uint = 16;

/// `domain:bus:device`; the function of a GPU is always 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    domain: u32,
    bus: u32,
    device: u32,
}

/// How much of `nvmlPciInfo_t` a version of a function fills in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum Extent {
    /// The first version: up to `pciDeviceId`. Its callers have no room for more.
    ToDevice,
    /// The second version: up to `pciSubSystemId`.
    ToSubsystem,
    /// Everything.
    Full,
}

// === impl Address ===

impl Address {
    /// What NVML reports for an NVSwitch that is on no bus of this machine.
    pub(crate) const NOWHERE: Self = Self { domain: 0xFFFF_FFFF, bus: 0xFF, device: 0xFF };

    /// Reads `domain:bus:device.function`, or without domain or function, in any case and padding.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let hex = |part| u32::from_str_radix(part, 16).ok();
        let (text, function) = text.rsplit_once('.').unwrap_or((text, "0"));
        hex(function)?;
        let mut parts = text.rsplit(':');
        let device = hex(parts.next()?)?;
        let bus = hex(parts.next()?)?;
        let domain = parts.next().map_or(Some(0), hex)?;
        (parts.next().is_none() && bus <= 0xFF && device <= 0x1F).then_some(Self { domain, bus, device })
    }

    /// `0000001B:00:00.0`-style, as `busId`.
    fn long(self) -> String {
        format!("{:08X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }

    /// `001B:00:00.0`-style, as `busIdLegacy`.
    fn short(self) -> String {
        format!("{:04X}:{:02X}:{:02X}.0", self.domain & 0xFFFF, self.bus, self.device)
    }

    /// One number per board, as NVML makes it: domain, bus and device side by side.
    pub(crate) fn board_id(self) -> c_uint {
        self.domain << 16 | self.bus << 8 | self.device
    }

    /// The answer for this address.
    pub(crate) fn info(self, device_id: c_uint, subsystem_id: c_uint) -> nvmlPciInfo_t {
        nvmlPciInfo_t {
            busIdLegacy: chars(&self.short()),
            domain: self.domain,
            bus: self.bus,
            device: self.device,
            pciDeviceId: device_id,
            pciSubSystemId: subsystem_id,
            busId: chars(&self.long()),
        }
    }
}

nvml! {
    fn nvmlDeviceGetPciInfo_v3(gpu: Device, pci: *mut nvmlPciInfo_t) {
        store(pci, gpu.pci()?, Extent::Full)
    }

    fn nvmlDeviceGetPciInfo_v2(gpu: Device, pci: *mut nvmlPciInfo_t) {
        store(pci, gpu.pci()?, Extent::ToSubsystem)
    }

    fn nvmlDeviceGetPciInfo(gpu: Device, pci: *mut nvmlPciInfo_t) {
        store(pci, gpu.pci()?, Extent::ToDevice)
    }

    fn nvmlDeviceGetPciInfoExt(gpu: Device, pci: *mut nvmlPciInfoExt_t) {
        let pci = versioned(pci, 1)?;
        let info = gpu.pci()?;
        (*pci).domain = info.domain;
        (*pci).bus = info.bus;
        (*pci).device = info.device;
        (*pci).pciDeviceId = info.pciDeviceId;
        (*pci).pciSubSystemId = info.pciSubSystemId;
        (*pci).baseClass = BASE_CLASS;
        (*pci).subClass = SUB_CLASS;
        (*pci).busId = info.busId;
        Ok(())
    }

    fn nvmlDeviceGetBoardId(gpu: Device, id: *mut c_uint) {
        put(id, gpu.address()?.board_id())
    }

    fn nvmlDeviceGetMaxPcieLinkGeneration, nvmlDeviceGetCurrPcieLinkGeneration,
       nvmlDeviceGetGpuMaxPcieLinkGeneration(gpu: Device, generation: *mut c_uint) {
        require(gpu.board.pcie_generation > 0)?;
        put(generation, gpu.board.pcie_generation)
    }

    fn nvmlDeviceGetMaxPcieLinkWidth, nvmlDeviceGetCurrPcieLinkWidth(gpu: Device, width: *mut c_uint) {
        require(gpu.board.pcie_generation > 0)?;
        put(width, LINK_WIDTH)
    }
}

impl Device<'_> {
    /// Where this GPU is. A topology with an address that is none is an unknown error.
    pub(crate) fn address(&self) -> Answer<Address> {
        Address::parse(&self.facts.bus_id).ok_or(Code::UNKNOWN)
    }

    fn pci(&self) -> Answer<nvmlPciInfo_t> {
        Ok(self.address()?.info(device_id(self.board), hex(&self.board.pci_subsystem_id)))
    }
}

/// PCI device and vendor of a board in one word.
pub(crate) fn device_id(board: &Board) -> c_uint {
    hex(&board.pci_device_id)
}

/// Stores as much of an answer as the called version of the function knows.
///
/// # Safety
/// `out` is null or valid for as much as `extent` says.
pub(crate) unsafe fn store(out: *mut nvmlPciInfo_t, info: nvmlPciInfo_t, extent: Extent) -> Answer {
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    let length = match extent {
        Extent::ToDevice => std::mem::offset_of!(nvmlPciInfo_t, pciSubSystemId),
        Extent::ToSubsystem => std::mem::offset_of!(nvmlPciInfo_t, busId),
        Extent::Full => size_of::<nvmlPciInfo_t>(),
    };
    // SAFETY: no more than the version's extent is written, and the struct has no padding.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(&info).cast::<c_char>(), out.cast(), length) };
    Ok(())
}

fn hex(text: &str) -> c_uint {
    u32::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_in_every_spelling() {
        let address = Address { domain: 9, bus: 0x1b, device: 0 };
        for text in ["0009:1b:00.0", "00000009:1B:00.0", "9:1b:0", "0009:1b:00"] {
            assert_eq!(Address::parse(text), Some(address), "{text}");
        }
        assert_eq!(Address::parse("1b:00.0"), Some(Address { domain: 0, ..address }));
        for text in ["", "1b", "0:0:1b:0.0", "zz:00.0", "0000:1b:20.0"] {
            assert_eq!(Address::parse(text), None, "{text}");
        }
    }

    #[test]
    fn both_spellings_are_upper_case_and_padded() {
        let address = Address { domain: 9, bus: 0x1b, device: 0 };
        assert_eq!(address.long(), "00000009:1B:00.0");
        assert_eq!(address.short(), "0009:1B:00.0");
        assert_eq!(Address::NOWHERE.long(), "FFFFFFFF:FF:FF.0");
    }
}
