//! Signing in on pages: with a key, which is then remembered by a cookie that only this installation can have made.
//!
//! The cookie names the key and when it ends, and carries a code that is made of these and of the key's digest with a secret of the
//! service. So nothing is kept of who is signed in, every process that has the secret knows it, and who loses the key is signed out.
//! The digest alone, which is kept, makes no code.

use std::time::Duration;

use askama::Template;
use axum::extract::{OriginalUri, RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use stores::keys::{ID_CHARS, KeyDigest, KeyState, Token};
use tokio::time::timeout;

use super::ask::path;
use super::cookie::Cookie;
use super::parts::{Frame, rendered};
use super::query::Query;
use super::seal::Seal;
use super::{FORM_BYTES_MAX, Pages};
use crate::http::{Caller, Kind, Problem, body, in_time};

/// The cookie's name.
const COOKIE: &str = "backstitch";
/// The characters of a code: 256 bits.
const CODE_CHARS: usize = 43;
/// How long a form may take to come.
const FORM_WAIT: Duration = Duration::from_secs(5);
/// The longest address to which somebody is led back, in bytes: longer ones fit into no form, and into no header.
const NEXT_BYTES_MAX: usize = 4_096;
/// How long somebody stays signed in, in seconds.
const SIGNED_IN_S: i64 = 12 * 3_600;

/// What a cookie says: whose key, until when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) key: String,
    until_s: i64,
    code: String,
}

/// What is sealed of a session, beside the digest of its key.
fn session(key: &str, until_s: i64) -> String {
    format!("session|{key}|{until_s}")
}

impl Session {
    /// That somebody has signed in with a key.
    fn new(key: &str, now_s: i64, seal: &Seal, digest: &KeyDigest) -> Option<Self> {
        let until_s = now_s.saturating_add(SIGNED_IN_S);
        let session = session(key, until_s);
        Some(Self {
            key: key.to_owned(),
            until_s,
            code: seal.sealed(&[digest.bytes(), session.as_bytes()])?,
        })
    }

    /// The session that a request says it is of.
    pub(crate) fn of(headers: &HeaderMap, uri: &Uri) -> Option<Self> {
        let cookie = Cookie::of(COOKIE, headers, uri);
        cookie.sent(headers).find_map(Self::parsed)
    }

    /// What can be a session.
    fn parsed(value: &str) -> Option<Self> {
        let mut parts = value.split('.');
        let (key, until_s, code) = (parts.next()?, parts.next()?, parts.next()?);
        // What can be no session is not looked up, nor kept.
        let is_key = key.len() == ID_CHARS && key.bytes().all(|byte| byte.is_ascii_hexdigit());
        let can_be = is_key && code.len() == CODE_CHARS && parts.next().is_none();
        can_be.then_some(())?;
        Some(Self {
            key: key.to_owned(),
            until_s: until_s.parse().ok()?,
            code: code.to_owned(),
        })
    }

