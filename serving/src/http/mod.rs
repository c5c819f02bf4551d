//! The HTTP edge: routes, and what goes around every one of them.

mod access;
pub(crate) mod achievements;
pub(crate) mod applications;
mod boards;
pub(crate) mod body;
mod csv;
mod cursor;
pub(crate) mod dead_letters;
mod described;
mod etag;
mod explain;
mod explain_board;
mod health;
mod ingest;
mod layers;
pub(crate) mod overview;
mod params;
mod places;
mod problem;
mod ranks;
pub(crate) mod reconciliations;
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
use stores::relay::Relay;
use tokio::sync::{Mutex, OnceCell, Semaphore};
use tokio_util::sync::CancellationToken;
use tower::util::option_layer;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::board::cached::Noted;
use crate::board::read::BoardsReading;
use crate::gather::Gather;
use crate::kept::Kept;
use crate::metric::Metric;
use crate::options::{MetricsText, ServingOptions, ServingPorts};
use crate::pages::seal::Seal;
use crate::read::{Memory, Reading};
use access::limits::Limits;
pub(crate) use access::limits::network;
use access::ring::KeyRing;
pub(crate) use access::table::{Need, Needs};
pub(crate) use access::{Caller, Peer, asked_host, owner_text};
pub(crate) use applications::limit::wants_page;
pub(crate) use layers::{Page, in_time, time_out};
pub(crate) use overview::{note, note_seen};
pub(crate) use params::{LIMIT_MAX, Path, integer};
pub(crate) use places::{Place, Places};
pub(crate) use problem::{Kind, Problem};

use Need::{Admin, Application, Asking, Connect, Free, Ingest, Nothing, Open, Owner, Read};

/// What plays of an owner need, whom this parameter names.
const OWNER_ID: Need = Owner("owner_id");
/// Lists of applications that are read at once: which come first by use, or of one owner, is found by looking through all.
const LISTINGS_MAX: usize = 8;
/// Reads of dead letters that are under way at once: people look at them, and each holds some megabytes.
const LETTER_READS_MAX: usize = 2;
/// This part of the reads of statistics may have many values.
const LARGE_SHARE: usize = 8;
/// One address has this part of the connections, and of the requests that are answered at once.
pub(crate) const ADDRESS_SHARE: usize = 8;
/// One key has this part of the pages that are followed.
const FOLLOWERS_SHARE: usize = 8;
/// Sign-ins whose keys are looked up at once: whoever sends one has no key yet.
const SIGN_INS_MAX: usize = 32;
/// Keys that are looked up at once and may be made up: more than these wait for nothing.
const LOOK_UPS_MAX: usize = 64;

