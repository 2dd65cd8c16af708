//! The OpenAPI document, and the page that shows it. Its scripts and styles are part of the server, so that it works offline.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::extract::Path;
use axum::http::header;
use axum::response::{Html, IntoResponse as _, Redirect, Response};
use axum::routing::get;
use serde_json::Value;
use utoipa_swagger_ui::{Config, serve};

use crate::http::AppState;
use crate::http::json::Json;
use crate::http::openapi::{document, shown, twin};
use crate::http::problem::{Code, Problem};

/// The page itself; all that it loads lies beside it.
const PAGE: &str = include_str!("docs.html");

/// The document in its forms, made when one of them is first asked for: a start need not wait for it.
static DOCUMENTS: LazyLock<Documents> = LazyLock::new(|| {
    let api = document();
    Documents { twin: twin(api.clone()), shown: shown(api.clone()), api }
});

struct Documents {
    api: Value,
    twin: Value,
    shown: Value,
}

/// Returns the routes of the document and of its page.
pub fn docs() -> Router<AppState> {
    let config = Arc::new(config());
    let page = move |path: Option<Path<String>>| async move {
        match path.as_ref().map_or("", |path| path.as_str()) {
            "" | "index.html" => Html(PAGE).into_response(),
            "openapi.json" => Json(&DOCUMENTS.shown).into_response(),
            path => part(path, config),
        }
    };
    Router::new()
        .route("/openapi.json", get(|| async { Json(&DOCUMENTS.api).into_response() }))
        .route("/openapi-3.0.json", get(|| async { Json(&DOCUMENTS.twin).into_response() }))
        .route("/docs/{*rest}", get(page.clone()))
        .route("/docs/", get(page))
        .route("/docs", get(|| async { Redirect::temporary("/docs/") }))
}

fn config() -> Config<'static> {
    Config::new(["./openapi.json"]).try_it_out_enabled(true).display_request_duration(true)
}

/// Returns a script, a style or a picture of the page.
fn part(path: &str, config: Arc<Config<'static>>) -> Response {
    match serve(path, config) {
        Ok(Some(file)) => {
            let mut response = ([(header::CONTENT_TYPE, file.content_type)], file.bytes).into_response();
            if file.gzpipped {
                let gzip = header::HeaderValue::from_static("gzip");
                response.headers_mut().insert(header::CONTENT_ENCODING, gzip);
            }
            response
        }
        Ok(None) => Problem::new(Code::NotFound, "there is no such page; see /docs/").into_response(),
        Err(error) => {
            tracing::error!(%error, path, "a part of the documentation's page cannot be made");
            Problem::new(Code::Internal, "the page cannot be made").into_response()
        }
    }
}
