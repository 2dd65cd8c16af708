//! Responses of JSON. Each ends with a newline, so that a shell's prompt does not stand behind it.

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::problem::{Code, Problem};
use super::security;

/// A response of this value.
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let mut text = Vec::with_capacity(256);
        match serde_json::to_writer(&mut text, &self.0) {
            Ok(()) => of(text),
            Err(error) => {
                tracing::error!(%error, "a response could not be written");
                Problem::new(Code::Internal, "the response could not be written").into_response()
            }
        }
    }
}

/// Returns a response of a value that is written already.
pub fn of(mut text: Vec<u8>) -> Response {
    text.push(b'\n');
    let mut response = Response::new(Body::from(Bytes::from(text)));
    *response.headers_mut() = security::of_json();
    response
}
