//! The way into every function: one macro declares the C symbol, one function runs the checks that all calls share.
//!
//! ```text
//!  C caller ─▶ catch_unwind ─▶ initialised? ─▶ calls.log ─▶ faults ─▶ driver version ─▶ handle ─▶ lost, unsupported ─▶ body ─▶ late faults
//!                   └ 999           1                      any code        18              2          15, 3                 any code
//! ```

use std::cell::Cell;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};
use topology::{Board, Fault, Gpu, GpuState, State};

use crate::code::{Answer, Code, SUCCESS};
use crate::fault::About;
use crate::node::Node;
use crate::report::tell_error;
use crate::{fault, handle, session};

/// One call about the machine, past the checks.
pub(crate) struct Call {
    /// The exported name that the program called.
    pub(crate) name: &'static str,
    /// The machine.
    pub(crate) node: Arc<Node>,
    /// What happened to it, as of this call.
    pub(crate) state: Arc<State>,
    /// What goes wrong when the work is done.
    late: Cell<Option<Fault>>,
}

/// One call about a GPU, past the checks.
pub(crate) struct Device<'a> {
    pub(crate) call: &'a Call,
    /// Index into the topology. Differs from the NVML index where GPUs are absent.
    pub(crate) index: usize,
    pub(crate) facts: &'a Gpu,
    pub(crate) board: &'a Board,
    pub(crate) state: GpuState,
}

// === impl Call ===

impl Call {
    /// A call that concerns no GPU, or one that the body will find.
    pub(crate) fn begin(name: &'static str) -> Answer<Self> {
        Self::check(name, session::current()?, About::NoGpu)
    }

    /// The checks of a call on a node, which need not be initialised yet.
    pub(crate) fn check(name: &'static str, node: Arc<Node>, about: About) -> Answer<Self> {
        node.log(name, about.gpu());
        let (state, late) = fault::meet(&node, name, about)?;
        if node.driver_version(&state) != session::built_for(&node, &state) {
            return Err(Code::LIB_RM_VERSION_MISMATCH);
        }
        Ok(Self { name, node, state, late: Cell::new(late) })
    }

    /// Ends the call: a late fault comes after the work, whether that succeeded or not.
    pub(crate) fn end(self, answer: Answer) -> Answer {
        self.late.take().map_or(Ok(()), |fault| fault::suffer(&self.node, &fault))?;
        answer
    }

    /// A GPU that the body found by its index in the topology: what could go wrong with this GPU goes wrong here.
    pub(crate) fn found(&self, index: usize) -> Answer<Device<'_>> {
        let (_, late) = fault::meet(&self.node, self.name, About::Found(index))?;
        if late.is_some() {
            self.late.set(late);
        }
        self.device(index)
    }

    /// The GPU behind a handle other than the call's first one.
    pub(crate) fn peer(&self, device: nvmlDevice_t) -> Answer<Device<'_>> {
        self.device(handle::gpu(&self.node, device).ok_or(Code::INVALID_ARGUMENT)?)
    }

    /// GPUs in NVML index order, without checks: a lost GPU is still listed.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = (usize, &Gpu)> {
        self.node.visible.iter().map(|&index| (index, &self.node.topology.gpus[index]))
    }

    fn device(&self, index: usize) -> Answer<Device<'_>> {
        let facts = &self.node.topology.gpus[index];
        let board = self.node.topology.board(facts);
        let state = self.state.gpus.get(&index).cloned().unwrap_or_default();
        if state.lost {
            return Err(Code::GPU_IS_LOST);
        }
        if state.unsupported.iter().any(|name| fault::names(name, self.name)) {
            return Err(Code::NOT_SUPPORTED);
        }
        Ok(Device { call: self, index, facts, board, state })
    }
}

// === impl Device ===

impl Device<'_> {
    /// Changes what the state file says of this GPU, for all processes. Who may not write it is who may not change a GPU.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut GpuState) -> T) -> Answer<T> {
        let index = self.index;
        let changed = self.call.node.dir.update(|state| change(state.gpus.entry(index).or_default()));
        changed.map_err(|error| refusal(&error))
    }
}

/// The code for a state file that could not be changed.
fn refusal(error: &topology::Error) -> Code {
    match error {
        topology::Error::File { source, .. }
            if matches!(source.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) =>
        {
            Code::NO_PERMISSION
        }
        _ => {
            tell_error(error);
            Code::UNKNOWN
        }
    }
}

/// Runs an entry point. A panic is a defect of the mock; the program sees UNKNOWN instead of an unwinding C frame.
pub(crate) fn guard(body: impl FnOnce() -> Answer) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// An entry point about the machine, or whose body finds the GPU.
pub(crate) fn system(name: &'static str, body: impl FnOnce(&Call) -> Answer) -> nvmlReturn_t {
    guard(|| {
        let call = Call::begin(name)?;
        let answer = body(&call);
        call.end(answer)
    })
}

