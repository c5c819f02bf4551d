//! Authentication and authorization: keys, required scopes of routes, rate limits, and the audit
//! log of administrators.
//!
//! Until a key exists, only loopback requests are accepted, and everything is permitted. After
//! that, each request needs a key, except on routes that the table marks as open. All other routes
//! always refuse a wrong key.

pub(crate) mod caller;
pub(crate) mod key_cache;
pub(crate) mod limits;
pub(crate) mod table;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::RequestPartsExt;
use axum::extract::{MatchedPath, OriginalUri, RawPathParams, Request, State};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Uri, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use schemas::source::Source;
use serde_json::Value;
use stores::keys::{AdminAction, ApiKey, ApiKeyRecord, KeyState, Token};
use tokio::time::timeout;

use super::params::{find_all_values, parse_integer};
use super::problem::{Problem, ProblemKind};
use super::{Api, find_request_host, is_over_tls, with_timeout};
use crate::pages::sign_in::{Session, redirect_to_sign_in};
use caller::Caller;
use limits::{RateExceeded, RateState, truncate_to_network};
use table::{RequiredScope, RouteLookup, RouteScopes};

/// Headers in which proxies pass on the client's address, besides those that begin with
/// [`FORWARDED_PREFIX`].
const PROXY_HEADERS: [&str; 17] = [
    "forwarded",
    "via",
    "x-real-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-envoy-external-address",
    "x-original-forwarded-for",
    "cf-connecting-ip",
    "fastly-client-ip",
    "true-client-ip",
    "cdn-loop",
    "cf-ray",
    "cf-visitor",
    "proxy-client-ip",
    "x-amzn-trace-id",
    "x-azure-clientip",
    "x-envoy-internal",
];
/// Prefix of headers in which proxies pass on address, host, port and scheme of the original
/// request.
const FORWARDED_PREFIX: &str = "x-forwarded";
/// Time limit of the lookup of a key that is not cached.
const KEY_LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Alternative header for a key.
pub(crate) const X_API_KEY: &str = "x-api-key";
/// Maximum length of a path or parameter in the audit log.
const TARGET_BYTES_MAX: usize = 512;
/// Parameters that enter the audit log. None of them names a person.
const AUDITED_PARAMS: [&str; 5] = ["id", "source", "since", "dry_run", "number"];
/// Time limit of authentication on routes where a key is optional.
const OPTIONAL_KEY_TIMEOUT: Duration = Duration::from_secs(1);
/// Stands for a client whose address a trusted proxy does not report.
const UNKNOWN_CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The remote address of a connection, an extension of each request that arrives on it. Requests
/// without it are those of this process, which are trusted.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

/// Passes on a request if its sender has the required scope of the route.
pub(crate) async fn check_access(
    State((api, scopes)): State<(Arc<Api>, Arc<RouteScopes>)>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.extensions().get::<MatchedPath>().cloned();
    let Some(path) = path else {
        // No route has this path.
        return next.run(request).await;
    };
    let required = match scopes.find(request.method(), path.as_str()) {
        RouteLookup::Registered(required) => required,
        RouteLookup::OtherMethods(served) => return refuse_method(request.method(), served),
        RouteLookup::Unregistered => {
            let path = path.as_str();
            tracing::error!(
                path,
                "a route has no required scope: its requests are refused"
            );
            let detail = "this route has no required scope, which is a fault of the service";
            return ProblemKind::NotPermitted
                .with_detail(detail)
                .into_response();
        }
    };
    let (mut parts, body) = request.into_parts();
    let checked = with_timeout(&api, authorize(&api, &mut parts, required)).await;
    // An error page shows the caller.
    let caller = parts.extensions.get::<Caller>().cloned();
    let uri = parts.extensions.get::<OriginalUri>().cloned();
    let mut response = match (checked.flatten(), uri) {
        (Ok(()), _) => next.run(Request::from_parts(parts, body)).await,
        (Err(problem), Some(uri))
            if required == RequiredScope::ViewPage
                && problem.kind() == ProblemKind::Unauthenticated =>
        {
            return redirect_to_sign_in(&uri);
        }
        (Err(problem), _) => problem.into_response(),
    };
    if let Some(caller) = caller {
        if let Some(state) = caller.rate_state {
            state.add_headers(response.headers_mut());
        }
        response.extensions_mut().insert(caller);
    }
    response
}

