//! The OpenAPI document, generated from the handlers: their documentation is its text. What is the same for all of them is added here.

mod examples;
mod problems;
mod shape;
mod shared;
mod twin;

pub use twin::twin;

use serde_json::Value;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::AppState;
use super::problem::{Code, Problem};
use super::routes::{
    audit, batches, bulk, dead, events, groups, jobs, keys, metrics, one_job, operations, push_many,
    queue_list, queues, reserve, schedules, search, semaphores, series, servers, session, settle, stats,
    workers,
};

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Tailback",
        description = "A job queue server over HTTP/JSON.\n\nTimes are RFC 3339 in UTC with milliseconds; \
            durations are integers whose names end in `_ms`; ids and tokens are opaque. Unknown fields are \
            refused, and responses may get new fields, words and codes: ignore those that you do not know. Every error is a problem (RFC 9457) whose `code` is stable; one that is `retryable` may \
            succeed later. After a 503 other than `overloaded` the outcome of the call is unknown. A call whose response was lost can \
            always be retried; where it creates or takes something, with the same `Idempotency-Key`; only a key is made anew.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
        contact(name = "The Tailback authors")
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
    components(schemas(Problem, Code, settle::CommitItem, settle::RollbackItem, settle::ExtendItem, settle::MoveItem,
        jobs::Until, jobs::OfReserved, crate::queue::BatchState, search::Order, search::PayloadShown, dead::GroupBy))
)]
struct Document;

/// Returns every route with its description.
pub fn router() -> OpenApiRouter<AppState> {
    for_operators(for_work(OpenApiRouter::with_openapi(Document::openapi())))
}

fn for_work(router: OpenApiRouter<AppState>) -> OpenApiRouter<AppState> {
    router
        .routes(routes!(jobs::push, search::browse))
        .routes(routes!(push_many::push_many, search::search))
        .routes(routes!(search::payload))
        .routes(routes!(dead::group))
        .routes(routes!(jobs::push_batch))
        .routes(routes!(jobs::get, jobs::edit, jobs::cancel))
        .routes(routes!(one_job::retry))
        .routes(routes!(one_job::redrive))
        .routes(routes!(one_job::replay))
        .routes(routes!(one_job::run))
        .routes(routes!(one_job::release))
        .routes(routes!(one_job::peek))
        .routes(routes!(reserve::reserve))
        .routes(routes!(reserve::reserve_many))
        .routes(routes!(reserve::pop))
        .routes(routes!(settle::commit))
        .routes(routes!(settle::rollback))
        .routes(routes!(settle::extend))
        .routes(routes!(settle::move_job))
        .routes(routes!(settle::settle))
        .routes(routes!(batches::create, batches::list))
        .routes(routes!(batches::get, batches::cancel))
        .routes(routes!(batches::add))
        .routes(routes!(batches::seal))
        .routes(routes!(batches::results))
}

fn for_operators(router: OpenApiRouter<AppState>) -> OpenApiRouter<AppState> {
    router
        .routes(routes!(queue_list::list, queues::delete_many))
        .routes(routes!(groups::list))
        .routes(routes!(queues::get, queues::put, queues::patch, queues::delete))
        .routes(routes!(queues::pause))
        .routes(routes!(queues::resume))
        .routes(routes!(queues::purge))
        .routes(routes!(queues::redrive))
        .routes(routes!(queues::replay))
        .routes(routes!(bulk::list, bulk::begin))
        .routes(routes!(bulk::get, bulk::cancel))
        .routes(routes!(audit::list))
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
        .routes(routes!(search::of_worker))
        .routes(routes!(keys::list, keys::create))
        .routes(routes!(keys::rotate))
        .routes(routes!(keys::delete))
        .routes(routes!(session::get, session::log_in, session::log_out))
        .routes(routes!(series::series))
        .routes(routes!(stats::queue))
        .routes(routes!(events::follow))
        .routes(routes!(stats::server))
        .routes(routes!(servers::list))
        .routes(routes!(operations::healthz))
        .routes(routes!(operations::readyz))
        .routes(routes!(metrics::metrics))
}

/// Returns the document as it is served and committed.
pub fn document() -> Value {
    finish(router().split_for_parts().1)
}

/// Returns the document for the page that shows it: with the response for problems once for each operation.
pub fn shown(mut api: Value) -> Value {
    shape::each_operation(&mut api, &mut |_, operation| {
        if let Some(Value::Object(responses)) = operation.get_mut("responses") {
            responses.shift_remove("4XX");
        }
    });
    api
}

/// Makes the document of what the handlers say.
fn finish(mut api: OpenApi) -> Value {
    api.info.version = env!("CARGO_PKG_VERSION").to_owned();
    let mut bearer = Http::new(HttpAuthScheme::Bearer);
    bearer.description =
        Some("An API key, while keys are required; each operation names its scope.".to_owned());
    let components = api.components.get_or_insert_with(Default::default);
    components.add_security_scheme("key", SecurityScheme::Http(bearer));
    // What is made of our own types can be written as JSON.
    let mut api = serde_json::to_value(&api).unwrap_or_default();
    problems::describe(&mut api);
    shape::shape(&mut api);
    shared::share(&mut api);
    examples::illustrate(&mut api);
    api
}
