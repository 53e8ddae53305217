//! The objects, their one revision counter, and the history that watches read.
//!
//! ```text
//!  write ─▶ objects[key], revision += 1 ─▶ history ─▶ watches, each from the revision it has seen
//!                                            │
//!                                            └─ compacted: what is older is gone, and asking for it is 410
//! ```

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::watch;

use super::failure::Failure;
use super::kind::Kind;

/// Changes that are kept for watches that fall behind. The real server keeps minutes; this is more than any test makes.
const HISTORY: usize = 16_384;

/// Where an object is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) kind: Kind,
    /// Empty outside namespaces.
    pub(super) namespace: String,
    pub(super) name: String,
}

/// One write.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) revision: u64,
    pub(super) key: Key,
    /// The object before the write.
    pub(super) before: Option<Arc<Value>>,
    /// The object after the write.
    pub(super) after: Option<Arc<Value>>,
}

/// A part of a list, and where it goes on.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) revision: u64,
    pub(super) items: Vec<Arc<Value>>,
    pub(super) next: Option<String>,
    pub(super) remaining: usize,
}

/// All state of the server that requests change.
#[derive(Debug)]
pub(super) struct Store {
    data: Mutex<Data>,
    revised: watch::Sender<u64>,
}

/// The guarded part.
#[derive(Debug, Default)]
pub(super) struct Data {
    objects: BTreeMap<Key, Arc<Value>>,
    revision: u64,
    history: VecDeque<Change>,
    /// Watches and lists that begin before this revision are refused.
    compacted: u64,
    /// Changes up to this revision are no longer in the history: watches that are still there are lost as well.
    trimmed: u64,
    /// The rests of lists that were asked for in parts, by continue token.
    pages: HashMap<String, (u64, Vec<Arc<Value>>)>,
}

// === impl Store ===

impl Store {
    pub(super) fn new() -> Self {
        // A cluster that has just started is never at revision zero; clients give zero a meaning of its own.
        Self { data: Mutex::new(Data { revision: 1, ..Data::default() }), revised: watch::Sender::new(1) }
    }

    /// Locks the data. Writers call [`Self::announce`] when they are done.
    pub(super) fn lock(&self) -> MutexGuard<'_, Data> {
        // A panic while writing leaves a map that is whole: one insert is one step.
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the watches.
    pub(super) fn announce(&self) {
        let revision = self.lock().revision;
        self.revised.send_replace(revision);
    }

    /// Told of every revision.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.revised.subscribe()
    }

    /// Makes every version seen so far too old to begin from. Watches that are running go on.
    pub(super) fn compact(&self) {
        let mut data = self.lock();
        data.revision += 1;
        data.compacted = data.revision;
        data.pages.clear();
    }
}

// === impl Data ===

impl Data {
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Arc<Value>> {
        self.objects.get(key)
    }

    /// Objects of a kind, in all namespaces or one, in the order of their keys.
    pub(super) fn list<'a>(
        &'a self,
        kind: Kind,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<Value>)> {
        let from = Key { kind, namespace: namespace.unwrap_or_default().to_owned(), name: String::new() };
        self.objects.range(from..).take_while(move |(key, _)| {
            key.kind == kind && namespace.is_none_or(|namespace| key.namespace == namespace)
        })
    }

    /// Everything.
    pub(super) fn all(&self) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        self.objects.iter()
    }

    /// Stores an object under a new revision, and returns it with that.
    pub(super) fn put(&mut self, key: Key, mut object: Value) -> Arc<Value> {
        object["metadata"]["resourceVersion"] = json!((self.revision + 1).to_string());
        let object = Arc::new(object);
        let before = self.objects.insert(key.clone(), Arc::clone(&object));
        self.record(key, before, Some(Arc::clone(&object)));
        object
    }

    /// Removes an object.
    pub(super) fn remove(&mut self, key: &Key) -> Option<Arc<Value>> {
        let before = self.objects.remove(key)?;
        self.record(key.clone(), Some(Arc::clone(&before)), None);
        Some(before)
    }

    fn record(&mut self, key: Key, before: Option<Arc<Value>>, after: Option<Arc<Value>>) {
        self.revision += 1;
        self.history.push_back(Change { revision: self.revision, key, before, after });
        if self.history.len() > HISTORY
            && let Some(oldest) = self.history.pop_front()
        {
            self.trimmed = oldest.revision;
            self.compacted = self.compacted.max(self.trimmed);
        }
    }

    /// Whether a watch or list may begin at `revision`; 410 if that is too old.
    pub(super) fn begin_at(&self, revision: u64) -> Result<(), Failure> {
        if revision < self.compacted {
            return Err(Failure::expired(format!("too old resource version: {revision} ({})", self.compacted)));
        }
        Ok(())
    }

    /// What happened after `revision`; 410 if that is no longer known.
    pub(super) fn changes_since(&self, revision: u64) -> Result<impl Iterator<Item = &Change>, Failure> {
        if revision < self.trimmed {
            return Err(Failure::expired(format!("too old resource version: {revision} ({})", self.trimmed)));
        }
        let from = self.history.partition_point(|change| change.revision <= revision);
        Ok(self.history.range(from..))
    }

    /// Cuts the first `limit` objects off a list and remembers the rest under a token; no limit is zero.
    pub(super) fn page(&mut self, revision: u64, mut items: Vec<Arc<Value>>, limit: usize) -> Page {
        let rest = if limit == 0 || items.len() <= limit { Vec::new() } else { items.split_off(limit) };
        let remaining = rest.len();
        let next = (remaining > 0).then(|| {
            let token = format!("{revision}-{}", super::ids::token());
            self.pages.insert(token.clone(), (revision, rest));
            token
        });
        Page { revision, items, next, remaining }
    }

    /// The next part of a list that was cut.
    pub(super) fn next_page(&mut self, token: &str, limit: usize) -> Result<Page, Failure> {
        let (revision, items) = self.pages.remove(token).ok_or_else(|| {
            Failure::expired(
                "The provided continue parameter is too old to display a consistent list result. You can start a new \
                 list without the continue parameter.",
            )
        })?;
        Ok(self.page(revision, items, limit))
    }
}
