//! Calls that fail, are slow, never return or kill their process, as `state.json` says.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use topology::{Fault, State};

use crate::code::{Answer, Code};
use crate::node::Node;
use crate::watch::Watch;

/// Which GPU a call is about, as far as it is known.
#[derive(Debug, Clone, Copy)]
pub(crate) enum About {
    /// None, or the body will look for it: faults of one GPU do not match yet.
    NoGpu,
    /// This one, from the start.
    Gpu(usize),
    /// This one, found after faults without a GPU had their chance: only faults of this GPU match.
    Found(usize),
}

/// How often each fault has matched a call of this loaded library. A fault that leaves the state file is forgotten.
static MATCHES: Mutex<Vec<(Fault, u64)>> = Mutex::new(Vec::new());

// === impl About ===

impl About {
    pub(crate) fn gpu(self) -> Option<usize> {
        match self {
            Self::NoGpu => None,
            Self::Gpu(index) | Self::Found(index) => Some(index),
        }
    }

    fn meets(self, fault: &Fault) -> bool {
        match self {
            Self::NoGpu => fault.gpu.is_none(),
            Self::Gpu(index) => fault.gpu.is_none_or(|gpu| gpu == index),
            Self::Found(index) => fault.gpu == Some(index),
        }
    }
}

/// Meets the first fault that matches a call. An early one is suffered here; if it lets the call go on, answers the
/// state after it. A late one is answered, too: the call suffers it when it has done its work.
pub(crate) fn meet(node: &Node, call: &str, about: About) -> Answer<(Arc<State>, Option<Fault>)> {
    let state = node.state()?;
    match bite(&state.faults, call, about) {
        None => Ok((state, None)),
        Some(fault) if fault.late => Ok((state, Some(fault))),
        Some(fault) => {
            suffer(node, &fault)?;
            Ok((node.state()?, None))
        }
    }
}

/// Sleeps, hangs, dies and fails, as far as the fault says so.
pub(crate) fn suffer(node: &Node, fault: &Fault) -> Answer {
    thread::sleep(Duration::from_millis(fault.delay_ms));
    if fault.hang {
        let watch = Watch::new(node.dir.path())?;
        while node.state()?.faults.contains(fault) {
            watch.wait(None)?;
        }
    }
    if fault.kill {
        // SAFETY: raises a signal for this process and touches no memory. SIGKILL ends it at once, as if from outside: no
        // handler, no destructor, no flush.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    fault.code.filter(|&code| code != 0).map_or(Ok(()), |code| Err(Code(code)))
}

/// Whether a name written by a test means this call: the same name, the name without its version suffix, or `*`.
pub(crate) fn names(written: &str, call: &str) -> bool {
    let unversioned =
        call.rsplit_once("_v").filter(|(_, v)| v.bytes().all(|b| b.is_ascii_digit())).map(|(name, _)| name);
    written == "*" || written == call || Some(written) == unversioned
}

fn bite(faults: &[Fault], call: &str, about: About) -> Option<Fault> {
    let mut matches = MATCHES.lock().unwrap_or_else(PoisonError::into_inner);
    matches.retain(|(fault, _)| faults.contains(fault));
    faults
        .iter()
        .filter(|fault| names(&fault.call, call) && about.meets(fault))
        .find(|fault| {
            let at = matches.iter().position(|(known, _)| known == *fault).unwrap_or_else(|| {
                matches.push(((*fault).clone(), 0));
                matches.len() - 1
            });
            let seen = &mut matches[at].1;
            *seen += 1;
            *seen > fault.after && fault.times.is_none_or(|times| *seen - fault.after <= times)
        })
        .cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(call: &str) -> Fault {
        Fault { call: call.into(), ..Fault::default() }
    }

    #[test]
    fn a_name_without_version_means_all_versions() {
        assert!(names("nvmlDeviceGetCount", "nvmlDeviceGetCount_v2"));
        assert!(names("nvmlDeviceGetCount", "nvmlDeviceGetCount"));
        assert!(names("*", "nvmlInit_v2"));
        assert!(!names("nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"));
        assert!(!names("nvmlDeviceGetMemory", "nvmlDeviceGetMemoryInfo"));
    }

    #[test]
    fn after_and_times_bound_the_calls_that_a_fault_bites() {
        let faults = [Fault { after: 2, times: Some(1), ..fault("counted") }];
        let bitten = [(); 5].map(|()| bite(&faults, "counted", About::NoGpu).is_some());
        assert_eq!(bitten, [false, false, true, false, false]);
    }

    #[test]
    fn a_fault_of_one_gpu_leaves_the_others_alone() {
        let faults = [Fault { gpu: Some(1), ..fault("single") }];
        assert!(bite(&faults, "single", About::NoGpu).is_none());
        assert!(bite(&faults, "single", About::Gpu(0)).is_none());
        assert!(bite(&faults, "single", About::Gpu(1)).is_some());
        assert!(bite(&faults, "single", About::Found(1)).is_some());
    }
}
