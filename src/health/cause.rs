//! What can be wrong with a GPU, and how each cause is told: taint, words, metric.
//!
//! `docs/health.md` is made from the table here and that of the [XIDs](super::xid).

use std::borrow::Cow;
use std::fmt;

use super::policy::Response;
use super::xid::{GROUPS, Xid};

/// One thing that is wrong. Two of the same cause are one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// What the driver reported.
    Xid(Xid),
    /// What was found otherwise.
    Kind(Kind),
}

/// What can be wrong beside XIDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each has its Facts")]
pub enum Kind {
    Lost,
    Recovery(Action),
    RowRemapFailure,
    RowRemapPending,
    Poison,
    Unavailable,
    FabricUnhealthy,
    FabricLimited,
    LinksDown,
    Ecc,
    Silent,
    Unwatched,
}

/// What the driver says is to be done before the GPU can be used again: `nvmlDeviceGpuRecoveryAction_t`, never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Action(u32);

/// What there is to say of a kind of cause. All texts are ASCII.
#[derive(Debug, PartialEq, Eq)]
pub struct Facts {
    /// What operators and metrics know it by: a DNS label.
    pub name: &'static str,
    /// The name of its taint, in the driver's domain.
    pub taint: &'static str,
    /// The value of its taint: the label's value, or what it is made of.
    pub value: &'static str,
    /// What is wrong, as a clause.
    pub about: &'static str,
    /// What is done unless the operator says otherwise.
    pub response: Response,
    /// What ends it, for people.
    pub cleared: &'static str,
    /// What an operator does.
    pub advice: &'static str,
}

/// The taint of XIDs: its value is the number, as in NVIDIA's driver.
const XID_TAINT: &str = "xid";

static LOST: Facts = Facts {
    name: "gpu-lost",
    taint: "gpu-lost",
    value: "",
    about: "the GPU is lost: it cannot be reached over the bus",
    response: Response::NoSchedule,
    cleared: "the GPU answers",
    advice: "Restart the node. If it comes again: power, cooling, seating of the board.",
};

static RECOVERY: Facts = Facts {
    name: "recovery-action",
    taint: "recovery-action",
    value: "the action",
    about: "the driver asks for a recovery action",
    response: Response::NoSchedule,
    cleared: "the driver asks for none",
    advice: "Drain the GPU and do what the value says: `reset` and `bus-reset` the GPU, `reboot` the node, `drain-p2p` the \
             GPUs that are linked to it.",
};

static ROW_REMAP_FAILURE: Facts = Facts {
    name: "row-remap-failure",
    taint: "row-remap",
    value: "failure",
    about: "bad memory could not be replaced by spare rows",
    response: Response::NoSchedule,
    cleared: "the GPU reports none",
    advice: "Have the board replaced.",
};

static ROW_REMAP_PENDING: Facts = Facts {
    name: "row-remap-pending",
    taint: "row-remap",
    value: "pending",
    about: "bad memory will be replaced by spare rows at the next reset",
    response: Response::Warn,
    cleared: "the GPU reports none",
    advice: "Reset the GPU at the next opportunity.",
};

static POISON: Facts = Facts {
    name: "poison",
    taint: "poison",
    value: "",
    about: "damaged data was used and could not be contained",
    response: Response::NoSchedule,
    cleared: "the driver says that no recovery action is needed, or the GPU was away",
    advice: "Drain the GPU and reset it.",
};

static UNAVAILABLE: Facts = Facts {
    name: "gpu-unavailable",
    taint: "gpu-unavailable",
    value: "",
    about: "the driver reported that the GPU is not available",
    response: Response::NoSchedule,
    cleared: "the driver says that no recovery action is needed, or the GPU was away",
    advice: "Drain the GPU and reset it. If that fails, restart the node.",
};

static FABRIC_UNHEALTHY: Facts = Facts {
    name: "fabric-unhealthy",
    taint: "fabric",
    value: "unhealthy",
    about: "the NVLink fabric is unhealthy for this GPU",
    response: Response::NoSchedule,
    cleared: "the fabric is healthy",
    advice: "Look at the fabric manager; reset the GPU or restart the node.",
};

static FABRIC_LIMITED: Facts = Facts {
    name: "fabric-limited",
    taint: "fabric",
    value: "limited",
    about: "the NVLink fabric has less capacity for this GPU than it should",
    response: Response::Warn,
    cleared: "the fabric has all of it",
    advice: "Look at the fabric manager.",
};

