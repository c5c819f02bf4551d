//! Signing in on pages: with a key, which is then remembered by a cookie that only this installation can have made.
//!
//! The cookie names the key and when it ends, and carries a code that is made of these with the key's digest. So nothing is kept
//! of who is signed in, every process of the installation knows it, and who loses the key is signed out.

use askama::Template;
use axum::Form;
use axum::extract::{OriginalUri, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use serde::Deserialize;
use sha2::Sha256;
use stores::keys::{KeyDigest, KeyState, Token};

use super::Pages;
use super::parts::{Frame, rendered};
use super::query::Query;
use crate::http::Caller;

/// The cookie's name.
const COOKIE: &str = "backstitch";
/// How long somebody stays signed in, in seconds.
const SIGNED_IN_S: i64 = 12 * 3_600;

/// What a cookie says: whose key, until when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) key: String,
    until_s: i64,
    code: String,
}

fn code(key: &str, until_s: i64, digest: &KeyDigest) -> Option<Hmac<Sha256>> {
    let mut code = Hmac::<Sha256>::new_from_slice(digest.bytes()).ok()?;
    code.update(format!("session|{key}|{until_s}").as_bytes());
    Some(code)
}

impl Session {
    /// That somebody has signed in with a key.
    fn new(key: &str, now_s: i64, digest: &KeyDigest) -> Option<Self> {
        let until_s = now_s.saturating_add(SIGNED_IN_S);
        let code = code(key, until_s, digest)?.finalize().into_bytes();
        Some(Self {
            key: key.to_owned(),
            until_s,
            code: URL_SAFE_NO_PAD.encode(code),
        })
    }

    /// The session that a request says it is of.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let cookies = headers.get_all(header::COOKIE).iter();
        let cookies = cookies.filter_map(|cookie| cookie.to_str().ok());
        let mut cookies = cookies.flat_map(|cookie| cookie.split(';'));
        let value = cookies.find_map(|cookie| {
            let (name, value) = cookie.trim().split_once('=')?;
            (name == COOKIE).then_some(value)
        })?;
        let mut parts = value.split('.');
        let (key, until_s, code) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self {
            key: key.to_owned(),
            until_s: until_s.parse().ok()?,
            code: code.to_owned(),
        })
    }

    /// Whether it was made with this digest, and is not over.
    pub(crate) fn is_valid(&self, now_s: i64, digest: &KeyDigest) -> bool {
        let Ok(sent) = URL_SAFE_NO_PAD.decode(&self.code) else {
            return false;
        };
        let made = code(&self.key, self.until_s, digest);
        self.until_s > now_s && made.is_some_and(|code| code.verify_slice(&sent).is_ok())
    }

    fn text(&self) -> String {
        format!("{}.{}.{}", self.key, self.until_s, self.code)
    }
}

#[derive(Debug, Template)]
#[template(path = "sign_in.html")]
struct SignInPage {
    frame: Frame,
    next: String,
    wrong: Option<String>,
}

/// A page of this service: whoever signs in is led to no other.
fn own(next: Option<&str>) -> String {
    let is_own = |next: &&str| {
        next.starts_with('/') && !next.starts_with("//") && !next.contains(['\\', '\r', '\n'])
    };
    next.filter(is_own).unwrap_or("/").to_owned()
}

fn page(next: String, wrong: Option<&str>) -> Response {
    let status = match wrong {
        Some(_) => StatusCode::UNAUTHORIZED,
        None => StatusCode::OK,
    };
    let page = SignInPage {
        frame: Frame::new("Sign in", "", &Caller::stranger()),
        next,
        wrong: wrong.map(str::to_owned),
    };
    rendered(status, &page)
}

pub(crate) async fn show(RawQuery(query): RawQuery) -> Response {
    let query = Query::of(query.as_deref());
    page(own(query.get("next")), None)
}

#[derive(Debug, Deserialize)]
pub(crate) struct SignIn {
    key: String,
    next: Option<String>,
}

