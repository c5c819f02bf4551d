//! Groups of rows, and the notifications that say that one of them changed.

use serde::Deserialize;

use crate::partition::partition_of;
use crate::source::Source;

/// The rows of one member under one key: an athlete's efforts on a segment, an athlete's
/// authorizations of an application. What changes is read again by the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    /// The segment, the application.
    pub key: i64,
    /// The athlete.
    pub member: i64,
}

#[derive(Deserialize)]
struct EffortNotification {
    segment_id: i64,
    athlete_id: i64,
}

#[derive(Deserialize)]
struct AuthorizationNotification {
    application_id: i64,
    athlete_id: i64,
}

impl Group {
    /// The notification that the group changed: a JSON object with the names of the source's
    /// columns. Its log key is [`Group::log_key`].
    #[must_use]
    pub fn notification(&self, source: Source) -> Vec<u8> {
        let (key, member) = (self.key, self.member);
        let column = key_column(source);
        format!("{{\"{column}\":{key},\"athlete_id\":{member}}}").into_bytes()
    }

    /// The log key of the group's notifications: [`Group::key`] in digits.
    #[must_use]
    pub fn log_key(&self) -> String {
        self.key.to_string()
    }

    /// The partition of the group's notifications among `partitions` of a topic.
    #[must_use]
    pub fn partition(&self, partitions: u32) -> u32 {
        partition_of(self.log_key().as_bytes(), partitions)
    }
}

/// The column of the group's key: the log key of the source's notifications.
#[must_use]
pub const fn key_column(source: Source) -> &'static str {
    match source {
        Source::Authorizations => "application_id",
        Source::Plays => "owner_id",
        _ => "segment_id",
    }
}

/// The group that a notification names.
///
/// # Errors
/// The reason for which it can't be taken.
pub fn parse_notification(source: Source, bytes: &[u8]) -> Result<Group, String> {
    let parsed = match source {
        Source::Authorizations => {
            serde_json::from_slice(bytes).map(|found: AuthorizationNotification| Group {
                key: found.application_id,
                member: found.athlete_id,
            })
        }
        _ => serde_json::from_slice(bytes).map(|found: EffortNotification| Group {
            key: found.segment_id,
            member: found.athlete_id,
        }),
    };
    parsed.map_err(|error| {
        format!(
            "not a notification of {source}: {error}; expected {}",
            String::from_utf8_lossy(&Group { key: 1, member: 2 }.notification(source))
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_come_back() {
        let group = Group {
            key: i64::MIN,
            member: i64::MAX,
        };
        for source in [Source::Efforts, Source::Authorizations] {
            let bytes = group.notification(source);
            assert_eq!(parse_notification(source, &bytes), Ok(group));
        }
        let other = group.notification(Source::Efforts);
        let reason =
            parse_notification(Source::Authorizations, &other).expect_err("another source");
        assert!(reason.contains("application_id"), "{reason}");
    }
}
