//! Registers the required scope of each route, and describes it in the OpenAPI document. Negotiates
//! CSV on routes that have it.

use std::sync::Arc;

use axum::http::Method;
use axum::middleware::from_fn;
use utoipa::IntoResponses;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{OpenApi, RefOr};
use utoipa_axum::router::UtoipaMethodRouter;

use super::access::X_API_KEY;
use super::access::table::{RequiredScope, RouteScopes};
use super::problem::Problems;
use super::{Api, csv};

/// Names of the security schemes.
const BEARER: &str = "bearer";
const HEADER: &str = "header";
/// Operations below this path that take a key share the problems of [`Problems`].
const API_PREFIX: &str = "/api/";

/// Describes how clients send keys.
pub(crate) fn add_security_schemes(openapi: &mut OpenApi) {
    let components = openapi.components.get_or_insert_default();
    let description = "A key of this service with one or more of the scopes read:owner:ID, read:*, ingest, ingest:SOURCE and admin. \
                               Until the first key is created, only loopback requests are accepted, without authentication.";
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some(description));
    components.add_security_scheme(BEARER, SecurityScheme::Http(bearer.build()));
    let header = ApiKeyValue::with_description(X_API_KEY, description);
    components.add_security_scheme(HEADER, SecurityScheme::ApiKey(ApiKey::Header(header)));
}

/// Registers and describes the required scope of some routes.
pub(crate) fn register_scope(
    scopes: &mut RouteScopes,
    scope: RequiredScope,
    mut routes: UtoipaMethodRouter<Arc<Api>>,
) -> UtoipaMethodRouter<Arc<Api>> {
    let mut has_csv = false;
    for (path, item) in &mut routes.1.paths {
        for (method, operation) in list_operations(item) {
            scopes.add(path, method, scope);
            let mut parameters = operation.parameters.iter().flatten();
            has_csv |= parameters
                .any(|parameter| matches!(parameter, RefOr::T(found) if found.name == "format"));
            if scope.requires_key() {
                let schemes = [BEARER, HEADER];
                let schemes = schemes.map(|name| SecurityRequirement::new(name, [] as [&str; 0]));
                operation.security = Some(schemes.into());
            }
            if scope.requires_key() && path.starts_with(API_PREFIX) {
                let responses = &mut operation.responses.responses;
                for (status, problem) in Problems::responses() {
                    responses.entry(status).or_insert(problem);
                }
            }
        }
    }
    if has_csv {
        routes.2 = routes.2.layer(from_fn(csv::negotiate));
    }
    routes
}

fn list_operations(item: &mut PathItem) -> impl Iterator<Item = (Method, &mut Operation)> {
    let operations = [
        (Method::GET, item.get.as_mut()),
        (Method::PUT, item.put.as_mut()),
        (Method::POST, item.post.as_mut()),
        (Method::PATCH, item.patch.as_mut()),
        (Method::DELETE, item.delete.as_mut()),
    ];
    operations
        .into_iter()
        .filter_map(|(method, operation)| Some((method, operation?)))
}
