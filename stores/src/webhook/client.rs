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
use crate::retry::error_chain;
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
        let wrong = |why: &str| Error::broken("using notices.webhook_url", why);
        let url =
            Url::parse(options.webhook_url.reveal()).map_err(|error| wrong(&error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong("is not a URL such as https://example.com/hooks"));
        }
        let mut secrets = vec![parse_signing_key(
            "notices.webhook_secret",
            &options.webhook_secret,
        )?];
        if !options.webhook_secret_before.is_empty() {
            let before = &options.webhook_secret_before;
            secrets.push(parse_signing_key("notices.webhook_secret_before", before)?);
        }
        let timeout = Duration::from_millis(options.request_timeout_ms.max(1));
        // A redirect would pass the message to an unknown server.
        let unusable = |error: reqwest::Error| wrong(&error.without_url().to_string());
        let http = tls::http_client(&options.ca_file, &unusable)?
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

    fn signatures(&self, id: &str, at_s: i64, body: &[u8]) -> String {
        let signatures = self.secrets.iter().filter_map(|key| {
            // A key may have any length.
            let mut mac = Hmac::<Sha256>::new_from_slice(&key.0).ok()?;
            mac.update(format!("{id}.{at_s}.").as_bytes());
            mac.update(body);
            let code = mac.finalize().into_bytes();
            Some(format!("v1,{}", STANDARD.encode(code)))
        });
        signatures.collect::<Vec<_>>().join(" ")
    }
}

/// Decodes a secret.
fn parse_signing_key(name: &str, secret: &Secret) -> Result<SigningKey> {
    let wrong = |why: &str| {
        let how = format!(
            "{why}; write whsec_ and {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} random bytes in base64, such as whsec_$(openssl rand -base64 32)"
        );
        Error::broken(format!("using {name}"), how)
    };
    let text = secret.reveal().trim();
    if text.is_empty() {
        return Err(wrong("is not set, but notices must be signed"));
    }
    let Some(code) = text.strip_prefix(PREFIX) else {
        return Err(wrong("does not begin with whsec_"));
    };
    let key = STANDARD.decode(code).map_err(|_| wrong("is not base64"))?;
    if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&key.len()) {
        return Err(wrong("has a wrong length"));
    }
    Ok(SigningKey(key))
}

#[async_trait]
impl WebhookSender for Webhook {
    async fn post(&self, id: &str, at_s: i64, body: &[u8]) -> WebhookResponse {
        let request = self
            .http
            .post(self.url.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .header(
                header::USER_AGENT,
                concat!("backstitch/", env!("CARGO_PKG_VERSION")),
            )
            .header("webhook-id", id)
            .header("webhook-timestamp", at_s.to_string())
            .header("webhook-signature", self.signatures(id, at_s, body))
            .body(body.to_vec());
        // The body of the response is not needed, and not read.
        let answer = match request.send().await {
            Ok(answer) => answer,
            Err(error) => {
                return WebhookResponse::Retry(error_chain(&error.without_url()), None);
            }
        };
        let status = answer.status();
        if status.is_success() {
            return WebhookResponse::Accepted;
        }
        if status == StatusCode::GONE {
            return WebhookResponse::Gone;
        }
        let after = answer.headers().get(header::RETRY_AFTER);
        let after = after.and_then(|after| after.to_str().ok()?.parse().ok());
        WebhookResponse::Retry(format!("the server returned {status}"), after)
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
        let signature = hook.signatures("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let both = NoticesOptions {
            webhook_secret_before: Secret::from(SECRET.to_owned()),
            ..options("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
        };
        let both = Webhook::from_options(&both)
            .expect("options")
            .expect("a hook");
        let signatures = both.signatures("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        let (_, before) = signatures.split_once(' ').expect("two");
        assert_eq!(before, signature);
        let shown = format!("{both:?}");
        assert!(
            !shown.contains("AAAA") && !shown.contains("77, 242") && !shown.contains("sesame"),
            "{shown}"
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
            let wrong = NoticesOptions {
                webhook_url: Secret::from(url.to_owned()),
                ..options(SECRET)
            };
            assert!(Webhook::from_options(&wrong).is_err(), "{url}");
        }
    }

    #[tokio::test]
    async fn connection_errors_do_not_show_the_url() {
        let hook = Webhook::from_options(&options(SECRET)).expect("options");
        let answer = hook.expect("a hook").post("1", 1, b"{}").await;
        let WebhookResponse::Retry(why, None) = answer else {
            panic!("{answer:?}");
        };
        assert!(!why.is_empty() && !why.contains("sesame"), "{why}");
    }
}
