//! The in-process client with which pages query the API. It has the permissions of the caller, so a
//! page shows only data that the caller's key may read.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{Method, Request};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use stores::names::NamedKind;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tower::ServiceExt;

use super::api_error::{ApiError, ApiResult};
use super::components::ExportLinks;
use super::query::entity_path;
use super::state::Pages;
use crate::http::{Api, Caller, find_request_host, is_over_tls, parse_integer};

/// Maximum size of an API response, in bytes.
const RESPONSE_BYTES_MAX: usize = 16 << 20;

/// Maximum wait for names. A page works without them.
const NAMES_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum duration of a search by name, which scans all names.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Limits concurrent searches by name.
static SEARCHES: Semaphore = Semaphore::const_new(2);

/// Known names by ID.
#[derive(Debug, Clone, Default)]
pub(crate) struct EntityNames(BTreeMap<i64, String>);

impl EntityNames {
    pub(crate) fn get(&self, id: i64) -> Option<&str> {
        self.0.get(&id).map(String::as_str)
    }

    /// The name of an ID, or the ID.
    pub(crate) fn or_number(&self, id: i64) -> String {
        self.get(id).map_or_else(|| id.to_string(), str::to_owned)
    }
}

/// Client of the API with the permissions of the page's reader.
#[derive(Debug, Clone)]
pub(crate) struct ApiClient {
    router: Router,
    api: Arc<Api>,
    pub(crate) caller: Caller,
    /// Base URL of the service, as the reader reached it.
    base_url: String,
}

impl FromRequestParts<Pages> for ApiClient {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, pages: &Pages) -> Result<Self, Infallible> {
        let host = find_request_host(&parts.headers, &parts.uri).unwrap_or("localhost:8080");
        let scheme = match is_over_tls(&parts.headers) {
            true => "https",
            false => "http",
        };
        // Without a key, a reader sees public data only.
        let caller = parts.extensions.get::<Caller>().cloned();
        Ok(Self {
            router: pages.router.clone(),
            api: Arc::clone(&pages.api),
            caller: caller.unwrap_or_else(Caller::anonymous),
            base_url: format!("{scheme}://{host}"),
        })
    }
}

impl ApiClient {
    /// Export links for an API path. For a paged list, the CSV has as many rows as the API permits.
    pub(crate) fn export_links(&self, path: &str, is_paged: bool) -> ExportLinks {
        ExportLinks::new(&self.base_url, path, is_paged, &self.caller)
    }

    /// The time of the request.
    pub(crate) fn now(&self) -> Timestamp {
        self.api.now()
    }

    /// Fetches names of entities. Callers may only pass IDs that the API disclosed to the reader.
    pub(crate) async fn fetch_names(
        &self,
        kind: NamedKind,
        ids: impl IntoIterator<Item = i64> + Send,
    ) -> EntityNames {
        let ids: BTreeSet<i64> = ids.into_iter().collect();
        let ids: Vec<i64> = ids.into_iter().collect();
        if ids.is_empty() {
            return EntityNames::default();
        }
        match with_timeout(
            NAMES_TIMEOUT,
            self.api.ports.entities.read_names(kind, &ids),
        )
        .await
        {
            Ok(names) => {
                let names = names.into_iter();
                EntityNames(names.filter(|(_, name)| !name.trim().is_empty()).collect())
            }
            Err(reason) => {
                tracing::warn!(%kind, reason, "cannot read names; the page shows numbers");
                EntityNames::default()
            }
        }
    }

    /// Finds names that contain a text. Callers must check that the reader may read all of them.
    pub(crate) async fn find_names(
        &self,
        kind: NamedKind,
        text: &str,
        limit: usize,
    ) -> ApiResult<Vec<(i64, String)>> {
        let search = async {
            let _permit = SEARCHES.acquire().await;
            self.api.ports.entities.find_names(kind, text, limit).await
        };
        with_timeout(SEARCH_TIMEOUT, search)
            .await
            .map_err(|reason| {
                tracing::warn!(%kind, %reason, "cannot search names");
                let title = "The search is unavailable";
                let detail = "The entity store does not respond: try again, or enter the number.";
                ApiError::new(503, title, detail)
            })
    }

    /// Returns whether a metric has a column.
    pub(crate) fn has_column(&self, metric: &str, column: &str) -> bool {
        let metric = self.api.metrics.get(metric);
        metric.is_some_and(|metric| metric.columns().contains_key(column))
    }

    /// Sends a GET request; `path` is percent-encoded.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> ApiResult<T> {
        let response = self.send(Method::GET, path).await;
        response.map_err(|error| match error.status {
            403 => self.explain_not_permitted(error),
            _ => error,
        })
    }

    /// Names the owners that the caller may read, with a link to their page.
    fn explain_not_permitted(&self, error: ApiError) -> ApiError {
        let reads_all = self.caller.may_read_all();
        let owners: Vec<&str> = self.caller.owners().filter(|_| !reads_all).collect();
        let owner_id = self.caller.only_owner().and_then(parse_integer);
        let path = owner_id.map_or_else(|| "/".to_owned(), |id| entity_path("owner", id));
        let noun = if owners.len() == 1 { "owner" } else { "owners" };
        match owners.as_slice() {
            [] => error,
            owners => {
                let detail = format!("Your key shows {noun} {} only.", owners.join(", "));
                error.explain(detail, path, "Open")
            }
        }
    }

    /// Sends a POST request without a body; `path` is percent-encoded.
    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str) -> ApiResult<T> {
        self.send(Method::POST, path).await
    }

    async fn send<T: DeserializeOwned>(&self, method: Method, path: &str) -> ApiResult<T> {
        let request = Request::builder().method(method).uri(path);
        let request = request.extension(self.caller.clone());
        let request = request.body(Body::empty()).map_err(ApiError::unreadable)?;
        let Ok(response) = self.router.clone().oneshot(request).await;
        let status = response.status();
        // The query may contain personal data, so it is not logged.
        let route = path.split('?').next().unwrap_or_default();
        let body = to_bytes(response.into_body(), RESPONSE_BYTES_MAX).await;
        let body = body.map_err(ApiError::unreadable)?;
        if status.is_success() {
            return serde_json::from_slice(&body)
                .map_err(|error| ApiError::unreadable(format!("{route}: {error}")));
        }
        let error = serde_json::from_slice::<ApiError>(&body);
        Err(error.unwrap_or_else(|error| ApiError::unreadable(format!("{route}: {error}"))))
    }
}

/// Runs a query of the entity store with a timeout.
async fn with_timeout<T>(
    limit: Duration,
    query: impl Future<Output = stores::Result<T>>,
) -> Result<T, String> {
    let result = timeout(limit, query).await;
    let result = result.map_err(|_| "the entity store did not respond in time".to_owned())?;
    result.map_err(|error| error.to_string())
}
