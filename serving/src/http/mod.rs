//! The HTTP API: its routes, and the middleware around them.

mod access;
pub(crate) mod achievements;
pub(crate) mod applications;
mod boards;
pub(crate) mod body;
mod csv;
mod cursor;
pub(crate) mod dead_letters;
mod etag;
mod explain;
mod explain_board;
mod health;
mod ingest;
mod layers;
pub(crate) mod overview;
mod params;
mod permits;
mod problem;
mod ranks;
pub(crate) mod reconciliations;
mod route_docs;
pub(crate) mod runs;
mod stats;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::State;
use axum::http::{Method, header};
use axum::middleware::{from_fn, from_fn_with_state, map_request};
use axum::response::IntoResponse;
use axum::routing::get;
use bytes::Bytes;
use jobs::{Board, Job};
use schemas::source::Source;
use stores::intake::Intake;
use stores::relay::OutboxRelay;
use tokio::sync::{Mutex, OnceCell, Semaphore};
use tokio_util::sync::CancellationToken;
use tower::util::option_layer;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::board::cached::RecentBoardReads;
use crate::board::read::BoardsReading;
use crate::metric::Metric;
use crate::options::{MetricsText, ServingOptions, ServingPorts};
use crate::pages::signer::CookieSigner;
use crate::read::{ReadCaches, Reading};
use crate::request_coalescer::RequestCoalescer;
use crate::stale_cache::StaleCache;
use access::key_cache::KeyCache;
use access::limits::Limits;
pub(crate) use access::limits::network;
pub(crate) use access::table::{RequiredScope, RouteScopes};
pub(crate) use access::{Caller, Peer, request_host, scope_owner};
pub(crate) use applications::limit::wants_page;
pub(crate) use layers::{PageResponse, apply_timeout, with_timeout};
pub(crate) use overview::{record_metrics, record_source_seen};
pub(crate) use params::{LIMIT_MAX, Path, parse_integer};
pub(crate) use permits::{Permit, PermitPool};
pub(crate) use problem::{Problem, ProblemKind};

use RequiredScope::{
    Admin, AlwaysOpen, Connect, Ingest, OptionalKey, Public, ReadAll, ReadApplication, ReadOwner,
    RequestCapacity,
};

/// Scope of statistics; the parameter names the owner.
const OWNER_ID: RequiredScope = ReadOwner("owner_id");
/// Maximum number of concurrent lists of applications. Some orders and filters scan all
/// applications.
const LISTINGS_MAX: usize = 8;
/// Maximum number of concurrent reads of dead letters. Each uses some megabytes of memory.
const DEAD_LETTER_READS_MAX: usize = 2;
/// One in this many concurrent reads of statistics may return many values.
const LARGE_SHARE: usize = 8;
/// One address may use one in this many connections and concurrent requests.
pub(crate) const ADDRESS_SHARE: usize = 8;
/// One key may use one in this many streams of change events.
const FOLLOWERS_SHARE: usize = 8;
/// Maximum number of concurrent key lookups by sign-ins, which are not authenticated.
const SIGN_INS_MAX: usize = 32;
/// Maximum number of concurrent lookups of keys that are not cached and may be made up.
const KEY_LOOKUPS_MAX: usize = 64;

