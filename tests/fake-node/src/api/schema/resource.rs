//! `resource.k8s.io`, in the shape of v1. Names, releases and gates from the API's types.

use super::core::{API_VERSION, CONDITION, KIND, META, NODE_SELECTOR};
use super::{Field, Gate, Merge, Type};
use crate::release::Release::{V1_33, V1_34, V1_36, V1_37};
use Merge::{Atomic, Keyed, Set};
use Type::{BoolPtr, Int, IntPtr, List, Map, Quantity, Raw, Str, StrPtr, Struct, Time};

const fn f(name: &'static str, ty: Type) -> Field {
    Field::new(name, ty)
}

const STRINGS: Type = List(&Str, Atomic);

pub(super) const SLICE: Type = Struct(&[
    API_VERSION,
    KIND,
    META,
    f(
        "spec",
        Struct(&[
            f("driver", Str).always(),
            f(
                "pool",
                Struct(&[
                    f("name", Str).always(),
                    f("generation", Int).always(),
                    f("resourceSliceCount", Int).always(),
                ]),
            )
            .always(),
            f("nodeName", StrPtr),
            f("nodeSelector", NODE_SELECTOR),
            f("allNodes", BoolPtr),
            f("devices", List(&DEVICE, Atomic)),
            f("perDeviceNodeSelection", BoolPtr).since(V1_33).gate(Gate::PartitionableDevices),
            f("sharedCounters", List(&COUNTER_SET, Atomic)).since(V1_33).gate(Gate::PartitionableDevices),
            f("partitionTypeAttribute", StrPtr).since(V1_37).gate(Gate::PartitionableDevicesType),
            f("skipNodeOperations", List(&Str, Set)).since(V1_37).gate(Gate::OptionalNodeOperations),
        ]),
    )
    .always(),
]);

const COUNTER_SET: Type = Struct(&[f("name", Str).always(), f("counters", Map(&COUNTER))]);
const COUNTER: Type = Struct(&[f("value", Quantity).always()]);

const DEVICE: Type = Struct(&[
    f("name", Str).always(),
    f("attributes", Map(&ATTRIBUTE)),
    f("capacity", Map(&CAPACITY)),
    f("consumesCounters", List(&CONSUMPTION, Atomic)).since(V1_33).gate(Gate::PartitionableDevices),
    f("nodeName", StrPtr).since(V1_33).gate(Gate::PartitionableDevices),
    f("nodeSelector", NODE_SELECTOR).since(V1_33).gate(Gate::PartitionableDevices),
    f("allNodes", BoolPtr).since(V1_33).gate(Gate::PartitionableDevices),
    f("taints", List(&TAINT, Atomic)).since(V1_33).gate(Gate::DeviceTaints),
    f("bindsToNode", BoolPtr).since(V1_34).gate(Gate::DeviceBindingConditions),
    f("bindingConditions", STRINGS).since(V1_34).gate(Gate::DeviceBindingConditions),
    f("bindingFailureConditions", STRINGS).since(V1_34).gate(Gate::DeviceBindingConditions),
    f("allowMultipleAllocations", BoolPtr).since(V1_34).gate(Gate::ConsumableCapacity),
    // The alpha field was renamed; neither release understands the other's name.
    f("nodeAllocatableResourceMappings", Map(&Raw)).since(V1_36).until(V1_36).gate(Gate::NodeAllocatableResources),
    f("nodeAllocatableResources", Map(&Raw)).since(V1_37).gate(Gate::NodeAllocatableResources),
]);

const CONSUMPTION: Type = Struct(&[
    f("counterSet", Str).always(),
    f("counters", Map(&COUNTER)),
    f("compatibilityGroups", STRINGS).since(V1_37).gate(Gate::DeviceCompatibilityGroups),
]);

const ATTRIBUTE: Type = Struct(&[
    f("int", IntPtr),
    f("bool", BoolPtr),
    f("string", StrPtr),
    f("version", StrPtr),
    f("ints", List(&IntPtr, Atomic)).since(V1_36).gate(Gate::ListTypeAttributes),
    f("bools", List(&BoolPtr, Atomic)).since(V1_36).gate(Gate::ListTypeAttributes),
    f("strings", List(&StrPtr, Atomic)).since(V1_36).gate(Gate::ListTypeAttributes),
    f("versions", List(&StrPtr, Atomic)).since(V1_36).gate(Gate::ListTypeAttributes),
]);

const CAPACITY: Type = Struct(&[
    f("value", Quantity).always(),
    f(
        "requestPolicy",
        Struct(&[
            f("default", Quantity),
            f("validValues", List(&Quantity, Atomic)),
            f("validRange", Struct(&[f("min", Quantity), f("max", Quantity), f("step", Quantity)])),
        ]),
    )
    .since(V1_34)
    .gate(Gate::ConsumableCapacity),
]);

const TAINT: Type = Struct(&[f("key", Str).always(), f("value", Str), f("effect", Str).always(), f("timeAdded", Time)]);

pub(super) const DEVICE_CLASS: Type = Struct(&[
    API_VERSION,
    KIND,
    META,
    f(
        "spec",
        Struct(&[
            f("selectors", List(&SELECTOR, Atomic)),
            f("config", List(&Struct(&[OPAQUE]), Atomic)),
            f("extendedResourceName", StrPtr).since(V1_34).gate(Gate::ExtendedResource),
        ]),
    )
    .always(),
]);

