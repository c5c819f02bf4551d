//! Generates applications with ids from 1 on. Small ids are popular and have a higher capacity.

use rand::Rng;
use rand::rngs::StdRng;
use serde::Serialize;
use showcase::words;

use super::entities::{EntityGenerator, RowPosition};
use super::fault::Fault;
use super::random_draws::{choose, draw_bool};

const CAPACITIES: [i64; 6] = [10, 100, 999, 1_000, 10_000, 100_000];
/// Capacity of popular applications.
const POPULAR_CAPACITY: i64 = 1_000_000;
/// Largest id of a popular application.
const POPULAR_ID_MAX: i64 = 20;

/// An application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Application {
    id: i64,
    name: String,
    owner: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    athlete_capacity: Option<i64>,
    /// Part of the name if above 1.
    #[serde(skip)]
    edition: u32,
}

/// Generator of applications.
#[derive(Debug)]
pub(super) struct ApplicationGenerator;

impl EntityGenerator for ApplicationGenerator {
    type Row = Application;

    const FAULTS: &'static [Fault] = &[
        Fault::Truncated,
        Fault::NotJson,
        Fault::quoted("id"),
        Fault::fractional("id"),
        Fault::huge("id"),
        Fault::Missing("name"),
        Fault::Missing("owner"),
        Fault::InvalidValue("athlete_capacity", "-1"),
    ];

    fn generate(&mut self, position: RowPosition, rng: &mut StdRng) -> Application {
        let athlete_capacity = if position.number <= POPULAR_ID_MAX {
            Some(POPULAR_CAPACITY)
        } else {
            draw_bool(rng, 0.85).then(|| choose(rng, &CAPACITIES))
        };
        let name = words::application_name(rng.random_range(0..16));
        Application {
            id: position.number,
            name: format!("{name} {}", position.number),
            owner: format!("developer-{}@example.com", rng.random_range(1..=300_u32)),
            athlete_capacity,
            edition: 1,
        }
    }

    fn edit(&self, application: &mut Application, rng: &mut StdRng) {
        if draw_bool(rng, 0.3) {
            application.edition += 1;
            let base_name = application.name.split(',').next().unwrap_or_default();
            application.name = format!("{base_name}, {}. edition", application.edition);
            return;
        }
        let previous = application.athlete_capacity;
        while application.athlete_capacity == previous {
            application.athlete_capacity = Some(choose(rng, &CAPACITIES));
        }
    }
}
