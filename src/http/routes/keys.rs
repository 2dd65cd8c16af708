//! API keys.

use crate::http::json::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::queues::Nothing;
use super::view::Deleted;
use crate::http::access::Granted;
use crate::http::body::Body;
use crate::http::params::{OfKey, Query};
use crate::http::problem::{ApiResult, Problem};
use crate::job::{ApiKey, ApiKeyId, ApiKeyName, QueuePattern, Rate, Scope, StoredKeyId, Timestamp};
use crate::queue::{Credential, FreshKey, NewApiKey, Queues};

/// A new API key.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateKeyRequest)]
pub struct KeyRequest {
    /// What people call it.
    name: ApiKeyName,
    /// What it allows. `admin` allows everything, in all queues.
    #[schema(min_items = 1)]
    scopes: Vec<Scope>,
    /// In which queues, as names and patterns such as `mail.*`; semaphores and workers are matched by their names. Default: in
    /// all of them.
    #[serde(default)]
    #[schema(max_items = 100)]
    queues: Vec<QueuePattern>,
    /// After which time it expires, in milliseconds. Default: never.
    #[schema(minimum = 1000, maximum = 316224000000_u64)]
    expires_in_ms: Option<u64>,
    /// How many requests it may make in a time, at each server: so many at once, and on average. Beyond, `key-limited`. Default: no
    /// limit.
    rate: Option<Rate>,
    /// How many of its requests a server works on at once, those that wait included. Beyond, `key-limited`. Default: no limit.
    #[schema(minimum = 1, maximum = 100000)]
    max_concurrent: Option<u32>,
}

/// An API key, without its text.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = ApiKey)]
pub struct KeyView {
    /// Its id, which is part of its text.
    id: ApiKeyId,
    /// What people call it.
    name: ApiKeyName,
    /// What it allows.
    scopes: Vec<Scope>,
    /// In which queues; absent: in all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    queues: Vec<QueuePattern>,
    /// When it was made.
    created_at: Timestamp,
    /// From when on it is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Timestamp>,
    /// How many requests it may make in a time, at each server; absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<Rate>,
    /// How many of its requests a server works on at once; absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100000)]
    max_concurrent: Option<u32>,
    /// When it was used last, to a minute or two.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_used_at: Option<Timestamp>,
}

impl From<ApiKey> for KeyView {
    fn from(key: ApiKey) -> Self {
        let ApiKey {
            id,
            name,
            hash: _,
            scopes,
            queues,
            created_at,
            expires_at,
            rate,
            max_concurrent,
            last_used_at,
        } = key;
        Self { id, name, scopes, queues, created_at, expires_at, rate, max_concurrent, last_used_at }
    }
}

/// An API key with its text, which is shown this once.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = NewKey)]
pub struct FreshKeyResponse {
    #[serde(flatten)]
    view: KeyView,
    /// The key, for `Authorization: Bearer`. It is stored nowhere.
    #[schema(example = "tb_0123456789ab_0123456789abcdefghijklmn")]
    key: String,
}

impl From<FreshKey> for FreshKeyResponse {
    fn from(FreshKey { key, text }: FreshKey) -> Self {
        Self { view: key.into(), key: text }
    }
}

/// An API key that cannot be read.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct UnreadableKey {
    /// What names it: its id, or a hash of it where that is no text that fits into a path.
    id: StoredKeyId,
    /// What is wrong with it, in up to 300 characters.
    detail: String,
}

/// API keys.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct KeysResponse {
    /// The keys, by id.
    keys: Vec<KeyView>,
    /// Those that cannot be read, because another program wrote them. They open nothing, and count as keys all the same;
    /// `DELETE` removes one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<UnreadableKey>,
}

