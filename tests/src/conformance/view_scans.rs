//! Laws of the scan port: complete tables of views, page by page.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use arrow::array::{Array, Int64Array};
use bytes::Bytes;
use schemas::seam::Epoch;
use stores::view_scan::{RowPosition, ScanShare, ScannedHead, ScannedRows, ShareScheme, ViewsScan};
use stores::views::{NewHead, NewRows, NewVersion, ViewsWrite};
use stores::{Result, Stores};

use super::versions::shape as board_shape;
use super::views::{PLAYS, assert_refused, results, rows, seal_run, shape};
use super::{OTHER_VIEW, VIEW, binary, bytes};

type Key = (Vec<u8>, Vec<u8>);
/// Count, epoch and stamp.
type Value = (Option<i64>, Epoch, i64);

/// Rows by key; no two pages contain the same row.
#[derive(Debug, Default, PartialEq, Eq)]
struct RowsByKey(BTreeMap<Key, Value>);

impl RowsByKey {
    fn add(&mut self, page: &ScannedRows) {
        let keys = bytes(&page.partitions).into_iter().zip(bytes(&page.rows));
        for (n, key) in keys.enumerate() {
            let count = page.counts.is_valid(n).then(|| page.counts.value(n));
            let value = (count, page.epochs.value(n), page.stamps_us.value(n));
            let duplicate = self.0.insert(key.clone(), value);
            assert_eq!(duplicate, None, "{key:?} is returned twice");
        }
    }
}

fn shares(count: u32) -> impl Iterator<Item = ScanShare> {
    ScanShare::list_all(NonZeroU32::new(count).expect("some shares"))
}

/// Reads a page of an existing table.
async fn page(
    views: &dyn ViewsScan,
    share: ScanShare,
    after: Option<&RowPosition>,
    limit: usize,
) -> Result<ScannedRows> {
    let page = views.scan_rows(VIEW, share, after, limit).await?;
    let page = page.expect("a table");
    assert!(page.counts.len() <= limit, "at most the limit");
    assert_eq!(page.stamps_us.len(), page.counts.len());
    Ok(page)
}

/// Reads the rows of a share in pages of `limit`.
async fn scan(views: &dyn ViewsScan, share: ScanShare, limit: usize) -> Result<RowsByKey> {
    let mut scanned = RowsByKey::default();
    let mut after = None;
    loop {
        let page = page(views, share, after.as_ref(), limit).await?;
        scanned.add(&page);
        after = page.next;
        if after.is_none() {
            return Ok(scanned);
        }
    }
}

/// Reads all rows with one reader for each share.
async fn scan_all(views: &dyn ViewsScan, share_count: u32, limit: usize) -> Result<RowsByKey> {
    let division: ShareScheme = views.share_scheme().await?;
    assert!(division.parallel_shares.get() > 0);
    let mut all_rows = RowsByKey::default();
    for share in shares(share_count) {
        let share_rows = scan(views, share, limit).await?;
        for (key, value) in share_rows.0 {
            assert!(division.has_rows(share, &key.0), "{key:?} is of {share:?}");
            let duplicate = all_rows.0.insert(key, value);
            assert_eq!(duplicate, None, "shares have nothing in common");
        }
    }
    let beyond = scan(views, beyond_last(share_count), limit).await?;
    assert!(beyond.0.is_empty(), "the share does not exist");
    Ok(all_rows)
}

/// Returns a share whose index is too large.
fn beyond_last(count: u32) -> ScanShare {
    let count = NonZeroU32::new(count).expect("some shares");
    let index = count.get();
    ScanShare { index, count }
}

