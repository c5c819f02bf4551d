//! The sources and columns that contain people.

use schemas::source::Source;
use stores::erasures::PersonKind;

/// The source whose events have listeners.
pub(super) const LISTENER_SOURCE: Source = Source::Plays;
/// The sources of boards.
pub(super) const BOARD_SOURCES: [Source; 2] = [Source::Efforts, Source::Authorizations];
/// The sources whose lines name athletes.
pub(super) const ATHLETE_SOURCES: [Source; 5] = [
    Source::Efforts,
    Source::Athletes,
    Source::Clubs,
    Source::Follows,
    Source::Authorizations,
];
/// The column with athlete ids.
pub(super) const ATHLETE_COLUMN: &str = "athlete_id";

/// Returns the column with ids of a kind of person.
pub(super) const fn person_column(kind: PersonKind) -> &'static str {
    match kind {
        PersonKind::Listener => "listener_id",
        PersonKind::Athlete => ATHLETE_COLUMN,
    }
}
