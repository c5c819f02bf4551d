//! Flash messages: the result of a form, shown once on the page that its sender is redirected to.
//! Reloading that page does not submit the form again.
//!
//! The service stores nothing: the message is in a signed cookie of the sender's browser.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::api_error::ApiResult;
use super::cookie::Cookie;
use super::signer::CookieSigner;
use super::state::Pages;
use crate::http::Caller;

/// Name of the cookie.
const COOKIE: &str = "backstitch_done";
/// Lifetime of a message, in seconds.
const LIFETIME_S: i64 = 60;
/// Maximum length of a message, in bytes. Browsers accept cookies of 4 KiB, and the encoding adds a
/// third.
const TEXT_BYTES_MAX: usize = 2_400;

/// The flash message of a request, if any, and the means to send one.
#[derive(Debug)]
pub(crate) struct FlashMessage {
    cookie: Cookie,
    signer: CookieSigner,
    /// ID of the caller's key; empty without authentication.
    key: String,
    text: Option<String>,
}

impl FromRequestParts<Pages> for FlashMessage {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, pages: &Pages) -> Result<Self, Infallible> {
        let key = parts.extensions.get::<Caller>().and_then(Caller::key_id);
        let signer = &pages.api.cookie_signer;
        let (headers, uri) = (&parts.headers, &parts.uri);
        Ok(Self::from_request(headers, uri, key, signer, pages.now_s()))
    }
}

impl FlashMessage {
    /// Reads the message from a request to its page.
    fn from_request(
        headers: &HeaderMap,
        uri: &Uri,
        key: Option<&str>,
        signer: &CookieSigner,
        now_s: i64,
    ) -> Self {
        let mut flash = Self {
            cookie: Cookie::new(COOKIE, headers, uri),
            signer: signer.clone(),
            key: key.unwrap_or_default().to_owned(),
            text: None,
        };
        let text = flash.cookie.values(headers).find_map(|value| {
            let mut parts = value.split('.');
            let (code, expires_at_s, text) = (parts.next()?, parts.next()?, parts.next()?);
            let expires_at_s: i64 = expires_at_s.parse().ok()?;
            let text = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
            let is_valid = (1..=LIFETIME_S).contains(&expires_at_s.saturating_sub(now_s));
            let signed_text = flash.format_signed_text(uri.path(), expires_at_s, &text);
            (is_valid && signer.verify(&[signed_text.as_bytes()], code)).then_some(text)
        });
        flash.text = text;
        flash
    }

    /// The message as the result of a form.
    pub(crate) fn outcome(&self) -> Option<ApiResult<String>> {
        self.text.clone().map(Ok)
    }

    /// Redirects to `page` with a message. `now_s` is the time after the work, so that a long
    /// request does not shorten the message's lifetime.
    pub(crate) fn redirect(&self, page: &str, text: &str, now_s: i64) -> Response {
        let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
        let expires_at_s = now_s.saturating_add(LIFETIME_S);
        let signed_text = self.format_signed_text(page, expires_at_s, text);
        let code = self
            .signer
            .sign(&[signed_text.as_bytes()])
            .unwrap_or_default();
        let value = format!("{code}.{expires_at_s}.{}", URL_SAFE_NO_PAD.encode(text));
        let response = Redirect::to(page).into_response();
        self.cookie.set(&value, LIFETIME_S, response)
    }

    /// Deletes the message from the browser if `page` shows it.
    pub(crate) fn clear_from(&self, page: Response) -> Response {
        match self.text {
            Some(_) => self.cookie.delete(page),
            None => page,
        }
    }

    /// Formats the signed text, which binds a message to a key, a page and a lifetime.
    fn format_signed_text(&self, page: &str, expires_at_s: i64, text: &str) -> String {
        format!("done|{}|{expires_at_s}|{page}|{text}", self.key)
    }
}

#[cfg(test)]
mod tests {
    use axum::http::header;
    use stores::Secret;

    use super::*;

    const PAGE: &str = "/pipeline/dead-letters";
    const NOW_S: i64 = 1_000;

    /// The message that a request with a key sends.
    fn request_with(
        cookie: &str,
        uri: &'static str,
        signer: &CookieSigner,
        key: &str,
        now_s: i64,
    ) -> FlashMessage {
        let headers = HeaderMap::from_iter([(header::COOKIE, cookie.parse().unwrap())]);
        FlashMessage::from_request(&headers, &Uri::from_static(uri), Some(key), signer, now_s)
    }

    fn cookie_of(response: &Response) -> String {
        let cookie = response.headers()[header::SET_COOKIE].to_str().unwrap();
        cookie.split(';').next().unwrap().to_owned()
    }

    #[test]
    fn a_message_is_valid_for_its_key_and_page_until_it_expires() {
        let signer = CookieSigner::from_secret(&Secret::default());
        let other_signer = CookieSigner::from_secret(&Secret::default());
        let empty = request_with("", PAGE, &signer, "key", NOW_S);
        assert_eq!(empty.text.as_deref(), None);
        let text = "3 ingested; é";
        let response = empty.redirect(PAGE, text, NOW_S);
        assert_eq!(response.status(), 303);
        assert_eq!(response.headers()[header::LOCATION], PAGE);
        let cookie = cookie_of(&response);
        let flash = request_with(&cookie, PAGE, &signer, "key", NOW_S + LIFETIME_S - 1);
        assert_eq!(flash.text.as_deref(), Some(text));
        assert_eq!(
            cookie_of(&flash.clear_from(Response::default())),
            format!("{COOKIE}=")
        );
        for (page, signer, key, now_s) in [
            ("/pipeline/reconciliations", &signer, "key", NOW_S),
            (PAGE, &signer, "another", NOW_S),
            (PAGE, &other_signer, "key", NOW_S),
            (PAGE, &signer, "key", NOW_S + LIFETIME_S),
            (PAGE, &signer, "key", NOW_S - 1),
        ] {
            let flash = request_with(&cookie, page, signer, key, now_s);
            assert_eq!(flash.text.as_deref(), None, "{page} {key} {now_s}");
        }
        let (_, value) = cookie.split_once('=').unwrap();
        let parts: Vec<&str> = value.split('.').collect();
        let (code, expires_at_s, text) = (parts[0], parts[1], parts[2]);
        let forged = URL_SAFE_NO_PAD.encode("4 ingested");
        for forged in [
            format!("{code}.{expires_at_s}.{forged}"),
            format!("{code}.{}.{text}", NOW_S + 1),
            format!(".{expires_at_s}.{text}"),
            format!("{code}.{expires_at_s}"),
            text.to_owned(),
            String::new(),
        ] {
            let flash = request_with(&format!("{COOKIE}={forged}"), PAGE, &signer, "key", NOW_S);
            assert_eq!(flash.text.as_deref(), None, "{forged}");
        }
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let signer = CookieSigner::from_secret(&Secret::default());
        let long = format!("a{}", "é".repeat(3_000));
        let empty = request_with("", PAGE, &signer, "key", NOW_S);
        let cookie = cookie_of(&empty.redirect(PAGE, &long, NOW_S));
        assert!(cookie.len() < 4_000, "{}", cookie.len());
        let flash = request_with(&cookie, PAGE, &signer, "key", NOW_S);
        let flash = flash.text.as_deref().unwrap();
        assert!(long.starts_with(flash) && flash.len() > 2_000);
    }
}
