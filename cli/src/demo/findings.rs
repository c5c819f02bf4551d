//! What was compared, and what differed.

/// Differences that are told in full.
const TOLD_MAX: usize = 10;

/// What was found.
#[derive(Debug, Clone, Default)]
pub(super) struct Findings {
    /// Answers that were compared.
    pub(super) answers: u64,
    /// Of these: while a batch run was under way.
    pub(super) during_a_run: u64,
    /// Differences.
    pub(super) differences: u64,
    /// The first of them.
    pub(super) first: Vec<String>,
}

impl Findings {
    /// Notes an answer that was compared.
    pub(super) fn compared(&mut self, is_during_a_run: bool) {
        self.answers += 1;
        self.during_a_run += u64::from(is_during_a_run);
    }

    /// Notes a difference.
    pub(super) fn differs(&mut self, what: String) {
        self.differences += 1;
        if self.first.len() < TOLD_MAX {
            self.first.push(what);
        }
    }

    /// Adds what was found elsewhere.
    pub(super) fn add(&mut self, other: &Self) {
        self.answers += other.answers;
        self.during_a_run += other.during_a_run;
        self.differences += other.differences;
        let room = TOLD_MAX.saturating_sub(self.first.len());
        self.first.extend(other.first.iter().take(room).cloned());
    }
}
