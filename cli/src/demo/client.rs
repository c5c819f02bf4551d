//! Asking over HTTP, as any client does.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use tokio::time::Instant;

/// How long an answer may be refused before that is a difference.
const REFUSED_FOR: Duration = Duration::from_secs(20);
const BODY_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Parameters of a request, not yet encoded.
pub(super) type Parameters = Vec<(&'static str, String)>;
/// Status and body; the body is null where there is none.
pub(super) type Answered = (u16, Value);

/// A request that changes something.
#[derive(Debug, Clone)]
pub(super) enum Ask {
    Post(Value),
    Patch(Value),
    Delete,
}

/// A client of what is served at an address.
#[derive(Debug, Clone)]
pub(super) struct Client {
    agent: ureq::Agent,
    base: String,
}

impl Client {
    pub(super) fn new(address: SocketAddr) -> Self {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(60)))
            .build()
            .into();
        Self {
            agent,
            base: format!("http://{address}"),
        }
    }

    /// Asks until the answer is whole: one that says that it is not, and one that is refused for
    /// the moment, is asked for again for some seconds.
    pub(super) async fn whole(
        &self,
        path: &str,
        parameters: &Parameters,
    ) -> anyhow::Result<Answered> {
        let begun = Instant::now();
        loop {
            let (status, body) = self.get(path, parameters).await?;
            let whole = body.pointer("/provenance/complete") == Some(&json!(true));
            if (status == 200 && whole)
                || !matches!(status, 200 | 503)
                || begun.elapsed() > REFUSED_FOR
            {
                return Ok((status, body));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn get(&self, path: &str, parameters: &Parameters) -> anyhow::Result<Answered> {
        let (client, parameters) = (self.agent.clone(), parameters.clone());
        let url = format!("{}{path}", self.base);
        let get = move || {
            let request = parameters
                .iter()
                .fold(client.get(&url), |request, (name, value)| {
                    request.query(name, value)
                });
            read(request.call()?)
        };
        tokio::task::spawn_blocking(get)
            .await?
            .with_context(|| format!("asking {path}"))
    }

    /// Changes something.
    pub(super) async fn send(&self, path: &str, ask: Ask) -> anyhow::Result<Answered> {
        let client = self.agent.clone();
        let url = format!("{}{path}", self.base);
        let send = move || {
            read(match ask {
                Ask::Post(body) => client.post(&url).send_json(&body)?,
                Ask::Patch(body) => client.patch(&url).send_json(&body)?,
                Ask::Delete => client.delete(&url).call()?,
            })
        };
        tokio::task::spawn_blocking(send)
            .await?
            .with_context(|| format!("asking for a change of {path}"))
    }
}

fn read(mut response: ureq::http::Response<ureq::Body>) -> anyhow::Result<Answered> {
    let status = response.status().as_u16();
    let body = response
        .body_mut()
        .with_config()
        .limit(BODY_BYTES_MAX)
        .read_to_vec()?;
    if body.is_empty() {
        return Ok((status, Value::Null));
    }
    Ok((status, serde_json::from_slice(&body)?))
}
