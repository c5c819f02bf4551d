//! The store of daily member counts.

use std::ops::Range;

use async_trait::async_trait;
use stores::Result;
use stores::counts::{CountsRead, Day, DayRow};

use super::MemoryStores;

#[async_trait]
impl CountsRead for MemoryStores {
    async fn read_days(
        &self,
        _: &str,
        key: &[u8],
        days: Range<Day>,
        limit: usize,
    ) -> Result<Vec<DayRow>> {
        let day_counts = self.day_counts.lock().unwrap();
        let range = (key.to_vec(), days.start)..(key.to_vec(), days.end);
        let rows = day_counts.range(range).map(|(_, row)| *row);
        Ok(rows.take(limit).collect())
    }

    async fn read_last_days(&self, _: &str, keys: &[(&[u8], Day)]) -> Result<Vec<Option<DayRow>>> {
        let day_counts = self.day_counts.lock().unwrap();
        let last_rows = keys.iter().map(|(key, end)| {
            let range = (key.to_vec(), Day::MIN)..(key.to_vec(), *end);
            day_counts.range(range).next_back().map(|(_, row)| *row)
        });
        Ok(last_rows.collect())
    }
}
