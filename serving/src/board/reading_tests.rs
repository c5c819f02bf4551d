use schemas::source::Source;

use super::*;

fn row(member: u8) -> RankedEntry {
    RankedEntry {
        member: vec![member],
        score: Vec::new(),
        payload: Vec::new(),
        weight: 2,
    }
}

/// Memory depends on the requested rows, not on the length of the board.
#[test]
fn filtered_rows_keep_only_selected_rows() {
    let around = |member: u8, around| BoardSelection::Around {
        member: vec![member],
        around,
    };
    let page = |offset, limit| BoardSelection::Page { offset, limit };
    let after = |member: u8, limit| BoardSelection::After {
        score: Vec::new(),
        member: vec![member],
        limit,
    };
    for (selection, rows_max, first, members) in [
        (BoardSelection::TotalsOnly, 0, 0, 0..0),
        (page(0, 5), 5, 0, 0..5),
        (page(97, 5), 3, 97, 97..100),
        (page(100, 5), 0, 100, 0..0),
        (after(0, 5), 5, 1, 1..6),
        (after(96, 5), 3, 97, 97..100),
        (after(99, 5), 0, 100, 0..0),
        (around(0, 3), 4, 0, 0..4),
        (around(2, 3), 6, 0, 0..6),
        (around(50, 3), 7, 47, 47..54),
        (around(98, 3), 5, 95, 95..100),
        (around(50, 0), 1, 50, 50..51),
        (around(200, 3), 3, 0, 0..0),
    ] {
        let mut filtered = FilteredRows::new(selection);
        for member in 0..100 {
            filtered.add(row(member), member == 99);
            assert!(
                filtered.rows.len() <= rows_max,
                "{} rows are in caches",
                filtered.rows.len()
            );
        }
        let reading = filtered.finish();
        assert_eq!((reading.sum.count, reading.sum.weight), (100, 200));
        assert_eq!(reading.layers, (true, true));
        let rows: Vec<RankedEntry> = members.map(row).collect();
        assert_eq!((reading.first_index, reading.rows), (first, rows));
    }
}

/// Keys that were read separately report their own position; completeness needs all of them.
#[test]
fn each_board_reports_its_own_position() {
    let position = |offset, complete| ReadPosition {
        position: vec![offset],
        complete,
        ..ReadPosition::empty(Source::Plays, 1)
    };
    for complete in [true, false] {
        let separate = BoardReading {
            own_position: Some(Arc::new(position(9, true))),
            ..BoardReading::default()
        };
        let reading = BoardsReading {
            boards: vec![separate, BoardReading::default()],
            read_position: position(5, complete),
        };
        let positions: Vec<ReadPosition> = reading
            .boards_with_positions()
            .map(|(_, position)| position)
            .collect();
        assert_eq!(positions, [position(9, complete), position(5, complete)]);
    }
}
