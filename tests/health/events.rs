//! What the driver reports by itself.

use std::time::{Duration, Instant};

use gpu_dra_plugin::nvml::Code;
use gpu_dra_plugin::nvml::events::{Event, News, kind};
use topology::{Event as Sent, Fault};

use crate::machine::{LONG, Machine, fault};

#[tokio::test]
async fn an_event_says_which_gpu_and_which_part_of_it() {
    let machine = Machine::new("dgx-h100");
    let mut listener = machine.watch();
    let (watched, unwatched) = listener.watching().await;
    assert_eq!(watched, (0..8).map(|index| machine.uuid(index)).collect::<Vec<_>>());
    assert!(unwatched.is_empty());
    let compute = Sent { gpu_instance: 7, compute_instance: 0, ..Sent::xid(1, 43) };
    let instance = Sent { gpu_instance: 7, ..Sent::xid(1, 95) };
    let action = Sent { event_type: kind::GPU_RECOVERY_ACTION, ..Sent::xid(5, 0) };
    // A change of the performance state is of no interest to anybody.
    let noise = Sent { event_type: 4, ..Sent::xid(0, 0) };
    for event in [&compute, &noise, &instance, &Sent::xid(3, 79), &action] {
        machine.send(event);
    }
    let event = |index, types, data, gpu_instance, compute_instance| Event {
        gpu: Some(machine.uuid(index)),
        types,
        data,
        gpu_instance,
        compute_instance,
    };
    assert_eq!(listener.event().await, event(1, kind::XID, 43, Some(7), Some(0)));
    assert_eq!(listener.event().await, event(1, kind::XID, 95, Some(7), None));
    assert_eq!(listener.event().await, event(3, kind::XID, 79, None, None));
    assert_eq!(listener.event().await, event(5, kind::GPU_RECOVERY_ACTION, 0, None, None));
}

#[tokio::test]
async fn a_gpu_that_cannot_be_watched_costs_itself() {
    let machine = Machine::new("dgx-h100");
    machine.fail(&[
        fault("nvmlDeviceRegisterEvents", Some(2), 3),
        fault("nvmlDeviceGetSupportedEventTypes", Some(3), 999),
        fault("nvmlDeviceGetHandleByIndex", Some(4), 15),
    ]);
    let mut listener = machine.watch();
    let (watched, unwatched) = listener.watching().await;
    assert_eq!(watched, [0, 1, 5, 6, 7].map(|index| machine.uuid(index)));
    let why: Vec<_> = unwatched.into_iter().map(|(gpu, error)| (gpu, error.code().unwrap())).collect();
    let uuid = |index| Some(machine.uuid(index));
    assert_eq!(why, [(uuid(2), Code(3)), (uuid(3), Code(999)), (None, Code(15))]);
    machine.send(&Sent::xid(2, 48));
    machine.send(&Sent::xid(7, 48));
    assert_eq!(listener.event().await.gpu, uuid(7));
}

#[tokio::test]
async fn an_older_driver_without_the_newer_types_is_watched_for_those_it_has() {
    let machine = Machine::new("dgx-a100-40gb");
    let mut listener = machine.watch();
    assert_eq!(listener.watching().await.0.len(), 8);
    machine.send(&Sent { event_type: kind::DOUBLE_BIT_ECC, ..Sent::xid(6, 0) });
    let event = listener.event().await;
    assert_eq!((event.gpu, event.types), (Some(machine.uuid(6)), kind::DOUBLE_BIT_ECC));
}

#[tokio::test]
async fn a_lost_gpu_does_not_hide_what_happens_to_others() {
    let machine = Machine::new("dgx-h100");
    let mut listener = machine.watch();
    listener.watching().await;
    machine.send(&Sent::xid(1, 79));
    machine.update_gpu(1, |gpu| gpu.lost = true);
    assert_eq!(listener.event().await.gpu, Some(machine.uuid(1)), "known though it cannot say so any more");
    let News::Failed(error) = listener.next().await else { panic!("the wait fails") };
    assert_eq!(error.code(), Some(Code::GPU_IS_LOST));
    machine.send(&Sent::xid(0, 48));
    assert_eq!(listener.event().await.gpu, Some(machine.uuid(0)), "sent between two sets");
    let (watched, unwatched) = listener.watching().await;
    assert_eq!((watched.len(), unwatched.len()), (7, 1));
    machine.send(&Sent::xid(2, 48));
    assert_eq!(listener.event().await.gpu, Some(machine.uuid(2)));
}

