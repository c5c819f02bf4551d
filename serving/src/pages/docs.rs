//! The API documentation: Swagger UI, embedded in the binary.

use std::borrow::Cow;
use std::sync::Arc;

use askama::Template;
use axum::extract::Path;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use utoipa_swagger_ui::Config;

use super::assets::{ASSETS, Assets};
use super::components::render;

/// Content security policy of Swagger UI, which uses inline styles and images in its styles.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);
/// Caching of files whose names do not change between versions.
const CACHE_ONE_HOUR: HeaderValue = HeaderValue::from_static("public, max-age=3600");

#[derive(Debug, Template)]
#[template(path = "docs.html")]
struct DocsPage {
    assets: &'static Assets,
}

pub(crate) async fn page() -> Response {
    let mut response = render(StatusCode::OK, &DocsPage { assets: &ASSETS });
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY);
    response
}

/// Serves a file of Swagger UI.
pub(crate) async fn file(Path(name): Path<String>) -> Response {
    // The default validator is an external server.
    let config = Config::from("/openapi.json").validator_url("none");
    // The other layout has a bar to select other API descriptions.
    let config = config.use_base_layout();
    match utoipa_swagger_ui::serve(&name, Arc::new(config)) {
        Ok(Some(file)) => {
            let content_type = HeaderValue::from_str(&file.content_type);
            let content_type =
                content_type.unwrap_or(HeaderValue::from_static("application/octet-stream"));
            let headers = [
                (header::CONTENT_TYPE, content_type),
                (header::CACHE_CONTROL, CACHE_ONE_HOUR),
            ];
            let bytes = match file.bytes {
                Cow::Borrowed(bytes) => Bytes::from_static(bytes),
                Cow::Owned(bytes) => Bytes::from(bytes),
            };
            (headers, bytes).into_response()
        }
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(error) => {
            tracing::error!(%error, name, "cannot read a file of Swagger UI");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
