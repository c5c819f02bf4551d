//! The archive on S3, or on another store with its protocol.
//!
//! Key and region come from the usual places (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
//! `AWS_SESSION_TOKEN`, `AWS_REGION`, a role of the machine), unless the options contain them. The
//! options may contain the id of a key and the environment its secret, or the other way round.
//!
//! Required permissions on the bucket: `s3:ListBucket`; on its objects: `s3:GetObject`,
//! `s3:PutObject`, `s3:DeleteObject`, `s3:AbortMultipartUpload`; for `migrate` also
//! `s3:CreateBucket`. Incomplete uploads of a crashed process use space and are never read: add a
//! lifecycle rule that aborts incomplete uploads after a day.

mod key;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::path::Path;
use object_store::signer::Signer;
use object_store::{
    BackoffConfig, Certificate, ClientOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    RetryConfig, StaticCredentialProvider,
};
use reqwest::header::CONTENT_LENGTH;
use reqwest::{Method, StatusCode};

use crate::archive::Archive;
use crate::namespace::Namespace;
pub use crate::options::S3Options;
use crate::retry::{RetryPolicy, format_error_chain};
use crate::{Error, Result, Server, tls};

const DEFAULT_REGION: &str = "us-east-1";
const SIGNATURE_TTL: Duration = Duration::from_secs(60);
/// The object that [`Server::diagnostics`] writes; no other object begins like this.
const PROBE: &str = "backstitch-check";

/// A bucket, or a folder in one.
#[derive(Debug, Clone)]
pub struct S3 {
    store: Arc<AmazonS3>,
    prefix: Path,
    bucket: String,
    region: String,
    retry_policy: RetryPolicy,
    http: reqwest::Client,
}

/// The response to a request about the bucket.
#[derive(Debug)]
struct BucketResponse {
    status: StatusCode,
    /// The error code, such as `BucketAlreadyExists`; empty if there is none.
    code: String,
}

/// The error code in the text of a response.
fn parse_error_code(text: &str) -> &str {
    let code = text.split_once("<Code>").map_or("", |(_, rest)| rest);
    code.split_once("</Code>").map_or("", |(code, _)| code)
}

impl S3 {
    /// Creates a client of the bucket. Sends no request.
    ///
    /// # Errors
    /// [`Error::Broken`] for invalid options.
    pub fn new(options: &S3Options, namespace: &Namespace) -> Result<Self> {
        let bucket = namespace.bucket(&options.bucket);
        let endpoint = if options.endpoint.is_empty() {
            "Amazon"
        } else {
            &options.endpoint
        };
        let server = format!("S3 at {endpoint}, bucket {bucket}");
        let options_error =
            |reason: &dyn std::fmt::Display| Error::broken(format!("using {server}"), reason);
        let millis = Duration::from_millis;
        let connect_timeout = millis(options.connect_timeout_ms);
        let request_timeout = millis(options.request_timeout_ms);
        let retry_timeout = millis(options.retry_timeout_ms);
        let is_plain_http = options.endpoint.starts_with("http://");
        let mut client = ClientOptions::new()
            .with_allow_http(is_plain_http)
            .with_connect_timeout(connect_timeout)
            .with_timeout(request_timeout);
        let http = tls::http_client_builder(&options.ca_file, &|error: reqwest::Error| {
            options_error(&error)
        })?
        .connect_timeout(connect_timeout)
        .timeout(request_timeout);
        if let Some(pem) = tls::read_certificates(&options.ca_file)? {
            for trusted in
                Certificate::from_pem_bundle(&pem).map_err(|error| options_error(&error))?
            {
                client = client.with_root_certificate(trusted);
            }
        }
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(&bucket)
            .with_client_options(client)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_retry(RetryConfig {
                backoff: BackoffConfig::default(),
                max_retries: 100,
                retry_timeout,
            });
        if !options.endpoint.is_empty() {
            builder = builder.with_endpoint(&options.endpoint);
        }
        if !options.region.is_empty() {
            builder = builder.with_region(&options.region);
        }
        let environment = key::EnvironmentKey {
            id: builder.get_config_value(&AmazonS3ConfigKey::AccessKeyId),
            secret: builder.get_config_value(&AmazonS3ConfigKey::SecretAccessKey),
            token: builder.get_config_value(&AmazonS3ConfigKey::Token),
        };
        let (id, secret) = (&options.access_key_id, options.secret_access_key.reveal());
        if let Some(key) =
            key::resolve_key(id, secret, environment).map_err(|reason| options_error(&reason))?
        {
            builder = builder.with_credentials(Arc::new(StaticCredentialProvider::new(key)));
        }
        let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
        Ok(Self {
            region: region.unwrap_or_default(),
            store: Arc::new(builder.build().map_err(|error| options_error(&error))?),
            prefix: Path::parse(&options.prefix).map_err(|error| options_error(&error))?,
            bucket,
            http: http.build().map_err(|error| options_error(&error))?,
            retry_policy: RetryPolicy::new(
                server,
                request_timeout,
                request_timeout + retry_timeout,
            ),
        })
    }

    /// The archive in the bucket.
    #[must_use]
    pub fn archive(&self) -> Archive {
        let store = Arc::clone(&self.store);
        Archive::in_bucket(store, self.prefix.clone(), self.retry_policy.clone())
    }

