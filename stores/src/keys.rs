//! The port of keys of the API: who may ask for what, since when and until when; and the record of what
//! administrators did.
//!
//! Of a key only a digest is kept. A key that was ever made stays as a row when it is over, so an
//! installation whose keys are all over lets nobody in rather than everybody.

use std::fmt;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemas::access::Scopes;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::Result;

/// What every key begins with.
pub const PREFIX: &str = "bsk_";
/// How many characters the public part of a key has.
pub const ID_CHARS: usize = 12;
/// How many the secret part has: 256 bits.
const SECRET_CHARS: usize = 43;
/// The most bytes that the name of a key may have.
pub const NAME_BYTES_MAX: usize = 128;

/// A key as its owner has it. It is never printed by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A new one, which nobody can foresee.
    #[must_use]
    pub fn draw() -> Self {
        // An id of this kind is 122 bits of the system's random numbers: three are more than the secret has.
        let drawn = || Uuid::new_v4().into_bytes();
        let secret = Sha256::digest([drawn(), drawn(), drawn()].concat());
        let id = Uuid::new_v4().simple().to_string();
        let id = id.get(..ID_CHARS).unwrap_or_default();
        Self(format!("{PREFIX}{id}_{}", URL_SAFE_NO_PAD.encode(secret)))
    }

    /// A key that somebody sent, if it looks like one.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let is_id = id.len() == ID_CHARS && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let is_secret = secret.len() == SECRET_CHARS && secret.bytes().all(plain);
        (is_id && is_secret).then(|| Self(text.to_owned()))
    }

    /// Its public part, by which it is found, listed and logged.
    #[must_use]
    pub fn id(&self) -> &str {
        let id = PREFIX.len()..PREFIX.len() + ID_CHARS;
        self.0.get(id).unwrap_or_default()
    }

    /// What is kept of it.
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

    /// As it is kept.
    pub(crate) fn text(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    pub(crate) fn of_text(text: &str) -> Option<Self> {
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
    /// What people call it: at most [`NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// What it permits.
    pub scopes: Scopes,
    /// When it was made, in milliseconds since 1970.
    pub made_at_ms: i64,
    /// By whom.
    pub made_by: String,
    /// When it ends by itself, in milliseconds since 1970.
    pub expires_at_ms: Option<i64>,
    /// Since when it is taken back.
    pub revoked_at_ms: Option<i64>,
    /// By whom.
    pub revoked_by: Option<String>,
    /// The key that took its place.
    pub replaced_by: Option<String>,
    /// When it was used last, to about a minute.
    pub used_at_ms: Option<i64>,
}

/// Whether a key lets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyState {
    /// It does.
    Valid,
    /// It is over by itself.
    Expired,
    /// It was taken back.
    Revoked,
}

impl KeyState {
    /// Its name.
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
    /// Whether it lets in at a moment.
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

/// A key that is kept, with what tells whether somebody has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptKey {
    /// The key.
    pub key: ApiKey,
    /// Its digest.
    pub digest: KeyDigest,
}

/// What an administrator did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    /// Its number, which rises; 0 for one that is not recorded yet.
    pub number: i64,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// Who: the name of a key with its id, or of a command.
    pub actor: String,
    /// What, as in `keys.revoke`.
    pub action: String,
    /// To what.
    pub target: String,
    /// More about it, if there is more.
    pub detail: Option<String>,
}

/// What became of a wish to put another key in the place of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rotated {
    /// It is done; the key as it is now.
    Done(ApiKey),
    /// The key is over: nothing was made.
    Over(ApiKey),
    /// There is no such key.
    Unknown,
}

/// Keys and what is done with them. Each call that changes a key records it, in the same step.
#[async_trait]
pub trait Keys: fmt::Debug + Send + Sync {
    /// Whether there ever was a key.
    async fn any_key(&self) -> Result<bool>;

    /// A key by its public part.
    async fn key(&self, id: &str) -> Result<Option<KeptKey>>;

    /// Keys, newest first, before the one with an id, at most `limit`.
    async fn keys(&self, before: Option<&str>, limit: usize) -> Result<Vec<ApiKey>>;

    /// Adds a key.
    async fn add_key(&self, key: &KeptKey) -> Result<()>;

    /// Puts another key in the place of one, which ends at `until_ms` or earlier.
    async fn rotate_key(&self, id: &str, until_ms: i64, by: &KeptKey) -> Result<Rotated>;

    /// Takes a key back; the key as it is then, if there is one. What is taken back stays as it is.
    async fn revoke_key(&self, id: &str, by: &str, now_ms: i64) -> Result<Option<ApiKey>>;

    /// Notes that a key was used.
    async fn key_used(&self, id: &str, at_ms: i64) -> Result<()>;

    /// Records what an administrator did.
    async fn record_action(&self, action: &Action) -> Result<()>;

    /// What administrators did, newest first, before the one with a number, at most `limit`.
    async fn actions(&self, before: Option<i64>, limit: usize) -> Result<Vec<Action>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_drawn_and_never_shown() {
        let drawn = Token::draw();
        let text = drawn.reveal();
        assert_eq!(text.len(), PREFIX.len() + ID_CHARS + 1 + SECRET_CHARS);
        assert_eq!(Token::of(text).as_ref(), Some(&drawn));
        assert_ne!(Token::draw(), drawn);
        assert!(text.starts_with(&format!("{PREFIX}{}_", drawn.id())));
        let shown = format!("{drawn:?} {:?}", drawn.digest());
        let secret = text.rsplit_once('_').expect("a secret").1;
        assert!(!shown.contains(secret), "{shown}");
        assert_eq!(
            KeyDigest::of_text(&drawn.digest().text()),
            Some(drawn.digest())
        );
        assert_eq!(KeyDigest::of_text("short"), None);
    }

    #[test]
    fn what_is_no_key_is_not_looked_for() {
        let drawn = Token::draw();
        let text = drawn.reveal();
        let cut = text.get(..text.len() - 1).expect("one less");
        for wrong in [
            "",
            "bsk_",
            "bsk__",
            cut,
            &format!("{text}x"),
            &text.replace("bsk_", "bsx_"),
        ] {
            assert_eq!(Token::of(wrong), None, "{wrong}");
        }
        let quoted = text.replacen(|char: char| char.is_ascii_hexdigit(), "'", 1);
        assert_eq!(Token::of(&quoted), None);
    }

    #[test]
    fn a_key_is_over_when_it_is_said() {
        let key = ApiKey {
            id: "0123456789ab".to_owned(),
            name: String::new(),
            scopes: Scopes::all(),
            made_at_ms: 0,
            made_by: String::new(),
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
