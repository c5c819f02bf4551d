//! The API keys port: keys, their scopes and lifetimes, and the record of administrative actions.
//!
//! Only a digest of a key is stored. An inactive key stays as a row. So an installation whose keys
//! are all inactive rejects all requests, rather than accepting them as if no key had been created.

use std::fmt;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemas::access::Scopes;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::Result;

/// The prefix of every key.
pub const PREFIX: &str = "bsk_";
/// The length of the public part of a key, in characters.
pub const ID_CHARS: usize = 12;
/// The length of the secret part: 256 bits.
const SECRET_CHARS: usize = 43;
/// The maximum size of the name of a key, in bytes.
pub const NAME_BYTES_MAX: usize = 128;

/// A key as its owner has it. Its debug output hides the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Generates a random key.
    #[must_use]
    pub fn generate() -> Self {
        // A UUID has 122 random bits of the operating system; three have more than the secret.
        let random = || Uuid::new_v4().into_bytes();
        let secret = Sha256::digest([random(), random(), random()].concat());
        let id = Uuid::new_v4().simple().to_string();
        let id = id.get(..ID_CHARS).unwrap_or_default();
        Self(format!("{PREFIX}{id}_{}", URL_SAFE_NO_PAD.encode(secret)))
    }

    /// Parses the text of a key, if it has the right form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let is_id = id.len() == ID_CHARS && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let is_secret = secret.len() == SECRET_CHARS && secret.bytes().all(plain);
        (is_id && is_secret).then(|| Self(text.to_owned()))
    }

    /// The public part, by which the key is found, listed and logged.
    #[must_use]
    pub fn id(&self) -> &str {
        let id = PREFIX.len()..PREFIX.len() + ID_CHARS;
        self.0.get(id).unwrap_or_default()
    }

    /// The digest of the key, which is stored.
    #[must_use]
    pub fn digest(&self) -> KeyDigest {
        KeyDigest(Sha256::digest(self.0.as_bytes()).into())
    }

    /// The key itself, to be shown once.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}_(hidden)", self.id())
    }
}

/// The digest of a key: SHA-256, which is enough for 256 random bits.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyDigest([u8; 32]);

impl KeyDigest {
    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The stored form.
    pub(crate) fn to_text(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// A key, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// Its public part.
    pub id: String,
    /// A name for people, at most [`NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// The scopes that it permits.
    pub scopes: Scopes,
    /// When it was created, in milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// Its creator.
    pub created_by: String,
    /// When it expires, in milliseconds since the Unix epoch.
    pub expires_at_ms: Option<i64>,
    /// When it was revoked, in milliseconds since the Unix epoch.
    pub revoked_at_ms: Option<i64>,
    /// The actor of the revocation.
    pub revoked_by: Option<String>,
    /// The key that replaced it.
    pub replaced_by: Option<String>,
    /// When it was used last, to about a minute.
    pub used_at_ms: Option<i64>,
}

/// The state of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyState {
    /// The key is accepted.
    Valid,
    /// The key has expired.
    Expired,
    /// The key was revoked.
    Revoked,
}

impl KeyState {
    /// The name of the state.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
        }
    }
}

impl ApiKey {
    /// The state of the key at a time.
    #[must_use]
    pub fn state(&self, now_ms: i64) -> KeyState {
        if self.revoked_at_ms.is_some() {
            KeyState::Revoked
        } else if self.expires_at_ms.is_some_and(|end| end <= now_ms) {
            KeyState::Expired
        } else {
            KeyState::Valid
        }
    }
}

/// A stored key with its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKeyRecord {
    /// The key.
    pub key: ApiKey,
    /// Its digest.
    pub digest: KeyDigest,
}

/// An administrative action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminAction {
    /// The ascending number; 0 before it is recorded.
    pub number: i64,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// The actor: the name of a key with its id, or of a command.
    pub actor: String,
    /// The action, such as `keys.revoke`.
    pub action: String,
    /// The object of the action.
    pub target: String,
    /// More details, if any.
    pub detail: Option<String>,
}

