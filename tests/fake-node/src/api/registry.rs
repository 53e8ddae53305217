//! Create, replace, patch, apply and delete, each as one step on the store.

use std::sync::Arc;

use serde_json::{Value, json};

use super::apply::{self, Manager};
use super::failure::{Failure, FieldError, Problem};
use super::gates::Gates;
use super::kind::Kind;
use super::store::{Data, Key, Store};
use super::validate::{Part, Rules, admin_label};
use super::webhook::Webhooks;
use super::{admit, ids};
use crate::release::Release;

/// The store with the rules of the played release.
#[derive(Debug)]
pub(super) struct Registry {
    pub(super) store: Store,
    pub(super) release: Release,
    pub(super) gates: Gates,
    pub(super) webhooks: Webhooks,
}

/// How a write is made.
#[derive(Debug, Clone)]
pub(super) struct Write<'a> {
    pub(super) manager: Manager<'a>,
    pub(super) part: Part,
    pub(super) dry_run: bool,
}

/// What must hold for a deletion.
#[derive(Debug, Clone, Default)]
pub(super) struct Preconditions {
    pub(super) uid: Option<String>,
    pub(super) resource_version: Option<String>,
}

/// What a deletion did.
#[derive(Debug)]
pub(super) enum Deleted {
    /// The object is gone.
    Gone(Arc<Value>),
    /// Finalizers hold the object; it is marked.
    Marked(Arc<Value>),
}

// === impl Registry ===

impl Registry {
    pub(super) fn get(&self, key: &Key) -> Result<Arc<Value>, Failure> {
        self.store.lock().get(key).cloned().ok_or_else(|| Failure::not_found(key.kind, &key.name))
    }

    /// Stores a new object, read and defaulted. `namespace` is empty outside namespaces.
    pub(super) fn create(
        &self,
        kind: Kind,
        namespace: &str,
        mut object: Value,
        write: &Write<'_>,
    ) -> Result<Arc<Value>, Failure> {
        let now = ids::now();
        self.change(|data| {
            if kind.namespaced() {
                object["metadata"]["namespace"] = json!(namespace);
                let home = Key { kind: Kind::Namespace, namespace: String::new(), name: namespace.to_owned() };
                data.get(&home).ok_or_else(|| Failure::not_found(Kind::Namespace, namespace))?;
            } else if let Some(meta) = object["metadata"].as_object_mut() {
                meta.remove("namespace");
            }
            self.webhooks.call(kind, &mut object);
            admit::create(kind, &mut object, self.rules(data, namespace), &now)?;
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let key = Key { kind, namespace: namespace.to_owned(), name };
            if data.get(&key).is_some() {
                return Err(Failure::already_exists(kind, &key.name));
            }
            apply::record_update(kind, &json!({}), &mut object, &write.manager, &now);
            Ok(if write.dry_run { Arc::new(object) } else { data.put(key, object) })
        })
    }

    /// Replaces an object by what `change` makes of the stored one.
    pub(super) fn modify(
        &self,
        key: &Key,
        write: &Write<'_>,
        change: impl FnOnce(&Value) -> Result<Value, Failure>,
    ) -> Result<Arc<Value>, Failure> {
        let now = ids::now();
        self.change(|data| {
            let old = data.get(key).cloned().ok_or_else(|| Failure::not_found(key.kind, &key.name))?;
            let mut object = change(&old)?;
            self.webhooks.call(key.kind, &mut object);
            admit::update(key.kind, write.part, &mut object, &old, self.rules(data, &key.namespace))?;
            apply::record_update(key.kind, &old, &mut object, &write.manager, &now);
            Ok(settle(data, key, object, &old, write.dry_run))
        })
    }