/// Every row is returned once with its stored values, including markers, for any page size and any
/// number of shares. A view without a table differs from one without rows.
pub async fn every_row_is_scanned_once(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    let none = views.scan_rows(VIEW, ScanShare::ALL, None, 9).await?;
    assert!(none.is_none(), "a view that was never created has no table");
    views.ensure_view(PLAYS, &shape(VIEW).into()).await?;
    views.ensure_view(PLAYS, &shape(OTHER_VIEW).into()).await?;
    let empty = page(views, ScanShare::ALL, None, 9).await?;
    assert_eq!((empty.counts.len(), empty.next), (0, None));
    let run = seal_run(views, 1).await?;
    let mut expected: BTreeMap<Key, Value> = BTreeMap::new();
    let mut all_rows: Vec<(String, String, Option<i64>)> = Vec::new();
    for part in 0..23_u8 {
        for row in 0..part % 5 {
            let count = (row != 2).then_some(i64::from(part) - 3);
            let row = "r".repeat(row.into());
            all_rows.push((format!("{part:02}"), row, count));
        }
    }
    all_rows.push(("99".to_owned(), "first".to_owned(), Some(i64::MIN)));
    all_rows.push(("99".to_owned(), "last".to_owned(), Some(i64::MAX)));
    for (part, row, count) in &all_rows {
        let value = (*count, 1, run.stamp_us);
        expected.insert((part.clone().into(), row.clone().into()), value);
    }
    let tuples = all_rows
        .iter()
        .map(|(part, row, count)| (part.as_str(), row.as_str(), *count));
    let new = rows(&tuples.collect::<Vec<_>>());
    views.publish(PLAYS, VIEW, 1, run.stamp_us, &new).await?;
    let stamp_us = views
        .begin_publishing(PLAYS, 1, &results(&[VIEW]), 1)
        .await?;
    let later = rows(&[("04", "r", None), ("04", "rr", Some(7))]);
    views.publish(PLAYS, VIEW, 1, stamp_us, &later).await?;
    expected.insert((b"04".to_vec(), b"r".to_vec()), (None, 1, stamp_us));
    expected.insert((b"04".to_vec(), b"rr".to_vec()), (Some(7), 1, stamp_us));
    for (share_count, limit) in [
        (1, 1),
        (1, 2),
        (1, 1_000),
        (2, 3),
        (3, 1),
        (7, 1_000),
        (64, 5),
    ] {
        let actual = scan_all(views, share_count, limit).await?;
        assert_eq!(actual.0, expected, "{share_count} shares, pages of {limit}");
    }
    let other_rows = views.scan_rows(OTHER_VIEW, ScanShare::ALL, None, 9).await?;
    assert_eq!(other_rows.expect("a table").counts.len(), 0);
    Ok(())
}

/// A table partition may have any number of rows, next to small partitions.
pub async fn wide_partitions_are_scanned(ports: &Stores) -> Result<()> {
    const WIDE: i64 = 50_000;
    let views = &*ports.views;
    views.ensure_view(PLAYS, &shape(VIEW).into()).await?;
    let run = seal_run(views, 1).await?;
    // Each of the other partitions has one row.
    let part = |n: i64| if n < WIDE { -1 } else { n };
    let numbers = || 0..WIDE + 3_000;
    let load = NewRows {
        partitions: binary(numbers().map(|n| part(n).to_be_bytes())),
        rows: binary(numbers().map(i64::to_be_bytes)),
        counts: numbers().map(|n| (n % 3 > 0).then_some(n)).collect(),
    };
    views.publish(PLAYS, VIEW, 1, run.stamp_us, &load).await?;
    for (share_count, limit) in [(1, 7_001), (3, 20_000)] {
        let actual = scan_all(views, share_count, limit).await?;
        assert_eq!(actual.0.len(), numbers().count());
        for ((actual_part, row), (count, epoch, _)) in actual.0 {
            let n = i64::from_be_bytes(row.try_into().expect("a number"));
            assert_eq!(actual_part, part(n).to_be_bytes());
            assert_eq!((count, epoch), ((n % 3 > 0).then_some(n), 1));
        }
    }
    Ok(())
}

/// Table partitions with the same token: Murmur3 with its last rounds inverted.
const ONE_TOKEN: [u128; 4] = [
    0x888d_f281_a1e5_3dae_544b_e0fa_f84b_23aa,
    0x90a1_d8c5_f973_d080_399d_065d_0f26_a7a2,
    0x94e5_9ba4_d830_4c35_0f44_0538_8f35_c2df,
    0xfae7_3302_610b_d7d1_4637_765a_7ae3_4853,
];

/// Partitions with equal hashes, which a store treats as neighbors, are all scanned.
pub async fn partitions_of_one_token_are_scanned(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    views.ensure_view(PLAYS, &shape(VIEW).into()).await?;
    let run = seal_run(views, 1).await?;
    let parts = ONE_TOKEN.map(u128::to_be_bytes);
    let pairs = || parts.iter().flat_map(|part| [(part, b"a"), (part, b"b")]);
    let load = NewRows {
        partitions: binary(pairs().map(|(part, _)| part)),
        rows: binary(pairs().map(|(_, row)| row)),
        counts: pairs().map(|_| Some(1)).collect::<Int64Array>(),
    };
    views.publish(PLAYS, VIEW, 1, run.stamp_us, &load).await?;
    for (share_count, limit) in [(1, 1), (1, 2), (1, 3), (5, 1)] {
        let actual = scan_all(views, share_count, limit).await?;
        let keys = pairs().map(|(part, row)| (part.to_vec(), row.to_vec()));
        assert!(
            actual.0.into_keys().eq(keys),
            "{share_count} shares, pages of {limit}"
        );
    }
    Ok(())
}