/// The result of rotating a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RotateOutcome {
    /// The key after the rotation.
    Done(ApiKey),
    /// The key is inactive. Nothing was created.
    Inactive(ApiKey),
    /// The key does not exist.
    Unknown,
}

/// Stores keys and actions. Each call that changes a key records the action in the same step.
#[async_trait]
pub trait Keys: fmt::Debug + Send + Sync {
    /// Returns whether a key was ever created.
    async fn has_keys(&self) -> Result<bool>;

    /// A key by its public part.
    async fn key(&self, id: &str) -> Result<Option<ApiKeyRecord>>;

    /// Keys, newest first, before the one with an id, at most `limit`.
    async fn keys(&self, before: Option<&str>, limit: usize) -> Result<Vec<ApiKey>>;

    /// Adds a key.
    async fn add_key(&self, key: &ApiKeyRecord) -> Result<()>;

    /// Adds a key that replaces `id`. The old key expires at `until_ms` or earlier.
    async fn rotate_key(&self, id: &str, until_ms: i64, by: &ApiKeyRecord)
    -> Result<RotateOutcome>;

    /// Revokes a key and returns it, if it exists. A revoked key stays unchanged.
    async fn revoke_key(&self, id: &str, by: &str, now_ms: i64) -> Result<Option<ApiKey>>;

    /// Records that a key was used.
    async fn record_key_use(&self, id: &str, at_ms: i64) -> Result<()>;

    /// Records an administrative action.
    async fn record_action(&self, action: &AdminAction) -> Result<()>;

    /// Administrative actions, newest first, before the one with a number, at most `limit`.
    async fn actions(&self, before: Option<i64>, limit: usize) -> Result<Vec<AdminAction>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_key_parses_and_is_never_displayed() {
        let token = Token::generate();
        let text = token.reveal();
        assert_eq!(text.len(), PREFIX.len() + ID_CHARS + 1 + SECRET_CHARS);
        assert_eq!(Token::parse(text).as_ref(), Some(&token));
        assert_ne!(Token::generate(), token);
        assert!(text.starts_with(&format!("{PREFIX}{}_", token.id())));
        let shown = format!("{token:?} {:?}", token.digest());
        let secret = text.rsplit_once('_').expect("a secret").1;
        assert!(!shown.contains(secret), "{shown}");
        assert_eq!(
            KeyDigest::parse(&token.digest().to_text()),
            Some(token.digest())
        );
        assert_eq!(KeyDigest::parse("short"), None);
    }

    #[test]
    fn malformed_keys_do_not_parse() {
        let token = Token::generate();
        let text = token.reveal();
        let cut = text.get(..text.len() - 1).expect("one less");
        for wrong in [
            "",
            "bsk_",
            "bsk__",
            cut,
            &format!("{text}x"),
            &text.replace("bsk_", "bsx_"),
        ] {
            assert_eq!(Token::parse(wrong), None, "{wrong}");
        }
        let quoted = text.replacen(|char: char| char.is_ascii_hexdigit(), "'", 1);
        assert_eq!(Token::parse(&quoted), None);
    }

    #[test]
    fn a_key_expires_at_its_time() {
        let key = ApiKey {
            id: "0123456789ab".to_owned(),
            name: String::new(),
            scopes: Scopes::all(),
            created_at_ms: 0,
            created_by: String::new(),
            expires_at_ms: Some(10),
            revoked_at_ms: None,
            revoked_by: None,
            replaced_by: None,
            used_at_ms: None,
        };
        assert_eq!(key.state(9), KeyState::Valid);
        assert_eq!(key.state(10), KeyState::Expired);
        let revoked = ApiKey {
            revoked_at_ms: Some(11),
            ..key
        };
        assert_eq!(revoked.state(9), KeyState::Revoked);
    }
}
