//! What each route needs, as it says where it is made. One that does not is served to nobody.

use std::collections::HashMap;

use axum::http::Method;

/// What a key must permit for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing, however often: it costs nothing, and whether the process lives is told whatever else happens.
    Free,
    /// Nothing: it is for who has no key, too, and a key is not looked at.
    Nothing,
    /// Nothing; who is known is told more.
    Open,
    /// To read all, or what one owner has, whom this parameter names.
    Owner(&'static str),
    /// To read all, or what one owner has, whose the application in the path is.
    Application,
    /// To ask for something for an application: by its owner, whom the key has to name, or by administrators.
    Asking,
    /// To read all.
    Read,
    /// To write events or rows of the source in the path.
    Ingest,
    /// To write authorizations: connecting athletes, and disconnecting them.
    Connect,
    /// To administer.
    Admin,
    /// To read something: what a page shows it asks for as who looks at it.
    Page,
    /// As a page needs; who may not is told so, and led nowhere.
    Following,
}

impl Need {
    /// Whether a key is needed, once there is one.
    pub(crate) const fn takes_key(self) -> bool {
        !matches!(self, Self::Free | Self::Nothing | Self::Open)
    }
}

/// What each route needs, by path and method. HEAD is as GET.
#[derive(Debug, Default)]
pub(crate) struct Needs(HashMap<String, Vec<(Method, Need)>>);

/// What is known of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known<'a> {
    /// What it needs.
    Needs(Need),
    /// The path is served, by other methods: these.
    OtherMethods(&'a [(Method, Need)]),
    /// Nobody has said what it needs.
    Forgotten,
}

impl Needs {
    /// Notes what a route needs.
    pub(crate) fn add(&mut self, path: &str, method: Method, need: Need) {
        let methods = self.0.entry(path.to_owned()).or_default();
        methods.push((method, need));
    }

    /// What a route needs.
    pub(crate) fn of(&self, method: &Method, path: &str) -> Known<'_> {
        let method = match *method {
            Method::HEAD => &Method::GET,
            _ => method,
        };
        let Some(methods) = self.0.get(path) else {
            return Known::Forgotten;
        };
        let found = methods.iter().find(|(of, _)| of == method);
        found.map_or(Known::OtherMethods(methods), |(_, need)| {
            Known::Needs(*need)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_forgotten() {
        let mut needs = Needs::default();
        needs.add("/livez", Method::GET, Need::Free);
        needs.add("/pages", Method::GET, Need::Page);
        needs.add("/pages", Method::POST, Need::Admin);
        assert_eq!(needs.of(&Method::HEAD, "/livez"), Known::Needs(Need::Free));
        let other = needs.of(&Method::POST, "/livez");
        assert!(matches!(other, Known::OtherMethods([_])), "{other:?}");
        assert_eq!(needs.of(&Method::GET, "/new"), Known::Forgotten);
        let change = needs.of(&Method::POST, "/pages");
        assert_eq!(change, Known::Needs(Need::Admin));
    }
}