/// State of the handlers.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) ports: ServingPorts,
    pub(crate) options: ServingOptions,
    pub(crate) metrics: BTreeMap<String, Metric>,
    pub(crate) boards: BTreeMap<String, Arc<Job<Board>>>,
    pub(crate) relay: OutboxRelay,
    pub(crate) metrics_text: Option<MetricsText>,
    /// Intake by source, opened by the first request.
    pub(crate) intakes: Mutex<BTreeMap<Source, Arc<OnceCell<Arc<Intake>>>>>,
    /// Permits for ingest requests, by key.
    pub(crate) ingest_permits: Arc<PermitPool<String>>,
    /// Permits for reads of statistics, and additional ones for those that may return many values.
    pub(crate) stats_reads: Semaphore,
    pub(crate) large_stats_reads: Semaphore,
    /// Permits for reads of boards.
    pub(crate) board_reads: Semaphore,
    /// Permits for lists of applications.
    pub(crate) listings: Semaphore,
    /// Permits for reads of dead letters.
    pub(crate) dead_letter_reads: Semaphore,
    /// The single permit for replays of dead letters.
    pub(crate) replays: Semaphore,
    /// Earlier results, for use while a store does not respond.
    pub(crate) stats_cache: StaleCache<Reading>,
    pub(crate) read_caches: ReadCaches,
    /// Reads of statistics in progress.
    pub(crate) stats_coalescer: RequestCoalescer<Result<Arc<Reading>, Problem>>,
    pub(crate) board_cache: StaleCache<BoardsReading>,
    /// Reads of boards in progress, and of the members that filter them.
    pub(crate) board_coalescer: RequestCoalescer<Result<Arc<BoardsReading>, Problem>>,
    pub(crate) member_coalescer: RequestCoalescer<Result<Arc<[i64]>, Problem>>,
    /// Recent reads and misses of cached boards.
    pub(crate) recent_board_reads: RecentBoardReads,
    /// Permits for requests, by client address. A request keeps its permit until its response is
    /// sent, because unsent bytes are in memory.
    pub(crate) request_permits: Arc<PermitPool<IpAddr>>,
    pub(crate) key_cache: KeyCache,
    pub(crate) limits: Limits,
    /// Signs session cookies of pages.
    pub(crate) cookie_signer: CookieSigner,
    /// Cancelled at shutdown, which ends streams of change events.
    pub(crate) shutdown: CancellationToken,
    /// Permits for streams of change events, by key.
    pub(crate) follower_permits: Arc<PermitPool<String>>,
    /// Reads of sources' positions in progress.
    pub(crate) position_reads: RequestCoalescer<Result<u128, Problem>>,
    /// Permits for key lookups by sign-ins.
    pub(crate) sign_ins: Semaphore,
    /// Permits for lookups of keys that are not cached.
    pub(crate) key_lookups: Semaphore,
    openapi: OnceLock<Bytes>,
}

impl Api {
    pub(crate) fn new(
        ports: ServingPorts,
        options: ServingOptions,
        metrics: BTreeMap<String, Metric>,
        boards: BTreeMap<String, Arc<Job<Board>>>,
        metrics_text: Option<MetricsText>,
    ) -> Self {
        let permits = |max: usize| Semaphore::new(max.min(Semaphore::MAX_PERMITS));
        Self {
            relay: OutboxRelay::new(
                Arc::clone(&ports.entities) as _,
                Arc::clone(&ports.ingest),
                Arc::clone(&ports.clock),
                options.partitions,
            ),
            stats_cache: StaleCache::new(&options),
            read_caches: ReadCaches::new(&options),
            stats_coalescer: RequestCoalescer::new(),
            board_cache: StaleCache::new(&options),
            board_coalescer: RequestCoalescer::new(),
            member_coalescer: RequestCoalescer::new(),
            recent_board_reads: RecentBoardReads::new(),
            ingest_permits: PermitPool::new(options.ingests_max, options.ingests_per_key()),
            stats_reads: permits(options.tally_reads_max),
            large_stats_reads: permits(options.tally_reads_max.div_ceil(LARGE_SHARE)),
            board_reads: permits(options.board_reads_max),
            listings: Semaphore::new(LISTINGS_MAX),
            dead_letter_reads: Semaphore::new(DEAD_LETTER_READS_MAX),
            replays: Semaphore::new(1),
            request_permits: PermitPool::new(
                options.requests_max,
                options.requests_max.div_ceil(ADDRESS_SHARE),
            ),
            key_cache: KeyCache::new(Arc::clone(&ports.keys), &options),
            limits: Limits::new(&options),
            cookie_signer: CookieSigner::from_secret(&options.session_secret),
            shutdown: CancellationToken::new(),
            follower_permits: PermitPool::new(
                options.followers_max,
                (options.followers_max / FOLLOWERS_SHARE).max(1),
            ),
            position_reads: RequestCoalescer::new(),
            ports,
            options,
            metrics,
            boards,
            metrics_text,
            intakes: Mutex::default(),
            sign_ins: Semaphore::new(SIGN_INS_MAX),
            key_lookups: Semaphore::new(KEY_LOOKUPS_MAX),
            openapi: OnceLock::new(),
        }
    }

