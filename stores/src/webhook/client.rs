//! The client of a webhook. Messages are signed according to Standard Webhooks: the headers
//! `webhook-id`, `webhook-timestamp` (seconds since the Unix epoch) and `webhook-signature`. A
//! signature is `v1,` and the HMAC-SHA256 of `ID.TIMESTAMP.BODY` in base64. With two secrets there
//! are two signatures, separated by a space.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::{StatusCode, Url, header, redirect};
use sha2::Sha256;

use super::{NoticesOptions, WebhookResponse, WebhookSender};
use crate::retry::format_error_chain;
use crate::{Error, Result, Secret, tls};

/// The prefix of a secret in base64.
const PREFIX: &str = "whsec_";
/// The minimum size of a secret, in bytes.
const SECRET_BYTES_MIN: usize = 24;
/// The maximum size of a secret, in bytes.
const SECRET_BYTES_MAX: usize = 64;

/// A webhook.
pub struct Webhook {
    http: reqwest::Client,
    url: Url,
    secrets: Vec<SigningKey>,
    timeout: Duration,
}

/// A signing key.
struct SigningKey(Vec<u8>);

/// Hides the keys and the URL, which may contain a token.
impl Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook").finish_non_exhaustive()
    }
}

impl Webhook {
    /// Creates the webhook of the options; `None` if none is configured. Sends no request.
    ///
    /// # Errors
    /// [`Error::Broken`] for invalid options.
    pub fn from_options(options: &NoticesOptions) -> Result<Option<Self>> {
        if options.webhook_url.is_empty() {
            return Ok(None);
        }
        // The URL may contain a secret, so it is not shown.
        let url_error = |reason: &str| Error::broken("using notices.webhook_url", reason);
        let url = Url::parse(options.webhook_url.reveal())
            .map_err(|error| url_error(&error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(url_error("is not a URL such as https://example.com/hooks"));
        }
        let mut secrets = vec![parse_signing_key(
            "notices.webhook_secret",
            &options.webhook_secret,
        )?];
        if !options.webhook_secret_before.is_empty() {
            let previous = &options.webhook_secret_before;
            secrets.push(parse_signing_key(
                "notices.webhook_secret_before",
                previous,
            )?);
        }
        let timeout = Duration::from_millis(options.request_timeout_ms.max(1));
        // A redirect would pass the message to an unknown server.
        let unusable = |error: reqwest::Error| url_error(&error.without_url().to_string());
        let http = tls::http_client_builder(&options.ca_file, &unusable)?
            .connect_timeout(timeout)
            .timeout(timeout)
            .redirect(redirect::Policy::none());
        Ok(Some(Self {
            http: http.build().map_err(unusable)?,
            url,
            secrets,
            timeout,
        }))
    }

    fn sign(&self, id: &str, timestamp_s: i64, body: &[u8]) -> String {
        let signatures = self.secrets.iter().filter_map(|key| {
            // A key may have any length.
            let mut mac = Hmac::<Sha256>::new_from_slice(&key.0).ok()?;
            mac.update(format!("{id}.{timestamp_s}.").as_bytes());
            mac.update(body);
            let code = mac.finalize().into_bytes();
            Some(format!("v1,{}", STANDARD.encode(code)))
        });
        signatures.collect::<Vec<_>>().join(" ")
    }
}

/// Decodes a secret.
fn parse_signing_key(name: &str, secret: &Secret) -> Result<SigningKey> {
    let secret_error = |reason: &str| {
        let advice = format!(
            "{reason}; write whsec_ and {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} random bytes in base64, such as whsec_$(openssl rand -base64 32)"
        );
        Error::broken(format!("using {name}"), advice)
    };
    let text = secret.reveal().trim();
    if text.is_empty() {
        return Err(secret_error("is not set, but notices must be signed"));
    }
    let Some(code) = text.strip_prefix(PREFIX) else {
        return Err(secret_error("does not begin with whsec_"));
    };
    let key = STANDARD
        .decode(code)
        .map_err(|_| secret_error("is not base64"))?;
    if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&key.len()) {
        return Err(secret_error("has a wrong length"));
    }
    Ok(SigningKey(key))
}