/// Make a key
///
/// The response is the only one that has the key's text. It is valid here at once, and on all servers within two seconds. From the first
/// key on every request needs one, so that the first key of a server without an admin key must have the scope `admin`, as that of the example.
#[utoipa::path(post, path = "/v1/keys", operation_id = "create_key", tag = "keys",
    request_body = KeyRequest,
    responses((status = 201, description = "The key", body = FreshKeyResponse)))]
pub async fn create(
    State(queues): State<Queues>,
    by: Granted,
    Body(request): Body<KeyRequest>,
) -> ApiResult<Response> {
    let KeyRequest { name, scopes, queues: patterns, expires_in_ms, rate, max_concurrent } = request;
    // From the first key on every request needs one: without `admin` no request could make another.
    if matches!(by.credential, Credential::NoKey) && !scopes.contains(&Scope::Admin) {
        let detail = "must have admin: this is the first key, and from then on every request needs one; make a key with the scope admin \
             first, or set auth.admin_key_file, or auth.required = false";
        return Err(Problem::field("/scopes", detail));
    }
    let new = NewApiKey { name, scopes, queues: patterns, expires_in_ms, rate, max_concurrent };
    let fresh = queues.create_api_key(new).await?;
    let ApiKey { id, name, scopes, .. } = &fresh.key;
    tracing::info!(%id, %name, ?scopes, by = by.caller.identity(), "API key created");
    Ok((StatusCode::CREATED, secret(fresh)).into_response())
}

/// A response with a key's text: not to be stored on the way.
fn secret(fresh: FreshKey) -> Response {
    let no_store = [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    (no_store, Json(FreshKeyResponse::from(fresh))).into_response()
}

/// List the keys
///
/// They are read from the store: what another program changed there is in force here with the response.
#[utoipa::path(get, path = "/v1/keys", operation_id = "list_keys", tag = "keys",
    responses((status = 200, description = "The keys, by id", body = KeysResponse)))]
pub async fn list(State(queues): State<Queues>, query: Query) -> ApiResult<Json<KeysResponse>> {
    query.only(&[])?;
    let stored = queues.api_keys().await?;
    let keys = stored.keys.into_iter().map(Into::into).collect();
    let unreadable = stored.unreadable.into_iter().map(|key| UnreadableKey { id: key.id, detail: key.why });
    Ok(Json(KeysResponse { keys, unreadable: unreadable.collect() }))
}

/// Replace the secret of a key
///
/// The key keeps its id, its scopes and its expiry. The text that it had before is refused here at once, and on all servers
/// within two seconds.
#[utoipa::path(post, path = "/v1/keys/{id}/rotate", operation_id = "rotate_key", tag = "keys",
    params(("id" = StoredKeyId, Path, description = "The id of the key")),
    responses(
        (status = 200, description = "The key with its new text", body = FreshKeyResponse),
        (status = 404, description = "`unknown-key`", body = Problem, content_type = "application/problem+json")))]
pub async fn rotate(
    State(queues): State<Queues>,
    by: Granted,
    OfKey(id): OfKey,
    _: Body<Nothing>,
) -> ApiResult<Response> {
    let fresh = queues.rotate_api_key(&id).await?;
    tracing::info!(%id, name = %fresh.key.name, by = by.caller.identity(), "API key rotated");
    Ok(secret(fresh))
}

/// Revoke a key
///
/// Deletes the key: it is refused here at once, and on all servers within two seconds.
#[utoipa::path(delete, path = "/v1/keys/{id}", operation_id = "delete_key", tag = "keys",
    params(("id" = StoredKeyId, Path, description = "The id of the key")),
    responses(
        (status = 200, description = "The key is deleted", body = Deleted),
        (status = 404, description = "`unknown-key`", body = Problem, content_type = "application/problem+json")))]
pub async fn delete(State(queues): State<Queues>, by: Granted, OfKey(id): OfKey) -> ApiResult<Json<Deleted>> {
    queues.delete_api_key(&id).await?;
    tracing::info!(%id, by = by.caller.identity(), "API key deleted");
    Ok(Json(Deleted { deleted: true }))
}
