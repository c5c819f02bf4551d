//! The fields of each source, as columns have them: one table, for what reads and what writes them.

use schemas::source::Source;

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Int,
    /// A number that may have a fraction.
    Number,
    Text,
    /// An instant.
    Time,
    /// An instant that may be out of range: it counts as the first or the last instant in range.
    UnboundedTime,
    Bool,
    /// A text, or an integer that stands for one.
    TextOrInt,
}

/// A field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Whether a row must have it.
    pub(crate) is_needed: bool,
}

const fn needed(name: &'static str, kind: Kind) -> Field {
    Field {
        name,
        kind,
        is_needed: true,
    }
}

const fn optional(name: &'static str, kind: Kind) -> Field {
    Field {
        name,
        kind,
        is_needed: false,
    }
}

const PLAYS: &[Field] = &[
    needed("event_id", Kind::Text),
    needed("track_id", Kind::Int),
    needed("owner_id", Kind::Int),
    optional("listener_id", Kind::Int),
    optional("country", Kind::Text),
    optional("referrer", Kind::Text),
    optional("app_id", Kind::Int),
    needed("kind", Kind::Text),
    needed("at", Kind::Time),
    optional("amount", Kind::Int),
];

const EFFORTS: &[Field] = &[
    needed("id", Kind::Int),
    needed("segment_id", Kind::Int),
    needed("athlete_id", Kind::Int),
    needed("activity_id", Kind::Int),
    needed("elapsed_time", Kind::Int),
    needed("started_at", Kind::Time),
    optional("tz", Kind::Text),
    optional("visibility", Kind::Text),
    optional("deleted", Kind::Bool),
    optional("version", Kind::Int),
];

const ATHLETES: &[Field] = &[
    needed("id", Kind::Int),
    optional("name", Kind::Text),
    optional("gender", Kind::Text),
    optional("birth_year", Kind::Int),
    optional("weight_kg", Kind::Number),
    optional("country", Kind::Text),
    optional("disqualified", Kind::Bool),
    optional("deleted", Kind::Bool),
    optional("version", Kind::Int),
];

const CLUBS: &[Field] = &[
    needed("club_id", Kind::Int),
    needed("athlete_id", Kind::Int),
    optional("deleted", Kind::Bool),
    optional("version", Kind::Int),
];

const FOLLOWS: &[Field] = &[
    needed("follower_id", Kind::Int),
    needed("followed_id", Kind::Int),
    optional("deleted", Kind::Bool),
    optional("version", Kind::Int),
];

const AUTHORIZATIONS: &[Field] = &[
    needed("id", Kind::Int),
    needed("application_id", Kind::Int),
    needed("athlete_id", Kind::Int),
    needed("created_at", Kind::Time),
    optional("revoked_at", Kind::UnboundedTime),
    optional("version", Kind::Int),
];

const APPLICATIONS: &[Field] = &[
    needed("id", Kind::Int),
    needed("name", Kind::Text),
    needed("owner", Kind::TextOrInt),
    optional("athlete_capacity", Kind::Int),
    optional("version", Kind::Int),
];

/// The fields of a source, in the order in which files are written.
pub(crate) const fn fields(source: Source) -> &'static [Field] {
    match source {
        Source::Plays => PLAYS,
        Source::Efforts => EFFORTS,
        Source::Athletes => ATHLETES,
        Source::Clubs => CLUBS,
        Source::Follows => FOLLOWS,
        Source::Authorizations => AUTHORIZATIONS,
        Source::Applications => APPLICATIONS,
    }
}