    /// Returns the OpenAPI document, which is empty until the routes are built.
    pub(crate) fn openapi(&self) -> Bytes {
        self.openapi.get().cloned().unwrap_or_default()
    }

    pub(crate) fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::from_millisecond(self.ports.clock.now_ms()).unwrap_or_default()
    }
}

/// The OpenAPI document. Paths and schemas come from the handlers.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Backstitch",
        description = "Exact counts of events and leaderboards of athletes. Every response states its provenance. \
                       Errors are problem documents (RFC 9457). CSV cells that begin with =, +, - or @ are data, not formulas: import them as text."
    ),
    components(schemas(problem::ProblemShape))
)]
struct Description;

/// Builds all routes with their middleware.
pub(crate) fn router(api: &Arc<Api>) -> Router {
    let mut scopes = RouteScopes::default();
    let timed = tagged_routes(&mut scopes)
        .merge(other_reads(&mut scopes))
        .layer(from_fn_with_state(Arc::clone(api), apply_timeout));
    // Writes have no time limit: a slow write must not be aborted.
    let (router, mut openapi) = OpenApiRouter::with_openapi(Description::openapi())
        .merge(timed)
        .merge(writes(&mut scopes))
        .split_for_parts();
    route_docs::add_security_schemes(&mut openapi);
    if let Ok(json) = openapi.to_pretty_json() {
        api.openapi.get_or_init(|| json.into());
    }
    let router = router.with_state(Arc::clone(api));
    crate::pages::add_scopes(&mut scopes);
    let scopes = Arc::new(scopes);
    let pages = crate::pages::routes(with_middleware(router.clone(), api, &scopes), api);
    with_middleware(router.merge(pages), api, &scopes)
}

/// Builds the reads whose responses have an entity tag.
fn tagged_routes(scopes: &mut RouteScopes) -> OpenApiRouter<Arc<Api>> {
    use applications::{admin, history, list, notices, requests};
    // Proxies may decode the slash of an id.
    let decoded = "/api/v1/dead-letters/{id}/{place}";
    scopes.add(decoded, Method::GET, ReadAll);
    let mut scoped = |scope, routes| route_docs::with_scope(scopes, scope, routes);
    OpenApiRouter::new()
        .routes(scoped(OWNER_ID, routes!(stats::show_total)))
        .routes(scoped(OWNER_ID, routes!(stats::show_series)))
        .routes(scoped(OWNER_ID, routes!(stats::show_breakdown)))
        .routes(scoped(OWNER_ID, routes!(stats::show_uniques)))
        .routes(scoped(OWNER_ID, routes!(stats::show_unique_series)))
        .routes(scoped(ReadAll, routes!(boards::show_board)))
        .routes(scoped(ReadAll, routes!(boards::show_athlete)))
        .routes(scoped(ReadAll, routes!(boards::show_counts)))
        .routes(scoped(
            ReadAll,
            routes!(achievements::list_athlete_achievements),
        ))
        .routes(scoped(
            ReadAll,
            routes!(achievements::list_activity_achievements),
        ))
        .routes(scoped(ReadOwner("owner"), routes!(list::list_applications)))
        .routes(scoped(ReadApplication, routes!(admin::list_changes)))
        .routes(scoped(ReadApplication, routes!(history::show_history)))
        .routes(scoped(
            ReadApplication,
            routes!(requests::list_application_capacity_requests),
        ))
        .routes(scoped(ReadAll, routes!(requests::list_capacity_requests)))
        .routes(scoped(
            ReadApplication,
            routes!(notices::list_application_notices),
        ))
        .routes(scoped(ReadAll, routes!(notices::list_capacity_notices)))
        .routes(scoped(
            ReadApplication,
            routes!(applications::show_application),
        ))
        .routes(scoped(ReadAll, routes!(runs::list_runs)))
        .routes(scoped(ReadAll, routes!(runs::show_run)))
        .routes(scoped(
            ReadAll,
            routes!(reconciliations::list_reconciliations),
        ))
        .routes(scoped(OWNER_ID, routes!(explain::explain_value)))
        .routes(scoped(ReadAll, routes!(dead_letters::list_dead_letters)))
        .routes(scoped(ReadAll, routes!(dead_letters::count_dead_letters)))
        .routes(scoped(ReadAll, routes!(dead_letters::show_dead_letter)))
        .route(decoded, get(dead_letters::show_dead_letter_decoded))
        .routes(scoped(ReadAll, routes!(overview::show_overview)))
        .layer(from_fn(etag::add_etag))
}

