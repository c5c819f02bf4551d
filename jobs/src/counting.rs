//! How the athletes of an application are counted, by class of applications, and when a count is made
//! anew.
//!
//! *Increments* are what the board of the applications does: every event changes the count in the step that
//! moves the fence, so the count is exact. *Recount* asks the canonical store again now and then: a small
//! application after every event, a large one after some of them, so often that a count of any size is as
//! fresh. That was proposed for connected athletes at Strava. Everything here is pure: the random number is
//! handed in.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Classes at most: each application is compared with all of them.
pub const CLASSES_MAX: usize = 64;
/// The most applications that a class may list.
pub const LISTED_MAX: usize = 10_000;
/// The most bytes of a class's name.
pub const NAME_BYTES_MAX: usize = 64;
/// The most times a day that a large count may be asked to be fresh.
pub const RECOUNTS_PER_DAY_MAX: i64 = 86_400;
/// The most events a day that an athlete may be said to cause.
pub const EVENTS_MAX: f64 = 1e6;
/// Of events a day so small a part is told apart.
const MICRO: f64 = 1e-6;
const MICROS: u64 = 1_000_000;
const DAY_MS: u64 = 86_400_000;

/// A class of applications as an operator writes it: a section `[[counting]]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountingSection {
    /// What it is called in answers and messages.
    pub class: String,
    /// "increments" or "recount".
    pub strategy: String,
    /// Applications that allow at least so many athletes belong to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_from: Option<i64>,
    /// These applications belong to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub applications: Vec<i64>,
    /// Counts below it are made anew after every event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub large_size: Option<i64>,
    /// How many events there are a day for each connected athlete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events_per_athlete_per_day: Option<f64>,
    /// How often a day a count from `large_size` on is to be made anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recounts_per_day: Option<i64>,
}

/// What is wrong with a list of sections.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {what}")]
pub struct CountingFlaw {
    /// Which section, from 0 on.
    pub section: usize,
    /// Which of its fields.
    pub field: &'static str,
    /// What is expected.
    pub what: String,
}

/// When a count of a recounted class is made anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    large_size: u64,
    /// Events a day for each athlete, in millionths; at least one.
    events_micros: u64,
    /// At least one.
    recounts_per_day: u64,
}

impl Policy {
    /// Of how many events one makes a count of this size anew: 1 for small ones.
    ///
    /// An application of `count` athletes has `count × events_per_athlete_per_day` events a day, and
    /// `recounts_per_day` of them are to count. So one in `count ÷ ratio` does, where the ratio is
    /// `recounts_per_day ÷ events_per_athlete_per_day`.
    #[must_use]
    pub fn one_in(&self, count: u64) -> u64 {
        if count < self.large_size {
            return 1;
        }
        let events = u128::from(count) * u128::from(self.events_micros);
        let wanted = u128::from(self.recounts_per_day) * u128::from(MICROS);
        u64::try_from(events / wanted).unwrap_or(u64::MAX).max(1)
    }

    /// How old a count may become before it is made anew without an event, in milliseconds: a day's share.
    #[must_use]
    pub const fn share_ms(&self) -> u64 {
        DAY_MS / self.recounts_per_day
    }
}

/// Whether an event makes the count of an application anew.
///
/// `count` is the one that is recorded, if there is one; `draw` is any number of 64 bits, each as likely. What
/// is not known is counted, a count below the large size is, and of a larger one every event is as likely to, with
/// one in [`Policy::one_in`]. Nothing is counted of an application that is not enabled.
#[must_use]
pub fn should_count(is_enabled: bool, count: Option<u64>, policy: &Policy, draw: u64) -> bool {
    if !is_enabled {
        return false;
    }
    let Some(count) = count else { return true };
    // The first of so many equal parts of all numbers.
    let part = (u128::from(draw) * u128::from(policy.one_in(count))) >> u64::BITS;
    part == 0
}

/// How the applications of a class are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// Every event changes the count.
    Increments,
    /// Counts are made anew.
    Recount(Policy),
}

/// A class of applications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    name: String,
    strategy: Strategy,
    capacity_from: Option<i64>,
    applications: BTreeSet<i64>,
}

impl Class {
    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How its applications are counted.
    #[must_use]
    pub const fn strategy(&self) -> Strategy {
        self.strategy
    }

    fn has(&self, application: i64, capacity: i64) -> bool {
        let is_large = self.capacity_from.is_some_and(|from| capacity >= from);
        is_large || self.applications.contains(&application)
    }
}

/// The classes of an installation, checked. An application belongs to the first one that has it; one that
/// is in none is counted by increments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counting(Vec<Class>);

impl Counting {
    /// The classes that sections say.
    ///
    /// # Errors
    /// The first field that can't be used.
    pub fn of(sections: &[CountingSection]) -> Result<Self, CountingFlaw> {
        let mut classes: Vec<Class> = Vec::with_capacity(sections.len());
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        for (index, section) in sections.iter().enumerate() {
            let flaw = |(field, what): (&'static str, String)| CountingFlaw {
                section: index,
                field,
                what,
            };
            if index >= CLASSES_MAX {
                let what = format!("there are more than {CLASSES_MAX} classes");
                return Err(flaw(("class", what)));
            }
            if names.insert(&section.class, index).is_some() {
                let what = format!("{:?} is the name of another class too", section.class);
                return Err(flaw(("class", what)));
            }
            classes.push(section.check().map_err(flaw)?);
        }
        Ok(Self(classes))
    }

