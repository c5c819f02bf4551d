use proptest::prelude::*;
use proptest::strategy::Strategy as Generator;
use schemas::random::{RandomNumbers, SeededRandom};

use super::*;

fn recount(large_size: i64, events: f64, recounts: i64) -> CountingSection {
    CountingSection {
        class: "large".to_owned(),
        strategy: "recount".to_owned(),
        capacity_from: Some(0),
        large_size: Some(large_size),
        events_per_athlete_per_day: Some(events),
        recounts_per_day: Some(recounts),
        ..CountingSection::default()
    }
}

fn policy(large_size: i64, events: f64, recounts: i64) -> RecountPolicy {
    let counting = CountingClasses::parse(&[recount(large_size, events, recounts)]).unwrap();
    counting.find_policy(1, 1).unwrap()
}

fn policies() -> impl Generator<Value = RecountPolicy> {
    let events = prop_oneof![Just(MICRO), Just(EVENTS_MAX), 0.001..100.0];
    (0..=i64::MAX, events, 1..=RECOUNTS_PER_DAY_MAX)
        .prop_map(|(large, events, recounts)| policy(large, events, recounts))
}

proptest! {
    #[test]
    fn unknown_and_small_counts_are_always_recounted(policy in policies(), count: u64, draw: u64) {
        prop_assert!(should_recount(true, None, &policy, draw));
        if count < policy.large_size {
            prop_assert!(should_recount(true, Some(count), &policy, draw));
        }
    }

    #[test]
    fn disabled_applications_are_never_recounted(policy in policies(), count: Option<u64>, draw: u64) {
        prop_assert!(!should_recount(false, count, &policy, draw));
    }

    #[test]
    fn extreme_values_do_not_panic(
        policy in policies(),
        count in prop_oneof![Just(0), Just(u64::MAX), any::<u64>()],
        draw in prop_oneof![Just(0), Just(u64::MAX), any::<u64>()],
    ) {
        prop_assert!(policy.events_per_recount(count) >= 1);
        prop_assert!(policy.recount_interval_ms() >= 1_000);
        prop_assert!(should_recount(true, Some(count), &policy, 0), "the smallest draw always counts");
        let _either = should_recount(true, Some(count), &policy, draw);
    }

    /// A larger count is recounted after a smaller share of its events.
    #[test]
    fn larger_counts_are_not_more_likely(policy in policies(), count: u64, more: u64, draw: u64) {
        let larger = count.saturating_add(more);
        prop_assert!(policy.events_per_recount(larger) >= policy.events_per_recount(count));
        if should_recount(true, Some(larger), &policy, draw) {
            prop_assert!(should_recount(true, Some(count), &policy, draw));
        }
    }

    /// The number of recounts is within six standard deviations of a binomial distribution.
    #[test]
    fn large_counts_are_recounted_at_the_configured_rate(
        count in 1_000_u64..1_000_000, recounts in 1_i64..1_000, events in 0.01..10.0, seed: u64,
    ) {
        let policy = policy(1_000, events, recounts);
        let draws = SeededRandom::new(seed);
        let tries = 20_000_u32;
        let recounts_seen = (0..tries).filter(|_| should_recount(true, Some(count), &policy, draws.next_u64()));
        let recounts_seen = recounts_seen.count() as f64;
        let probability = 1.0 / policy.events_per_recount(count) as f64;
        let mean = f64::from(tries) * probability;
        let deviation = (mean * (1.0 - probability)).sqrt();
        prop_assert!((recounts_seen - mean).abs() <= 6.0 * deviation + 1.0, "{recounts_seen} of {mean}");
    }
}

/// At the expected event rate, counts of every size are recounted equally often.
#[test]
fn counts_of_every_size_are_equally_fresh() {
    let policy = policy(1_000, 0.5, 24);
    for size in [1_000_u32, 20_000, 1_000_000, 50_000_000] {
        let events = f64::from(size) * 0.5;
        let recounts = events / policy.events_per_recount(size.into()) as f64;
        assert!((24.0..26.0).contains(&recounts), "{size}: {recounts}");
    }
    assert_eq!(policy.events_per_recount(999), 1);
    assert_eq!(policy.recount_interval_ms(), 3_600_000);
}

#[test]
fn the_first_class_that_has_an_application_counts_it() {
    let large = CountingSection {
        capacity_from: Some(10_000),
        applications: vec![7, 8],
        ..recount(1_000, 1.0, 24)
    };
    let exact = CountingSection {
        class: "exact".to_owned(),
        strategy: "increments".to_owned(),
        applications: vec![8],
        ..CountingSection::default()
    };
    let counting = CountingClasses::parse(&[exact, large]).unwrap();
    let class = |id, capacity| counting.find_class(id, capacity).map(CountingClass::name);
    assert_eq!(class(8, 10_000), Some("exact"));
    assert_eq!(class(7, 1), Some("large"));
    assert_eq!(class(9, 10_000), Some("large"));
    assert_eq!(class(9, 9_999), None);
    assert!(counting.find_policy(8, 10_000).is_none());
    assert!(counting.find_policy(7, 1).is_some());
    assert!(counting.has_recount_class() && counting.may_recount(9));
    assert!(!CountingClasses::default().has_recount_class());
    let listed = CountingSection {
        capacity_from: None,
        applications: vec![7],
        ..recount(0, 1.0, 1)
    };
    let counting = CountingClasses::parse(&[listed]).unwrap();
    assert!(counting.may_recount(7) && !counting.may_recount(9));
}

#[test]
fn wrong_values_are_named() {
    let good = recount(1_000, 0.2, 24);
    let rejected_field = |change: &dyn Fn(&mut CountingSection)| {
        let mut section = good.clone();
        change(&mut section);
        let error = CountingClasses::parse(&[good.clone(), section]).unwrap_err();
        assert_eq!(error.section, 1);
        error.field
    };
    let other = |section: &mut CountingSection| section.class = "other".to_owned();
    assert_eq!(rejected_field(&|_| {}), "class");
    assert_eq!(
        rejected_field(&|section| section.class = String::new()),
        "class"
    );
    assert_eq!(
        rejected_field(&|section| section.class = "a b".to_owned()),
        "class"
    );
    type Change = fn(&mut CountingSection);
    let wrong: [(&str, Change); 12] = [
        ("strategy", |section| section.strategy = "sum".to_owned()),
        ("large_size", |section| {
            section.strategy = "increments".to_owned();
        }),
        ("class", |section| section.capacity_from = None),
        ("capacity_from", |section| section.capacity_from = Some(-1)),
        ("large_size", |section| section.large_size = None),
        ("large_size", |section| section.large_size = Some(-1)),
        ("events_per_athlete_per_day", |section| {
            section.events_per_athlete_per_day = Some(0.0);
        }),
        ("events_per_athlete_per_day", |section| {
            section.events_per_athlete_per_day = Some(f64::NAN);
        }),
        ("events_per_athlete_per_day", |section| {
            section.events_per_athlete_per_day = Some(f64::INFINITY);
        }),
        ("recounts_per_day", |section| {
            section.recounts_per_day = Some(0)
        }),
        ("recounts_per_day", |section| {
            section.recounts_per_day = Some(86_401);
        }),
        ("recounts_per_day", |section| {
            section.recounts_per_day = None
        }),
    ];
    for (field, change) in wrong {
        let field_of_error = rejected_field(&|section| {
            other(section);
            change(section);
        });
        assert_eq!(field_of_error, field);
    }
}
