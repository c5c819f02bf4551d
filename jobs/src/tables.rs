//! What the tables of a view are called.
//!
//! A backfill changes what the events of the past are, without any of them having a place in the log.
//! Rows from before it and rows with it must not be added up, so each backfill begins a table of its
//! own: it is filled while the one before serves, and takes its place when its run is complete.
//! So does the erasure of somebody: a row names its listener in its key, and a row never goes away. Of the
//! new table's rows none does, and the one before is deleted as a whole.

use std::collections::BTreeMap;

use schemas::key::{KeyColumn, KeyError, KeyKind, KeyShape, KeyValue};
use schemas::seam::Epoch;

/// The table of a view that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// Its newest complete epoch; 0 if there is none.
    pub newest: Epoch,
    /// What its rows are of.
    pub of: Generation,
}

/// What the rows of a table are of, which changes otherwise than by the log. Neither number ever falls, so
/// of two generations the larger one is the later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Generation {
    /// How many backfills they hold.
    pub backfills: u64,
    /// The number of the last erasure of somebody whom they don't name; 0 if there is none.
    pub erasures: u64,
}

/// The name of the table of a view (`name@version`) whose rows are of a generation.
#[must_use]
pub fn table_name(view: &str, of: Generation) -> String {
    let mut name = view.to_owned();
    for (mark, number) in [(".b", of.backfills), (".e", of.erasures)] {
        if number > 0 {
            name += &format!("{mark}{number}");
        }
    }
    name
}

/// The name of the table that keeps what live state counted otherwise than the batch layer: by row key
/// and the first epoch of those that a run compared, how much more it was. After an erasure it begins anew.
#[must_use]
pub fn kept_name(view: &str, of: Generation) -> String {
    match of.erasures {
        0 => format!("{view}.kept"),
        erasures => format!("{view}.kept{erasures}"),
    }
}

/// The row keys of that table.
#[must_use]
pub fn kept_row(row: &KeyShape) -> KeyShape {
    let mut columns = row.0.clone();
    columns.push(KeyColumn {
        name: "epoch".to_owned(),
        kind: KeyKind::Int,
        nullable: false,
    });
    KeyShape(columns)
}

/// The row key of that table for a row key of the view.
///
/// # Errors
/// [`KeyError`] if the epoch is none.
pub fn kept_key(row: &[u8], epoch: Epoch) -> Result<Vec<u8>, KeyError> {
    let epoch = KeyValue::Int(epoch.cast_signed());
    let epoch = kept_row(&KeyShape::default()).encode_values(&[epoch])?;
    Ok([row, &epoch].concat())
}

/// The row key of the view and the epoch in a row key of that table.
///
/// # Errors
/// [`KeyError`] if it is none.
pub fn of_kept_key(key: &[u8]) -> Result<(&[u8], Epoch), KeyError> {
    let (row, epoch) = key
        .split_last_chunk::<8>()
        .ok_or_else(|| KeyError::Damaged("epoch".to_owned()))?;
    let values = kept_row(&KeyShape::default()).decode_values(epoch)?;
    let epoch = match values.first() {
        Some(KeyValue::Int(epoch)) => *epoch,
        _ => 0,
    };
    Ok((row, epoch.cast_unsigned()))
}

/// The table to read of a view: of those that have a complete run, the one of the latest generation.
#[must_use]
pub fn table_to_read(newest: &BTreeMap<String, Epoch>, view: &str) -> Table {
    let tables = newest
        .range(view.to_owned()..)
        .take_while(|(name, _)| name.starts_with(view));
    let found = tables.filter_map(|(name, newest)| Some((generation(name, view)?, *newest)));
    let (of, newest) = found
        .filter(|(_, newest)| *newest > 0)
        .max()
        .unwrap_or_default();
    Table {
        name: table_name(view, of),
        newest,
        of,
    }
}

/// Of some tables of a view the one of the last generation before `of` that differs from it only in who is not in it.
#[must_use]
pub fn before_erasure<'a>(
    tables: impl Iterator<Item = &'a String>,
    view: &str,
    of: Generation,
) -> Option<&'a String> {
    let found = tables.filter_map(|name| Some((generation(name, view)?, name)));
    let found =
        found.filter(|(other, _)| other.backfills == of.backfills && other.erasures < of.erasures);
    found.max().map(|(_, name)| name)
}

/// The generation of a table; nothing for the table of another view.
fn generation(table: &str, view: &str) -> Option<Generation> {
    let rest = table.strip_prefix(view)?;
    let (rest, erasures) = match rest.split_once(".e") {
        Some((rest, erasures)) => (rest, erasures.parse().ok()?),
        None => (rest, 0),
    };
    let backfills = match rest {
        "" => 0,
        rest => rest.strip_prefix(".b")?.parse().ok()?,
    };
    Some(Generation {
        backfills,
        erasures,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_with_most_backfills_is_read() {
        let newest = |tables: &[(&str, Epoch)]| {
            let tables = tables
                .iter()
                .map(|(name, epoch)| ((*name).to_owned(), *epoch));
            let table = table_to_read(&tables.collect(), "v@1");
            (
                table.name,
                table.newest,
                (table.of.backfills, table.of.erasures),
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
    fn an_erasure_follows_the_one_before() {
        let tables = ["v@1", "v@1.b1.e2", "v@1.b1.e5", "v@1.b2", "v@1.kept2"];
        let tables = tables.map(str::to_owned);
        let before = |backfills, erasures| {
            let of = Generation {
                backfills,
                erasures,
            };
            before_erasure(tables.iter(), "v@1", of).map(String::as_str)
        };
        assert_eq!(before(1, 9), Some("v@1.b1.e5"));
        assert_eq!(before(1, 5), Some("v@1.b1.e2"));
        assert_eq!(before(1, 2), None, "a backfill has come in since");
        assert_eq!(before(0, 1), Some("v@1"));
        assert_eq!(before(0, 0), None);
    }

    #[test]
    fn a_kept_key_is_a_row_key_with_an_epoch() {
        for (row, epoch) in [(&b""[..], 0), (b"abc", 1), (b"\0\xff", 1 << 40)] {
            let key = kept_key(row, epoch).unwrap();
            assert_eq!(of_kept_key(&key).unwrap(), (row, epoch));
            // A range of rows is a range of these.
            assert!(key.starts_with(row));
        }
        assert!(of_kept_key(b"short").is_err());
    }
}
