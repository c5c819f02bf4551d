use schemas::source::Source;

use super::*;

fn row(member: u8) -> Ranked {
    Ranked {
        member: vec![member],
        score: Vec::new(),
        payload: Vec::new(),
        weight: 2,
    }
}

/// However long a board is, no more is held of it than was asked for.
#[test]
fn only_what_is_wanted_is_kept() {
    let around = |member: u8, around| BoardWant::Around {
        member: vec![member],
        around,
    };
    let page = |offset, limit| BoardWant::Page { offset, limit };
    let after = |member: u8, limit| BoardWant::After {
        score: Vec::new(),
        member: vec![member],
        limit,
    };
    for (wanted, held_max, first, members) in [
        (BoardWant::Sums, 0, 0, 0..0),
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
        let mut kept = Kept::new(wanted);
        for member in 0..100 {
            kept.take(row(member), member == 99);
            assert!(kept.rows.len() <= held_max, "{} are held", kept.rows.len());
        }
        let reading = kept.finish();
        assert_eq!((reading.sum.count, reading.sum.weight), (100, 200));
        assert_eq!(reading.layers, (true, true));
        let rows: Vec<Ranked> = members.map(row).collect();
        assert_eq!((reading.first, reading.rows), (first, rows));
    }
}

/// Keys that were read apart reach as far as each says; nothing is complete unless all is.
#[test]
fn each_board_says_how_far_it_reaches() {
    let standing = |offset, complete| Standing {
        position: vec![offset],
        complete,
        ..Standing::nothing(Source::Plays, 1)
    };
    for complete in [true, false] {
        let own = BoardReading {
            own: Some(Arc::new(standing(9, true))),
            ..BoardReading::default()
        };
        let reading = BoardsReading {
            boards: vec![own, BoardReading::default()],
            standing: standing(5, complete),
        };
        let each: Vec<Standing> = reading.each().map(|(_, standing)| standing).collect();
        assert_eq!(each, [standing(9, complete), standing(5, complete)]);
    }
}
