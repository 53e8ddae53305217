//! One initialised NVML library for the process's life.
//!
//! Initialising NVML can take ten seconds and a call can hang in the kernel for ever, so calls run on threads of their
//! own and are waited for with a deadline. A thread that hangs is given up, and counted: once all are taken, callers
//! get their deadline's error without a new thread. The threads are detached, so that none of them delays the end of
//! the process.
//!
//! ```text
//!  call(act, within, f) ─▶ a free thread? ─▶ thread: open the library if it is not ─▶ f(&Nvml) ─▶ answer
//!                              │                                                        │
//!                              └── none until the deadline: Error::Deadline             └── stale code: close it
//! ```
//!
//! After a driver upgrade the loaded library answers LIB_RM_VERSION_MISMATCH and never recovers, and the loader hands
//! out that same library for as long as anyone holds it. So a stale library is closed once its last call has ended,
//! and the next call opens what lies at the path by then. So is a library that found no GPU: NVML looks for GPUs when it
//! is initialised and not again, and a driver that is being installed finds them late. A call that hangs for ever holds
//! its library for ever: then all later calls miss their deadlines, and only a restart of the process helps.

use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::InitFlags;
use nvml_wrapper::error::NvmlError;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use super::error::{Code, Error};

/// Where the loader finds NVML on a machine with the driver's libraries in its search path.
const DEFAULT_LIBRARY: &str = "libnvidia-ml.so.1";

/// Threads inside NVML at one time. One call for each GPU of the usual machine; and few enough that a driver which
/// hangs costs 8 stacks, not a thread for each attempt.
const MAX_THREADS: usize = 8;

/// An NVML library. Nothing is loaded before the first call. Clones share it.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

struct Shared {
    /// Says which library to open: a file, or a name that the loader looks up.
    locate: Box<dyn Fn() -> Option<PathBuf> + Send + Sync>,
    threads: Arc<Semaphore>,
    /// Read-locked by every call in progress: whoever write-locks it is the library's only user.
    slot: RwLock<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Never shut down when the process ends: the kernel cleans up, and a hanging driver would delay the end.
    library: Option<ManuallyDrop<Nvml>>,
    /// How often a library was opened. Tells a call that ended late whether the library is still the one it used.
    generation: u64,
    /// It found no GPU when it was initialised.
    empty: bool,
    /// What was logged of the library that was opened last: one that is opened again and again is no news.
    said: Option<(PathBuf, Option<String>)>,
}

// === impl Session ===

impl Session {
    /// A session on the library file that `locate` names; where it names none, on what the loader finds as
    /// `libnvidia-ml.so.1`. It is asked whenever the library is opened: a driver can be installed, or installed
    /// elsewhere, after the plugin has started.
    pub fn new(locate: impl Fn() -> Option<PathBuf> + Send + Sync + 'static) -> Self {
        let threads = Arc::new(Semaphore::new(MAX_THREADS));
        Self { shared: Arc::new(Shared { locate: Box::new(locate), threads, slot: RwLock::default() }) }
    }

    /// Runs `f` with the library and waits up to `within` for its answer. `act` says what it does, as a verb with its
    /// object: "read the GPUs".
    ///
    /// Whoever stops waiting, by the deadline or by dropping the future, does not stop `f`: what it does it may still
    /// do later.
    ///
    /// # Errors
    /// Those of `f`, of opening the library (tried again by the next call), and [`Error::Deadline`].
    pub async fn call<T, F>(&self, act: &'static str, within: Duration, f: F) -> Result<T, Error>
    where
        F: FnOnce(&Nvml) -> Result<T, Error> + Send + 'static,
        T: Send + 'static,
    {
        let deadline = Instant::now() + within;
        let threads = Arc::clone(&self.shared.threads);
        let Ok(Ok(permit)) = timeout_at(deadline, threads.acquire_owned()).await else {
            return Err(Error::Deadline { act, within });
        };
        let (sender, answer) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        let run = move || {
            let result = shared.run(f);
            drop(permit);
            // Nobody waits any more if the deadline has passed.
            let _ = sender.send(result);
        };
        let lost = |reason: String| Error::Lost { act, reason };
        thread::Builder::new().name("nvml".to_owned()).spawn(run).map_err(|error| lost(error.to_string()))?;
        match timeout_at(deadline, answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(lost("its thread panicked".to_owned())),
            Err(_) => Err(Error::Deadline { act, within }),
        }
    }
}

// === impl Shared ===

impl Shared {
    fn run<T>(&self, f: impl FnOnce(&Nvml) -> Result<T, Error>) -> Result<T, Error> {
        loop {
            let slot = self.slot.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(library) = &slot.library {
                let result = f(library);
                let (generation, empty) = (slot.generation, slot.empty);
                drop(slot);
                let stale = result.as_ref().is_err_and(Error::is_stale);
                if stale || empty {
                    self.close(generation, stale);
                }
                return result;
            }
            drop(slot);
            self.open()?;
        }
    }

