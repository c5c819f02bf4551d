//! Generated names of artists, tracks, segments and applications.

const APPLICATIONS: &str = "Segment Hunter,Trail Atlas,Ride Diary,Pace Coach,Élan,Wattage,\
    Club Ladder,Route Forge,Heat Map,Cadence,Summit Log,Run & Tell,Laufbuch,Peloton Planner,\
    Photo Finish,Rest Day";
const ADJECTIVES: &str = "Slow Northern Paper Quiet Copper Late Salt Winter Hollow Amber Distant \
    Green Velvet Second Wild Golden";
const NOUNS: &str = "Rivers Lanterns Hours Harbours Birds Threads Signals Orchards Tides Kites \
    Meadows Mirrors Engines Letters Stairs Sparrows";
const FORMS: &str = ", (Live), (Acoustic), (Remix), (Demo), Reprise";
const PLACES: &str = "Mill Lane,Chapel Hill,Reservoir Road,Old Quarry,Beacon,Canal Path,\
    Ferry Wharf,Windmill,Long Barrow,Station Road,Harbour Wall,Pine Ridge";
const KINDS: &str = "Climb,Sprint,Loop,Descent,Out and Back";

/// Picks a word by any index, modulo the number of words.
fn pick_word(words: &'static str, separator: char, index: usize) -> &'static str {
    let count = words.split(separator).count();
    words
        .split(separator)
        .nth(index % count)
        .unwrap_or_default()
}

/// Joins an adjective and a noun. There are 256 combinations.
fn join_words(number: usize) -> String {
    let noun = pick_word(NOUNS, ' ', number + number / 16);
    format!("{} {noun}", pick_word(ADJECTIVES, ' ', number))
}

/// The name of an application. There are 16.
#[must_use]
pub fn application_name(number: usize) -> &'static str {
    pick_word(APPLICATIONS, ',', number)
}

/// The name of an artist. There are 256.
pub(crate) fn artist_name(number: usize) -> String {
    format!("The {}", join_words(number + 101))
}

/// The title of a track. There are 1,536.
pub(crate) fn track_title(number: usize) -> String {
    join_words(number) + pick_word(FORMS, ',', number / 256)
}

/// The name of a segment. There are 60.
pub(crate) fn segment_name(number: usize) -> String {
    format!(
        "{} {}",
        pick_word(PLACES, ',', number),
        pick_word(KINDS, ',', number)
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique() {
        type Name = fn(usize) -> String;
        let cases = [
            (artist_name as Name, 256),
            (track_title, 1_536),
            (segment_name, 60),
        ];
        for (name, count) in cases {
            let names: BTreeSet<String> = (0..count).map(name).collect();
            assert_eq!(names.len(), count, "{names:?}");
        }
    }
}
