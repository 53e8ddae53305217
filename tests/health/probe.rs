//! What a probe reads.

use gpu_dra_plugin::health::{Action, Fabric, Outcome, Reading, Recovery, reading};
use gpu_dra_plugin::nvml::Code;

use crate::machine::{Machine, fault};

/// A GPU of an A100 or an H100 that is well.
const WELL: Reading = Reading {
    recovery: Some(Recovery::NotNeeded),
    row_remap_failure: Some(false),
    row_remap_pending: Some(false),
    uncorrectable: Some(false),
    fabric: None,
    links_down: None,
};

impl Machine {
    async fn outcome(&self, index: usize) -> Outcome {
        reading::outcome(&self.probe(index).await, None)
    }
}

#[tokio::test]
async fn every_gpu_that_is_well_says_so() {
    for name in topology::Topology::names() {
        let machine = Machine::new(name);
        for index in 0..machine.host.topology().gpus.len() {
            let Outcome::Answered(reading) = machine.outcome(index).await else { panic!("{name} {index}") };
            assert_eq!(reading.recovery, Some(Recovery::NotNeeded), "{name} {index}");
            assert!(matches!(reading.fabric, None | Some(Fabric::Healthy)), "{name} {index}");
            assert!(reading.row_remap_failure != Some(true) && reading.uncorrectable != Some(true), "{name} {index}");
        }
    }
}

#[tokio::test]
async fn what_a_gpu_reports_is_read_and_that_of_its_neighbour_is_not() {
    let machine = Machine::new("dgx-h100");
    machine.update_gpu(3, |gpu| {
        gpu.fields.insert(230, 4);
        gpu.row_remap_pending = true;
        gpu.row_remap_failed = true;
        gpu.ecc_uncorrectable = 7;
    });
    let ill = Reading {
        recovery: Action::new(4).map(Recovery::Needed),
        row_remap_failure: Some(true),
        row_remap_pending: Some(true),
        uncorrectable: Some(true),
        ..WELL
    };
    assert_eq!(machine.outcome(3).await, Outcome::Answered(ill));
    assert_eq!(machine.outcome(2).await, Outcome::Answered(WELL));
}

#[tokio::test]
async fn a_board_that_remaps_no_rows_says_nothing_of_them() {
    let machine = Machine::new("a100-and-t4");
    let t4 = machine.host.topology().gpus.iter().position(|gpu| gpu.board.contains("t4")).unwrap();
    let Outcome::Answered(reading) = machine.outcome(t4).await else { panic!("it answers") };
    assert_eq!((reading.row_remap_failure, reading.row_remap_pending), (None, None));
    assert_eq!(machine.outcome(1 - t4).await, Outcome::Answered(WELL));
}

#[tokio::test]
async fn a_fabric_is_judged_once_a_gpu_is_registered_with_it() {
    let machine = Machine::new("gb200-tray");
    let fabric = machine.host.topology().gpus[0].fabric.clone().unwrap();
    for (state, status, expected) in [(3, 0, Some(Fabric::Healthy)), (2, 0, None), (3, 1, Some(Fabric::Unhealthy))] {
        machine.update_gpu(0, |gpu| gpu.fabric = Some(topology::Fabric { state, status, ..fabric.clone() }));
        let Outcome::Answered(reading) = machine.outcome(0).await else { panic!("it answers") };
        assert_eq!(reading.fabric, expected, "{state} {status}");
    }
}

#[tokio::test]
async fn a_gpu_that_is_lost_or_gone_is_lost_and_its_neighbour_is_not() {
    let machine = Machine::new("dgx-h100");
    machine.update_gpu(1, |gpu| gpu.lost = true);
    assert_eq!(machine.outcome(1).await, Outcome::Lost);
    assert_eq!(machine.outcome(0).await, Outcome::Answered(WELL));
    machine.update_gpu(1, |gpu| gpu.lost = false);
    assert_eq!(machine.outcome(1).await, Outcome::Answered(WELL));

    let machine = Machine::new("dgx-h100");
    machine.update_gpu(1, |gpu| gpu.absent = true);
    assert_eq!(machine.outcome(1).await, Outcome::Lost);
}

/// One query is not to decide that a GPU is gone.
#[tokio::test]
async fn a_query_that_says_lost_costs_its_fact_while_the_gpu_says_who_it_is() {
    let machine = Machine::new("gb200-tray");
    machine.fail(&[fault("nvmlDeviceGetGpuFabricInfoV", Some(0), 15)]);
    assert_eq!(machine.outcome(0).await, Outcome::Answered(WELL));
    machine.fail(&[fault("nvmlDeviceGetFieldValues", Some(0), 15)]);
    assert_eq!(machine.outcome(0).await, Outcome::Silent);
    machine.fail(&[fault("nvmlDeviceGetFieldValues", Some(0), 15), fault("nvmlDeviceGetUUID", Some(0), 15)]);
    assert_eq!(machine.outcome(0).await, Outcome::Lost);
}

#[tokio::test]
async fn a_driver_that_cannot_be_asked_is_no_news_and_a_stale_one_is_an_error() {
    let machine = Machine::without_symbols("one-gpu", &["nvmlDeviceGetFieldValues", "nvmlDeviceGetGpuFabricInfoV"]);
    let nothing = Reading { recovery: Some(Recovery::NotReported), ..Reading::default() };
    assert_eq!(machine.outcome(0).await, Outcome::Answered(nothing));

    let machine = Machine::new("one-gpu");
    machine.fail(&[fault("nvmlDeviceGetFieldValues", None, 18)]);
    assert_eq!(machine.probe(0).await.unwrap_err().code(), Some(Code::LIB_RM_VERSION_MISMATCH));
}
