//! Event sets over `events.jsonl`.
//!
//! ```text
//!  NodeDir::send ──▶ events.jsonl   line, line, line, line ...
//!                                        ▲ registered here: nothing before it is delivered
//!                                              ▲ cursor of the set: nothing before it is looked at again
//! ```
//!
//! A set is private to its process; each one reads the file for itself, so an event reaches every set that registered
//! for it, once and in order.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{nvmlEventData_t, nvmlEventSet_t};
use topology::Event;

use crate::call::{Call, Device, nvml};
use crate::code::{Answer, Code};
use crate::handle;
use crate::node::Node;
use crate::out::put;
use crate::system::major;
use crate::watch::Watch;

/// Event bits that every GPU has: performance state, XID, clock.
const EVERYWHERE: u64 = 0x4 | 0x8 | 0x10;

/// Event bits of boards with ECC: single-bit and double-bit errors.
const WITH_ECC: u64 = 0x1 | 0x2;

/// Event bits of newer drivers on boards with ECC: error storm, retirement, poison, GPU unavailable, recovery action.
const WITH_RECOVERY: u64 = 0x200 | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x8000;

/// The first driver branch with the newer bits.
const RECOVERY_BRANCH: u32 = 580;

/// The live event sets by handle. Handles are not used twice.
static SETS: Mutex<Sets> = Mutex::new(Sets { last: 0, live: BTreeMap::new() });

struct Sets {
    last: usize,
    live: BTreeMap<usize, Arc<Mutex<EventSet>>>,
}

/// What a program waits for, and how far it has read.
struct EventSet {
    cursor: u64,
    registered: Vec<Registration>,
}

/// Event types of one GPU, from a place in the file on.
struct Registration {
    gpu: usize,
    types: u64,
    since: u64,
}

nvml! {
    fn nvmlEventSetCreate(call: Call, set: *mut nvmlEventSet_t) {
        let cursor = length(&call.node)?;
        let mut sets = sets();
        sets.last += 1;
        let handle = sets.last;
        put(set, ptr::without_provenance_mut(handle))?;
        sets.live.insert(handle, Arc::new(Mutex::new(EventSet { cursor, registered: Vec::new() })));
        Ok(())
    }

    fn nvmlEventSetFree(call: Call, set: nvmlEventSet_t) {
        let _ = call;
        sets().live.remove(&set.addr()).map(drop).ok_or(Code::INVALID_ARGUMENT)
    }

    fn nvmlDeviceGetSupportedEventTypes(gpu: Device, types: *mut c_ulonglong) {
        put(types, supported(gpu))
    }

    fn nvmlDeviceRegisterEvents(gpu: Device, types: c_ulonglong, set: nvmlEventSet_t) {
        let set = find(set)?;
        if types & !supported(gpu) != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let since = length(&gpu.call.node)?;
        lock(&set).registered.push(Registration { gpu: gpu.index, types, since });
        Ok(())
    }

    fn nvmlEventSetWait, nvmlEventSetWait_v2(
        call: Call, set: nvmlEventSet_t, data: *mut nvmlEventData_t, timeout_ms: c_uint
    ) {
        let set = find(set)?;
        if data.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let event = wait(call, &set, Duration::from_millis(timeout_ms.into()))?;
        put(data, nvmlEventData_t {
            device: handle::of_gpu(event.gpu),
            eventType: event.event_type,
            eventData: event.data,
            gpuInstanceId: event.gpu_instance,
            computeInstanceId: event.compute_instance,
        })
    }
}

// === impl EventSet ===

impl EventSet {
    /// The next event that this set registered for. Incomplete last lines are left for later.
    fn next(&mut self, node: &Node) -> Answer<Option<Event>> {
        let mut file = File::open(node.dir.events_path()).map_err(|_| Code::UNKNOWN)?;
        file.seek(SeekFrom::Start(self.cursor)).map_err(|_| Code::UNKNOWN)?;
        let mut lines = BufReader::new(file);
        let mut line = String::new();
        loop {
            line.clear();
            let read = lines.read_line(&mut line).map_err(|_| Code::UNKNOWN)?;
            if !line.ends_with('\n') {
                return Ok(None);
            }
            let at = self.cursor;
            self.cursor += read as u64;
            let event = Event::parse(&line).map_err(|_| Code::UNKNOWN)?;
            if self.registered.iter().any(|r| r.gpu == event.gpu && r.types & event.event_type != 0 && r.since <= at) {
                return Ok(Some(event));
            }
        }
    }
}

/// Forgets all sets: their handles die with the session.
pub(crate) fn clear() {
    sets().live.clear();
}

/// Waits for an event. What happened to the machine meanwhile ends the wait, too: a registered GPU that is lost, a
/// driver that is replaced.
fn wait(call: &Call, set: &Mutex<EventSet>, timeout: Duration) -> Answer<Event> {
    let deadline = Instant::now() + timeout;
    let watch = Watch::new(call.node.dir.path())?;
    loop {
        if let Some(event) = lock(set).next(&call.node)? {
            return Ok(event);
        }
        let state = call.node.state()?;
        if call.node.driver_version(&state) != call.node.driver_version(&call.state) {
            return Err(Code::LIB_RM_VERSION_MISMATCH);
        }
        let lost = |r: &Registration| state.gpus.get(&r.gpu).is_some_and(|gpu| gpu.lost);
        if lock(set).registered.iter().any(lost) {
            return Err(Code::GPU_IS_LOST);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Code::TIMEOUT);
        }
        watch.wait(Some(left))?;
    }
}

fn supported(gpu: &Device<'_>) -> u64 {
    if !gpu.board.ecc {
        return EVERYWHERE;
    }
    let branch = major(gpu.call.node.driver_version(&gpu.call.state)).parse();
    let newer = branch.is_ok_and(|branch: u32| branch >= RECOVERY_BRANCH);
    EVERYWHERE | WITH_ECC | if newer { WITH_RECOVERY } else { 0 }
}

fn find(set: nvmlEventSet_t) -> Answer<Arc<Mutex<EventSet>>> {
    sets().live.get(&set.addr()).cloned().ok_or(Code::INVALID_ARGUMENT)
}

fn length(node: &Node) -> Answer<u64> {
    std::fs::metadata(node.dir.events_path()).map(|metadata| metadata.len()).map_err(|_| Code::UNKNOWN)
}

fn sets() -> MutexGuard<'static, Sets> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lock(set: &Mutex<EventSet>) -> MutexGuard<'_, EventSet> {
    set.lock().unwrap_or_else(PoisonError::into_inner)
}
