//! Who is asking, and whether that is permitted: keys, what each route needs, limits, and the record of what
//! administrators ask for.
//!
//! As long as there is no key, only this machine is served, and everything is permitted. From the first key on
//! each request needs one, but for what the table gives to everybody.

pub(crate) mod limits;
pub(crate) mod ring;
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
use schemas::access::Scopes;
use schemas::source::Source;
use serde_json::Value;
use stores::keys::{Action, ApiKey, KeptKey, KeyState, Token};
use tokio::time::timeout;

use super::Api;
use super::layers::in_time;
use super::params::{all_of, integer};
use super::problem::{Kind, Problem};
use crate::pages::cookie::is_over_tls;
use crate::pages::sign_in::Session;
use limits::network;
use table::{Known, Need, Needs};

/// Headers by which proxies pass on the client's address, besides those that begin with [`FORWARDED`].
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
/// Begins headers by which proxies pass on address, host, port and scheme of the original request.
const FORWARDED: &str = "x-forwarded";
/// How long a key that is not kept is looked up.
const LOOK_UP_WAIT: Duration = Duration::from_secs(5);
/// The header that a key may be in instead.
pub(crate) const X_API_KEY: &str = "x-api-key";
/// The most bytes of a target that are recorded.
const TARGET_BYTES_MAX: usize = 512;
/// The parameters of requests of administrators that are recorded: none names a person.
const RECORDED: [&str; 5] = ["id", "source", "since", "dry_run", "number"];
/// How long is looked who is asking where that only tells more.
const OPEN_WAIT: Duration = Duration::from_secs(1);
/// Who asks through a proxy that does not say who it is.
const SOMEBODY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Who is asking.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// The name and the id of the key; nothing of who needs none.
    key: Option<(String, String)>,
    scopes: Scopes,
}

impl Caller {
    /// Who may do everything: this process, or this machine while there is no key.
    pub(crate) fn trusted() -> Self {
        Self {
            key: None,
            scopes: Scopes::all(),
        }
    }

    /// Who has no key.
    pub(crate) fn stranger() -> Self {
        Self {
            key: None,
            scopes: Scopes::default(),
        }
    }

    /// Whether every read is permitted.
    pub(crate) fn may_read_all(&self) -> bool {
        self.scopes.may_read_all()
    }

    /// Whether it may change what administrators change.
    pub(crate) fn may_administer(&self) -> bool {
        self.scopes.may_administer()
    }

    /// The owner whose things alone this key reads; nothing if it reads more, or nothing of one.
    pub(crate) fn only_owner(&self) -> Option<&str> {
        let mut owners = self.scopes.owners();
        let only = owners.next().filter(|_| !self.scopes.may_read_all())?;
        owners.next().is_none().then_some(only)
    }

    /// The owners whom the key names.
    pub(crate) fn owners(&self) -> impl Iterator<Item = &str> {
        self.scopes.owners()
    }

    /// The id of the key, if there is one.
    pub(crate) fn key_id(&self) -> Option<&str> {
        self.key.as_ref().map(|(_, id)| id.as_str())
    }

    /// What records say of who did something: the key, if there is one.
    pub(crate) fn actor(&self) -> Option<String> {
        let (name, id) = self.key.as_ref()?;
        Some(format!("{name} (key {id})"))
    }
}