/// Builds the reads without an entity tag.
fn other_reads(scopes: &mut RouteScopes) -> OpenApiRouter<Arc<Api>> {
    let mut scoped = |scope, routes| route_docs::with_scope(scopes, scope, routes);
    OpenApiRouter::new()
        .routes(scoped(ReadAll, routes!(ranks::rank_athletes)))
        .routes(scoped(AlwaysOpen, routes!(health::livez)))
        .routes(scoped(OptionalKey, routes!(health::readyz)))
        .routes(scoped(ReadAll, routes!(health::metrics)))
        .routes(scoped(Public, routes!(openapi_json)))
        .routes(scoped(
            Public,
            routes!(applications::limit::show_limit_page),
        ))
}

/// Builds the writes.
fn writes(scopes: &mut RouteScopes) -> OpenApiRouter<Arc<Api>> {
    use applications::{admin, requests};
    let mut scoped = |scope, routes| route_docs::with_scope(scopes, scope, routes);
    OpenApiRouter::new()
        .routes(scoped(Ingest, routes!(ingest::ingest)))
        .routes(scoped(Admin, routes!(dead_letters::replay_dead_letters)))
        .routes(scoped(
            Admin,
            routes!(reconciliations::approve_reconciliation),
        ))
        .routes(scoped(Admin, routes!(admin::change_application)))
        .routes(scoped(RequestCapacity, routes!(requests::request_capacity)))
        .routes(scoped(Admin, routes!(requests::decide_capacity_request)))
        .routes(scoped(Connect, routes!(applications::connect_athlete)))
        .routes(scoped(Connect, routes!(applications::disconnect_athlete)))
}

/// Adds the middleware of every route.
fn with_middleware(router: Router, api: &Arc<Api>, scopes: &Arc<RouteScopes>) -> Router {
    let access = (Arc::clone(api), Arc::clone(scopes));
    router
        .fallback(unknown_path)
        .layer(from_fn_with_state(access, access::check_access))
        .layer(from_fn_with_state(Arc::clone(api), layers::limit_requests))
        .layer(CatchPanicLayer::custom(layers::on_panic))
        .layer(from_fn(layers::finish_response))
        .layer(option_layer(layers::cors(&api.options)))
        .layer(CompressionLayer::new().gzip(true))
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .layer(map_request(layers::check_request_id))
}

/// The OpenAPI document of this API.
#[utoipa::path(
    get,
    path = "/openapi.json",
    tag = "service",
    responses((status = 200, description = "The document", content_type = "application/json"))
)]
async fn openapi_json(State(api): State<Arc<Api>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], api.openapi())
}

async fn unknown_path() -> Problem {
    ProblemKind::UnknownPath.with_detail(
        "no route has this path: / leads to the web pages, and /openapi.json lists the API",
    )
}

#[cfg(test)]
mod tests;
