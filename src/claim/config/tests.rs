use proptest::prelude::*;
use serde_json::json;

use super::*;

fn decode(kind: &str, mut fields: Value) -> Result<Config, ConfigError> {
    fields["apiVersion"] = API_VERSION.into();
    fields["kind"] = kind.into();
    Config::decode(&fields.to_string())
}

/// Decodes a text in which `TYPE` stands for the fields that every document has.
fn decode_text(text: &str) -> Result<Config, ConfigError> {
    Config::decode(&text.replace("TYPE", &format!(r#""apiVersion": "{API_VERSION}", "kind": "GpuConfig""#)))
}

fn gpu(sharing: GpuSharing) -> Config {
    Config::Gpu(GpuConfig { sharing: Some(sharing) })
}

fn time_slicing(time_slicing_config: Option<TimeSlicing>) -> Config {
    gpu(GpuSharing { strategy: SharingStrategy::TimeSlicing, time_slicing_config, mps_config: None })
}

fn mps(mps_config: Option<Mps>) -> Config {
    gpu(GpuSharing { strategy: SharingStrategy::Mps, time_slicing_config: None, mps_config })
}

fn vfio(backend_policy: Option<BackendPolicy>, enable_api_device: Option<bool>) -> Config {
    Config::Vfio(VfioDeviceConfig { iommu: Some(Iommu { backend_policy, enable_api_device }) })
}

/// A document with every field that there is.
fn full(kind: &str) -> Value {
    let mps = json!({
        "defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi",
        "defaultPerDevicePinnedMemoryLimit": {"0": "1Gi", "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c": 2_147_483_648_u64},
        "multiUser": true,
    });
    match kind {
        "GpuConfig" | "MigDeviceConfig" => json!({"sharing": {"strategy": "MPS", "mpsConfig": mps}}),
        _ => json!({"iommu": {"backendPolicy": "PreferIommuFD", "enableAPIDevice": true}}),
    }
}

#[test]
fn a_document_may_have_every_field() {
    let expected = Mps {
        default_active_thread_percentage: Some(Percentage::try_from(50).unwrap()),
        default_pinned_device_memory_limit: Some(MemoryLimit { mebibytes: 10 << 10 }),
        default_per_device_pinned_memory_limit: Some(
            [("0", 1 << 10), ("GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c", 2 << 10)]
                .map(|(device, mebibytes)| (device.to_owned(), MemoryLimit { mebibytes }))
                .into(),
        ),
        multi_user: Some(true),
    };
    assert_eq!(decode("GpuConfig", full("GpuConfig")), Ok(mps(Some(expected.clone()))));
    let sharing = MigSharing { strategy: SharingStrategy::Mps, mps_config: Some(expected) };
    let expected = Config::Mig(MigDeviceConfig { sharing: Some(sharing) });
    assert_eq!(decode("MigDeviceConfig", full("MigDeviceConfig")), Ok(expected));
    let expected = vfio(Some(BackendPolicy::PreferIommuFd), Some(true));
    assert_eq!(decode("VfioDeviceConfig", full("VfioDeviceConfig")), Ok(expected));
    for (word, interval) in [
        ("Default", Interval::Default),
        ("Short", Interval::Short),
        ("Medium", Interval::Medium),
        ("Long", Interval::Long),
    ] {
        let fields = json!({"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": word}}});
        assert_eq!(decode("GpuConfig", fields), Ok(time_slicing(Some(TimeSlicing { interval: Some(interval) }))));
    }
}

#[test]
fn what_is_optional_may_be_absent_empty_or_null() {
    let time_slices = |config: Value| json!({"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": config}});
    let of_mps = |config: Value| json!({"sharing": {"strategy": "MPS", "mpsConfig": config}});
    let nothing = json!({
        "defaultActiveThreadPercentage": null, "defaultPinnedDeviceMemoryLimit": null,
        "defaultPerDevicePinnedMemoryLimit": null, "multiUser": null,
    });
    let mig = Config::Mig(MigDeviceConfig {
        sharing: Some(MigSharing { strategy: SharingStrategy::TimeSlicing, mps_config: None }),
    });
    let cases = [
        ("GpuConfig", json!({}), Config::Gpu(GpuConfig::default())),
        ("GpuConfig", json!({"sharing": null}), Config::Gpu(GpuConfig::default())),
        ("GpuConfig", json!({"sharing": {"strategy": "TimeSlicing"}}), time_slicing(None)),
        ("GpuConfig", time_slices(json!(null)), time_slicing(None)),
        ("GpuConfig", time_slices(json!({})), time_slicing(Some(TimeSlicing::default()))),
        ("GpuConfig", time_slices(json!({"interval": null})), time_slicing(Some(TimeSlicing::default()))),
        ("GpuConfig", json!({"sharing": {"strategy": "MPS"}}), mps(None)),
        ("GpuConfig", of_mps(json!(null)), mps(None)),
        ("GpuConfig", of_mps(json!({})), mps(Some(Mps::default()))),
        ("GpuConfig", of_mps(nothing), mps(Some(Mps::default()))),
        ("MigDeviceConfig", json!({}), Config::Mig(MigDeviceConfig::default())),
        ("MigDeviceConfig", json!({"sharing": {"strategy": "TimeSlicing", "mpsConfig": null}}), mig),
        ("VfioDeviceConfig", json!({}), Config::Vfio(VfioDeviceConfig::default())),
        ("VfioDeviceConfig", json!({"iommu": null}), Config::Vfio(VfioDeviceConfig::default())),
        ("VfioDeviceConfig", json!({"iommu": {}}), vfio(None, None)),
        ("VfioDeviceConfig", json!({"iommu": {"backendPolicy": null, "enableAPIDevice": null}}), vfio(None, None)),
        ("VfioDeviceConfig", json!({"iommu": {"backendPolicy": ""}}), vfio(None, None)),
    ];
    for (kind, fields, expected) in cases {
        assert_eq!(decode(kind, fields.clone()), Ok(expected), "{kind} {fields}");
    }
}

