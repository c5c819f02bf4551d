//! Fewer files in the place of many: each run appends one to the archive, however little has come, so a year of runs every
//! minute would be half a million of them, which each run has to list and open.
//!
//! Neighbours with little in them are written once more as one file, whose manifest counts in their place from the moment
//! on at which a record names it ([`super::merged`]). Only what the published results hold is merged, so that no run looks
//! for what came since in it; only files whose newest days lie close together, so that none goes later than it may because of
//! others; and only what has as many events after it as it has itself, so that a file doubles each time, and an event is written a
//! few times and not again and again.

use std::ops::Range;

use arrow::array::RecordBatch;
use arrow::compute::{concat_batches, take_record_batch};
use futures::TryStreamExt;
use schemas::clock::Clock;
use schemas::plays;
use schemas::seam::Cut;
use schemas::source::Source;
use schemas::time::day_of;
use stores::archive::Archive;
use stores::erasures::Suppressed;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::manifest::{Manifest, read_all};
use super::merged::{Merged, Replaced, merged, merged_folder};
use super::reduced::{event_objects, take_reduced};
use super::without;
use super::write::{by_day, encoded};
use crate::run::go_on;
use crate::{Error, Result};

/// So many neighbours become one at least: fewer would be written again too often.
const MERGED_MIN: usize = 8;
/// So many of the newest stay, since archivers go on from them.
const NEWEST: usize = 2;
/// So many files are written by one run, at most: it is not to take long.
const FILES_MAX: usize = 8;
/// So many files are read by one run, at most.
const READ_MAX: usize = 1_024;
/// The newest days of files that are merged lie within so many: then they can be let go nearly as soon as each of them. More than
/// [`MERGED_MIN`], since some run once a day.
const DAYS_MAX: i64 = 14;
const BATCH_ROWS: usize = 32_768;

/// What is merged.
#[derive(Clone, Copy)]
pub(crate) struct MergeLimits<'a> {
    /// What lies below these cuts.
    pub(crate) cuts: &'a [Cut],
    /// How large a merged file may become.
    pub(crate) size: MergedSize,
    /// The clock.
    pub(crate) clock: &'a dyn Clock,
    /// What others have stood for since before this moment is deleted already.
    pub(crate) deleted_before_ms: i64,
}

/// How large a merged file may become.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MergedSize {
    /// Events, at most.
    pub(crate) rows_max: u64,
    /// Bytes of the files that it stands for, at most.
    pub(crate) bytes_max: u64,
}

/// Merges files of a source; answers how many became how many. Without the lease of the source it may have been for nothing.
///
/// # Errors
/// Those of the archive, and [`Error::Damaged`] if a file does not hold what its manifest says. Nothing is lost.
pub(crate) async fn merge(
    archive: &Archive,
    source: Source,
    limits: MergeLimits<'_>,
    suppressed: &Suppressed,
    stop: &CancellationToken,
) -> Result<(usize, usize)> {
    let before = merged(archive, source).await?;
    let manifests = read_all(archive, source).await?;
    let (readable, _) = take_reduced(archive, source, manifests.clone()).await?;
    let objects = event_objects(archive, source).await?;
    let today = day_of(limits.clock.now_ms().div_euclid(1_000));
    let mut newest_day = None;
    let parts = readable.iter().zip(&manifests).map(|(readable, named)| {
        let size = readable
            .file
            .as_ref()
            .map(|path| objects.get(path).map(|object| object.bytes));
        // Late events alone are no older file, and a wrong clock makes no newer one: neither is to keep neighbours apart.
        let newest = readable.days.keys().next_back();
        newest_day = newest_day.max(newest.map(|day| (*day).min(today)));
        Part {
            rows: readable.rows(),
            bytes: size.flatten().unwrap_or(0),
            newest_day,
            // One that was let go is told apart from the others by its name, and one that is missing is not read.
            can_be: readable.is_below(limits.cuts)
                && readable.file.is_some() == named.file.is_some()
                && size != Some(None),
        }
    });
    let parts: Vec<Part> = parts.collect();
    let mut next = Merged {
        seq: before.seq + 1,
        ..before
    };
    let (mut made, mut from) = (Vec::new(), 0);
    for group in groups(&parts, limits.size).into_iter().take(FILES_MAX) {
        let group = group.start..group.end.min(group.start + READ_MAX - from);
        let (named, readable) = (manifests.get(group.clone()), readable.get(group));
        let (Some(named), Some(readable)) = (named, readable) else {
            continue;
        };
        if named.len() < MERGED_MIN {
            break;
        }
        let name = format!(
            "{}/{:010}-{}.parquet",
            merged_folder(source),
            next.seq,
            Uuid::new_v4()
        );
        match written(archive, &name, readable, suppressed, stop).await {
            Ok(one) => made.push((named, readable, one)),
            Err(error) => {
                archive.delete(&name).await?;
                go_on(stop)?;
                // Others can be merged nevertheless.
                tracing::warn!(%source, %error, "files of the archive are not merged");
                continue;
            }
        }
        from += named.len();
    }
    go_on(stop)?;
    let into = made.len();
    next.at_ms = limits.clock.now_ms();
    next.replaced
        .retain(|replaced| replaced.at_ms >= limits.deleted_before_ms);
    for (named, readable, one) in made {
        next.replace(source, (named, readable), one);
    }
    // Where somebody else was first, what is there counts, and what was written here is dead.
    if into == 0 || !next.create(archive, source).await? {
        return Ok((0, 0));
    }
    Ok((from, into))
}