/// Lets a request through that is permitted.
pub(crate) async fn guard(
    State((api, needs)): State<(Arc<Api>, Arc<Needs>)>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.extensions().get::<MatchedPath>().cloned();
    let Some(path) = path else {
        // Nothing is there.
        return next.run(request).await;
    };
    let need = match needs.of(request.method(), path.as_str()) {
        Known::Needs(need) => need,
        Known::OtherMethods(served) => return other_method(request.method(), served),
        Known::Forgotten => {
            let path = path.as_str();
            tracing::error!(
                path,
                "nobody is served here: the route does not say what it needs"
            );
            return Kind::NotPermitted
                .with_detail("nobody is served here")
                .into_response();
        }
    };
    let (mut parts, body) = request.into_parts();
    let checked = in_time(&api, check(&api, &mut parts, need)).await;
    // Whose page it is if it becomes one.
    let caller = parts.extensions.get::<Caller>().cloned();
    let uri = parts.extensions.get::<OriginalUri>().cloned();
    let mut response = match (checked.flatten(), uri) {
        (Ok(()), _) => next.run(Request::from_parts(parts, body)).await,
        (Err(problem), Some(uri)) if need == Need::Page && problem.kind() == Kind::NoKey => {
            return crate::pages::sign_in::led_from(&uri);
        }
        (Err(problem), _) => problem.into_response(),
    };
    if let Some(caller) = caller {
        response.extensions_mut().insert(caller);
    }
    response
}

/// The answer to a method by which a path is not served.
fn other_method(method: &Method, served: &[(Method, Need)]) -> Response {
    let mut methods: Vec<&str> = served.iter().map(|(method, _)| method.as_str()).collect();
    if methods.contains(&"GET") {
        methods.push("HEAD");
    }
    let detail = format!("{method} is not allowed here: the header Allow lists what is");
    let mut response = Kind::MethodNotAllowed.with_detail(detail).into_response();
    if let Ok(methods) = HeaderValue::from_str(&methods.join(", ")) {
        response.headers_mut().insert(header::ALLOW, methods);
    }
    response
}

/// Finds out who is asking, which the request says from then on, and whether that is permitted.
async fn check(api: &Api, parts: &mut Parts, need: Need) -> Result<(), Problem> {
    // Only this process can have said who is asking.
    let caller = match parts.extensions.get::<Caller>() {
        Some(known) => known.clone(),
        None => caller(api, parts, need).await?,
    };
    parts.extensions.insert(caller.clone());
    if !is_permitted(api, parts, &caller, need).await? {
        return Err(refused(&caller, need));
    }
    if need == Need::Admin && parts.method != Method::GET {
        record(api, parts, &caller).await?;
    }
    Ok(())
}

fn peer_of(api: &Api, parts: &Parts) -> Option<IpAddr> {
    peer(api, &parts.headers, &parts.extensions)
}

/// The address of who is asking: behind a proxy that is trusted what it says.
fn peer(api: &Api, headers: &HeaderMap, extensions: &Extensions) -> Option<IpAddr> {
    let Peer(peer) = extensions.get::<Peer>()?;
    let peer = peer.ip().to_canonical();
    let is_trusted = |address: &IpAddr| is_trusted(api, address);
    if !is_trusted(&peer) {
        return Some(peer);
    }
    // Each proxy adds whom it heard at the end: the last one that is none of ours is who is asking, whatever it said before
    // that. One that can't be read is somebody, and not this machine.
    let said = headers.get_all("x-forwarded-for").iter();
    let said: Vec<&str> = said
        .flat_map(|value| value.to_str().unwrap_or("unknown").split(','))
        .collect();
    let heard = said.iter().rev().map(|one| address(one.trim()));
    let stranger = heard.map(|one| one.unwrap_or(SOMEBODY));
    // A proxy that says nothing is not who is asking. An address in a header is never this machine's: programs on this
    // machine connect without a proxy.
    let stranger = stranger.into_iter().find(|one| !is_trusted(one));
    let stranger = stranger.filter(|one| !one.is_loopback());
    Some(stranger.unwrap_or(SOMEBODY))
}

/// What stands for the address of who is asking; nothing of this machine, and of this service itself.
pub(super) fn asking(api: &Api, request: &Request) -> Option<IpAddr> {
    let peer = peer(api, request.headers(), request.extensions())?;
    (!peer.is_loopback()).then(|| network(peer))
}

fn is_trusted(api: &Api, address: &IpAddr) -> bool {
    // Who does not say who it is is in no network.
    let mut trusted = api.options.trusted_proxies.iter();
    !address.is_unspecified() && trusted.any(|network| network.contains(address))
}

