//! The OpenAPI document, generated from the handlers: their documentation is its text.

use utoipa::OpenApi as _;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::AnyOfBuilder;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Content, OpenApi, Ref, RefOr, ResponseBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::AppState;
use super::access::{self, Need};
use super::problem::{Code, Problem};
use super::routes::{
    batches, jobs, keys, operations, queues, reserve, schedules, semaphores, session, settle, stats, workers,
};
use super::schemas;
use crate::job::Scope;

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Tailback",
        description = "A job queue server over HTTP/JSON.\n\nTimes are RFC 3339 in UTC with milliseconds; \
            durations are integers whose names end in `_ms`; ids and tokens are opaque. Unknown fields are \
            refused. Every error is a problem (RFC 9457) whose `code` is stable; one that is `retryable` may \
            succeed later. After a 503 the outcome of the call is unknown. A call whose response was lost can \
            always be retried; where it creates or takes something, with the same `Idempotency-Key`.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
        contact()
    ),
    tags(
        (name = "jobs", description = "Push, get, change, cancel and browse jobs"),
        (name = "work", description = "Reserve jobs and settle them"),
        (name = "batches", description = "Jobs that belong together, and a callback when all have finished"),
        (name = "queues", description = "Queues and their settings"),
        (name = "semaphores", description = "Shared limits on how many jobs are reserved at once"),
        (name = "schedules", description = "Cron rules that push jobs"),
        (name = "workers", description = "Workers and their heartbeats"),
        (name = "keys", description = "API keys and their scopes"),
        (name = "operations", description = "For operators: health, metrics, figures")
    ),
    components(schemas(Problem, Code, settle::CommitItem, settle::RollbackItem, settle::ExtendItem, settle::MoveItem))
)]
struct Document;

/// Returns every route with its description.
pub fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(jobs::push, jobs::browse))
        .routes(routes!(jobs::push_batch))
        .routes(routes!(jobs::get, jobs::edit, jobs::cancel))
        .routes(routes!(reserve::reserve))
        .routes(routes!(reserve::reserve_many))
        .routes(routes!(reserve::pop))
        .routes(routes!(settle::commit))
        .routes(routes!(settle::rollback))
        .routes(routes!(settle::extend))
        .routes(routes!(settle::move_job))
        .routes(routes!(settle::settle))
        .routes(routes!(batches::create))
        .routes(routes!(batches::get, batches::cancel))
        .routes(routes!(batches::add))
        .routes(routes!(batches::seal))
        .routes(routes!(batches::results))
        .routes(routes!(queues::list))
        .routes(routes!(queues::get, queues::put, queues::patch, queues::delete))
        .routes(routes!(queues::pause))
        .routes(routes!(queues::resume))
        .routes(routes!(queues::purge))
        .routes(routes!(queues::redrive))
        .routes(routes!(queues::replay))
        .routes(routes!(semaphores::list))
        .routes(routes!(semaphores::get, semaphores::put, semaphores::delete))
        .routes(routes!(schedules::list))
        .routes(routes!(schedules::get, schedules::put, schedules::delete))
        .routes(routes!(schedules::run))
        .routes(routes!(schedules::pause))
        .routes(routes!(schedules::resume))
        .routes(routes!(workers::list))
        .routes(routes!(workers::get, workers::remove))
        .routes(routes!(workers::heartbeat))
        .routes(routes!(keys::list, keys::create))
        .routes(routes!(keys::rotate))
        .routes(routes!(keys::delete))
        .routes(routes!(session::log_in, session::log_out))
        .routes(routes!(stats::queue))
        .routes(routes!(stats::server))
        .routes(routes!(operations::healthz))
        .routes(routes!(operations::readyz))
        .routes(routes!(operations::metrics))
}

/// Returns the document as it is served and committed.
pub fn document() -> OpenApi {
    finish(router().split_for_parts().1)
}