    /// Whether it was made with this digest, and is not over.
    pub(crate) fn is_valid(&self, now_s: i64, seal: &Seal, digest: &KeyDigest) -> bool {
        let left_s = self.until_s.saturating_sub(now_s);
        let session = session(&self.key, self.until_s);
        (1..=SIGNED_IN_S).contains(&left_s)
            && seal.has_sealed(&[digest.bytes(), session.as_bytes()], &self.code)
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
    // Browsers leave out control characters, and take one slash for the other.
    let is_plain = |next: &str| !next.contains(|char: char| char.is_control() || char == '\\');
    let is_short = |next: &str| next.len() <= NEXT_BYTES_MAX;
    let is_own = |next: &&str| {
        next.starts_with('/') && !next.starts_with("//") && is_plain(next) && is_short(next)
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

pub(crate) async fn sign_in(
    State(pages): State<Pages>,
    request: Request,
) -> Result<Response, Problem> {
    let (headers, uri) = (request.headers().clone(), request.uri().clone());
    let api = &pages.state;
    let form = timeout(FORM_WAIT, body::text_up_to(api, request, FORM_BYTES_MAX)).await;
    let form = form.map_err(|_| {
        Kind::SlowBody.with_detail("the form did not come in time: send it again")
    })??;
    let field = |name: &str| {
        let mut fields = form_urlencoded::parse(&form);
        fields.find_map(|(of, value)| (of == name).then(|| value.into_owned()))
    };
    let next = own(field("next").as_deref());
    let wrong = "There is no such key: look whether it was copied whole.";
    let key = field("key").unwrap_or_default();
    let Some(token) = Token::of(key.trim()) else {
        return Ok(page(next, Some(wrong)));
    };
    // Who sends a form slowly keeps nobody else out: a place is for looking up alone.
    let _place = api.sign_ins.try_acquire().map_err(|_| {
        let detail = "as many sign in at once as may: try again in some seconds";
        Kind::TooOften.with_detail(detail).retry_after(5)
    })?;
    let now_ms = api.ports.clock.now_ms();
    let kept = in_time(api, api.key_ring.key(&token, now_ms)).await??;
    let Some(kept) = kept else {
        return Ok(page(next, Some(wrong)));
    };
    if kept.key.state(now_ms) != KeyState::Valid {
        return Ok(page(next, Some("This key is over: ask for a new one.")));
    }
    let Some(session) = Session::new(token.id(), now_ms / 1_000, &api.seal, &kept.digest) else {
        return Ok(page(next, Some(wrong)));
    };
    let led = Redirect::to(&next).into_response();
    let cookie = Cookie::of(COOKIE, &headers, &uri);
    Ok(cookie.set(&session.text(), SIGNED_IN_S, led))
}

pub(crate) async fn sign_out(headers: HeaderMap, uri: Uri) -> Response {
    let led = Redirect::to("/signin").into_response();
    Cookie::of(COOKIE, &headers, &uri).taken(led)
}

/// Where somebody is led who looks at a page and is not signed in.
pub(crate) fn led_from(uri: &OriginalUri) -> Response {
    let next = uri.0.path_and_query().map(|next| next.as_str());
    let sign_in = path("/signin", &[("next", Some(&own(next)))]);
    Redirect::to(&sign_in).into_response()
}

#[cfg(test)]
mod tests {
    use axum::http::header;
    use stores::Secret;

    use super::*;

    fn headers(cookie: &str) -> HeaderMap {
        let host = "localhost:8080".parse().unwrap();
        HeaderMap::from_iter([
            (header::COOKIE, cookie.parse().unwrap()),
            (header::HOST, host),
        ])
    }

    fn sent(cookie: &str) -> Option<Session> {
        Session::of(&headers(cookie), &Uri::from_static("/"))
    }

    #[test]
    fn a_session_is_known_until_it_ends_and_by_its_key_alone() {
        let (token, other) = (Token::draw(), Token::draw());
        let seal = Seal::of(&Secret::default());
        let session = Session::new(token.id(), 1_000, &seal, &token.digest()).unwrap();
        let cookie = format!("a=b; {COOKIE}_8080={}; c=d", session.text());
        assert_eq!(sent(&cookie).as_ref(), Some(&session));
        assert_eq!(sent(&cookie.replace("_8080", "_8081")), None);
        assert!(session.is_valid(1_000 + SIGNED_IN_S - 1, &seal, &token.digest()));
        assert!(!session.is_valid(1_000 + SIGNED_IN_S, &seal, &token.digest()));
        // Nobody can have made it yet.
        assert!(!session.is_valid(999, &seal, &token.digest()));
        assert!(!session.is_valid(1_000, &seal, &other.digest()));
        let others = Seal::of(&Secret::default());
        assert!(!session.is_valid(1_000, &others, &token.digest()));
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
            assert!(
                !forged.is_valid(1_000, &seal, &token.digest()),
                "{forged:?}"
            );
        }
        let long = "a".repeat(60_000);
        for cookie in [
            "backstitch_8080=",
            "backstitch_8080=a.b.c",
            "backstitch_8080=a.1",
            "other=1",
            &format!("backstitch_8080={long}.9.x"),
            &format!("backstitch_8080={}.9.{long}", token.id()),
        ] {
            assert_eq!(sent(cookie), None);
        }
    }

    #[test]
    fn who_signs_in_is_led_to_pages_of_this_service() {
        let long = format!("/owners/1?x={}", "<".repeat(NEXT_BYTES_MAX));
        for (next, led) in [
            (Some("/owners/1?tz=UTC"), "/owners/1?tz=UTC"),
            (Some(long.as_str()), "/"),
            (Some("//evil.example.org"), "/"),
            (Some("https://evil.example.org"), "/"),
            (Some("/\\evil.example.org"), "/"),
            (Some("/a\r\nSet-Cookie: b"), "/"),
            (Some("/\t/evil.example.org"), "/"),
            (Some("/\u{1}"), "/"),
            (None, "/"),
        ] {
            assert_eq!(own(next), led);
        }
    }
}
