//! Metadata, and the core types as far as something here depends on their shape.

use super::{Field, Merge, Type};
use Merge::{Atomic, Keyed, Set};
use Type::{AtomicStruct, Bool, BoolPtr, Int, IntPtr, List, Map, MicroTime, Open, Raw, Str, StrPtr, Struct, Time};

const fn f(name: &'static str, ty: Type) -> Field {
    Field::new(name, ty)
}

/// Half of `meta/v1 TypeMeta`.
pub(super) const API_VERSION: Field = f("apiVersion", Str);
/// The other half.
pub(super) const KIND: Field = f("kind", Str);

/// `meta/v1 ObjectMeta`
pub(super) const META: Field = f(
    "metadata",
    Struct(&[
        f("name", Str),
        f("generateName", Str),
        f("namespace", Str),
        f("selfLink", Str),
        f("uid", Str),
        f("resourceVersion", Str),
        f("generation", Int),
        f("creationTimestamp", Time),
        f("deletionTimestamp", Time),
        f("deletionGracePeriodSeconds", IntPtr),
        f("labels", Map(&StrPtr)),
        f("annotations", Map(&StrPtr)),
        f(
            "ownerReferences",
            List(
                &AtomicStruct(&[
                    f("apiVersion", Str).always(),
                    f("kind", Str).always(),
                    f("name", Str).always(),
                    f("uid", Str).always(),
                    f("controller", BoolPtr),
                    f("blockOwnerDeletion", BoolPtr),
                ]),
                Keyed(&["uid"]),
            ),
        )
        .patch_key("uid"),
        f("finalizers", List(&Str, Set)).patch_key(""),
        f("managedFields", List(&Raw, Atomic)),
    ]),
);

/// `core/v1 NodeSelector`
pub(super) const NODE_SELECTOR: Type = AtomicStruct(&[f(
    "nodeSelectorTerms",
    List(
        &AtomicStruct(&[
            f("matchExpressions", List(&NODE_REQUIREMENT, Atomic)),
            f("matchFields", List(&NODE_REQUIREMENT, Atomic)),
        ]),
        Atomic,
    ),
)
.always()]);

const NODE_REQUIREMENT: Type =
    Struct(&[f("key", Str).always(), f("operator", Str).always(), f("values", List(&StrPtr, Atomic))]);

/// `meta/v1 Condition`
pub(super) const CONDITION: Type = Struct(&[
    f("type", Str).always(),
    f("status", Str).always(),
    f("observedGeneration", Int),
    f("lastTransitionTime", Time).always(),
    f("reason", Str).always(),
    f("message", Str).always(),
]);

/// Conditions of core objects have fields of their own beside these.
const CORE_CONDITIONS: Field =
    f("conditions", List(&Open(&[f("type", Str).always(), f("status", Str).always()]), Keyed(&["type"])))
        .patch_key("type");

pub(super) const NAMESPACE: Type = Struct(&[
    API_VERSION,
    KIND,
    META,
    f("spec", Struct(&[f("finalizers", List(&Str, Atomic))])).always(),
    f("status", Struct(&[f("phase", Str), CORE_CONDITIONS])).always(),
]);

pub(super) const NODE: Type = Struct(&[
    API_VERSION,
    KIND,
    META,
    f(
        "spec",
        Open(&[
            f("podCIDR", Str),
            f("podCIDRs", List(&Str, Set)).patch_key(""),
            f("providerID", Str),
            f("unschedulable", Bool),
            f(
                "taints",
                List(
                    &Struct(&[
                        f("key", Str).always(),
                        f("value", Str),
                        f("effect", Str).always(),
                        f("timeAdded", Time),
                    ]),
                    Atomic,
                ),
            ),
        ]),
    )
    .always(),
    f(
        "status",
        Open(&[
            CORE_CONDITIONS,
            f("addresses", List(&Open(&[f("type", Str).always(), f("address", Str).always()]), Keyed(&["type"])))
                .patch_key("type"),
            f("capacity", Map(&Type::Quantity)),
            f("allocatable", Map(&Type::Quantity)),
        ]),
    )
    .always(),
]);

const NAMED: Type = Open(&[f("name", Str).always()]);
const CONTAINER: Type = Open(&[
    f("name", Str).always(),
    f("image", Str),
    f("env", List(&NAMED, Keyed(&["name"]))).patch_key("name"),
    f("ports", List(&Open(&[f("containerPort", Int)]), Keyed(&["containerPort", "protocol"])))
        .patch_key("containerPort"),
    f("volumeMounts", List(&Open(&[f("mountPath", Str).always()]), Keyed(&["mountPath"]))).patch_key("mountPath"),
    f("resources", Open(&[f("claims", List(&NAMED, Keyed(&["name", "request"])))])),
]);

pub(super) const POD: Type = Struct(&[
    API_VERSION,
    KIND,
    META,
    f(
        "spec",
        Open(&[
            f("nodeName", Str),
            f("containers", List(&CONTAINER, Keyed(&["name"]))).patch_key("name").always(),
            f("initContainers", List(&CONTAINER, Keyed(&["name"]))).patch_key("name"),
            f("volumes", List(&NAMED, Keyed(&["name"]))).patch_key("name"),
            f("imagePullSecrets", List(&NAMED, Keyed(&["name"]))).patch_key("name"),
            f("resourceClaims", List(&NAMED, Keyed(&["name"]))).patch_key("name"),
            f("tolerations", List(&Raw, Atomic)),
        ]),
    )
    .always(),
    f(
        "status",
        Open(&[
            f("phase", Str),
            CORE_CONDITIONS,
            f("resourceClaimStatuses", List(&NAMED, Keyed(&["name"]))).patch_key("name"),
        ]),
    )
    .always(),
]);

const OBJECT_REFERENCE: Type = AtomicStruct(&[
    f("kind", Str),
    f("namespace", Str),
    f("name", Str),
    f("uid", Str),
    f("apiVersion", Str),
    f("resourceVersion", Str),
    f("fieldPath", Str),
]);

/// v1 Event. events.k8s.io/v1 has the same fields under other names.
pub(super) const EVENT: Type = Struct(&[
    API_VERSION,
    KIND,
    META,
    f("involvedObject", OBJECT_REFERENCE).always(),
    f("reason", Str),
    f("message", Str),
    f("source", Struct(&[f("component", Str), f("host", Str)])).always(),
    f("firstTimestamp", Time).always(),
    f("lastTimestamp", Time).always(),
    f("count", Int),
    f("type", Str),
    f("eventTime", MicroTime).always(),
    f("series", Struct(&[f("count", Int), f("lastObservedTime", MicroTime)])),
    f("action", Str),
    f("related", OBJECT_REFERENCE),
    f("reportingComponent", Str).always(),
    f("reportingInstance", Str).always(),
]);
