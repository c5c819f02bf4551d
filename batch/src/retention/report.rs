//! What is told of each kind.

use schemas::named;
use schemas::source::Source;
use serde::Serialize;

named! {
    /// What is kept.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Kind {
        /// Files of events in the archive, those of backfills too.
        Events = "events",
        /// Files of results: what views are published from.
        Results = "results",
        /// Snapshots of canonical rows.
        Snapshots = "snapshots",
        /// Epochs of live state.
        LiveEpochs = "live-epochs",
        /// Records of batch runs, with their reports.
        RunRecords = "run-records",
        /// What was changed of applications.
        Audit = "audit",
        /// Records of comparisons.
        Comparisons = "comparisons",
        /// Requests for capacity.
        CapacityRequests = "capacity-requests",
        /// Notices of capacities.
        CapacityNotices = "capacity-notices",
        /// A topic of the log.
        Topic = "topic",
    }
}

/// How much of something.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Amount {
    /// How many: files, epochs of all partitions, records.
    pub count: u64,
    /// What they take, where that is known.
    pub bytes: Option<u64>,
    /// The moment or day of the oldest, in UTC, where that is known.
    pub oldest: Option<String>,
}

impl Amount {
    /// So many, the oldest of a moment in milliseconds since the Unix epoch.
    pub(super) fn counted(count: u64, oldest_ms: Option<i64>) -> Self {
        Self {
            count,
            bytes: None,
            oldest: oldest_ms.and_then(shown_ms),
        }
    }

    /// Adds a file.
    pub(super) fn add(&mut self, bytes: u64) {
        self.count += 1;
        *self.bytes.get_or_insert(0) += bytes;
    }
}

/// What stays in spite of the policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeldBack {
    /// How many.
    pub count: u64,
    /// What they take, where that is known.
    pub bytes: Option<u64>,
    /// Why, and what to do about it.
    pub why: String,
}

/// What there is of a kind, and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KindReport {
    /// The kind.
    pub kind: Kind,
    /// Of which source, where it is of one.
    pub source: Option<Source>,
    /// The topic, of a topic.
    pub topic: Option<String>,
    /// How long it is kept, in words.
    pub policy: String,
    /// What there is, before anything went.
    pub held: Amount,
    /// What the policy lets go.
    pub would_go: Amount,
    /// What has gone.
    pub went: Amount,
    /// What the policy would let go, and something else keeps.
    pub held_back: Vec<HeldBack>,
    /// What a person should know.
    pub warnings: Vec<String>,
}

impl KindReport {
    pub(super) fn new(kind: Kind, source: Option<Source>, policy: String) -> Self {
        Self {
            kind,
            source,
            topic: None,
            policy,
            held: Amount::default(),
            would_go: Amount::default(),
            went: Amount::default(),
            held_back: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Notes that so many stay for a reason; those of one reason are added up.
    pub(super) fn hold_back(&mut self, count: u64, bytes: Option<u64>, why: &str) {
        if count == 0 {
            return;
        }
        if let Some(same) = self.held_back.iter_mut().find(|other| other.why == why) {
            same.count += count;
            same.bytes = same.bytes.zip(bytes).map(|(one, more)| one + more);
            return;
        }
        let why = why.to_owned();
        self.held_back.push(HeldBack { count, bytes, why });
    }

    /// All that would go stays, for a reason.
    pub(super) fn hold_all_back(&mut self, why: &str) {
        let would_go = std::mem::take(&mut self.would_go);
        self.hold_back(would_go.count, would_go.bytes, why);
    }
}

/// A moment in milliseconds since the Unix epoch, as people write it.
pub(super) fn shown_ms(ms: i64) -> Option<String> {
    let at = jiff::Timestamp::from_millisecond(ms).ok()?;
    Some(at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_added_up() {
        let mut report = KindReport::new(Kind::Events, None, String::new());
        report.hold_back(0, Some(9), "nothing");
        report.hold_back(1, Some(10), "a");
        report.hold_back(2, None, "b");
        report.hold_back(3, Some(5), "a");
        report.would_go.add(7);
        report.hold_all_back("a");
        let told = report.held_back.iter();
        let told: Vec<_> = told.map(|one| (one.count, one.bytes, &*one.why)).collect();
        assert_eq!(told, [(5, Some(22), "a"), (2, None, "b")]);
        assert_eq!(report.would_go, Amount::default());
    }
}