#[tokio::test]
async fn an_event_of_a_gpu_that_cannot_say_who_it_is_blames_nobody() {
    let machine = Machine::new("dgx-h100");
    machine.fail(&[fault("nvmlDeviceGetUUID", Some(1), 999)]);
    let mut listener = machine.watch();
    let (watched, unwatched) = listener.watching().await;
    assert_eq!((watched.len(), unwatched.len()), (7, 0));
    machine.send(&Sent::xid(1, 48));
    assert_eq!(listener.event().await.gpu, None);
    machine.fail(&[]);
    machine.send(&Sent::xid(1, 48));
    assert_eq!(listener.event().await.gpu, Some(machine.uuid(1)), "it can now");
}

#[tokio::test]
async fn a_library_that_fails_or_does_not_wait_is_not_asked_without_pause() {
    for (code, failures) in [(999, 1), (10, 0)] {
        let machine = Machine::new("one-gpu");
        machine.fail(&[Fault { times: Some(1), ..fault("nvmlEventSetWait", None, code) }]);
        let begun = Instant::now();
        let mut listener = machine.watch();
        listener.watching().await;
        machine.send(&Sent::xid(0, 48));
        let mut failed = 0;
        loop {
            match listener.next().await {
                News::Failed(_) => failed += 1,
                News::Event(event) => break assert_eq!(event.gpu, Some(machine.uuid(0))),
                news => assert!(matches!(news, News::Watching { .. }), "{news:?}"),
            }
        }
        assert!(failed == failures && begun.elapsed() >= Duration::from_secs(1), "{code}");
    }
}

#[tokio::test]
async fn events_that_a_failing_library_keeps_to_itself_are_missed_and_not_forgotten() {
    let machine = Machine::new("one-gpu");
    machine.fail(&[Fault { times: Some(2), ..fault("nvmlEventSetWait", None, 999) }]);
    let mut listener = machine.watch();
    listener.watching().await;
    assert!(matches!(listener.next().await, News::Failed(_)));
    assert_eq!(listener.next().await, News::Missed);
    assert_eq!(listener.watching().await.0.len(), 1);
    machine.send(&Sent::xid(0, 48));
    assert_eq!(listener.event().await.data, 48);
}

#[tokio::test]
async fn a_stale_library_ends_the_watch_and_is_replaced() {
    let mut machine = Machine::new("dgx-h100");
    let mut listener = machine.watch();
    listener.watching().await;
    machine.host.upgrade_driver("590.48.01").unwrap();
    let version = |nvml: &gpu_dra_plugin::nvml::Nvml| Ok(nvml.sys_driver_version().unwrap());
    let error = (&mut listener.end).await.unwrap().unwrap_err();
    assert!(error.is_stale(), "{error}");
    assert!(listener.news.recv().await.is_none(), "it is told once");
    let answer = machine.session.call("read the driver's version", LONG, version).await;
    assert_eq!(answer, Ok("590.48.01".to_owned()));
    let mut listener = machine.watch();
    assert_eq!(listener.watching().await.0.len(), 8);
}

#[tokio::test]
async fn whoever_finds_the_library_stale_need_not_wait_for_the_watch() {
    let mut machine = Machine::new("one-gpu");
    let mut listener = machine.watch();
    listener.watching().await;
    machine.host.upgrade_driver("590.48.01").unwrap();
    assert!(machine.probe(0).await.is_err_and(|error| error.is_stale()));
    assert!(machine.probe(0).await.is_ok());
}

#[tokio::test]
async fn the_watch_ends_when_it_is_told_to_or_nobody_listens() {
    let machine = Machine::new("one-gpu");
    let mut listener = machine.watch();
    listener.watching().await;
    listener.stop.cancel();
    assert_eq!((&mut listener.end).await.unwrap(), Ok(()));
    let mut listener = machine.watch();
    listener.watching().await;
    listener.news.close();
    assert_eq!((&mut listener.end).await.unwrap(), Ok(()));
}

#[tokio::test]
async fn a_library_without_events_cannot_be_watched_and_says_so() {
    let machine = Machine::without_symbols("one-gpu", &["nvmlEventSetCreate"]);
    let mut listener = machine.watch();
    let error = (&mut listener.end).await.unwrap().unwrap_err();
    assert!(error.is_absent(), "{error}");
    let machine = Machine::without_symbols("one-gpu", &["nvmlDeviceRegisterEvents"]);
    let mut listener = machine.watch();
    let (watched, unwatched) = listener.watching().await;
    assert!(watched.is_empty() && unwatched[0].1.is_absent());
}
