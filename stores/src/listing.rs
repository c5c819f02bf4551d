//! Sorted and filtered lists of applications: by id, name, number of athletes or used capacity. The
//! API and the command line use them.
//!
//! The store returns applications by id alone. Any other order reads all applications in batches,
//! and keeps the rows of one page in memory.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Result;
use crate::admin::{ApplicationUsage, EntityAdmin};

/// The number of applications that are read at once.
const READ_BATCH: usize = 1_000;

/// The sort key of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplicationSort {
    /// The id.
    Id,
    /// The name, ignoring case.
    Name,
    /// The number of connected athletes, by the counter of the database.
    Connected,
    /// The used part of the capacity. With a capacity of 0, one athlete uses more than any other
    /// application.
    Usage,
}

impl ApplicationSort {
    /// Returns whether the default order is descending, as for numbers.
    #[must_use]
    pub const fn is_descending(self) -> bool {
        matches!(self, Self::Connected | Self::Usage)
    }
}

/// A position in a list. The id is the tie-breaker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListingCursor {
    key: SortValue,
    id: i64,
}

/// The value of the sort key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum SortValue {
    IdOnly(()),
    Text(String),
    /// A ratio, compared exactly at any size.
    Ratio(u64, u64),
}

impl SortValue {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (
                Self::Ratio(numerator, denominator),
                Self::Ratio(other_numerator, other_denominator),
            ) => {
                let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
                product(*numerator, *other_denominator)
                    .cmp(&product(*other_numerator, *denominator))
            }
            // Values of one list have the same variant.
            _ => Ordering::Equal,
        }
    }
}

/// The ratio of connected athletes to capacity. With a capacity of 0, one athlete makes it
/// infinite.
fn usage_ratio(usage: &ApplicationUsage) -> (u64, u64) {
    let connected = u64::try_from(usage.connected.unwrap_or_default()).unwrap_or_default();
    match u64::try_from(usage.application.athlete_capacity) {
        Ok(capacity) if capacity > 0 => (connected, capacity),
        _ if connected > 0 => (1, 0),
        _ => (0, 1),
    }
}

/// The filter and order of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct ApplicationListing {
    /// The sort key.
    pub sort: ApplicationSort,
    /// True if the order is descending.
    pub is_descending: bool,
    /// Only applications with this id, or whose name or owner contains this text, ignoring case.
    pub search: Option<String>,
    /// Only applications of this owner.
    pub owner: Option<String>,
    /// Only applications with at least this part of the capacity in use: 0.8 for 80 %.
    pub usage_from: Option<f64>,
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq)]
pub enum ListingPage {
    /// The first applications after a position, in order.
    Entries(Vec<(ListingCursor, ApplicationUsage)>),
    /// The order or the filter needs counters, and authorizations are a view on an application's
    /// own table.
    NotCounted,
}

impl ApplicationListing {
    fn cursor(&self, usage: &ApplicationUsage) -> ListingCursor {
        let key = match self.sort {
            ApplicationSort::Id => SortValue::IdOnly(()),
            ApplicationSort::Name => SortValue::Text(usage.application.name.to_lowercase()),
            ApplicationSort::Connected => {
                let connected = usage.connected.unwrap_or_default();
                SortValue::Ratio(u64::try_from(connected).unwrap_or_default(), 1)
            }
            ApplicationSort::Usage => {
                let (numerator, denominator) = usage_ratio(usage);
                SortValue::Ratio(numerator, denominator)
            }
        };
        ListingCursor {
            key,
            id: usage.application.id,
        }
    }

    fn compare(&self, a: &ListingCursor, b: &ListingCursor) -> Ordering {
        let order = (a.key.cmp(&b.key)).then_with(|| a.id.cmp(&b.id));
        match self.is_descending {
            true => order.reverse(),
            false => order,
        }
    }

    fn matches(&self, usage: &ApplicationUsage) -> bool {
        let application = &usage.application;
        let owner = match &application.owner {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        if self
            .owner
            .as_ref()
            .is_some_and(|expected| *expected != owner)
        {
            return false;
        }
        let is_match = self.search.as_deref().is_none_or(|search| {
            let search = search.to_lowercase();
            application.id.to_string() == search
                || application.name.to_lowercase().contains(&search)
                || owner.to_lowercase().contains(&search)
        });
        #[expect(clippy::cast_precision_loss, reason = "the filter has few digits")]
        let is_used = self.usage_from.is_none_or(|from| {
            let (numerator, denominator) = usage_ratio(usage);
            numerator as f64 / denominator as f64 >= from
        });
        is_match && is_used
    }

    /// Returns whether the list needs the counters of the database.
    const fn needs_counters(&self) -> bool {
        matches!(
            self.sort,
            ApplicationSort::Connected | ApplicationSort::Usage
        ) || self.usage_from.is_some()
    }

    /// Reads the first applications after a position, in order, at most `limit`. Reads all
    /// applications in batches, unless the order is by id.
    ///
    /// # Errors
    /// As [`EntityAdmin::usages`].
    pub async fn read_page(
        &self,
        entities: &dyn EntityAdmin,
        after: Option<ListingCursor>,
        limit: usize,
    ) -> Result<ListingPage> {
        let in_order = self.sort == ApplicationSort::Id && !self.is_descending;
        let mut entries: Vec<(ListingCursor, ApplicationUsage)> = Vec::new();
        let mut last_id = match &after {
            Some(cursor) if in_order => Some(cursor.id),
            _ => None,
        };
        loop {
            let is_filtered =
                self.search.is_some() || self.owner.is_some() || self.usage_from.is_some();
            let batch_rows = if in_order && !is_filtered {
                limit
            } else {
                READ_BATCH
            };
            let usages = entities.usages(last_id, batch_rows).await?;
            let is_last = usages.len() < batch_rows;
            last_id = usages.last().map(|usage| usage.application.id);
            if self.needs_counters() && usages.iter().any(|usage| usage.connected.is_none()) {
                return Ok(ListingPage::NotCounted);
            }
            for usage in usages {
                let cursor = self.cursor(&usage);
                let is_later = |after: &ListingCursor| self.compare(after, &cursor).is_lt();
                if !after.as_ref().is_none_or(is_later) || !self.matches(&usage) {
                    continue;
                }
                entries.push((cursor, usage));
            }
            entries.sort_by(|(a, _), (b, _)| self.compare(a, b));
            entries.truncate(limit);
            if is_last || (in_order && entries.len() == limit) {
                return Ok(ListingPage::Entries(entries));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_compared_exactly() {
        let max = u64::MAX;
        let order = [
            SortValue::Ratio(0, max),
            SortValue::Ratio(1, max),
            SortValue::Ratio(1, max - 1),
            SortValue::Ratio(max - 2, max - 1),
            SortValue::Ratio(max - 1, max),
            SortValue::Ratio(1, 1),
            SortValue::Ratio(1, 0),
        ];
        for pair in order.windows(2) {
            assert_eq!(pair[0].cmp(&pair[1]), Ordering::Less, "{pair:?}");
            assert_eq!(pair[1].cmp(&pair[0]), Ordering::Greater, "{pair:?}");
        }
        assert_eq!(
            SortValue::Ratio(2, 4).cmp(&SortValue::Ratio(1, 2)),
            Ordering::Equal
        );
    }
}
