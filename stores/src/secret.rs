//! Texts that must not be shown.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// What stands for a secret where it would be shown.
const HIDDEN: &str = "(hidden)";

/// A password or another text that is never printed; empty where there is none.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "(none)" } else { HIDDEN })
    }
}

/// Hidden here too: what is written out is shown to people.
impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if self.is_empty() { "" } else { HIDDEN })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_never_shown() {
        let secret = Secret::from("open sesame".to_owned());
        let json = serde_json::to_string(&secret).expect("JSON");
        assert_eq!(
            (format!("{secret:?}"), json.as_str()),
            (HIDDEN.to_owned(), "\"(hidden)\"")
        );
        assert_eq!(secret.reveal(), "open sesame");
    }
}
