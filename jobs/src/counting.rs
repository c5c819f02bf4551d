//! Counting classes: how the athletes of an application are counted, and when they are recounted.
//!
//! With *increments*, every event changes the count in the step that advances the checkpoint, so
//! the count is exact.
//!
//! With *recount*, the count is also read from the entity store: for a small application after
//! every event, for a large one after a share of its events. The share decreases with the size, so
//! that counts of every size are equally fresh. This was proposed for connected athletes at Strava.
//!
//! All functions are pure; the caller supplies the random number.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// The maximum number of classes. Each application is compared with all of them.
pub const CLASSES_MAX: usize = 64;
/// The maximum number of applications that a class lists.
pub const LISTED_MAX: usize = 10_000;
/// The maximum bytes of a class name.
pub const NAME_BYTES_MAX: usize = 64;
/// The maximum recounts per day of a large count.
pub const RECOUNTS_PER_DAY_MAX: i64 = 86_400;
/// The maximum events per athlete and day.
pub const EVENTS_MAX: f64 = 1e6;
/// The resolution of the events per athlete and day.
const MICRO: f64 = 1e-6;
const MICROS: u64 = 1_000_000;
const DAY_MS: u64 = 86_400_000;

/// A class of applications in the configuration: a section `[[counting]]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountingSection {
    /// The name of the class in responses and messages.
    pub class: String,
    /// "increments" or "recount".
    pub strategy: String,
    /// The class includes applications with at least this athlete capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_from: Option<i64>,
    /// The class includes these applications.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub applications: Vec<i64>,
    /// Counts below this size are recounted after every event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub large_size: Option<i64>,
    /// Expected events per day for each connected athlete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events_per_athlete_per_day: Option<f64>,
    /// Recounts per day of a count that is at least `large_size`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recounts_per_day: Option<i64>,
}

/// An invalid section.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct CountingError {
    /// The index of the section.
    pub section: usize,
    /// The invalid field.
    pub field: &'static str,
    /// The expected value, or the problem.
    pub reason: String,
}

/// Decides when a count is recounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecountPolicy {
    large_size: u64,
    /// Events per athlete and day, in millionths; at least 1.
    events_micros: u64,
    /// At least 1.
    recounts_per_day: u64,
}

impl RecountPolicy {
    /// Returns the number of events for each recount of a count of this size; 1 if it is small.
    ///
    /// An application of `count` athletes has `count × events_per_athlete_per_day` events a day,
    /// and `recounts_per_day` of them cause a recount. So one in `count ÷ ratio` events does, where
    /// the ratio is `recounts_per_day ÷ events_per_athlete_per_day`.
    #[must_use]
    pub fn events_per_recount(&self, count: u64) -> u64 {
        if count < self.large_size {
            return 1;
        }
        let events = u128::from(count) * u128::from(self.events_micros);
        let recounts = u128::from(self.recounts_per_day) * u128::from(MICROS);
        u64::try_from(events / recounts).unwrap_or(u64::MAX).max(1)
    }

    /// Returns the maximum age of a count in milliseconds. An older count is recounted without an
    /// event.
    #[must_use]
    pub const fn recount_interval_ms(&self) -> u64 {
        DAY_MS / self.recounts_per_day
    }
}

/// Returns whether an event causes a recount of an application.
///
/// `count` is the recorded count, if any. `draw` is a uniformly distributed random number of 64
/// bits. An unknown count and a count below the large size are always recounted. A larger one is
/// recounted with a probability of one in [`RecountPolicy::events_per_recount`]. An application
/// that is not enabled is never recounted.
#[must_use]
pub fn should_recount(
    is_enabled: bool,
    count: Option<u64>,
    policy: &RecountPolicy,
    draw: u64,
) -> bool {
    if !is_enabled {
        return false;
    }
    let Some(count) = count else { return true };
    // True if the draw is in the first of `events_per_recount` equal parts of the range.
    let part = (u128::from(draw) * u128::from(policy.events_per_recount(count))) >> u64::BITS;
    part == 0
}

/// How the applications of a class are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountingStrategy {
    /// Every event changes the count.
    Increments,
    /// The count is also read from the entity store.
    Recount(RecountPolicy),
}

/// A class of applications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountingClass {
    name: String,
    strategy: CountingStrategy,
    capacity_from: Option<i64>,
    applications: BTreeSet<i64>,
}

impl CountingClass {
    /// Returns the name of the class.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns how the applications of the class are counted.
    #[must_use]
    pub const fn strategy(&self) -> CountingStrategy {
        self.strategy
    }

    fn contains(&self, application: i64, capacity: i64) -> bool {
        let is_large = self.capacity_from.is_some_and(|from| capacity >= from);
        is_large || self.applications.contains(&application)
    }
}

/// The validated classes of an installation. An application belongs to the first class that
/// includes it. An application in no class is counted by increments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CountingClasses(Vec<CountingClass>);

