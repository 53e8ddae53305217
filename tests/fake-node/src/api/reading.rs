//! GET, LIST and WATCH.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header::CONTENT_TYPE};
use axum::response::Response;
use serde_json::{Value, json};

use super::codec::Codec;
use super::failure::Failure;
use super::selector::Selector;
use super::serve::{Answer, Call};
use super::store::Key;
use super::watching::{From, Watch};

pub(super) fn get(call: &Call<'_>) -> Result<Answer, Failure> {
    let object = call.shared.registry.get(&call.key())?;
    Ok(Answer::ok(call.codec().show(&object, call.form)))
}

pub(super) fn list(call: &Call<'_>) -> Result<Answer, Failure> {
    let selector = call.selector()?;
    let limit = call.number("limit")?.unwrap_or_default();
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut data = call.shared.registry.store.lock();
    let page = if let Some(token) = call.parameter("continue") {
        data.next_page(&token, limit)?
    } else {
        let revision = data.revision();
        if let Some(asked) = call.number("resourceVersion")? {
            if asked > revision {
                return Err(Failure::too_large_resource_version(asked, revision));
            }
            if call.parameter("resourceVersionMatch").as_deref() == Some("Exact") && asked != revision {
                return Err(Failure::expired("The resourceVersion for the provided list is too old."));
            }
        }
        let objects = data.list(call.target.kind, call.target.namespace.as_deref()).map(|(_, object)| object);
        let objects = objects.filter(|object| selector.matches(object)).map(Arc::clone).collect();
        data.page(revision, objects, limit)
    };
    drop(data);
    let mut meta = json!({"resourceVersion": page.revision.to_string()});
    if let Some(next) = page.next {
        meta["continue"] = json!(next);
        meta["remainingItemCount"] = json!(page.remaining);
    }
    let objects: Vec<&Value> = page.items.iter().map(AsRef::as_ref).collect();
    Ok(Answer::ok(call.codec().show_list(&objects, call.form, &meta)))
}

pub(super) fn watch(call: &Call<'_>) -> Result<Response, Failure> {
    let flag = |name: &str| call.parameter(name).is_some_and(|value| value == "true" || value == "1");
    let initial = call.parameter("sendInitialEvents");
    let from = match (initial.as_deref(), call.number("resourceVersion")?) {
        (Some("true"), _) => {
            if call.parameter("resourceVersionMatch").as_deref() != Some("NotOlderThan") {
                let why = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
                return Err(Failure::invalid_options("resourceVersionMatch", why));
            }
            From::NowWithBookmark
        }
        (_, Some(revision)) if revision > 0 => From::Revision(revision),
        (Some("false"), None) => From::Revision(call.shared.registry.store.lock().revision()),
        _ => From::Now,
    };
    let watch = Watch {
        codec: call.codec(),
        form: call.form,
        namespace: call.target.namespace.clone(),
        selector: call.selector()?,
        bookmarks: flag("allowWatchBookmarks"),
        timeout: call.number("timeoutSeconds")?.filter(|seconds| *seconds > 0).map(Duration::from_secs),
        from,
    };
    let stream = watch.start(Arc::clone(&call.shared.registry), call.shared.cut.subscribe());
    let mut response = Response::new(Body::from_stream(stream));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

// === impl Answer ===

impl Answer {
    pub(super) fn ok(body: Value) -> Self {
        Self { code: StatusCode::OK, body, warnings: Vec::new() }
    }
}

// === impl Call ===

impl Call<'_> {
    /// Where the object of the path is.
    pub(super) fn key(&self) -> Key {
        Key {
            kind: self.target.kind,
            namespace: self.target.namespace.clone().unwrap_or_default(),
            name: self.target.name.clone().unwrap_or_default(),
        }
    }

    /// The form of objects in this request.
    pub(super) fn codec(&self) -> Codec {
        Codec { kind: self.target.kind, version: self.target.version, release: self.shared.registry.release }
    }

    /// The objects that the request selects.
    pub(super) fn selector(&self) -> Result<Selector, Failure> {
        let (fields, labels) = (self.parameter("fieldSelector"), self.parameter("labelSelector"));
        Selector::parse(self.target.kind, self.shared.registry.release, fields.as_deref(), labels.as_deref())
    }

    fn number(&self, name: &str) -> Result<Option<u64>, Failure> {
        let Some(text) = self.parameter(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| Failure::bad_request(format!("{name}: invalid number {text:?}")))
    }
}
