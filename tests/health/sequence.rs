//! Events and probes together, from NVML to the verdict.

use std::time::Instant;

use gpu_dra_plugin::health::ledger::SETTLE;
use gpu_dra_plugin::health::{Ledger, Level, Outcome, Reach, reading};
use topology::Event;

use crate::machine::Machine;

#[tokio::test]
async fn a_gpu_that_falls_off_the_bus_is_given_up_alone_and_comes_back() {
    let machine = Machine::new("dgx-h100");
    let mut listener = machine.watch();
    listener.watching().await;
    let mut ledger = Ledger::default();
    for index in 0..8 {
        let answer = machine.probe(index).await;
        ledger.probe(&machine.uuid(index), reading::outcome(&answer, None), Instant::now());
    }
    let gpu = machine.uuid(4);
    let levels =
        |ledger: &Ledger| (0..8).map(|index| ledger.verdict(&machine.uuid(index), None).level).collect::<Vec<_>>();
    assert_eq!(levels(&ledger), [Level::Healthy; 8]);

    for (xid, reach) in [(79, Reach::Gpu), (43, Reach::Nothing)] {
        machine.send(&Event::xid(4, xid));
        let event = listener.event().await;
        assert_eq!(ledger.event(&event.gpu.clone().unwrap(), reading::event(&event), Instant::now()), reach);
    }
    machine.update_gpu(4, |gpu| gpu.lost = true);
    let outcome = reading::outcome(&machine.probe(4).await, None);
    assert_eq!(outcome, Outcome::Lost);
    ledger.probe(&gpu, outcome, Instant::now());
    let taints = ledger.verdict(&gpu, None).taints("gpu.nvidia.com");
    let taints: Vec<_> = taints.iter().map(|taint| (taint.key.as_str(), taint.value.as_str())).collect();
    assert_eq!(taints, [("gpu.nvidia.com/xid", "79"), ("gpu.nvidia.com/gpu-lost", "")]);
    let mut expected = [Level::Healthy; 8];
    expected[4] = Level::Unhealthy;
    assert_eq!(levels(&ledger), expected);

    machine.update_gpu(4, |gpu| gpu.lost = false);
    let outcome = reading::outcome(&machine.probe(4).await, None);
    ledger.probe(&gpu, outcome, Instant::now() + SETTLE);
    assert_eq!(levels(&ledger), [Level::Healthy; 8]);
}
