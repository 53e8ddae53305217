//! From what the node offers to what must be written: pure.
//!
//! ```text
//!  slice::Pool ──▶ desired: one object a slice ──┐
//!                                                ├──▶ changes: delete, update, create, in this order
//!  existing slices of driver and node ───────────┘
//! ```
//!
//! All slices of a pool carry its generation and their number. The scheduler takes only the slices of the highest
//! generation, and nothing at all from a pool that is not complete. From that follow the rules of [`changes`]:
//!
//! * A slice's name begins with its index, so that slices keep their order (it is the order of preference) and are
//!   found again.
//! * As long as one update does it, the generation stays, and the pool is complete at every moment. So it does when slices
//!   are only missing: those that are there say that the pool is not complete. More than that is a new generation in
//!   every slice.
//! * Obsolete slices go first, so that no device is offered twice.

mod canonical;
mod lost;
mod object;
mod quantity;
mod started;
mod taint_times;

use std::collections::{BTreeMap, BTreeSet};

pub use lost::lost;
use serde_json::{Value, json};
pub use started::Started;

use self::taint_times::TaintTimes;
use crate::slice::{Pool, Slice};

/// The width of the index in names. More slices than this counts need more digits and still sort behind.
const INDEX_DIGITS: usize = 5;

/// Whose slices they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The driver's name.
    pub driver: String,
    /// The node's name.
    pub node: String,
    /// The UID of the Node object. The cluster deletes slices whose owner is gone.
    pub node_uid: String,
}

/// One write. Objects have the shape of `v1`.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Removes a slice, if it still is the one that was looked at.
    Delete {
        /// Its name.
        name: String,
        /// `DeleteOptions` with UID and resource version as preconditions.
        options: Value,
    },
    /// Replaces a slice, if it still is the one that was looked at.
    Update {
        /// Its index in the pool.
        index: usize,
        /// Its name.
        name: String,
        /// The whole object.
        object: Value,
    },
    /// Adds a slice.
    Create {
        /// Its index in the pool.
        index: usize,
        /// The whole object, with `generateName`.
        object: Value,
    },
}

/// What it takes to get from the existing slices to the desired ones.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The pool's generation once all changes are made.
    pub generation: u64,
    /// In the order in which to make them; empty when there is nothing to do.
    pub changes: Vec<Change>,
}

/// What the server makes of our slices when it does not store them as sent, by index: an older server drops fields that
/// it does not know, and a feature that is off loses its fields. What it stored then counts as what we want, or we
/// would write it for ever.
#[derive(Debug, Clone, Default)]
pub struct Adopted {
    forms: BTreeMap<usize, Form>,
}

#[derive(Debug, Clone, PartialEq)]
struct Form {
    sent: Value,
    stored: Value,
}

/// A slice that exists, as far as the rules look at it.
struct Existing<'a> {
    object: &'a Value,
    name: &'a str,
    generation: u64,
    count: u64,
}

/// The slices of a pool, without the generation.
pub fn desired(pool: &Pool, owner: &Owner) -> Vec<Value> {
    let object = |(index, slice): (usize, &Slice)| {
        let mut spec = object::content(slice, &owner.driver);
        spec.insert("driver".into(), owner.driver.as_str().into());
        spec.insert("nodeName".into(), owner.node.as_str().into());
        spec.insert("pool".into(), json!({ "name": pool.name, "resourceSliceCount": pool.slices.len() }));
        json!({
            "metadata": {
                "generateName": format!("{index:0INDEX_DIGITS$x}-{}-{}-", owner.driver, owner.node),
                "ownerReferences": [owner.reference()],
            },
            "spec": spec,
        })
    };
    pool.slices.iter().enumerate().map(object).collect()
}

/// Compares the slices of this driver and node that exist with those that should.
///
/// `existing` are objects as the server returned them, in the shape of `v1`, in any order; `desired` comes from
/// [`desired`].
pub fn changes(existing: &[Value], desired: &[Value], adopted: &Adopted) -> Plan {
    let existing: Vec<_> = existing.iter().filter_map(Existing::new).collect();
    let pool = desired.first().map(pool_name);
    let of_pool = |slice: &&Existing<'_>| Some(pool_name(slice.object)) == pool;
    let newest = existing.iter().filter(of_pool).map(|slice| slice.generation).max().unwrap_or_default();

    let mut current: BTreeMap<usize, &Existing<'_>> = BTreeMap::new();
    let mut obsolete = Vec::new();
    for slice in &existing {
        match slice.index().filter(|index| *index < desired.len()) {
            Some(index) if of_pool(&slice) && slice.generation == newest && !current.contains_key(&index) => {
                current.insert(index, slice);
            }
            _ => obsolete.push(slice),
        }
    }

    let differs = |(index, wanted): (usize, &Value)| {
        let Some(slice) = current.get(&index) else { return true };
        slice.count != count(wanted) || !adopted.same_content(index, wanted, slice.object)
    };
    let differing: BTreeSet<usize> =
        desired.iter().enumerate().filter(|entry| differs(*entry)).map(|(index, _)| index).collect();
    let only_missing = !current.is_empty() && differing.iter().all(|index| !current.contains_key(index));
    let same_generation = only_missing || (current.len() == desired.len() && differing.len() <= 1);
    let generation = if same_generation { newest } else { after(newest) };

    let times = TaintTimes::of(existing.iter().map(|slice| slice.object));
    let next = |wanted: &Value| {
        let mut object = with_generation(wanted, generation);
        times.keep(&mut object);
        object
    };
    let mut updates = Vec::new();
    let mut creates = Vec::new();
    for (index, wanted) in desired.iter().enumerate() {
        match current.get(&index) {
            Some(slice) => {
                if !same_generation || differing.contains(&index) || !slice.is_owned_as(wanted) {
                    updates.push(slice.update(index, next(wanted)));
                }
            }
            None => creates.push(Change::Create { index, object: next(wanted) }),
        }
    }
    let deletes = obsolete.into_iter().map(Existing::delete);
    Plan { generation, changes: deletes.chain(updates).chain(creates).collect() }
}

