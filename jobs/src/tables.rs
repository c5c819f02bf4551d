//! Names of the tables of a view.
//!
//! A backfill adds past events that have no offset in the log. Rows before and after it must not be
//! summed together, so each backfill starts a new table. The new table is filled while the old one
//! serves, and replaces it when its run completes.
//!
//! An erasure of a person starts a new table, too. Row keys contain listeners, and rows are never
//! deleted individually. The new table does not contain the person, and the old one is deleted as a
//! whole.

use std::collections::BTreeMap;

use schemas::key::{KeyColumn, KeyError, KeyKind, KeyShape, KeyValue};
use schemas::seam::Epoch;

/// The table of a view that readers use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewTable {
    /// The name of the table.
    pub name: String,
    /// The newest complete epoch; 0 if there is none.
    pub newest: Epoch,
    /// The generation of the table.
    pub generation: TableGeneration,
}

/// The backfills and erasures that a table includes. Neither number decreases, so the larger of two
/// generations is the later one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableGeneration {
    /// The number of backfills that are included.
    pub backfills: u64,
    /// The number of the last erasure that is applied; 0 if there is none.
    pub erasures: u64,
}

/// Returns the name of the table of a view (`name@version`) for a generation.
#[must_use]
pub fn table_name(view: &str, generation: TableGeneration) -> String {
    let mut name = view.to_owned();
    for (prefix, number) in [(".b", generation.backfills), (".e", generation.erasures)] {
        if number > 0 {
            name += &format!("{prefix}{number}");
        }
    }
    name
}

/// Returns the name of the drift table: by row key and first compared epoch, the live count minus
/// the batch count. An erasure starts a new one.
#[must_use]
pub fn drift_table_name(view: &str, generation: TableGeneration) -> String {
    match generation.erasures {
        0 => format!("{view}.kept"),
        erasures => format!("{view}.kept{erasures}"),
    }
}

/// Returns the columns of the drift table's row key.
#[must_use]
pub fn drift_row_shape(row: &KeyShape) -> KeyShape {
    let mut columns = row.0.clone();
    columns.push(KeyColumn {
        name: "epoch".to_owned(),
        kind: KeyKind::Int,
        nullable: false,
    });
    KeyShape(columns)
}

/// Encodes a row key of the drift table.
///
/// # Errors
/// [`KeyError`] if the epoch can't be encoded.
pub fn encode_drift_key(row: &[u8], epoch: Epoch) -> Result<Vec<u8>, KeyError> {
    let epoch = KeyValue::Int(epoch.cast_signed());
    let epoch = drift_row_shape(&KeyShape::default()).encode_values(&[epoch])?;
    Ok([row, &epoch].concat())
}

/// Decodes a row key of the drift table into a row key of the view and the epoch.
///
/// # Errors
/// [`KeyError`] if it does not decode.
pub fn decode_drift_key(key: &[u8]) -> Result<(&[u8], Epoch), KeyError> {
    let (row, epoch) = key
        .split_last_chunk::<8>()
        .ok_or_else(|| KeyError::Damaged("epoch".to_owned()))?;
    let values = drift_row_shape(&KeyShape::default()).decode_values(epoch)?;
    let epoch = match values.first() {
        Some(KeyValue::Int(epoch)) => *epoch,
        _ => 0,
    };
    Ok((row, epoch.cast_unsigned()))
}

/// Finds the table of a view that readers use: the latest generation with a complete run.
#[must_use]
pub fn find_table_to_read(newest: &BTreeMap<String, Epoch>, view: &str) -> ViewTable {
    let tables = newest
        .range(view.to_owned()..)
        .take_while(|(name, _)| name.starts_with(view));
    let generations =
        tables.filter_map(|(name, newest)| Some((parse_generation(name, view)?, *newest)));
    let (generation, newest) = generations
        .filter(|(_, newest)| *newest > 0)
        .max()
        .unwrap_or_default();
    ViewTable {
        name: table_name(view, generation),
        newest,
        generation,
    }
}

