//! Required scopes of routes. Requests to an unregistered route are refused.

use std::collections::HashMap;

use axum::http::Method;

/// The scope that a request requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequiredScope {
    /// None, and no limit applies. For cheap routes that must always answer, such as liveness.
    AlwaysOpen,
    /// None. A key is ignored.
    Public,
    /// None. With a key the response has more details.
    OptionalKey,
    /// `read:*`, or the scope of the owner that this parameter names.
    ReadOwner(&'static str),
    /// `read:*`, or the scope of the owner of the application in the path.
    ReadApplication,
    /// `admin`, or the scope of the owner of the application in the path.
    RequestCapacity,
    /// `read:*`.
    ReadAll,
    /// `ingest`, or the scope of the source in the path.
    Ingest,
    /// The scope of the source `authorizations`.
    Connect,
    /// `admin`.
    Admin,
    /// Any read scope. The requests that a page makes are checked with the scopes of its visitor.
    /// Without a key the visitor is redirected to the sign-in page.
    ViewPage,
    /// Any read scope. Without a key the response is an error, not a redirect.
    LiveUpdates,
}

impl RequiredScope {
    /// Returns whether requests need a key once a key exists.
    pub(crate) const fn requires_key(self) -> bool {
        !matches!(self, Self::AlwaysOpen | Self::Public | Self::OptionalKey)
    }
}

/// Required scopes by path and method. HEAD counts as GET.
#[derive(Debug, Default)]
pub(crate) struct RouteScopes(HashMap<String, Vec<(Method, RequiredScope)>>);

/// The result of a lookup by path and method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteLookup<'a> {
    /// The required scope.
    Registered(RequiredScope),
    /// The path is served with these methods only.
    OtherMethods(&'a [(Method, RequiredScope)]),
    /// The path has no required scope.
    Unregistered,
}

impl RouteScopes {
    /// Registers the required scope of a route.
    pub(crate) fn add(&mut self, path: &str, method: Method, scope: RequiredScope) {
        let methods = self.0.entry(path.to_owned()).or_default();
        methods.push((method, scope));
    }

    /// Looks up the required scope of a route.
    pub(crate) fn find(&self, method: &Method, path: &str) -> RouteLookup<'_> {
        let method = match *method {
            Method::HEAD => &Method::GET,
            _ => method,
        };
        let Some(methods) = self.0.get(path) else {
            return RouteLookup::Unregistered;
        };
        match methods.iter().find(|(served, _)| served == method) {
            Some((_, scope)) => RouteLookup::Registered(*scope),
            None => RouteLookup::OtherMethods(methods),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_up_scopes_by_path_and_method() {
        let mut scopes = RouteScopes::default();
        scopes.add("/livez", Method::GET, RequiredScope::AlwaysOpen);
        scopes.add("/pages", Method::GET, RequiredScope::ViewPage);
        scopes.add("/pages", Method::POST, RequiredScope::Admin);
        let head = scopes.find(&Method::HEAD, "/livez");
        assert_eq!(head, RouteLookup::Registered(RequiredScope::AlwaysOpen));
        let other = scopes.find(&Method::POST, "/livez");
        assert!(matches!(other, RouteLookup::OtherMethods([_])), "{other:?}");
        assert_eq!(scopes.find(&Method::GET, "/new"), RouteLookup::Unregistered);
        let change = scopes.find(&Method::POST, "/pages");
        assert_eq!(change, RouteLookup::Registered(RequiredScope::Admin));
    }
}