/// Refuses a request whose path is served with other methods only.
fn refuse_method(method: &Method, served: &[(Method, RequiredScope)]) -> Response {
    let mut methods: Vec<&str> = served.iter().map(|(method, _)| method.as_str()).collect();
    if methods.contains(&"GET") {
        methods.push("HEAD");
    }
    let detail = format!(
        "{method} is not supported on this path: the Allow header lists the supported methods"
    );
    let mut response = ProblemKind::MethodNotAllowed
        .with_detail(detail)
        .into_response();
    if let Ok(methods) = HeaderValue::from_str(&methods.join(", ")) {
        response.headers_mut().insert(header::ALLOW, methods);
    }
    response
}

/// Authenticates and authorizes a request, and adds the [`Caller`] to it.
async fn authorize(api: &Api, parts: &mut Parts, required: RequiredScope) -> Result<(), Problem> {
    // Only this process can have set the caller.
    let caller = match parts.extensions.get::<Caller>() {
        Some(caller) => caller.clone(),
        None => identify_caller(api, parts, required).await?,
    };
    parts.extensions.insert(caller.clone());
    if !is_permitted(api, parts, &caller, required).await? {
        return Err(build_scope_problem(&caller, required));
    }
    if required == RequiredScope::Admin && parts.method != Method::GET {
        record_action(api, parts, &caller).await?;
    }
    Ok(())
}

/// Returns the client's address: that of the connection, or the one that a trusted proxy reports.
/// Requests of this process have none.
fn find_client_ip(api: &Api, headers: &HeaderMap, extensions: &Extensions) -> Option<IpAddr> {
    let Peer(peer) = extensions.get::<Peer>()?;
    let peer = peer.ip().to_canonical();
    let is_trusted = |address: &IpAddr| is_trusted(api, address);
    if !is_trusted(&peer) {
        return Some(peer);
    }
    // Each proxy appends the address that it received the request from. The last address that is
    // not a trusted proxy is the client; the client may have invented all earlier ones. An
    // unreadable address stands for an unknown client.
    let forwarded = headers.get_all("x-forwarded-for").iter();
    let forwarded: Vec<&str> = forwarded
        .flat_map(|value| value.to_str().unwrap_or("unknown").split(','))
        .collect();
    let mut addresses = forwarded
        .iter()
        .rev()
        .map(|text| parse_address(text.trim()).unwrap_or(UNKNOWN_CLIENT));
    // A trusted proxy without this header is not the client. Programs on this machine connect
    // without a proxy, so a loopback address in a header is not believed.
    let client = addresses.find(|address| !is_trusted(address));
    let client = client.filter(|address| !address.is_loopback());
    Some(client.unwrap_or(UNKNOWN_CLIENT))
}

/// Returns the client's network, by which its requests are limited. Requests of this machine and
/// this process have none.
pub(super) fn find_client_network(api: &Api, request: &Request) -> Option<IpAddr> {
    let client = find_client_ip(api, request.headers(), request.extensions())?;
    (!client.is_loopback()).then(|| truncate_to_network(client))
}

fn is_trusted(api: &Api, address: &IpAddr) -> bool {
    // The unspecified address stands for unknown clients, so no network contains it.
    let mut trusted = api.options.trusted_proxies.iter();
    !address.is_unspecified() && trusted.any(|network| network.contains(address))
}

/// Returns whether the headers show that a proxy forwarded the request.
fn is_proxied(headers: &HeaderMap) -> bool {
    let mut names = headers.keys().map(HeaderName::as_str);
    names.any(|name| name.starts_with(FORWARDED_PREFIX) || PROXY_HEADERS.contains(&name))
}

/// Parses an address as proxies write it, with or without a port.
fn parse_address(text: &str) -> Option<IpAddr> {
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    let address = text.parse::<IpAddr>().ok().or_else(with_port)?;
    Some(address.to_canonical())
}

