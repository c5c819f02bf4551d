//! Scopes of API keys: their syntax, their stored form, and what each permits.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::source::Source;

/// The maximum length of an owner's name in a scope.
pub const OWNER_BYTES_MAX: usize = 256;

const READ_ALL: &str = "read:*";
const READ_OWNER: &str = "read:owner:";
const INGEST: &str = "ingest";
const INGEST_SOURCE: &str = "ingest:";
const ADMIN: &str = "admin";

/// One permission of an API key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// `read:*`: all reads.
    ReadAll,
    /// `read:owner:ID`: statistics of one owner, and this owner's applications.
    ReadOwner(String),
    /// `ingest`: ingest of events and rows of every source.
    Ingest,
    /// `ingest:SOURCE`: ingest of events or rows of one source.
    IngestSource(Source),
    /// `admin`: everything.
    Admin,
}

/// A text that is not a scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a scope: write read:*, read:owner:ID (an id without leading zeros, or a name of at most {OWNER_BYTES_MAX} bytes without spaces and commas), ingest, ingest:SOURCE (one of {sources}) or admin",
    sources = Source::ALL.map(Source::name).join(", ")
)]
pub struct ScopeError {
    text: String,
}

impl FromStr for Scope {
    type Err = ScopeError;

    fn from_str(text: &str) -> Result<Self, ScopeError> {
        let invalid = || ScopeError {
            text: text.chars().take(100).collect(),
        };
        match text {
            READ_ALL => Ok(Self::ReadAll),
            INGEST => Ok(Self::Ingest),
            ADMIN => Ok(Self::Admin),
            _ => {
                if let Some(source) = text.strip_prefix(INGEST_SOURCE) {
                    let source = source.parse().map_err(|_| invalid())?;
                    return Ok(Self::IngestSource(source));
                }
                let owner = text.strip_prefix(READ_OWNER).ok_or_else(invalid)?;
                let is_plain = !owner.is_empty()
                    && owner.len() <= OWNER_BYTES_MAX
                    && !owner.contains(|char: char| {
                        char.is_whitespace() || char.is_control() || char == ','
                    });
                // 007 is refused: it could mean the number 7 or the text 007.
                let is_unambiguous = owner
                    .parse::<i64>()
                    .map_or(true, |id| id.to_string() == owner);
                let scope = || Self::ReadOwner(owner.to_owned());
                (is_plain && is_unambiguous).then(scope).ok_or_else(invalid)
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

/// All scopes of an API key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scopes(BTreeSet<Scope>);

impl Scopes {
    /// Returns the scopes that permit everything, for a caller that needs no key.
    #[must_use]
    pub fn all() -> Self {
        Self(BTreeSet::from([Scope::Admin]))
    }

    /// Returns whether nothing is permitted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the scopes.
    pub fn iter(&self) -> impl Iterator<Item = &Scope> {
        self.0.iter()
    }

    /// Returns whether the scopes permit everything.
    #[must_use]
    pub fn may_administer(&self) -> bool {
        self.0.contains(&Scope::Admin)
    }

    /// Returns whether the scopes permit ingest into every source.
    #[must_use]
    pub fn may_ingest_all(&self) -> bool {
        self.may_administer() || self.0.contains(&Scope::Ingest)
    }

    /// Returns whether the scopes permit ingest into a source.
    #[must_use]
    pub fn may_ingest(&self, source: Source) -> bool {
        self.may_ingest_all() || self.0.contains(&Scope::IngestSource(source))
    }

    /// Returns whether the scopes permit every read.
    #[must_use]
    pub fn may_read_all(&self) -> bool {
        self.may_administer() || self.0.contains(&Scope::ReadAll)
    }

    /// Returns whether a scope names this owner. Does not consider `read:*` and `admin`.
    #[must_use]
    pub fn names_owner(&self, owner: &str) -> bool {
        self.owners().any(|scope_owner| scope_owner == owner)
    }

    /// Iterates over the owners that the scopes name.
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

/// The stored form: scopes separated by commas.
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
    fn scopes_round_trip_through_text() {
        let all = "read:*,read:owner:-7,read:owner:Müller:x,ingest,ingest:plays,admin";
        let scopes: Scopes = all.parse().expect("scopes");
        assert_eq!(scopes.to_string().parse(), Ok(scopes.clone()));
        assert_eq!(scopes.owners().collect::<Vec<_>>(), ["-7", "Müller:x"]);
        assert_eq!("".parse(), Ok(Scopes::default()));
    }

    #[test]
    fn invalid_scopes_are_refused() {
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
    fn a_scope_permits_only_its_own_requests() {
        let may = |text: &str| {
            let scopes: Scopes = text.parse().expect("scopes");
            (
                scopes.may_administer(),
                scopes.may_ingest_all(),
                scopes.may_read_all(),
                scopes.may_read_all() || scopes.names_owner("1"),
                scopes.may_read_all() || scopes.names_owner("11"),
            )
        };
        assert_eq!(may(""), (false, false, false, false, false));
        assert_eq!(may("ingest"), (false, true, false, false, false));
        assert_eq!(may("read:owner:1"), (false, false, false, true, false));
        assert_eq!(may("read:*"), (false, false, true, true, true));
        assert_eq!(may("admin"), (true, true, true, true, true));
        assert_eq!(may("ingest:plays"), (false, false, false, false, false));
        let may_ingest = |text: &str| {
            let scopes: Scopes = text.parse().expect("scopes");
            Source::ALL.map(|source| scopes.may_ingest(source))
        };
        assert_eq!(may_ingest("ingest"), [true; 7]);
        assert_eq!(may_ingest("admin"), [true; 7]);
        assert_eq!(may_ingest("read:*"), [false; 7]);
        let only = |permitted| Source::ALL.map(|source| source == permitted);
        assert_eq!(may_ingest("ingest:plays"), only(Source::Plays));
        assert_eq!(
            may_ingest("ingest:applications"),
            only(Source::Applications)
        );
    }
}
