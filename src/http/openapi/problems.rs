//! Which problems a call may return, and which scope it needs.
//!
//! Every operation has one response for all problems, `default`. Those that only some calls return are named in the operation's
//! text and in `x-problems`; those of every call stand in the text of that response.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::shape::each_operation;
use crate::http::access::{self, Need};
use crate::http::problem::Code;
use crate::job::Scope;

/// What any call may return.
const COMMON: &[Code] = &[
    Code::Malformed,
    Code::Unauthorized,
    Code::Forbidden,
    Code::ReadOnly,
    Code::CrossSite,
    Code::HostNotAllowed,
    Code::NotFound,
    Code::MethodNotAllowed,
    Code::RequestTimeout,
    Code::TooLarge,
    Code::UriTooLong,
    Code::UnsupportedMediaType,
    Code::InvalidField,
    Code::KeyLimited,
    Code::HeadTooLarge,
    Code::Internal,
    Code::StoreUnavailable,
    Code::StoreDamaged,
    Code::Overloaded,
    Code::StoreFull,
];

/// Adds the response for problems and the security requirement to each operation.
pub fn describe(api: &mut Value) {
    let paths = api.get_mut("paths").and_then(Value::as_object_mut);
    for (path, item) in paths.into_iter().flatten() {
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            secure(operation, access::need(&method.to_uppercase(), path));
        }
    }
    each_operation(api, &mut |_, operation| {
        let own = own(operation);
        if !own.is_empty() {
            let words: Vec<String> = own.iter().map(|code| worded(*code)).collect();
            let text = operation.get("description").and_then(Value::as_str).unwrap_or_default();
            let text = format!("{text}\n\nProblems of this call: {}.", words.join(", "));
            operation.insert("description".into(), text.trim().into());
            operation.insert("x-problems".into(), own.iter().map(|code| code.word()).collect());
        }
    });
    let common: Vec<String> = COMMON.iter().map(|code| worded(*code)).collect();
    let text = format!(
        "A problem (RFC 9457). `retryable` says whether the same request may succeed later. Each call names those of \
         its own; every call may return {}.",
        common.join(", ")
    );
    let problem = json!({
        "description": text,
        "headers": {
            "x-request-id": {"$ref": "#/components/headers/RequestId"},
            "Retry-After": {"$ref": "#/components/headers/RetryAfter"},
            "WWW-Authenticate": {"$ref": "#/components/headers/WwwAuthenticate"},
        },
        "content": {"application/problem+json": {
            "schema": {"$ref": "#/components/schemas/Problem"},
            "example": {
                "type": "urn:tailback:problem:invalid-field",
                "title": Code::InvalidField.title(),
                "status": 422,
                "detail": "/priority must be an integer from -2147483648 to 2147483647",
                "code": "invalid-field",
                "retryable": false,
                "request_id": "01M83FJJ4MQM2TCBAQQKQG2CZN",
                "pointer": "/priority",
            },
        }},
    });
    if let Some(components) = api.get_mut("components").and_then(Value::as_object_mut) {
        components.insert("responses".into(), json!({"Problem": problem}));
    }
}

fn worded(code: Code) -> String {
    format!("`{}` ({})", code.word(), code.status().as_u16())
}

/// Says which scope an operation needs while keys are required. One that is not in the table of the routes is refused.
fn secure(operation: &mut Value, need: Option<Need>) {
    let Some(operation) = operation.as_object_mut().filter(|it| it.contains_key("operationId")) else {
        return;
    };
    let scopes: Vec<&str> = need.into_iter().flat_map(Need::scopes).map(Scope::as_str).collect();
    let needs = match scopes.as_slice() {
        _ if need == Some(Need::Open) => "Needs no key.".to_owned(),
        [] => "Needs any key, while keys are required.".to_owned(),
        [scope] => format!("Needs the scope `{scope}`, while keys are required."),
        several if matches!(need, Some(Need::Either(..))) => {
            format!("Needs one of the scopes `{}`, while keys are required.", several.join("` and `"))
        }
        several => format!("Needs the scopes `{}`, while keys are required.", several.join("` and `")),
    };
    let text = operation.get("description").and_then(Value::as_str).unwrap_or_default();
    operation.insert("description".into(), format!("{text}\n\n{needs}").trim().into());
    // Scopes belong to OAuth; of a bearer token a document says only that it is needed.
    let security = if need == Some(Need::Open) { json!([]) } else { json!([{"key": []}]) };
    operation.insert("security".into(), security);
    operation.insert("x-scopes".into(), scopes.into());
}

