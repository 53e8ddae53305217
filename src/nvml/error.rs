//! What can go wrong with an NVML call: by whom, about which GPU, with which code.
//!
//! The wrapper's own error type loses the return codes that are newer than it is, so codes are kept as numbers here.

use std::fmt;
use std::time::Duration;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::nvmlReturn_t;

/// A return code of NVML (`nvmlReturn_t`), known or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(pub u32);

/// Why there is no answer from NVML.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The library could not be loaded at all.
    #[error("cannot load NVML from {path}: {reason}. Is the NVIDIA driver installed, and is this its path?")]
    Library {
        /// What was loaded: a file, or a name that the loader looks up.
        path: String,
        /// What the loader said.
        reason: String,
    },
    /// The library has no such function: the driver is older than it, or the file is not NVML.
    #[error("the NVML library has no {call}")]
    Symbol {
        /// The function.
        call: &'static str,
    },
    /// A function answered with an error.
    #[error("{call}{} answered {code}", about(gpu.as_deref()))]
    Call {
        /// The function.
        call: &'static str,
        /// The GPU it was about, for people.
        gpu: Option<String>,
        /// Its answer.
        code: Code,
    },
    /// A function succeeded with an answer that cannot be used.
    #[error("{call}{} answered {answer}, which is not {expected}", about(gpu.as_deref()))]
    Answer {
        /// The function.
        call: &'static str,
        /// The GPU it was about, for people.
        gpu: Option<String>,
        /// What it said.
        answer: String,
        /// What it should have said.
        expected: &'static str,
    },
    /// A GPU could not be partitioned as asked, or its partition not be taken away.
    #[error("cannot {act} of {gpu}{}", stays(left.as_deref()))]
    Partition {
        /// What was to be done, as a verb with its object: "create the GPU instance 1g.10gb (profile 19) at memory slice 3".
        act: String,
        /// The GPU's UUID.
        gpu: String,
        /// Why not.
        source: Box<Error>,
        /// Why what was begun could not be taken back, where that is so.
        left: Option<Box<Error>>,
    },
    /// NVML took the request for another MIG mode, and the mode is not that one.
    #[error("MIG mode does not become {}: {status}", if *on { "on" } else { "off" })]
    ModeNotActive {
        /// What was asked for.
        on: bool,
        /// Why it is not, `activationStatus` of nvml.h.
        status: Code,
    },
    /// No answer in time. The call may still end, and have its effect, later.
    #[error("NVML did not {act} within {within:?}")]
    Deadline {
        /// What was to be done, as a verb: "read the GPUs".
        act: &'static str,
        /// How long it was waited for.
        within: Duration,
    },
    /// The call ended without an answer: a defect of ours, or no thread could be started for it.
    #[error("the call to {act} ended without an answer from NVML: {reason}")]
    Lost {
        /// What was to be done, as a verb.
        act: &'static str,
        /// What happened to it.
        reason: String,
    },
}

