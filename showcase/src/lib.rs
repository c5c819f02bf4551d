//! The demo: made-up live traffic, and a recount of what is served meanwhile.
//!
//! It gives lines to the intakes of an installation and sends requests to its API. To compare
//! answers it reads the log back line by line (`ledger`) and rows by plain queries of the embedded
//! entity store (`boards`, `applications`), and counts with loops, maps and sorts. It compares these
//! rows with the lines and requests that led to them (`rows`). It uses none of the code that the
//! layers compute with, and knows no layer: its caller starts the roles, and makes lines up.

mod applications;
mod boards;
mod calendar;
mod client;
mod compare;
mod found;
mod ledger;
mod questions;
mod rhythm;
mod rows;
mod traffic;
mod verify;
pub mod words;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;

use schemas::clock::Clock;
use schemas::source::Source;
use stores::Stores;
use stores::intake::Intake;
use stores::log::Span;
use tokio_util::sync::CancellationToken;

pub use found::Summary;
use found::{Shared, lock};
pub use rhythm::busy;
use traffic::Traffic;
use verify::Verifier;

/// Events that the recount can hold in memory.
pub const EVENTS_MAX: u64 = 3_000_000;
/// Ids of owners; those of everything begin at 1.
pub const OWNERS: i64 = 150;
/// Ids of tracks.
pub const TRACKS: i64 = 1_500;
/// Ids of segments.
pub const SEGMENTS: i64 = 12;
/// Ids of athletes.
pub const ATHLETES: i64 = 300;
/// Ids of clubs.
pub const CLUBS: i64 = 6;
/// Ids of applications.
pub const APPLICATIONS: i64 = 12;
/// Athletes in clubs at the start.
pub const MEMBERSHIPS: i64 = 400;
/// Follows at the start.
pub const FOLLOWS: i64 = 600;

/// A line of input.
#[derive(Debug, Clone)]
pub struct Line {
    bytes: Vec<u8>,
    is_valid: bool,
}

impl Line {
    /// A line without its end, and whether it must be accepted.
    #[must_use]
    pub const fn new(bytes: Vec<u8>, is_valid: bool) -> Self {
        Self { bytes, is_valid }
    }
}

/// Makes lines up. The first lines of a source of rows are new rows; later ones mostly change them.
pub trait Lines: Debug + Send {
    /// The next event at about an instant, or somewhat earlier, that stands for some plays.
    fn play(&mut self, at_ms: i64, plays: i64) -> Line;
    /// The next row of a source, at about an instant; nothing for sources without made-up rows.
    fn row(&mut self, source: Source, at_ms: i64) -> Option<Line>;
}

/// What the batch role does.
pub trait BatchWatch: Debug + Send + Sync {
    /// Runs that were published.
    fn runs(&self) -> u64;
    /// Whether a run is under way.
    fn is_running(&self) -> bool;
}

/// What the demo runs against, and how much is made up.
#[derive(Debug)]
pub struct Setup {
    /// The address of the API.
    pub address: SocketAddr,
    /// The stores: the log and rows are read back from them.
    pub stores: Stores,
    /// The intakes of all sources.
    pub intakes: BTreeMap<Source, Intake>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The batch role.
    pub batch: Arc<dyn BatchWatch>,
    /// How long to compare; none for a demo that compares nothing and does not end.
    pub seconds: Option<u64>,
    /// Events and rows a second, on an average of a week.
    pub rate: u32,
    /// Events of the past.
    pub history: u32,
    /// The seed of questions.
    pub seed: u64,
}

/// The demo.
#[derive(Debug)]
pub struct Demo {
    shared: Shared,
    lines: Box<dyn Lines>,
    /// The log of plays before the demo.
    before: Vec<Span>,
}

impl Demo {
    /// Gives names and the history. Nothing needs to be served yet.
    ///
    /// # Errors
    /// An installation with data that is not of a demo, and errors of the stores.
    pub async fn prepare(setup: Setup, mut lines: Box<dyn Lines>) -> anyhow::Result<Self> {
        let before = setup.stores.log.spans(Source::Plays.topic()).await?;
        let shared = Shared::new(setup);
        if shared.setup.seconds.is_some() {
            rows::load(&shared).await?;
        }
        Box::pin(traffic::history(&shared, &mut *lines)).await?;
        Ok(Self {
            shared,
            lines,
            before,
        })
    }

    /// Waits until the speed layer has counted the history.
    ///
    /// # Errors
    /// A speed layer that does not come to the end, and those of the API.
    pub async fn ready(&self) -> anyhow::Result<()> {
        self.shared.catch_up(&Source::LOGGED).await
    }

    /// Gives live traffic until `end`; with a time, compares and ends by itself. The roles must run until
    /// this returns. An error cancels `end`.
    ///
    /// # Errors
    /// Those of the installation. A difference is no error: it is in the summary.
    pub async fn run(mut self, end: &CancellationToken) -> anyhow::Result<Option<Summary>> {
        let (shared, traffic) = (&self.shared, Traffic::new(end));
        let given = async {
            let given = traffic.run(shared, &mut *self.lines).await;
            given.inspect_err(|_| end.cancel())
        };
        let compared = async {
            let mut verifier = Verifier::new(shared, &self.before);
            let compared = match shared.setup.seconds {
                Some(seconds) => verifier.run(seconds, &traffic, end).await,
                None => verifier.change_applications(end).await,
            };
            compared.inspect_err(|_| end.cancel())
        };
        let (given, compared) = tokio::join!(given, Box::pin(compared));
        given.and(compared)?;
        let summary = lock(&shared.summary).clone();
        Ok(shared.setup.seconds.map(|_| summary))
    }
}