/// What the handlers work with.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) ports: ServingPorts,
    pub(crate) options: ServingOptions,
    pub(crate) metrics: BTreeMap<String, Metric>,
    pub(crate) boards: BTreeMap<String, Arc<Job<Board>>>,
    pub(crate) relay: Relay,
    pub(crate) metrics_text: Option<MetricsText>,
    /// By source: the way into the stores, opened when the first lines come.
    pub(crate) intakes: Mutex<BTreeMap<Source, Arc<OnceCell<Arc<Intake>>>>>,
    /// Bodies of events that are taken, by writer.
    pub(crate) ingests: Arc<Places<String>>,
    /// How many more statistics can be read at once, and of these how many that may have many values.
    pub(crate) tallies: Semaphore,
    pub(crate) large_tallies: Semaphore,
    /// How many more boards can be read at once.
    pub(crate) board_reads: Semaphore,
    /// How many more lists of applications can be read at once.
    pub(crate) listings: Semaphore,
    /// How many more reads of dead letters can be under way at once.
    pub(crate) letter_reads: Semaphore,
    /// Held by the request that takes letters once more.
    pub(crate) replays: Semaphore,
    /// Answers of before, for when a store does not answer.
    pub(crate) kept_tallies: Kept<Reading>,
    pub(crate) memory: Memory,
    /// Reads of statistics that are under way.
    pub(crate) tally_reads: Gather<Result<Arc<Reading>, Problem>>,
    pub(crate) kept_boards: Kept<BoardsReading>,
    /// Reads of boards that are under way, and of members that they are asked for of.
    pub(crate) gathered_boards: Gather<Result<Arc<BoardsReading>, Problem>>,
    pub(crate) gathered_members: Gather<Result<Arc<[i64]>, Problem>>,
    /// What was noted of cached boards.
    pub(crate) noted: Noted,
    /// Requests that are answered, by address. A request has its place until its answer has left, since what a client does not
    /// take is in memory.
    pub(crate) requests: Arc<Places<IpAddr>>,
    pub(crate) key_ring: KeyRing,
    pub(crate) limits: Limits,
    /// What who signs in on pages is known by.
    pub(crate) seal: Seal,
    /// Cancelled once the service is asked to end: what would go on for ever ends then.
    pub(crate) closing: CancellationToken,
    /// Pages that are told when something moves, by key.
    pub(crate) following: Arc<Places<String>>,
    /// Looks at how far sources have moved that are under way.
    pub(crate) moves: Gather<Result<u128, Problem>>,
    /// How many more keys of sign-ins can be looked up at once.
    pub(crate) sign_ins: Semaphore,
    /// How many more keys that are not kept can be looked up at once.
    pub(crate) look_ups: Semaphore,
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
        let places = |max: usize| Semaphore::new(max.min(Semaphore::MAX_PERMITS));
        Self {
            relay: Relay::new(
                Arc::clone(&ports.canon) as _,
                Arc::clone(&ports.ingest),
                Arc::clone(&ports.clock),
                options.partitions,
            ),
            kept_tallies: Kept::new(&options),
            memory: Memory::new(&options),
            tally_reads: Gather::new(),
            kept_boards: Kept::new(&options),
            gathered_boards: Gather::new(),
            gathered_members: Gather::new(),
            noted: Noted::new(),
            ingests: Places::new(options.ingests_max, options.ingests_share()),
            tallies: places(options.tally_reads_max),
            large_tallies: places(options.tally_reads_max.div_ceil(LARGE_SHARE)),
            board_reads: places(options.board_reads_max),
            listings: Semaphore::new(LISTINGS_MAX),
            letter_reads: Semaphore::new(LETTER_READS_MAX),
            replays: Semaphore::new(1),
            requests: Places::new(
                options.requests_max,
                options.requests_max.div_ceil(ADDRESS_SHARE),
            ),
            key_ring: KeyRing::new(Arc::clone(&ports.keys), &options),
            limits: Limits::new(&options),
            seal: Seal::of(&options.session_secret),
            closing: CancellationToken::new(),
            following: Places::new(
                options.followers_max,
                (options.followers_max / FOLLOWERS_SHARE).max(1),
            ),
            moves: Gather::new(),
            ports,
            options,
            metrics,
            boards,
            metrics_text,
            intakes: Mutex::default(),
            sign_ins: Semaphore::new(SIGN_INS_MAX),
            look_ups: Semaphore::new(LOOK_UPS_MAX),
            openapi: OnceLock::new(),
        }
    }

    /// The description of the API; empty before there are routes.
    pub(crate) fn openapi(&self) -> Bytes {
        self.openapi.get().cloned().unwrap_or_default()
    }

    pub(crate) fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::from_millisecond(self.ports.clock.now_ms()).unwrap_or_default()
    }
}

/// The description of the API; paths and schemas come from the handlers.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Backstitch",
        description = "Counts of events and boards of athletes that are exact at every moment, and say where they come from. \
                       Errors are problem documents (RFC 9457). Cells of CSV that begin with =, +, - or @ are data: import them as text."
    ),
    components(schemas(problem::ProblemShape))
)]
struct Description;

