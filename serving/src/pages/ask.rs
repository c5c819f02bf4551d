//! What pages show they ask of the API, in this process and as who looks at the page: so a page says what the API says, and
//! nobody sees on it what their key does not read.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tower::ServiceExt;

use crate::http::Caller;

/// The largest answer that a page takes in, in bytes.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Trouble {
    pub(crate) status: u16,
    pub(crate) title: String,
    pub(crate) detail: String,
    #[serde(default)]
    pub(crate) request_id: String,
}

impl Trouble {
    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Whether it is worth asking again.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self.status, 429 | 503)
    }

    fn broken(what: impl std::fmt::Display) -> Self {
        tracing::error!(%what, "a page can't read an answer of the API");
        Self {
            status: 500,
            title: "The service failed".to_owned(),
            detail: "the page met a fault of the service: see the service's log".to_owned(),
            request_id: String::new(),
        }
    }
}

/// An answer, or why there is none.
pub(crate) type Answer<T> = Result<T, Trouble>;

/// Who asks the API.
#[derive(Debug, Clone)]
pub(crate) struct Asker {
    api: Router,
    pub(crate) caller: Caller,
}

impl Asker {
    pub(crate) const fn new(api: Router, caller: Caller) -> Self {
        Self { api, caller }
    }

    /// The answer to a GET; `path` is percent-encoded.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Answer<T> {
        let request = Request::get(path).extension(self.caller.clone());
        let request = request.body(Body::empty()).map_err(Trouble::broken)?;
        let Ok(response) = self.api.clone().oneshot(request).await;
        let status = response.status();
        let body = to_bytes(response.into_body(), ANSWER_BYTES_MAX).await;
        let body = body.map_err(Trouble::broken)?;
        if status.is_success() {
            return serde_json::from_slice(&body)
                .map_err(|error| Trouble::broken(format!("{path}: {error}")));
        }
        let trouble = serde_json::from_slice::<Trouble>(&body);
        Err(trouble.unwrap_or_else(|error| Trouble::broken(format!("{path}: {error}"))))
    }
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