static LINKS_DOWN: Facts = Facts {
    name: "nvlink-down",
    taint: "nvlink",
    value: "down",
    about: "NVLinks that were up are down",
    response: Response::Warn,
    cleared: "the links are up",
    advice: "Look at `nvidia-smi nvlink --status`; reset the GPU. The NVLink attributes show what is left.",
};

static ECC: Facts = Facts {
    name: "ecc",
    taint: "ecc",
    value: "uncorrectable",
    about: "memory errors could not be corrected since the driver was loaded",
    response: Response::Warn,
    cleared: "the count of such errors is zero again, as after a reset",
    advice: "Nothing by itself: `recovery-action` and `row-remap` say what is due.",
};

static SILENT: Facts = Facts {
    name: "silent",
    taint: "unmonitored",
    value: "silent",
    about: "NVML does not answer for this GPU",
    response: Response::Warn,
    cleared: "NVML answers",
    advice: "Look at the kernel's log. If `nvidia-smi` hangs as well, restart the node.",
};

static UNWATCHED: Facts = Facts {
    name: "unmonitored",
    taint: "unmonitored",
    value: "",
    about: "the driver reports no events for this GPU; it is only probed",
    response: Response::Warn,
    cleared: "events can be registered",
    advice: "Nothing where GPU or driver has no events, as in some virtual machines. The log says why.",
};

/// All of them, in the order of [`Kind`].
pub static KINDS: [&Facts; 12] = [
    &LOST,
    &RECOVERY,
    &ROW_REMAP_FAILURE,
    &ROW_REMAP_PENDING,
    &POISON,
    &UNAVAILABLE,
    &FABRIC_UNHEALTHY,
    &FABRIC_LIMITED,
    &LINKS_DOWN,
    &ECC,
    &SILENT,
    &UNWATCHED,
];

// === impl Cause ===

impl Cause {
    /// The name of its taint without the domain, and its value: a label's value.
    pub fn taint(self) -> (&'static str, Cow<'static, str>) {
        match self {
            Self::Xid(xid) => (XID_TAINT, xid.to_string().into()),
            Self::Kind(Kind::Recovery(action)) => (RECOVERY.taint, action.name()),
            Self::Kind(kind) => (kind.facts().taint, kind.facts().value.into()),
        }
    }

    /// What metrics know it by. There are no more of them than rows in the tables: XIDs that nobody knows share one.
    pub fn label(self) -> Cow<'static, str> {
        match self {
            Self::Xid(xid) if GROUPS.iter().any(|group| group.numbers.contains(&xid.number())) => {
                format!("xid-{xid}").into()
            }
            Self::Xid(_) => "xid-other".into(),
            Self::Kind(kind) => kind.facts().name.into(),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xid(xid) => write!(f, "XID {xid}: {}", xid.group().about),
            Self::Kind(Kind::Recovery(action)) => write!(f, "{}: {}", RECOVERY.about, action.name()),
            Self::Kind(kind) => f.write_str(kind.facts().about),
        }
    }
}

impl From<Kind> for Cause {
    fn from(kind: Kind) -> Self {
        Self::Kind(kind)
    }
}

// === impl Kind ===

impl Kind {
    /// What there is to say of it.
    pub fn facts(self) -> &'static Facts {
        match self {
            Self::Lost => &LOST,
            Self::Recovery(_) => &RECOVERY,
            Self::RowRemapFailure => &ROW_REMAP_FAILURE,
            Self::RowRemapPending => &ROW_REMAP_PENDING,
            Self::Poison => &POISON,
            Self::Unavailable => &UNAVAILABLE,
            Self::FabricUnhealthy => &FABRIC_UNHEALTHY,
            Self::FabricLimited => &FABRIC_LIMITED,
            Self::LinksDown => &LINKS_DOWN,
            Self::Ecc => &ECC,
            Self::Silent => &SILENT,
            Self::Unwatched => &UNWATCHED,
        }
    }
}

// === impl Action ===

impl Action {
    /// From the number that NVML reports. `None` for 0: no action is needed.
    pub fn new(number: u32) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    /// A label's value.
    pub fn name(self) -> Cow<'static, str> {
        match self.0 {
            1 => "reset".into(),
            2 => "reboot".into(),
            3 => "drain-p2p".into(),
            4 => "drain-and-reset".into(),
            5 => "recover-imex-domain".into(),
            6 => "bus-reset".into(),
            7 => "system-reboot".into(),
            number => format!("action-{number}").into(),
        }
    }
}
