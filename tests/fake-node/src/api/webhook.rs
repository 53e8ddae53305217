//! Mutating admission webhooks: what others have the server do to an object between the request and its rules.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use super::kind::Kind;

/// Changes an object, in the shape of v1.
type Mutation = Box<dyn Fn(&mut Value) + Send + Sync>;

/// All that are installed, in the order in which they are called.
#[derive(Default)]
pub(super) struct Webhooks(Mutex<Vec<(Kind, Mutation)>>);

// === impl Webhooks ===

impl Webhooks {
    pub(super) fn install(&self, kind: Kind, mutation: Mutation) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((kind, mutation));
    }

    /// Called for objects that are created and for those that replace another.
    pub(super) fn call(&self, kind: Kind, object: &mut Value) {
        let webhooks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        webhooks.iter().filter(|(of, _)| *of == kind).for_each(|(_, mutation)| mutation(object));
    }
}

impl fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Webhooks")
    }
}
