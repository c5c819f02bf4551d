//! The client of a schema registry.
//!
//! Ids never change, so what was found once is remembered. That a registry does not know an id is an
//! answer, and makes records that name it dead letters; that it does not answer is an error that may
//! pass.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream};
use moka::sync::Cache;
use reqwest::{Response, StatusCode, Url};
use schemas::avro::Writers;
use serde::Deserialize;

use super::{RegistryOptions, Schemas};
use crate::patience::{Patience, causes};
use crate::{Error, Result, Secret, Server, tls};

/// Schemas that are asked for at once, at most.
const REQUESTS_MAX: usize = 8;
/// The longest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// How much text of schemas is remembered, in bytes.
const REMEMBERED_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// So many tries go into one call.
const TRIES: u32 = 3;
/// How long it is believed that there is no schema for an id: it may be registered at any time, but a
/// producer that names what is none is not to cost a request with every record.
const NONE_FOR: Duration = Duration::from_secs(5);
/// Ids without a schema that are remembered.
const NONE_MAX: u64 = 10_000;
/// What a registry says of an id that it does not know.
const UNKNOWN_SCHEMA: i64 = 40_403;

/// A schema registry.
#[derive(Debug)]
pub struct Registry {
    http: reqwest::Client,
    url: Url,
    user: String,
    password: Secret,
    patience: Patience,
    /// Schemas that were found.
    known: Cache<u32, Arc<str>>,
    /// Why there is no schema that can be read, by id.
    unknown: Cache<u32, String>,
}

/// What a registry answers.
#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    schema: String,
    /// Absent for Avro.
    #[serde(default, rename = "schemaType")]
    kind: Option<String>,
    #[serde(default)]
    references: Vec<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Refusal {
    error_code: i64,
}

