//! What a server tells of itself, and whether live state may be kept on it.

const VERSION_MIN: u32 = 7;

/// The answer to `INFO`, which any user may ask for that has the right to; `CONFIG` is kept from most.
#[derive(Debug, Clone, Default)]
pub(super) struct Info(String);

impl Info {
    pub(super) const fn new(text: String) -> Self {
        Self(text)
    }

    fn value(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.value("cluster_enabled") == Some("1")
    }

    fn is_replica(&self) -> bool {
        self.value("role") == Some("slave")
    }

    /// Why no live state may be kept here; nothing if it may.
    pub(super) fn refusal(&self) -> Option<String> {
        let Some(version) = self.value("redis_version") else {
            return Some(
                "it does not tell its version; give the user the right to INFO".to_owned(),
            );
        };
        let major = version
            .split('.')
            .next()
            .and_then(|n| n.parse::<u32>().ok());
        if major.is_none_or(|major| major < VERSION_MIN) {
            return Some(format!(
                "it is Redis {version}, and scripts need {VERSION_MIN} or newer; update it"
            ));
        }
        match self.value("maxmemory_policy") {
            Some("noeviction") => {}
            Some(policy) => {
                return Some(format!(
                    "its maxmemory-policy is {policy}, which takes away counts when memory is full; set it to noeviction"
                ));
            }
            None => return Some("it does not tell its maxmemory-policy".to_owned()),
        }
        None
    }

    /// Why it can't be used now, although it may be later; nothing if it can.
    pub(super) fn is_behind(&self) -> Option<String> {
        // A replica in a cluster sends everybody on to its master.
        (self.is_replica() && !self.is_cluster()).then(|| {
            "it is a replica, which takes no writes and is behind when read; name the master"
                .to_owned()
        })
    }

    /// How many keys were taken away since it started, because its memory was full.
    pub(super) fn evicted(&self) -> u64 {
        let evicted = self.value("evicted_keys").and_then(|n| n.parse().ok());
        evicted.unwrap_or(0)
    }

    /// What is not as it should be, but no reason to refuse.
    pub(super) fn warnings(&self) -> Vec<&'static str> {
        let mut warnings = Vec::new();
        if self.value("aof_enabled") == Some("0") {
            warnings.push(
                "it keeps no append-only file, so a restart loses live state, which is then replayed from the log; set appendonly yes",
            );
        }
        if self.value("aof_last_write_status") == Some("err") {
            warnings.push("it could not write its append-only file; look at its log and disk");
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
    fn only_what_keeps_counts_is_used() {
        let refusal = |info: Info| info.refusal().unwrap_or_default();
        assert_eq!(info("7.0.15", "noeviction", "master", 1).refusal(), None);
        assert!(refusal(info("6.2.1", "noeviction", "master", 1)).contains("6.2.1"));
        assert!(refusal(info("7.2.0", "allkeys-lru", "master", 1)).contains("allkeys-lru"));
        let replica = info("8.0.0", "noeviction", "slave", 1);
        assert_eq!(replica.refusal(), None);
        assert!(
            replica
                .is_behind()
                .is_some_and(|why| why.contains("replica"))
        );
        assert!(refusal(Info::default()).contains("INFO"));
    }

    #[test]
    fn lost_persistence_is_a_warning() {
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
