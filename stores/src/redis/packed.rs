//! Packs the rows of several views into one string: the storage of small groups.
//!
//! For a server, the overhead of a command exceeds the cost of its work, and most micro-batches add
//! only one or two rows to each of many groups. So views with the same group columns share one
//! string per group. A micro-batch appends to it without reading it.
//!
//! A string is a sequence of segments: number of the view, size of its rows in bytes, rows. A row
//! is the length of its key, the key, and the increment (zigzag). Numbers are in LEB128. A row may
//! occur several times; its increments are summed.

use std::ops::Range;

use schemas::leb128;

/// The size at which a string is full. Then its rows move to chunks of their views. This bounds the
/// size of a string, and so the rows of other views that a read of one view transfers.
pub(super) const FULL_BYTES: usize = 4_096;

/// The approximate size of a chunk.
const CHUNK_BYTES: usize = 4_096;

/// The maximum absolute value of a packed increment. Larger ones are added to hashes, whose sums
/// are checked. A string has too few rows for a sum of smaller ones to exceed 64 bits.
const COUNT_MAX: u64 = 1 << 31;

/// The maximum number of views that share strings. A read of one view parses the segments of all.
pub(super) const VIEWS_MAX: usize = 64;

/// Returns whether an increment may be packed.
pub(super) const fn is_short(count: i64) -> bool {
    count.unsigned_abs() <= COUNT_MAX
}

/// Adds a row to a segment.
pub(super) fn put_row(segment: &mut Vec<u8>, row: &[u8], count: i64) {
    leb128::write_bytes(segment, row);
    let zigzag = (count.cast_unsigned() << 1) ^ (count >> 63).cast_unsigned();
    leb128::write(segment, zigzag);
}

/// Adds the rows of the view with this number to a string.
pub(super) fn put_segment(string: &mut Vec<u8>, view: usize, rows: &[u8]) {
    leb128::write(string, view as u64);
    leb128::write_bytes(string, rows);
}

/// Iterates over the rows of a segment.
pub(super) fn rows(segment: &[u8]) -> Rows<'_> {
    Rows { left: segment }
}

/// Rows in the order of their keys, each once.
pub(super) type Sums<'a> = Vec<(&'a [u8], i64)>;

/// Sums the rows of segments or chunks. Returns `None` if one does not decode, or if a sum exceeds
/// 64 bits.
pub(super) fn summed<'a>(packed: impl IntoIterator<Item = &'a [u8]>) -> Option<Sums<'a>> {
    let all = packed.into_iter().flat_map(rows);
    let mut sums = all.collect::<Option<Sums<'a>>>()?;
    if sums.is_sorted_by(|(one, _), (next, _)| one < next) {
        return Some(sums);
    }
    sums.sort_unstable_by_key(|(row, _)| *row);
    let mut is_summed = true;
    sums.dedup_by(|(more, count), (row, sum)| {
        let is_same = more == row;
        if is_same {
            let both = sum.checked_add(*count);
            is_summed &= both.is_some();
            *sum = both.unwrap_or(*sum);
        }
        is_same
    });
    is_summed.then_some(sums)
}

/// Sums the rows of a view in a string. Returns `None` if the string does not decode.
pub(super) fn rows_of(string: &[u8], view: usize) -> Option<Sums<'_>> {
    let of_view = segments(string).filter_map(|segment| match segment {
        Some((number, rows)) => (number == view).then_some(Some(rows)),
        None => Some(None),
    });
    summed(of_view.collect::<Option<Vec<&[u8]>>>()?)
}

/// Iterates over the segments of a string, each with the number of its view. A segment that does
/// not decode is `None`, and ends the iteration.
pub(super) fn segments(string: &[u8]) -> impl Iterator<Item = Option<(usize, &[u8])>> {
    let mut left = string;
    std::iter::from_fn(move || {
        if left.is_empty() {
            return None;
        }
        let segment = take_segment(&mut left);
        if segment.is_none() {
            left = &[];
        }
        Some(segment)
    })
}

fn take_segment<'a>(left: &mut &'a [u8]) -> Option<(usize, &'a [u8])> {
    let number = leb128::read(left).ok()?;
    let packed = leb128::read_bytes(left).ok()?;
    Some((usize::try_from(number).ok()?, packed))
}

/// Packs rows into chunks.
pub(super) fn chunks(rows: Sums<'_>) -> Vec<Vec<u8>> {
    let mut chunks: Vec<Vec<u8>> = Vec::new();
    for (row, count) in rows {
        match chunks.last_mut() {
            Some(chunk) if chunk.len() < CHUNK_BYTES => put_row(chunk, row, count),
            _ => {
                let mut chunk = Vec::new();
                put_row(&mut chunk, row, count);
                chunks.push(chunk);
            }
        }
    }
    chunks
}

/// Iterates over rows. A row that does not decode is `None`, and ends the iteration.
#[derive(Debug)]
pub(super) struct Rows<'a> {
    left: &'a [u8],
}

impl<'a> Iterator for Rows<'a> {
    type Item = Option<(&'a [u8], i64)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left.is_empty() {
            return None;
        }
        let row = take_row(&mut self.left);
        if row.is_none() {
            self.left = &[];
        }
        Some(row)
    }
}

