//! The client of a schema registry.
//!
//! Ids never change, so schemas are cached. An id that the registry does not know is a result, and
//! makes records with this id dead letters. No answer is a transient error.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream};
use moka::sync::Cache;
use reqwest::{Response, StatusCode, Url};
use schemas::avro::WriterSchemas;
use serde::Deserialize;

use super::{RegistryOptions, SchemaSource};
use crate::retry::{RetryPolicy, format_error_chain};
use crate::{Error, Result, Secret, Server, tls};

/// The maximum number of concurrent requests.
const REQUESTS_MAX: usize = 8;
/// The maximum size of a response, in bytes.
const RESPONSE_BYTES_MAX: usize = 1024 * 1024;
/// The capacity of the cache of schemas, in bytes.
const CACHED_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// The number of tries of one call.
const CALL_TRIES: u32 = 3;
/// How long an unknown id is cached. A schema may be registered at any time, but a producer with a
/// wrong id must not cause a request for every record.
const UNKNOWN_TTL: Duration = Duration::from_secs(5);
/// The maximum number of cached unknown ids.
const UNKNOWN_MAX: u64 = 10_000;
/// The error code of a registry for an unknown id.
const UNKNOWN_SCHEMA_CODE: i64 = 40_403;

/// A schema registry.
#[derive(Debug)]
pub struct Registry {
    http: reqwest::Client,
    url: Url,
    user: String,
    password: Secret,
    retry_policy: RetryPolicy,
    /// The schemas by id.
    schema_cache: Cache<u32, Arc<str>>,
    /// By id, the reason why there is no usable schema.
    error_cache: Cache<u32, String>,
}

