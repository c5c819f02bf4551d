//! The reply to `INFO`, and whether the server can hold live state.

const VERSION_MIN: u32 = 7;

/// The reply to `INFO`. Users rarely have the right to `CONFIG`.
#[derive(Debug, Clone, Default)]
pub(super) struct Info(String);

impl Info {
    pub(super) const fn new(text: String) -> Self {
        Self(text)
    }

    fn find_value(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.find_value("cluster_enabled") == Some("1")
    }

    fn is_replica(&self) -> bool {
        self.find_value("role") == Some("slave")
    }

    /// Reason why this server must not hold live state, if any.
    pub(super) fn refusal_reason(&self) -> Option<String> {
        let Some(version) = self.find_value("redis_version") else {
            return Some(
                "INFO does not contain redis_version; grant the user the right to INFO".to_owned(),
            );
        };
        let major = version
            .split('.')
            .next()
            .and_then(|n| n.parse::<u32>().ok());
        if major.is_none_or(|major| major < VERSION_MIN) {
            return Some(format!(
                "it is Redis {version}, but the scripts need {VERSION_MIN} or newer; upgrade the server"
            ));
        }
        match self.find_value("maxmemory_policy") {
            Some("noeviction") => {}
            Some(policy) => {
                return Some(format!(
                    "its maxmemory-policy is {policy}, which evicts counts when memory is full; set it to noeviction"
                ));
            }
            None => return Some("INFO does not contain maxmemory_policy".to_owned()),
        }
        None
    }

    /// Reason why the server cannot be used at present, if any.
    pub(super) fn unavailable_reason(&self) -> Option<String> {
        // In a cluster, a replica redirects to its primary.
        (self.is_replica() && !self.is_cluster()).then(|| {
            "it is a replica, which refuses writes and returns outdated data; configure the primary"
                .to_owned()
        })
    }

    /// Number of keys that were evicted since the server started.
    pub(super) fn evicted_keys(&self) -> u64 {
        let evicted_keys = self.find_value("evicted_keys").and_then(|n| n.parse().ok());
        evicted_keys.unwrap_or(0)
    }

    /// Problems that are no reason to refuse the server.
    pub(super) fn warnings(&self) -> Vec<&'static str> {
        let mut warnings = Vec::new();
        if self.find_value("aof_enabled") == Some("0") {
            warnings.push(
                "it has no append-only file, so a restart loses live state, which is then replayed from the log; set appendonly yes",
            );
        }
        if self.find_value("aof_last_write_status") == Some("err") {
            warnings
                .push("it failed to write its append-only file; check the server's log and disk");
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(version: &str, policy: &str, role: &str, aof: u8) -> Info {
        Info::new(format!(
            "# Server\r\nredis_version:{version}\r\nmaxmemory_policy:{policy}\r\nrole:{role}\r\naof_enabled:{aof}\r\n"
        ))
    }

    #[test]
    fn refuses_servers_that_lose_counts() {
        let refusal_reason = |info: Info| info.refusal_reason().unwrap_or_default();
        assert_eq!(
            info("7.0.15", "noeviction", "master", 1).refusal_reason(),
            None
        );
        assert!(refusal_reason(info("6.2.1", "noeviction", "master", 1)).contains("6.2.1"));
        assert!(refusal_reason(info("7.2.0", "allkeys-lru", "master", 1)).contains("allkeys-lru"));
        let replica = info("8.0.0", "noeviction", "slave", 1);
        assert_eq!(replica.refusal_reason(), None);
        assert!(
            replica
                .unavailable_reason()
                .is_some_and(|reason| reason.contains("replica"))
        );
        assert!(refusal_reason(Info::default()).contains("INFO"));
    }

    #[test]
    fn warns_about_missing_persistence() {
        assert_eq!(
            info("7.0.15", "noeviction", "master", 1).warnings().len(),
            0
        );
        assert_eq!(
            info("7.0.15", "noeviction", "master", 0).warnings().len(),
            1
        );
    }
}
