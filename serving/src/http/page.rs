//! The first page: what happens, live, and one question to ask.

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};

const PAGE: &str = include_str!("page.html");
const NONCE: &str = "NONCE";

/// A page that shows what happens, and answers one question. It loads nothing from elsewhere.
#[utoipa::path(
    get,
    path = "/",
    tag = "service",
    responses((status = 200, description = "The page", content_type = "text/html"))
)]
pub(crate) async fn page() -> Response {
    let nonce = uuid::Uuid::new_v4().simple().to_string();
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         connect-src 'self'; img-src data:; base-uri 'none'; form-action 'self'; \
         frame-ancestors 'none'"
    );
    let mut response = Html(PAGE.replace(NONCE, &nonce)).into_response();
    let headers = response.headers_mut();
    if let Ok(policy) = HeaderValue::try_from(policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    );
    headers.insert(
        HeaderName::from_static("cross-origin-opener-policy"),
        HeaderValue::from_static("same-origin"),
    );
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_page_loads_nothing_from_elsewhere() {
        assert!(
            !PAGE.contains("http://") && !PAGE.contains("https://") && !PAGE.contains("style=")
        );
        let response = page().await;
        let policy = response.headers()[header::CONTENT_SECURITY_POLICY]
            .to_str()
            .unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'nonce-"),
            "{policy}"
        );
        let body = axum::body::to_bytes(response.into_body(), usize::MAX)
            .await
            .unwrap();
        assert!(!String::from_utf8_lossy(&body).contains(NONCE));
    }
}