fn assert_wrong(kind: &str, fields: &Value, expected: &str) {
    let message = decode(kind, fields.clone()).unwrap_err().to_string();
    assert_eq!(message, format!("{kind}: {expected}"), "{fields}");
}

#[test]
fn what_is_wrong_is_named_by_its_path() {
    let time_slices = |config: Value| json!({"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": config}});
    let cases = [
        (json!({"sharng": {}}), "sharng: unknown field `sharng`, expected `sharing`"),
        (json!({"Sharing": {}}), "Sharing: unknown field `Sharing`, expected `sharing`"),
        (json!({"sharing": {}}), "sharing: missing field `strategy`"),
        (json!({"sharing": []}), "sharing: invalid type: sequence, expected an object"),
        (json!({"sharing": ["TimeSlicing"]}), "sharing: invalid type: sequence, expected an object"),
        (json!({"sharing": "MPS"}), "sharing: invalid type: string \"MPS\", expected an object"),
        (
            json!({"sharing": {"strategy": "Fair"}}),
            "sharing.strategy: unknown variant `Fair`, expected `TimeSlicing` or `MPS`",
        ),
        (
            json!({"sharing": {"strategy": "mps"}}),
            "sharing.strategy: unknown variant `mps`, expected `TimeSlicing` or `MPS`",
        ),
        (json!({"sharing": {"strategy": ""}}), "sharing.strategy: unknown variant ``, expected `TimeSlicing` or `MPS`"),
        (json!({"sharing": {"strategy": null}}), "sharing.strategy: invalid type: null, expected a string"),
        (json!({"sharing": {"strategy": {"MPS": null}}}), "sharing.strategy: invalid type: map, expected a string"),
        (time_slices(json!(["Long"])), "sharing.timeSlicingConfig: invalid type: sequence, expected an object"),
        (
            time_slices(json!({"interval": 3})),
            "sharing.timeSlicingConfig.interval: invalid type: integer `3`, expected a string",
        ),
        (
            time_slices(json!({"interval": "3"})),
            "sharing.timeSlicingConfig.interval: unknown variant `3`, expected one of `Default`, `Short`, `Medium`, `Long`",
        ),
        (
            time_slices(json!({"interval": ""})),
            "sharing.timeSlicingConfig.interval: unknown variant ``, expected one of `Default`, `Short`, `Medium`, `Long`",
        ),
        (
            json!({"sharing": {"strategy": "TimeSlicing", "mpsConfig": {}}}),
            "sharing.mpsConfig: not for the strategy TimeSlicing",
        ),
        (
            json!({"sharing": {"strategy": "MPS", "timeSlicingConfig": {}}}),
            "sharing.timeSlicingConfig: not for the strategy MPS",
        ),
    ];
    for (fields, expected) in cases {
        assert_wrong("GpuConfig", &fields, expected);
    }
}