/// A response of a registry.
#[derive(Deserialize)]
struct SchemaResponse {
    #[serde(default)]
    schema: String,
    /// Absent for Avro.
    #[serde(default, rename = "schemaType")]
    kind: Option<String>,
    #[serde(default)]
    references: Vec<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct ErrorResponse {
    error_code: i64,
}

impl Registry {
    /// Creates a client. Sends no request.
    ///
    /// # Errors
    /// [`Error::Broken`] for invalid options.
    pub fn new(options: &RegistryOptions) -> Result<Self> {
        // The URL may contain a password, so it is not shown before it is parsed.
        let url_error =
            |reason: &str| Error::broken("using the schema registry: registry.url", reason);
        let mut url = Url::parse(&options.url).map_err(|error| url_error(&error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(url_error("is not a URL such as http://127.0.0.1:8081"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(url_error(
                "contains a user; set registry.user and registry.password instead",
            ));
        }
        if !url.path().ends_with('/') {
            let path = format!("{}/", url.path());
            url.set_path(&path);
        }
        url.set_query(None);
        let server = format!("the schema registry at {url}");
        let url_error = |error: reqwest::Error| Error::broken(format!("using {server}"), error);
        let timeout = Duration::from_millis(options.request_timeout_ms.max(1));
        let http = tls::http_client_builder(&options.ca_file, &url_error)?
            .connect_timeout(timeout)
            .timeout(timeout);
        Ok(Self {
            http: http.build().map_err(url_error)?,
            url,
            user: options.user.clone(),
            password: options.password.clone(),
            retry_policy: RetryPolicy::new(server, timeout, timeout * CALL_TRIES),
            schema_cache: Cache::builder()
                .weigher(|_, text: &Arc<str>| u32::try_from(text.len()).unwrap_or(u32::MAX))
                .max_capacity(CACHED_BYTES_MAX)
                .build(),
            error_cache: Cache::builder()
                .time_to_live(UNKNOWN_TTL)
                .max_capacity(UNKNOWN_MAX)
                .build(),
        })
    }

    /// The text of a schema, or the reason why it is not available.
    async fn find_schema(&self, id: u32) -> Result<std::result::Result<Arc<str>, String>> {
        if let Some(text) = self.schema_cache.get(&id) {
            return Ok(Ok(text));
        }
        if let Some(reason) = self.error_cache.get(&id) {
            return Ok(Err(reason));
        }
        let operation = format!("reading the Avro schema {id}");
        let operation = operation.as_str();
        let schema = self
            .retry_policy
            .retry(operation, || async move {
                let response = self.get(operation, &format!("schemas/ids/{id}")).await?;
                let status = self.check_status(operation, response.status())?;
                let body = self.read_body(operation, response).await?;
                self.parse_response(operation, id, status, &body)
            })
            .await?;
        match &schema {
            Ok(text) => self.schema_cache.insert(id, Arc::clone(text)),
            Err(reason) => self.error_cache.insert(id, reason.clone()),
        }
        Ok(schema)
    }

    async fn get(&self, operation: &str, path: &str) -> Result<Response> {
        let url = self.url.join(path);
        let url =
            url.map_err(|error| Error::broken(self.retry_policy.describe(operation), error))?;
        let mut request = self.http.get(url);
        if !self.user.is_empty() {
            request = request.basic_auth(&self.user, Some(self.password.reveal()));
        }
        let response = request.send().await;
        response.map_err(|error| {
            self.retry_policy
                .unavailable(operation, format_error_chain(&error.without_url()))
        })
    }

    /// Accepts a final status; others are transient errors.
    fn check_status(&self, operation: &str, status: StatusCode) -> Result<StatusCode> {
        let busy = [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT];
        if status.is_server_error() || busy.contains(&status) {
            return Err(self.retry_policy.unavailable(operation, status));
        }
        Ok(status)
    }

    async fn read_body(&self, operation: &str, mut response: Response) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let chunk = response.chunk().await;
            let chunk = chunk.map_err(|error| {
                self.retry_policy
                    .unavailable(operation, format_error_chain(&error.without_url()))
            })?;
            let Some(chunk) = chunk else {
                return Ok(body);
            };
            if body.len() + chunk.len() > RESPONSE_BYTES_MAX {
                let reason = format!("the response is larger than {RESPONSE_BYTES_MAX} bytes");
                return Err(Error::broken(self.retry_policy.describe(operation), reason));
            }
            body.extend_from_slice(&chunk);
        }
    }

    fn parse_response(
        &self,
        operation: &str,
        id: u32,
        status: StatusCode,
        body: &[u8],
    ) -> Result<std::result::Result<Arc<str>, String>> {
        let broken =
            |reason: String| Err(Error::broken(self.retry_policy.describe(operation), reason));
        let server = self.retry_policy.server();
        match status {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => {
                // Any server may return 404, but only a registry returns this code.
                let error_response: Option<ErrorResponse> = serde_json::from_slice(body).ok();
                return match error_response {
                    Some(error_response) if error_response.error_code == UNKNOWN_SCHEMA_CODE => {
                        Ok(Err(format!("{server} does not know the Avro schema {id}")))
                    }
                    _ => broken(format!(
                        "the server returned {status}, but not in the format of a schema registry; check registry.url"
                    )),
                };
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return broken(format!(
                    "the server returned {status}; check registry.user and registry.password"
                ));
            }
            _ => return broken(format!("the server returned {status}; check registry.url")),
        }
        let response: SchemaResponse = match serde_json::from_slice(body) {
            Ok(response) => response,
            Err(error) => {
                return broken(format!(
                    "the response is not that of a schema registry: {error}; check registry.url"
                ));
            }
        };
        Ok(match response.kind {
            Some(kind) if kind != "AVRO" => Err(format!(
                "schema {id} of {server} has the type {kind}, not AVRO"
            )),
            _ if !response.references.is_empty() => Err(format!(
                "schema {id} of {server} refers to other schemas, which is not supported"
            )),
            _ => Ok(response.schema.into()),
        })
    }
}

#[async_trait]
impl Server for Registry {
    fn name(&self) -> &'static str {
        "schema registry"
    }

    async fn diagnostics(&self) -> Result<Vec<String>> {
        let operation = "reading the supported schema types";
        let call = self.retry_policy.retry(operation, || async {
            let status = self.get(operation, "schemas/types").await?.status();
            self.check_status(operation, status)
        });
        let status = call.await?;
        let server = self.retry_policy.server();
        Ok(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => vec![format!(
                "{server} returned {status}; check registry.user and registry.password"
            )],
            // Old registries don't support types.
            status if status.is_success() || status == StatusCode::NOT_FOUND => Vec::new(),
            status => vec![format!("{server} returned {status}; check registry.url")],
        })
    }
}

#[async_trait]
impl SchemaSource for Registry {
    async fn fetch_writer_schemas(&self, ids: &BTreeSet<u32>) -> Result<WriterSchemas> {
        let requests = ids.iter().copied();
        let requests =
            requests.map(|id| async move { Ok::<_, Error>((id, self.find_schema(id).await?)) });
        let results: Vec<_> = stream::iter(requests)
            .buffer_unordered(REQUESTS_MAX)
            .try_collect()
            .await?;
        let mut writers = WriterSchemas::default();
        for (id, results) in results {
            writers.insert(id, results);
        }
        Ok(writers)
    }
}