    /// Server-side apply. Returns whether the object is new.
    pub(super) fn apply(
        &self,
        key: &Key,
        config: &Value,
        force: bool,
        write: &Write<'_>,
    ) -> Result<(Arc<Value>, bool), Failure> {
        let now = ids::now();
        let kind = key.kind;
        let uid = config["metadata"]["uid"].clone();
        let config = &half(kind, write.part, config);
        self.change(|data| {
            let rules = self.rules(data, &key.namespace);
            let Some(old) = data.get(key).cloned() else {
                if write.part == Part::Status {
                    return Err(Failure::not_found(kind, &key.name));
                }
                let home = Key { kind: Kind::Namespace, namespace: String::new(), name: key.namespace.clone() };
                if kind.namespaced() && data.get(&home).is_none() {
                    return Err(Failure::not_found(Kind::Namespace, &key.namespace));
                }
                let blank = json!({"metadata": {"name": key.name}});
                let mut object = apply::apply(kind, &blank, config, &write.manager, force, &now)?;
                let owners = object["metadata"]["managedFields"].take();
                if kind.namespaced() {
                    object["metadata"]["namespace"] = json!(key.namespace);
                }
                admit::default(kind, &mut object, &now);
                self.webhooks.call(kind, &mut object);
                admit::create(kind, &mut object, rules, &now)?;
                object["metadata"]["managedFields"] = owners;
                let object = if write.dry_run { Arc::new(object) } else { data.put(key.clone(), object) };
                return Ok((object, true));
            };
            // Where a replacement would be a conflict, a patch sets a field that cannot be changed.
            if uid.as_str().is_some_and(|uid| !uid.is_empty() && old["metadata"]["uid"] != *uid) {
                let problem = Problem::Invalid(uid, "field is immutable".to_owned());
                return Err(Failure::invalid(
                    kind,
                    &key.name,
                    &[FieldError { field: "metadata.uid".to_owned(), problem }],
                ));
            }
            let mut object = apply::apply(kind, &old, config, &write.manager, force, &now)?;
            let owners = object["metadata"]["managedFields"].take();
            admit::default(kind, &mut object, &now);
            self.webhooks.call(kind, &mut object);
            admit::update(kind, write.part, &mut object, &old, rules)?;
            object["metadata"]["managedFields"] = owners;
            Ok((settle(data, key, object, &old, write.dry_run), false))
        })
    }

    pub(super) fn delete(&self, key: &Key, preconditions: &Preconditions, dry_run: bool) -> Result<Deleted, Failure> {
        self.change(|data| delete(data, key, preconditions, dry_run))
    }

    /// Deletes all objects that `selected` picks, and returns them.
    pub(super) fn delete_collection(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        dry_run: bool,
        selected: impl Fn(&Value) -> bool,
    ) -> Result<Vec<Arc<Value>>, Failure> {
        self.change(|data| {
            let keys: Vec<_> =
                data.list(kind, namespace).filter(|(_, object)| selected(object)).map(|(key, _)| key.clone()).collect();
            keys.iter()
                .map(|key| match delete(data, key, &Preconditions::default(), dry_run)? {
                    Deleted::Gone(object) | Deleted::Marked(object) => Ok(object),
                })
                .collect()
        })
    }

    /// Runs one step on the locked data, lets the garbage collector follow, and wakes the watches.
    fn change<T>(&self, step: impl FnOnce(&mut Data) -> Result<T, Failure>) -> Result<T, Failure> {
        let mut data = self.store.lock();
        let done = step(&mut data)?;
        collect_garbage(&mut data);
        drop(data);
        self.store.announce();
        Ok(done)
    }

    fn rules(&self, data: &Data, namespace: &str) -> Rules<'_> {
        let key = Key { kind: Kind::Namespace, namespace: String::new(), name: namespace.to_owned() };
        let admin_namespace = admin_label(self.release).is_some_and(|label| {
            data.get(&key).is_some_and(|namespace| namespace["metadata"]["labels"][label] == "true")
        });
        Rules { release: self.release, gates: &self.gates, admin_namespace }
    }
}

/// The half of an applied configuration that the write may set; the manager does not come to own the other.
fn half(kind: Kind, part: Part, config: &Value) -> Value {
    let mut config = config.clone();
    if let Some(fields) = config.as_object_mut() {
        match part {
            Part::Main if kind.has_status() => drop(fields.remove("status")),
            Part::Main => {}
            Part::Status => fields.retain(|field, _| matches!(field.as_str(), "apiVersion" | "kind" | "status")),
        }
    }
    config
}

