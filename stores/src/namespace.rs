//! The namespace of an installation on servers that it shares with others.
//!
//! Topics, keyspaces, schemas, live keys and buckets begin with the namespace, if there is one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The name of a keyspace has at most 48 characters, including the part after the namespace.
const LENGTH_MAX: usize = 32;

/// The name of an installation; empty if it is the only one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Namespace(String);

/// A text that is not a valid namespace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a valid namespace; use at most 32 lowercase letters, digits and '-', starting with a letter and not ending with '-'"
)]
pub struct InvalidNamespace(String);

impl Namespace {
    /// Returns whether there is no namespace.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The namespace as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A topic of this installation: `NAMESPACE.TOPIC`.
    #[must_use]
    pub fn topic(&self, topic: &str) -> String {
        self.join(".", topic)
    }

    /// A consumer group of this installation: `NAMESPACE.GROUP`.
    #[must_use]
    pub fn group(&self, group: &str) -> String {
        self.join(".", group)
    }

    /// A key of this installation: `NAMESPACE:KEY`.
    #[must_use]
    pub fn key(&self, key: &str) -> String {
        self.join(":", key)
    }

    /// A bucket of this installation: `NAMESPACE-BUCKET`.
    #[must_use]
    pub fn bucket(&self, bucket: &str) -> String {
        self.join("-", bucket)
    }

    /// A keyspace, schema or database of this installation: `NAMESPACE_NAME`. Each `-` of the
    /// namespace becomes `_`, because such names permit no other character.
    #[must_use]
    pub fn identifier(&self, name: &str) -> String {
        if self.is_empty() {
            return name.to_owned();
        }
        format!("{}_{name}", self.0.replace('-', "_"))
    }

    fn join(&self, separator: &str, name: &str) -> String {
        if self.is_empty() {
            return name.to_owned();
        }
        format!("{}{separator}{name}", self.0)
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Namespace {
    type Err = InvalidNamespace;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_allowed =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let has_valid_start = text.as_bytes().first().is_none_or(u8::is_ascii_lowercase);
        if text.len() > LENGTH_MAX
            || !text.bytes().all(is_allowed)
            || !has_valid_start
            || text.ends_with('-')
        {
            return Err(InvalidNamespace(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for Namespace {
    type Error = InvalidNamespace;

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
    fn without_a_namespace_names_stay() {
        let none = Namespace::default();
        assert_eq!(none.topic("backstitch.plays.v1"), "backstitch.plays.v1");
        assert_eq!(none.identifier("backstitch"), "backstitch");
        assert_eq!("".parse(), Ok(none));
    }

    #[test]
    fn invalid_names_are_rejected() {
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
            assert_eq!(refused, Err(InvalidNamespace(text.to_owned())));
        }
    }
}