#[test]
fn what_is_wrong_with_the_settings_of_mps_is_named_by_its_path() {
    let of_mps = |config: Value| json!({"sharing": {"strategy": "MPS", "mpsConfig": config}});
    let per_device = |limits: Value| of_mps(json!({"defaultPerDevicePinnedMemoryLimit": limits}));
    let cases = [
        (
            of_mps(json!({"multiuser": true})),
            "sharing.mpsConfig.multiuser: unknown field `multiuser`, expected one of `defaultActiveThreadPercentage`, \
             `defaultPinnedDeviceMemoryLimit`, `defaultPerDevicePinnedMemoryLimit`, `multiUser`",
        ),
        (of_mps(json!([])), "sharing.mpsConfig: invalid type: sequence, expected an object"),
        (of_mps(json!({"multiUser": 1})), "sharing.mpsConfig.multiUser: invalid type: integer `1`, expected a boolean"),
        (
            of_mps(json!({"defaultActiveThreadPercentage": 101})),
            "sharing.mpsConfig.defaultActiveThreadPercentage: 101 is not from 0 to 100",
        ),
        (
            of_mps(json!({"defaultActiveThreadPercentage": -1})),
            "sharing.mpsConfig.defaultActiveThreadPercentage: -1 is not from 0 to 100",
        ),
        (
            of_mps(json!({"defaultActiveThreadPercentage": "50"})),
            "sharing.mpsConfig.defaultActiveThreadPercentage: invalid type: string \"50\", expected i64",
        ),
        (
            of_mps(json!({"defaultActiveThreadPercentage": 50.0})),
            "sharing.mpsConfig.defaultActiveThreadPercentage: invalid type: floating point `50.0`, expected i64",
        ),
        (
            of_mps(json!({"defaultActiveThreadPercentage": u64::MAX})),
            "sharing.mpsConfig.defaultActiveThreadPercentage: invalid value: integer `18446744073709551615`, expected i64",
        ),
        (
            of_mps(json!({"defaultPinnedDeviceMemoryLimit": "10GiB"})),
            "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit: \"10GiB\" is not a quantity, for example 10Gi",
        ),
        (
            of_mps(json!({"defaultPinnedDeviceMemoryLimit": true})),
            "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit: invalid type: boolean `true`, expected a quantity, for \
             example \"10Gi\"",
        ),
        (
            per_device(json!({"0": null})),
            "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit.0: invalid type: null, expected a quantity, for \
             example \"10Gi\"",
        ),
        (
            per_device(json!({"0": 4096})),
            "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit.0: \"4096\" is less than 1Mi",
        ),
        (
            per_device(json!(["1Gi"])),
            "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit: invalid type: sequence, expected a map",
        ),
    ];
    for (fields, expected) in cases {
        assert_wrong("GpuConfig", &fields, expected);
    }
}

#[test]
fn what_is_wrong_in_the_other_kinds_is_named_by_its_path() {
    let cases = [
        ("MigDeviceConfig", json!({"sharing": []}), "sharing: invalid type: sequence, expected an object"),
        (
            "MigDeviceConfig",
            json!({"sharing": {"strategy": "MPS", "timeSlicingConfig": {}}}),
            "sharing.timeSlicingConfig: unknown field `timeSlicingConfig`, expected `strategy` or `mpsConfig`",
        ),
        (
            "MigDeviceConfig",
            json!({"sharing": {"strategy": "TimeSlicing", "mpsConfig": {}}}),
            "sharing.mpsConfig: not for the strategy TimeSlicing",
        ),
        ("VfioDeviceConfig", json!({"iommu": []}), "iommu: invalid type: sequence, expected an object"),
        (
            "VfioDeviceConfig",
            json!({"iommu": {"enableAPIDevice": "yes"}}),
            "iommu.enableAPIDevice: invalid type: string \"yes\", expected a boolean",
        ),
        (
            "VfioDeviceConfig",
            json!({"iommu": {"enableApiDevice": true}}),
            "iommu.enableApiDevice: unknown field `enableApiDevice`, expected `backendPolicy` or `enableAPIDevice`",
        ),
        (
            "VfioDeviceConfig",
            json!({"iommu": {"backendPolicy": "IommuFD"}}),
            "iommu.backendPolicy: unknown variant `IommuFD`, expected `LegacyOnly` or `PreferIommuFD`",
        ),
    ];
    for (kind, fields, expected) in cases {
        assert_wrong(kind, &fields, expected);
    }
}

