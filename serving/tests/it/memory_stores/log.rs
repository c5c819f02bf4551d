//! The log: spans of topics, and appended records. Records are not read.

use async_trait::async_trait;
use schemas::seam::Offset;
use schemas::source::Source;
use stores::Result;
use stores::log::{FetchLimit, FetchedRecords, LogRead, LogWrite, NewRecords, Span};

use super::{MemoryStores, fail_unsupported};

#[async_trait]
impl LogRead for MemoryStores {
    async fn spans(&self, topic: &str) -> Result<Vec<Span>> {
        if topic != Source::Plays.topic() {
            // Topics of boards have one partition.
            let partition_count = usize::from(self.boards().has_views());
            return Ok(vec![Span { start: 0, end: 0 }; partition_count]);
        }
        let states = self.partition_states.lock().unwrap();
        let spans = states.iter().map(|state| Span {
            start: 0,
            end: state.as_ref().map_or(0, |state| state.position.next_offset),
        });
        Ok(spans.collect())
    }

    async fn fetch(&self, _: &str, _: u32, _: Offset, _: FetchLimit) -> Result<FetchedRecords> {
        fail_unsupported()
    }

    async fn offset_at(&self, _: &str, _: u32, _: i64) -> Result<Offset> {
        fail_unsupported()
    }
}

#[async_trait]
impl LogWrite for MemoryStores {
    async fn ensure_topic(&self, _: &str, partitions: u32) -> Result<u32> {
        Ok(partitions)
    }

    async fn append(&self, topic: &str, groups: &[NewRecords], _: i64) -> Result<Vec<Offset>> {
        let values = groups
            .iter()
            .flat_map(|group| group.values.iter().flatten());
        let records = values.map(|value| (topic.to_owned(), value.to_vec()));
        self.appended.lock().unwrap().extend(records);
        Ok(vec![0; groups.len()])
    }
}