#[async_trait]
impl WebhookSender for Webhook {
    async fn post(&self, id: &str, timestamp_s: i64, body: &[u8]) -> WebhookResponse {
        let request = self
            .http
            .post(self.url.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .header(
                header::USER_AGENT,
                concat!("backstitch/", env!("CARGO_PKG_VERSION")),
            )
            .header("webhook-id", id)
            .header("webhook-timestamp", timestamp_s.to_string())
            .header("webhook-signature", self.sign(id, timestamp_s, body))
            .body(body.to_vec());
        // The body of the response is not needed, and not read.
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => {
                return WebhookResponse::Retry(format_error_chain(&error.without_url()), None);
            }
        };
        let status = response.status();
        if status.is_success() {
            return WebhookResponse::Accepted;
        }
        if status == StatusCode::GONE {
            return WebhookResponse::Gone;
        }
        let retry_after_s = response.headers().get(header::RETRY_AFTER);
        let retry_after_s = retry_after_s.and_then(|value| value.to_str().ok()?.parse().ok());
        WebhookResponse::Retry(format!("the server returned {status}"), retry_after_s)
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn options(secret: &str) -> NoticesOptions {
        NoticesOptions {
            webhook_url: Secret::from("http://127.0.0.1:1/hooks?token=open-sesame".to_owned()),
            webhook_secret: Secret::from(secret.to_owned()),
            ..NoticesOptions::default()
        }
    }

    /// The expected value was computed by `openssl dgst -sha256 -mac HMAC`.
    #[test]
    fn messages_are_signed() {
        let hook = Webhook::from_options(&options(SECRET)).expect("options");
        let hook = hook.expect("a hook");
        let body = br#"{"test": 2432232314}"#;
        let signature = hook.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let with_two_secrets = NoticesOptions {
            webhook_secret_before: Secret::from(SECRET.to_owned()),
            ..options("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
        };
        let with_two_secrets = Webhook::from_options(&with_two_secrets)
            .expect("options")
            .expect("a hook");
        let signatures = with_two_secrets.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        let (_, second) = signatures.split_once(' ').expect("two");
        assert_eq!(second, signature);
        let debug_text = format!("{with_two_secrets:?}");
        assert!(
            !debug_text.contains("AAAA")
                && !debug_text.contains("77, 242")
                && !debug_text.contains("sesame"),
            "{debug_text}"
        );
    }

    #[test]
    fn invalid_options_are_rejected() {
        assert!(Webhook::from_options(&NoticesOptions::default()).is_ok_and(|hook| hook.is_none()));
        for (secret, word) in [
            ("", "is not set"),
            ("secret", "whsec_"),
            ("whsec_!", "base64"),
            ("whsec_AAAA", "length"),
        ] {
            let error = Webhook::from_options(&options(secret))
                .expect_err(secret)
                .to_string();
            assert!(error.contains(word), "{error}");
            assert!(!error.contains("sesame"), "{error}");
        }
        for url in ["ftp://x/", "127.0.0.1", "http://"] {
            let invalid = NoticesOptions {
                webhook_url: Secret::from(url.to_owned()),
                ..options(SECRET)
            };
            assert!(Webhook::from_options(&invalid).is_err(), "{url}");
        }
    }

    #[tokio::test]
    async fn connection_errors_do_not_show_the_url() {
        let hook = Webhook::from_options(&options(SECRET)).expect("options");
        let response = hook.expect("a hook").post("1", 1, b"{}").await;
        let WebhookResponse::Retry(reason, None) = response else {
            panic!("{response:?}");
        };
        assert!(!reason.is_empty() && !reason.contains("sesame"), "{reason}");
    }
}
