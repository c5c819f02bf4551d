//! What a form did, told once on the page that its sender is led to: who loads that page again sends nothing again.
//!
//! Nothing is kept of it here: the sender's browser brings it along, in a cookie that only this installation can have made.

use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::cookie::Cookie;
use super::sign_in::Seal;

/// The cookie's name.
const COOKIE: &str = "backstitch_done";
/// How long a browser may take to be led on, in seconds.
const KEPT_S: i64 = 60;
/// The most of what is told, in bytes: browsers keep cookies of 4 KiB, and a third more than the text is what it takes.
const TEXT_BYTES_MAX: usize = 2_400;

/// What may be told on a page.
#[derive(Debug)]
pub(crate) struct Done {
    cookie: Cookie,
    text: Option<String>,
}

impl Done {
    /// What a request brings along for the page that it asks for.
    pub(crate) fn of(headers: &HeaderMap, uri: &Uri, seal: &Seal) -> Self {
        let cookie = Cookie::of(COOKIE, headers, uri);
        let text = cookie.sent(headers).find_map(|value| {
            let (code, text) = value.split_once('.')?;
            let text = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
            seal.has_sealed(&told_on(uri.path(), &text), code)
                .then_some(text)
        });
        Self { cookie, text }
    }

    /// What is to be told.
    pub(crate) fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// Leads to the page that tells a text.
    pub(crate) fn lead(&self, page: &str, text: &str, seal: &Seal) -> Response {
        let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
        let code = seal.sealed(&told_on(page, text));
        let value = format!("{code}.{}", URL_SAFE_NO_PAD.encode(text));
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
}

/// What is sealed: a text is of one page.
fn told_on(page: &str, text: &str) -> String {
    format!("done|{page}|{text}")
}

#[cfg(test)]
mod tests {
    use axum::http::header;
    use stores::Secret;

    use super::*;

    const PAGE: &str = "/pipeline/dead-letters";

    fn brought(cookie: &str, uri: &'static str, seal: &Seal) -> Option<String> {
        let headers = HeaderMap::from_iter([(header::COOKIE, cookie.parse().unwrap())]);
        Done::of(&headers, &Uri::from_static(uri), seal).text
    }

    fn given(response: &Response) -> String {
        let cookie = response.headers()[header::SET_COOKIE].to_str().unwrap();
        cookie.split(';').next().unwrap().to_owned()
    }

    #[test]
    fn what_was_done_is_told_on_its_page_alone_and_by_nobody_else() {
        let seal = Seal::of(&Secret::default());
        let nothing = Done::of(&HeaderMap::new(), &Uri::from_static(PAGE), &seal);
        assert_eq!(nothing.text(), None);
        let text = "3 taken; é";
        let led = nothing.lead(PAGE, text, &seal);
        assert_eq!(led.status(), 303);
        assert_eq!(led.headers()[header::LOCATION], PAGE);
        let cookie = given(&led);
        assert_eq!(brought(&cookie, PAGE, &seal).as_deref(), Some(text));
        assert_eq!(brought(&cookie, "/pipeline/reconciliations", &seal), None);
        assert_eq!(brought(&cookie, PAGE, &Seal::of(&Secret::default())), None);
        let (_, value) = cookie.split_once('=').unwrap();
        let (code, _) = value.split_once('.').unwrap();
        let other = URL_SAFE_NO_PAD.encode("4 taken");
        for forged in [
            format!("{COOKIE}={code}.{other}"),
            format!("{COOKIE}=.{other}"),
            format!("{COOKIE}={other}"),
            format!("{COOKIE}="),
        ] {
            assert_eq!(brought(&forged, PAGE, &seal), None, "{forged}");
        }
        let headers = HeaderMap::from_iter([(header::COOKIE, cookie.parse().unwrap())]);
        let done = Done::of(&headers, &Uri::from_static(PAGE), &seal);
        let told = done.told(Response::default());
        assert_eq!(given(&told), format!("{COOKIE}="));
    }

    #[test]
    fn what_is_too_long_for_a_cookie_is_cut_at_a_character() {
        let seal = Seal::of(&Secret::default());
        let nothing = Done::of(&HeaderMap::new(), &Uri::from_static(PAGE), &seal);
        let long = format!("a{}", "é".repeat(3_000));
        let cookie = given(&nothing.lead(PAGE, &long, &seal));
        assert!(cookie.len() < 4_000, "{}", cookie.len());
        let told = brought(&cookie, PAGE, &seal).unwrap();
        assert!(long.starts_with(&told) && told.len() > 2_000);
    }
}