/// Adds the common problems to every operation, and to some the problems that only they return. Opens the schemas of responses.
pub fn finish(mut api: OpenApi) -> OpenApi {
    api.info.version = env!("CARGO_PKG_VERSION").to_owned();
    let mut bearer = Http::new(HttpAuthScheme::Bearer);
    bearer.description =
        Some("An API key, while keys are required; each operation names its scope.".to_owned());
    let components = api.components.get_or_insert_with(Default::default);
    components.add_security_scheme("key", SecurityScheme::Http(bearer));
    for (name, schema) in &mut components.schemas {
        // What `Shown` is derived as is `oneOf` copies; but all of something is also which it is.
        if let Some((whole, identity)) = name.strip_prefix("Shown_").and_then(|of| of.split_once('_')) {
            let either = AnyOfBuilder::new().item(Ref::from_schema_name(whole));
            *schema = either.item(Ref::from_schema_name(identity)).into();
        }
    }
    for (path, item) in &mut api.paths.paths {
        let bodied = [&mut item.post, &mut item.put, &mut item.patch];
        for operation in bodied.into_iter().flatten() {
            add(operation, &[Code::Malformed, Code::RequestTimeout, Code::TooLarge]);
            add(operation, &[Code::UnsupportedMediaType, Code::InvalidField, Code::CrossSite]);
        }
        if let Some(operation) = &mut item.delete {
            add(operation, &[Code::CrossSite]);
        }
        let all = [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
        for (method, operation) in METHODS.into_iter().zip(all) {
            let Some(operation) = operation else { continue };
            secure(operation, access::need(method, path));
            let id = operation.operation_id.clone().unwrap_or_default();
            SPECIFIC
                .iter()
                .filter(|(operation, _)| *operation == id)
                .for_each(|(_, codes)| add(operation, codes));
            if path.starts_with("/v1/") {
                add(operation, &[Code::InvalidField, Code::StoreFull, Code::Overloaded]);
            }
            // What a connection may meet before any call.
            add(operation, &[Code::UriTooLong, Code::HeadTooLarge]);
            if path != "/healthz" && path != "/readyz" {
                add(operation, &[Code::HostNotAllowed]);
            }
            if path != "/healthz" {
                add(operation, &[Code::StoreUnavailable]);
            }
            if path != "/healthz" && path != "/metrics" {
                add(operation, &[Code::Internal]);
            }
        }
    }
    schemas::open_responses(&mut api);
    api
}

/// The methods of a path item, in the order in which [`finish`] takes them.
const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

/// Says which scope an operation needs while keys are required. One that is not in the table of the routes is refused.
fn secure(operation: &mut Operation, need: Option<Need>) {
    if need == Some(Need::Open) {
        operation.security = Some(Vec::new());
        return;
    }
    let scopes: Vec<&str> = need.into_iter().flat_map(Need::scopes).map(Scope::as_str).collect();
    operation.security = Some(vec![SecurityRequirement::new("key", scopes)]);
    add(operation, &[Code::Unauthorized, Code::Forbidden, Code::KeyLimited]);
}

/// Problems of single operations, by id, in addition to those in the handlers' annotations.
const SPECIFIC: &[(&str, &[Code])] = &[
    ("reserve_jobs", &[Code::LimitReached, Code::RequestPending, Code::IdempotencyKeyReused, Code::Draining]),
    (
        "reserve_from_queues",
        &[Code::LimitReached, Code::RequestPending, Code::IdempotencyKeyReused, Code::Draining],
    ),
    ("pop_jobs", &[Code::LimitReached, Code::RequestPending, Code::IdempotencyKeyReused]),
    ("run_schedule", &[Code::LimitReached, Code::IdempotencyKeyReused]),
    ("redrive_queue", &[Code::LimitReached, Code::IdempotencyKeyReused]),
    ("replay_queue", &[Code::QueueFull, Code::LimitReached, Code::IdempotencyKeyReused]),
    ("push_job", &[Code::LimitReached, Code::IdempotencyKeyReused]),
    ("push_jobs", &[Code::LimitReached, Code::IdempotencyKeyReused]),
    ("commit_job", &[Code::LimitReached]),
    ("move_job", &[Code::LimitReached]),
    ("settle_jobs", &[Code::LimitReached]),
    ("create_batch", &[Code::LimitReached, Code::IdempotencyKeyReused]),
    ("add_to_batch", &[Code::LimitReached, Code::IdempotencyKeyReused]),
    ("set_queue", &[Code::LimitReached]),
    ("change_queue", &[Code::LimitReached]),
    ("pause_queue", &[Code::LimitReached]),
    ("resume_queue", &[Code::LimitReached]),
    ("set_schedule", &[Code::LimitReached]),
    ("set_semaphore", &[Code::LimitReached]),
    ("send_heartbeat", &[Code::LimitReached]),
    ("get_job", &[Code::Unreadable]),
    ("edit_job", &[Code::Unreadable]),
    ("cancel_job", &[Code::Unreadable]),
    ("commit_job", &[Code::Unreadable]),
    ("rollback_job", &[Code::Unreadable]),
    ("extend_job", &[Code::Unreadable]),
    ("move_job", &[Code::Unreadable]),
    ("get_worker", &[Code::Unreadable]),
    ("rotate_key", &[Code::Unreadable]),
    ("delete_queue", &[Code::Malformed]),
    ("delete_schedule", &[Code::Malformed, Code::Unreadable]),
    ("get_batch", &[Code::Unreadable]),
    ("get_schedule", &[Code::Unreadable]),
    ("set_schedule", &[Code::Unreadable]),
    ("run_schedule", &[Code::Unreadable]),
    ("pause_schedule", &[Code::Unreadable]),
    ("resume_schedule", &[Code::Unreadable]),
    ("readyz", &[Code::Draining]),
];

/// Adds the codes to the responses of their statuses; several codes may share a status.
fn add(operation: &mut Operation, codes: &[Code]) {
    for code in codes {
        let word = format!("`{}`", code.word());
        let content = Content::new(Some(RefOr::Ref(Ref::from_schema_name("Problem"))));
        let response = ResponseBuilder::new().content("application/problem+json", content).build();
        let status = code.status().as_u16().to_string();
        let entry = operation.responses.responses.entry(status).or_insert(RefOr::T(response));
        if let RefOr::T(response) = entry
            && !response.description.contains(&word)
        {
            let comma = if response.description.is_empty() { "" } else { ", " };
            response.description.push_str(&format!("{comma}{word}"));
        }
    }
}