    /// Creates the bucket if it does not exist; returns whether it did.
    async fn create_bucket(&self, operation: &str) -> Result<bool> {
        let bucket = &self.bucket;
        let refused =
            |reason: String| Err(Error::broken(self.retry_policy.describe(operation), reason));
        match self
            .send_bucket_request(operation, Method::HEAD, String::new())
            .await?
            .status
        {
            status if status.is_success() => return Ok(false),
            StatusCode::NOT_FOUND => {}
            status @ (StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED) => {
                return refused(format!(
                    "the server returned {status}: the bucket {bucket} has another owner, or this access key may not list it; use another bucket, or check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY and grant the key s3:ListBucket"
                ));
            }
            status => {
                return refused(format!(
                    "the server returned {status} for the bucket {bucket}; check the endpoint and the region"
                ));
            }
        }
        let BucketResponse { status, code } = self
            .send_bucket_request(operation, Method::PUT, self.build_bucket_configuration())
            .await?;
        if status.is_success() {
            return Ok(true);
        }
        if status == StatusCode::CONFLICT {
            // Another process is creating or deleting it.
            if code == "OperationAborted" {
                return Err(self.retry_policy.unavailable(operation, code));
            }
            // Another process of this program may have created it. Stores use different codes for
            // this.
            let retried = self
                .send_bucket_request(operation, Method::HEAD, String::new())
                .await?
                .status;
            if code == "BucketAlreadyOwnedByYou" || retried.is_success() {
                return Ok(false);
            }
            return refused(format!(
                "the server returned {status} ({code}): the bucket {bucket} has another owner; use another name"
            ));
        }
        refused(format!(
            "the server returned {status} ({code}); create the bucket {bucket} manually, or grant this access key s3:CreateBucket"
        ))
    }

    /// The region of the new bucket. The first region must not be named.
    fn build_bucket_configuration(&self) -> String {
        if self.region.is_empty() || self.region == DEFAULT_REGION {
            return String::new();
        }
        format!(
            "<CreateBucketConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><LocationConstraint>{}</LocationConstraint></CreateBucketConfiguration>",
            self.region
        )
    }

    /// Sends a request about the bucket itself, which the client does not support.
    async fn send_bucket_request(
        &self,
        operation: &str,
        method: Method,
        body: String,
    ) -> Result<BucketResponse> {
        let root = Path::default();
        let signed = self.store.signed_url(method.clone(), &root, SIGNATURE_TTL);
        let url = signed
            .await
            .map_err(|error| Error::broken(self.retry_policy.describe(operation), error))?;
        let request = self
            .http
            .request(method, url.as_str())
            .header(CONTENT_LENGTH, body.len())
            .body(body);
        let response = request.send().await;
        // The URL contains a signature.
        let response = response.map_err(|error| {
            self.retry_policy
                .unavailable(operation, format_error_chain(&error.without_url()))
        })?;
        let status = response.status();
        if status.is_server_error() {
            return Err(self.retry_policy.unavailable(operation, status));
        }
        let text = response.text().await.unwrap_or_default();
        Ok(BucketResponse {
            status,
            code: parse_error_code(&text).to_owned(),
        })
    }

    async fn delete_probe(&self, probe: &Path) -> Result<()> {
        match self.store.delete(probe).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.retry_policy.unavailable("deleting a probe", error)),
        }
    }
}

#[async_trait]
impl Server for S3 {
    fn name(&self) -> &'static str {
        "archive on S3"
    }

    async fn migrate(&self) -> Result<Vec<String>> {
        let operation = "creating the bucket";
        let created = self
            .retry_policy
            .retry(operation, || self.create_bucket(operation))
            .await?;
        if !created {
            return Ok(Vec::new());
        }
        Ok(vec![format!("created the bucket {}", self.bucket)])
    }

    async fn diagnostics(&self) -> Result<Vec<String>> {
        let status = self.retry_policy.try_once("reading the bucket", async {
            self.send_bucket_request("reading the bucket", Method::HEAD, String::new())
                .await
        });
        let server = self.retry_policy.server();
        match status.await?.status {
            StatusCode::NOT_FOUND => {
                return Ok(vec![format!(
                    "{server}: the bucket does not exist; run `backstitch migrate`"
                )]);
            }
            StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => {
                return Ok(vec![format!(
                    "{server}: this access key has no permission for the bucket; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the policy of the bucket"
                )]);
            }
            _ => {}
        }
        let probe = self.prefix.clone().join(PROBE);
        let create = || PutOptions::from(PutMode::Create);
        let mut problems = Vec::new();
        // A leftover of an earlier check.
        self.delete_probe(&probe).await?;
        let first = self.store.put_opts(&probe, PROBE.into(), create()).await;
        if let Err(error) = first {
            return Ok(vec![format!("{server}: cannot write an object: {error}")]);
        }
        let second = self.store.put_opts(&probe, PROBE.into(), create()).await;
        if !matches!(second, Err(object_store::Error::AlreadyExists { .. })) {
            problems.push(format!(
                "{server}: the store ignores If-None-Match and replaced an existing object, so two batch runs could write the same manifest. Use a store with conditional writes"
            ));
        }
        self.delete_probe(&probe).await?;
        Ok(problems)
    }
}
