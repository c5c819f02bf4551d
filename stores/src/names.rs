//! Display names for owners, tracks, segments, athletes and applications.

use std::fmt;

use async_trait::async_trait;

use crate::Result;

/// The maximum length of a name, in characters.
pub const NAME_CHARS_MAX: usize = 500;

/// A kind of object that has a display name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NamedKind {
    /// The owner of tracks.
    Owner,
    /// A track.
    Track,
    /// A segment.
    Segment,
    /// An athlete. The name is a column of the athlete's row.
    Athlete,
    /// An application. The name is a column of its row.
    Application,
}

impl NamedKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::Owner,
        Self::Track,
        Self::Segment,
        Self::Athlete,
        Self::Application,
    ];

    /// The name of the kind.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Track => "track",
            Self::Segment => "segment",
            Self::Athlete => "athlete",
            Self::Application => "application",
        }
    }

    /// The kind with a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns whether names of this kind are stored separately, not in rows.
    #[must_use]
    pub const fn has_separate_names(self) -> bool {
        matches!(self, Self::Owner | Self::Track | Self::Segment)
    }
}

impl fmt::Display for NamedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads and writes display names.
#[async_trait]
pub trait Names: fmt::Debug + Send + Sync {
    /// The names of objects of a kind by id, in ascending order, without objects that have no name.
    /// A deleted athlete has no name.
    async fn read_names(&self, kind: NamedKind, ids: &[i64]) -> Result<Vec<(i64, String)>>;

    /// Finds objects of a kind whose name contains a text, at most `limit`: first names that begin
    /// with it, then by name. The search ignores case; the embedded store ignores only the case of
    /// ASCII letters. It scans all names.
    async fn find_names(
        &self,
        kind: NamedKind,
        text: &str,
        limit: usize,
    ) -> Result<Vec<(i64, String)>>;

    /// Sets names, and deletes those that are `None`, in one transaction. Of a repeated id the last
    /// name wins.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] if names of this kind are columns of rows, or belong to an
    /// application's own table.
    async fn set_names(&self, kind: NamedKind, names: &[(i64, Option<String>)]) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_found_by_its_name() {
        for kind in NamedKind::ALL {
            assert_eq!(NamedKind::from_name(&kind.to_string()), Some(kind));
        }
        assert_eq!(NamedKind::from_name("Owner"), None);
    }
}