/// A concurrent publication does not affect the scan of unchanged rows, and no row is returned
/// twice.
pub async fn concurrent_writes_duplicate_no_row(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    views.ensure_view(PLAYS, &shape(VIEW).into()).await?;
    let run = seal_run(views, 1).await?;
    let name = |n: usize| (format!("{:02}", n % 20), format!("{n:03}"));
    let mut first: Vec<(String, String)> = (0..300).map(name).collect();
    first.sort();
    let load = |keys: &[(String, String)], count: i64| NewRows {
        partitions: binary(keys.iter().map(|(part, _)| part)),
        rows: binary(keys.iter().map(|(_, row)| row)),
        counts: keys.iter().map(|_| Some(count)).collect::<Int64Array>(),
    };
    let new = load(&first, 1);
    views.publish(PLAYS, VIEW, 1, run.stamp_us, &new).await?;
    let (mut scanned, mut after) = (RowsByKey::default(), None);
    for round in 0_i64.. {
        let page = page(views, ScanShare::ALL, after.as_ref(), 17).await?;
        scanned.add(&page);
        after = page.next;
        if after.is_none() {
            break;
        }
        // Rows with an odd number change all the time, and new rows appear in old and new
        // partitions.
        let new_key = [(format!("{:02}", round % 25), format!("new {round}"))];
        let odd = first.iter().filter(|(_, row)| row.ends_with(['1', '7']));
        let mut keys: Vec<(String, String)> = odd.chain(&new_key).cloned().collect();
        keys.sort();
        let stamp_us = views
            .begin_publishing(PLAYS, 1, &results(&[VIEW]), 1)
            .await?;
        let next = load(&keys, 2 + round);
        views.publish(PLAYS, VIEW, 1, stamp_us, &next).await?;
    }
    for (part, row) in first {
        let is_odd = row.ends_with(['1', '7']);
        let value = scanned.0.get(&(part.into(), row.clone().into()));
        let (count, _, stamp_us) = value.expect("a row that existed throughout");
        assert!(
            is_odd || (*count, *stamp_us) == (Some(1), run.stamp_us),
            "{row}"
        );
    }
    Ok(())
}

fn new_version(key: Vec<u8>, root: Vec<u8>) -> NewVersion {
    NewVersion {
        key,
        nodes: Vec::new(),
        head: Some(NewHead {
            root: Bytes::from(root),
            names: Vec::new(),
        }),
        rewrites_nodes: false,
        drops_earlier_root: false,
    }
}

