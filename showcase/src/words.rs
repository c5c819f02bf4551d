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

fn word(words: &'static str, separator: char, index: usize) -> &'static str {
    let count = words.split(separator).count();
    words
        .split(separator)
        .nth(index % count)
        .unwrap_or_default()
}

/// Two words. There are 256 combinations.
fn adjective_and_noun(number: usize) -> String {
    let noun = word(NOUNS, ' ', number + number / 16);
    format!("{} {noun}", word(ADJECTIVES, ' ', number))
}

/// The name of an application. There are 16.
#[must_use]
pub fn application(number: usize) -> &'static str {
    word(APPLICATIONS, ',', number)
}

/// The name of an artist. There are 256.
pub(crate) fn artist(number: usize) -> String {
    format!("The {}", adjective_and_noun(number + 101))
}

/// The title of a track. There are 1,536.
pub(crate) fn track(number: usize) -> String {
    adjective_and_noun(number) + word(FORMS, ',', number / 256)
}

/// The name of a segment. There are 60.
pub(crate) fn segment(number: usize) -> String {
    format!("{} {}", word(PLACES, ',', number), word(KINDS, ',', number))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique() {
        type Name = fn(usize) -> String;
        let cases = [(artist as Name, 256), (track, 1_536), (segment, 60)];
        for (name, count) in cases {
            let names: BTreeSet<String> = (0..count).map(name).collect();
            assert_eq!(names.len(), count, "{names:?}");
        }
    }
}
