//! Tests of zone names, and of local days around unusual clock changes.

use std::collections::HashSet;

use jiff::civil::date;

use super::*;

fn seconds_at(text: &str) -> UnixSeconds {
    text.parse::<Timestamp>().unwrap().as_second()
}

fn zone(name: &str) -> Zone {
    Zone::parse(name).unwrap()
}

#[test]
fn names_are_iana_names() {
    for (input, name) in [
        ("Europe/Berlin", "Europe/Berlin"),
        ("europe/BERLIN", "Europe/Berlin"),
        ("utc", "UTC"),
        ("Etc/UTC", "Etc/UTC"),
        ("Etc/GMT+5", "Etc/GMT+5"),
        ("Asia/Calcutta", "Asia/Calcutta"),
    ] {
        assert_eq!(zone(input).name(), name);
    }
    assert_eq!(Zone::default().name(), "UTC");
}

#[test]
fn rejects_other_names_with_advice() {
    for input in [
        "",
        " ",
        "+02:00",
        "-05",
        "local",
        "Local",
        "Etc/Unknown",
        "etc/unknown",
        "Mars/Olympus",
        "CEST",
        "EST5EDT,M3.2.0,M11.1.0",
        "../../etc/passwd",
        "Europe/Berlin ",
        "Z",
        "Europe",
    ] {
        assert_eq!(
            Zone::parse(input),
            Err(ZoneError::Unknown(input.to_owned())),
            "{input:?}"
        );
    }
    assert_eq!(
        Zone::parse("+02:00").unwrap_err().to_string(),
        "tz=\"+02:00\" is not a time zone: write an IANA name such as Europe/Berlin, not an offset \
         such as +02:00, or omit tz for UTC",
    );
}

#[test]
fn days_begin_at_their_first_instant() {
    for (name, date, first) in [
        ("UTC", date(2026, 7, 1), "2026-07-01T00:00:00Z"),
        ("Europe/Berlin", date(2026, 3, 29), "2026-03-28T23:00:00Z"),
        ("Europe/Berlin", date(2026, 3, 30), "2026-03-29T22:00:00Z"),
        ("Asia/Kathmandu", date(2026, 7, 1), "2026-06-30T18:15:00Z"),
        ("Asia/Kolkata", date(2026, 7, 1), "2026-06-30T18:30:00Z"),
        // Midnight is skipped: the day begins at 01:00.
        (
            "America/Sao_Paulo",
            date(2018, 11, 4),
            "2018-11-04T03:00:00Z",
        ),
        ("Africa/Cairo", date(2026, 4, 24), "2026-04-23T22:00:00Z"),
        ("Asia/Tehran", date(2022, 3, 22), "2022-03-21T20:30:00Z"),
        // 00:00 comes at the end of the day before as 23:00 once more: the day begins once.
        ("Africa/Cairo", date(2026, 10, 30), "2026-10-29T22:00:00Z"),
        // Midnight comes twice: the first one counts.
        ("America/Havana", date(2026, 11, 1), "2026-11-01T04:00:00Z"),
        (
            "America/St_Johns",
            date(2010, 11, 7),
            "2010-11-07T02:30:00Z",
        ),
        // Two hours at a time.
        (
            "Antarctica/Troll",
            date(2026, 3, 29),
            "2026-03-29T00:00:00Z",
        ),
        (
            "Antarctica/Troll",
            date(2026, 3, 30),
            "2026-03-29T22:00:00Z",
        ),
        // A whole day is skipped: it is as empty as the instant at which the next one begins.
        ("Pacific/Apia", date(2011, 12, 29), "2011-12-29T10:00:00Z"),
        ("Pacific/Apia", date(2011, 12, 30), "2011-12-30T10:00:00Z"),
        ("Pacific/Apia", date(2011, 12, 31), "2011-12-30T10:00:00Z"),
        ("Pacific/Apia", date(2012, 1, 1), "2011-12-31T10:00:00Z"),
    ] {
        assert_eq!(
            zone(name).day_start(date),
            Ok(seconds_at(first)),
            "{name} {date}"
        );
    }
}

#[test]
fn a_started_day_continues() {
    // At 00:01 the clocks of St. John's were put back to 23:01 of the day before.
    let zone = zone("America/St_Johns");
    let repeated = seconds_at("2010-11-07T02:45:00Z");
    assert_eq!(
        zone.local_time(repeated).unwrap(),
        date(2010, 11, 6).at(23, 15, 0, 0)
    );
    assert_eq!(zone.local_date(repeated), Ok(date(2010, 11, 7)));
    assert_eq!(
        zone.local_date(seconds_at("2010-11-07T02:29:59Z")),
        Ok(date(2010, 11, 6))
    );
}

#[test]
fn the_calendar_has_ends() {
    let utc = Zone::default();
    assert_eq!(utc.day_start(date(1, 1, 1)), Ok(-62_135_596_800));
    assert!(utc.day_start(date(9999, 12, 30)).is_ok());
    for date in [date(0, 12, 31), date(-9999, 1, 1), date(9999, 12, 31)] {
        assert!(
            matches!(utc.day_start(date), Err(ZoneError::OutOfRange(_))),
            "{date}"
        );
    }
    for seconds in [i64::MIN, -62_135_596_801, 253_402_207_201, i64::MAX] {
        assert!(
            matches!(utc.local_time(seconds), Err(ZoneError::OutOfRange(_))),
            "{seconds}"
        );
        assert!(
            matches!(utc.local_date(seconds), Err(ZoneError::OutOfRange(_))),
            "{seconds}"
        );
    }
    assert_eq!(utc.local_date(253_402_207_200), Ok(date(9999, 12, 30)));
    assert_eq!(
        utc.day_start(date(9999, 12, 31)).unwrap_err().to_string(),
        "9999-12-31T00:00:00 in UTC is outside the years 0001 to 9999: choose a time within them",
    );
}

/// Around every clock change of every zone, the first instant of a day is the first one at which
/// the local calendar shows that day or a later one. The test computes this from offsets only.
#[test]
fn days_partition_time_in_every_zone() {
    let mut rules = HashSet::new();
    for name in TimeZoneDatabase::bundled().available() {
        let zone = zone(name.as_str());
        let changes: Vec<_> = zone
            .changes_after(seconds_at("1880-01-01T00:00:00Z"))
            .unwrap()
            .take_while(|(change, _)| *change < seconds_at("2040-01-01T00:00:00Z"))
            .collect();
        if !rules.insert(changes.clone()) {
            continue;
        }
        for (change, _) in changes {
            let local_day = zone.local_time(change).unwrap().date();
            let mut day = local_day.yesterday().unwrap();
            for _ in 0..3 {
                let next = day.tomorrow().unwrap();
                let (first, end) = (zone.day_start(day).unwrap(), zone.day_start(next).unwrap());
                assert!(first <= end, "{name:?} {day}");
                assert!(
                    zone.local_time(first).unwrap().date() >= day,
                    "{name:?} {day}"
                );
                assert!(
                    zone.local_time(first - 1).unwrap().date() < day,
                    "{name:?} {day}"
                );
                if first < end {
                    assert_eq!(zone.local_date(first), Ok(day), "{name:?}");
                    assert_eq!(zone.local_date(end - 1), Ok(day), "{name:?}");
                }
                day = next;
            }
        }
    }
    assert!(rules.len() > 250);
}
