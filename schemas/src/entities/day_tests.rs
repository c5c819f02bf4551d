//! Tests of local days in all time zones, including the distant past.

use jiff::civil::{DateTime, date};
use jiff::tz::TimeZoneDatabase;
use proptest::prelude::*;

use super::*;
use crate::line::INSTANT_SECONDS;

#[test]
fn local_days_are_dates_on_the_local_calendar() {
    for (at, tz, day) in [
        ("2013-05-06T23:30:00Z", "UTC", 20_130_506),
        ("2013-05-06T23:30:00Z", "Europe/Berlin", 20_130_507),
        ("2013-05-06T23:30:00Z", "America/New_York", 20_130_506),
        ("2014-01-01T00:30:00Z", "America/New_York", 20_131_231),
        ("1969-12-31T23:59:59.999999Z", "UTC", 19_691_231),
        ("1970-01-01T00:00:00Z", "UTC", 19_700_101),
        // Local mean time was 53 minutes and 28 seconds ahead in Berlin, 17 minutes and 30 seconds
        // in Brussels.
        ("1850-06-01T23:06:31.999999Z", "Europe/Berlin", 18_500_601),
        ("1850-06-01T23:06:32Z", "Europe/Berlin", 18_500_602),
        ("1850-06-01T23:42:29.999999Z", "Europe/Brussels", 18_500_601),
        ("1850-06-01T23:42:30Z", "Europe/Brussels", 18_500_602),
        // Samoa had no 30 December 2011.
        ("2011-12-30T09:59:59Z", "Pacific/Apia", 20_111_229),
        ("2011-12-30T10:00:00Z", "Pacific/Apia", 20_111_231),
        // At 00:01 the clocks of St. John's were put back to 23:01 of the day before.
        ("2010-11-07T02:30:30Z", "America/St_Johns", 20_101_107),
        ("2010-11-07T02:45:00Z", "America/St_Johns", 20_101_106),
    ] {
        let at_us = at.parse::<Timestamp>().unwrap().as_microsecond();
        assert_eq!(
            local_day(at_us, &parse_zone(tz).unwrap()),
            Ok(day),
            "{at} in {tz}"
        );
    }
    for at_us in [i64::MIN, -62_135_596_800_000_001, i64::MAX] {
        let reason = local_day(at_us, &TimeZone::UTC).unwrap_err();
        assert!(reason.starts_with("started_at: "), "{reason}");
    }
    assert_eq!(
        local_day(-62_135_596_800_000_000, &TimeZone::UTC),
        Ok(10_101)
    );
}

#[test]
fn every_accepted_time_has_a_local_day_in_every_zone() {
    for name in TimeZoneDatabase::bundled().available() {
        let Ok(zone) = parse_zone(name.as_str()) else {
            assert_eq!(name.as_str(), "Etc/Unknown");
            continue;
        };
        assert_eq!(canonical_name(&zone), name.as_str());
        for second in [INSTANT_SECONDS.start, INSTANT_SECONDS.end - 1] {
            let day = local_day(second * 1_000_000, &zone).unwrap();
            assert!((16_771_231..=22_620_101).contains(&day), "{name:?} {day}");
        }
    }
}

/// A zone of the database.
fn any_zone() -> impl Strategy<Value = TimeZone> {
    let names: Vec<String> = TimeZoneDatabase::bundled()
        .available()
        .map(|name| name.to_string())
        .collect();
    proptest::sample::select(names).prop_filter_map("a zone", |name| parse_zone(&name).ok())
}

proptest! {
    /// The day follows from the zone's offset at that time, and its parts are those of
    /// the date.
    #[test]
    fn local_days_follow_from_offsets(
        zone in any_zone(),
        at_us in INSTANT_SECONDS.start * 1_000_000..INSTANT_SECONDS.end * 1_000_000,
    ) {
        let instant = Timestamp::from_microsecond(at_us).unwrap();
        let offset_us = i64::from(zone.to_offset(instant).seconds()) * 1_000_000;
        let days = (at_us + offset_us).div_euclid(86_400_000_000);
        let expected = date(1970, 1, 1).checked_add(jiff::Span::new().days(days)).unwrap();
        prop_assert_eq!(
            local_day(at_us, &zone).unwrap().to_string(),
            expected.strftime("%Y%m%d").to_string()
        );
        prop_assert_eq!(expected, instant.to_zoned(zone).date());
    }

    /// Around a clock change, the day is that of the local clock.
    #[test]
    fn local_days_follow_the_clocks(
        zone in any_zone(),
        second in INSTANT_SECONDS,
        around_us in -5_000_000_i64..5_000_000,
    ) {
        let start = Timestamp::from_second(second).unwrap();
        let Some(change) = zone.following(start).next() else { return Ok(()) };
        let at_us = change.timestamp().as_microsecond() + around_us;
        let shown: DateTime = zone.to_datetime(Timestamp::from_microsecond(at_us).unwrap());
        let day = local_day(at_us, &zone).unwrap();
        prop_assert_eq!(day / 10_000, i64::from(shown.year()));
        prop_assert_eq!(day / 100 % 100, i64::from(shown.month()));
        prop_assert_eq!(day % 100, i64::from(shown.day()));
    }
}