/// An entry point about a GPU or a part of it: `find` knows which GPU from the handle, if it is one.
pub(crate) fn about(
    name: &'static str,
    find: impl FnOnce(&Node) -> Option<usize>,
    body: impl FnOnce(Device<'_>) -> Answer,
) -> nvmlReturn_t {
    guard(|| {
        let node = session::current()?;
        let index = find(&node);
        let call = Call::check(name, node, index.map_or(About::NoGpu, About::Gpu))?;
        let answer = index.ok_or(Code::INVALID_ARGUMENT).and_then(|index| body(call.device(index)?));
        call.end(answer)
    })
}

/// Declares exported functions. The first parameter says what the function is about:
///
/// * `call: Call`: the machine; it is no C parameter;
/// * `gpu: Device`: the C parameter `nvmlDevice_t`, looked up and checked; a MIG device is NOT_SUPPORTED here;
/// * `device: Either`: the same, and it may be a MIG device;
/// * `part: GpuInstance`, `part: ComputeInstance`: the C parameters `nvmlGpuInstance_t` and `nvmlComputeInstance_t`.
///
/// Several names before one parameter list are the versions of a function with the same prototype.
macro_rules! nvml {
    ($( fn $($name:ident),+ ($($parameters:tt)*) $body:block )*) => {
        $( nvml!(@each [$($name)+] ($($parameters)*) $body); )*
    };
    (@each [$($name:ident)+] $parameters:tt $body:block) => {
        $( nvml!(@one $name $parameters $body); )+
    };
    (@one $name:ident ($call:ident: Call $(, $arg:ident: $type:ty)* $(,)?) $body:block) => {
        /// See `nvml.h`.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> ::nvml_wrapper_sys::bindings::nvmlReturn_t {
            $crate::call::system(stringify!($name), |$call| {
                // SAFETY: the caller keeps the contract of nvml.h: every pointer is null, or valid for its type and
                // for the length passed beside it, for the time of the call.
                #[allow(unused_unsafe, reason = "not every body touches a pointer")]
                unsafe { $body }
            })
        }
    };
    (@one $name:ident ($gpu:ident: Device $($rest:tt)*) $body:block) => {
        nvml!(@on $name [device nvmlDevice_t] $gpu ($($rest)*) $body);
    };
    (@one $name:ident ($device:ident: Either $($rest:tt)*) $body:block) => {
        nvml!(@on $name [either nvmlDevice_t] $device ($($rest)*) $body);
    };
    (@one $name:ident ($part:ident: GpuInstance $($rest:tt)*) $body:block) => {
        nvml!(@on $name [gpu_instance nvmlGpuInstance_t] $part ($($rest)*) $body);
    };
    (@one $name:ident ($part:ident: ComputeInstance $($rest:tt)*) $body:block) => {
        nvml!(@on $name [compute_instance nvmlComputeInstance_t] $part ($($rest)*) $body);
    };
    (@on $name:ident [$kind:ident $handle:ident] $target:ident ($(, $arg:ident: $type:ty)* $(,)?) $body:block) => {
        /// See `nvml.h`.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            handle: ::nvml_wrapper_sys::bindings::$handle,
            $($arg: $type),*
        ) -> ::nvml_wrapper_sys::bindings::nvmlReturn_t {
            $crate::part::$kind(stringify!($name), handle, |$target| {
                // SAFETY: the caller keeps the contract of nvml.h: every pointer is null, or valid for its type and
                // for the length passed beside it, for the time of the call.
                #[allow(unused_unsafe, reason = "not every body touches a pointer")]
                unsafe { $body }
            })
        }
    };
}

/// Declares exported functions that are not modelled: after the common checks they answer NOT_SUPPORTED.
macro_rules! stubs {
    ($( fn $name:ident $parameters:tt; )*) => { $( stubs!(@one $name $parameters); )* };
    (@one $name:ident (Device $(, $type:ty)*)) => {
        /// Not modelled.
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name(
            device: ::nvml_wrapper_sys::bindings::nvmlDevice_t,
            $(_: $type),*
        ) -> ::nvml_wrapper_sys::bindings::nvmlReturn_t {
            $crate::part::device(stringify!($name), device, |_| Err($crate::code::Code::NOT_SUPPORTED))
        }
    };
    (@one $name:ident ($($type:ty),*)) => {
        /// Not modelled.
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($(_: $type),*) -> ::nvml_wrapper_sys::bindings::nvmlReturn_t {
            $crate::call::system(stringify!($name), |_| Err($crate::code::Code::NOT_SUPPORTED))
        }
    };
}

pub(crate) use {nvml, stubs};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_file_that_may_not_be_written_is_a_lack_of_permission() {
        let refused = |kind: ErrorKind| {
            refusal(&topology::Error::File { act: "replace", path: "state.json".into(), source: kind.into() })
        };
        assert_eq!(refused(ErrorKind::PermissionDenied), Code::NO_PERMISSION);
        assert_eq!(refused(ErrorKind::ReadOnlyFilesystem), Code::NO_PERMISSION);
        assert_eq!(refused(ErrorKind::StorageFull), Code::UNKNOWN);
    }
}
