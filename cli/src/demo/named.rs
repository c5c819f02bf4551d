//! What owners, tracks and segments of the demo are called.

use stores::names::{Named, Names};

use super::entities::Ids;

/// Owners and tracks that have names, from 1 on.
const COUNT: i64 = 2_000;

const FIRST: [&str; 12] = [
    "Slow", "Northern", "Paper", "Quiet", "Copper", "Late", "Salt", "Winter", "Hollow", "Amber",
    "Distant", "Green",
];
const SECOND: [&str; 11] = [
    "River", "Lanterns", "Hours", "Harbour", "Birds", "Thread", "Static", "Orchard", "Tides",
    "Signals", "Kites",
];
const PLACES: [&str; 12] = [
    "Mill Lane",
    "Chapel Hill",
    "Reservoir Road",
    "Old Quarry",
    "Beacon",
    "Canal Path",
    "Ferry Wharf",
    "Windmill",
    "Long Barrow",
    "Station Road",
    "Harbour Wall",
    "Pine Ridge",
];
const KINDS: [&str; 5] = ["Climb", "Sprint", "Loop", "Descent", "Out and Back"];

fn of<'a>(words: &[&'a str], number: i64) -> &'a str {
    let count = i64::try_from(words.len()).unwrap_or(1);
    usize::try_from(number.rem_euclid(count))
        .ok()
        .and_then(|at| words.get(at))
        .copied()
        .unwrap_or_default()
}

fn track(id: i64) -> String {
    let name = format!("{} {}", of(&FIRST, id), of(&SECOND, id));
    // After so many the same words come together again.
    match id / 132 {
        0 => name,
        part => format!("{name}, pt. {}", part + 1),
    }
}

fn owner(id: i64) -> String {
    format!("The {} {}", of(&FIRST, id * 7 + 3), of(&SECOND, id * 5 + 2))
}

fn segment(id: i64) -> String {
    format!("{} {}", of(&PLACES, id), of(&KINDS, id))
}

/// Gives names to the first owners and tracks, and to the segments of this demo.
pub(super) async fn give(names: &(impl Names + ?Sized), ids: Ids) -> stores::Result<()> {
    let named = |name: fn(i64) -> String| move |id: i64| (id, Some(name(id)));
    let owners: Vec<_> = (1..=COUNT).map(named(owner)).collect();
    let tracks: Vec<_> = (1..=COUNT).map(named(track)).collect();
    let segments: Vec<_> = ids.segments().every().map(named(segment)).collect();
    names.set_names(Named::Owner, &owners).await?;
    names.set_names(Named::Track, &tracks).await?;
    names.set_names(Named::Segment, &segments).await
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_tracks_are_called_alike() {
        let names: BTreeSet<String> = (1..=COUNT).map(track).collect();
        assert_eq!(names.len() as i64, COUNT);
    }
}
