//! The report of retention for each kind of data.

use schemas::named;
use schemas::source::Source;
use serde::Serialize;

named! {
    /// A kind of stored data.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum DataKind {
        /// Event files of the archive, including those of backfills.
        Events = "events",
        /// Result files, from which views are published.
        Results = "results",
        /// Snapshots of entities.
        Snapshots = "snapshots",
        /// Epochs of live state.
        LiveEpochs = "live-epochs",
        /// Records of batch runs, with their reports.
        RunRecords = "run-records",
        /// Changes of applications.
        Audit = "audit",
        /// Records of comparisons.
        Comparisons = "comparisons",
        /// Capacity requests.
        CapacityRequests = "capacity-requests",
        /// Capacity notices.
        CapacityNotices = "capacity-notices",
        /// A topic of the log.
        Topic = "topic",
    }
}

/// An amount of stored data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Amount {
    /// The number of files, epochs of all partitions, or records.
    pub count: u64,
    /// Their size, if known.
    pub bytes: Option<u64>,
    /// The time or day of the oldest item in UTC, if known.
    pub oldest: Option<String>,
}

impl Amount {
    /// Creates an amount without a size.
    pub(super) fn new(count: u64, oldest_ms: Option<i64>) -> Self {
        Self {
            count,
            bytes: None,
            oldest: oldest_ms.and_then(format_ms),
        }
    }

    /// Adds a file.
    pub(super) fn add(&mut self, bytes: u64) {
        self.count += 1;
        *self.bytes.get_or_insert(0) += bytes;
    }
}

/// Items that remain in spite of the policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RetainedItems {
    /// The number of items.
    pub count: u64,
    /// Their size, if known.
    pub bytes: Option<u64>,
    /// The reason, and what to do about it.
    #[serde(rename = "why")]
    pub reason: String,
}

/// The report of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KindReport {
    /// The kind.
    pub kind: DataKind,
    /// The source, if the kind has one.
    pub source: Option<Source>,
    /// The name of the topic, for topics.
    pub topic: Option<String>,
    /// The policy in words.
    pub policy: String,
    /// Everything stored before the deletion.
    #[serde(rename = "held")]
    pub stored: Amount,
    /// Data that can be deleted.
    #[serde(rename = "would_go")]
    pub eligible: Amount,
    /// Deleted data.
    #[serde(rename = "went")]
    pub deleted: Amount,
    /// Data past its policy that something else needs.
    #[serde(rename = "held_back")]
    pub retained: Vec<RetainedItems>,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

impl KindReport {
    pub(super) fn new(kind: DataKind, source: Option<Source>, policy: String) -> Self {
        Self {
            kind,
            source,
            topic: None,
            policy,
            stored: Amount::default(),
            eligible: Amount::default(),
            deleted: Amount::default(),
            retained: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Adds items that remain for a reason; items with the same reason are summed.
    pub(super) fn retain(&mut self, count: u64, bytes: Option<u64>, reason: &str) {
        if count == 0 {
            return;
        }
        if let Some(existing) = self
            .retained
            .iter_mut()
            .find(|other| other.reason == reason)
        {
            existing.count += count;
            existing.bytes = existing.bytes.zip(bytes).map(|(a, b)| a + b);
            return;
        }
        let reason = reason.to_owned();
        self.retained.push(RetainedItems {
            count,
            bytes,
            reason,
        });
    }

    /// Marks everything eligible as retained for a reason.
    pub(super) fn retain_all(&mut self, reason: &str) {
        let eligible = std::mem::take(&mut self.eligible);
        self.retain(eligible.count, eligible.bytes, reason);
    }
}

/// Formats a time in milliseconds since the Unix epoch.
pub(super) fn format_ms(ms: i64) -> Option<String> {
    Some(jiff::Timestamp::from_millisecond(ms).ok()?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_items_with_the_same_reason() {
        let mut report = KindReport::new(DataKind::Events, None, String::new());
        report.retain(0, Some(9), "nothing");
        report.retain(1, Some(10), "a");
        report.retain(2, None, "b");
        report.retain(3, Some(5), "a");
        report.eligible.add(7);
        report.retain_all("a");
        let items = report.retained.iter();
        let items: Vec<_> = items
            .map(|item| (item.count, item.bytes, &*item.reason))
            .collect();
        assert_eq!(items, [(5, Some(22), "a"), (2, None, "b")]);
        assert_eq!(report.eligible, Amount::default());
    }
}
