//! Routes as they are made: each says what it needs, and the description of the API says it too.

use std::sync::Arc;

use axum::http::Method;
use utoipa::IntoResponses;
use utoipa::openapi::OpenApi;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa_axum::router::UtoipaMethodRouter;

use super::Api;
use super::access::X_API_KEY;
use super::access::table::{Need, Needs};
use super::problem::Problems;

const BEARER: &str = "bearer";
const HEADER: &str = "header";
/// Below this path each operation that takes a key can meet the same problems.
const API: &str = "/api/";

/// Describes how keys are sent.
pub(crate) fn with_keys(openapi: &mut OpenApi) {
    let components = openapi.components.get_or_insert_default();
    let said = "A key of this service. Its scopes are read:owner:ID, read:*, ingest, ingest:SOURCE or admin. Until the first \
                key is made, only requests from the service's own machine are served, without a key.";
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some(said));
    components.add_security_scheme(BEARER, SecurityScheme::Http(bearer.build()));
    let header = ApiKeyValue::with_description(X_API_KEY, said);
    components.add_security_scheme(HEADER, SecurityScheme::ApiKey(ApiKey::Header(header)));
}

/// Routes of the API that need the same, which is noted, and described.
pub(crate) fn needing(
    needs: &mut Needs,
    need: Need,
    mut routes: UtoipaMethodRouter<Arc<Api>>,
) -> UtoipaMethodRouter<Arc<Api>> {
    for (path, item) in &mut routes.1.paths {
        for (method, operation) in operations(item) {
            needs.add(path, method, need);
            if need.takes_key() {
                let either = [BEARER, HEADER];
                let either = either.map(|name| SecurityRequirement::new(name, [] as [&str; 0]));
                operation.security = Some(either.into());
            }
            if need.takes_key() && path.starts_with(API) {
                let responses = &mut operation.responses.responses;
                for (status, problem) in Problems::responses() {
                    responses.entry(status).or_insert(problem);
                }
            }
        }
    }
    routes
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = (Method, &mut Operation)> {
    let all = [
        (Method::GET, item.get.as_mut()),
        (Method::PUT, item.put.as_mut()),
        (Method::POST, item.post.as_mut()),
        (Method::PATCH, item.patch.as_mut()),
        (Method::DELETE, item.delete.as_mut()),
    ];
    all.into_iter()
        .filter_map(|(method, operation)| Some((method, operation?)))
}