/// Stores what became of `old`. A write that changes nothing leaves no trace; one that takes the last finalizer from a
/// deleted object removes it.
fn settle(data: &mut Data, key: &Key, object: Value, old: &Arc<Value>, dry_run: bool) -> Arc<Value> {
    if without_times(&object) == without_times(old) {
        return Arc::clone(old);
    }
    if dry_run {
        return Arc::new(object);
    }
    let meta = &object["metadata"];
    let finished = meta["deletionTimestamp"].is_string() && meta["finalizers"].as_array().is_none_or(Vec::is_empty);
    let object = data.put(key.clone(), object);
    if finished {
        data.remove(key);
    }
    object
}

/// The object without the times at which its managers wrote: those alone are no change.
fn without_times(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(entries) = object.pointer_mut("/metadata/managedFields").and_then(Value::as_array_mut) {
        entries.iter_mut().filter_map(Value::as_object_mut).for_each(|entry| drop(entry.remove("time")));
    }
    object
}

fn delete(data: &mut Data, key: &Key, preconditions: &Preconditions, dry_run: bool) -> Result<Deleted, Failure> {
    let object = data.get(key).cloned().ok_or_else(|| Failure::not_found(key.kind, &key.name))?;
    let meta = &object["metadata"];
    for (what, happened, field, wanted) in [
        ("UID", "deleted and then recreated", "uid", &preconditions.uid),
        ("ResourceVersion", "modified", "resourceVersion", &preconditions.resource_version),
    ] {
        let stored = meta[field].as_str().unwrap_or_default();
        if let Some(wanted) = wanted.as_deref().filter(|wanted| *wanted != stored) {
            let why = format!(
                "the {what} in the precondition ({wanted}) does not match the {what} in record ({stored}). \
                The object might have been {happened}"
            );
            return Err(Failure::conflict(key.kind, &key.name, &why));
        }
    }
    if meta["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty()) {
        if meta["deletionTimestamp"].is_string() || dry_run {
            return Ok(Deleted::Marked(object));
        }
        let mut marked = Value::clone(&object);
        marked["metadata"]["deletionTimestamp"] = json!(ids::now());
        marked["metadata"]["deletionGracePeriodSeconds"] = json!(0);
        return Ok(Deleted::Marked(data.put(key.clone(), marked)));
    }
    if !dry_run {
        data.remove(key);
        if key.kind == Kind::Namespace {
            let inside: Vec<_> = data
                .all()
                .filter(|(inside, _)| inside.namespace == key.name)
                .map(|(inside, _)| inside.clone())
                .collect();
            for key in &inside {
                data.remove(key);
            }
        }
    }
    Ok(Deleted::Gone(object))
}

/// Deletes objects none of whose owners exist, as the garbage collector does in the background. Owners of types that
/// are not served here count as existing.
fn collect_garbage(data: &mut Data) {
    loop {
        let orphans: Vec<_> =
            data.all().filter(|(key, object)| is_orphan(data, key, object)).map(|(key, _)| key.clone()).collect();
        let mut progress = false;
        for key in orphans {
            progress |= matches!(delete(data, &key, &Preconditions::default(), false), Ok(Deleted::Gone(_)));
        }
        if !progress {
            return;
        }
    }
}

fn is_orphan(data: &Data, key: &Key, object: &Value) -> bool {
    let Some(owners) = object["metadata"]["ownerReferences"].as_array().filter(|owners| !owners.is_empty()) else {
        return false;
    };
    owners.iter().all(|owner| {
        let text = |field: &str| owner[field].as_str().unwrap_or_default();
        let Some((kind, _)) = Kind::of(text("apiVersion"), text("kind")) else { return false };
        let namespace = if kind.namespaced() { key.namespace.clone() } else { String::new() };
        let owner_key = Key { kind, namespace, name: text("name").to_owned() };
        data.get(&owner_key).is_none_or(|found| found["metadata"]["uid"] != text("uid"))
    })
}