    /// The class of an application that allows so many athletes; nothing: it is counted by increments.
    #[must_use]
    pub fn class_of(&self, application: i64, capacity: i64) -> Option<&Class> {
        self.0.iter().find(|class| class.has(application, capacity))
    }

    /// When the count of an application is made anew; nothing if it is counted by increments.
    #[must_use]
    pub fn policy_of(&self, application: i64, capacity: i64) -> Option<Policy> {
        match self.class_of(application, capacity)?.strategy {
            Strategy::Increments => None,
            Strategy::Recount(policy) => Some(policy),
        }
    }

    /// Whether any application may be of a class that recounts.
    #[must_use]
    pub fn recounts(&self) -> bool {
        self.recounting().next().is_some()
    }

    /// Whether this application may be of a class that recounts, whatever its capacity is.
    #[must_use]
    pub fn may_recount(&self, application: i64) -> bool {
        let mut recounting = self.recounting();
        recounting.any(|(class, _)| {
            class.capacity_from.is_some() || class.applications.contains(&application)
        })
    }

    /// The shortest of the classes' shares of a day, in milliseconds ([`Policy::share_ms`]).
    #[must_use]
    pub fn share_ms(&self) -> Option<u64> {
        self.recounting().map(|(_, policy)| policy.share_ms()).min()
    }

    /// The applications that may belong to a class that recounts, ascending; nothing if only their capacities
    /// tell.
    #[must_use]
    pub fn listed(&self) -> Option<BTreeSet<i64>> {
        let mut listed = BTreeSet::new();
        for (class, _) in self.recounting() {
            if class.capacity_from.is_some() {
                return None;
            }
            listed.extend(&class.applications);
        }
        Some(listed)
    }

    fn recounting(&self) -> impl Iterator<Item = (&Class, Policy)> {
        self.0.iter().filter_map(|class| match class.strategy {
            Strategy::Increments => None,
            Strategy::Recount(policy) => Some((class, policy)),
        })
    }
}

type Wrong = (&'static str, String);

impl CountingSection {
    fn check(&self) -> Result<Class, Wrong> {
        let is_name = |sign: char| sign.is_ascii_alphanumeric() || "_-.".contains(sign);
        if self.class.is_empty()
            || self.class.len() > NAME_BYTES_MAX
            || !self.class.chars().all(is_name)
        {
            let what = format!("expected 1 to {NAME_BYTES_MAX} letters, digits, '_', '-' and '.'");
            return Err(("class", what));
        }
        let strategy = match &*self.strategy {
            "increments" => self.increments()?,
            "recount" => Strategy::Recount(self.policy()?),
            _ => {
                let what = "expected \"increments\" or \"recount\"";
                return Err(("strategy", what.to_owned()));
            }
        };
        if self.capacity_from.is_none() && self.applications.is_empty() {
            let what = "say which applications belong to the class: capacity_from, applications or both; capacity_from = 0 is all of them";
            return Err(("class", what.to_owned()));
        }
        if self.capacity_from.is_some_and(|from| from < 0) {
            return Err(("capacity_from", "expected 0 or more".to_owned()));
        }
        if self.applications.len() > LISTED_MAX {
            let what = format!("at most {LISTED_MAX} can be listed; use capacity_from");
            return Err(("applications", what));
        }
        Ok(Class {
            name: self.class.clone(),
            strategy,
            capacity_from: self.capacity_from,
            applications: self.applications.iter().copied().collect(),
        })
    }

    fn increments(&self) -> Result<Strategy, Wrong> {
        let given = [
            ("large_size", self.large_size.is_some()),
            (
                "events_per_athlete_per_day",
                self.events_per_athlete_per_day.is_some(),
            ),
            ("recounts_per_day", self.recounts_per_day.is_some()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            None => Ok(Strategy::Increments),
            Some((field, _)) => {
                let what = "is of the strategy \"recount\"; increments count every event";
                Err((field, what.to_owned()))
            }
        }
    }

    fn policy(&self) -> Result<Policy, Wrong> {
        fn needed<T>(field: &'static str, value: Option<T>) -> Result<T, Wrong> {
            value.ok_or_else(|| {
                let what = format!("the strategy \"recount\" needs {field}");
                (field, what)
            })
        }
        let large_size = needed("large_size", self.large_size)?;
        let Ok(large_size) = u64::try_from(large_size) else {
            return Err(("large_size", "expected 0 or more".to_owned()));
        };
        const EVENTS: &str = "events_per_athlete_per_day";
        let events = needed(EVENTS, self.events_per_athlete_per_day)?;
        // What is not a number is in no range.
        if !(MICRO..=EVENTS_MAX).contains(&events) {
            let what = format!("expected {MICRO} to {EVENTS_MAX}");
            return Err((EVENTS, what));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is between 1 and 10¹²"
        )]
        let events_micros = (events / MICRO).round() as u64;
        let recounts = needed("recounts_per_day", self.recounts_per_day)?;
        let is_in_range = (1..=RECOUNTS_PER_DAY_MAX).contains(&recounts);
        let Some(recounts_per_day) = u64::try_from(recounts).ok().filter(|_| is_in_range) else {
            let what = format!("expected 1 to {RECOUNTS_PER_DAY_MAX}");
            return Err(("recounts_per_day", what));
        };
        Ok(Policy {
            large_size,
            events_micros: events_micros.max(1),
            recounts_per_day,
        })
    }
}

#[cfg(test)]
#[path = "counting_tests.rs"]
mod tests;