/// Names and meanings from nvml.h 13.5.
const CODES: [(u32, &str, &str); 32] = [
    (0, "SUCCESS", "the call succeeded"),
    (1, "UNINITIALIZED", "the library is not initialised"),
    (2, "INVALID_ARGUMENT", "an argument is not valid"),
    (3, "NOT_SUPPORTED", "the GPU, the driver or its mode does not offer this"),
    (4, "NO_PERMISSION", "this process may not do this"),
    (5, "ALREADY_INITIALIZED", "the library is initialised already"),
    (6, "NOT_FOUND", "there is no such object"),
    (7, "INSUFFICIENT_SIZE", "the buffer is too small"),
    (8, "INSUFFICIENT_POWER", "the GPU's external power is not connected"),
    (9, "DRIVER_NOT_LOADED", "the kernel has no NVIDIA driver loaded"),
    (10, "TIMEOUT", "the driver did not answer in time"),
    (11, "IRQ_ISSUE", "the kernel found a problem with the GPU's interrupts"),
    (12, "LIBRARY_NOT_FOUND", "a library that NVML needs is missing"),
    (13, "FUNCTION_NOT_FOUND", "this version of the library or driver has no such function"),
    (14, "CORRUPTED_INFOROM", "the GPU's infoROM is damaged"),
    (15, "GPU_IS_LOST", "the GPU fell off the bus or cannot be reached"),
    (16, "RESET_REQUIRED", "the GPU has to be reset first"),
    (17, "OPERATING_SYSTEM", "the operating system or a cgroup blocks the GPU"),
    (18, "LIB_RM_VERSION_MISMATCH", "the library and the loaded kernel driver are of different versions"),
    (19, "IN_USE", "the GPU is in use"),
    (20, "MEMORY", "out of memory"),
    (21, "NO_DATA", "there is no data"),
    (22, "VGPU_ECC_NOT_SUPPORTED", "not possible for a vGPU while ECC is on"),
    (23, "INSUFFICIENT_RESOURCES", "the GPU has not enough free resources for this"),
    (24, "FREQ_NOT_SUPPORTED", "the GPU does not offer this frequency"),
    (25, "ARGUMENT_VERSION_MISMATCH", "the driver does not know this version of the structure"),
    (26, "DEPRECATED", "the function is no longer offered"),
    (27, "NOT_READY", "the system is not ready for this request"),
    (28, "GPU_NOT_FOUND", "there is no such GPU"),
    (29, "INVALID_STATE", "the GPU is in the wrong state for this"),
    (30, "RESET_TYPE_NOT_SUPPORTED", "the GPU cannot be reset in this way"),
    (999, "UNKNOWN", "the driver gives no reason"),
];

// === impl Code ===

impl Code {
    /// The call succeeded.
    pub const SUCCESS: Self = Self(0);
    /// The library is not initialised, or no longer.
    pub const UNINITIALIZED: Self = Self(1);
    /// Also: the first link number that the GPU does not have.
    pub const INVALID_ARGUMENT: Self = Self(2);
    /// The GPU, the driver or its mode does not offer this.
    pub const NOT_SUPPORTED: Self = Self(3);
    /// There is no such object.
    pub const NOT_FOUND: Self = Self(6);
    /// The kernel has no NVIDIA driver loaded.
    pub const DRIVER_NOT_LOADED: Self = Self(9);
    /// The library or driver has no such function.
    pub const FUNCTION_NOT_FOUND: Self = Self(13);
    /// The GPU fell off the bus.
    pub const GPU_IS_LOST: Self = Self(15);
    /// The GPU has to be reset first.
    pub const RESET_REQUIRED: Self = Self(16);
    /// The driver was replaced under the loaded library.
    pub const LIB_RM_VERSION_MISMATCH: Self = Self(18);
    /// Somebody uses the GPU, the mode or the instance.
    pub const IN_USE: Self = Self(19);
    /// Another GPU instance has what this one would need.
    pub const INSUFFICIENT_RESOURCES: Self = Self(23);
    /// The driver does not know this version of a structure.
    pub const ARGUMENT_VERSION_MISMATCH: Self = Self(25);
    /// There is no such GPU.
    pub const GPU_NOT_FOUND: Self = Self(28);

    /// The name in nvml.h without `NVML_ERROR_`; `None` for a code that is newer than this program.
    pub fn name(self) -> Option<&'static str> {
        self.entry().map(|(_, name, _)| name)
    }

    /// What it means, as a clause.
    pub fn meaning(self) -> &'static str {
        self.entry().map_or("a code that this program does not know", |(_, _, meaning)| meaning)
    }

    fn entry(self) -> Option<(u32, &'static str, &'static str)> {
        CODES.into_iter().find(|(number, ..)| *number == self.0)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({}): {}", self.0, self.meaning()),
            None => write!(f, "{}: {}", self.0, self.meaning()),
        }
    }
}