// === impl Owner ===

impl Owner {
    fn reference(&self) -> Value {
        json!({ "apiVersion": "v1", "kind": "Node", "name": self.node, "uid": self.node_uid, "controller": true })
    }
}

// === impl Change ===

impl Change {
    /// The index of the slice that is written.
    pub fn index(&self) -> Option<usize> {
        match self {
            Self::Delete { .. } => None,
            Self::Update { index, .. } | Self::Create { index, .. } => Some(*index),
        }
    }

    /// The slice of a pool that is written.
    pub fn slice_of<'a>(&self, pool: &'a Pool) -> Option<&'a Slice> {
        pool.slices.get(self.index()?)
    }

    /// What is sent.
    pub fn body(&self) -> &Value {
        match self {
            Self::Delete { options: body, .. }
            | Self::Update { object: body, .. }
            | Self::Create { object: body, .. } => body,
        }
    }
}

// === impl Adopted ===

impl Adopted {
    /// Takes note of what the server made of a slice.
    pub fn compare(&mut self, index: usize, sent: &Value, stored: &Value) {
        let form = Form { sent: canonical::content(&sent["spec"]), stored: canonical::content(&stored["spec"]) };
        if form.sent == form.stored {
            self.forms.remove(&index);
        } else {
            self.forms.insert(index, form);
        }
    }

    /// The paths that it does not store as sent, of all slices: `devices.taints`.
    pub fn altered(&self) -> BTreeSet<String> {
        self.forms.values().flat_map(|form| canonical::differences(&form.sent, &form.stored)).collect()
    }

    /// Forgets what the server made of slices that there are no more.
    pub fn keep(&mut self, slices: usize) {
        self.forms.retain(|index, _| *index < slices);
    }

    /// How many slices it does not store as sent.
    pub fn count(&self) -> usize {
        self.forms.len()
    }

    fn same_content(&self, index: usize, wanted: &Value, existing: &Value) -> bool {
        let wanted = canonical::content(&wanted["spec"]);
        let existing = canonical::content(&existing["spec"]);
        wanted == existing || self.forms.get(&index).is_some_and(|form| form.sent == wanted && form.stored == existing)
    }
}

// === impl Existing ===

impl<'a> Existing<'a> {
    /// `None` for what has no name: it cannot be addressed, so it cannot be changed.
    fn new(object: &'a Value) -> Option<Self> {
        let pool = &object["spec"]["pool"];
        Some(Self {
            object,
            name: object["metadata"]["name"].as_str()?,
            generation: pool["generation"].as_u64().unwrap_or_default(),
            count: pool["resourceSliceCount"].as_u64().unwrap_or_default(),
        })
    }

    /// The index that the name begins with.
    fn index(&self) -> Option<usize> {
        let (index, _) = self.name.split_once('-')?;
        if index.len() < INDEX_DIGITS || !index.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f')) {
            return None;
        }
        usize::from_str_radix(index, 16).ok()
    }

    fn is_owned_as(&self, wanted: &Value) -> bool {
        self.object["metadata"]["ownerReferences"] == wanted["metadata"]["ownerReferences"]
    }

    fn delete(&self) -> Change {
        let metadata = &self.object["metadata"];
        let preconditions = json!({ "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"] });
        let options = json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions });
        Change::Delete { name: self.name.to_owned(), options }
    }

    /// Labels and annotations that others have set stay.
    fn update(&self, index: usize, mut object: Value) -> Change {
        let mut metadata = self.object["metadata"].as_object().cloned().unwrap_or_default();
        metadata.remove("managedFields");
        metadata.insert("ownerReferences".into(), object["metadata"]["ownerReferences"].take());
        object["metadata"] = metadata.into();
        Change::Update { index, name: self.name.to_owned(), object }
    }
}

/// The next generation. It may start again, as long as all slices follow: the API has signed 64-bit numbers, and
/// somebody may have written the largest.
fn after(generation: u64) -> u64 {
    generation.checked_add(1).filter(|next| i64::try_from(*next).is_ok()).unwrap_or(1)
}

fn with_generation(wanted: &Value, generation: u64) -> Value {
    let mut object = wanted.clone();
    object["spec"]["pool"]["generation"] = generation.into();
    object
}

fn pool_name(slice: &Value) -> &Value {
    &slice["spec"]["pool"]["name"]
}

fn count(slice: &Value) -> u64 {
    slice["spec"]["pool"]["resourceSliceCount"].as_u64().unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests;
