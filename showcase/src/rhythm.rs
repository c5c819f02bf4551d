//! The activity of listeners by hour of the day and day of the week.

const HOUR_MS: i64 = 3_600_000;
/// The relative activity in each hour of a UTC day.
const HOURS: [f64; 24] = [
    30., 22., 16., 13., 12., 14., 20., 32., 46., 55., 60., 63., 66., 68., 70., 74., 80., 88., 96.,
    100., 98., 86., 66., 46.,
];
/// The relative activity on each day of a week. Starts with Thursday, the weekday of the Unix
/// epoch.
const DAYS: [f64; 7] = [10., 12., 13., 12., 10., 10., 10.];
/// The average of [`activity`] over a week.
const AVERAGE: f64 = 1_321. / 24. * 11.;

/// The activity in the hour of an instant, without a unit.
#[must_use]
pub fn activity(at_ms: i64) -> f64 {
    let hour = at_ms.div_euclid(HOUR_MS);
    let index = |number: i64| usize::try_from(number).unwrap_or_default();
    HOURS[index(hour.rem_euclid(24))] * DAYS[index(hour.div_euclid(24).rem_euclid(7))]
}

/// The activity in the hour of an instant, relative to the average of a week.
pub(crate) fn relative_activity(at_ms: i64) -> f64 {
    activity(at_ms) / AVERAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_activity_averages_one() {
        let sum: f64 = (0..168).map(|hour| relative_activity(hour * HOUR_MS)).sum();
        assert!((sum / 168.0 - 1.0).abs() < 1e-9, "{sum}");
    }
}
