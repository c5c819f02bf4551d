use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// A change: member, and what it has now: time, id.
type Change = (u8, Option<(u8, u16)>);

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let row = proptest::option::weighted(0.7, (0..12_u8, 0..2000_u16));
    proptest::collection::vec((0..60_u8, row), 1..250)
}

fn place((time, id): (u8, u16)) -> Place {
    let mut score = u64::from(time).to_be_bytes().to_vec();
    score.extend(u64::from(id).to_be_bytes());
    Place {
        board: Vec::new(),
        score,
        payload: Vec::new(),
        weight: 1,
    }
}

/// The members in the order of ranks.
fn sorted(rows: &BTreeMap<u8, (u8, u16)>) -> Vec<u8> {
    let mut order: Vec<(u8, u16, u8)> = rows.iter().map(|(m, (t, id))| (*t, *id, *m)).collect();
    order.sort_unstable();
    order.into_iter().map(|(.., member)| member).collect()
}

fn reread(rows: &BTreeMap<u8, (u8, u16)>) -> Podium {
    let ranked = |member: u8| Ranked::of(&[member], &place(rows[&member]));
    let first = sorted(rows).into_iter().take(Podium::ROWS);
    Podium::of(first.map(ranked).collect())
}

/// What a change brings, counted from the whole board before and after: kind, member, rank.
fn recount(
    before: &BTreeMap<u8, (u8, u16)>,
    after: &BTreeMap<u8, (u8, u16)>,
    member: u8,
) -> BTreeSet<(Kind, u8, Option<u64>)> {
    let (old, new) = (sorted(before), sorted(after));
    let rank = |member: u8| {
        let place = new.iter().take(10).position(|other| *other == member)?;
        Some(place as u64 + 1)
    };
    let mut events = BTreeSet::new();
    if old.first() != new.first() {
        events.extend(old.first().map(|m| (Kind::CrownLost, *m, rank(*m))));
        events.extend(new.first().map(|m| (Kind::Crown, *m, Some(1))));
    }
    for other in new.iter().take(10).skip(1) {
        let was_in = old.iter().take(10).any(|o| o == other);
        let better = *other == member && before.get(other).is_some_and(|b| after[other] < *b);
        if !was_in || better {
            events.insert((Kind::TopTen, *other, rank(*other)));
        }
    }
    if let (Some(b), Some(a)) = (before.get(&member), after.get(&member))
        && a.0 < b.0
    {
        events.insert((Kind::PersonalRecord, member, rank(member)));
    }
    events
}

proptest! {
    /// Whatever changes, what is told is what a count of the whole board gives, each once; who holds
    /// the crown is the fold of what was told of it, and so is who is within ten.
    #[test]
    fn what_is_told_is_what_a_recount_gives(changes in changes()) {
        let mut rows: BTreeMap<u8, (u8, u16)> = BTreeMap::new();
        let mut podium = reread(&rows);
        let mut holder: Option<u8> = None;
        let mut reads = 0;
        for (member, row) in changes {
            // Scores hold the id of an effort: no two rows have the same.
            let row = row.map(|(time, id)| (time, (id % 1000) * 64 + u16::from(member)));
            let before = rows.clone();
            match row {
                Some(row) => rows.insert(member, row),
                None => rows.remove(&member),
            };
            if podium.is_short() {
                reads += 1;
                podium = reread(&before);
            }
            let after = row.map(place);
            let had = before.get(&member).copied().map(place);
            let mut events = podium.change(&[member], after.as_ref());
            events.extend(podium.record(&[member], had.as_ref(), after.as_ref()));
            let told: Vec<_> = events.iter().map(|e| (e.kind, e.row.member[0], e.rank)).collect();
            let different: BTreeSet<_> = told.iter().copied().collect();
            prop_assert_eq!(told.len(), different.len());
            prop_assert_eq!(different, recount(&before, &rows, member));
            for event in &events {
                let of = event.row.member[0];
                let expected = match event.kind {
                    Kind::CrownLost => before[&of],
                    _ => rows[&of],
                };
                prop_assert_eq!(&event.row.score, &place(expected).score);
                match event.kind {
                    Kind::CrownLost => {
                        prop_assert_eq!(holder.take(), Some(of));
                        let now = sorted(&rows).first().map(|m| vec![*m]);
                        prop_assert_eq!(&event.taken_by, &now);
                    }
                    Kind::Crown => prop_assert_eq!(holder.replace(of), None),
                    _ => {}
                }
            }
            prop_assert_eq!(holder, sorted(&rows).first().copied());
            let first = podium.first().map(|row| row.member[0]);
            prop_assert_eq!(first, holder);
        }
        prop_assert!(reads <= 250 / 20, "a podium is read again only when it is used up");
    }
}