/// Authenticates a request as far as its route requires.
async fn identify_caller(
    api: &Api,
    parts: &Parts,
    required: RequiredScope,
) -> Result<Caller, Problem> {
    match required {
        RequiredScope::AlwaysOpen => Ok(Caller::anonymous()),
        // An expired or revoked key is ignored here.
        RequiredScope::Public => {
            let is_key_required = api.key_cache.is_key_required();
            let mut caller = Caller::anonymous();
            match timeout(OPTIONAL_KEY_TIMEOUT, is_key_required).await {
                // Until a key exists, only loopback clients may use any route.
                Ok(Ok(false)) => drop(accept_loopback_client(api, parts)?),
                Ok(Ok(true) | Err(_)) | Err(_) => {
                    caller.rate_state = check_address_rate(api, parts)?;
                }
            }
            Ok(caller)
        }
        RequiredScope::OptionalKey => {
            match timeout(OPTIONAL_KEY_TIMEOUT, authenticate(api, parts)).await {
                Ok(Err(problem)) if problem.kind() == ProblemKind::RateLimited => Err(problem),
                Ok(Ok(caller)) => Ok(caller),
                Ok(Err(_)) | Err(_) => Ok(Caller::anonymous()),
            }
        }
        _ => authenticate(api, parts).await,
    }
}

/// Authenticates a request by its key or session. Until a key exists, accepts loopback clients that
/// send none.
async fn authenticate(api: &Api, parts: &Parts) -> Result<Caller, Problem> {
    let (headers, now_ms) = (&parts.headers, api.ports.clock.now_ms());
    let credentials = Credentials::from_request(headers, &parts.uri);
    if !api.key_cache.is_key_required().await? {
        let caller = accept_loopback_client(api, parts)?;
        if matches!(credentials, Credentials::Missing | Credentials::Session(_)) {
            return Ok(caller);
        }
    }
    let matches = |key: &ApiKeyRecord| match &credentials {
        Credentials::Token(token) => key.digest == token.digest(),
        Credentials::Session(session) => {
            session.is_valid(now_ms / 1_000, &api.cookie_signer, &key.digest)
        }
        Credentials::Missing | Credentials::Malformed => false,
    };
    let cached = credentials.key_id().and_then(|id| api.key_cache.cached(id));
    if !cached.is_some_and(|key| matches(&key)) {
        check_address_rate(api, parts)?;
    }
    let key = match credentials.key_id() {
        Some(id) => look_up_key(api, id).await?,
        None => None,
    };
    let key = key.filter(|key| matches(key));
    let key =
        key.ok_or_else(|| ProblemKind::Unauthenticated.with_detail(credentials.refusal_reason()))?;
    api.key_cache.record_use(&key, now_ms).await;
    let caller = accept_key(api, &key.key, now_ms)?;
    // Cross-site request forgery: a page of another site may send this session's cookie.
    let is_session = matches!(credentials, Credentials::Session(_));
    if is_session && !parts.method.is_safe() && !is_same_origin(headers, &parts.uri) {
        let detail = "a session may write only from a page of this service: send a key instead";
        return Err(ProblemKind::NotPermitted.with_detail(detail));
    }
    Ok(caller)
}

/// Looks up a key. An uncached id may be made up, so few of those are looked up at once, and only
/// for a short time. Clients with cached keys are served even while the key store hangs.
async fn look_up_key(api: &Api, id: &str) -> Result<Option<Arc<ApiKeyRecord>>, Problem> {
    let lookup = api.key_cache.get(id);
    if api.key_cache.cached(id).is_some() {
        return lookup.await;
    }
    let busy =
        || ProblemKind::Busy.with_detail("the key store does not answer: retry in some seconds");
    let _permit = api.key_lookup_permits.try_acquire().map_err(|_| busy())?;
    timeout(KEY_LOOKUP_TIMEOUT, lookup)
        .await
        .map_err(|_| busy())?
}

