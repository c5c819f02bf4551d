//! What the description of the API says of keys: how they are sent, and which requests need one.

use axum::http::Method;
use utoipa::openapi::OpenApi;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};

use super::access::X_API_KEY;
use super::access::table::{Known, Need, needs};

const BEARER: &str = "bearer";
const HEADER: &str = "header";

/// Says it of every operation, as the table of routes has it.
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
    for (path, item) in &mut openapi.paths.paths {
        for (method, operation) in operations(item) {
            if needs_key(&method, path) {
                let either = [BEARER, HEADER];
                let either = either.map(|name| SecurityRequirement::new(name, [] as [&str; 0]));
                operation.security = Some(either.into());
            }
        }
    }
}

fn needs_key(method: &Method, path: &str) -> bool {
    match needs(method, path) {
        Known::Needs(Need::Free | Need::Nothing | Need::Open) => false,
        Known::Needs(_) | Known::OtherMethods(_) | Known::Forgotten => true,
    }
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