impl CountingClasses {
    /// Validates the classes.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn parse(sections: &[CountingSection]) -> Result<Self, CountingError> {
        let mut classes: Vec<CountingClass> = Vec::with_capacity(sections.len());
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        for (index, section) in sections.iter().enumerate() {
            let error = |(field, reason): FieldError| CountingError {
                section: index,
                field,
                reason,
            };
            if index >= CLASSES_MAX {
                let reason = format!("at most {CLASSES_MAX} classes are allowed");
                return Err(error(("class", reason)));
            }
            if names.insert(&section.class, index).is_some() {
                let reason = format!("{:?} is the name of another class", section.class);
                return Err(error(("class", reason)));
            }
            classes.push(section.check().map_err(error)?);
        }
        Ok(Self(classes))
    }

    /// Finds the class of an application with this athlete capacity. `None` means increments.
    #[must_use]
    pub fn find_class(&self, application: i64, capacity: i64) -> Option<&CountingClass> {
        self.0
            .iter()
            .find(|class| class.contains(application, capacity))
    }

    /// Finds the recount policy of an application. `None` means increments.
    #[must_use]
    pub fn find_policy(&self, application: i64, capacity: i64) -> Option<RecountPolicy> {
        match self.find_class(application, capacity)?.strategy {
            CountingStrategy::Increments => None,
            CountingStrategy::Recount(policy) => Some(policy),
        }
    }

    /// Returns whether any class recounts.
    #[must_use]
    pub fn has_recount_class(&self) -> bool {
        self.recount_classes().next().is_some()
    }

    /// Returns whether this application may be in a class that recounts, for some capacity.
    #[must_use]
    pub fn may_recount(&self, application: i64) -> bool {
        let mut recount_classes = self.recount_classes();
        recount_classes.any(|(class, _)| {
            class.capacity_from.is_some() || class.applications.contains(&application)
        })
    }

    /// Returns the shortest interval of all classes, in milliseconds
    /// ([`RecountPolicy::recount_interval_ms`]).
    #[must_use]
    pub fn shortest_recount_interval_ms(&self) -> Option<u64> {
        self.recount_classes()
            .map(|(_, policy)| policy.recount_interval_ms())
            .min()
    }

    /// Returns the applications that may belong to a class that recounts, ascending. Returns `None`
    /// if a class selects applications by capacity.
    #[must_use]
    pub fn listed_applications(&self) -> Option<BTreeSet<i64>> {
        let mut listed = BTreeSet::new();
        for (class, _) in self.recount_classes() {
            if class.capacity_from.is_some() {
                return None;
            }
            listed.extend(&class.applications);
        }
        Some(listed)
    }

    fn recount_classes(&self) -> impl Iterator<Item = (&CountingClass, RecountPolicy)> {
        self.0.iter().filter_map(|class| match class.strategy {
            CountingStrategy::Increments => None,
            CountingStrategy::Recount(policy) => Some((class, policy)),
        })
    }
}

/// An invalid field, and the expected value or the problem.
type FieldError = (&'static str, String);

impl CountingSection {
    fn check(&self) -> Result<CountingClass, FieldError> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if self.class.is_empty()
            || self.class.len() > NAME_BYTES_MAX
            || !self.class.chars().all(is_allowed)
        {
            let reason =
                format!("expected 1 to {NAME_BYTES_MAX} letters, digits, '_', '-' and '.'");
            return Err(("class", reason));
        }
        let strategy = match &*self.strategy {
            "increments" => self.check_increments()?,
            "recount" => CountingStrategy::Recount(self.parse_policy()?),
            _ => {
                let reason = "expected \"increments\" or \"recount\"";
                return Err(("strategy", reason.to_owned()));
            }
        };
        if self.capacity_from.is_none() && self.applications.is_empty() {
            let reason = "the class needs capacity_from, applications or both; capacity_from = 0 includes all applications";
            return Err(("class", reason.to_owned()));
        }
        if self.capacity_from.is_some_and(|from| from < 0) {
            return Err(("capacity_from", "expected 0 or more".to_owned()));
        }
        if self.applications.len() > LISTED_MAX {
            let reason = format!("at most {LISTED_MAX} can be listed; use capacity_from");
            return Err(("applications", reason));
        }
        Ok(CountingClass {
            name: self.class.clone(),
            strategy,
            capacity_from: self.capacity_from,
            applications: self.applications.iter().copied().collect(),
        })
    }

    fn check_increments(&self) -> Result<CountingStrategy, FieldError> {
        let recount_fields = [
            ("large_size", self.large_size.is_some()),
            (
                "events_per_athlete_per_day",
                self.events_per_athlete_per_day.is_some(),
            ),
            ("recounts_per_day", self.recounts_per_day.is_some()),
        ];
        match recount_fields.into_iter().find(|(_, is_set)| *is_set) {
            None => Ok(CountingStrategy::Increments),
            Some((field, _)) => {
                let reason = "applies only to strategy = \"recount\"";
                Err((field, reason.to_owned()))
            }
        }
    }

    fn parse_policy(&self) -> Result<RecountPolicy, FieldError> {
        fn require<T>(field: &'static str, value: Option<T>) -> Result<T, FieldError> {
            value.ok_or_else(|| {
                let reason = format!("strategy = \"recount\" needs {field}");
                (field, reason)
            })
        }
        let large_size = require("large_size", self.large_size)?;
        let Ok(large_size) = u64::try_from(large_size) else {
            return Err(("large_size", "expected 0 or more".to_owned()));
        };
        const EVENTS: &str = "events_per_athlete_per_day";
        let events = require(EVENTS, self.events_per_athlete_per_day)?;
        // NaN is in no range.
        if !(MICRO..=EVENTS_MAX).contains(&events) {
            let reason = format!("expected {MICRO} to {EVENTS_MAX}");
            return Err((EVENTS, reason));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is between 1 and 10¹²"
        )]
        let events_micros = (events / MICRO).round() as u64;
        let recounts = require("recounts_per_day", self.recounts_per_day)?;
        let is_in_range = (1..=RECOUNTS_PER_DAY_MAX).contains(&recounts);
        let Some(recounts_per_day) = u64::try_from(recounts).ok().filter(|_| is_in_range) else {
            let reason = format!("expected 1 to {RECOUNTS_PER_DAY_MAX}");
            return Err(("recounts_per_day", reason));
        };
        Ok(RecountPolicy {
            large_size,
            events_micros: events_micros.max(1),
            recounts_per_day,
        })
    }
}

#[cfg(test)]
#[path = "counting_tests.rs"]
mod tests;
