//! The sources: streams of events, and tables of things that change.

use serde::{Deserialize, Serialize};

use crate::named;

named! {
    /// What is taken in under one name.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Source {
        /// Plays and downloads of tracks, and corrections to them: facts.
        Plays = "plays",
        /// Efforts of athletes on segments: entities, notified by segment.
        Efforts = "efforts",
        /// Permissions that athletes gave to applications: entities, notified by application.
        Authorizations = "authorizations",
        /// Athletes: entities. What changes of one is notified with the athlete's efforts.
        Athletes = "athletes",
        /// Which athlete is in which club: entities that answers look up.
        Clubs = "clubs",
        /// Who follows whom: entities that answers look up.
        Follows = "follows",
        /// Applications and their capacity: entities that answers look up.
        Applications = "applications",
    }
    else UnknownSource, UnknownSource;
}

/// What a source is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceKind {
    /// Events that are only ever appended: the log is the truth.
    Facts,
    /// Rows of the canonical store, which change: the log only says that a group of them did.
    Entities,
}

impl Source {
    /// The sources with a log of their own, which both layers follow.
    pub const LOGGED: [Self; 3] = [Self::Plays, Self::Efforts, Self::Authorizations];

    /// What it is made of.
    #[must_use]
    pub const fn kind(self) -> SourceKind {
        match self {
            Self::Plays => SourceKind::Facts,
            _ => SourceKind::Entities,
        }
    }

    /// The log topic: of events, or of notifications. Only sources of [`Source::LOGGED`] have one.
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

    /// The log topic of the source's dead letters.
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

/// A name that is no source's.
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
    fn every_source_goes_by_one_name() {
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
