//! The dashboard: a page of static files that knows nothing but the public API. They are part of the server, need no build step and
//! load nothing from elsewhere.
//!
//! `GET /` is the page. Its scripts and styles are below `/ui/{version}/`, where the version is a digest of all of them, so
//! that browsers may keep them for good. A build for development reads them from the source folder at every request.

mod shrink;

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Write as _;
use std::sync::{LazyLock, Mutex, OnceLock};

use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{Html, IntoResponse as _, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use rust_embed::RustEmbed;
use sha2::{Digest as _, Sha256};

/// The policy of the page: scripts and styles of its own, no text that is parsed as HTML, no frame around it.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// What stands for the version in the page.
const VERSION: &str = "/ui/VERSION/";

#[derive(RustEmbed)]
#[folder = "src/dashboard/ui/"]
struct Files;

/// Returns whether a path is one of the dashboard, whose responses have [`POLICY`].
pub fn has(path: &str) -> bool {
    path == "/" || path.starts_with("/ui/")
}

/// Returns the routes of the dashboard.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/", get(|| async { page() })).route(
        "/ui/{version}/{*file}",
        get(|Path((version, file)): Path<(String, String)>, headers: HeaderMap| async move {
            // Only gzip is left of it.
            part(&version, &file, headers.contains_key(header::ACCEPT_ENCODING))
        }),
    )
}

fn page() -> Response {
    match Files::get("index.html") {
        Some(page) => {
            let text = String::from_utf8_lossy(&page.data);
            Html(text.replace(VERSION, &format!("/ui/{}/", version()))).into_response()
        }
        None => missing(),
    }
}

/// Returns a script or a style. One of another version, of which a server beside this one may have served the page, is served as it is here and
/// is not to be kept.
fn part(of: &str, file: &str, takes_gzip: bool) -> Response {
    let Some(content) = content(file).filter(|_| file != "index.html") else { return missing() };
    let keep = if of == version() { "public, max-age=31536000, immutable" } else { "no-store" };
    let headers = [
        (header::CONTENT_TYPE, content_type(file)),
        (header::CACHE_CONTROL, keep),
        (header::VARY, "accept-encoding"),
    ];
    let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value)));
    match content.gzip.filter(|_| takes_gzip) {
        Some(gzip) => (headers, [(header::CONTENT_ENCODING, "gzip")], gzip).into_response(),
        None => (headers, content.plain).into_response(),
    }
}

/// What browsers get of a file.
#[derive(Clone)]
struct Content {
    plain: Bytes,
    /// The same, compressed as well as it can be: also small files, which other responses leave as they are.
    gzip: Option<Bytes>,
}

impl Content {
    fn new(plain: Vec<u8>) -> Self {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let gzip = encoder.write_all(&plain).and_then(|()| encoder.finish());
        Self { plain: plain.into(), gzip: gzip.ok().map(Bytes::from) }
    }
}

/// Returns what browsers get of a file.
fn content(file: &str) -> Option<Content> {
    static KEPT: LazyLock<Mutex<HashMap<String, Content>>> = LazyLock::new(Mutex::default);
    let is_kept = !cfg!(debug_assertions); // else a file may have changed
    let mut kept = KEPT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(content) = kept.get(file).filter(|_| is_kept) {
        return Some(content.clone());
    }
    let data = Files::get(file)?.data;
    let content = match std::str::from_utf8(&data) {
        Ok(text) if file.ends_with(".js") => Content::new(shrink::shrink(text).into_bytes()),
        Ok(text) if file.ends_with(".css") => Content::new(shrink::shrink_style(text).into_bytes()),
        _ => Content::new(data.into_owned()),
    };
    kept.insert(file.to_owned(), content.clone()); // only names of files: there are few
    Some(content)
}

fn missing() -> Response {
    (axum::http::StatusCode::NOT_FOUND, "there is no such file").into_response()
}

fn content_type(file: &str) -> &'static str {
    match file.rsplit_once('.').map_or("", |(_, kind)| kind) {
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

/// Returns the version of the files: a digest of their names and contents.
fn version() -> Cow<'static, str> {
    static VERSION: OnceLock<String> = OnceLock::new();
    if cfg!(debug_assertions) {
        return Cow::Owned(digest()); // a file may have changed
    }
    Cow::Borrowed(VERSION.get_or_init(digest))
}

fn digest() -> String {
    let mut names: Vec<_> = Files::iter().collect();
    names.sort();
    let mut digest = Sha256::new();
    for name in names {
        if let Some(file) = Files::get(&name) {
            digest.update(name.as_bytes());
            digest.update(file.metadata.sha256_hash());
        }
    }
    digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