pub(crate) async fn sign_in(
    State(pages): State<Pages>,
    headers: HeaderMap,
    Form(form): Form<SignIn>,
) -> Response {
    let next = own(form.next.as_deref());
    let wrong = "There is no such key: look whether it was copied whole.";
    let Some(token) = Token::of(form.key.trim()) else {
        return page(next, Some(wrong));
    };
    let api = &pages.state;
    let now_ms = api.ports.clock.now_ms();
    let kept = match api.key_ring.key(&token, now_ms).await {
        Ok(Some(kept)) => kept,
        Ok(None) => return page(next, Some(wrong)),
        Err(problem) => return problem.into_response(),
    };
    if kept.key.state(now_ms) != KeyState::Valid {
        return page(next, Some("This key is over: ask for a new one."));
    }
    let Some(session) = Session::new(token.id(), now_ms / 1_000, &kept.digest) else {
        return page(next, Some(wrong));
    };
    let proto = headers
        .get("x-forwarded-proto")
        .and_then(|proto| proto.to_str().ok());
    let secure = if proto == Some("https") {
        "; Secure"
    } else {
        ""
    };
    let cookie = format!(
        "{COOKIE}={}; Path=/; HttpOnly; SameSite=Lax; Max-Age={SIGNED_IN_S}{secure}",
        session.text()
    );
    with_cookie(&cookie, Redirect::to(&next).into_response())
}

pub(crate) async fn sign_out() -> Response {
    let cookie = format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0");
    with_cookie(&cookie, Redirect::to("/signin").into_response())
}

/// Where somebody is led who looks at a page and is not signed in.
pub(crate) fn led_from(uri: &OriginalUri) -> Response {
    let next = uri.0.path_and_query().map_or("/", |next| next.as_str());
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("next", next);
    Redirect::to(&format!("/signin?{}", query.finish())).into_response()
}

fn with_cookie(cookie: &str, mut response: Response) -> Response {
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(cookie: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::COOKIE, cookie.parse().unwrap())])
    }

    #[test]
    fn a_session_is_known_until_it_ends_and_by_its_key_alone() {
        let (token, other) = (Token::draw(), Token::draw());
        let session = Session::new(token.id(), 1_000, &token.digest()).unwrap();
        let sent = Session::of(&headers(&format!("a=b; {COOKIE}={}; c=d", session.text())));
        assert_eq!(sent.as_ref(), Some(&session));
        assert!(session.is_valid(1_000 + SIGNED_IN_S - 1, &token.digest()));
        assert!(!session.is_valid(1_000 + SIGNED_IN_S, &token.digest()));
        assert!(!session.is_valid(1_000, &other.digest()));
        for forged in [
            Session {
                until_s: session.until_s + 1,
                ..session.clone()
            },
            Session {
                key: other.id().to_owned(),
                ..session.clone()
            },
            Session {
                code: String::new(),
                ..session.clone()
            },
        ] {
            assert!(!forged.is_valid(1_000, &token.digest()), "{forged:?}");
        }
        for cookie in [
            "backstitch=",
            "backstitch=a.b.c",
            "backstitch=a.1",
            "other=1",
        ] {
            let of = Session::of(&headers(cookie));
            assert!(
                of.is_none_or(|of| !of.is_valid(0, &token.digest())),
                "{cookie}"
            );
        }
    }

    #[test]
    fn who_signs_in_is_led_to_pages_of_this_service() {
        for (next, led) in [
            (Some("/owners/1?tz=UTC"), "/owners/1?tz=UTC"),
            (Some("//evil.example.org"), "/"),
            (Some("https://evil.example.org"), "/"),
            (Some("/\\evil.example.org"), "/"),
            (Some("/a\r\nSet-Cookie: b"), "/"),
            (None, "/"),
        ] {
            assert_eq!(own(next), led);
        }
    }
}
