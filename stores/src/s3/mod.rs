//! The archive on S3, or on another store that speaks its protocol.
//!
//! Keys and region come from the usual places (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
//! `AWS_SESSION_TOKEN`, `AWS_REGION`, a role of the machine), unless they are among the options. The id of
//! a key may be an option and its secret in the environment, or the other way round.
//!
//! Rights that are needed on the bucket: `s3:ListBucket`, and on its objects `s3:GetObject`,
//! `s3:PutObject`, `s3:DeleteObject`, `s3:AbortMultipartUpload`; for `migrate` also `s3:CreateBucket`.
//! What a process that died left half uploaded costs space and is never read: let a rule of the
//! bucket's life cycle abort incomplete uploads after a day.

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
use crate::patience::{Patience, causes};
use crate::{Error, Result, Server, tls};

const REGION_UNNAMED: &str = "us-east-1";
const SIGNED_FOR: Duration = Duration::from_secs(60);
/// Written by [`Server::flaws`]; nothing else begins like this.
const PROBE: &str = "backstitch-check";

/// A bucket, or a folder in one.
#[derive(Debug, Clone)]
pub struct S3 {
    store: Arc<AmazonS3>,
    prefix: Path,
    bucket: String,
    region: String,
    patience: Patience,
    http: reqwest::Client,
}

/// What a server says to a request about the bucket.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    /// The name of the error, such as `BucketAlreadyExists`; empty where it tells none.
    code: String,
}

/// The name of the error in the text of an answer.
fn error_code(text: &str) -> &str {
    let code = text.split_once("<Code>").map_or("", |(_, rest)| rest);
    code.split_once("</Code>").map_or("", |(code, _)| code)
}

impl S3 {
    /// A client of the bucket. Nothing is asked of the server yet.
    ///
    /// # Errors
    /// [`Error::Broken`] for options that can't be used.
    pub fn new(options: &S3Options, namespace: &Namespace) -> Result<Self> {
        let bucket = namespace.bucket(&options.bucket);
        let place = if options.endpoint.is_empty() {
            "Amazon"
        } else {
            &options.endpoint
        };
        let server = format!("S3 at {place}, bucket {bucket}");
        let wrong = |why: &dyn std::fmt::Display| Error::broken(format!("using {server}"), why);
        let millis = Duration::from_millis;
        let (connect, request) = (
            millis(options.connect_timeout_ms),
            millis(options.request_timeout_ms),
        );
        let retry = millis(options.retry_timeout_ms);
        let plain = options.endpoint.starts_with("http://");
        let mut client = ClientOptions::new()
            .with_allow_http(plain)
            .with_connect_timeout(connect)
            .with_timeout(request);
        let http = tls::http(&options.ca_file, &|error: reqwest::Error| wrong(&error))?
            .connect_timeout(connect)
            .timeout(request);
        if let Some(pem) = tls::certificates(&options.ca_file)? {
            for trusted in Certificate::from_pem_bundle(&pem).map_err(|error| wrong(&error))? {
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
                retry_timeout: retry,
            });
        if !options.endpoint.is_empty() {
            builder = builder.with_endpoint(&options.endpoint);
        }
        if !options.region.is_empty() {
            builder = builder.with_region(&options.region);
        }
        let around = key::Around {
            id: builder.get_config_value(&AmazonS3ConfigKey::AccessKeyId),
            secret: builder.get_config_value(&AmazonS3ConfigKey::SecretAccessKey),
            token: builder.get_config_value(&AmazonS3ConfigKey::Token),
        };
        let (id, secret) = (&options.access_key_id, options.secret_access_key.reveal());
        if let Some(key) = key::key(id, secret, around).map_err(|why| wrong(&why))? {
            builder = builder.with_credentials(Arc::new(StaticCredentialProvider::new(key)));
        }
        let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
        Ok(Self {
            region: region.unwrap_or_default(),
            store: Arc::new(builder.build().map_err(|error| wrong(&error))?),
            prefix: Path::parse(&options.prefix).map_err(|error| wrong(&error))?,
            bucket,
            http: http.build().map_err(|error| wrong(&error))?,
            patience: Patience::new(server, request, request + retry),
        })
    }

    /// The archive in it.
    #[must_use]
    pub fn archive(&self) -> Archive {
        let store = Arc::clone(&self.store);
        Archive::in_bucket(store, self.prefix.clone(), self.patience.clone())
    }

