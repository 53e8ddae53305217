//! The door: what NVML's numbers mean for health.

use super::cause::{Action, Cause, Kind};
use super::ledger::{Event, Fabric, Outcome, Place, Reading, Recovery};
use super::xid::Xid;
use crate::nvml::events::{self, kind};
use crate::nvml::probe::{FabricHealth, Probe};
use crate::nvml::{Code, Error};

/// `nvmlGpuFabricState_t`: before that, a GPU is not registered, and nothing can be said of its fabric.
const FABRIC_COMPLETED: u8 = 3;

/// `NVML_GPU_FABRIC_HEALTH_SUMMARY_*`
const FABRIC_HEALTHY: u8 = 1;
const FABRIC_UNHEALTHY: u8 = 2;
const FABRIC_LIMITED: u8 = 3;

/// `NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_*` of flags of two bits, of which 1 is "yes".
const DEGRADED_BANDWIDTH: u32 = 0;
const ROUTE_RECOVERY: u32 = 2;
const ROUTE_UNHEALTHY: u32 = 4;
const ACCESS_TIMEOUT_RECOVERY: u32 = 6;

/// And of four bits: 0 is not known, 1 is no fault, the others are faults.
const INCORRECT_CONFIGURATION: u32 = 8;

/// What an event means. Of more than one type at once, the worst counts.
pub fn event(event: &events::Event) -> Event {
    let has = |bit: u64| event.types & bit != 0;
    let cause = if has(kind::XID) {
        Some(Cause::Xid(Xid::new(event.data)))
    } else if has(kind::FATAL_POISON) {
        Some(Kind::Poison.into())
    } else if has(kind::GPU_UNAVAILABLE) {
        Some(Kind::Unavailable.into())
    } else if has(kind::DRAM_RETIREMENT_FAILURE) {
        Some(Kind::RowRemapFailure.into())
    } else if has(kind::DRAM_RETIREMENT) {
        Some(Kind::RowRemapPending.into())
    } else if has(kind::DOUBLE_BIT_ECC | kind::POISON) {
        Some(Kind::Ecc.into())
    } else {
        // Errors that were corrected are no harm, and what a recovery action is the probe says.
        None
    };
    let place = match (event.gpu_instance, event.compute_instance) {
        (None, _) => Place::Gpu,
        (Some(gpu), None) => Place::GpuInstance(gpu),
        (Some(gpu), Some(compute)) => Place::ComputeInstance(gpu, compute),
    };
    Event { cause, place }
}

/// What a probe means. `links_down` is known to whoever reads the links.
pub fn outcome(answer: &Result<Probe, Error>, links_down: Option<bool>) -> Outcome {
    let probe = match answer {
        Ok(probe) => probe,
        Err(error) if matches!(error.code(), Some(Code::GPU_IS_LOST | Code::NOT_FOUND | Code::GPU_NOT_FOUND)) => {
            return Outcome::Lost;
        }
        Err(_) => return Outcome::Silent,
    };
    // A GPU that has nothing to say for itself is well; one that fails at everything is not.
    let numbers =
        [&probe.recovery_action, &probe.row_remap_pending, &probe.row_remap_failure, &probe.ecc_uncorrectable];
    let failed = |answer: &&Result<u64, Error>| answer.as_ref().is_err_and(|error| !error.is_absent());
    if numbers.iter().all(failed) {
        return Outcome::Silent;
    }
    let flag = |answer: &Result<u64, Error>| answer.as_ref().ok().map(|number| *number != 0);
    Outcome::Answered(Reading {
        recovery: recovery(&probe.recovery_action),
        row_remap_failure: flag(&probe.row_remap_failure),
        row_remap_pending: flag(&probe.row_remap_pending),
        uncorrectable: flag(&probe.ecc_uncorrectable),
        fabric: probe.fabric.as_ref().ok().and_then(|info| fabric(*info)),
        links_down,
    })
}

fn recovery(answer: &Result<u64, Error>) -> Option<Recovery> {
    match answer {
        Ok(number) => {
            Some(Action::new(u32::try_from(*number).unwrap_or(u32::MAX)).map_or(Recovery::NotNeeded, Recovery::Needed))
        }
        Err(error) if error.is_absent() => Some(Recovery::NotReported),
        Err(_) => None,
    }
}

