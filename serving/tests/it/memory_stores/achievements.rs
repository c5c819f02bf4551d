//! The achievement store.

use std::cmp::Reverse;

use async_trait::async_trait;
use schemas::achievement::{AchievementKind, OutboxMessage};
use schemas::seam::Offset;
use stores::Result;
use stores::achievements::{AchievementCursor, AchievementOwner, AchievementsRead};
use stores::live::PartitionId;

use super::MemoryStores;

#[async_trait]
impl AchievementsRead for MemoryStores {
    async fn achievements(
        &self,
        owner: AchievementOwner,
        kind: Option<AchievementKind>,
        before: Option<&AchievementCursor>,
        limit: usize,
    ) -> Result<Vec<OutboxMessage>> {
        let mut messages = self.achievements.lock().unwrap().published.clone();
        messages.retain(|message| {
            owner.contains(message)
                && kind.is_none_or(|kind| message.achievement.is_some_and(|a| a.kind == kind))
                && before.is_none_or(|before| AchievementCursor::from_message(message) < *before)
        });
        messages.sort_by_key(|message| Reverse(AchievementCursor::from_message(message)));
        messages.truncate(limit);
        Ok(messages)
    }

    async fn published_end(&self, _: PartitionId) -> Result<Option<Offset>> {
        Ok(None)
    }
}
