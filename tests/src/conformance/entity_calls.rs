//! Random calls to the entity store. Ids are small, so that calls affect each other.

use proptest::prelude::*;
use schemas::entities::{
    Application, Athlete, Authorization, Effort, Entity, Follow, Gender, Membership,
};
use stores::admin::RequestDecision;

use super::entity_rows::{application, athlete, authorization, effort};

const ZONES: [&str; 4] = [
    "UTC",
    "Europe/Berlin",
    "Pacific/Auckland",
    "America/New_York",
];

/// One call to a store. Ids are small, so that calls affect each other.
#[derive(Debug, Clone)]
pub enum Call {
    /// Applies rows.
    Apply(Vec<Entity>),
    /// Connects an athlete to an application.
    Authorize(i64, i64),
    /// Disconnects an athlete.
    Revoke(i64, i64),
    /// Sets the capacity of an application.
    SetCapacity(i64, i64),
    /// Sets whether the capacity is enforced.
    Enforce(i64, bool),
    /// Requests a higher capacity.
    RequestCapacity(i64, i64),
    /// Decides one of the requests: grants it, possibly with another capacity, or refuses it.
    Decide(usize, RequestDecision),
    /// Removes this many notifications from the outbox, starting with the oldest or the newest.
    RemoveNotifications(usize, bool),
}

/// Generates histories of entities.
pub fn histories() -> impl Strategy<Value = Vec<Call>> {
    let decision = prop_oneof![
        1 => Just(RequestDecision::Refuse),
        2 => proptest::option::of(0..8_i64).prop_map(RequestDecision::Grant),
    ];
    let call = prop_oneof![
        8 => proptest::collection::vec(entities(), 0..12).prop_map(Call::Apply),
        3 => (0..3_i64, 0..5_i64).prop_map(|(key, member)| Call::Authorize(key, member)),
        2 => (0..3_i64, 0..5_i64).prop_map(|(key, member)| Call::Revoke(key, member)),
        1 => (0..3_i64, 0..4_i64).prop_map(|(key, capacity)| Call::SetCapacity(key, capacity)),
        1 => (0..3_i64, any::<bool>()).prop_map(|(key, is_on)| Call::Enforce(key, is_on)),
        2 => (0..3_i64, 0..8_i64).prop_map(|(key, capacity)| Call::RequestCapacity(key, capacity)),
        2 => (0..20_usize, decision).prop_map(|(nth, decision)| Call::Decide(nth, decision)),
        3 => (0..20_usize, any::<bool>()).prop_map(|(count, oldest)| Call::RemoveNotifications(count, oldest)),
    ];
    proptest::collection::vec(call, 1..25)
}

#[expect(clippy::too_many_lines, reason = "a strategy for each kind of row")]
fn entities() -> impl Strategy<Value = Entity> {
    let is_deleted = || proptest::bool::weighted(0.2);
    let version = || 0..4_i64;
    // The athlete of an effort mostly follows from its id.
    let stray = || prop_oneof![9 => Just(0), 1 => 1..3_i64];
    let efforts = (
        (0..12_i64, stray(), stray()),
        1..1000_i64,
        // About one day on each side of New Year.
        -100_000..100_000_i64,
        0..ZONES.len(),
        (proptest::bool::weighted(0.1), is_deleted(), version()),
    )
        .prop_map(
            |((id, segment, other), elapsed_time_s, at_s, zone, flags)| {
                let (is_hidden, is_deleted, version) = flags;
                Entity::Effort(Effort {
                    activity_id: elapsed_time_s * 3,
                    elapsed_time_s,
                    started_at_us: (1_704_067_200 + at_s) * 1_000_000 + elapsed_time_s,
                    tz: ZONES[zone].to_owned(),
                    is_hidden,
                    is_deleted,
                    version,
                    ..effort(id, (id + segment) % 4, (id + other) % 5)
                })
            },
        );
    let gender = prop_oneof![Just(None), Just(Some(Gender::F)), Just(Some(Gender::M))];
    let weight = proptest::option::of(prop_oneof![Just(70.0), 40.0..120.0]);
    let flags = (is_deleted(), is_deleted());
    let athletes = (0..6_i64, gender, 0..3_i64, weight, flags, version()).prop_map(
        |(id, gender, year, weight_kg, (is_deleted, is_disqualified), version)| {
            Entity::Athlete(Athlete {
                name: Some(format!("{id}{version}")),
                gender,
                birth_year: (year > 0).then_some(1990 + year),
                weight_kg,
                is_disqualified,
                is_deleted,
                version,
                ..athlete(id)
            })
        },
    );
    let clubs = (0..3_i64, 0..4_i64, is_deleted(), version()).prop_map(
        |(club_id, athlete_id, is_deleted, version)| {
            Entity::Membership(Membership {
                club_id,
                athlete_id,
                is_deleted,
                version,
            })
        },
    );
    let follows = (0..4_i64, 0..4_i64, is_deleted(), version()).prop_map(
        |(follower_id, followed_id, is_deleted, version)| {
            Entity::Follow(Follow {
                follower_id,
                followed_id,
                is_deleted,
                version,
            })
        },
    );
    let revoked = proptest::option::weighted(0.4, -5..5_i64);
    let authorizations = ((0..12_i64, stray(), stray()), revoked, version()).prop_map(
        |((id, application, other), revoked_at_us, version)| {
            Entity::Authorization(Authorization {
                created_at_us: version,
                revoked_at_us,
                version,
                ..authorization(id, (id + application) % 3, (id + other) % 5)
            })
        },
    );
    let applications = (0..3_i64, 0..4_i64, version()).prop_map(|(id, capacity, version)| {
        Entity::Application(Application {
            owner: serde_json::json!(version),
            version,
            ..application(id, capacity)
        })
    });
    prop_oneof![
        6 => efforts,
        3 => athletes,
        1 => clubs,
        1 => follows,
        4 => authorizations,
        1 => applications,
    ]
}

/// Moves the ids of a row into the history's range.
pub(super) fn shift_ids(mut row: Entity, base: i64) -> Entity {
    match &mut row {
        Entity::Effort(row) => {
            row.id += base;
            row.segment_id += base;
            row.athlete_id += base;
        }
        Entity::Athlete(row) => row.id += base,
        Entity::Membership(row) => {
            row.club_id += base;
            row.athlete_id += base;
        }
        Entity::Follow(row) => {
            row.follower_id += base;
            row.followed_id += base;
        }
        Entity::Authorization(row) => {
            row.id += base;
            row.application_id += base;
            row.athlete_id += base;
        }
        Entity::Application(row) => row.id += base,
    }
    row
}
