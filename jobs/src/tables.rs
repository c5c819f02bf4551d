//! What the tables of a view are called.
//!
//! A backfill changes what the events of the past are, without any of them having a place in the log.
//! Rows from before it and rows with it must not be added up, so each backfill begins a table of its
//! own: it is filled while the one before serves, and takes its place when its run is complete.

use std::collections::BTreeMap;

use schemas::seam::Epoch;

/// The table of a view that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// Its newest complete epoch; 0 if there is none.
    pub newest: Epoch,
    /// How many backfills its rows hold.
    pub backfills: u64,
}

/// The name of the table of a view (`name@version`) whose rows hold so many backfills.
#[must_use]
pub fn table_name(view: &str, backfills: u64) -> String {
    if backfills == 0 {
        return view.to_owned();
    }
    format!("{view}.b{backfills}")
}

/// The table to read of a view: of those that have a complete run, the one that holds most backfills.
#[must_use]
pub fn table_to_read(newest: &BTreeMap<String, Epoch>, view: &str) -> Table {
    let tables = newest
        .range(view.to_owned()..)
        .take_while(|(name, _)| name.starts_with(view));
    let found = tables.filter_map(|(name, newest)| Some((backfills(name, view)?, *newest)));
    let (backfills, newest) = found
        .filter(|(_, newest)| *newest > 0)
        .max()
        .unwrap_or((0, 0));
    Table {
        name: table_name(view, backfills),
        newest,
        backfills,
    }
}

/// How many backfills a table holds; nothing for the table of another view.
fn backfills(table: &str, view: &str) -> Option<u64> {
    let rest = table.strip_prefix(view)?;
    if rest.is_empty() {
        return Some(0);
    }
    rest.strip_prefix(".b")?.parse().ok()
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
            (table.name, table.newest, table.backfills)
        };
        assert_eq!(newest(&[]), ("v@1".to_owned(), 0, 0));
        assert_eq!(newest(&[("v@1", 3), ("v@10", 9)]), ("v@1".to_owned(), 3, 0));
        let tables = [
            ("v@1", 3),
            ("v@1.b2", 4),
            ("v@1.b10", 5),
            ("v@1.c", 9),
            ("w@1.b11", 9),
        ];
        assert_eq!(newest(&tables), ("v@1.b10".to_owned(), 5, 10));
        assert_eq!(
            newest(&[("v@1", 3), ("v@1.b1", 0)]),
            ("v@1".to_owned(), 3, 0)
        );
    }
}
