//! The fields of each source and their column types, for readers and writers.

use schemas::source::Source;

/// Type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldKind {
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
    pub(crate) kind: FieldKind,
    /// True if a row must have the field.
    pub(crate) is_required: bool,
}

const fn required(name: &'static str, kind: FieldKind) -> Field {
    Field {
        name,
        kind,
        is_required: true,
    }
}

const fn optional(name: &'static str, kind: FieldKind) -> Field {
    Field {
        name,
        kind,
        is_required: false,
    }
}

const PLAYS: &[Field] = &[
    required("event_id", FieldKind::Text),
    required("track_id", FieldKind::Int),
    required("owner_id", FieldKind::Int),
    optional("listener_id", FieldKind::Int),
    optional("country", FieldKind::Text),
    optional("referrer", FieldKind::Text),
    optional("app_id", FieldKind::Int),
    required("kind", FieldKind::Text),
    required("at", FieldKind::Time),
    optional("amount", FieldKind::Int),
];

const EFFORTS: &[Field] = &[
    required("id", FieldKind::Int),
    required("segment_id", FieldKind::Int),
    required("athlete_id", FieldKind::Int),
    required("activity_id", FieldKind::Int),
    required("elapsed_time", FieldKind::Int),
    required("started_at", FieldKind::Time),
    optional("tz", FieldKind::Text),
    optional("visibility", FieldKind::Text),
    optional("deleted", FieldKind::Bool),
    optional("version", FieldKind::Int),
];

const ATHLETES: &[Field] = &[
    required("id", FieldKind::Int),
    optional("name", FieldKind::Text),
    optional("gender", FieldKind::Text),
    optional("birth_year", FieldKind::Int),
    optional("weight_kg", FieldKind::Number),
    optional("country", FieldKind::Text),
    optional("disqualified", FieldKind::Bool),
    optional("deleted", FieldKind::Bool),
    optional("version", FieldKind::Int),
];

const CLUBS: &[Field] = &[
    required("club_id", FieldKind::Int),
    required("athlete_id", FieldKind::Int),
    optional("deleted", FieldKind::Bool),
    optional("version", FieldKind::Int),
];

const FOLLOWS: &[Field] = &[
    required("follower_id", FieldKind::Int),
    required("followed_id", FieldKind::Int),
    optional("deleted", FieldKind::Bool),
    optional("version", FieldKind::Int),
];

const AUTHORIZATIONS: &[Field] = &[
    required("id", FieldKind::Int),
    required("application_id", FieldKind::Int),
    required("athlete_id", FieldKind::Int),
    required("created_at", FieldKind::Time),
    optional("revoked_at", FieldKind::UnboundedTime),
    optional("version", FieldKind::Int),
];

const APPLICATIONS: &[Field] = &[
    required("id", FieldKind::Int),
    required("name", FieldKind::Text),
    required("owner", FieldKind::TextOrInt),
    optional("athlete_capacity", FieldKind::Int),
    optional("version", FieldKind::Int),
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
