//! Sign-in with an API key, remembered by a signed cookie.
//!
//! The cookie contains the ID of the key, the expiry time, and a code computed from both, the key's
//! digest, and the session secret. The service stores no sessions: every process with the secret
//! can verify the cookie, and a revoked key ends its sessions. The stored digest alone cannot forge
//! one.

use std::time::Duration;

use askama::Template;
use axum::extract::{OriginalUri, RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use stores::keys::{ID_CHARS, KeyDigest, KeyState, Token};
use tokio::time::timeout;

use super::components::{PageContext, render};
use super::cookie::Cookie;
use super::extractors::FORM_BYTES_MAX;
use super::query::{Query, path_with_query};
use super::signer::CookieSigner;
use super::state::Pages;
use crate::http::{Caller, Problem, ProblemKind, body, with_timeout};

/// Name of the cookie.
const COOKIE: &str = "backstitch";
/// Number of characters of a code: 256 bits.
const CODE_CHARS: usize = 43;
/// Timeout for a form.
const FORM_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum length of the address after sign-in, in bytes. Longer ones exceed forms and headers.
const NEXT_BYTES_MAX: usize = 4_096;
/// Duration of a session, in seconds.
const SESSION_S: i64 = 12 * 3_600;

/// Content of a session cookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) key: String,
    expires_at_s: i64,
    code: String,
}

/// The signed text of a session; the digest of its key is signed in addition.
fn format_session(key: &str, expires_at_s: i64) -> String {
    format!("session|{key}|{expires_at_s}")
}

impl Session {
    /// Starts a session for a key.
    fn new(key: &str, now_s: i64, signer: &CookieSigner, digest: &KeyDigest) -> Option<Self> {
        let expires_at_s = now_s.saturating_add(SESSION_S);
        let text = format_session(key, expires_at_s);
        Some(Self {
            key: key.to_owned(),
            expires_at_s,
            code: signer.sign(&[digest.bytes(), text.as_bytes()])?,
        })
    }

    /// The session in a request; not yet verified.
    pub(crate) fn from_request(headers: &HeaderMap, uri: &Uri) -> Option<Self> {
        let cookie = Cookie::new(COOKIE, headers, uri);
        cookie.values(headers).find_map(Self::parse)
    }

    /// Parses a cookie value.
    fn parse(value: &str) -> Option<Self> {
        let mut parts = value.split('.');
        let (key, expires_at_s, code) = (parts.next()?, parts.next()?, parts.next()?);
        // Malformed values are not looked up or cached.
        let is_key = key.len() == ID_CHARS && key.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_well_formed = is_key && code.len() == CODE_CHARS && parts.next().is_none();
        is_well_formed.then_some(())?;
        Some(Self {
            key: key.to_owned(),
            expires_at_s: expires_at_s.parse().ok()?,
            code: code.to_owned(),
        })
    }

    /// True if the session was signed with this digest and has not expired.
    pub(crate) fn is_valid(&self, now_s: i64, signer: &CookieSigner, digest: &KeyDigest) -> bool {
        let remaining_s = self.expires_at_s.saturating_sub(now_s);
        let text = format_session(&self.key, self.expires_at_s);
        (1..=SESSION_S).contains(&remaining_s)
            && signer.verify(&[digest.bytes(), text.as_bytes()], &self.code)
    }

    fn to_cookie_value(&self) -> String {
        format!("{}.{}.{}", self.key, self.expires_at_s, self.code)
    }
}

#[derive(Debug, Template)]
#[template(path = "sign_in.html")]
struct SignInPage {
    context: PageContext,
    next: String,
    error: Option<String>,
}

/// Restricts the address after sign-in to pages of this service; others become `/`.
fn local_path(next: Option<&str>) -> String {
    // Browsers drop control characters and treat backslashes as slashes.
    let is_plain = |next: &str| !next.contains(|char: char| char.is_control() || char == '\\');
    let is_short = |next: &str| next.len() <= NEXT_BYTES_MAX;
    let is_local = |next: &&str| {
        next.starts_with('/') && !next.starts_with("//") && is_plain(next) && is_short(next)
    };
    next.filter(is_local).unwrap_or("/").to_owned()
}

fn render_form(next: String, error: Option<&str>) -> Response {
    let status = match error {
        Some(_) => StatusCode::UNAUTHORIZED,
        None => StatusCode::OK,
    };
    let page = SignInPage {
        context: PageContext::new("Sign in", "", &Caller::anonymous()),
        next,
        error: error.map(str::to_owned),
    };
    render(status, &page)
}