/// All routes with all that goes around them.
pub(crate) fn router(api: &Arc<Api>) -> Router {
    let mut needs = Needs::default();
    // Proxies may decode the path.
    let decoded = "/api/v1/dead-letters/{id}/{place}";
    needs.add(decoded, Method::GET, Read);
    let mut of = |need, routes| described::needing(&mut needs, need, routes);
    let answers = OpenApiRouter::new()
        .routes(of(OWNER_ID, routes!(stats::total)))
        .routes(of(OWNER_ID, routes!(stats::series)))
        .routes(of(OWNER_ID, routes!(stats::breakdown)))
        .routes(of(OWNER_ID, routes!(stats::uniques)))
        .routes(of(OWNER_ID, routes!(stats::uniques_series)))
        .routes(of(Read, routes!(boards::page)))
        .routes(of(Read, routes!(boards::place)))
        .routes(of(Read, routes!(boards::counts)))
        .routes(of(Read, routes!(achievements::of_athlete)))
        .routes(of(Read, routes!(achievements::of_activity)))
        .routes(of(Owner("owner"), routes!(applications::list::list)))
        .routes(of(Application, routes!(applications::admin::audit)))
        .routes(of(Application, routes!(applications::history::history)))
        .routes(of(
            Application,
            routes!(applications::requests::of_application),
        ))
        .routes(of(Read, routes!(applications::requests::all)))
        .routes(of(
            Application,
            routes!(applications::notices::of_application),
        ))
        .routes(of(Read, routes!(applications::notices::all)))
        .routes(of(Application, routes!(applications::show)))
        .routes(of(Read, routes!(runs::list)))
        .routes(of(Read, routes!(runs::show)))
        .routes(of(Read, routes!(reconciliations::list)))
        .routes(of(OWNER_ID, routes!(explain::explain)))
        .routes(of(Read, routes!(dead_letters::list)))
        .routes(of(Read, routes!(dead_letters::counts)))
        .routes(of(Read, routes!(dead_letters::show)))
        .route(decoded, get(dead_letters::show_decoded))
        .routes(of(Read, routes!(overview::overview)))
        .layer(from_fn(etag::tagged));
    let timed = answers
        .routes(of(Read, routes!(ranks::ranks)))
        .routes(of(Free, routes!(health::livez)))
        .routes(of(Open, routes!(health::readyz)))
        .routes(of(Read, routes!(health::metrics)))
        .routes(of(Nothing, routes!(openapi_json)))
        .routes(of(Nothing, routes!(applications::limit::limit)))
        .layer(from_fn_with_state(Arc::clone(api), time_out));
    // Events are written for as long as they come: a write is not dropped for being slow.
    let (router, mut openapi) = OpenApiRouter::with_openapi(Description::openapi())
        .merge(timed)
        .merge(
            OpenApiRouter::new()
                .routes(of(Ingest, routes!(ingest::ingest)))
                .routes(of(Admin, routes!(dead_letters::replay)))
                .routes(of(Admin, routes!(reconciliations::approve)))
                .routes(of(Admin, routes!(applications::admin::change)))
                .routes(of(Asking, routes!(applications::requests::ask)))
                .routes(of(Admin, routes!(applications::requests::decide)))
                .routes(of(Connect, routes!(applications::connect)))
                .routes(of(Connect, routes!(applications::disconnect))),
        )
        .split_for_parts();
    described::with_keys(&mut openapi);
    if let Ok(json) = openapi.to_pretty_json() {
        api.openapi.get_or_init(|| json.into());
    }
    let router = router.with_state(Arc::clone(api));
    crate::pages::add_needs(&mut needs);
    let needs = Arc::new(needs);
    let pages = crate::pages::routes(around(router.clone(), api, &needs), api);
    around(router.merge(pages), api, &needs)
}

/// What goes around every route.
fn around(router: Router, api: &Arc<Api>, needs: &Arc<Needs>) -> Router {
    let guarded = (Arc::clone(api), Arc::clone(needs));
    router
        .fallback(unknown_path)
        .layer(from_fn_with_state(guarded, access::guard))
        .layer(from_fn_with_state(Arc::clone(api), layers::within_limits))
        .layer(CatchPanicLayer::custom(layers::on_panic))
        .layer(from_fn(layers::finish))
        .layer(option_layer(layers::cors(&api.options)))
        .layer(CompressionLayer::new().gzip(true))
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .layer(map_request(layers::check_request_id))
}

/// The description of this API, in OpenAPI.
#[utoipa::path(
    get,
    path = "/openapi.json",
    tag = "service",
    responses((status = 200, description = "OpenAPI", content_type = "application/json"))
)]
async fn openapi_json(State(api): State<Arc<Api>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], api.openapi())
}

async fn unknown_path() -> Problem {
    Kind::UnknownPath.with_detail(
        "there is nothing under this path: / leads to the pages, and /openapi.json lists what may be asked for",
    )
}

#[cfg(test)]
mod tests;
