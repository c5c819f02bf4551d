//! Laws of names.

use schemas::entities::{Athlete, Entity};
use stores::names::{NamedKind, Names};
use stores::{ErrorKind, Result, Stores};

use super::entity_rows::{application, apply, athlete};

async fn read_sorted(
    names: &(impl Names + ?Sized),
    kind: NamedKind,
    ids: &[i64],
) -> Result<Vec<(i64, String)>> {
    let pairs = names.read_names(kind, ids).await?;
    assert!(pairs.is_sorted_by(|a, b| a.0 < b.0), "{pairs:?}");
    Ok(pairs)
}

fn owned_names(of: &[(i64, &str)]) -> Vec<(i64, String)> {
    of.iter()
        .map(|(id, name)| (*id, (*name).to_owned()))
        .collect()
}

/// Names can be set, found by kind and number, replaced and removed.
pub async fn names_are_stored(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    for kind in NamedKind::ALL {
        assert_eq!(read_sorted(entities, kind, &[1, 2]).await?, []);
        assert_eq!(read_sorted(entities, kind, &[]).await?, []);
    }
    let names = [
        (i64::MAX, Some("Ä 🚲 'quoted\" \\ %_".to_owned())),
        (1, Some("one".to_owned())),
        (-1, None),
        (1, Some("One".to_owned())),
        (2, Some("x".repeat(500))),
    ];
    entities.set_names(NamedKind::Track, &names).await?;
    entities.set_names(NamedKind::Segment, &[]).await?;
    let ids = [2, i64::MAX, 1, -1, 1];
    let long = "x".repeat(500);
    let expected = owned_names(&[(1, "One"), (2, &long), (i64::MAX, "Ä 🚲 'quoted\" \\ %_")]);
    assert_eq!(
        read_sorted(entities, NamedKind::Track, &ids).await?,
        expected
    );
    assert_eq!(read_sorted(entities, NamedKind::Owner, &ids).await?, []);
    let changed = [(1, None), (2, Some("two".to_owned())), (7, None)];
    entities.set_names(NamedKind::Track, &changed).await?;
    let expected = owned_names(&[(2, "two"), (i64::MAX, "Ä 🚲 'quoted\" \\ %_")]);
    assert_eq!(
        read_sorted(entities, NamedKind::Track, &ids).await?,
        expected
    );
    Ok(())
}

/// Names are found by any part, ignoring case; names that begin with the text come first.
pub async fn names_are_found(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    let names = [
        "The Long Climb",
        "climb 100%",
        "climb 1000",
        "Étude",
        "o!k_a",
    ];
    let names: Vec<_> = (1..).zip(names.map(|name| Some(name.to_owned()))).collect();
    entities.set_names(NamedKind::Segment, &names).await?;
    entities
        .set_names(NamedKind::Track, &[(9, Some("climb".to_owned()))])
        .await?;
    let find_ids = async |text: &str, limit| {
        let pairs = entities.find_names(NamedKind::Segment, text, limit).await;
        pairs.map(|pairs| pairs.into_iter().map(|(id, _)| id).collect::<Vec<i64>>())
    };
    assert_eq!(find_ids("CLIMB", 10).await?, [2, 3, 1]);
    assert_eq!(find_ids("climb", 1).await?, [2]);
    assert_eq!(find_ids("long c", 10).await?, [1]);
    assert_eq!(find_ids("100%", 10).await?, [2]);
    assert_eq!(find_ids("!k_", 10).await?, [5]);
    assert_eq!(find_ids("Étude", 10).await?, [4]);
    for text in ["'; --", "climb\0", "\0"] {
        assert_eq!(find_ids(text, 10).await?, Vec::<i64>::new());
    }
    let person = |id: i64, name: &str, is_deleted: bool| {
        Entity::Athlete(Athlete {
            name: Some(name.to_owned()),
            is_deleted,
            ..athlete(id)
        })
    };
    let rows = [
        person(1, "Ann Lee", false),
        person(2, "Lee", true),
        Entity::Application(application(1, 5)),
    ];
    apply(entities, &rows).await?;
    assert_eq!(
        entities.find_names(NamedKind::Athlete, "lee", 9).await?,
        owned_names(&[(1, "Ann Lee")])
    );
    assert_eq!(
        entities
            .find_names(NamedKind::Application, "rid", 9)
            .await?,
        owned_names(&[(1, "Ride")])
    );
    Ok(())
}

/// Any number of names can be set and found in one call.
pub async fn many_names_are_stored(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    let ids: Vec<i64> = (0..1_500).collect();
    let names: Vec<_> = ids.iter().map(|id| (*id, Some(format!("n{id}")))).collect();
    entities.set_names(NamedKind::Owner, &names).await?;
    let actual = read_sorted(entities, NamedKind::Owner, &ids).await?;
    assert_eq!(actual.len(), ids.len());
    assert!(actual.iter().all(|(id, name)| *name == format!("n{id}")));
    Ok(())
}

/// Names of athletes and applications come from their rows; a deleted row has no name.
pub async fn entity_names_come_from_rows(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    let person = |id: i64, name: Option<&str>, is_deleted: bool| {
        Entity::Athlete(Athlete {
            name: name.map(str::to_owned),
            is_deleted,
            ..athlete(id)
        })
    };
    let rows = [
        person(1, Some("Ann"), false),
        person(2, None, false),
        person(3, Some("Bo"), true),
        Entity::Application(application(1, 5)),
    ];
    apply(entities, &rows).await?;
    assert_eq!(
        read_sorted(entities, NamedKind::Athlete, &[1, 2, 3, 4]).await?,
        owned_names(&[(1, "Ann")])
    );
    assert_eq!(
        read_sorted(entities, NamedKind::Application, &[1, 2]).await?,
        owned_names(&[(1, "Ride")])
    );
    for kind in [NamedKind::Athlete, NamedKind::Application] {
        let refused = entities.set_names(kind, &[(1, Some("x".to_owned()))]).await;
        assert_eq!(
            refused.expect_err("they have rows").kind(),
            ErrorKind::Reject
        );
    }
    Ok(())
}
