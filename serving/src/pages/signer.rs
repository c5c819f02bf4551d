//! Message authentication codes for cookies of the pages.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use stores::Secret;
use stores::keys::Token;

/// Signs and verifies cookies.
#[derive(Clone)]
pub(crate) struct CookieSigner([u8; 32]);

impl std::fmt::Debug for CookieSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CookieSigner(hidden)")
    }
}

impl CookieSigner {
    /// Uses a secret that all processes share, or a random one of this process if it is empty.
    pub(crate) fn from_secret(secret: &Secret) -> Self {
        if secret.is_empty() {
            return Self(*Token::generate().digest().bytes());
        }
        Self(Sha256::digest(secret.reveal().as_bytes()).into())
    }

    fn mac(&self, parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        for part in parts {
            mac.update(part);
        }
        Some(mac)
    }

    /// The code of the concatenated parts.
    pub(crate) fn sign(&self, parts: &[&[u8]]) -> Option<String> {
        let code = self.mac(parts)?.finalize().into_bytes();
        Some(URL_SAFE_NO_PAD.encode(code))
    }

    /// Verifies the code of these parts.
    pub(crate) fn verify(&self, parts: &[&[u8]], code: &str) -> bool {
        let sent = URL_SAFE_NO_PAD.decode(code);
        let mac = self.mac(parts);
        sent.is_ok_and(|sent| mac.is_some_and(|mac| mac.verify_slice(&sent).is_ok()))
    }
}