impl Registry {
    /// A client of the registry. Nothing is asked of it yet.
    ///
    /// # Errors
    /// [`Error::Broken`] for options that can't be used.
    pub fn new(options: &RegistryOptions) -> Result<Self> {
        // The address itself may hold a password, so it is not shown before it was taken apart.
        let wrong = |why: &str| Error::broken("using the schema registry: registry.url", why);
        let mut url = Url::parse(&options.url).map_err(|error| wrong(&error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong("is no address such as http://127.0.0.1:8081"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong(
                "holds a user; set registry.user and registry.password",
            ));
        }
        if !url.path().ends_with('/') {
            let path = format!("{}/", url.path());
            url.set_path(&path);
        }
        url.set_query(None);
        let server = format!("the schema registry at {url}");
        let wrong = |error: reqwest::Error| Error::broken(format!("using {server}"), error);
        let timeout = Duration::from_millis(options.request_timeout_ms.max(1));
        let http = tls::http(&options.ca_file, &wrong)?
            .connect_timeout(timeout)
            .timeout(timeout);
        Ok(Self {
            http: http.build().map_err(wrong)?,
            url,
            user: options.user.clone(),
            password: options.password.clone(),
            patience: Patience::new(server, timeout, timeout * TRIES),
            known: Cache::builder()
                .weigher(|_, text: &Arc<str>| u32::try_from(text.len()).unwrap_or(u32::MAX))
                .max_capacity(REMEMBERED_BYTES_MAX)
                .build(),
            unknown: Cache::builder()
                .time_to_live(NONE_FOR)
                .max_capacity(NONE_MAX)
                .build(),
        })
    }

    /// The text of a schema, or the reason why there is none.
    async fn found(&self, id: u32) -> Result<std::result::Result<Arc<str>, String>> {
        if let Some(text) = self.known.get(&id) {
            return Ok(Ok(text));
        }
        if let Some(why) = self.unknown.get(&id) {
            return Ok(Err(why));
        }
        let doing = format!("asking for the schema {id}");
        let doing = doing.as_str();
        let found = self
            .patience
            .repeated(doing, || async move {
                let answer = self.get(doing, &format!("schemas/ids/{id}")).await?;
                let status = self.passing(doing, answer.status())?;
                let body = self.body(doing, answer).await?;
                self.read(doing, id, status, &body)
            })
            .await?;
        match &found {
            Ok(text) => self.known.insert(id, Arc::clone(text)),
            Err(why) => self.unknown.insert(id, why.clone()),
        }
        Ok(found)
    }

    async fn get(&self, doing: &str, path: &str) -> Result<Response> {
        let url = self.url.join(path);
        let url = url.map_err(|error| Error::broken(self.patience.what(doing), error))?;
        let mut request = self.http.get(url);
        if !self.user.is_empty() {
            request = request.basic_auth(&self.user, Some(self.password.reveal()));
        }
        let answer = request.send().await;
        answer.map_err(|error| {
            self.patience
                .unavailable(doing, causes(&error.without_url()))
        })
    }

    /// A status that is an answer; another one may pass.
    fn passing(&self, doing: &str, status: StatusCode) -> Result<StatusCode> {
        let busy = [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT];
        if status.is_server_error() || busy.contains(&status) {
            return Err(self.patience.unavailable(doing, status));
        }
        Ok(status)
    }

    async fn body(&self, doing: &str, mut answer: Response) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let chunk = answer.chunk().await;
            let chunk = chunk.map_err(|error| {
                self.patience
                    .unavailable(doing, causes(&error.without_url()))
            })?;
            let Some(chunk) = chunk else {
                return Ok(body);
            };
            if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                let why = format!("the answer has more than {ANSWER_BYTES_MAX} bytes");
                return Err(Error::broken(self.patience.what(doing), why));
            }
            body.extend_from_slice(&chunk);
        }
    }

    fn read(
        &self,
        doing: &str,
        id: u32,
        status: StatusCode,
        body: &[u8],
    ) -> Result<std::result::Result<Arc<str>, String>> {
        let broken = |why: String| Err(Error::broken(self.patience.what(doing), why));
        let server = self.patience.server();
        match status {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => {
                // Anything may answer that it has no such page, but only a registry says this.
                let refusal: Option<Refusal> = serde_json::from_slice(body).ok();
                return match refusal {
                    Some(refusal) if refusal.error_code == UNKNOWN_SCHEMA => {
                        Ok(Err(format!("{server} does not know the Avro schema {id}")))
                    }
                    _ => broken(format!(
                        "it answers {status}, but not as a schema registry does; check registry.url"
                    )),
                };
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return broken(format!(
                    "it answers {status}; check registry.user and registry.password"
                ));
            }
            _ => return broken(format!("it answers {status}; check registry.url")),
        }
        let answer: Answer = match serde_json::from_slice(body) {
            Ok(answer) => answer,
            Err(error) => {
                return broken(format!(
                    "its answer is not that of a schema registry: {error}; check registry.url"
                ));
            }
        };
        Ok(match answer.kind {
            Some(kind) if kind != "AVRO" => {
                Err(format!("schema {id} of {server} is not Avro, but {kind}"))
            }
            _ if !answer.references.is_empty() => Err(format!(
                "schema {id} of {server} refers to other schemas: that is not read"
            )),
            _ => Ok(answer.schema.into()),
        })
    }
}

#[async_trait]
impl Server for Registry {
    fn name(&self) -> &'static str {
        "schema registry"
    }

    async fn flaws(&self) -> Result<Vec<String>> {
        let doing = "asking for types of schemas";
        let asked = self.patience.repeated(doing, || async {
            let status = self.get(doing, "schemas/types").await?.status();
            self.passing(doing, status)
        });
        let status = asked.await?;
        let server = self.patience.server();
        Ok(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => vec![format!(
                "{server}: answers {status}; check registry.user and registry.password"
            )],
            // Old ones know no types.
            status if status.is_success() || status == StatusCode::NOT_FOUND => Vec::new(),
            status => vec![format!("{server}: answers {status}; check registry.url")],
        })
    }
}

#[async_trait]
impl Schemas for Registry {
    async fn writers(&self, ids: &BTreeSet<u32>) -> Result<Writers> {
        let asked = ids.iter().copied();
        let asked = asked.map(|id| async move { Ok::<_, Error>((id, self.found(id).await?)) });
        let found: Vec<_> = stream::iter(asked)
            .buffer_unordered(REQUESTS_MAX)
            .try_collect()
            .await?;
        let mut writers = Writers::default();
        for (id, found) in found {
            writers.insert(id, found);
        }
        Ok(writers)
    }
}
