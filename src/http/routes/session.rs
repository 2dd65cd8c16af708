//! Sessions of browsers.

use crate::http::json::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::view::Deleted;
use crate::http::access::{self, Granted};
use crate::http::body::Small;
use crate::http::problem::{ApiResult, Code, Problem};
use crate::http::session::{self, Attempts, Source};
use crate::http::{AppState, access::Options};
use crate::job::{ApiKeyName, Caller, QueuePattern, Scope, Timestamp};

/// The longest key that a login may show: more than any has.
const KEY_MAX: usize = 4096;

/// A login.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoginRequest {
    /// An API key, or the admin key.
    #[schema(max_length = 4096)]
    key: String,
}

/// A session of a browser.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SessionResponse {
    /// The name of the key; absent: the admin key.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<ApiKeyName>,
    /// What the session allows.
    scopes: Vec<Scope>,
    /// In which queues; absent: in all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    queues: Vec<QueuePattern>,
    /// When the session ends, unless its key does before.
    ends_at: Timestamp,
}

/// Who asks, and of which server.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = CurrentSession)]
pub struct WhoResponse {
    /// The name of the key; absent: the admin key, or keys are not required.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<ApiKeyName>,
    /// What the caller may do.
    scopes: Vec<Scope>,
    /// In which queues; absent: in all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    queues: Vec<QueuePattern>,
    /// When the browser's session ends; absent where a key was shown, or none is required.
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_at: Option<Timestamp>,
    /// Whether requests need a key.
    keys_required: bool,
    /// Whether this server changes nothing (`http.read_only`).
    read_only: bool,
    /// The version of this server.
    version: &'static str,
}

impl SessionResponse {
    fn new(caller: &Caller, ends_at: Timestamp) -> Self {
        match caller {
            Caller::Key(key) => Self {
                name: Some(key.name.clone()),
                scopes: key.scopes.clone(),
                queues: key.queues.clone(),
                ends_at,
            },
            _ => Self { name: None, scopes: vec![Scope::Admin], queues: Vec::new(), ends_at },
        }
    }
}

/// Who one is
///
/// What the shown key or the session allows, and what a page must know of the server before it asks for more.
#[utoipa::path(get, path = "/v1/session", operation_id = "get_session", tag = "keys",
    responses((status = 200, description = "What the caller may do", body = WhoResponse)))]
pub async fn get(State(state): State<AppState>, granted: Granted) -> ApiResult<Json<WhoResponse>> {
    let session = SessionResponse::new(&granted.caller, granted.session_ends.unwrap_or(state.queues.now()?));
    Ok(Json(WhoResponse {
        name: session.name,
        scopes: session.scopes,
        queues: session.queues,
        ends_at: granted.session_ends,
        keys_required: !matches!(granted.caller, Caller::Anyone),
        read_only: state.read_only,
        version: env!("CARGO_PKG_VERSION"),
    }))
}

/// Log in with a key
///
/// For browsers: the response sets a cookie (`HttpOnly`, `Secure`, `SameSite=Strict`) that stands for the key in later requests, for
/// twelve hours and as long as the key is valid. Over plain HTTP that is possible on the machine of the server only; behind a
/// proxy that ends TLS, `http.trusted_proxies` must name the proxy.
#[utoipa::path(post, path = "/v1/session", operation_id = "log_in", tag = "keys",
    request_body = LoginRequest,
    responses(
        (status = 200, description = "The session", body = SessionResponse,
            headers(("Set-Cookie" = String, description = "The session's cookie"))),
        (status = 401, description = "`unauthorized`", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "`tls-required`", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "`too-many-attempts`", body = Problem, content_type = "application/problem+json")))]
pub async fn log_in(
    State(state): State<AppState>,
    source: Source,
    Small(request): Small<LoginRequest>,
) -> ApiResult<Response> {
    if request.key.chars().nth(KEY_MAX).is_some() {
        return Err(Problem::field("/key", format!("must be at most {KEY_MAX} characters long")));
    }
    let attempts: &Attempts = &state.attempts;
    if let Some(wait) = attempts.begin(source.client) {
        let detail = "too many logins failed; try again in a minute";
        return Err(Problem::new(Code::TooManyAttempts, detail).after(wait));
    }
    let access: &Options = &state.access;
    let caller = match access::by_key(access, &state.queues, &request.key) {
        Ok(caller) => caller,
        Err(problem) => {
            tracing::info!(client = %source.client, "a login failed");
            return Err(problem);
        }
    };
    attempts.succeed(source.client);
    let (cookie, ends_at) = session::begin(access, &state.queues, &caller, source.is_encrypted)?;
    tracing::info!(client = %source.client, key = caller.identity(), "logged in");
    Ok((set_cookies([cookie])?, Json(SessionResponse::new(&caller, ends_at))).into_response())
}

/// Log out
///
/// Removes the cookie from the browser. Deleting or rotating the key ends all of its sessions.
#[utoipa::path(delete, path = "/v1/session", operation_id = "log_out", tag = "keys",
    responses((status = 200, description = "The cookie is removed", body = Deleted,
        headers(("Set-Cookie" = String, description = "Removes the session's cookie")))))]
pub async fn log_out(_: Granted) -> ApiResult<Response> {
    Ok((set_cookies(session::end())?, Json(Deleted { deleted: true })).into_response())
}

fn set_cookies(cookies: impl IntoIterator<Item = String>) -> ApiResult<HeaderMap> {
    let invalid = |_| Problem::new(Code::Internal, "the cookie is not a valid header value");
    let mut headers = HeaderMap::new();
    for cookie in cookies {
        headers.append(header::SET_COOKIE, HeaderValue::try_from(cookie).map_err(invalid)?);
    }
    Ok(headers)
}