/// Reads all heads with one reader for each share.
async fn scan_heads(
    views: &dyn ViewsScan,
    share_count: u32,
    limit: usize,
) -> Result<BTreeMap<Vec<u8>, ScannedHead>> {
    let division = views.share_scheme().await?;
    let mut heads = BTreeMap::new();
    for share in shares(share_count).chain([beyond_last(share_count)]) {
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = views
                .scan_heads(VIEW, share, after.as_deref(), limit)
                .await?;
            let page = page.expect("a table");
            assert!(page.heads.len() <= limit);
            for head in page.heads {
                assert!(division.has_head(share, &head.key), "{head:?} of {share:?}");
                let duplicate = heads.insert(head.key.clone(), head);
                assert_eq!(duplicate, None, "no head is returned twice");
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    Ok(heads)
}

/// Every head is returned once with its stored values, for any page size and any number of shares.
pub async fn every_head_is_scanned_once(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    let none = views.scan_heads(VIEW, ScanShare::ALL, None, 9).await?;
    assert!(none.is_none(), "a view that was never created has no table");
    views.ensure_view(PLAYS, &board_shape(VIEW)).await?;
    assert_eq!(scan_heads(views, 1, 9).await?, BTreeMap::new());
    let run = seal_run(views, 1).await?;
    let key = |n: u32| n.to_be_bytes().to_vec();
    let new_versions = |numbers: &mut dyn Iterator<Item = u32>, prefix: &str| -> Vec<NewVersion> {
        let root = |n: u32| format!("{prefix} {n}").into_bytes();
        numbers.map(|n| new_version(key(n), root(n))).collect()
    };
    let first = new_versions(&mut (0..400), "first");
    views
        .publish_versions(PLAYS, VIEW, 1, run.stamp_us, &first)
        .await?;
    let stamp_us = views
        .begin_publishing(PLAYS, 1, &results(&[VIEW]), 1)
        .await?;
    let second = new_versions(&mut (0..400).step_by(7), "second");
    views
        .publish_versions(PLAYS, VIEW, 1, stamp_us, &second)
        .await?;
    let head = |n: u32| {
        let (prefix, stamp_us) = if n.is_multiple_of(7) {
            ("second", stamp_us)
        } else {
            ("first", run.stamp_us)
        };
        let head = ScannedHead {
            key: key(n),
            epoch: 1,
            root: format!("{prefix} {n}").into(),
            stamp_us: Some(stamp_us),
        };
        (key(n), head)
    };
    let expected: BTreeMap<Vec<u8>, ScannedHead> = (0..400).map(head).collect();
    for (share_count, limit) in [
        (1, 1),
        (1, 7),
        (1, 1_000),
        (2, 50),
        (5, 3),
        (64, 4),
        (200, 1_000),
    ] {
        let actual = scan_heads(views, share_count, limit).await?;
        assert_eq!(actual, expected, "{share_count} shares, pages of {limit}");
    }
    heads_written_during_a_scan(views, &expected).await
}

/// Heads that are added during a scan cause no existing head to be missed or returned twice.
async fn heads_written_during_a_scan(
    views: &dyn ViewsWrite,
    expected: &BTreeMap<Vec<u8>, ScannedHead>,
) -> Result<()> {
    let (mut keys, mut after) = (BTreeSet::new(), None);
    for round in 0_u32.. {
        let position: Option<Vec<u8>> = after.take();
        let page = views.scan_heads(VIEW, ScanShare::ALL, position.as_deref(), 90);
        let page = page.await?.expect("a table");
        for head in page.heads {
            assert!(keys.insert(head.key), "no head is returned twice");
        }
        after = page.next;
        if after.is_none() {
            break;
        }
        let stamp_us = views
            .begin_publishing(PLAYS, 1, &results(&[VIEW]), 1)
            .await?;
        let new_heads = [7 * round, 1_000 + round];
        let new_heads = new_heads.map(|n| new_version(n.to_be_bytes().to_vec(), b"third".to_vec()));
        views
            .publish_versions(PLAYS, VIEW, 1, stamp_us, &new_heads)
            .await?;
    }
    assert!(expected.keys().all(|key| keys.contains(key)));
    Ok(())
}

/// A page is limited to some megabytes, for any row limit.
pub async fn pages_are_bounded_in_bytes(ports: &Stores) -> Result<()> {
    const LARGE: usize = 20_000;
    let views = &*ports.views;
    views.ensure_view(PLAYS, &shape(VIEW).into()).await?;
    let run = seal_run(views, 1).await?;
    let numbers = || 0..500_usize;
    let row = |n: usize| [format!("{n:04}").into_bytes(), vec![0; LARGE]].concat();
    let load = NewRows {
        partitions: binary(numbers().map(|n| [u8::from(n >= 250)])),
        rows: binary(numbers().map(row)),
        counts: numbers().map(|_| Some(1)).collect::<Int64Array>(),
    };
    views.publish(PLAYS, VIEW, 1, run.stamp_us, &load).await?;
    let (mut scanned, mut after, mut pages) = (RowsByKey::default(), None, 0);
    loop {
        let page = page(views, ScanShare::ALL, after.as_ref(), 100_000).await?;
        assert!(page.counts.len() * LARGE < 5 << 20, "{}", page.counts.len());
        scanned.add(&page);
        pages += 1;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(scanned.0.len(), numbers().count());
    assert!(pages >= 3, "{pages}");
    Ok(())
}

/// An aggregate view has no heads, and a board has no rows.
pub async fn wrong_view_kinds_are_refused(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    views.ensure_view(PLAYS, &shape(VIEW).into()).await?;
    views.ensure_view(PLAYS, &board_shape(OTHER_VIEW)).await?;
    let heads = views.scan_heads(VIEW, ScanShare::ALL, None, 9).await;
    assert_refused(heads, "it is an aggregate view");
    let rows = views.scan_rows(OTHER_VIEW, ScanShare::ALL, None, 9).await;
    let message = rows.as_ref().err().map(ToString::to_string);
    assert!(message.is_some_and(|message| message.contains("scan its heads")));
    assert_refused(rows, "it is a view of boards");
    Ok(())
}
