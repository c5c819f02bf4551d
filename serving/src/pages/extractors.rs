//! Extractors of the page handlers: fields of forms, and numbers in addresses.

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};

use super::api_error::ApiError;
use super::client::ApiClient;
use super::components::ProblemPage;
use super::query::Query;
use super::state::Pages;
use crate::http::{Path, Problem, body, parse_integer};

/// Maximum size of a form, in bytes.
pub(super) const FORM_BYTES_MAX: u64 = 16 * 1024;

/// Title of the page for unknown addresses.
const NOT_FOUND_TITLE: &str = "Page not found";

/// The fields of a form.
pub(super) struct Form(pub(super) Query);

impl FromRequest<Pages> for Form {
    type Rejection = Problem;

    async fn from_request(request: Request, pages: &Pages) -> Result<Self, Problem> {
        let form = body::read_up_to(&pages.api, request, FORM_BYTES_MAX).await?;
        Ok(Self(Query::parse(Some(&String::from_utf8_lossy(&form)))))
    }
}

/// A numeric path parameter of a page.
pub(super) struct Number(pub(super) String);

impl FromRequestParts<Pages> for Number {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, pages: &Pages) -> Result<Self, Response> {
        let Path(id) = Path::<String>::from_request_parts(parts, pages)
            .await
            .map_err(Problem::into_response)?;
        if parse_integer(&id).is_some() {
            return Ok(Self(id));
        }
        let Ok(client) = ApiClient::from_request_parts(parts, pages).await;
        let entities = parts.uri.path().split('/').nth(1);
        Err(invalid_number_page(
            &client,
            entities.unwrap_or_default(),
            &id,
        ))
    }
}

/// Page for an address with an invalid number.
pub(super) fn invalid_number_page(client: &ApiClient, entities: &str, id: &str) -> Response {
    let detail = format!("{id:?} is not a number: addresses of {entities} end with a number");
    ProblemPage::render_error(&client.caller, ApiError::new(404, NOT_FOUND_TITLE, detail))
}