/// Takes the problems out of the responses of an operation, and returns those that are its own, in the order of their statuses.
fn own(operation: &mut serde_json::Map<String, Value>) -> Vec<Code> {
    let id = operation.get("operationId").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut words = BTreeSet::new();
    if let Some(responses) = operation.get_mut("responses").and_then(Value::as_object_mut) {
        responses.retain(|status, response| {
            let text = response.get("description").and_then(Value::as_str).unwrap_or_default();
            let is_problem = !status.starts_with('2');
            if is_problem {
                words.extend(text.split('`').skip(1).step_by(2).map(str::to_owned));
            }
            !is_problem
        });
        // Linters ask for one of 4XX, and some generators only know `default`.
        for status in ["4XX", "default"] {
            responses.insert(status.into(), json!({"$ref": "#/components/responses/Problem"}));
        }
    }
    let table = SPECIFIC.iter().filter(|(operation, _)| *operation == id).flat_map(|(_, codes)| *codes);
    words.extend(table.map(|code| code.word()));
    let is_own = |code: &&Code| words.contains(&code.word()) && !COMMON.contains(code);
    let mut own: Vec<Code> = Code::ALL.iter().filter(is_own).copied().collect();
    own.sort_by_key(|code| code.status());
    own
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
    ("push_to_queues", &[Code::LimitReached, Code::IdempotencyKeyReused]),
    ("replay_job", &[Code::LimitReached, Code::IdempotencyKeyReused, Code::Unreadable]),
    ("begin_operation", &[Code::UnknownOperation, Code::LimitReached, Code::IdempotencyKeyReused]),
    ("get_operation", &[Code::Unreadable]),
    ("cancel_operation", &[Code::Unreadable]),
    ("retry_job", &[Code::Unreadable]),
    ("run_job", &[Code::Unreadable]),
    ("release_job", &[Code::Unreadable]),
    ("redrive_job", &[Code::LimitReached, Code::Unreadable]),
    ("push_jobs", &[Code::LimitReached, Code::IdempotencyKeyReused]),
    ("commit_job", &[Code::LimitReached]),
    ("move_job", &[Code::LimitReached, Code::IdempotencyKeyReused]),
    ("settle_jobs", &[Code::LimitReached]),
    ("create_batch", &[Code::LimitReached, Code::IdempotencyKeyReused]),
    ("add_to_batch", &[Code::LimitReached, Code::IdempotencyKeyReused]),
    ("set_queue", &[Code::LimitReached]),
    ("update_queue", &[Code::LimitReached]),
    ("pause_queue", &[Code::LimitReached]),
    ("resume_queue", &[Code::LimitReached]),
    ("set_schedule", &[Code::LimitReached]),
    ("set_semaphore", &[Code::LimitReached]),
    ("send_heartbeat", &[Code::LimitReached]),
    ("get_job", &[Code::Unreadable]),
    ("get_job_payload", &[Code::Unreadable]),
    ("update_job", &[Code::Unreadable]),
    ("cancel_job", &[Code::Unreadable]),
    ("commit_job", &[Code::Unreadable]),
    ("rollback_job", &[Code::Unreadable]),
    ("extend_job", &[Code::Unreadable]),
    ("move_job", &[Code::Unreadable]),
    ("get_worker", &[Code::Unreadable]),
    ("rotate_key", &[Code::Unreadable]),
    ("delete_schedule", &[Code::Unreadable]),
    ("get_batch", &[Code::Unreadable]),
    ("get_batch_results", &[Code::Unreadable]),
    ("add_to_batch", &[Code::Unreadable]),
    ("seal_batch", &[Code::Unreadable]),
    ("cancel_batch", &[Code::Unreadable]),
    ("get_schedule", &[Code::Unreadable]),
    ("set_schedule", &[Code::Unreadable]),
    ("run_schedule", &[Code::Unreadable]),
    ("pause_schedule", &[Code::Unreadable]),
    ("resume_schedule", &[Code::Unreadable]),
    ("readyz", &[Code::Draining]),
];