/// Accepts a key. Fails if it is not valid, or exceeds its rate.
fn accept_key(api: &Api, key: &ApiKey, now_ms: i64) -> Result<Caller, Problem> {
    let permitted = api.rate_limits.keys.check(&key.id);
    let rate_state = permitted.map_err(|exceeded| rate_limited("with this key", exceeded))?;
    match key.state(now_ms) {
        KeyState::Valid => {}
        KeyState::Expired => {
            let detail = "the key has expired: ask an administrator for a new one";
            return Err(ProblemKind::Unauthenticated.with_detail(detail));
        }
        KeyState::Revoked => {
            let detail = "the key was revoked: ask an administrator for a new one";
            return Err(ProblemKind::Unauthenticated.with_detail(detail));
        }
    }
    Ok(Caller::from_key(key, rate_state))
}

/// Accepts a client while no key exists. Its address must be a loopback address, and its `Host`
/// must name this machine. The latter refuses DNS rebinding: a page of a site that resolves to this
/// machine sends that site's name.
fn accept_loopback_client(api: &Api, parts: &Parts) -> Result<Caller, Problem> {
    let Some(Peer(peer)) = parts.extensions.get::<Peer>() else {
        // Only this process makes requests without a connection.
        return Ok(Caller::trusted());
    };
    let peer = peer.ip().to_canonical();
    if !peer.is_loopback() {
        return Err(ProblemKind::Unauthenticated.with_detail(
            "until a key exists, only loopback requests are accepted: create a key with `backstitch keys create`",
        ));
    }
    // A proxy on this machine connects from a loopback address for any client. By default nginx
    // adds no header, and sends HTTP/1.0 with the address of this service as Host.
    let may_be_proxied = parts.version < Version::HTTP_11 || is_proxied(&parts.headers);
    if is_trusted(api, &peer) || may_be_proxied {
        return Err(ProblemKind::Unauthenticated.with_detail(
            "until a key exists, requests through a proxy or by HTTP/1.0 are refused: create a key with `backstitch keys create`",
        ));
    }
    if names_this_machine(api, parts) {
        return Ok(Caller::trusted());
    }
    Err(ProblemKind::NotPermitted.with_detail(
        "until a key exists, Host must be sent once and name this machine, for example localhost: create a key, or add the host to serving.hosts",
    ))
}

/// Returns whether a request names its host exactly once, and the host is this machine. A missing,
/// repeated or unreadable `Host` fails the check.
fn names_this_machine(api: &Api, parts: &Parts) -> bool {
    let is_configured = |host: &str| api.options.hosts.iter().any(|name| name == host);
    let is_this_machine = |name: &Authority| {
        let has_user = name.as_str().contains('@');
        !has_user && (is_loopback_host(name.host()) || is_configured(name.host()))
    };
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let (host, second) = (hosts.next(), hosts.next());
    let host = host.map(|host| host.to_str().ok()?.parse::<Authority>().ok());
    let has_valid_host = match (&host, second) {
        (Some(Some(name)), None) => is_this_machine(name),
        // HTTP/2 sends the host as part of the target.
        (None, None) => parts.uri.authority().is_some(),
        _ => false,
    };
    has_valid_host && parts.uri.authority().is_none_or(is_this_machine)
}

/// Returns whether `Origin` names the host of the request. A page over plain HTTP is another origin
/// than a service over TLS.
pub(crate) fn is_same_origin(headers: &HeaderMap, uri: &Uri) -> bool {
    let origin = headers.get(header::ORIGIN);
    let origin = origin.and_then(|origin| origin.to_str().ok());
    let is_over_tls = is_over_tls(headers);
    // A proxy may terminate TLS without a header that says so.
    let is_same_scheme = |scheme: &str| match scheme {
        "https" => is_over_tls || is_proxied(headers),
        "http" => !is_over_tls,
        _ => false,
    };
    origin
        .and_then(|origin| origin.split_once("://"))
        .is_some_and(|(scheme, host)| {
            is_same_scheme(scheme) && find_request_host(headers, uri) == Some(host)
        })
}

/// Returns whether a host names this machine without a name server.
fn is_loopback_host(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_address = host
        .parse()
        .is_ok_and(|address: IpAddr| address.to_canonical().is_loopback());
    is_address || host.eq_ignore_ascii_case("localhost")
}

