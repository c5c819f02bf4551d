//! Applications: ids from 1 on. Those with small ids are popular, so more athletes may connect.

use rand::Rng;
use rand::rngs::StdRng;
use showcase::words;

use super::draw::{happens, one_of};
use super::entities::{Make, Place};
use super::fault::Fault;
use super::rows::{Record, Sink};

const CAPACITIES: [i64; 6] = [10, 100, 999, 1_000, 10_000, 100_000];
/// The capacity of popular applications.
const CAPACITY_OF_POPULAR: i64 = 1_000_000;
/// The largest id of a popular application.
const POPULAR: i64 = 20;

/// An application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Application {
    id: i64,
    name: &'static str,
    /// Editions of the application come after its name.
    edition: u32,
    owner: u32,
    athlete_capacity: Option<i64>,
}

impl Record for Application {
    fn put(&self, sink: &mut impl Sink) {
        let mut name = format!("{} {}", self.name, self.id);
        if self.edition > 1 {
            name = format!("{name}, {}. edition", self.edition);
        }
        let owner = format!("developer-{}@example.com", self.owner);
        sink.put("id", self.id.into());
        sink.put("name", name.as_str().into());
        sink.put("owner", owner.as_str().into());
        sink.put("athlete_capacity", self.athlete_capacity.into());
    }
}

/// Makes applications.
#[derive(Debug)]
pub(super) struct Applications;

impl Make for Applications {
    type Row = Application;

    const FAULTS: &'static [Fault] = &[
        Fault::CutOff,
        Fault::NoJson,
        Fault::quoted("id"),
        Fault::fractional("id"),
        Fault::huge("id"),
        Fault::missing("name"),
        Fault::missing("owner"),
        Fault::int("athlete_capacity", -1),
    ];

    fn make(&mut self, place: Place, rng: &mut StdRng) -> Application {
        let athlete_capacity = if place.number <= POPULAR {
            Some(CAPACITY_OF_POPULAR)
        } else {
            happens(rng, 0.85).then(|| one_of(rng, &CAPACITIES))
        };
        Application {
            id: place.number,
            name: words::application(rng.random_range(0..16)),
            edition: 1,
            owner: rng.random_range(1..=300),
            athlete_capacity,
        }
    }

    fn edit(&self, application: &mut Application, rng: &mut StdRng) {
        if happens(rng, 0.3) {
            application.edition += 1;
            return;
        }
        let known = application.athlete_capacity;
        while application.athlete_capacity == known {
            application.athlete_capacity = Some(one_of(rng, &CAPACITIES));
        }
    }
}