/// Whether a proxy passed a request on, as far as its headers say so.
fn is_proxied(headers: &HeaderMap) -> bool {
    let mut names = headers.keys().map(HeaderName::as_str);
    names.any(|name| name.starts_with(FORWARDED) || PROXY_HEADERS.contains(&name))
}

/// An address as proxies write it, with a port or without.
fn address(text: &str) -> Option<IpAddr> {
    let with_port = || text.parse::<SocketAddr>().ok().map(|one| one.ip());
    let found = text.parse::<IpAddr>().ok().or_else(with_port)?;
    Some(found.to_canonical())
}

async fn caller(api: &Api, parts: &Parts, need: Need) -> Result<Caller, Problem> {
    match need {
        Need::Free => Ok(Caller::stranger()),
        // A key that is over shuts nobody out.
        Need::Nothing => {
            match timeout(OPEN_WAIT, api.key_ring.is_asked_for()).await {
                // Nobody else is served while there is no key, whatever is asked for.
                Ok(Ok(false)) => drop(here(api, parts)?),
                Ok(Ok(true) | Err(_)) | Err(_) => stranger_may_ask(api, peer_of(api, parts))?,
            }
            Ok(Caller::stranger())
        }
        Need::Open => match timeout(OPEN_WAIT, known(api, parts)).await {
            Ok(Err(problem)) if problem.kind() == Kind::TooOften => Err(problem),
            Ok(Ok(known)) => Ok(known),
            Ok(Err(_)) | Err(_) => Ok(Caller::stranger()),
        },
        _ => known(api, parts).await,
    }
}

/// Who is asking, who must be known.
async fn known(api: &Api, parts: &Parts) -> Result<Caller, Problem> {
    if !api.key_ring.is_asked_for().await? {
        return here(api, parts);
    }
    let (headers, now_ms) = (&parts.headers, api.ports.clock.now_ms());
    let is_of = |kept: &KeptKey, sent: &Sent| match sent {
        Sent::Token(token) => kept.digest == token.digest(),
        Sent::Session(session) => session.is_valid(now_ms / 1_000, &api.seal, &kept.digest),
        Sent::Nothing | Sent::NoKey => false,
    };
    let sent = sent(headers, &parts.uri);
    let kept = sent.id().and_then(|id| api.key_ring.kept(id));
    if !kept.is_some_and(|kept| is_of(&kept, &sent)) {
        stranger_may_ask(api, peer_of(api, parts))?;
    }
    let kept = match sent.id() {
        Some(id) => looked_up(api, id).await?,
        None => None,
    };
    let kept = kept.filter(|kept| is_of(kept, &sent));
    let kept = kept.ok_or_else(|| Kind::NoKey.with_detail(sent.refusal()))?;
    api.key_ring.note_use(&kept, now_ms).await;
    let caller = who(api, &kept.key, now_ms)?;
    // What is written comes from a page of this service alone, which browsers say: pages of others may be let in, with a key
    // of theirs.
    let is_signed_in = matches!(sent, Sent::Session(_));
    if is_signed_in && !parts.method.is_safe() && !is_of_own_page(headers, &parts.uri) {
        let detail =
            "who is signed in on pages writes from a page of this service: send a key instead";
        return Err(Kind::NotPermitted.with_detail(detail));
    }
    Ok(caller)
}

/// What is found of a key. One that is not kept may be made up, so that few are looked up at once, and not for long: who
/// has a key that is kept goes on while the store of keys hangs.
async fn looked_up(api: &Api, id: &str) -> Result<Option<Arc<KeptKey>>, Problem> {
    let look = api.key_ring.found(id);
    if api.key_ring.kept(id).is_some() {
        return look.await;
    }
    let busy = || {
        Kind::Busy.with_detail("keys can't be looked up at the moment: ask again in some seconds")
    };
    let _place = api.look_ups.try_acquire().map_err(|_| busy())?;
    timeout(LOOK_UP_WAIT, look).await.map_err(|_| busy())?
}

