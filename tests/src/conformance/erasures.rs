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
    let (here, elsewhere) = (list(ports), list(ports));
    assert!(!elsewhere.current().await?.contains(listener(7)));
    let attribution = Attribution {
        by: "desk ü".to_owned(),
        reason: "ticket \"5\"".to_owned(),
    };
    let erasure = here.begin(listener(7), &attribution, 1_000).await?;
    assert_eq!((erasure.number, erasure.finished_at_ms), (1, None));
    assert_eq!(
        (&erasure.by, &erasure.reason),
        (&attribution.by, &attribution.reason)
    );
    let now = elsewhere.current().await?;
    assert_eq!((now.newest(), now.newest_listener()), (1, 1));
    assert!(now.contains_listener(7) && !now.contains_listener(8));
    assert!(!now.contains(athlete(7)));

    // An unfinished erasure continues; a finished one is repeated under a new number.
    let again = elsewhere.begin(listener(7), &attribution, 2_000).await?;
    assert_eq!(again, erasure);
    let receipt = json!({"places": [{"found": u64::MAX}]});
    here.set_receipt(1, Some(3_000), &receipt).await?;
    let all = elsewhere.all().await?;
    assert_eq!(all.len(), 1);
    assert_eq!(
        (all[0].finished_at_ms, &all[0].receipt),
        (Some(3_000), &receipt)
    );
    assert_eq!((all[0].begun_at_ms, all[0].person), (1_000, erasure.person));
    assert_eq!(
        here.begin(listener(7), &attribution, 4_000).await?.number,
        2
    );
    assert_eq!(here.begin(athlete(7), &attribution, 5_000).await?.number, 3);
    let now = elsewhere.current().await?;
    assert_eq!((now.newest(), now.newest_listener()), (3, 2));
    let missing = here.set_receipt(9, None, &receipt).await;
    assert!(missing.is_err(), "erasure 9 does not exist");
    Ok(())
}

/// A long list is read completely.
pub async fn long_lists_are_read(ports: &Stores) -> Result<()> {
    let here = list(ports);
    here.begin(listener(1), &Attribution::default(), 1).await?;
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
    let all = list(ports).all().await?;
    let numbers: Vec<u64> = all.iter().map(|one| one.number).collect();
    assert_eq!(numbers, (1..=1_100).collect::<Vec<u64>>());
    assert_eq!(all[1_099].person[14..], [0x04, 0x4c]);
    let now = here.current().await?;
    assert_eq!((now.newest(), now.newest_listener()), (1_100, 1));
    let next = here.begin(athlete(1), &Attribution::default(), 1).await?;
    assert_eq!(next.number, 1_101);
    Ok(())
}

/// Concurrent erasures get different numbers and share one key.
pub async fn numbers_are_unique(one: &Stores, other: &Stores) -> Result<()> {
    let lists = [list(one), list(other)];
    let begin = |id: i64| {
        let list = lists[usize::from(id % 2 == 0)].clone();
        async move { list.begin(listener(id), &Attribution::default(), id).await }
    };
    let begun = futures::future::try_join_all((1..=12).map(begin)).await?;
    let mut numbers: Vec<u64> = begun.iter().map(|one| one.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=12).collect::<Vec<u64>>());
    for list in &lists {
        let now = list.current().await?;
        assert!((1..=12).all(|id| now.contains_listener(id)) && !now.contains_listener(13));
    }
    Ok(())
}
