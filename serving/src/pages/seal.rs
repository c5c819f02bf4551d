//! Codes by which this installation knows again what it has given out: sessions, and what a button did.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use stores::Secret;
use stores::keys::Token;

/// What codes are made with.
#[derive(Clone)]
pub(crate) struct Seal([u8; 32]);

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal(hidden)")
    }
}

impl Seal {
    /// That of a secret which all processes share; without one a secret of this process alone.
    pub(crate) fn of(secret: &Secret) -> Self {
        if secret.is_empty() {
            return Self(*Token::draw().digest().bytes());
        }
        Self(Sha256::digest(secret.reveal().as_bytes()).into())
    }

    fn code(&self, parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
        let mut code = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        for part in parts {
            code.update(part);
        }
        Some(code)
    }

    /// The code by which parts, one after the other, are known again.
    pub(crate) fn sealed(&self, parts: &[&[u8]]) -> Option<String> {
        let code = self.code(parts)?.finalize().into_bytes();
        Some(URL_SAFE_NO_PAD.encode(code))
    }

    /// Whether this is the code of these parts.
    pub(crate) fn has_sealed(&self, parts: &[&[u8]], code: &str) -> bool {
        let sent = URL_SAFE_NO_PAD.decode(code);
        let made = self.code(parts);
        sent.is_ok_and(|sent| made.is_some_and(|made| made.verify_slice(&sent).is_ok()))
    }
}
