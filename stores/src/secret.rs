//! Texts that are never displayed.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// The text that is displayed instead of a secret.
const HIDDEN: &str = "(hidden)";

/// A password or another secret text; empty if there is none.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns whether the text is empty.
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

/// Serialized secrets are hidden too, because the output may be displayed.
impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if self.is_empty() { "" } else { HIDDEN })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_displayed() {
        let secret = Secret::from("open sesame".to_owned());
        let json = serde_json::to_string(&secret).expect("JSON");
        assert_eq!(
            (format!("{secret:?}"), json.as_str()),
            (HIDDEN.to_owned(), "\"(hidden)\"")
        );
        assert_eq!(secret.reveal(), "open sesame");
    }
}