    /// Makes the bucket if it is not there; answers whether it did.
    async fn make(&self, doing: &str) -> Result<bool> {
        let bucket = &self.bucket;
        let refused = |why: String| Err(Error::broken(self.patience.what(doing), why));
        match self.ask(doing, Method::HEAD, String::new()).await?.status {
            status if status.is_success() => return Ok(false),
            StatusCode::NOT_FOUND => {}
            status @ (StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED) => {
                return refused(format!(
                    "the server answers {status}: the bucket {bucket} is somebody else's, or this key may not list it; name another bucket, or check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY and give the key s3:ListBucket"
                ));
            }
            status => {
                return refused(format!(
                    "asked for the bucket {bucket}, the server answers {status}; check the endpoint and the region"
                ));
            }
        }
        let Answer { status, code } = self.ask(doing, Method::PUT, self.constraint()).await?;
        if status.is_success() {
            return Ok(true);
        }
        if status == StatusCode::CONFLICT {
            // Somebody makes or deletes it at this moment.
            if code == "OperationAborted" {
                return Err(self.patience.unavailable(doing, code));
            }
            // Perhaps one of ours made it since. Stores don't agree on what they call that.
            let again = self.ask(doing, Method::HEAD, String::new()).await?.status;
            if code == "BucketAlreadyOwnedByYou" || again.is_success() {
                return Ok(false);
            }
            return refused(format!(
                "the server answers {status} ({code}): the bucket {bucket} is somebody else's; name another one"
            ));
        }
        refused(format!(
            "the server answers {status} ({code}); make the bucket {bucket} by hand, or give this key the right to"
        ))
    }

    /// Where the bucket is to be. The first of all regions must not be named.
    fn constraint(&self) -> String {
        if self.region.is_empty() || self.region == REGION_UNNAMED {
            return String::new();
        }
        format!(
            "<CreateBucketConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><LocationConstraint>{}</LocationConstraint></CreateBucketConfiguration>",
            self.region
        )
    }

    /// A request about the bucket itself, which the client has no call for.
    async fn ask(&self, doing: &str, method: Method, body: String) -> Result<Answer> {
        let root = Path::default();
        let signed = self.store.signed_url(method.clone(), &root, SIGNED_FOR);
        let url = signed
            .await
            .map_err(|error| Error::broken(self.patience.what(doing), error))?;
        let request = self
            .http
            .request(method, url.as_str())
            .header(CONTENT_LENGTH, body.len())
            .body(body);
        let answer = request.send().await;
        // The address holds a signature.
        let answer = answer.map_err(|error| {
            self.patience
                .unavailable(doing, causes(&error.without_url()))
        })?;
        let status = answer.status();
        if status.is_server_error() {
            return Err(self.patience.unavailable(doing, status));
        }
        let said = answer.text().await.unwrap_or_default();
        Ok(Answer {
            status,
            code: error_code(&said).to_owned(),
        })
    }

    async fn forget(&self, probe: &Path) -> Result<()> {
        match self.store.delete(probe).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.patience.unavailable("deleting a probe", error)),
        }
    }
}

#[async_trait]
impl Server for S3 {
    fn name(&self) -> &'static str {
        "archive on S3"
    }

    async fn migrate(&self) -> Result<Vec<String>> {
        let doing = "making the bucket";
        let made = self.patience.repeated(doing, || self.make(doing)).await?;
        if !made {
            return Ok(Vec::new());
        }
        Ok(vec![format!("made the bucket {}", self.bucket)])
    }

    async fn flaws(&self) -> Result<Vec<String>> {
        let status = self.patience.once("asking for the bucket", async {
            self.ask("asking for the bucket", Method::HEAD, String::new())
                .await
        });
        let server = self.patience.server();
        match status.await?.status {
            StatusCode::NOT_FOUND => {
                return Ok(vec![format!(
                    "{server}: the bucket is not there; run `backstitch migrate`"
                )]);
            }
            StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => {
                return Ok(vec![format!(
                    "{server}: this key may not use the bucket; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and the bucket's policy"
                )]);
            }
            _ => {}
        }
        let probe = self.prefix.clone().join(PROBE);
        let create = || PutOptions::from(PutMode::Create);
        let mut flaws = Vec::new();
        // What an earlier check left behind.
        self.forget(&probe).await?;
        let first = self.store.put_opts(&probe, PROBE.into(), create()).await;
        if let Err(error) = first {
            return Ok(vec![format!("{server}: can't be written: {error}")]);
        }
        let second = self.store.put_opts(&probe, PROBE.into(), create()).await;
        if !matches!(second, Err(object_store::Error::AlreadyExists { .. })) {
            flaws.push(format!(
                "{server}: an object that was there was put once more in spite of If-None-Match; two batch runs could write the same manifest. Use a store with conditional writes"
            ));
        }
        self.forget(&probe).await?;
        Ok(flaws)
    }
}
