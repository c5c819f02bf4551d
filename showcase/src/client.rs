//! An HTTP client of the API.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use schemas::source::Source;
use serde_json::{Value, json};
use tokio::time::Instant;

/// How long a request is retried after incomplete answers or status 503.
const RETRY_TIMEOUT: Duration = Duration::from_secs(20);
const BODY_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Query parameters of a request, not encoded.
pub(crate) type Parameters = Vec<(&'static str, String)>;

/// An answer. The body is null if there is none.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Answer {
    /// The log position of a source up to which the answer counts.
    pub(crate) fn position(&self, source: Source) -> Vec<i64> {
        let position = self.body.pointer(&format!("/provenance/position/{source}"));
        let offsets = position.and_then(Value::as_array).into_iter().flatten();
        offsets.filter_map(Value::as_i64).collect()
    }

    /// Returns whether the answer counts at least up to the ends of a log.
    pub(crate) fn reaches(&self, source: Source, ends: &[i64]) -> bool {
        let position = self
            .position(source)
            .into_iter()
            .chain(std::iter::repeat(0));
        ends.iter()
            .zip(position)
            .all(|(end, reached)| reached >= *end)
    }
}

/// A client of the API at an address.
#[derive(Debug)]
pub(crate) struct Client {
    agent: ureq::Agent,
    base_url: String,
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(60)));
        Self {
            agent: config.build().into(),
            base_url: format!("http://{address}/api/v1"),
        }
    }

    /// Sends a request, and retries it for [`RETRY_TIMEOUT`] after an incomplete answer or status
    /// 503.
    pub(crate) async fn get(&self, path: &str, parameters: &Parameters) -> anyhow::Result<Answer> {
        let start = Instant::now();
        let mut query = form_urlencoded::Serializer::new(String::new());
        let path = format!("{path}?{}", query.extend_pairs(parameters).finish());
        loop {
            let answer = self.send("GET", &path, Value::Null).await?;
            let is_complete = answer.body.pointer("/provenance/complete") == Some(&json!(true));
            let may_change = answer.status == 503 || answer.status == 200 && !is_complete;
            if !may_change || start.elapsed() > RETRY_TIMEOUT {
                return Ok(answer);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Sends one request. GET and DELETE ignore `body`.
    pub(crate) async fn send(
        &self,
        method: &'static str,
        path: &str,
        body: Value,
    ) -> anyhow::Result<Answer> {
        let agent = self.agent.clone();
        let url = format!("{}{path}", self.base_url);
        let send = move || {
            let mut response = match method {
                "POST" => agent.post(&url).send_json(&body)?,
                "PATCH" => agent.patch(&url).send_json(&body)?,
                "DELETE" => agent.delete(&url).call()?,
                _ => agent.get(&url).call()?,
            };
            let status = response.status().as_u16();
            let body = response.body_mut().with_config().limit(BODY_BYTES_MAX);
            let bytes = body.read_to_vec()?;
            let body = if bytes.is_empty() {
                Value::Null
            } else {
                serde_json::from_slice(&bytes)?
            };
            anyhow::Ok(Answer { status, body })
        };
        let answer = tokio::task::spawn_blocking(send).await?;
        answer.with_context(|| format!("cannot request {path}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reaches_compares_positions_of_all_partitions() {
        let body = json!({"provenance": {"position": {"efforts": [4, 0]}}});
        let answer = Answer { status: 200, body };
        for (ends, reached) in [
            (&[4, 0][..], true),
            (&[3], true),
            (&[4, 0, 0], true),
            (&[5, 0], false),
            (&[0, 0, 1], false),
        ] {
            assert_eq!(answer.reaches(Source::Efforts, ends), reached, "{ends:?}");
        }
        assert!(!answer.reaches(Source::Authorizations, &[1]));
    }
}
