//! The fields of each source and their column types, for readers and writers.

use schemas::source::Source;

/// Type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Int,
    /// A number with an optional fraction.
    Number,
    Text,
    /// An instant.
    Time,
    /// An instant that is clamped to the valid range.
    UnboundedTime,
    Bool,
    /// A text, or an integer that is converted to text.
    TextOrInt,
}

/// A field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// True if a row must have the field.
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
