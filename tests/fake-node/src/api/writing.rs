//! POST, PUT, PATCH and DELETE.

use axum::http::{StatusCode, header::CONTENT_TYPE, header::USER_AGENT};
use serde_json::{Value, json};

use super::apply::Manager;
use super::codec::FieldValidation;
use super::failure::Failure;
use super::kind::Kind;
use super::patch::{PatchKind, patch};
use super::registry::{Deleted, Preconditions, Write};
use super::route::Verb;
use super::serve::{Answer, Call, header};
use super::validate::Part;

/// What a body other than a patch may be.
const OBJECT_MEDIA_TYPES: &str = "application/json";

pub(super) fn write(call: &Call<'_>, verb: Verb, body: &[u8]) -> Result<Answer, Failure> {
    let options = Options::of(call)?;
    let manager = options.manager(call);
    let api_version = call.target.version.to_string();
    let part = if call.target.subresource.is_some() { Part::Status } else { Part::Main };
    let write = Write {
        manager: Manager { name: &manager, api_version: &api_version, subresource: call.target.subresource.as_deref() },
        part,
        dry_run: options.dry_run,
    };
    match verb {
        Verb::Create => create(call, body, &options, &write),
        Verb::Update => update(call, body, &options, &write),
        Verb::Patch => change(call, body, &options, &write),
        Verb::Delete => delete(call, body, &options),
        Verb::DeleteCollection => delete_collection(call, &options),
        Verb::Get | Verb::List | Verb::Watch => Err(Failure::method_not_allowed()),
    }
}

/// The query parameters of a write.
struct Options {
    dry_run: bool,
    validation: FieldValidation,
    field_manager: Option<String>,
    force: Option<bool>,
}

// === impl Options ===

impl Options {
    fn of(call: &Call<'_>) -> Result<Self, Failure> {
        let refused = |field: &str, value: &str, allowed: &str| {
            Err(Failure::invalid_options(field, &format!("Unsupported value: {value:?}: supported values: {allowed}")))
        };
        let dry_run = match call.parameter("dryRun").as_deref() {
            None => false,
            Some("All") => true,
            Some(other) => return refused("dryRun", other, "\"All\""),
        };
        let validation = match call.parameter("fieldValidation").as_deref() {
            None | Some("Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => return refused("fieldValidation", other, "\"Ignore\", \"Strict\", \"Warn\""),
        };
        let force = call.parameter("force").map(|force| force == "true" || force == "1");
        Ok(Self { dry_run, validation, field_manager: call.parameter("fieldManager"), force })
    }

    /// The field manager: as named, or the first part of the user agent.
    fn manager(&self, call: &Call<'_>) -> String {
        self.field_manager.clone().unwrap_or_else(|| {
            let agent = header(call.parts, USER_AGENT).split('/').next().unwrap_or_default();
            if agent.is_empty() { "unknown".to_owned() } else { agent.to_owned() }
        })
    }
}

fn create(call: &Call<'_>, body: &[u8], options: &Options, write: &Write<'_>) -> Result<Answer, Failure> {
    let namespace = call.target.namespace.as_deref();
    if call.target.name.is_some() || namespace.is_some() != call.target.kind.namespaced() {
        return Err(Failure::method_not_allowed());
    }
    let (object, warnings) = call.codec().read(call.json_object(body)?, options.validation)?;
    same("namespace", &object, namespace.unwrap_or_default())?;
    let object = call.shared.registry.create(call.target.kind, namespace.unwrap_or_default(), object, write)?;
    Ok(Answer { code: StatusCode::CREATED, body: call.codec().show(&object, call.form), warnings })
}

fn update(call: &Call<'_>, body: &[u8], options: &Options, write: &Write<'_>) -> Result<Answer, Failure> {
    let key = call.named()?;
    let (mut object, warnings) = call.codec().read(call.json_object(body)?, options.validation)?;
    same("namespace", &object, &key.namespace)?;
    same("name", &object, &key.name)?;
    if object["metadata"]["name"].is_null() {
        let why =
            format!("the name of the object ({} based on URL) was undeterminable: name must be provided", key.name);
        return Err(Failure::bad_request(why));
    }
    let object = call.shared.registry.modify(&key, write, |_| {
        // Unlike the name, the namespace may be left to the path.
        if key.kind.namespaced() {
            object["metadata"]["namespace"] = json!(key.namespace);
        }
        Ok(object)
    })?;
    Ok(Answer { code: StatusCode::OK, body: call.codec().show(&object, call.form), warnings })
}