/// The summary, or what the mask amounts to where the driver has none. `None` where it says nothing.
fn fabric(info: FabricHealth) -> Option<Fabric> {
    if info.state != FABRIC_COMPLETED {
        return None;
    }
    let field = |shift: u32, bits: u32| info.mask >> shift & ((1 << bits) - 1);
    let says_yes = |shift: u32| field(shift, 2) == 1;
    match info.summary {
        FABRIC_HEALTHY => Some(Fabric::Healthy),
        FABRIC_UNHEALTHY => Some(Fabric::Unhealthy),
        FABRIC_LIMITED => Some(Fabric::Limited),
        _ if info.mask == 0 => None,
        _ if says_yes(ROUTE_UNHEALTHY)
            || says_yes(ACCESS_TIMEOUT_RECOVERY)
            || field(INCORRECT_CONFIGURATION, 4) > 1 =>
        {
            Some(Fabric::Unhealthy)
        }
        _ if says_yes(DEGRADED_BANDWIDTH) || says_yes(ROUTE_RECOVERY) => Some(Fabric::Limited),
        _ => Some(Fabric::Healthy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed<T>(code: u32) -> Result<T, Error> {
        Err(Error::Call { call: "nvmlDeviceGetFieldValues", gpu: None, code: Code(code) })
    }

    fn well() -> Probe {
        Probe {
            recovery_action: Ok(0),
            row_remap_pending: Ok(0),
            row_remap_failure: Ok(0),
            ecc_uncorrectable: Ok(0),
            fabric: failed(3),
        }
    }

    fn reading(probe: Probe) -> Reading {
        match outcome(&Ok(probe), None) {
            Outcome::Answered(reading) => reading,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_event_is_the_worst_of_its_types() {
        let xid = |number| Some(Cause::Xid(Xid::new(number)));
        let kind = |kind: Kind| Some(kind.into());
        for (types, data, cause) in [
            (0x8, 79, xid(79)),
            (0x8 | 0x2, 48, xid(48)),
            (0x8, u64::MAX, xid(999)),
            (0x1, 0, None),
            (0x2, 0, kind(Kind::Ecc)),
            (0x4, 0, None),
            (0x200, 0, None),
            (0x400, 0, kind(Kind::RowRemapPending)),
            (0x800, 0, kind(Kind::RowRemapFailure)),
            (0x1000, 0, kind(Kind::Ecc)),
            (0x2000, 0, kind(Kind::Poison)),
            (0x4000, 0, kind(Kind::Unavailable)),
            (0x8000, 0, None),
            (1 << 40, 0, None),
        ] {
            let raw = events::Event { gpu: None, types, data, gpu_instance: None, compute_instance: None };
            assert_eq!(event(&raw), Event { cause, place: Place::Gpu }, "{types:#x}");
        }
    }

    #[test]
    fn a_place_is_as_narrow_as_its_ids() {
        for (gpu_instance, compute_instance, place) in [
            (None, None, Place::Gpu),
            (None, Some(0), Place::Gpu),
            (Some(7), None, Place::GpuInstance(7)),
            (Some(7), Some(0), Place::ComputeInstance(7, 0)),
        ] {
            let raw = events::Event { gpu: None, types: 8, data: 13, gpu_instance, compute_instance };
            assert_eq!(event(&raw).place, place);
        }
    }

    #[test]
    fn what_a_gpu_does_not_have_is_no_news() {
        let bare = Probe {
            recovery_action: failed(3),
            row_remap_pending: failed(3),
            row_remap_failure: failed(13),
            ecc_uncorrectable: Err(Error::Symbol { call: "nvmlDeviceGetFieldValues" }),
            fabric: failed(25),
        };
        let nothing = Reading { recovery: Some(Recovery::NotReported), ..Reading::default() };
        assert_eq!(reading(bare), nothing);
        let odd = Probe { recovery_action: failed(999), ..well() };
        assert_eq!(reading(odd).recovery, None);
        let far = Probe { recovery_action: Ok(u64::MAX), ..well() };
        assert_eq!(reading(far).recovery, Action::new(u32::MAX).map(Recovery::Needed));
        let bad = Probe { row_remap_failure: Ok(1), ecc_uncorrectable: Ok(7), ..well() };
        let bad = reading(bad);
        assert_eq!(
            (bad.row_remap_failure, bad.uncorrectable, bad.row_remap_pending),
            (Some(true), Some(true), Some(false))
        );
    }

    #[test]
    fn a_gpu_is_lost_if_it_says_so_and_silent_if_it_fails_at_everything() {
        for code in [15, 6, 28] {
            assert_eq!(outcome(&failed(code), None), Outcome::Lost, "{code}");
        }
        for code in [9, 18, 999] {
            assert_eq!(outcome(&failed(code), None), Outcome::Silent, "{code}");
        }
        let deadline = Error::Deadline { act: "probe a GPU", within: std::time::Duration::from_secs(1) };
        assert_eq!(outcome(&Err(deadline), None), Outcome::Silent);
        let all = Probe {
            recovery_action: failed(999),
            row_remap_pending: failed(999),
            row_remap_failure: failed(999),
            ecc_uncorrectable: failed(999),
            fabric: failed(3),
        };
        assert_eq!(outcome(&Ok(all.clone()), None), Outcome::Silent);
        assert!(matches!(outcome(&Ok(Probe { ecc_uncorrectable: failed(3), ..all }), None), Outcome::Answered(_)));
    }

    #[test]
    fn a_fabric_is_as_its_summary_says_or_else_its_mask() {
        let well = 2 | 2 << 2 | 2 << 4 | 2 << 6 | 1 << 8;
        for (state, summary, mask, expected) in [
            (3, 1, 1 << 4, Some(Fabric::Healthy)),
            (3, 2, well, Some(Fabric::Unhealthy)),
            (3, 3, well, Some(Fabric::Limited)),
            (2, 2, 0, None),
            (0, 0, 0, None),
            (3, 0, 0, None),
            (3, 0, well, Some(Fabric::Healthy)),
            (3, 0, well ^ 3, Some(Fabric::Limited)),
            (3, 9, well ^ 3 << 2, Some(Fabric::Limited)),
            (3, 0, well ^ 3 << 4, Some(Fabric::Unhealthy)),
            (3, 0, well ^ 3 << 6, Some(Fabric::Unhealthy)),
            (3, 0, well ^ (1 | 5) << 8, Some(Fabric::Unhealthy)),
        ] {
            assert_eq!(fabric(FabricHealth { state, mask, summary }), expected, "{state} {summary} {mask:#x}");
        }
    }
}
