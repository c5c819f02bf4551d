//! Laws of erasures, on the record store of an adapter.

use std::sync::Arc;

use serde_json::json;
use stores::erasures::{Attribution, Person, PersonKind, Suppressions};
use stores::{Result, Stores};

/// Opens the suppression list as another process would.
fn list(ports: &Stores) -> Suppressions {
    Suppressions::new(Arc::clone(&ports.erasures))
}

const fn listener(id: i64) -> Person {
    Person {
        kind: PersonKind::Listener,
        id,
    }
}

const fn athlete(id: i64) -> Person {
    Person {
        kind: PersonKind::Athlete,
        id,
    }
}

/// An erased person is suppressed in every process from then on, and the receipt can be read.
pub async fn erased_people_are_suppressed(ports: &Stores) -> Result<()> {
    let (first, second) = (list(ports), list(ports));
    assert!(!second.current().await?.contains(listener(7)));
    let attribution = Attribution {
        by: "desk ü".to_owned(),
        reason: "ticket \"5\"".to_owned(),
    };
    let erasure = first.begin(listener(7), &attribution, 1_000).await?;
    assert_eq!((erasure.number, erasure.finished_at_ms), (1, None));
    assert_eq!(
        (&erasure.by, &erasure.reason),
        (&attribution.by, &attribution.reason)
    );
    let current = second.current().await?;
    assert_eq!((current.newest(), current.newest_listener()), (1, 1));
    assert!(current.contains_listener(7) && !current.contains_listener(8));
    assert!(!current.contains(athlete(7)));

    // An unfinished erasure continues; a finished one is repeated under a new number.
    let repeated = second.begin(listener(7), &attribution, 2_000).await?;
    assert_eq!(repeated, erasure);
    let receipt = json!({"places": [{"found": u64::MAX}]});
    first.set_receipt(1, Some(3_000), &receipt).await?;
    let erasures = second.all().await?;
    assert_eq!(erasures.len(), 1);
    assert_eq!(
        (erasures[0].finished_at_ms, &erasures[0].receipt),
        (Some(3_000), &receipt)
    );
    assert_eq!(
        (erasures[0].begun_at_ms, erasures[0].person),
        (1_000, erasure.person)
    );
    assert_eq!(
        first.begin(listener(7), &attribution, 4_000).await?.number,
        2
    );
    assert_eq!(
        first.begin(athlete(7), &attribution, 5_000).await?.number,
        3
    );
    let current = second.current().await?;
    assert_eq!((current.newest(), current.newest_listener()), (3, 2));
    let missing = first.set_receipt(9, None, &receipt).await;
    assert!(missing.is_err(), "erasure 9 does not exist");
    Ok(())
}

/// A long list is read completely.
pub async fn long_lists_are_read(ports: &Stores) -> Result<()> {
    let suppressions = list(ports);
    suppressions
        .begin(listener(1), &Attribution::default(), 1)
        .await?;
    for number in 2..=1_100_u64 {
        let value = json!({
            "kind": "athlete", "person": format!("{number:032x}"), "begun_at_ms": number, "by": "", "reason": "",
            "finished_at_ms": null, "receipt": "x".repeat(3_000),
        });
        let name = format!("{number:010}");
        let added = ports
            .erasures
            .compare_and_set("erasures", &name, None, Some(&value));
        assert!(added.await?, "{number}");
    }
    let erasures = list(ports).all().await?;
    let numbers: Vec<u64> = erasures.iter().map(|erasure| erasure.number).collect();
    assert_eq!(numbers, (1..=1_100).collect::<Vec<u64>>());
    assert_eq!(erasures[1_099].person[14..], [0x04, 0x4c]);
    let current = suppressions.current().await?;
    assert_eq!((current.newest(), current.newest_listener()), (1_100, 1));
    let next = suppressions
        .begin(athlete(1), &Attribution::default(), 1)
        .await?;
    assert_eq!(next.number, 1_101);
    Ok(())
}

/// Concurrent erasures get different numbers and share one key.
pub async fn numbers_are_unique(ports: &Stores, other_ports: &Stores) -> Result<()> {
    let lists = [list(ports), list(other_ports)];
    let begin = |id: i64| {
        let list = lists[usize::from(id % 2 == 0)].clone();
        async move { list.begin(listener(id), &Attribution::default(), id).await }
    };
    let begun = futures::future::try_join_all((1..=12).map(begin)).await?;
    let mut numbers: Vec<u64> = begun.iter().map(|erasure| erasure.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=12).collect::<Vec<u64>>());
    for list in &lists {
        let current = list.current().await?;
        assert!((1..=12).all(|id| current.contains_listener(id)) && !current.contains_listener(13));
    }
    Ok(())
}