/// Finds the latest table with the same backfills and fewer erasures than a generation.
#[must_use]
pub fn find_table_before_erasure<'a>(
    tables: impl Iterator<Item = &'a String>,
    view: &str,
    generation: TableGeneration,
) -> Option<&'a String> {
    let generations = tables.filter_map(|name| Some((parse_generation(name, view)?, name)));
    let earlier = generations.filter(|(other, _)| {
        other.backfills == generation.backfills && other.erasures < generation.erasures
    });
    earlier.max().map(|(_, name)| name)
}

/// Parses the generation of a table; `None` for a table of another view.
fn parse_generation(table: &str, view: &str) -> Option<TableGeneration> {
    let rest = table.strip_prefix(view)?;
    let (rest, erasures) = match rest.split_once(".e") {
        Some((rest, erasures)) => (rest, erasures.parse().ok()?),
        None => (rest, 0),
    };
    let backfills = match rest {
        "" => 0,
        rest => rest.strip_prefix(".b")?.parse().ok()?,
    };
    Some(TableGeneration {
        backfills,
        erasures,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_generation_is_read() {
        let newest = |tables: &[(&str, Epoch)]| {
            let tables = tables
                .iter()
                .map(|(name, epoch)| ((*name).to_owned(), *epoch));
            let table = find_table_to_read(&tables.collect(), "v@1");
            (
                table.name,
                table.newest,
                (table.generation.backfills, table.generation.erasures),
            )
        };
        assert_eq!(newest(&[]), ("v@1".to_owned(), 0, (0, 0)));
        let tables = [("v@1", 3), ("v@10", 9)];
        assert_eq!(newest(&tables), ("v@1".to_owned(), 3, (0, 0)));
        let tables = [
            ("v@1", 3),
            ("v@1.b2", 4),
            ("v@1.b10", 5),
            ("v@1.c", 9),
            ("w@1.b11", 9),
            ("v@1.kept", 11),
            ("v@1.kept12", 11),
            ("v@1.e7", 6),
        ];
        assert_eq!(newest(&tables), ("v@1.b10".to_owned(), 5, (10, 0)));
        let tables = [("v@1.b2", 4), ("v@1.b2.e3", 5), ("v@1.b2.e12", 6)];
        assert_eq!(newest(&tables), ("v@1.b2.e12".to_owned(), 6, (2, 12)));
        assert_eq!(newest(&[("v@1", 3), ("v@1.e7", 6)]).0, "v@1.e7");
        assert_eq!(
            newest(&[("v@1", 3), ("v@1.b1", 0)]),
            ("v@1".to_owned(), 3, (0, 0))
        );
    }

    #[test]
    fn an_erasure_follows_the_previous_generation() {
        let tables = ["v@1", "v@1.b1.e2", "v@1.b1.e5", "v@1.b2", "v@1.kept2"];
        let tables = tables.map(str::to_owned);
        let before = |backfills, erasures| {
            let generation = TableGeneration {
                backfills,
                erasures,
            };
            find_table_before_erasure(tables.iter(), "v@1", generation).map(String::as_str)
        };
        assert_eq!(before(1, 9), Some("v@1.b1.e5"));
        assert_eq!(before(1, 5), Some("v@1.b1.e2"));
        assert_eq!(before(1, 2), None, "a backfill was added since");
        assert_eq!(before(0, 1), Some("v@1"));
        assert_eq!(before(0, 0), None);
    }

    #[test]
    fn a_drift_key_is_a_row_key_with_an_epoch() {
        for (row, epoch) in [(&b""[..], 0), (b"abc", 1), (b"\0\xff", 1 << 40)] {
            let key = encode_drift_key(row, epoch).unwrap();
            assert_eq!(decode_drift_key(&key).unwrap(), (row, epoch));
            // A range of rows is a range of drift keys.
            assert!(key.starts_with(row));
        }
        assert!(decode_drift_key(b"short").is_err());
    }
}