#[test]
fn what_is_no_document_of_ours_is_refused() {
    for kind in ["gpuConfig", "GPUConfig", "ComputeDomainChannelConfig", "ComputeDomainDaemonConfig"] {
        let expected = format!(
            "{API_VERSION} {kind} is not known; known are GpuConfig, MigDeviceConfig and VfioDeviceConfig of {API_VERSION}"
        );
        assert_eq!(decode(kind, json!({})).unwrap_err().to_string(), expected);
    }
    for (text, expected) in [
        ("", "EOF while parsing a value"),
        ("[]", "the parameters are not a JSON object"),
        ("null", "the parameters are not a JSON object"),
        ("{}", "apiVersion: missing"),
        (r#"{"kind": "GpuConfig"}"#, "apiVersion: missing"),
        (r#"{"apiVersion": null, "kind": "GpuConfig"}"#, "apiVersion: missing"),
        (r#"{"apiVersion": "resource.nvidia.com/v1beta1"}"#, "kind: missing"),
        (r#"{"apiVersion": "resource.nvidia.com/v1beta1", "kind": ""}"#, "kind: missing"),
        (r#"{"apiVersion": "resource.nvidia.com/v1beta1", "kind": 1}"#, "kind: not a string"),
        (r#"{"apiVersion": ["resource.nvidia.com/v1beta1"], "kind": "GpuConfig"}"#, "apiVersion: not a string"),
        (
            r#"{"apiVersion": "resource.nvidia.com/v1", "kind": "GpuConfig"}"#,
            "resource.nvidia.com/v1 GpuConfig is not known; known are GpuConfig, MigDeviceConfig and VfioDeviceConfig of \
             resource.nvidia.com/v1beta1",
        ),
        ("{TYPE} {TYPE}", "more than one JSON document"),
        (r#"{TYPE, "sharing": {"strategy": 1e999}}"#, "sharing.strategy: number out of range"),
    ] {
        assert_eq!(decode_text(text).unwrap_err().to_string(), expected, "{text}");
    }
}

#[test]
fn a_field_that_is_there_twice_is_refused() {
    for (text, expected) in [
        (r#"{TYPE, "kind": "GpuConfig"}"#, "duplicate field `kind`"),
        (r#"{TYPE, "sharing": null, "sharing": null}"#, "duplicate field `sharing`"),
        (r#"{TYPE, "sharing": {"strategy": "MPS", "strategy": "MPS"}}"#, "sharing: duplicate field `strategy`"),
        (
            r#"{TYPE, "sharing": {"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"0": 1, "0": 2}}}}"#,
            "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit: duplicate field `0`",
        ),
    ] {
        assert_eq!(decode_text(text).unwrap_err().to_string(), expected, "{text}");
    }
}

#[test]
fn a_message_is_one_line_of_a_length_that_people_read() {
    let long = "a\nb".repeat(5000);
    let documents = [
        json!({"apiVersion": long, "kind": long}).to_string(),
        json!({"apiVersion": API_VERSION, "kind": "GpuConfig", long.clone(): 1}).to_string(),
        json!({"apiVersion": API_VERSION, "kind": "GpuConfig", "sharing": {"strategy": long}}).to_string(),
        "[".repeat(10_000),
    ];
    for document in documents {
        let message = Config::decode(&document).unwrap_err().to_string();
        assert!(message.chars().count() < 500 && !message.contains('\n'), "{message:?}");
    }
}

/// The paths of all objects in a value.
fn objects(value: &Value, path: &str) -> Vec<String> {
    let Value::Object(fields) = value else { return Vec::new() };
    let below = fields.iter().flat_map(|(name, value)| objects(value, &format!("{path}/{name}")));
    below.chain([path.to_owned()]).filter(|path| !path.is_empty()).collect()
}

#[test]
fn a_list_takes_the_place_of_no_object() {
    for kind in ["GpuConfig", "MigDeviceConfig", "VfioDeviceConfig"] {
        let whole = full(kind);
        for path in objects(&whole, "") {
            let mut fields = whole.clone();
            let object = fields.pointer_mut(&path).unwrap();
            *object = object.as_object().unwrap().values().cloned().collect();
            let message = decode(kind, fields).unwrap_err().to_string();
            let expected = format!("{kind}: {}: invalid type: sequence", path[1..].replace('/', "."));
            assert!(message.starts_with(&expected), "{message}");
        }
    }
}

fn any_json() -> BoxedStrategy<Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-zA-Z]{0,12}".prop_map(Value::from),
        Just(Value::from("TimeSlicing")),
    ];
    let keys = ["sharing", "strategy", "timeSlicingConfig", "interval", "mpsConfig", "iommu", "other"];
    let documents = leaf.prop_recursive(4, 24, 4, move |inner| {
        let map = prop::collection::btree_map(prop::sample::select(keys.to_vec()), inner, 0..4);
        map.prop_map(|map| map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    });
    documents.boxed()
}

proptest! {
    #[test]
    fn no_document_is_a_panic(kind in "GpuConfig|MigDeviceConfig|VfioDeviceConfig", fields in any_json()) {
        if fields.is_object() {
            let _ = decode(&kind, fields);
        } else {
            prop_assert!(Config::decode(&fields.to_string()).is_err());
        }
    }
}
