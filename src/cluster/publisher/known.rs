//! What is known of the API server: which extras it keeps.
//!
//! ```text
//!             a dry run, the answer to a write
//!  not known ─┬──▶ kept: written, until a watch ends
//!      ▲      └──▶ lost: the pool goes without
//!      │                   │
//!      └───────────────────┘ another version of the API · a watch that ended early, after ten minutes · after an hour
//! ```
//!
//! Nothing of the API says which gates are on, and they change only when a server starts anew, which ends its watches.
//! Some servers, and what stands before them, end watches every minute; that is why what was lost is not asked for at
//! once, nor at every such end. Asking again costs one dry run, and no write as long as the answer is the same: so
//! nothing flaps. Where dry runs are refused, only writes could ask, and the node's devices would come and go: there a loss
//! stands until the version of the API changes or the plugin is started anew.

use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::clock::Clock;
use crate::cluster::request::RequestError;
use crate::cluster::version::Version;
use crate::device::attribute;
use crate::slice::Slice;
use crate::slice::fallback::Extras;

/// How long a loss stands when watches end early: the server may have been started anew.
const AFTER_END: Duration = Duration::from_secs(10 * 60);

/// How long it stands in any case, but for the time until the next list: a few minutes, or two hours where watches are cut
/// every minute.
const AT_MOST: Duration = Duration::from_secs(60 * 60);

/// What the server was found to keep, and what not.
#[derive(Debug)]
pub(super) struct Known {
    clock: Clock,
    kept: Extras,
    lost: Extras,
    /// When it was last found to lose something.
    lost_at: Option<Instant>,
    /// Whether it refuses dry runs.
    refuses_dry_runs: bool,
    /// The version of the API that this was found with.
    version: Option<Version>,
}

// === impl Known ===

impl Known {
    /// Nothing.
    pub(super) fn new(clock: Clock) -> Self {
        let (kept, lost) = (Extras::NONE, Extras::NONE);
        Self { clock, kept, lost, lost_at: None, refuses_dry_runs: false, version: None }
    }

    /// What the server does not keep.
    pub(super) fn lost(&self) -> Extras {
        self.lost
    }

    /// Whether the server is to be asked before it gets a slice.
    pub(super) fn is_new(&self, slice: &Slice) -> bool {
        (Extras::of(slice) & !self.kept) != Extras::NONE
    }

    /// Takes note of what the server made of a slice. True if it lost something.
    pub(super) fn answered(&mut self, slice: &Slice, lost: Extras) -> bool {
        self.kept = self.kept | Extras::of(slice);
        self.loses(lost)
    }

    /// Takes note of what it does not keep. True if that is something.
    pub(super) fn loses(&mut self, lost: Extras) -> bool {
        self.kept = self.kept & !lost;
        self.lost = self.lost | lost;
        let is_loss = lost != Extras::NONE;
        if is_loss {
            self.lost_at = Some(Instant::now());
        }
        is_loss
    }

    /// Takes note that a dry run was refused for being one.
    pub(super) fn dry_run_refused(&mut self) {
        self.refuses_dry_runs = true;
    }

    /// With another version of the API it is another server.
    pub(super) fn speaks(&mut self, version: Version) {
        if self.version != Some(version) {
            *self = Self { version: Some(version), ..Self::new(self.clock) };
        }
    }

    /// A watch has ended as it should, maybe just when the server did.
    pub(super) fn watch_expired(&mut self) {
        self.kept = Extras::NONE;
        self.forget_loss_after(AT_MOST);
    }

    /// A watch has ended early.
    pub(super) fn watch_ended(&mut self) {
        self.kept = Extras::NONE;
        self.forget_loss_after(AFTER_END);
    }

    fn forget_loss_after(&mut self, age: Duration) {
        if !self.refuses_dry_runs && self.lost_at.is_some_and(|at| at.elapsed() >= self.clock.real(age)) {
            (self.lost, self.lost_at) = (Extras::NONE, None);
        }
    }
}

/// What of a slice's extras the server refuses it for. It names the fields: without its list an attribute has no value, a
/// release may know fewer effects of taints, and 1.33 and 1.34 want counters where later ones forbid them.
pub(super) fn refused(slice: &Slice, error: &RequestError) -> Extras {
    let RequestError::Refused(refusal) = error else { return Extras::NONE };
    let named = |field: &str| error.is_unfit() && refusal.message.contains(field);
    let attributes = slice.devices.iter().flat_map(|device| &device.attributes);
    let mut lists = attributes.filter(|(_, value)| attribute::Value::is_list(value));
    let named = Extras {
        lists: lists.any(|(name, _)| named(&format!(".attributes[{name}]"))),
        counters: named(".consumesCounters") || named(".sharedCounters"),
        taints: named(".taints"),
    };
    named & Extras::of(slice)
}
