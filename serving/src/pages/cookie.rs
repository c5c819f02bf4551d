//! Cookies of the pages.

use axum::http::{HeaderMap, HeaderValue, Uri, header};
use axum::response::Response;

use crate::http::{find_request_host, is_over_tls};

/// Name and attributes of a cookie, depending on the requested host.
#[derive(Debug, Clone)]
pub(crate) struct Cookie {
    name: String,
    is_secure: bool,
}

impl Cookie {
    /// Browsers send the cookies of a host to all its ports, so the name contains the port. Over
    /// TLS the prefix `__Host-` prevents other hosts of the domain from setting it.
    pub(crate) fn new(name: &str, headers: &HeaderMap, uri: &Uri) -> Self {
        if is_over_tls(headers) {
            return Self {
                name: format!("__Host-{name}"),
                is_secure: true,
            };
        }
        let host = find_request_host(headers, uri).unwrap_or_default();
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

    /// The values in a request. There may be several, since cookies with other paths can have the
    /// same name.
    pub(crate) fn values<'a>(&'a self, headers: &'a HeaderMap) -> impl Iterator<Item = &'a str> {
        let cookies = headers.get_all(header::COOKIE).iter();
        let cookies = cookies.filter_map(|cookie| cookie.to_str().ok());
        let cookies = cookies.flat_map(|cookie| cookie.split(';'));
        cookies.filter_map(|cookie| {
            let (name, value) = cookie.trim().split_once('=')?;
            (name == self.name).then_some(value)
        })
    }

    /// Sets the cookie with a maximum age.
    pub(crate) fn set(&self, value: &str, max_age_s: i64, mut response: Response) -> Response {
        let secure = if self.is_secure { "; Secure" } else { "" };
        let name = &self.name;
        let cookie =
            format!("{name}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={max_age_s}{secure}");
        if let Ok(cookie) = HeaderValue::from_str(&cookie) {
            response.headers_mut().insert(header::SET_COOKIE, cookie);
        }
        response
    }

    /// Deletes the cookie.
    pub(crate) fn delete(&self, response: Response) -> Response {
        self.set("", 0, response)
    }
}
