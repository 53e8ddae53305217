//! Any text as the opaque parameters of a claim: an error says where, in a line that people read; what is accepted is
//! accepted in one way only; and the plan refuses what cannot be decoded.

#![no_main]

use gpu_dra_plugin::claim::config::{Config, ConfigError};
use gpu_dra_plugin::claim::plan::{PlanError, plan};
use gpu_dra_plugin::claim::{AllocationResult, Claim, ClaimName, ClaimUid, OpaqueConfig};
use gpu_dra_plugin::device::Node;
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

/// The longest message, in characters: pods' events have room for more.
const LONGEST: usize = 500;

fuzz_target!(|bytes: &[u8]| {
    let Ok(parameters) = std::str::from_utf8(bytes) else { return };
    let decoded = Config::decode(parameters);
    match &decoded {
        Ok(config) => accepted(config, parameters),
        Err(error) => refused(error),
    }

    let name = |text: &str| text.to_owned();
    let claim = Claim {
        uid: ClaimUid::parse("a").unwrap(),
        name: ClaimName { namespace: name("team"), name: name("a") },
        results: vec![AllocationResult {
            request: name("main/sub"),
            pool: name("node"),
            device: name("gpu-0"),
            share_id: None,
            admin_access: false,
        }],
        configs: vec![OpaqueConfig { requests: vec![name("main")], parameters: name(parameters) }],
        statuses: Vec::new(),
    };
    let error = plan(&claim, "node", &Node::default()).expect_err("the node has no device");
    assert_eq!(
        decoded.err(),
        match error {
            PlanError::Config { number: 1, error } => Some(error),
            _ => None,
        }
    );
});

fn accepted(config: &Config, parameters: &str) {
    let document: Value = serde_json::from_str(parameters).expect("only JSON is accepted");
    assert_eq!(document["kind"], config.kind());
    assert_eq!(Config::decode(&document.to_string()).as_ref(), Ok(config), "the same fields in another order");
    for path in objects(&document, "") {
        let object = document.pointer(&path).and_then(Value::as_object).expect("the path of an object");
        let mut larger = object.clone();
        larger.insert("noField".to_owned(), json!(true));
        for other in [larger.into(), object.values().cloned().collect()] {
            let mut changed = document.clone();
            *changed.pointer_mut(&path).expect("the same path") = other;
            Config::decode(&changed.to_string()).expect_err("a field that is none, and a list, which is no object");
        }
    }
}

fn refused(error: &ConfigError) {
    let message = error.to_string();
    assert!(message.chars().count() <= LONGEST && !message.contains(char::is_control), "{message:?}");
    if let ConfigError::Field { wrong, .. } = error {
        assert!(!wrong.path.is_empty(), "{message:?} names no field");
    }
}

/// The JSON pointers of all objects in a value.
fn objects(value: &Value, path: &str) -> Vec<String> {
    let Value::Object(fields) = value else { return Vec::new() };
    let below = fields.iter().flat_map(|(name, value)| {
        let name = name.replace('~', "~0").replace('/', "~1");
        objects(value, &format!("{path}/{name}"))
    });
    below.chain([path.to_owned()]).collect()
}
