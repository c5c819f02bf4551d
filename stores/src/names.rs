//! What things are called: names for people, beside the numbers that everything is counted by.

use std::fmt;

use async_trait::async_trait;

use crate::Result;

/// The most characters of a name.
pub const NAME_CHARS_MAX: usize = 500;

/// What has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Named {
    /// Whose tracks are played.
    Owner,
    /// What is played.
    Track,
    /// What efforts are on.
    Segment,
    /// Whose efforts they are: the name stands in the athlete's row.
    Athlete,
    /// What athletes are connected to: the name stands in its row.
    Application,
}

impl Named {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Owner,
        Self::Track,
        Self::Segment,
        Self::Athlete,
        Self::Application,
    ];

    /// What it is called.
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

    /// What is called so.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|of| of.name() == name)
    }

    /// Whether names of it are given by themselves, and not with its rows.
    #[must_use]
    pub const fn is_given(self) -> bool {
        matches!(self, Self::Owner | Self::Track | Self::Segment)
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Names.
#[async_trait]
pub trait Names: fmt::Debug + Send + Sync {
    /// The names of some things of a kind by id, ascending; what has none is left out. An athlete who is deleted has
    /// none.
    async fn names(&self, of: Named, ids: &[i64]) -> Result<Vec<(i64, String)>>;

    /// Up to so many things of a kind whose name has this text in it, each once: those first whose name begins with it, then by
    /// name. Small letters stand for large ones too, embedded those of ASCII alone. All names are read for it.
    async fn find(&self, of: Named, text: &str, limit: usize) -> Result<Vec<(i64, String)>>;

    /// Gives names, and takes those away that are nothing, in one transaction. Of an id that comes twice the last one
    /// counts.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] where names stand in rows, or are an app's own.
    async fn set_names(&self, of: Named, names: &[(i64, Option<String>)]) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_found_by_its_name() {
        for of in Named::ALL {
            assert_eq!(Named::of_name(&of.to_string()), Some(of));
        }
        assert_eq!(Named::of_name("Owner"), None);
    }
}
