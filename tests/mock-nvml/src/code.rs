//! The return codes of NVML as values.

use std::ffi::CStr;

/// An `nvmlReturn_t` other than success. Any number can be injected by a fault, so this is not an enum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u32);

/// What an entry point answers.
pub(crate) type Answer<T = ()> = Result<T, Code>;

/// `NVML_SUCCESS`.
pub(crate) const SUCCESS: u32 = 0;

// === impl Code ===

impl Code {
    pub(crate) const UNINITIALIZED: Self = Self(1);
    pub(crate) const INVALID_ARGUMENT: Self = Self(2);
    pub(crate) const NOT_SUPPORTED: Self = Self(3);
    pub(crate) const NO_PERMISSION: Self = Self(4);
    pub(crate) const NOT_FOUND: Self = Self(6);
    pub(crate) const INSUFFICIENT_SIZE: Self = Self(7);
    pub(crate) const DRIVER_NOT_LOADED: Self = Self(9);
    pub(crate) const TIMEOUT: Self = Self(10);
    pub(crate) const GPU_IS_LOST: Self = Self(15);
    pub(crate) const RESET_REQUIRED: Self = Self(16);
    pub(crate) const LIB_RM_VERSION_MISMATCH: Self = Self(18);
    pub(crate) const IN_USE: Self = Self(19);
    pub(crate) const INSUFFICIENT_RESOURCES: Self = Self(23);
    pub(crate) const ARGUMENT_VERSION_MISMATCH: Self = Self(25);
    pub(crate) const GPU_NOT_FOUND: Self = Self(28);
    pub(crate) const UNKNOWN: Self = Self(999);
}

/// NOT_SUPPORTED unless the condition holds.
pub(crate) fn require(condition: bool) -> Answer {
    if condition { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
}

/// The text of `nvmlErrorString`.
pub(crate) fn describe(code: u32) -> &'static CStr {
    match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        5 => c"Already Initialized",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        8 => c"Insufficient External Power",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        11 => c"Interrupt Request Issue",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        14 => c"Corrupted infoROM",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        17 => c"The operating system has blocked the request.",
        18 => c"RM has detected an NVML/RM version mismatch.",
        19 => c"In use by another client",
        20 => c"Insufficient Memory",
        21 => c"No data",
        22 => c"The requested vgpu operation is not available on target device because ECC is enabled",
        23 => c"Ran out of critical resources",
        24 => c"Frequency Not Supported",
        25 => c"The provided version is invalid/unsupported",
        26 => c"Deprecated",
        27 => c"Not Ready",
        28 => c"GPU Not Found",
        29 => c"Invalid State",
        30 => c"Reset Type Not Supported",
        _ => c"Unknown Error",
    }
}
