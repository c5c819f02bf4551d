use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow::array::BinaryArray;
use async_trait::async_trait;

use super::*;
use crate::log::{FetchLimit, FetchedRecords, Records, Span};

/// A log of one partition: the time and content of each record.
#[derive(Debug, Default)]
struct FakeLog {
    records: Mutex<Vec<(i64, &'static str)>>,
    /// The number of fetches.
    reads: AtomicU32,
}

impl FakeLog {
    fn set(&self, records: &[(i64, &'static str)]) {
        *self.records.lock().unwrap() = records.to_vec();
    }

    fn append(&self, record: (i64, &'static str)) {
        self.records.lock().unwrap().push(record);
    }

    fn read(&self, from: usize) -> Records {
        let records = self.records.lock().unwrap()[from..].to_vec();
        let offsets = (from..from + records.len()).map(|n| i64::try_from(n).unwrap());
        let values = records.iter().map(|record| record.1);
        Records {
            offsets: offsets.collect::<Vec<_>>().into(),
            logged_at_ms: records.iter().map(|r| r.0).collect::<Vec<_>>().into(),
            keys: BinaryArray::from_iter_values(records.iter().map(|_| "")),
            values: BinaryArray::from_iter_values(values),
        }
    }

    fn last(&self) -> LastRecord {
        self.read(0).last().unwrap()
    }

    /// Returns whether the log is verified, and the number of fetches for it.
    async fn verify(&self, known: &mut LogIdentityVerifier, last: LastRecord) -> (bool, u32) {
        let before = self.reads.load(Ordering::SeqCst);
        let verified = known.verify(self, "topic", 0, last).await.unwrap();
        (verified.is_ok(), self.reads.load(Ordering::SeqCst) - before)
    }
}

#[async_trait]
impl LogRead for FakeLog {
    async fn spans(&self, _topic: &str) -> Result<Vec<Span>> {
        unimplemented!()
    }

    async fn fetch(&self, _: &str, _: u32, from: Offset, _: FetchLimit) -> Result<FetchedRecords> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let end = i64::try_from(self.records.lock().unwrap().len()).unwrap();
        if from > end {
            return Err(Error::OffsetOutOfRange {
                topic: "topic".to_owned(),
                partition: 0,
                requested: from,
                start: 0,
                end,
            });
        }
        Ok(FetchedRecords {
            records: self.read(usize::try_from(from).unwrap()),
            next_offset: end,
            end,
        })
    }

    async fn offset_at(&self, _: &str, _: u32, logged_at_ms: i64) -> Result<Offset> {
        let records = self.records.lock().unwrap();
        let first = records.iter().position(|record| record.0 >= logged_at_ms);
        Ok(i64::try_from(first.unwrap_or(records.len())).unwrap())
    }
}

#[tokio::test]
async fn an_index_lookup_suffices_while_the_log_grows() {
    let (log, mut known) = (FakeLog::default(), LogIdentityVerifier::default());
    log.set(&[(10, "a"), (20, "b"), (20, "c")]);
    assert_eq!(log.verify(&mut known, log.last()).await, (true, 1));
    for at_ms in 20..30 {
        log.append((at_ms, "d"));
        assert_eq!(log.verify(&mut known, log.last()).await, (true, 0));
    }
}

#[tokio::test]
async fn detects_a_recreated_log() {
    let (log, mut known) = (FakeLog::default(), LogIdentityVerifier::default());
    let old = [(10, "a"), (20, "b"), (20, "c")];
    log.set(&old);
    let last = log.last();
    assert_eq!(log.verify(&mut known, last).await, (true, 1));
    // Longer, with the same records, and shorter: the times are later.
    for new in [
        &[(30, "x"), (30, "y"), (31, "z"), (32, "z")][..],
        &[(30, "a"), (30, "b"), (31, "c"), (32, "d")],
        &[(30, "a")],
    ] {
        log.set(new);
        assert_eq!(log.verify(&mut known, last).await, (false, 1), "{new:?}");
        assert_eq!(log.verify(&mut known, last).await, (false, 1), "{new:?}");
        log.set(&old);
        assert_eq!(log.verify(&mut known, last).await, (true, 1));
        assert_eq!(log.verify(&mut known, last).await, (true, 0));
    }
}

/// If all records have the same time, the index proves nothing, and the record itself is read.
#[tokio::test]
async fn a_log_of_one_timestamp_is_verified_by_its_record() {
    let (log, mut known) = (FakeLog::default(), LogIdentityVerifier::default());
    log.set(&[(10, "a"), (10, "b")]);
    let last = log.last();
    for _ in 0..2 {
        assert_eq!(log.verify(&mut known, last).await, (true, 1));
    }
    log.set(&[(30, "x"), (30, "y"), (30, "z")]);
    assert_eq!(log.verify(&mut known, last).await, (false, 1));
}
