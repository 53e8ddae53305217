//! What the driver reports by itself: XIDs and other events, as they happen.
//!
//! ```text
//!  watch ──▶ a set, every GPU registered for what it supports ──▶ wait 1 s ──▶ event    ──▶ news
//!                ▲                                                   │  ▲ └──▶ time out: no news
//!                └── error: news, a pause, a new set ◀───────────────┘  └──────────┘
//! ```
//!
//! The wrapper loses the ids of MIG instances, does not know newer types, and frees the whole set when one GPU cannot be
//! registered, so this goes to the C functions.
//!
//! A set is part of its library, so one call to the [session](super::session) lasts as long as the watching. It keeps the
//! library open, and ends by itself when the library is stale: every wait is short, and each says so.
#![expect(unsafe_code, reason = "calls into the NVML library")]

use std::collections::BTreeMap;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::error::{Code, Error};
use crate::device::GpuUuid;

/// Bits of `nvmlEventType*`.
pub mod kind {
    /// Errors that were corrected.
    pub const SINGLE_BIT_ECC: u64 = 1;
    /// Errors that could not be.
    pub const DOUBLE_BIT_ECC: u64 = 1 << 1;
    /// An XID: its number is the event's data.
    pub const XID: u64 = 1 << 3;
    /// Errors that were corrected, thick and fast.
    pub const SINGLE_BIT_ECC_STORM: u64 = 1 << 9;
    /// Bad memory is to be replaced.
    pub const DRAM_RETIREMENT: u64 = 1 << 10;
    /// Bad memory could not be replaced.
    pub const DRAM_RETIREMENT_FAILURE: u64 = 1 << 11;
    /// Damaged data was used and contained.
    pub const POISON: u64 = 1 << 12;
    /// Damaged data was used and not contained.
    pub const FATAL_POISON: u64 = 1 << 13;
    /// The GPU is not available.
    pub const GPU_UNAVAILABLE: u64 = 1 << 14;
    /// Another recovery action is due than before; maybe none any more.
    pub const GPU_RECOVERY_ACTION: u64 = 1 << 15;

    /// All of them.
    pub(super) const ALL: u64 = SINGLE_BIT_ECC
        | DOUBLE_BIT_ECC
        | XID
        | SINGLE_BIT_ECC_STORM
        | DRAM_RETIREMENT
        | DRAM_RETIREMENT_FAILURE
        | POISON
        | FATAL_POISON
        | GPU_UNAVAILABLE
        | GPU_RECOVERY_ACTION;
}

/// What somebody who watches hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// These GPUs are watched from now on, and those are not. What was said before holds no longer.
    Watching {
        /// Events of them arrive.
        watched: Vec<GpuUuid>,
        /// Events of them do not, and why. A GPU that cannot say who it is has no UUID.
        unwatched: Vec<(Option<GpuUuid>, Error)>,
    },
    /// Something happened to a GPU.
    Event(Event),
    /// Events cannot be waited for at the moment. It goes on.
    Failed(Error),
    /// Something may have happened that cannot be told any more, because NVML lost it or the listener was too slow: every
    /// GPU has to be probed.
    Missed,
}

/// Something that happened to a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Which. `None` if it cannot say who it is: then nobody is to blame, and every GPU has to be probed.
    pub gpu: Option<GpuUuid>,
    /// Bits of [`kind`].
    pub types: u64,
    /// The number of an XID; nothing otherwise.
    pub data: u64,
    /// The GPU instance. `None` for the whole GPU.
    pub gpu_instance: Option<u32>,
    /// The compute instance of it. `None` for the whole GPU instance.
    pub compute_instance: Option<u32>,
}

/// What stands for "all of it" in the place of an instance's id.
const WHOLE: u32 = u32::MAX;

/// `NVML_ERROR_TIMEOUT`: nothing happened.
const TIMEOUT: Code = Code(10);

/// Milliseconds of one wait. So long it takes to stop, and to close a stale library.
const WAIT: u32 = 1000;

/// Before it is tried again after an error: NVML can answer thousands of times a second with one.
const PAUSE: Duration = Duration::from_secs(1);

/// How many events of a set that is given up are still looked at, in case it never runs dry.
const REST: usize = 1000;