/// Who has a key, if it is valid and not used too often.
fn who(api: &Api, key: &ApiKey, now_ms: i64) -> Result<Caller, Problem> {
    let id = key.id.clone();
    let taken = api.limits.of_keys.take(&id);
    taken.map_err(|wait| too_often("this key", wait))?;
    match key.state(now_ms) {
        KeyState::Valid => {}
        KeyState::Expired => {
            return Err(Kind::NoKey.with_detail("the key has expired: ask for a new one"));
        }
        KeyState::Revoked => {
            return Err(Kind::NoKey.with_detail("the key was taken back: ask for a new one"));
        }
    }
    Ok(Caller {
        key: Some((key.name.clone(), id)),
        scopes: key.scopes.clone(),
    })
}

/// The caller while there is no key: this machine, by the connection's own address and by a host name of its own. A
/// page of another site whose name resolves to this machine sends that site's name.
fn here(api: &Api, parts: &Parts) -> Result<Caller, Problem> {
    let Some(Peer(peer)) = parts.extensions.get::<Peer>() else {
        // Only this process makes requests without a connection.
        return Ok(Caller::trusted());
    };
    let peer = peer.ip().to_canonical();
    if !peer.is_loopback() {
        return Err(Kind::NoKey.with_detail(
            "only this machine is served until there is a key: make one with `backstitch keys create`",
        ));
    }
    // A proxy on this machine connects from a loopback address, whoever its client is. By default nginx adds no header and
    // sends HTTP/1.0 with the address of this service as Host.
    let is_of_proxy = parts.version < Version::HTTP_11 || is_proxied(&parts.headers);
    if is_trusted(api, &peer) || is_of_proxy {
        return Err(Kind::NoKey.with_detail(
            "requests through a proxy or by HTTP/1.0 are refused until a key exists: make one with `backstitch keys create`",
        ));
    }
    if names_this_machine(api, parts) {
        return Ok(Caller::trusted());
    }
    Err(Kind::NotPermitted.with_detail(
        "until a key exists, Host must be sent once and name this machine, for example localhost: make a key, or add the host to serving.hosts",
    ))
}

/// Whether a request names its host once, and the host is this machine. A `Host` that is missing, repeated or
/// unreadable names none.
fn names_this_machine(api: &Api, parts: &Parts) -> bool {
    let is_named = |host: &str| api.options.hosts.iter().any(|of| of == host);
    let is_ours = |name: &Authority| {
        let has_user = name.as_str().contains('@');
        !has_user && (is_here(name.host()) || is_named(name.host()))
    };
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let (host, second) = (hosts.next(), hosts.next());
    let host = host.map(|host| host.to_str().ok()?.parse::<Authority>().ok());
    let is_host_ours = match (&host, second) {
        (Some(Some(name)), None) => is_ours(name),
        // HTTP/2 sends the host as part of the target.
        (None, None) => parts.uri.authority().is_some(),
        _ => false,
    };
    is_host_ours && parts.uri.authority().is_none_or(is_ours)
}

/// The host that a request is for.
pub(crate) fn asked_host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let host = headers.get(header::HOST);
    let host = host.and_then(|host| host.to_str().ok());
    uri.authority().map(Authority::as_str).or(host)
}

/// Whether `Origin` names a page of the host that the request is for. A page over plain HTTP is not of a service that is
/// reached over TLS.
pub(crate) fn is_of_own_page(headers: &HeaderMap, uri: &Uri) -> bool {
    let origin = headers.get(header::ORIGIN);
    let origin = origin.and_then(|origin| origin.to_str().ok());
    let is_over_tls = is_over_tls(headers);
    // A proxy may end TLS without saying so.
    let is_ours = |scheme: &str| match scheme {
        "https" => is_over_tls || is_proxied(headers),
        "http" => !is_over_tls,
        _ => false,
    };
    origin
        .and_then(|origin| origin.split_once("://"))
        .is_some_and(|(scheme, host)| is_ours(scheme) && asked_host(headers, uri) == Some(host))
}

