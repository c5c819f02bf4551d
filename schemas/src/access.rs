//! What a key of the API permits: scopes, as they are written and kept.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::source::Source;

/// The most bytes that an owner's name may have in a scope.
pub const OWNER_BYTES_MAX: usize = 256;

const READ_ALL: &str = "read:*";
const READ_OWNER: &str = "read:owner:";
const INGEST: &str = "ingest";
const INGEST_SOURCE: &str = "ingest:";
const ADMIN: &str = "admin";

/// One thing that a key permits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// `read:*`: every read.
    ReadAll,
    /// `read:owner:ID`: statistics of one owner, and the applications that are this owner's.
    ReadOwner(String),
    /// `ingest`: events and rows of every source.
    Ingest,
    /// `ingest:SOURCE`: events or rows of one source.
    IngestSource(Source),
    /// `admin`: everything.
    Admin,
}

/// A text that is no scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{given:?} is no scope: write read:*, read:owner:ID (an id without zeros before it, or a name of at most {OWNER_BYTES_MAX} bytes, without blanks and commas), ingest, ingest:SOURCE (one of {sources}) or admin",
    sources = Source::ALL.map(Source::name).join(", ")
)]
pub struct ScopeError {
    given: String,
}

impl FromStr for Scope {
    type Err = ScopeError;

    fn from_str(text: &str) -> Result<Self, ScopeError> {
        let wrong = || ScopeError {
            given: text.chars().take(100).collect(),
        };
        match text {
            READ_ALL => Ok(Self::ReadAll),
            INGEST => Ok(Self::Ingest),
            ADMIN => Ok(Self::Admin),
            _ => {
                if let Some(source) = text.strip_prefix(INGEST_SOURCE) {
                    let source = source.parse().map_err(|_| wrong())?;
                    return Ok(Self::IngestSource(source));
                }
                let owner = text.strip_prefix(READ_OWNER).ok_or_else(wrong)?;
                let is_plain = !owner.is_empty()
                    && owner.len() <= OWNER_BYTES_MAX
                    && !owner.contains(|char: char| {
                        char.is_whitespace() || char.is_control() || char == ','
                    });
                // 007 could be the number 7 or the text 007.
                let is_clear = owner
                    .parse::<i64>()
                    .map_or(true, |id| id.to_string() == owner);
                let named = || Self::ReadOwner(owner.to_owned());
                (is_plain && is_clear).then(named).ok_or_else(wrong)
            }
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadAll => f.write_str(READ_ALL),
            Self::ReadOwner(owner) => write!(f, "{READ_OWNER}{owner}"),
            Self::Ingest => f.write_str(INGEST),
            Self::IngestSource(source) => write!(f, "{INGEST_SOURCE}{source}"),
            Self::Admin => f.write_str(ADMIN),
        }
    }
}

/// Everything that a key permits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scopes(BTreeSet<Scope>);

impl Scopes {
    /// Those of who is asked for no key: all.
    #[must_use]
    pub fn all() -> Self {
        Self(BTreeSet::from([Scope::Admin]))
    }

    /// Whether nothing is permitted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Scope> {
        self.0.iter()
    }

    /// Whether everything is permitted.
    #[must_use]
    pub fn may_administer(&self) -> bool {
        self.0.contains(&Scope::Admin)
    }

    /// Whether events and rows of every source are permitted.
    #[must_use]
    pub fn may_ingest_all(&self) -> bool {
        self.may_administer() || self.0.contains(&Scope::Ingest)
    }

    /// Whether events or rows of a source are permitted.
    #[must_use]
    pub fn may_ingest(&self, source: Source) -> bool {
        self.may_ingest_all() || self.0.contains(&Scope::IngestSource(source))
    }

    /// Whether every read is permitted.
    #[must_use]
    pub fn may_read_all(&self) -> bool {
        self.may_administer() || self.0.contains(&Scope::ReadAll)
    }

    /// Whether what is one owner's is permitted because the owner is named.
    #[must_use]
    pub fn is_of_owner(&self, owner: &str) -> bool {
        self.owners().any(|of| of == owner)
    }

    /// The owners that are named.
    pub fn owners(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|scope| match scope {
            Scope::ReadOwner(owner) => Some(owner.as_str()),
            _ => None,
        })
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().collect())
    }
}

/// As they are kept: with commas between them.
impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, scope) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            scope.fmt(f)?;
        }
        Ok(())
    }
}

impl FromStr for Scopes {
    type Err = ScopeError;

    fn from_str(text: &str) -> Result<Self, ScopeError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        text.split(',').map(str::parse).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_read_as_they_are_written() {
        let all = "read:*,read:owner:-7,read:owner:Müller:x,ingest,ingest:plays,admin";
        let scopes: Scopes = all.parse().expect("scopes");
        assert_eq!(scopes.to_string().parse(), Ok(scopes.clone()));
        assert_eq!(scopes.owners().collect::<Vec<_>>(), ["-7", "Müller:x"]);
        assert_eq!("".parse(), Ok(Scopes::default()));
    }

    #[test]
    fn what_is_no_scope_is_refused() {
        let long = format!("read:owner:{}", "9".repeat(OWNER_BYTES_MAX + 1));
        for text in [
            "read",
            "read:",
            "read:owner:",
            "read:owner:1 2",
            "read:owner:007",
            "read:owner:+7",
            "read:owner:-0",
            "read:owner:a\u{0}",
            "Admin",
            "admin ",
            "write",
            "ingest:",
            "ingest:*",
            "ingest:Plays",
            "ingest:ingest:plays",
            "ingest:plays ",
            &long,
        ] {
            assert!(text.parse::<Scope>().is_err(), "{text:?}");
        }
        assert!("admin,".parse::<Scopes>().is_err());
        assert!("read:owner:1,2".parse::<Scopes>().is_err());
    }

    #[test]
    fn nothing_more_is_permitted_than_is_said() {
        let may = |text: &str| {
            let of: Scopes = text.parse().expect("scopes");
            (
                of.may_administer(),
                of.may_ingest_all(),
                of.may_read_all(),
                of.may_read_all() || of.is_of_owner("1"),
                of.may_read_all() || of.is_of_owner("11"),
            )
        };
        assert_eq!(may(""), (false, false, false, false, false));
        assert_eq!(may("ingest"), (false, true, false, false, false));
        assert_eq!(may("read:owner:1"), (false, false, false, true, false));
        assert_eq!(may("read:*"), (false, false, true, true, true));
        assert_eq!(may("admin"), (true, true, true, true, true));
        assert_eq!(may("ingest:plays"), (false, false, false, false, false));
        let may_ingest = |text: &str| {
            let of: Scopes = text.parse().expect("scopes");
            Source::ALL.map(|source| of.may_ingest(source))
        };
        assert_eq!(may_ingest("ingest"), [true; 7]);
        assert_eq!(may_ingest("admin"), [true; 7]);
        assert_eq!(may_ingest("read:*"), [false; 7]);
        let one = |of| Source::ALL.map(|source| source == of);
        assert_eq!(may_ingest("ingest:plays"), one(Source::Plays));
        assert_eq!(may_ingest("ingest:applications"), one(Source::Applications));
    }
}
