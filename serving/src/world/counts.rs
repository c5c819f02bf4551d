//! In-memory daily counts.

use std::ops::Range;

use async_trait::async_trait;
use stores::Result;
use stores::counts::{CountsRead, Day, DayRow};

use super::World;

#[async_trait]
impl CountsRead for World {
    async fn days(
        &self,
        _: &str,
        key: &[u8],
        days: Range<Day>,
        limit: usize,
    ) -> Result<Vec<DayRow>> {
        let boards = self.boards.lock().unwrap();
        let range = (key.to_vec(), days.start)..(key.to_vec(), days.end);
        let rows = boards.days.range(range).map(|(_, row)| *row);
        Ok(rows.take(limit).collect())
    }

    async fn last_days(&self, _: &str, keys: &[(&[u8], Day)]) -> Result<Vec<Option<DayRow>>> {
        let boards = self.boards.lock().unwrap();
        let last = keys.iter().map(|(key, before)| {
            let range = (key.to_vec(), Day::MIN)..(key.to_vec(), *before);
            boards.days.range(range).next_back().map(|(_, row)| *row)
        });
        Ok(last.collect())
    }
}
