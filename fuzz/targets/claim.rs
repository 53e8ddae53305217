//! Any JSON document as the answer to a request for a claim: what is taken from it is within the limits of the API, and
//! can be planned.

#![no_main]

use std::collections::BTreeSet;

use gpu_dra_plugin::claim::plan::{Wanted, plan, wanted};
use gpu_dra_plugin::claim::{ClaimName, ClaimUid};
use gpu_dra_plugin::cluster::fuzz;
use gpu_dra_plugin::device::Node;
use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;

const DRIVER: &str = "gpu.nvidia.com";

/// The longest message, in characters: pods' events have room for more.
const LONGEST: usize = 500;

fuzz_target!(|bytes: &[u8]| {
    let Ok(document) = serde_json::from_slice::<Box<RawValue>>(bytes) else { return };
    let name = ClaimName { namespace: "team".to_owned(), name: "a".to_owned() };
    let uid = ClaimUid::parse("a").unwrap();
    let claim = match fuzz::claim(&document, &name, &uid, DRIVER) {
        Ok(claim) => claim,
        Err(error) => {
            let message = error.to_string();
            assert!(message.chars().count() <= LONGEST && !message.contains('\n'), "{message:?}");
            return;
        }
    };
    assert!((1..=32).contains(&claim.results.len()) && claim.configs.len() <= 64);
    for result in &claim.results {
        for name in [&result.request, &result.pool, &result.device].into_iter().chain(&result.share_id) {
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-./".contains(&byte);
            assert!((1..=253).contains(&name.len()) && name.bytes().all(plain), "{name:?}");
            assert!(!name.split('/').any(|part| matches!(part, "" | "." | "..")), "{name:?}");
        }
    }
    for config in &claim.configs {
        assert!(config.requests.len() <= 32 && config.parameters.len() <= 10 * 1024);
        serde_json::from_str::<Box<RawValue>>(&config.parameters).expect("a part of JSON is JSON");
    }

    let wanted = wanted(&claim);
    let keys: Vec<_> = wanted.iter().map(key).collect();
    assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len(), "a share of a device is there once");
    for result in &claim.results {
        let of_result = (&result.pool, &result.device, &result.share_id);
        let device = wanted.iter().find(|device| key(device) == of_result).expect("every result is there");
        assert!(device.requests.iter().any(|request| request == result.base_request()));
    }
    plan(&claim, "node-a", &Node::default()).expect_err("the node has no device");
});

fn key(device: &Wanted) -> (&String, &String, &Option<String>) {
    (&device.pool, &device.device, &device.share_id)
}