/// Whether a host is this machine whatever a name server says.
fn is_here(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_address = host
        .parse()
        .is_ok_and(|address: IpAddr| address.to_canonical().is_loopback());
    is_address || host.eq_ignore_ascii_case("localhost")
}

fn stranger_may_ask(api: &Api, peer: Option<IpAddr>) -> Result<(), Problem> {
    let Some(peer) = peer else { return Ok(()) };
    let taken = api.limits.of_strangers.take(&network(peer));
    taken.map_err(|wait| too_often("this address without a key that is known", wait))
}

fn too_often(who: &str, wait: Duration) -> Problem {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    Kind::TooOften
        .with_detail(format!(
            "{who} has asked too often: ask again after {seconds} s"
        ))
        .retry_after(seconds)
}

/// What a request brings.
enum Sent {
    Nothing,
    /// Something that is no key.
    NoKey,
    Token(Token),
    /// That somebody has signed in on pages.
    Session(Session),
}

impl Sent {
    /// The id of the key that it is about.
    fn id(&self) -> Option<&str> {
        match self {
            Self::Nothing | Self::NoKey => None,
            Self::Token(token) => Some(token.id()),
            Self::Session(session) => Some(&session.key),
        }
    }

    /// Why it lets nobody in.
    const fn refusal(&self) -> &'static str {
        match self {
            Self::Nothing => "a key is needed: send `Authorization: Bearer bsk_…`",
            Self::NoKey | Self::Token(_) => {
                "there is no such key: look whether it was copied whole"
            }
            Self::Session(_) => "nobody is signed in any more: sign in again",
        }
    }
}

fn sent(headers: &HeaderMap, uri: &Uri) -> Sent {
    let text = |name: &str| {
        headers
            .get(name)
            .map(|value| value.to_str().unwrap_or_default())
    };
    let sent = match (text(header::AUTHORIZATION.as_str()), text(X_API_KEY)) {
        (None, None) => return Session::of(headers, uri).map_or(Sent::Nothing, Sent::Session),
        (Some(authorization), _) => {
            let parts = authorization.split_once(' ');
            let bearer = parts.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
            bearer.map(|(_, key)| key.trim())
        }
        (None, key) => key.map(str::trim),
    };
    sent.and_then(Token::of).map_or(Sent::NoKey, Sent::Token)
}

async fn is_permitted(
    api: &Api,
    parts: &mut Parts,
    caller: &Caller,
    need: Need,
) -> Result<bool, Problem> {
    let scopes = &caller.scopes;
    Ok(match need {
        Need::Free | Need::Nothing | Need::Open => true,
        Need::Page | Need::Following => scopes.may_read_all() || scopes.owners().next().is_some(),
        Need::Read => scopes.may_read_all(),
        Need::Ingest if scopes.may_ingest_all() => true,
        Need::Ingest => {
            let source = path_param(parts, "source").await;
            let source = source.and_then(|source| source.parse::<Source>().ok());
            source.is_some_and(|source| scopes.may_ingest(source))
        }
        Need::Connect => scopes.may_ingest(Source::Authorizations),
        Need::Admin => scopes.may_administer(),
        Need::Owner(_) | Need::Application if scopes.may_read_all() => true,
        Need::Asking if scopes.may_administer() => true,
        Need::Owner(_) | Need::Application | Need::Asking if scopes.owners().next().is_none() => {
            false
        }
        Need::Owner(parameter) => {
            let named = all_of(&parts.uri, parameter);
            // Ids are read as numbers, so they are compared as such: 07 is 7.
            let owner = match (named.as_slice(), parameter) {
                ([one], "owner_id") => integer(one).map(|id| id.to_string()),
                ([one], _) => Some(one.clone()),
                _ => None,
            };
            owner.is_some_and(|owner| scopes.is_of_owner(&owner))
        }
        Need::Application | Need::Asking => {
            let id = path_param(parts, "id").await;
            let Some(id) = id.as_deref().and_then(integer) else {
                return Ok(false);
            };
            let found = api.ports.canon.application(id).await?;
            found.is_some_and(|found| scopes.is_of_owner(&owner_text(&found.owner)))
        }
    })
}

