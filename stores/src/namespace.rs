//! What an installation is called on servers that it shares with others.
//!
//! Topics, keyspaces, schemas, live keys and buckets all begin with the name; without one they have
//! none before them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Keyspaces have names of at most 48 characters, and theirs is not all of it.
const LENGTH_MAX: usize = 32;

/// The name of an installation; empty for the only one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Namespace(String);

/// A text that can't be the name of an installation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} can't be a namespace; write at most 32 lower-case letters, digits and '-', a letter first and no '-' last"
)]
pub struct NotANamespace(String);

impl Namespace {
    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The name, as it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A topic of this installation: `NAMESPACE.TOPIC`.
    #[must_use]
    pub fn topic(&self, topic: &str) -> String {
        self.joined(".", topic)
    }

    /// A group of consumers of this installation: `NAMESPACE.GROUP`.
    #[must_use]
    pub fn group(&self, group: &str) -> String {
        self.joined(".", group)
    }

    /// A key of this installation: `NAMESPACE:KEY`.
    #[must_use]
    pub fn key(&self, key: &str) -> String {
        self.joined(":", key)
    }

    /// A bucket of this installation: `NAMESPACE-BUCKET`.
    #[must_use]
    pub fn bucket(&self, bucket: &str) -> String {
        self.joined("-", bucket)
    }

    /// A keyspace, schema or database of this installation: `NAMESPACE_NAME`, where each `-` of the
    /// namespace is a `_`, since names there hold no other sign.
    #[must_use]
    pub fn identifier(&self, name: &str) -> String {
        if self.is_empty() {
            return name.to_owned();
        }
        format!("{}_{name}", self.0.replace('-', "_"))
    }

    fn joined(&self, sign: &str, name: &str) -> String {
        if self.is_empty() {
            return name.to_owned();
        }
        format!("{}{sign}{name}", self.0)
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Namespace {
    type Err = NotANamespace;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let begins_well = text.as_bytes().first().is_none_or(u8::is_ascii_lowercase);
        if text.len() > LENGTH_MAX
            || !text.bytes().all(plain)
            || !begins_well
            || text.ends_with('-')
        {
            return Err(NotANamespace(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for Namespace {
    type Error = NotANamespace;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Namespace> for String {
    fn from(namespace: Namespace) -> Self {
        namespace.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_begin_with_the_namespace() {
        let namespace: Namespace = "blue-2".parse().expect("a namespace");
        assert_eq!(
            namespace.topic("backstitch.plays.v1"),
            "blue-2.backstitch.plays.v1"
        );
        assert_eq!(
            namespace.group("backstitch.speed"),
            "blue-2.backstitch.speed"
        );
        assert_eq!(namespace.key("plays:3"), "blue-2:plays:3");
        assert_eq!(namespace.bucket("backstitch"), "blue-2-backstitch");
        assert_eq!(namespace.identifier("backstitch"), "blue_2_backstitch");
    }

    #[test]
    fn without_one_names_stay() {
        let none = Namespace::default();
        assert_eq!(none.topic("backstitch.plays.v1"), "backstitch.plays.v1");
        assert_eq!(none.identifier("backstitch"), "backstitch");
        assert_eq!("".parse(), Ok(none));
    }

    #[test]
    fn odd_names_are_refused() {
        let long = "a".repeat(33);
        for text in [
            "A",
            "a b",
            "a_b",
            "-a",
            "a-",
            "1a",
            "ä",
            "a.b",
            long.as_str(),
        ] {
            let refused = text.parse::<Namespace>();
            assert_eq!(refused, Err(NotANamespace(text.to_owned())));
        }
    }
}
