//! A plain HTTP client for tests.

use std::time::Duration;

use serde_json::Value;
use ureq::Agent;

/// A client of one server.
#[derive(Debug, Clone)]
pub struct Client {
    agent: Agent,
    base: String,
}

impl Client {
    /// Creates a client of the server at `base`, given as `http://HOST:PORT`.
    #[must_use]
    pub fn new(base: &str) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(60)))
            .build();
        Self {
            agent: agent.into(),
            base: base.to_owned(),
        }
    }

    /// Returns host and port of the server.
    #[must_use]
    pub fn address(&self) -> &str {
        self.base.strip_prefix("http://").unwrap_or(&self.base)
    }

    /// Gets a path and expects JSON, without blocking the runtime.
    ///
    /// # Panics
    /// If the response is not 200 and JSON.
    pub async fn fetch_json(&self, path: &str) -> Value {
        let client = self.clone();
        let owned_path = path.to_owned();
        let response = tokio::task::spawn_blocking(move || client.get_json(&owned_path)).await;
        response.unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    /// Gets a path and expects JSON.
    ///
    /// # Panics
    /// If the response is not 200 and JSON.
    #[must_use]
    pub fn get_json(&self, path: &str) -> Value {
        let (status, body) = self.get(path);
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap_or_else(|e| panic!("{path}: {e}: {body}"))
    }

    /// Gets a path; returns status and body.
    ///
    /// # Panics
    /// If the server does not answer.
    #[must_use]
    pub fn get(&self, path: &str) -> (u16, String) {
        let url = format!("{}{path}", self.base);
        let mut response = self
            .agent
            .get(&url)
            .call()
            .unwrap_or_else(|e| panic!("{url}: {e}"));
        let status = response.status().as_u16();
        (
            status,
            response.body_mut().read_to_string().expect("a body"),
        )
    }

    /// Posts a body to a path; returns status and body.
    ///
    /// # Panics
    /// If the server does not answer.
    #[must_use]
    pub fn post(&self, path: &str, body: &[u8]) -> (u16, String) {
        let url = format!("{}{path}", self.base);
        let mut response = self
            .agent
            .post(&url)
            .send(body)
            .unwrap_or_else(|e| panic!("{url}: {e}"));
        let status = response.status().as_u16();
        (
            status,
            response.body_mut().read_to_string().expect("a body"),
        )
    }

    /// Posts to a path with an `Accept` header; returns status, content type and body.
    ///
    /// # Panics
    /// If the server does not answer.
    #[must_use]
    pub fn post_for(&self, accept: &str, path: &str, body: &[u8]) -> (u16, String, String) {
        let url = format!("{}{path}", self.base);
        let response = self.agent.post(&url).header("accept", accept).send(body);
        let mut response = response.unwrap_or_else(|e| panic!("{url}: {e}"));
        let kind = response.headers().get("content-type");
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let (status, kind) = (response.status().as_u16(), kind.to_owned());
        let body = response.body_mut().read_to_string().expect("a body");
        (status, kind, body)
    }

    /// Patches a path with a body; returns status and body.
    ///
    /// # Panics
    /// If the server does not answer.
    #[must_use]
    pub fn patch(&self, path: &str, body: &[u8]) -> (u16, String) {
        let url = format!("{}{path}", self.base);
        let response = self.agent.patch(&url).send(body);
        let mut response = response.unwrap_or_else(|e| panic!("{url}: {e}"));
        let status = response.status().as_u16();
        (
            status,
            response.body_mut().read_to_string().expect("a body"),
        )
    }

    /// Deletes a path; returns status and body.
    ///
    /// # Panics
    /// If the server does not answer.
    #[must_use]
    pub fn delete(&self, path: &str) -> (u16, String) {
        let url = format!("{}{path}", self.base);
        let response = self.agent.delete(&url).call();
        let mut response = response.unwrap_or_else(|e| panic!("{url}: {e}"));
        let status = response.status().as_u16();
        (
            status,
            response.body_mut().read_to_string().expect("a body"),
        )
    }
}
