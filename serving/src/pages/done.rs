//! What a form did, told once on the page that its sender is led to: who loads that page again sends nothing again.
//!
//! Nothing is kept of it here: the sender's browser brings it along, in a cookie that only this installation can have made.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::Pages;
use super::ask::Answer;
use super::cookie::Cookie;
use super::seal::Seal;
use crate::http::Caller;

/// The cookie's name.
const COOKIE: &str = "backstitch_done";
/// How long a browser may take to be led on, in seconds.
const KEPT_S: i64 = 60;
/// The most of what is told, in bytes: browsers keep cookies of 4 KiB, and a third more than the text is what it takes.
const TEXT_BYTES_MAX: usize = 2_400;

/// What may be told on a page, to whom it is of.
#[derive(Debug)]
pub(crate) struct Done {
    cookie: Cookie,
    seal: Seal,
    /// The key of who looks; empty where none is asked for.
    key: String,
    text: Option<String>,
}

impl FromRequestParts<Pages> for Done {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, pages: &Pages) -> Result<Self, Infallible> {
        let key = parts.extensions.get::<Caller>().and_then(Caller::key_id);
        let by = (&pages.state.seal, pages.now_s());
        Ok(Self::of((&parts.headers, &parts.uri), key, by))
    }
}

impl Done {
    /// What a request brings along for the page that it asks for.
    fn of(
        (headers, uri): (&HeaderMap, &Uri),
        key: Option<&str>,
        (seal, now_s): (&Seal, i64),
    ) -> Self {
        let mut done = Self {
            cookie: Cookie::of(COOKIE, headers, uri),
            seal: seal.clone(),
            key: key.unwrap_or_default().to_owned(),
            text: None,
        };
        let text = done.cookie.sent(headers).find_map(|value| {
            let mut parts = value.split('.');
            let (code, until_s, text) = (parts.next()?, parts.next()?, parts.next()?);
            let until_s: i64 = until_s.parse().ok()?;
            let text = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
            let is_told = (1..=KEPT_S).contains(&until_s.saturating_sub(now_s));
            let sealed = done.sealed(uri.path(), until_s, &text);
            (is_told && seal.has_sealed(&[sealed.as_bytes()], code)).then_some(text)
        });
        done.text = text;
        done
    }

    /// What is to be told.
    pub(crate) fn answer(&self) -> Option<Answer<String>> {
        self.text.clone().map(Ok)
    }

    /// Leads to the page that tells a text, of what is done by now: that may have taken longer than it is kept.
    pub(crate) fn lead(&self, page: &str, text: &str, now_s: i64) -> Response {
        let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
        let until_s = now_s.saturating_add(KEPT_S);
        let sealed = self.sealed(page, until_s, text);
        let code = self.seal.sealed(&[sealed.as_bytes()]).unwrap_or_default();
        let value = format!("{code}.{until_s}.{}", URL_SAFE_NO_PAD.encode(text));
        let led = Redirect::to(page).into_response();
        self.cookie.set(&value, KEPT_S, led)
    }

    /// The page on which it was told: it is not told again.
    pub(crate) fn told(&self, page: Response) -> Response {
        match self.text {
            Some(_) => self.cookie.taken(page),
            None => page,
        }
    }

    /// What a code is made of: a text is told to one, on one page, for a while.
    fn sealed(&self, page: &str, until_s: i64, text: &str) -> String {
        format!("done|{}|{until_s}|{page}|{text}", self.key)
    }
}

#[cfg(test)]
mod tests {
    use axum::http::header;
    use stores::Secret;

    use super::*;

    const PAGE: &str = "/pipeline/dead-letters";
    const NOW_S: i64 = 1_000;

    /// What somebody with a key brings, who asks for a page.
    fn brought(cookie: &str, uri: &'static str, (seal, key): (&Seal, &str), now_s: i64) -> Done {
        let headers = HeaderMap::from_iter([(header::COOKIE, cookie.parse().unwrap())]);
        Done::of((&headers, &Uri::from_static(uri)), Some(key), (seal, now_s))
    }

    fn given(response: &Response) -> String {
        let cookie = response.headers()[header::SET_COOKIE].to_str().unwrap();
        cookie.split(';').next().unwrap().to_owned()
    }

    #[test]
    fn what_was_done_is_told_to_who_did_it_alone_on_its_page_and_for_a_while() {
        let (seal, other) = (Seal::of(&Secret::default()), Seal::of(&Secret::default()));
        let of = (&seal, "key");
        let nothing = brought("", PAGE, of, NOW_S);
        assert_eq!(nothing.text.as_deref(), None);
        let text = "3 taken; é";
        let led = nothing.lead(PAGE, text, NOW_S);
        assert_eq!(led.status(), 303);
        assert_eq!(led.headers()[header::LOCATION], PAGE);
        let cookie = given(&led);
        let told = brought(&cookie, PAGE, of, NOW_S + KEPT_S - 1);
        assert_eq!(told.text.as_deref(), Some(text));
        assert_eq!(given(&told.told(Response::default())), format!("{COOKIE}="));
        for (page, of, now_s) in [
            ("/pipeline/reconciliations", of, NOW_S),
            (PAGE, (&seal, "another"), NOW_S),
            (PAGE, (&other, "key"), NOW_S),
            (PAGE, of, NOW_S + KEPT_S),
            (PAGE, of, NOW_S - 1),
        ] {
            assert_eq!(
                brought(&cookie, page, of, now_s).text.as_deref(),
                None,
                "{page} {of:?}"
            );
        }
        let (_, value) = cookie.split_once('=').unwrap();
        let parts: Vec<&str> = value.split('.').collect();
        let (code, until_s, text) = (parts[0], parts[1], parts[2]);
        let forged = URL_SAFE_NO_PAD.encode("4 taken");
        for forged in [
            format!("{code}.{until_s}.{forged}"),
            format!("{code}.{}.{text}", NOW_S + 1),
            format!(".{until_s}.{text}"),
            format!("{code}.{until_s}"),
            text.to_owned(),
            String::new(),
        ] {
            let told = brought(&format!("{COOKIE}={forged}"), PAGE, of, NOW_S);
            assert_eq!(told.text.as_deref(), None, "{forged}");
        }
    }

    #[test]
    fn what_is_too_long_for_a_cookie_is_cut_at_a_character() {
        let seal = Seal::of(&Secret::default());
        let of = (&seal, "key");
        let long = format!("a{}", "é".repeat(3_000));
        let cookie = given(&brought("", PAGE, of, NOW_S).lead(PAGE, &long, NOW_S));
        assert!(cookie.len() < 4_000, "{}", cookie.len());
        let told = brought(&cookie, PAGE, of, NOW_S);
        let told = told.text.as_deref().unwrap();
        assert!(long.starts_with(told) && told.len() > 2_000);
    }
}
