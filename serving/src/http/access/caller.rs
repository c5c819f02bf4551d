//! The sender of a request: its key and scopes.

use schemas::access::Scopes;
use stores::keys::ApiKey;

use super::limits::RateState;

/// The authenticated sender of a request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// `None` without a key.
    key: Option<KeyName>,
    pub(super) scopes: Scopes,
    /// The state of the rate limit that applies, if any.
    pub(super) rate_state: Option<RateState>,
}

/// Names a key in records.
#[derive(Debug, Clone)]
struct KeyName {
    id: String,
    name: String,
}

impl Caller {
    /// Returns a caller with all scopes: this process, or a loopback client until a key exists.
    pub(crate) fn trusted() -> Self {
        Self {
            key: None,
            scopes: Scopes::all(),
            rate_state: None,
        }
    }

    /// Returns a caller with the scopes of a key.
    pub(super) fn from_key(key: &ApiKey, rate_state: Option<RateState>) -> Self {
        Self {
            key: Some(KeyName {
                id: key.id.clone(),
                name: key.name.clone(),
            }),
            scopes: key.scopes.clone(),
            rate_state,
        }
    }

    /// Returns a caller without a key or scope.
    pub(crate) fn anonymous() -> Self {
        Self {
            key: None,
            scopes: Scopes::default(),
            rate_state: None,
        }
    }

    /// Returns whether every read is permitted.
    pub(crate) fn may_read_all(&self) -> bool {
        self.scopes.may_read_all()
    }

    /// Returns whether administration is permitted.
    pub(crate) fn may_administer(&self) -> bool {
        self.scopes.may_administer()
    }

    /// Returns the only owner whose data this key may read. Returns `None` if it may read more, or
    /// nothing.
    pub(crate) fn only_owner(&self) -> Option<&str> {
        let mut owners = self.scopes.owners();
        let owner = owners.next().filter(|_| !self.scopes.may_read_all())?;
        owners.next().is_none().then_some(owner)
    }

    /// Returns the owners that the key's scopes name.
    pub(crate) fn owners(&self) -> impl Iterator<Item = &str> {
        self.scopes.owners()
    }

    /// Returns the id of the key, if any.
    pub(crate) fn key_id(&self) -> Option<&str> {
        self.key.as_ref().map(|key| key.id.as_str())
    }

    /// Formats the key, if any, as the actor of a record.
    pub(crate) fn actor(&self) -> Option<String> {
        let KeyName { id, name } = self.key.as_ref()?;
        Some(format!("{name} (key {id})"))
    }
}
