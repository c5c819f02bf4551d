//! Applications in an order that is asked for: by id, name, number of athletes or how much of the capacity is
//! in use, as the API and the command line list them.
//!
//! The store gives applications by id alone. In any other order all are looked at, some at a time, and as many
//! are kept as are shown.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Result;
use crate::admin::{CanonAdmin, Usage};

/// Applications that are looked at at once.
const STEP: usize = 1_000;

/// What applications are put in order by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// Their ids.
    Id,
    /// Their names, whatever the case.
    Name,
    /// Connected athletes, by the counter of the database.
    Connected,
    /// Connected athletes by capacity. Where nobody may connect and somebody is, more is in use than of any
    /// other.
    Usage,
}

impl Sort {
    /// Whether the last come first if nothing else is said: the largest of numbers do.
    #[must_use]
    pub const fn descends(self) -> bool {
        matches!(self, Self::Connected | Self::Usage)
    }
}

/// Where an application stands in an order: its id decides where the rest is equal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    key: Key,
    id: i64,
}

/// What decides about an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Key {
    Nothing(()),
    Text(String),
    /// Parts of a whole: exact, whatever the size.
    Parts(u64, u64),
}

impl Key {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Text(one), Self::Text(other)) => one.cmp(other),
            (Self::Parts(part, whole), Self::Parts(of, all)) => {
                let product = |one: u64, other: u64| u128::from(one) * u128::from(other);
                product(*part, *all).cmp(&product(*of, *whole))
            }
            // Keys of one question are of one kind.
            _ => Ordering::Equal,
        }
    }
}

/// Connected athletes and capacity. Where nobody may connect all of it is in use once somebody is, and
/// more than of any other.
fn parts(usage: &Usage) -> (u64, u64) {
    let connected = u64::try_from(usage.connected.unwrap_or_default()).unwrap_or_default();
    match u64::try_from(usage.application.athlete_capacity) {
        Ok(capacity) if capacity > 0 => (connected, capacity),
        _ if connected > 0 => (1, 0),
        _ => (0, 1),
    }
}

/// Which applications are listed, and in which order.
#[derive(Debug, Clone, PartialEq)]
pub struct Listing {
    /// What they are put in order by.
    pub sort: Sort,
    /// Whether the last come first.
    pub descends: bool,
    /// Those whose id is this, or in whose name or owner this is found, whatever the case.
    pub search: Option<String>,
    /// Those of this owner only.
    pub owner: Option<String>,
    /// Those of whose capacity at least this part is in use: 0.8 for 80 %.
    pub usage_from: Option<f64>,
}

/// A part of a list.
#[derive(Debug, Clone, PartialEq)]
pub enum Listed {
    /// The first after a place, in order.
    Found(Vec<(Place, Usage)>),
    /// Authorizations are a view of an app's own table, so nobody counts what the order or the filter takes.
    NotCounted,
}

impl Listing {
    fn place(&self, usage: &Usage) -> Place {
        let key = match self.sort {
            Sort::Id => Key::Nothing(()),
            Sort::Name => Key::Text(usage.application.name.to_lowercase()),
            Sort::Connected => {
                let connected = usage.connected.unwrap_or_default();
                Key::Parts(u64::try_from(connected).unwrap_or_default(), 1)
            }
            Sort::Usage => {
                let (part, whole) = parts(usage);
                Key::Parts(part, whole)
            }
        };
        Place {
            key,
            id: usage.application.id,
        }
    }

    fn order(&self, one: &Place, other: &Place) -> Ordering {
        let order = (one.key.cmp(&other.key)).then_with(|| one.id.cmp(&other.id));
        match self.descends {
            true => order.reverse(),
            false => order,
        }
    }

    fn is_among(&self, usage: &Usage) -> bool {
        let application = &usage.application;
        let owner = match &application.owner {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        if self.owner.as_ref().is_some_and(|of| *of != owner) {
            return false;
        }
        let is_found = self.search.as_deref().is_none_or(|search| {
            let search = search.to_lowercase();
            application.id.to_string() == search
                || application.name.to_lowercase().contains(&search)
                || owner.to_lowercase().contains(&search)
        });
        #[expect(
            clippy::cast_precision_loss,
            reason = "the part is given with as few digits"
        )]
        let is_used = self.usage_from.is_none_or(|from| {
            let (part, whole) = parts(usage);
            part as f64 / whole as f64 >= from
        });
        is_found && is_used
    }

    /// Whether it takes what the database counts.
    const fn needs_counters(&self) -> bool {
        matches!(self.sort, Sort::Connected | Sort::Usage) || self.usage_from.is_some()
    }

    /// The first of those that are asked for after a place, in order, at most `limit`. All applications are
    /// looked at, some at a time, unless they come in the order that they are asked for in.
    ///
    /// # Errors
    /// As [`CanonAdmin::usages`].
    pub async fn first(
        &self,
        canon: &dyn CanonAdmin,
        after: Option<Place>,
        limit: usize,
    ) -> Result<Listed> {
        let in_order = self.sort == Sort::Id && !self.descends;
        let mut found: Vec<(Place, Usage)> = Vec::new();
        let mut read = match &after {
            Some(place) if in_order => Some(place.id),
            _ => None,
        };
        loop {
            let is_filtered =
                self.search.is_some() || self.owner.is_some() || self.usage_from.is_some();
            let step = if in_order && !is_filtered {
                limit
            } else {
                STEP
            };
            let usages = canon.usages(read, step).await?;
            let is_last = usages.len() < step;
            read = usages.last().map(|usage| usage.application.id);
            if self.needs_counters() && usages.iter().any(|usage| usage.connected.is_none()) {
                return Ok(Listed::NotCounted);
            }
            for usage in usages {
                let place = self.place(&usage);
                let is_later = |after: &Place| self.order(after, &place).is_lt();
                if !after.as_ref().is_none_or(is_later) || !self.is_among(&usage) {
                    continue;
                }
                found.push((place, usage));
            }
            found.sort_by(|(one, _), (other, _)| self.order(one, other));
            found.truncate(limit);
            if is_last || (in_order && found.len() == limit) {
                return Ok(Listed::Found(found));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_compared_exactly() {
        let most = u64::MAX;
        let order = [
            Key::Parts(0, most),
            Key::Parts(1, most),
            Key::Parts(1, most - 1),
            Key::Parts(most - 2, most - 1),
            Key::Parts(most - 1, most),
            Key::Parts(1, 1),
            Key::Parts(1, 0),
        ];
        for pair in order.windows(2) {
            assert_eq!(pair[0].cmp(&pair[1]), Ordering::Less, "{pair:?}");
            assert_eq!(pair[1].cmp(&pair[0]), Ordering::Greater, "{pair:?}");
        }
        assert_eq!(Key::Parts(2, 4).cmp(&Key::Parts(1, 2)), Ordering::Equal);
    }
}