/// Counts a request without a known key against its client's rate.
fn check_address_rate(api: &Api, parts: &Parts) -> Result<Option<RateState>, Problem> {
    let Some(client) = find_client_ip(api, &parts.headers, &parts.extensions) else {
        return Ok(None);
    };
    let permitted = api
        .rate_limits
        .addresses
        .check(&truncate_to_network(client));
    permitted.map_err(|exceeded| rate_limited("from this address without a known key", exceeded))
}

fn rate_limited(sender: &str, RateExceeded { wait, state }: RateExceeded) -> Problem {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    let detail = format!("too many requests {sender}: retry after {seconds} s");
    ProblemKind::RateLimited
        .with_detail(detail)
        .with_retry_after_s(seconds)
        .with_rate_state(state)
}

/// The credentials of a request.
enum Credentials {
    Missing,
    Malformed,
    Token(Token),
    /// The session cookie of a web page.
    Session(Session),
}

impl Credentials {
    fn from_request(headers: &HeaderMap, uri: &Uri) -> Self {
        let header_text = |name: &str| {
            headers
                .get(name)
                .map(|value| value.to_str().unwrap_or_default())
        };
        let key = match (
            header_text(header::AUTHORIZATION.as_str()),
            header_text(X_API_KEY),
        ) {
            (None, None) => {
                return Session::from_request(headers, uri).map_or(Self::Missing, Self::Session);
            }
            (Some(authorization), _) => {
                let parts = authorization.split_once(' ');
                let bearer = parts.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
                bearer.map(|(_, key)| key.trim())
            }
            (None, key) => key.map(str::trim),
        };
        key.and_then(Token::parse)
            .map_or(Self::Malformed, Self::Token)
    }

    /// Returns the id of the key that the credentials belong to.
    fn key_id(&self) -> Option<&str> {
        match self {
            Self::Missing | Self::Malformed => None,
            Self::Token(token) => Some(token.id()),
            Self::Session(session) => Some(&session.key),
        }
    }

    /// Returns the reason to refuse these credentials.
    const fn refusal_reason(&self) -> &'static str {
        match self {
            Self::Missing => "a key is required: send it as `Authorization: Bearer bsk_…`",
            Self::Malformed | Self::Token(_) => {
                "no such key: check that the key was copied completely"
            }
            Self::Session(_) => "the session has ended: sign in again",
        }
    }
}

async fn is_permitted(
    api: &Api,
    parts: &mut Parts,
    caller: &Caller,
    required: RequiredScope,
) -> Result<bool, Problem> {
    let scopes = &caller.scopes;
    Ok(match required {
        RequiredScope::AlwaysOpen | RequiredScope::Public | RequiredScope::OptionalKey => true,
        RequiredScope::ViewPage | RequiredScope::LiveUpdates => {
            scopes.may_read_all() || scopes.owners().next().is_some()
        }
        RequiredScope::ReadAll => scopes.may_read_all(),
        RequiredScope::Ingest if scopes.may_ingest_all() => true,
        RequiredScope::Ingest => {
            let source = extract_path_param(parts, "source").await;
            let source = source.and_then(|source| source.parse::<Source>().ok());
            source.is_some_and(|source| scopes.may_ingest(source))
        }
        RequiredScope::Connect => scopes.may_ingest(Source::Authorizations),
        RequiredScope::Admin => scopes.may_administer(),
        RequiredScope::ReadOwner(_) | RequiredScope::ReadApplication if scopes.may_read_all() => {
            true
        }
        RequiredScope::RequestCapacity if scopes.may_administer() => true,
        RequiredScope::ReadOwner(_)
        | RequiredScope::ReadApplication
        | RequiredScope::RequestCapacity
            if scopes.owners().next().is_none() =>
        {
            false
        }
        RequiredScope::ReadOwner(parameter) => {
            let values = find_all_values(&parts.uri, parameter);
            // Ids are compared as numbers, as handlers read them: 07 is 7.
            let owner = match (values.as_slice(), parameter) {
                ([value], "owner_id") => parse_integer(value).map(|id| id.to_string()),
                ([value], _) => Some(value.clone()),
                _ => None,
            };
            owner.is_some_and(|owner| scopes.names_owner(&owner))
        }
        RequiredScope::ReadApplication | RequiredScope::RequestCapacity => {
            let id = extract_path_param(parts, "id").await;
            let Some(id) = id.as_deref().and_then(parse_integer) else {
                return Ok(false);
            };
            let application = api.ports.entities.application(id).await?;
            application.is_some_and(|row| scopes.names_owner(&format_scope_owner(&row.owner)))
        }
    })
}

