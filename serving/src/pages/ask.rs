//! What pages show they ask of the API, in this process and as who looks at the page: so a page says what the API says, and
//! nobody sees on it what their key does not read.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{Method, Request, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use stores::names::Named;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tower::ServiceExt;

use super::Pages;
use super::cookie::is_over_tls;
use super::parts::Tools;
use crate::http::{Api, Caller, asked_host};

/// The largest answer that a page takes in, in bytes.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// How long a page waits for names, without which it is whole.
const NAMES_WAIT: Duration = Duration::from_secs(1);

/// How long a name is looked for: all of them are read.
const FIND_WAIT: Duration = Duration::from_secs(5);
/// Of those who look for names so many are answered at once.
static FINDING: Semaphore = Semaphore::const_new(2);

/// An error of the API as pages show it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Template)]
#[template(path = "trouble.html")]
pub(crate) struct ApiError {
    pub(crate) status: u16,
    pub(crate) title: String,
    pub(crate) detail: String,
    #[serde(default)]
    pub(crate) request_id: String,
}

impl ApiError {
    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Whether it is about what was asked, and not about the service.
    pub(crate) const fn is_refusal(&self) -> bool {
        matches!(self.status, 400..429)
    }

    /// Whether it is worth asking again.
    pub(crate) const fn may_pass(&self) -> bool {
        matches!(self.status, 429 | 503)
    }

    /// One that a page finds itself, without asking the API.
    pub(crate) fn own(status: u16, title: &str, detail: impl Into<String>) -> Self {
        Self {
            status,
            title: title.to_owned(),
            detail: detail.into(),
            request_id: String::new(),
        }
    }

    fn broken(what: impl std::fmt::Display) -> Self {
        tracing::error!(%what, "a page can't read an answer of the API");
        let detail = "the page met a fault of the service: see the service's log";
        Self::own(500, "The service failed", detail)
    }
}

/// An answer of the API or a part of a page that shows it, or why there is none.
pub(crate) type Answer<T> = Result<T, ApiError>;

/// What things are called, as far as that is known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Called(BTreeMap<i64, String>);

impl Called {
    pub(crate) fn get(&self, id: i64) -> Option<&str> {
        self.0.get(&id).map(String::as_str)
    }

    /// The name of one, or its number.
    pub(crate) fn or_number(&self, id: i64) -> String {
        self.get(id).map_or_else(|| id.to_string(), str::to_owned)
    }
}

/// The client by which a page asks the API, with the permissions of its reader.
#[derive(Debug, Clone)]
pub(crate) struct ApiClient {
    api: Router,
    state: Arc<Api>,
    pub(crate) caller: Caller,
    /// The address of the service, as the reader reached it.
    base: String,
}

impl FromRequestParts<Pages> for ApiClient {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, pages: &Pages) -> Result<Self, Infallible> {
        let host = asked_host(&parts.headers, &parts.uri).unwrap_or("localhost:8080");
        let scheme = match is_over_tls(&parts.headers) {
            true => "https",
            false => "http",
        };
        // Without a key, a reader sees what everybody may see.
        let caller = parts.extensions.get::<Caller>().cloned();
        Ok(Self {
            api: pages.api.clone(),
            state: Arc::clone(&pages.state),
            caller: caller.unwrap_or_else(Caller::stranger),
            base: format!("{scheme}://{host}"),
        })
    }
}

impl ApiClient {
    /// How to ask the API for the same; of a list that is shown page by page, as many rows as CSV as it gives at once.
    pub(crate) fn tools(&self, path: &str, is_paged: bool) -> Tools {
        Tools::new((&self.base, path), is_paged, &self.caller)
    }

    /// The moment at which is asked.
    pub(crate) fn now(&self) -> Timestamp {
        self.state.now()
    }

    /// What some things are called: ask only for those that an answer of the API named to who looks.
    pub(crate) async fn names(
        &self,
        of: Named,
        ids: impl IntoIterator<Item = i64> + Send,
    ) -> Called {
        let ids: BTreeSet<i64> = ids.into_iter().collect();
        let ids: Vec<i64> = ids.into_iter().collect();
        if ids.is_empty() {
            return Called::default();
        }
        match in_time(NAMES_WAIT, self.state.ports.canon.names(of, &ids)).await {
            Ok(names) => {
                let names = names.into_iter();
                Called(names.filter(|(_, name)| !name.trim().is_empty()).collect())
            }
            Err(why) => {
                tracing::warn!(%of, why, "names are not shown");
                Called::default()
            }
        }
    }

    /// The names of a kind that have a text in them: ask only for who may read all of them.
    pub(crate) async fn find(
        &self,
        of: Named,
        text: &str,
        limit: usize,
    ) -> Answer<Vec<(i64, String)>> {
        let find = async {
            let _one_of_few = FINDING.acquire().await;
            self.state.ports.canon.find(of, text, limit).await
        };
        in_time(FIND_WAIT, find).await.map_err(|why| {
            tracing::warn!(%of, %why, "names can't be looked for");
            let title = "Names can't be looked for at the moment";
            let detail = "The canonical store does not answer: ask again, or by the number.";
            ApiError::own(503, title, detail)
        })
    }

    /// The answer to a GET; `path` is percent-encoded.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Answer<T> {
        self.answer(Method::GET, path).await
    }

    /// The answer to a POST without a body, as of [`ApiClient::get`].
    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str) -> Answer<T> {
        self.answer(Method::POST, path).await
    }

    async fn answer<T: DeserializeOwned>(&self, method: Method, path: &str) -> Answer<T> {
        let request = Request::builder().method(method).uri(path);
        let request = request.extension(self.caller.clone());
        let request = request.body(Body::empty()).map_err(ApiError::broken)?;
        let Ok(response) = self.api.clone().oneshot(request).await;
        let status = response.status();
        // What is asked for may name somebody.
        let route = path.split('?').next().unwrap_or_default();
        let body = to_bytes(response.into_body(), ANSWER_BYTES_MAX).await;
        let body = body.map_err(ApiError::broken)?;
        if status.is_success() {
            return serde_json::from_slice(&body)
                .map_err(|error| ApiError::broken(format!("{route}: {error}")));
        }
        let error = serde_json::from_slice::<ApiError>(&body);
        Err(error.unwrap_or_else(|error| ApiError::broken(format!("{route}: {error}"))))
    }
}

/// What the entity store answers, or why it does not.
async fn in_time<T>(
    wait: Duration,
    work: impl Future<Output = stores::Result<T>>,
) -> Result<T, String> {
    let answered = timeout(wait, work).await;
    let answered = answered.map_err(|_| "the entity store does not answer in time".to_owned())?;
    answered.map_err(|error| error.to_string())
}

/// A path of the API with parameters, those that are there.
pub(crate) fn path(of: &str, parameters: &[(&str, Option<&str>)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in parameters {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            query.append_pair(name, value);
        }
    }
    let query = query.finish();
    match query.is_empty() {
        true => of.to_owned(),
        false => format!("{of}?{query}"),
    }
}
