//! What holds for any events and probes.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::slice::Effect;

fn causes() -> impl Strategy<Value = Cause> {
    let kinds = [Kind::RowRemapFailure, Kind::RowRemapPending, Kind::Poison, Kind::Unavailable, Kind::Ecc];
    prop_oneof![
        (0_u64..1100).prop_map(|number| Cause::Xid(Xid::new(number))),
        proptest::sample::select(kinds.to_vec()).prop_map(Cause::Kind),
    ]
}

fn places() -> impl Strategy<Value = Place> {
    prop_oneof![
        Just(Place::Gpu),
        (0_u32..4).prop_map(Place::GpuInstance),
        (0_u32..4, 0_u32..3).prop_map(|(gpu, compute)| Place::ComputeInstance(gpu, compute)),
    ]
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    let flag = || proptest::option::of(any::<bool>());
    let recovery = proptest::option::of(prop_oneof![
        Just(Recovery::NotNeeded),
        Just(Recovery::NotReported),
        (1_u32..99).prop_map(|number| Recovery::Needed(Action::new(number).unwrap())),
    ]);
    let fabric =
        proptest::option::of(proptest::sample::select(vec![Fabric::Healthy, Fabric::Limited, Fabric::Unhealthy]));
    let reading = (recovery, flag(), flag(), flag(), fabric, flag()).prop_map(
        |(recovery, row_remap_failure, row_remap_pending, uncorrectable, fabric, links_down)| Reading {
            recovery,
            row_remap_failure,
            row_remap_pending,
            uncorrectable,
            fabric,
            links_down,
        },
    );
    prop_oneof![
        4 => reading.prop_map(Outcome::Answered),
        1 => Just(Outcome::Lost),
        1 => Just(Outcome::Silent),
        1 => Just(Outcome::Closed),
    ]
}

fn parts() -> impl Iterator<Item = Option<MigUuid>> {
    [None, Some(mig_uuid(1, 0)), Some(mig_uuid(1, 1)), Some(mig_uuid(2, 0))].into_iter()
}

proptest! {
    #[test]
    fn the_order_of_events_does_not_matter(
        events in proptest::collection::vec((causes(), places(), 0_u64..100), 0..40).prop_shuffle(),
    ) {
        let verdicts = |events: &[(Cause, Place, u64)]| {
            let mut scene = Scene::new();
            let start = scene.start;
            scene.look(&[(1, &[0, 1]), (2, &[0])]);
            for (cause, place, at) in events {
                scene.event(*at, *cause, *place);
            }
            let verdict = |part: Option<MigUuid>| scene.ledger.verdict(&scene.gpu, part.as_ref());
            let verdict = |part| {
                let Verdict { level, since, findings } = verdict(part);
                let findings = findings.into_iter().map(|f| (f.cause, f.response, f.since - start));
                (level, since.map(|since| since - start), findings.collect::<Vec<_>>())
            };
            parts().map(verdict).collect::<Vec<_>>()
        };
        let mut sorted = events.clone();
        sorted.sort_by_key(|(cause, _, at)| (*at, *cause));
        prop_assert_eq!(verdicts(&events), verdicts(&sorted));
    }

    #[test]
    fn no_event_makes_anything_better(
        history in proptest::collection::vec(
            prop_oneof![
                (causes(), places()).prop_map(|event| (Some(event), None)),
                outcomes().prop_map(|outcome| (None, Some(outcome))),
            ],
            0..40,
        ),
        steps in proptest::collection::vec(0_u64..40, 40),
    ) {
        let mut scene = Scene::new();
        scene.look(&[(1, &[0, 1]), (2, &[0])]);
        let mut now = 0;
        for ((event, outcome), step) in history.into_iter().zip(steps) {
            now += step;
            if let Some((cause, place)) = event {
                let verdicts = |scene: &Scene| {
                    parts().map(|part| scene.ledger.verdict(&scene.gpu, part.as_ref())).collect::<Vec<_>>()
                };
                let before = verdicts(&scene);
                scene.event(now, cause, place);
                for (before, after) in before.iter().zip(verdicts(&scene)) {
                    prop_assert!(after.level >= before.level);
                    prop_assert!(before.findings.iter().all(|finding| after.findings.contains(finding)));
                }
            }
            if let Some(outcome) = outcome {
                scene.probe(now, outcome);
            }
        }
        scene.answers(now + SETTLE.as_secs(), WELL);
        for part in parts() {
            prop_assert_eq!(scene.ledger.verdict(&scene.gpu, part.as_ref()).level, Level::Healthy);
        }
    }

    #[test]
    fn what_is_published_can_be_written(
        events in proptest::collection::vec(causes(), 0..60), outcome in outcomes(), watched in any::<bool>(),
    ) {
        let mut scene = Scene::new();
        for cause in events {
            scene.event(0, cause, Place::Gpu);
        }
        scene.probe(0, outcome);
        scene.ledger.watched(&scene.gpu, watched, scene.at(0));
        let verdict = scene.verdict();
        let taints = verdict.taints(DRIVER);
        prop_assert!(taints.len() <= 16);
        prop_assert!(taints.iter().all(|taint| taint.key.starts_with("gpu.nvidia.com/") && is_label_text(&taint.value)));
        prop_assert!(taints.is_sorted_by(|a, b| a.effect >= b.effect));
        let identities: BTreeSet<_> = taints.iter().map(|taint| (&taint.key, &taint.value)).collect();
        prop_assert_eq!(identities.len(), taints.len());
        let off_limits = taints.iter().any(|taint| taint.effect != Effect::None);
        prop_assert_eq!(off_limits, verdict.level == Level::Unhealthy);
        let message = verdict.message();
        prop_assert!(message.is_ascii() && message.len() <= 1024);
        prop_assert_eq!(message.is_empty(), verdict.level == Level::Healthy);
    }
}
