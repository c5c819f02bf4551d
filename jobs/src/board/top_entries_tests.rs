use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// A member and its new time and id, or `None` if it leaves.
type Change = (u8, Option<(u8, u16)>);

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let row = proptest::option::weighted(0.7, (0..12_u8, 0..2000_u16));
    proptest::collection::vec((0..60_u8, row), 1..250)
}

fn entry(row: (u8, u16)) -> BoardEntry {
    let (time, id) = row;
    let mut score = u64::from(time).to_be_bytes().to_vec();
    score.extend(u64::from(id).to_be_bytes());
    BoardEntry {
        board: Vec::new(),
        score,
        payload: Vec::new(),
        weight: 1,
    }
}

/// The members in rank order.
fn sorted(rows: &BTreeMap<u8, (u8, u16)>) -> Vec<u8> {
    let mut order: Vec<(u8, u16, u8)> = rows.iter().map(|(m, (t, id))| (*t, *id, *m)).collect();
    order.sort_unstable();
    order.into_iter().map(|(.., member)| member).collect()
}

fn read_top_entries(rows: &BTreeMap<u8, (u8, u16)>) -> TopEntries {
    let ranked = |member: u8| RankedEntry::new(&[member], &entry(rows[&member]));
    let first = sorted(rows).into_iter().take(TopEntries::CAPACITY);
    TopEntries::new(first.map(ranked).collect())
}

/// Computes the achievements of a change from the whole board: kind, member, rank.
fn expected_events(
    before: &BTreeMap<u8, (u8, u16)>,
    after: &BTreeMap<u8, (u8, u16)>,
    member: u8,
) -> BTreeSet<(AchievementKind, u8, Option<u64>)> {
    let (old, new) = (sorted(before), sorted(after));
    let rank = |member: u8| {
        let index = new.iter().take(10).position(|other| *other == member)?;
        Some(index as u64 + 1)
    };
    let mut events = BTreeSet::new();
    if old.first() != new.first() {
        events.extend(
            old.first()
                .map(|m| (AchievementKind::CrownLost, *m, rank(*m))),
        );
        events.extend(new.first().map(|m| (AchievementKind::Crown, *m, Some(1))));
    }
    for other in new.iter().take(10).skip(1) {
        let was_in = old.iter().take(10).any(|o| o == other);
        let better = *other == member && before.get(other).is_some_and(|b| after[other] < *b);
        if !was_in || better {
            events.insert((AchievementKind::TopTen, *other, rank(*other)));
        }
    }
    if let (Some(b), Some(a)) = (before.get(&member), after.get(&member))
        && a.0 < b.0
    {
        events.insert((AchievementKind::PersonalRecord, member, rank(member)));
    }
    events
}

proptest! {
    /// Achievements equal those computed from the whole board, each once. The crown holder follows
    /// from the messages alone.
    #[test]
    fn achievements_equal_those_of_the_whole_board(changes in changes()) {
        let mut rows: BTreeMap<u8, (u8, u16)> = BTreeMap::new();
        let mut top_entries = read_top_entries(&rows);
        let mut holder: Option<u8> = None;
        let mut reads = 0;
        for (member, row) in changes {
            // Scores contain the id of an effort, so no two entries have the same score.
            let row = row.map(|(time, id)| (time, (id % 1000) * 64 + u16::from(member)));
            let before = rows.clone();
            match row {
                Some(row) => rows.insert(member, row),
                None => rows.remove(&member),
            };
            if top_entries.needs_reload() {
                reads += 1;
                top_entries = read_top_entries(&before);
            }
            let after = row.map(entry);
            let old_entry = before.get(&member).copied().map(entry);
            let mut events = top_entries.apply(&[member], after.as_ref());
            events.extend(top_entries.find_personal_record(&[member], old_entry.as_ref(), after.as_ref()));
            let summaries = events.iter().map(|e| (e.kind, e.entry.member[0], e.rank));
            let summaries: Vec<_> = summaries.collect();
            let distinct: BTreeSet<_> = summaries.iter().copied().collect();
            prop_assert_eq!(summaries.len(), distinct.len());
            prop_assert_eq!(distinct, expected_events(&before, &rows, member));
            for event in &events {
                let member_of_event = event.entry.member[0];
                let expected = match event.kind {
                    AchievementKind::CrownLost => before[&member_of_event],
                    _ => rows[&member_of_event],
                };
                prop_assert_eq!(&event.entry.score, &entry(expected).score);
                match event.kind {
                    AchievementKind::CrownLost => {
                        prop_assert_eq!(holder.take(), Some(member_of_event));
                        let now = sorted(&rows).first().map(|m| vec![*m]);
                        prop_assert_eq!(&event.new_holder, &now);
                    }
                    AchievementKind::Crown => {
                        prop_assert_eq!(holder.replace(member_of_event), None);
                    }
                    _ => {}
                }
            }
            prop_assert_eq!(holder, sorted(&rows).first().copied());
            let first = top_entries.first().map(|row| row.member[0]);
            prop_assert_eq!(first, holder);
        }
        prop_assert!(reads <= 250 / 20, "top entries are read again only when they run out");
    }
}
