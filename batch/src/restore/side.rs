//! The sides of a comparison.

/// What says something of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Side {
    /// The events below the cuts of the run whose rows are compared.
    EventsBatch = 0,
    /// The events after them that live state has counted.
    EventsLive = 1,
    /// The rows of the view's table.
    Stored = 2,
    /// The live parts after the run.
    Live = 3,
    /// Records after the cuts that repeat an event.
    Repeated = 4,
    /// Rows of a run that is not complete yet.
    Ahead = 5,
    /// What somebody else says.
    Claimed = 6,
    /// In how many lines.
    ClaimedLines = 7,
    /// Rows of an epoch that no run has: how many.
    OfNoRun = 8,
    /// Rows in the partition of another time than their own.
    Misplaced = 9,
    /// Rows whose key can't be read.
    Unreadable = 10,
    /// Records after the cuts that repeat an event of another partition.
    RepeatedElsewhere = 11,
}

impl Side {
    /// All of them, with the names of their sums.
    pub(crate) const ALL: [(Self, &'static str); 12] = [
        (Self::EventsBatch, "events_batch"),
        (Self::EventsLive, "events_live"),
        (Self::Stored, "stored"),
        (Self::Live, "live"),
        (Self::Repeated, "repeated"),
        (Self::Ahead, "ahead"),
        (Self::Claimed, "claimed"),
        (Self::ClaimedLines, "claimed_lines"),
        (Self::OfNoRun, "of_no_run"),
        (Self::Misplaced, "misplaced"),
        (Self::Unreadable, "unreadable"),
        (Self::RepeatedElsewhere, "repeated_elsewhere"),
    ];
}
