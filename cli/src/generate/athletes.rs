//! Generates athletes with ids from 1 on. Many lack optional fields.

use std::ops::Not;

use rand::Rng;
use rand::rngs::StdRng;
use serde::Serialize;

use super::draw::{COUNTRIES, WeightedChoice, as_id, choose, happens};
use super::entities::{RowGenerator, RowPosition};
use super::fault::Fault;

const GENDERS: [(&str, u32); 3] = [("M", 470), ("F", 400), ("X", 30)];
const FIRST_NAMES: [&str; 24] = [
    "Ada", "Amina", "Anil", "Bea", "Chidi", "Dana", "Emre", "Fatima", "Giulia", "Hana", "Ines",
    "Jonas", "Kofi", "Lena", "Mateo", "Nadia", "Olu", "Priya", "Quinn", "Søren", "Tomás", "Uma",
    "Wei", "Zoë",
];
const LAST_NAMES: [&str; 24] = [
    "Adeyemi", "Alves", "Bauer", "Chen", "Costa", "Dubois", "Evans", "Fischer", "García", "Haddad",
    "Ivanova", "Jensen", "Kumar", "Larsen", "Müller", "Nakamura", "O'Neill", "Popescu", "Rossi",
    "Sato", "Tamang", "Usman", "Viljoen", "Yılmaz",
];
/// Earliest year of birth, and the number of following years.
const BORN: (i64, f64) = (1938, 76.0);
/// Lowest weight and range of weights, in tenths of a kg.
const WEIGHT_OF_WOMEN: (f64, f64) = (400.0, 500.0);
const WEIGHT_OF_OTHERS: (f64, f64) = (500.0, 720.0);

/// An athlete.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Athlete {
    id: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gender: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    birth_year: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight_kg: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    country: Option<&'static str>,
    #[serde(rename = "disqualified", skip_serializing_if = "Not::not")]
    is_disqualified: bool,
    #[serde(rename = "deleted", skip_serializing_if = "Not::not")]
    is_deleted: bool,
}

/// Generator of athletes.
#[derive(Debug)]
pub(super) struct Athletes {
    genders: WeightedChoice<&'static str>,
    countries: WeightedChoice<&'static str>,
    are_named: bool,
}

impl Athletes {
    pub(super) fn new() -> Self {
        Self {
            genders: WeightedChoice::new(&GENDERS),
            countries: WeightedChoice::new(&COUNTRIES),
            are_named: false,
        }
    }

    /// Gives the first 576 athletes distinct names.
    pub(super) fn named() -> Self {
        Self {
            are_named: true,
            ..Self::new()
        }
    }
}

impl RowGenerator for Athletes {
    type Row = Athlete;

    const FAULTS: &'static [Fault] = &[
        Fault::Truncated,
        Fault::NotJson,
        Fault::quoted("id"),
        Fault::fractional("id"),
        Fault::huge("id"),
        Fault::Missing("id"),
        Fault::InvalidValue("gender", "\"W\""),
        Fault::InvalidValue("birth_year", "0"),
        Fault::InvalidValue("birth_year", "19840"),
        Fault::InvalidValue("weight_kg", "-70.5"),
        Fault::InvalidValue("country", "\"Germany\""),
    ];

    fn generate(&mut self, position: RowPosition, rng: &mut StdRng) -> Athlete {
        let gender = self.genders.draw(rng);
        let name = if self.are_named {
            Some(name_of(position.number))
        } else {
            happens(rng, 0.95).then(|| name(rng))
        };
        Athlete {
            id: position.number,
            name,
            gender,
            birth_year: happens(rng, 0.88).then(|| birth_year(rng)),
            weight_kg: happens(rng, 0.75).then(|| weight_kg(gender, rng)),
            country: self.countries.draw(rng),
            is_disqualified: happens(rng, 0.005),
            is_deleted: happens(rng, 0.01),
        }
    }

    fn edit(&self, athlete: &mut Athlete, rng: &mut StdRng) {
        match rng.random_range(0..10) {
            0..=4 => {
                let weight = athlete.weight_kg;
                while athlete.weight_kg == weight {
                    athlete.weight_kg = Some(weight_kg(athlete.gender, rng));
                }
            }
            5 => {
                athlete.gender = match athlete.gender {
                    None | Some("X") => Some("F"),
                    Some("F") => Some("M"),
                    Some(_) => Some("X"),
                };
            }
            6 => {
                let year = athlete.birth_year;
                while athlete.birth_year == year {
                    athlete.birth_year = Some(birth_year(rng));
                }
            }
            7 => {
                let known = athlete.name.clone();
                while athlete.name == known {
                    athlete.name = Some(name(rng));
                }
            }
            8 => athlete.is_disqualified = !athlete.is_disqualified,
            _ => athlete.is_deleted = !athlete.is_deleted,
        }
    }
}

/// The name for a number. As many consecutive numbers as there are full names have distinct names.
fn name_of(number: i64) -> String {
    let number = usize::try_from(number).unwrap_or_default();
    let round = number / FIRST_NAMES.len();
    let first = FIRST_NAMES[number % FIRST_NAMES.len()];
    let last = LAST_NAMES[(number + round) % LAST_NAMES.len()];
    format!("{first} {last}")
}

fn name(rng: &mut StdRng) -> String {
    let first = choose(rng, &FIRST_NAMES);
    format!("{first} {}", choose(rng, &LAST_NAMES))
}

fn birth_year(rng: &mut StdRng) -> i64 {
    let (first, range) = BORN;
    first + as_id(range * bell_fraction(rng))
}

/// Weight in tenths of a kg; many are whole kg.
fn weight_kg(gender: Option<&'static str>, rng: &mut StdRng) -> f64 {
    let (lightest, range) = match gender {
        Some("F") => WEIGHT_OF_WOMEN,
        _ => WEIGHT_OF_OTHERS,
    };
    let tenths = u32::try_from(as_id(lightest + range * bell_fraction(rng))).unwrap_or(700);
    let is_whole = happens(rng, 0.6);
    f64::from(if is_whole { tenths / 10 * 10 } else { tenths }) / 10.0
}

/// From 0 to 1, mostly near the middle.
fn bell_fraction(rng: &mut StdRng) -> f64 {
    (rng.random::<f64>() + rng.random::<f64>() + rng.random::<f64>()) / 3.0
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::name_of;

    #[test]
    fn names_of_some_hundreds_of_numbers_differ() {
        let names: HashSet<_> = (1..=576).map(name_of).collect();
        assert_eq!(names.len(), 576);
    }
}