pub(crate) async fn show(RawQuery(query): RawQuery) -> Response {
    let query = Query::parse(query.as_deref());
    render_form(local_path(query.get("next")), None)
}

pub(crate) async fn sign_in(
    State(pages): State<Pages>,
    request: Request,
) -> Result<Response, Problem> {
    let (headers, uri) = (request.headers().clone(), request.uri().clone());
    let api = &pages.api;
    let form = timeout(FORM_TIMEOUT, body::read_up_to(api, request, FORM_BYTES_MAX)).await;
    let form = form.map_err(|_| {
        ProblemKind::SlowBody.with_detail("the form was not received in time: send it again")
    })??;
    let field = |name: &str| {
        let mut fields = form_urlencoded::parse(&form);
        fields.find_map(|(key, value)| (key == name).then(|| value.into_owned()))
    };
    let next = local_path(field("next").as_deref());
    let unknown_key = "This key does not exist: check that you copied all of it.";
    let key = field("key").unwrap_or_default();
    let Some(token) = Token::parse(key.trim()) else {
        return Ok(render_form(next, Some(unknown_key)));
    };
    // Only key lookups hold a permit, so slow clients do not block others.
    let _permit = api.sign_in_permits.try_acquire().map_err(|_| {
        let detail = "too many concurrent sign-ins: try again in a few seconds";
        ProblemKind::RateLimited
            .with_detail(detail)
            .with_retry_after_s(5)
    })?;
    let now_ms = api.ports.clock.now_ms();
    let record = with_timeout(api, api.key_cache.verify(&token, now_ms)).await??;
    let Some(record) = record else {
        return Ok(render_form(next, Some(unknown_key)));
    };
    if record.key.state(now_ms) != KeyState::Valid {
        return Ok(render_form(
            next,
            Some("This key is expired or revoked: ask for a new one."),
        ));
    }
    let Some(session) = Session::new(
        token.id(),
        now_ms / 1_000,
        &api.cookie_signer,
        &record.digest,
    ) else {
        return Ok(render_form(next, Some(unknown_key)));
    };
    let redirect = Redirect::to(&next).into_response();
    let cookie = Cookie::new(COOKIE, &headers, &uri);
    Ok(cookie.set(&session.to_cookie_value(), SESSION_S, redirect))
}

pub(crate) async fn sign_out(headers: HeaderMap, uri: Uri) -> Response {
    let redirect = Redirect::to("/signin").into_response();
    Cookie::new(COOKIE, &headers, &uri).delete(redirect)
}

/// Redirects an unauthenticated reader to the sign-in page.
pub(crate) fn redirect_to_sign_in(uri: &OriginalUri) -> Response {
    let next = uri.0.path_and_query().map(|next| next.as_str());
    let sign_in = path_with_query("/signin", &[("next", Some(&local_path(next)))]);
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

    fn parse_cookie(cookie: &str) -> Option<Session> {
        Session::from_request(&headers(cookie), &Uri::from_static("/"))
    }

    #[test]
    fn a_session_is_valid_for_its_key_until_it_expires() {
        let (token, other) = (Token::generate(), Token::generate());
        let signer = CookieSigner::from_secret(&Secret::default());
        let session = Session::new(token.id(), 1_000, &signer, &token.digest()).unwrap();
        let cookie = format!("a=b; {COOKIE}_8080={}; c=d", session.to_cookie_value());
        assert_eq!(parse_cookie(&cookie).as_ref(), Some(&session));
        assert_eq!(parse_cookie(&cookie.replace("_8080", "_8081")), None);
        assert!(session.is_valid(1_000 + SESSION_S - 1, &signer, &token.digest()));
        assert!(!session.is_valid(1_000 + SESSION_S, &signer, &token.digest()));
        // Not issued yet.
        assert!(!session.is_valid(999, &signer, &token.digest()));
        assert!(!session.is_valid(1_000, &signer, &other.digest()));
        let other_signer = CookieSigner::from_secret(&Secret::default());
        assert!(!session.is_valid(1_000, &other_signer, &token.digest()));
        for forged in [
            Session {
                expires_at_s: session.expires_at_s + 1,
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
                !forged.is_valid(1_000, &signer, &token.digest()),
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
            assert_eq!(parse_cookie(cookie), None);
        }
    }

    #[test]
    fn sign_in_redirects_only_to_pages_of_this_service() {
        let long = format!("/owners/1?x={}", "<".repeat(NEXT_BYTES_MAX));
        for (next, expected) in [
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
            assert_eq!(local_path(next), expected);
        }
    }
}