/// Returns a parameter of a request's path.
async fn extract_path_param(parts: &mut Parts, name: &str) -> Option<String> {
    let params = parts.extract::<RawPathParams>().await.ok()?;
    let mut params = params.iter();
    let (_, value) = params.find(|(key, _)| *key == name)?;
    Some(value.to_owned())
}

/// Formats an application's owner as scopes write it.
pub(crate) fn format_scope_owner(owner: &Value) -> String {
    match owner {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Builds the problem that names the scope or parameter that a refused request lacks.
fn build_scope_problem(caller: &Caller, required: RequiredScope) -> Problem {
    // Owners of plays have integer ids.
    let is_usable = |owner: &&str| {
        required != RequiredScope::ReadOwner("owner_id") || parse_integer(owner).is_some()
    };
    let owners: Vec<&str> = caller.scopes.owners().filter(is_usable).collect();
    let detail = match (required, owners.as_slice()) {
        (RequiredScope::ReadOwner(parameter), [owner]) => {
            format!("this key may read only owner {owner}: add {parameter}={owner}")
        }
        (RequiredScope::ReadOwner(parameter), [_, _, ..]) => format!(
            "this key may read only the owners {}: choose one with {parameter}",
            owners.join(", ")
        ),
        (RequiredScope::ReadApplication | RequiredScope::RequestCapacity, [_, ..]) => {
            "this key may not read this application: it belongs to another owner, or does not exist"
                .to_owned()
        }
        (RequiredScope::RequestCapacity, _) => {
            "this key may not request capacity for this application: use a key of its owner, or one with the scope admin"
                .to_owned()
        }
        (RequiredScope::ReadOwner(_) | RequiredScope::ReadApplication | RequiredScope::ReadAll | RequiredScope::ViewPage | RequiredScope::LiveUpdates, _) => {
            "this key may not read this: the scope read:* is required".to_owned()
        }
        (RequiredScope::Ingest, _) => {
            "this key may not write this source: the scope ingest or ingest:SOURCE is required"
                .to_owned()
        }
        (RequiredScope::Connect, _) => {
            "this key may not connect athletes: the scope ingest or ingest:authorizations is required"
                .to_owned()
        }
        (RequiredScope::Admin | RequiredScope::AlwaysOpen | RequiredScope::Public | RequiredScope::OptionalKey, _) => {
            "this key may not administer: the scope admin is required".to_owned()
        }
    };
    ProblemKind::NotPermitted.with_detail(detail)
}

/// Adds a request of an administrator to the audit log before it is executed. If that fails, it is
/// not executed.
async fn record_action(api: &Api, parts: &Parts, caller: &Caller) -> Result<(), Problem> {
    let mut target = parts.uri.path().to_owned();
    let end = target.floor_char_boundary(TARGET_BYTES_MAX);
    target.truncate(end);
    let action = AdminAction {
        number: 0,
        at_ms: api.ports.clock.now_ms(),
        actor: caller.actor().unwrap_or_else(|| "this machine".to_owned()),
        action: format!("http.{}", parts.method.as_str().to_ascii_lowercase()),
        target,
        detail: format_audited_params(parts),
    };
    Ok(api.ports.keys.record_action(&action).await?)
}

/// Formats the parameters of a request that enter the audit log as JSON.
fn format_audited_params(parts: &Parts) -> Option<String> {
    let query = parts.uri.query()?;
    let params = form_urlencoded::parse(query.as_bytes());
    let params = params.filter(|(name, _)| AUDITED_PARAMS.contains(&name.as_ref()));
    let params = params.map(|(name, value)| {
        let mut value = value.into_owned();
        value.truncate(value.floor_char_boundary(TARGET_BYTES_MAX));
        (name.into_owned(), Value::from(value))
    });
    let params: serde_json::Map<String, Value> = params.collect();
    (!params.is_empty()).then(|| Value::Object(params).to_string())
}
