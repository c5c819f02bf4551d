//! Generates applications with ids from 1 on. Small ids are popular and have a higher capacity.

use rand::Rng;
use rand::rngs::StdRng;
use serde::Serialize;
use showcase::words;

use super::draw::{choose, happens};
use super::entities::{RowGenerator, RowPosition};
use super::fault::Fault;

const CAPACITIES: [i64; 6] = [10, 100, 999, 1_000, 10_000, 100_000];
/// Capacity of popular applications.
const CAPACITY_OF_POPULAR: i64 = 1_000_000;
/// Largest id of a popular application.
const POPULAR: i64 = 20;

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
pub(super) struct Applications;

impl RowGenerator for Applications {
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
        let athlete_capacity = if position.number <= POPULAR {
            Some(CAPACITY_OF_POPULAR)
        } else {
            happens(rng, 0.85).then(|| choose(rng, &CAPACITIES))
        };
        let name = words::application(rng.random_range(0..16));
        Application {
            id: position.number,
            name: format!("{name} {}", position.number),
            owner: format!("developer-{}@example.com", rng.random_range(1..=300_u32)),
            athlete_capacity,
            edition: 1,
        }
    }

    fn edit(&self, application: &mut Application, rng: &mut StdRng) {
        if happens(rng, 0.3) {
            application.edition += 1;
            let first = application.name.split(',').next().unwrap_or_default();
            application.name = format!("{first}, {}. edition", application.edition);
            return;
        }
        let known = application.athlete_capacity;
        while application.athlete_capacity == known {
            application.athlete_capacity = Some(choose(rng, &CAPACITIES));
        }
    }
}
