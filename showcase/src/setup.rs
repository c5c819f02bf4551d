//! Parameters of the demo: the installation, the amount of data, and generated lines.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;

use schemas::clock::Clock;
use schemas::source::Source;
use stores::Stores;
use stores::intake::Intake;

/// A line of input.
#[derive(Debug, Clone)]
pub struct Line {
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_valid: bool,
}

impl Line {
    /// A line without its line break, and whether the intake must accept it.
    #[must_use]
    pub const fn new(bytes: Vec<u8>, is_valid: bool) -> Self {
        Self { bytes, is_valid }
    }
}

/// Generates lines. The first lines of an entity source are new rows; later ones mostly change
/// them.
pub trait LineGenerator: Debug + Send {
    /// The next event, at about `at_ms` or somewhat earlier, with the amount `plays`.
    fn play(&mut self, at_ms: i64, plays: i64) -> Line;
    /// The next row of a source, at about `at_ms`; `None` for sources without generated rows.
    fn row(&mut self, source: Source, at_ms: i64) -> Option<Line>;
}

/// Monitors the batch role.
pub trait BatchMonitor: Debug + Send + Sync {
    /// The number of published runs.
    fn runs(&self) -> u64;
    /// Returns whether a run is in progress.
    fn is_running(&self) -> bool;
}

/// The installation of a demo, and the amount of generated data.
#[derive(Debug)]
pub struct DemoSetup {
    /// The address of the API.
    pub address: SocketAddr,
    /// The stores, from which the log and rows are read back.
    pub stores: Stores,
    /// The intakes of all sources.
    pub intakes: BTreeMap<Source, Intake>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The batch role.
    pub batch: Arc<dyn BatchMonitor>,
    /// The duration of verification; `None` for a demo that verifies nothing and does not end.
    pub seconds: Option<u64>,
    /// Events and rows per second, averaged over a week.
    pub rate: u32,
    /// The number of events in the history.
    pub history: u32,
    /// The seed of the random queries.
    pub seed: u64,
}
