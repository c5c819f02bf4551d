//! Generates athletes with ids from 1 on. Many lack optional fields.

use std::ops::Not;

use rand::Rng;
use rand::rngs::StdRng;
use serde::Serialize;

use super::entities::{EntityGenerator, RowPosition};
use super::fault::Fault;
use super::random_draws::{COUNTRIES, WeightedChoice, choose, draw_bool, to_i64};

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
const BIRTH_YEARS: (i64, f64) = (1938, 76.0);
/// Lowest weight and width of the range, in tenths of a kg.
const WOMENS_WEIGHTS: (f64, f64) = (400.0, 500.0);
const OTHER_WEIGHTS: (f64, f64) = (500.0, 720.0);

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
pub(super) struct AthleteGenerator {
    genders: WeightedChoice<&'static str>,
    countries: WeightedChoice<&'static str>,
    has_distinct_names: bool,
}

impl AthleteGenerator {
    pub(super) fn new() -> Self {
        Self {
            genders: WeightedChoice::new(&GENDERS),
            countries: WeightedChoice::new(&COUNTRIES),
            has_distinct_names: false,
        }
    }

    /// Gives the first 576 athletes distinct names.
    pub(super) fn with_distinct_names() -> Self {
        Self {
            has_distinct_names: true,
            ..Self::new()
        }
    }
}

impl EntityGenerator for AthleteGenerator {
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
        let name = if self.has_distinct_names {
            Some(number_to_name(position.number))
        } else {
            draw_bool(rng, 0.95).then(|| draw_name(rng))
        };
        Athlete {
            id: position.number,
            name,
            gender,
            birth_year: draw_bool(rng, 0.88).then(|| draw_birth_year(rng)),
            weight_kg: draw_bool(rng, 0.75).then(|| draw_weight_kg(gender, rng)),
            country: self.countries.draw(rng),
            is_disqualified: draw_bool(rng, 0.005),
            is_deleted: draw_bool(rng, 0.01),
        }
    }

    fn edit(&self, athlete: &mut Athlete, rng: &mut StdRng) {
        match rng.random_range(0..10) {
            0..=4 => {
                let weight = athlete.weight_kg;
                while athlete.weight_kg == weight {
                    athlete.weight_kg = Some(draw_weight_kg(athlete.gender, rng));
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
                    athlete.birth_year = Some(draw_birth_year(rng));
                }
            }
            7 => {
                let previous = athlete.name.clone();
                while athlete.name == previous {
                    athlete.name = Some(draw_name(rng));
                }
            }
            8 => athlete.is_disqualified = !athlete.is_disqualified,
            _ => athlete.is_deleted = !athlete.is_deleted,
        }
    }
}

/// Returns the name for a number. Consecutive numbers up to the count of full names have distinct
/// names.
fn number_to_name(number: i64) -> String {
    let number = usize::try_from(number).unwrap_or_default();
    let round = number / FIRST_NAMES.len();
    let first = FIRST_NAMES[number % FIRST_NAMES.len()];
    let last = LAST_NAMES[(number + round) % LAST_NAMES.len()];
    format!("{first} {last}")
}

fn draw_name(rng: &mut StdRng) -> String {
    let first = choose(rng, &FIRST_NAMES);
    format!("{first} {}", choose(rng, &LAST_NAMES))
}

fn draw_birth_year(rng: &mut StdRng) -> i64 {
    let (first_year, range) = BIRTH_YEARS;
    first_year + to_i64(range * draw_bell_fraction(rng))
}

/// Draws a weight with tenths of a kg; many weights are whole kg.
fn draw_weight_kg(gender: Option<&'static str>, rng: &mut StdRng) -> f64 {
    let (lightest, range) = match gender {
        Some("F") => WOMENS_WEIGHTS,
        _ => OTHER_WEIGHTS,
    };
    let tenths = u32::try_from(to_i64(lightest + range * draw_bell_fraction(rng))).unwrap_or(700);
    let is_whole = draw_bool(rng, 0.6);
    f64::from(if is_whole { tenths / 10 * 10 } else { tenths }) / 10.0
}

/// Draws from 0 to 1, mostly near the middle.
fn draw_bell_fraction(rng: &mut StdRng) -> f64 {
    (rng.random::<f64>() + rng.random::<f64>() + rng.random::<f64>()) / 3.0
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::number_to_name;

    #[test]
    fn consecutive_numbers_have_distinct_names() {
        let names: HashSet<_> = (1..=576).map(number_to_name).collect();
        assert_eq!(names.len(), 576);
    }
}
