//! The sources: streams of events, and tables of entities.

use serde::{Deserialize, Serialize};

use crate::named;

named! {
    /// A source of events or entities.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Source {
        /// Plays and downloads of tracks, and corrections to them: events.
        Plays = "plays",
        /// Efforts of athletes on segments: entities with notifications by segment.
        Efforts = "efforts",
        /// Permissions of athletes for applications: entities with notifications by application.
        Authorizations = "authorizations",
        /// Athletes: entities. A change notifies the groups of the athlete's efforts.
        Athletes = "athletes",
        /// Memberships of athletes in clubs: entities without a log, for lookups.
        Clubs = "clubs",
        /// Follows between athletes: entities without a log, for lookups.
        Follows = "follows",
        /// Applications and their capacity: entities without a log, for lookups.
        Applications = "applications",
    }
    else UnknownSource, UnknownSource;
}

/// The kind of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceKind {
    /// Events, which are only appended. The log is the system of record.
    Events,
    /// Rows of the entity store, which change. The log has only notifications of changed groups.
    Entities,
}

impl Source {
    /// The sources with a log, which both layers read.
    pub const LOGGED: [Self; 3] = [Self::Plays, Self::Efforts, Self::Authorizations];

    /// Returns the kind of the source.
    #[must_use]
    pub const fn kind(self) -> SourceKind {
        match self {
            Self::Plays => SourceKind::Events,
            _ => SourceKind::Entities,
        }
    }

    /// Returns the name of the log topic of events or notifications. The topic exists only for
    /// sources of [`Source::LOGGED`].
    #[must_use]
    pub const fn topic(self) -> &'static str {
        match self {
            Self::Plays => "backstitch.plays.v1",
            Self::Efforts => "backstitch.efforts.v1",
            Self::Authorizations => "backstitch.authorizations.v1",
            Self::Athletes => "backstitch.athletes.v1",
            Self::Clubs => "backstitch.clubs.v1",
            Self::Follows => "backstitch.follows.v1",
            Self::Applications => "backstitch.applications.v1",
        }
    }

    /// Returns the log topic of the source's dead letters.
    #[must_use]
    pub const fn dead_letter_topic(self) -> &'static str {
        match self {
            Self::Plays => "backstitch.plays.v1.dlq",
            Self::Efforts => "backstitch.efforts.v1.dlq",
            Self::Authorizations => "backstitch.authorizations.v1.dlq",
            Self::Athletes => "backstitch.athletes.v1.dlq",
            Self::Clubs => "backstitch.clubs.v1.dlq",
            Self::Follows => "backstitch.follows.v1.dlq",
            Self::Applications => "backstitch.applications.v1.dlq",
        }
    }
}

/// A name that is not a source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no source {0:?}; the sources are: {all}",
    all = Source::ALL.map(Source::name).join(", ")
)]
pub struct UnknownSource(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_names_round_trip() {
        for source in Source::ALL {
            let name = source.name();
            assert_eq!(name.parse(), Ok(source));
            assert_eq!(source.to_string(), name);
            assert_eq!(
                serde_json::to_string(&source).unwrap(),
                format!("\"{name}\"")
            );
            assert_eq!(source.topic(), format!("backstitch.{name}.v1"));
            assert_eq!(
                source.dead_letter_topic(),
                format!("backstitch.{name}.v1.dlq")
            );
        }
        assert_eq!(
            format!("{:>7}|{:<6}|", Source::Plays, Source::Clubs),
            "  plays|clubs |"
        );
        let unknown = "Plays".parse::<Source>().unwrap_err().to_string();
        assert!(unknown.contains("\"Plays\""), "{unknown}");
        assert!(
            unknown.ends_with("clubs, follows, applications"),
            "{unknown}"
        );
    }
}