impl Merged {
    /// Notes that one manifest stands for some.
    fn replace(
        &mut self,
        source: Source,
        (named, readable): (&[Manifest], &[Manifest]),
        one: Manifest,
    ) {
        let at_ms = self.at_ms;
        for (named, readable) in named.iter().zip(readable) {
            let single = named.first.is_none().then(|| named.path(source));
            let mut paths = vec![single, named.file.clone()];
            if readable.file != named.file {
                paths.push(readable.file.clone());
            }
            let paths = paths.into_iter().flatten();
            self.replaced
                .extend(paths.map(|path| Replaced { path, at_ms }));
        }
        self.manifests
            .retain(|known| known.seq < one.first() || known.seq > one.seq);
        let place = self.manifests.partition_point(|known| known.seq < one.seq);
        self.manifests.insert(place, one);
    }
}

/// What is to be known of a file to choose it.
#[derive(Debug, Clone, Copy)]
struct Part {
    rows: u64,
    bytes: u64,
    newest_day: Option<i64>,
    can_be: bool,
}

/// Neighbours that may become one.
#[derive(Debug, Clone, Default)]
struct Sum {
    rows: u64,
    bytes: u64,
    /// The earliest and the latest newest day.
    days: Option<(i64, i64)>,
}

impl Sum {
    fn with(&self, part: &Part) -> Self {
        let days = match (self.days, part.newest_day) {
            (Some((first, last)), Some(day)) => Some((first.min(day), last.max(day))),
            (days, day) => days.or(day.map(|day| (day, day))),
        };
        Self {
            rows: self.rows.saturating_add(part.rows),
            bytes: self.bytes.saturating_add(part.bytes),
            days,
        }
    }

    fn fits(&self, size: MergedSize) -> bool {
        let days = self.days.map_or(0, |(first, last)| last - first);
        self.rows <= size.rows_max && self.bytes <= size.bytes_max && days < DAYS_MAX
    }
}

/// Which neighbours become one: their places among all.
fn groups(parts: &[Part], size: MergedSize) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let end = parts.len().saturating_sub(NEWEST);
    let (mut first, mut sum) = (0, Sum::default());
    for (index, part) in parts.iter().enumerate().take(end) {
        let is_small = part.rows <= size.rows_max / 2 && part.bytes <= size.bytes_max / 2;
        let with = sum.with(part);
        if part.can_be && is_small && with.fits(size) {
            sum = with;
            continue;
        }
        groups.push(first..index);
        (first, sum) = match part.can_be && is_small {
            true => (index, Sum::default().with(part)),
            false => (index + 1, Sum::default()),
        };
    }
    groups.push(first..end);
    for group in &mut groups {
        let rows = |group: &Range<usize>| {
            let among = parts.get(group.clone()).unwrap_or_default();
            among.iter().map(|part| part.rows).sum::<u64>()
        };
        // One that is larger than all that came after it is not worth writing again.
        while group.start < group.end && rows(&(group.start..group.start + 1)) > rows(group) / 2 {
            group.start += 1;
        }
    }
    groups.retain(|group| group.len() >= MERGED_MIN);
    groups
}

/// Writes one file of what those of some manifests hold, without who is suppressed, and answers its manifest.
async fn written(
    archive: &Archive,
    name: &str,
    group: &[Manifest],
    suppressed: &Suppressed,
    stop: &CancellationToken,
) -> Result<Manifest> {
    let (Some(first), Some(last)) = (group.first(), group.last()) else {
        return Err(Error::Fault("nothing is to be merged".to_owned()));
    };
    let mut events: Vec<RecordBatch> = Vec::new();
    for manifest in group {
        let Some(path) = &manifest.file else { continue };
        go_on(stop)?;
        let days = manifest.days.values();
        let row_groups: Vec<usize> = days.flat_map(|day| day.row_groups.clone()).collect();
        let mut batches = archive.rows(path, row_groups, BATCH_ROWS).await?;
        let mut rows = 0;
        while let Some(batch) = batches.try_next().await? {
            rows += batch.num_rows() as u64;
            events.push(without(suppressed, batch));
        }
        if rows != manifest.rows() {
            let said = manifest.rows();
            let what = format!("it holds {rows} events, and its manifest says {said}");
            return Err(Error::damaged(path, what));
        }
    }
    let (events, (bytes, days)) = encoded(events).await?;
    let manifest = Manifest {
        seq: last.seq,
        first: Some(first.first()),
        from: first.from.clone(),
        to: last.to.clone(),
        file: bytes.is_some().then(|| name.to_owned()),
        days,
        rejected: group.iter().map(|manifest| manifest.rejected).sum(),
        suppressed: suppressed.newest_listener(),
    };
    if let Some(bytes) = bytes {
        archive.put(name, bytes).await?;
        verify(archive, (name, &manifest), &events).await?;
    }
    Ok(manifest)
}

