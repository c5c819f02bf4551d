//! Cookies of this service.

use axum::http::{HeaderMap, HeaderValue, Uri, header};
use axum::response::Response;

/// Whether the client reached the first proxy over TLS, by `X-Forwarded-Proto`.
pub(crate) fn is_over_tls(headers: &HeaderMap) -> bool {
    let protocols = headers.get("x-forwarded-proto");
    let first = protocols.and_then(|protocols| protocols.to_str().ok()?.split(',').next());
    first.is_some_and(|first| first.trim().eq_ignore_ascii_case("https"))
}

/// A cookie, as a request is for a host.
#[derive(Debug, Clone)]
pub(crate) struct Cookie {
    name: String,
    is_secure: bool,
}

impl Cookie {
    /// The cookie of this name. Browsers send cookies of one host to all its ports, so each port has its own. Over TLS it is one
    /// that browsers take from this host alone: others of the same domain can't give it.
    pub(crate) fn of(name: &str, headers: &HeaderMap, uri: &Uri) -> Self {
        if is_over_tls(headers) {
            return Self {
                name: format!("__Host-{name}"),
                is_secure: true,
            };
        }
        let host = crate::http::asked_host(headers, uri).unwrap_or_default();
        let port = host.rsplit_once(':').map(|(_, port)| port);
        let is_port =
            |port: &&str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        Self {
            name: match port.filter(is_port) {
                Some(port) => format!("{name}_{port}"),
                None => name.to_owned(),
            },
            is_secure: false,
        }
    }

    /// The values that a request sends. There may be several: one of the same name may be another's, for a part of the paths.
    pub(crate) fn sent<'a>(&'a self, headers: &'a HeaderMap) -> impl Iterator<Item = &'a str> {
        let cookies = headers.get_all(header::COOKIE).iter();
        let cookies = cookies.filter_map(|cookie| cookie.to_str().ok());
        let cookies = cookies.flat_map(|cookie| cookie.split(';'));
        cookies.filter_map(|cookie| {
            let (name, value) = cookie.trim().split_once('=')?;
            (name == self.name).then_some(value)
        })
    }

    /// A response which gives it a value that is kept for so many seconds.
    pub(crate) fn set(&self, value: &str, age_s: i64, mut response: Response) -> Response {
        let secure = if self.is_secure { "; Secure" } else { "" };
        let name = &self.name;
        let cookie =
            format!("{name}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={age_s}{secure}");
        if let Ok(cookie) = HeaderValue::from_str(&cookie) {
            response.headers_mut().insert(header::SET_COOKIE, cookie);
        }
        response
    }

    /// A response after which nobody has it any more.
    pub(crate) fn taken(&self, response: Response) -> Response {
        self.set("", 0, response)
    }
}