    fn open(&self) -> Result<(), Error> {
        let mut slot = self.slot.write().unwrap_or_else(PoisonError::into_inner);
        if slot.library.is_none() {
            let path = (self.locate)().unwrap_or_else(|| DEFAULT_LIBRARY.into());
            let nvml = load(&path, InitFlags::empty()).or_else(|error| match error.code() {
                // A machine whose last GPU went away is a machine with zero GPUs, not a failure.
                Some(Code::NOT_FOUND | Code::GPU_NOT_FOUND) => load(&path, InitFlags::NO_GPUS),
                _ => Err(error),
            })?;
            let opened = Some((path, nvml.sys_driver_version().ok()));
            slot.empty = nvml.device_count().is_ok_and(|count| count == 0);
            slot.library = Some(ManuallyDrop::new(nvml));
            slot.generation += 1;
            if slot.said != opened {
                if let Some((path, driver)) = &opened {
                    tracing::info!(library = %path.display(), driver, "opened the NVML library");
                }
                slot.said = opened;
            }
        }
        Ok(())
    }

    /// Waits for the last user and closes the library, unless it is another one by now.
    fn close(&self, generation: u64, stale: bool) {
        let mut slot = self.slot.write().unwrap_or_else(PoisonError::into_inner);
        if slot.generation == generation
            && let Some(library) = slot.library.take()
        {
            drop(ManuallyDrop::into_inner(library));
            if stale {
                tracing::info!("closed the NVML library: the driver under it was unloaded or replaced");
                slot.said = None;
            }
        }
    }
}

fn load(path: &Path, flags: InitFlags) -> Result<Nvml, Error> {
    let call = if flags.is_empty() { "nvmlInit_v2" } else { "nvmlInitWithFlags" };
    let nvml = Nvml::builder().lib_path(path.as_os_str()).flags(flags).init().map_err(|error| match error {
        NvmlError::LibloadingError(error) => {
            Error::Library { path: path.display().to_string(), reason: error.to_string() }
        }
        NvmlError::FailedToLoadSymbol(_) => not_nvml(path, call),
        error => Error::from_wrapper(call, None, error),
    })?;
    if nvml.lib().nvmlShutdown.is_err() {
        // Dropping such a library panics.
        std::mem::forget(nvml);
        return Err(not_nvml(path, "nvmlShutdown"));
    }
    Ok(nvml)
}

/// A library that loads and lacks what every NVML has.
fn not_nvml(path: &Path, lacks: &str) -> Error {
    Error::Library { path: path.display().to_string(), reason: format!("it has no {lacks}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_missing_library_is_an_error_of_each_call() {
        let session = Session::new(|| Some("/nowhere/libnvidia-ml.so.1".into()));
        for _ in 0..=MAX_THREADS {
            let error = session.call("count the GPUs", LONG, |_| Ok(())).await.unwrap_err();
            assert!(matches!(&error, Error::Library { path, .. } if path == "/nowhere/libnvidia-ml.so.1"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_library_that_is_not_nvml_is_an_error() {
        let session = Session::new(|| Some("libm.so.6".into()));
        let error = session.call("count the GPUs", LONG, |_| Ok(())).await.unwrap_err();
        assert!(error.to_string().starts_with("cannot load NVML from libm.so.6: it has no nvmlInit_v2."), "{error}");
    }
}
