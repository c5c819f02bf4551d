//! The sources of events, and what their topics are called.

use serde::{Deserialize, Serialize};

/// A stream of events with a topic of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Plays and downloads of tracks, and corrections to them: facts.
    Plays,
}

impl Source {
    /// Every source, in the order in which they are shown.
    pub const ALL: [Self; 1] = [Self::Plays];

    /// The name as users write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plays => "plays",
        }
    }

    /// The log topic of the source's events.
    #[must_use]
    pub const fn topic(self) -> &'static str {
        match self {
            Self::Plays => "backstitch.plays.v1",
        }
    }

    /// The log topic of the source's dead letters.
    #[must_use]
    pub const fn dead_letter_topic(self) -> &'static str {
        match self {
            Self::Plays => "backstitch.plays.v1.dlq",
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Source {
    type Err = UnknownSource;

    fn from_str(name: &str) -> Result<Self, UnknownSource> {
        Self::ALL
            .into_iter()
            .find(|source| source.name() == name)
            .ok_or_else(|| UnknownSource(name.to_owned()))
    }
}

/// A name that is no source's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no source {0:?}; the sources are: plays")]
pub struct UnknownSource(pub String);