pub(super) const CLAIM: Type = Struct(&[
    API_VERSION,
    KIND,
    META,
    f("spec", CLAIM_SPEC).always(),
    f(
        "status",
        Struct(&[
            f("allocation", ALLOCATION),
            f(
                "reservedFor",
                List(
                    &Struct(&[
                        f("apiGroup", Str),
                        f("resource", Str).always(),
                        f("name", Str).always(),
                        f("uid", Str).always(),
                    ]),
                    Keyed(&["uid"]),
                ),
            )
            .patch_key("uid"),
            f("devices", List(&DEVICE_STATUS, Keyed(&["driver", "device", "pool", "shareID"])))
                .gate(Gate::ResourceClaimDeviceStatus),
        ]),
    )
    .always(),
]);

pub(super) const CLAIM_TEMPLATE: Type =
    Struct(&[API_VERSION, KIND, META, f("spec", Struct(&[META, f("spec", CLAIM_SPEC).always()])).always()]);

const CLAIM_SPEC: Type = Struct(&[f(
    "devices",
    Struct(&[
        f("requests", List(&REQUEST, Atomic)),
        f(
            "constraints",
            List(
                &Struct(&[
                    f("requests", STRINGS),
                    f("matchAttribute", StrPtr),
                    f("distinctAttribute", StrPtr).since(V1_34).gate(Gate::ConsumableCapacity),
                ]),
                Atomic,
            ),
        ),
        f("config", List(&Struct(&[f("requests", STRINGS), OPAQUE]), Atomic)),
    ]),
)
.always()]);

const REQUEST: Type = Struct(&[
    f("name", Str).always(),
    f("exactly", Struct(&EXACTLY)),
    f("firstAvailable", List(&SUB_REQUEST, Atomic)).since(V1_33).gate(Gate::PrioritizedList),
]);

const REQUEST_CAPACITY: Field =
    f("capacity", Struct(&[f("requests", Map(&Quantity))])).since(V1_34).gate(Gate::ConsumableCapacity);
const TOLERATIONS: Field = f("tolerations", List(&TOLERATION, Atomic)).since(V1_33).gate(Gate::DeviceTaints);
const DERIVED: Field =
    f("derivedAttributes", List(&Struct(&[f("name", Str).always(), f("expression", Str).always()]), Atomic))
        .since(V1_37)
        .gate(Gate::DerivedAttributes);

/// What one request asks for. v1beta1 has these fields in the request itself.
const EXACTLY: [Field; 8] = [
    f("deviceClassName", Str).always(),
    f("selectors", List(&SELECTOR, Atomic)),
    f("allocationMode", Str),
    f("count", Int),
    f("adminAccess", BoolPtr).gate(Gate::AdminAccess),
    TOLERATIONS,
    REQUEST_CAPACITY,
    DERIVED,
];

const SUB_REQUEST: Type = Struct(&[
    f("name", Str).always(),
    f("deviceClassName", Str).always(),
    f("selectors", List(&SELECTOR, Atomic)),
    f("allocationMode", Str),
    f("count", Int),
    TOLERATIONS,
    REQUEST_CAPACITY,
    DERIVED,
]);

const SELECTOR: Type = Struct(&[f("cel", Struct(&[f("expression", Str).always()]))]);

const TOLERATION: Type =
    Struct(&[f("key", Str), f("operator", Str), f("value", Str), f("effect", Str), f("tolerationSeconds", IntPtr)]);

const OPAQUE: Field = f("opaque", Struct(&[f("driver", Str).always(), f("parameters", Raw).always()]));

const ALLOCATION: Type = Struct(&[
    f(
        "devices",
        Struct(&[
            f("results", List(&RESULT, Atomic)),
            f("config", List(&Struct(&[f("source", Str).always(), f("requests", STRINGS), OPAQUE]), Atomic)),
        ]),
    )
    .always(),
    f("nodeSelector", NODE_SELECTOR),
    f("allocationTimestamp", Time).since(V1_34).gate(Gate::DeviceBindingConditions),
]);

const RESULT: Type = Struct(&[
    f("request", Str).always(),
    f("driver", Str).always(),
    f("pool", Str).always(),
    f("device", Str).always(),
    f("adminAccess", BoolPtr).gate(Gate::AdminAccess),
    TOLERATIONS,
    f("bindingConditions", STRINGS).since(V1_34).gate(Gate::DeviceBindingConditions),
    f("bindingFailureConditions", STRINGS).since(V1_34).gate(Gate::DeviceBindingConditions),
    f("shareID", StrPtr).since(V1_34).gate(Gate::ConsumableCapacity),
    f("consumedCapacity", Map(&Quantity)).since(V1_34).gate(Gate::ConsumableCapacity),
    f("skipNodeOperations", List(&Str, Set)).since(V1_37).gate(Gate::OptionalNodeOperations),
]);

const DEVICE_STATUS: Type = Struct(&[
    f("driver", Str).always(),
    f("pool", Str).always(),
    f("device", Str).always(),
    f("shareID", StrPtr).since(V1_34).gate(Gate::ConsumableCapacity),
    // Not `omitempty`: a status without conditions reads back with `conditions: null`.
    f("conditions", List(&CONDITION, Keyed(&["type"]))).always(),
    f("data", Raw),
    f("networkData", Struct(&[f("interfaceName", Str), f("ips", STRINGS), f("hardwareAddress", Str)])),
]);