/// Reads back what was written: the files that it stands for go.
async fn verify(
    archive: &Archive,
    (path, manifest): (&str, &Manifest),
    events: &[RecordBatch],
) -> Result<()> {
    let fault = |e| Error::fault("reading what was merged", e);
    let schema = plays::schema();
    let events = concat_batches(&schema, events).map_err(fault)?;
    let expected = by_day(&events);
    let mut is_same = expected.keys().eq(manifest.days.keys());
    for (day, rows) in expected {
        let Some(found) = manifest.days.get(&day) else {
            break;
        };
        let groups = found.row_groups.clone().collect();
        let found = archive.rows(path, groups, BATCH_ROWS).await?;
        let found: Vec<RecordBatch> = found.try_collect().await?;
        let found = concat_batches(&schema, &found).map_err(fault)?;
        is_same &= found == take_record_batch(&events, &rows).map_err(fault)?;
    }
    if is_same {
        return Ok(());
    }
    let what = "it was just written, and does not hold what was written";
    Err(Error::damaged(path, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: MergedSize = MergedSize {
        rows_max: 100,
        bytes_max: 1_000,
    };

    fn part(rows: u64) -> Part {
        Part {
            rows,
            bytes: rows,
            newest_day: Some(0),
            can_be: true,
        }
    }

    fn chosen(parts: &[Part], size: MergedSize) -> Vec<(usize, usize)> {
        let groups = groups(parts, size).into_iter();
        groups.map(|group| (group.start, group.end)).collect()
    }

    #[test]
    fn neighbours_with_little_become_one() {
        let small = |count: usize| vec![part(1); count];
        let of_20 = MergedSize {
            rows_max: 20,
            ..SIZE
        };
        assert_eq!(chosen(&small(9), SIZE), []);
        assert_eq!(chosen(&small(10), SIZE), [(0, 8)]);
        assert_eq!(chosen(&small(50), of_20), [(0, 20), (20, 40), (40, 48)]);
        assert_eq!(chosen(&[], of_20), []);
        let of_20_bytes = MergedSize {
            bytes_max: 20,
            ..SIZE
        };
        assert_eq!(chosen(&small(42), of_20_bytes), [(0, 20), (20, 40)]);
        // One that is large ends a row of small ones, and stays; so does one that can't be merged.
        let mut parts = small(30);
        parts[12].rows = 80;
        assert_eq!(chosen(&parts, SIZE), [(0, 12), (13, 28)]);
        parts[12] = part(1);
        parts[12].can_be = false;
        assert_eq!(chosen(&parts, SIZE), [(0, 12), (13, 28)]);
    }

    #[test]
    fn a_file_waits_until_as_much_came_after_it() {
        let grown = |since: usize| {
            let mut parts = vec![part(20)];
            parts.extend(vec![part(1); since]);
            chosen(&parts, SIZE)
        };
        assert_eq!(grown(15), [(1, 14)]);
        assert_eq!(grown(9), []);
        assert_eq!(grown(22), [(0, 21)]);
    }

    #[test]
    fn days_that_lie_apart_stay_apart() {
        let mut parts = Vec::new();
        for day in 0..20 {
            let of_day = Part {
                newest_day: Some(day),
                ..part(1)
            };
            parts.extend([of_day; 2]);
        }
        assert_eq!(chosen(&parts, SIZE), [(0, 28), (28, 38)]);
        // What holds no event is of no day.
        for part in &mut parts {
            part.newest_day = None;
        }
        assert_eq!(chosen(&parts, SIZE), [(0, 38)]);
    }

    #[test]
    fn one_stands_for_all_that_it_is_of() {
        let single = |seq: u64| Manifest {
            seq,
            file: Some(format!("f{seq}")),
            ..Manifest::default()
        };
        let one = |first, seq| Manifest {
            seq,
            first: Some(first),
            file: Some(format!("m{first}-{seq}")),
            ..Manifest::default()
        };
        let mut merged = Merged::default();
        let singles: Vec<Manifest> = (3..6).map(single).collect();
        merged.replace(Source::Plays, (&singles, &singles), one(3, 5));
        let singles: Vec<Manifest> = (0..3).map(single).collect();
        let mut scrubbed = singles.clone();
        scrubbed[1].file = Some("s1".to_owned());
        merged.replace(Source::Plays, (&singles, &scrubbed), one(0, 2));
        assert_eq!(merged.manifests, [one(0, 2), one(3, 5)]);
        let waiting: Vec<&str> = merged.waiting().collect();
        assert_eq!(waiting.len(), 13);
        assert!(waiting.contains(&"s1") && waiting.contains(&"f1"));
        let both = merged.manifests.clone();
        merged.replace(Source::Plays, (&both, &both), one(0, 5));
        assert_eq!(merged.manifests, [one(0, 5)]);
        assert_eq!(merged.waiting().count(), 15);
        assert!(merged.covers(0) && merged.covers(5) && !merged.covers(6));
    }
}