// === impl Error ===

impl Error {
    /// From the wrapper's error, without losing a code that it does not know.
    pub(super) fn from_wrapper(call: &'static str, gpu: Option<&str>, error: NvmlError) -> Self {
        match error {
            NvmlError::FailedToLoadSymbol(_) => Self::Symbol { call },
            NvmlError::Utf8Error(_) => {
                Self::Answer { call, gpu: gpu.map(str::to_owned), answer: "bytes".to_owned(), expected: "UTF-8 text" }
            }
            error => Self::Call { call, gpu: gpu.map(str::to_owned), code: Code(nvmlReturn_t::from(error)) },
        }
    }

    /// The code that NVML answered, where it did.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Call { code, .. } | Self::ModeNotActive { status: code, .. } => Some(*code),
            Self::Partition { source, .. } => source.code(),
            _ => None,
        }
    }

    /// This GPU or driver does not have what was asked for: an ordinary answer to a question about a feature.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Symbol { .. })
            || matches!(self.code(), Some(Code::NOT_SUPPORTED | Code::FUNCTION_NOT_FOUND))
    }

    /// Somebody still uses what was to be changed: another try may succeed.
    pub fn is_in_use(&self) -> bool {
        self.code() == Some(Code::IN_USE)
    }

    /// Only after a reset of the GPU, which is never done for anybody.
    pub fn needs_reset(&self) -> bool {
        self.code() == Some(Code::RESET_REQUIRED)
    }

    /// Another instance is where one was to be made, or has what it would need.
    pub fn is_taken(&self) -> bool {
        self.code() == Some(Code::INSUFFICIENT_RESOURCES)
    }

    /// The loaded library is of no use any more: the driver under it was unloaded or replaced.
    pub fn is_stale(&self) -> bool {
        matches!(self.code(), Some(Code::UNINITIALIZED | Code::DRIVER_NOT_LOADED | Code::LIB_RM_VERSION_MISMATCH))
    }
}

fn about(gpu: Option<&str>) -> String {
    gpu.map(|gpu| format!(" on {gpu}")).unwrap_or_default()
}

/// With the reason in the sentence: the cause of an error is already another one.
fn stays(left: Option<&Error>) -> String {
    let words = |error: &Error| format!("; what was begun stays, because taking it back failed too: {error}");
    left.map(words).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_name_and_a_meaning_of_its_own() {
        for (number, name, meaning) in CODES {
            assert_eq!(Code(number).name(), Some(name));
            assert_eq!(Code(number).meaning(), meaning);
            assert_eq!(
                CODES.iter().filter(|(n, other, text)| *n == number || *other == name || *text == meaning).count(),
                1
            );
        }
        assert!((0..=30).all(|number| Code(number).name().is_some()));
    }

    #[test]
    fn a_code_that_the_wrapper_does_not_know_keeps_its_number() {
        for number in [23, 28, 30, 31, 12345] {
            let error = Error::from_wrapper("nvmlDeviceGetName", Some("GPU 3"), NvmlError::from(number));
            assert_eq!(error.code(), Some(Code(number)));
        }
    }

    #[test]
    fn a_message_names_the_call_the_gpu_and_the_code() {
        let error = Error::from_wrapper("nvmlDeviceGetUUID", Some("GPU 3"), NvmlError::GpuLost);
        let text =
            "nvmlDeviceGetUUID on GPU 3 answered GPU_IS_LOST (15): the GPU fell off the bus or cannot be reached";
        assert_eq!(error.to_string(), text);
        assert_eq!(Code(77).to_string(), "77: a code that this program does not know");
    }

    #[test]
    fn only_a_replaced_or_unloaded_driver_makes_the_library_stale() {
        let stale = (0..=30).filter(|code| Error::Call { call: "x", gpu: None, code: Code(*code) }.is_stale());
        assert_eq!(stale.collect::<Vec<_>>(), [1, 9, 18]);
    }
}