fn take_row<'a>(left: &mut &'a [u8]) -> Option<(&'a [u8], i64)> {
    let row = leb128::read_bytes(left).ok()?;
    let zigzag = leb128::read(left).ok()?;
    let count = (zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed();
    Some((row, count))
}

/// The increments of a micro-batch for views with the same group columns: segments by group, in one
/// buffer.
#[derive(Debug, Default)]
pub(super) struct Groups {
    bytes: Vec<u8>,
    /// By segment: the index of the view in the micro-batch, and the range of its rows in `bytes`.
    segments: Vec<(usize, Range<usize>)>,
    /// By group: the range of its key in `bytes`, and of its segments in `segments`.
    groups: Vec<(Range<usize>, Range<usize>)>,
}

/// The key of a group and its segments: index of the view, and rows.
pub(super) type GroupSegments<'a> = (&'a [u8], Vec<(usize, &'a [u8])>);

impl Groups {
    /// Collects rows that are ordered by group, and within a group by view.
    pub(super) fn from_sorted<'a>(
        rows: impl Iterator<Item = (&'a [u8], usize, &'a [u8], i64)>,
    ) -> Self {
        let mut groups = Self::default();
        for (group, view, row, count) in rows {
            groups.put(group, view, row, count);
        }
        groups
    }

    fn put(&mut self, group: &[u8], view: usize, row: &[u8], count: i64) {
        let bytes = |range: &Range<usize>| self.bytes.get(range.clone()).unwrap_or_default();
        let is_same = self
            .groups
            .last()
            .is_some_and(|(key, _)| bytes(key) == group);
        if !is_same {
            let key = self.bytes.len()..self.bytes.len() + group.len();
            self.bytes.extend_from_slice(group);
            let first = self.segments.len();
            self.groups.push((key, first..first));
        }
        let Some((_, segments)) = self.groups.last_mut() else {
            return;
        };
        let is_same = segments.start < segments.end
            && self.segments.last().is_some_and(|(of, _)| *of == view);
        if !is_same {
            let from = self.bytes.len();
            self.segments.push((view, from..from));
            segments.end += 1;
        }
        put_row(&mut self.bytes, row, count);
        if let Some((_, rows)) = self.segments.last_mut() {
            rows.end = self.bytes.len();
        }
    }

    /// Iterates over the keys of the groups.
    pub(super) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let keys = self.groups.iter();
        keys.map(|(key, _)| self.bytes.get(key.clone()).unwrap_or_default())
    }

    /// Iterates over the groups with their segments.
    pub(super) fn each(&self) -> impl Iterator<Item = GroupSegments<'_>> {
        let bytes = |range: &Range<usize>| self.bytes.get(range.clone()).unwrap_or_default();
        self.groups.iter().map(move |(key, segments)| {
            let segments = self.segments.get(segments.clone()).unwrap_or_default();
            let segments = segments.iter().map(|(view, rows)| (*view, bytes(rows)));
            (bytes(key), segments.collect())
        })
    }
}

/// Increments for the views that have the same group columns.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: String,
    pub(super) views: Vec<String>,
    pub(super) groups: Groups,
    /// True if an increment is too large to be packed.
    pub(super) is_long: bool,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn strings_give_what_was_appended(
            rows in prop::collection::vec((0_u8..3, 0_usize..4, ".{0,3}", any::<i32>()), 0..60)
        ) {
            let mut sorted: Vec<_> = rows.iter().map(|(group, view, row, count)| {
                (std::slice::from_ref(group), *view, row.as_bytes(), i64::from(*count))
            }).collect();
            sorted.sort();
            let groups = Groups::from_sorted(sorted.iter().copied());
            let mut strings: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
            // Appends everything twice. The number of a view differs from its index.
            for (group, segments) in groups.each().chain(groups.each()) {
                for (view, rows) in segments {
                    put_segment(strings.entry(group.to_vec()).or_default(), 3 - view, rows);
                }
            }
            prop_assert_eq!(strings.len(), groups.each().count());
            for (group, string) in &strings {
                for view in 0..4 {
                    let mut expected: BTreeMap<&[u8], i64> = BTreeMap::new();
                    for (of, at, row, count) in &sorted {
                        if of == group && *at == view {
                            *expected.entry(row).or_default() += 2 * count;
                        }
                    }
                    let expected: Sums<'_> = expected.into_iter().collect();
                    prop_assert_eq!(rows_of(string, 3 - view), Some(expected));
                }
            }
        }

        #[test]
        fn other_strings_are_no_panic(string in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = rows_of(&string, 0);
        }
    }

    #[test]
    fn numbers_of_64_bits_come_back() {
        for count in [0, 1, -1, i64::MAX, i64::MIN] {
            let mut segment = Vec::new();
            put_row(&mut segment, b"r", count);
            assert_eq!(rows(&segment).next(), Some(Some((&b"r"[..], count))));
        }
        assert!(is_short(-(1 << 31)) && !is_short(1 << 32) && !is_short(i64::MIN));
    }
}
