//! Responses with JSON objects.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;

/// The content type of JSON.
pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A response with a JSON object, followed by a line end.
#[derive(Debug)]
pub(super) struct JsonResponse(pub(super) Value);

impl IntoResponse for JsonResponse {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, JSON)], format!("{}\n", self.0)).into_response()
    }
}

/// A status as an object.
pub(super) fn object(status: &impl Serialize) -> Value {
    serde_json::to_value(status).expect("a status is an object with string keys")
}