/// Reports all events of all GPUs to `news` until `stop`, or until nobody listens. It does not wait for a slow listener.
/// Run it by [`Session::call`](super::Session::call) with a deadline that never comes, and again when GPUs come or go:
/// only those that are there at the beginning are watched, until an error.
///
/// # Errors
/// When there can be no set of events, or the library is stale. Other errors of waiting are news.
pub fn watch(nvml: &Nvml, stop: &CancellationToken, news: &mpsc::Sender<News>) -> Result<(), Error> {
    let mut teller = Teller { news, missed: false };
    let mut set = Set::new(nvml)?;
    teller.tell(set.register()?);
    while !stop.is_cancelled() && !news.is_closed() {
        let begun = Instant::now();
        match set.wait(WAIT) {
            Ok(Some(event)) => teller.tell(News::Event(event)),
            // A library that does not wait is waited for here.
            Ok(None) => thread::sleep(Duration::from_millis(WAIT.into()).saturating_sub(begun.elapsed())),
            Err(error) if error.is_stale() => return Err(error),
            Err(error) => {
                teller.tell(News::Failed(error));
                thread::sleep(PAUSE);
                // The new set first, so that nothing falls between them.
                let mut new = Set::new(nvml)?;
                let watching = new.register()?;
                for _ in 0..REST {
                    match set.wait(0) {
                        Ok(Some(event)) => teller.tell(News::Event(event)),
                        Ok(None) => break,
                        Err(_) => {
                            teller.tell(News::Missed);
                            break;
                        }
                    }
                }
                set = new;
                teller.tell(watching);
            }
        }
    }
    Ok(())
}

/// Tells news without waiting.
struct Teller<'a> {
    news: &'a mpsc::Sender<News>,
    missed: bool,
}

/// A set of events of all GPUs.
struct Set<'n> {
    nvml: &'n Nvml,
    handle: nvmlEventSet_t,
    /// The GPUs by their handles' addresses, which stay the same in a library.
    gpus: BTreeMap<usize, GpuUuid>,
}

// === impl Teller ===

impl Teller<'_> {
    fn tell(&mut self, news: News) {
        if self.missed {
            self.missed = self.news.try_send(News::Missed).is_err();
        }
        self.missed |= self.news.try_send(news).is_err();
    }
}

// === impl Set ===

impl<'n> Set<'n> {
    fn new(nvml: &'n Nvml) -> Result<Self, Error> {
        let call = "nvmlEventSetCreate";
        let library = nvml.lib();
        let create = library.nvmlEventSetCreate.as_ref().map_err(|_| Error::Symbol { call })?;
        let mut set = ptr::null_mut();
        // SAFETY: the symbol's type is the one nvml.h declares for this name; the pointer is to a local handle.
        match Code(unsafe { create(&raw mut set) }) {
            Code::SUCCESS => Ok(Self { nvml, handle: set, gpus: BTreeMap::new() }),
            code => Err(Error::Call { call, gpu: None, code }),
        }
    }

    /// Adds every GPU. One that cannot be added costs itself. Fails where GPUs cannot be counted, or the library is stale.
    fn register(&mut self) -> Result<News, Error> {
        let count = self.nvml.device_count();
        let count = count.map_err(|error| Error::from_wrapper("nvmlDeviceGetCount_v2", None, error))?;
        let (mut watched, mut unwatched) = (Vec::new(), Vec::new());
        for index in 0..count {
            let label = format!("GPU {index}");
            let call = "nvmlDeviceGetHandleByIndex_v2";
            let device = self.nvml.device_by_index(index);
            let (uuid, answer) = match device.map_err(|error| Error::from_wrapper(call, Some(&label), error)) {
                Ok(device) => (uuid(&device), self.add(&device, &label)),
                Err(error) => (None, Err(error)),
            };
            match (answer, uuid) {
                (Err(error), _) if error.is_stale() => return Err(error),
                (Ok(()), Some(uuid)) => watched.push(uuid),
                // Its events name nobody.
                (Ok(()), None) => {}
                (Err(error), uuid) => unwatched.push((uuid, error)),
            }
        }
        Ok(News::Watching { watched, unwatched })
    }