/// A parameter in the path of a request.
async fn path_param(parts: &mut Parts, name: &str) -> Option<String> {
    let params = parts.extract::<RawPathParams>().await.ok()?;
    let mut params = params.iter();
    let (_, value) = params.find(|(of, _)| *of == name)?;
    Some(value.to_owned())
}

/// An application's owner as scopes name it.
pub(crate) fn owner_text(owner: &Value) -> String {
    match owner {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn refused(caller: &Caller, need: Need) -> Problem {
    // Plays have owners with numbers.
    let may_be = |owner: &&str| need != Need::Owner("owner_id") || integer(owner).is_some();
    let owners: Vec<&str> = caller.scopes.owners().filter(may_be).collect();
    let detail = match (need, owners.as_slice()) {
        (Need::Owner(parameter), [owner]) => {
            format!("this key reads what {owner} has: say {parameter}={owner}")
        }
        (Need::Owner(parameter), [_, _, ..]) => format!(
            "this key reads what {} have: say whom by {parameter}",
            owners.join(", ")
        ),
        (Need::Application | Need::Asking, [_, ..]) => {
            "this key does not read this application: it is another owner's, or not there"
                .to_owned()
        }
        (Need::Asking, _) => {
            "this key does not ask for this application: it takes its owner's, or the scope admin"
                .to_owned()
        }
        (Need::Owner(_) | Need::Application | Need::Read | Need::Page | Need::Following, _) => {
            "this key does not read this: it takes the scope read:*".to_owned()
        }
        (Need::Ingest, _) => {
            "this key does not write this source: it takes the scope ingest, or ingest: and the source's name"
                .to_owned()
        }
        (Need::Connect, _) => {
            "this key does not connect athletes: it takes the scope ingest or ingest:authorizations"
                .to_owned()
        }
        (Need::Admin | Need::Free | Need::Nothing | Need::Open, _) => {
            "this key does not administer: it takes the scope admin".to_owned()
        }
    };
    Kind::NotPermitted.with_detail(detail)
}

/// Records what an administrator asks for, before it is done: what can't be recorded is not done.
async fn record(api: &Api, parts: &Parts, caller: &Caller) -> Result<(), Problem> {
    let mut target = parts.uri.path().to_owned();
    let end = target.floor_char_boundary(TARGET_BYTES_MAX);
    target.truncate(end);
    let action = Action {
        number: 0,
        at_ms: api.ports.clock.now_ms(),
        actor: caller.actor().unwrap_or_else(|| "this machine".to_owned()),
        action: format!("http.{}", parts.method.as_str().to_ascii_lowercase()),
        target,
        detail: detail(parts),
    };
    Ok(api.ports.keys.record_action(&action).await?)
}

/// What a request says it is about beside its path, where routes take that.
fn detail(parts: &Parts) -> Option<String> {
    let query = parts.uri.query()?;
    let told = form_urlencoded::parse(query.as_bytes());
    let told = told.filter(|(name, _)| RECORDED.contains(&name.as_ref()));
    let told = told.map(|(name, value)| {
        let mut value = value.into_owned();
        value.truncate(value.floor_char_boundary(TARGET_BYTES_MAX));
        (name.into_owned(), Value::from(value))
    });
    let told: serde_json::Map<String, Value> = told.collect();
    (!told.is_empty()).then(|| Value::Object(told).to_string())
}

#[cfg(test)]
#[path = "access/tests.rs"]
mod tests;