fn change(call: &Call<'_>, body: &[u8], options: &Options, write: &Write<'_>) -> Result<Answer, Failure> {
    let key = call.named()?;
    let how = PatchKind::from_media_type(header(call.parts, CONTENT_TYPE))
        .ok_or_else(|| Failure::unsupported_media_type(PatchKind::MEDIA_TYPES))?;
    let body: Value = serde_json::from_slice(body).map_err(|error| {
        let yaml = if how == PatchKind::Apply { "; only the JSON subset of YAML is read here" } else { "" };
        Failure::bad_request(format!("error decoding patch: {error}{yaml}"))
    })?;
    let (codec, registry) = (call.codec(), &call.shared.registry);
    let mut warnings = Vec::new();
    let (object, created) = if how == PatchKind::Apply {
        if options.field_manager.is_none() {
            return Err(Failure::invalid_options("fieldManager", "Required value: is required for apply patch"));
        }
        let mut config = body;
        warnings = codec.read_partial(&mut config, options.validation)?;
        same("namespace", &config, &key.namespace)?;
        same("name", &config, &key.name)?;
        registry.apply(&key, &config, options.force.unwrap_or_default(), write)?
    } else {
        if options.force.is_some() {
            let why = "Forbidden: may not be specified for non-apply patch";
            return Err(Failure::invalid_options("force", why));
        }
        let object = registry.modify(&key, write, |old| {
            // A patch is about the version in which it is sent.
            let mut object = codec.write(old);
            patch(how, key.kind, &mut object, &body)?;
            let read = codec.read(object, options.validation)?;
            warnings = read.1;
            Ok(read.0)
        })?;
        (object, false)
    };
    let code = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(Answer { code, body: codec.show(&object, call.form), warnings })
}

fn delete(call: &Call<'_>, body: &[u8], options: &Options) -> Result<Answer, Failure> {
    let key = call.named()?;
    if call.target.subresource.is_some() {
        return Err(Failure::method_not_allowed());
    }
    let body: Value = if body.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(body)
            .map_err(|error| Failure::bad_request(format!("error decoding options: {error}")))?
    };
    let wanted = |field: &str| body["preconditions"][field].as_str().map(str::to_owned);
    let preconditions = Preconditions { uid: wanted("uid"), resource_version: wanted("resourceVersion") };
    let dry_run = options.dry_run || body["dryRun"].as_array().is_some_and(|dry| dry.iter().any(|all| all == "All"));
    let object = match call.shared.registry.delete(&key, &preconditions, dry_run)? {
        // Nodes and events answer with a status; the others with what they were.
        Deleted::Gone(object) if matches!(key.kind, Kind::Node | Kind::Event) => {
            return Ok(Answer::ok(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                "details": {"name": key.name, "group": key.kind.group().name(), "kind": key.kind.plural(),
                    "uid": object["metadata"]["uid"]}})));
        }
        Deleted::Gone(object) | Deleted::Marked(object) => object,
    };
    Ok(Answer::ok(call.codec().show(&object, call.form)))
}

fn delete_collection(call: &Call<'_>, options: &Options) -> Result<Answer, Failure> {
    let (kind, namespace) = (call.target.kind, call.target.namespace.as_deref());
    // All namespaces at once is for lists and watches alone; namespaces themselves go one by one.
    if namespace.is_some() != kind.namespaced() || kind == Kind::Namespace {
        return Err(Failure::method_not_allowed());
    }
    let selector = call.selector()?;
    let registry = &call.shared.registry;
    let deleted = registry.delete_collection(kind, namespace, options.dry_run, |object| selector.matches(object))?;
    let objects: Vec<&Value> = deleted.iter().map(AsRef::as_ref).collect();
    let revision = registry.store.lock().revision();
    Ok(Answer::ok(call.codec().show_list(&objects, call.form, &json!({"resourceVersion": revision.to_string()}))))
}

/// The body must not contradict the path.
fn same(field: &str, object: &Value, in_path: &str) -> Result<(), Failure> {
    match object["metadata"][field].as_str().unwrap_or_default() {
        "" => Ok(()),
        found if found == in_path => Ok(()),
        found if field == "name" => {
            let why = format!("the name of the object ({found}) does not match the name on the URL ({in_path})");
            Err(Failure::bad_request(why))
        }
        _ => {
            let why = "the namespace of the provided object does not match the namespace sent on the request";
            Err(Failure::bad_request(why))
        }
    }
}

// === impl Call ===

impl Call<'_> {
    fn named(&self) -> Result<super::store::Key, Failure> {
        if self.target.name.is_none() { Err(Failure::method_not_allowed()) } else { Ok(self.key()) }
    }

    fn json_object(&self, body: &[u8]) -> Result<Value, Failure> {
        let media_type = header(self.parts, CONTENT_TYPE).split(';').next().unwrap_or_default().trim();
        if !matches!(media_type, "" | "*/*" | "application/json") {
            return Err(Failure::unsupported_media_type(OBJECT_MEDIA_TYPES));
        }
        serde_json::from_slice(body)
            .map_err(|error| Failure::bad_request(format!("couldn't decode the request body: {error}")))
    }
}