    fn add(&mut self, device: &Device<'_>, label: &str) -> Result<(), Error> {
        let library = self.nvml.lib();
        let failed = |call, code| Error::Call { call, gpu: Some(label.to_owned()), code };

        let call = "nvmlDeviceGetSupportedEventTypes";
        let supported = library.nvmlDeviceGetSupportedEventTypes.as_ref().map_err(|_| Error::Symbol { call })?;
        let mut types = 0;
        // SAFETY: the handle is only passed to the library that it is of, which `device` borrows.
        let handle = unsafe { device.handle() };
        // SAFETY: the symbol's type is the one nvml.h declares for this name; the pointer is to a local number.
        match Code(unsafe { supported(handle, &raw mut types) }) {
            Code::SUCCESS if types & kind::ALL == 0 => return Err(failed(call, Code::NOT_SUPPORTED)),
            Code::SUCCESS => {}
            code => return Err(failed(call, code)),
        }

        let call = "nvmlDeviceRegisterEvents";
        let register = library.nvmlDeviceRegisterEvents.as_ref().map_err(|_| Error::Symbol { call })?;
        // SAFETY: as above; the set is the library's own and is freed when `self` is dropped.
        match Code(unsafe { register(handle, types & kind::ALL, self.handle) }) {
            Code::SUCCESS => {
                self.gpus.extend(uuid(device).map(|uuid| (handle.addr(), uuid)));
                Ok(())
            }
            code => Err(failed(call, code)),
        }
    }

    /// The next event; `None` when none comes in time.
    fn wait(&self, milliseconds: u32) -> Result<Option<Event>, Error> {
        let call = "nvmlEventSetWait_v2";
        let wait = self.nvml.lib().nvmlEventSetWait_v2.as_ref().map_err(|_| Error::Symbol { call })?;
        let mut data = nvmlEventData_t {
            device: ptr::null_mut(),
            eventType: 0,
            eventData: 0,
            gpuInstanceId: WHOLE,
            computeInstanceId: WHOLE,
        };
        // SAFETY: the symbol's type is the one nvml.h declares for this name; the set is the library's own and lives as
        // long as `self`; the pointer is to a local structure.
        match Code(unsafe { wait(self.handle, &raw mut data, milliseconds) }) {
            Code::SUCCESS => Ok(Some(Event {
                gpu: self.who(data.device),
                types: data.eventType,
                data: data.eventData,
                gpu_instance: Some(data.gpuInstanceId).filter(|id| *id != WHOLE),
                compute_instance: Some(data.computeInstanceId).filter(|id| *id != WHOLE),
            })),
            TIMEOUT => Ok(None),
            code => Err(Error::Call { call, gpu: None, code }),
        }
    }

    /// Known since it was registered, for a GPU that is lost cannot say who it is.
    fn who(&self, handle: nvmlDevice_t) -> Option<GpuUuid> {
        self.gpus.get(&handle.addr()).cloned().or_else(|| {
            // SAFETY: the handle is the library's own, as it was answered by the library just now.
            uuid(&unsafe { Device::new(handle, self.nvml) })
        })
    }
}

impl Drop for Set<'_> {
    fn drop(&mut self) {
        if let Ok(free) = &self.nvml.lib().nvmlEventSetFree {
            // SAFETY: the symbol's type is the one nvml.h declares for this name; the set is the library's own, and nobody
            // uses it any more. Whatever it answers, there is nothing left to do.
            unsafe { free(self.handle) };
        }
    }
}

fn uuid(device: &Device<'_>) -> Option<GpuUuid> {
    GpuUuid::parse(&device.uuid().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_listener_is_not_waited_for_and_hears_that_it_missed_something() {
        let (news, mut listener) = mpsc::channel(2);
        let mut teller = Teller { news: &news, missed: false };
        let failed = |code| News::Failed(Error::Call { call: "nvmlEventSetWait_v2", gpu: None, code: Code(code) });
        (0..5).for_each(|code| teller.tell(failed(code)));
        assert_eq!([listener.try_recv(), listener.try_recv()], [Ok(failed(0)), Ok(failed(1))]);
        teller.tell(failed(5));
        assert_eq!([listener.try_recv(), listener.try_recv()], [Ok(News::Missed), Ok(failed(5))]);
        teller.tell(failed(6));
        assert_eq!(listener.try_recv(), Ok(failed(6)));
        assert!(listener.try_recv().is_err());
    }

    #[test]
    fn the_types_are_those_of_the_header() {
        // 0x4 performance state, 0x10 clock, 0x80 power source and 0x100 MIG configuration say nothing of health.
        assert_eq!(kind::ALL, 0xfe0b);
    }
}
