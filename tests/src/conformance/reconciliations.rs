//! The laws of the port of comparisons.

use schemas::source::Source;
use serde_json::json;
use stores::{ErrorKind, Result, Stores};

/// Records get rising numbers by source, come back newest first, and can be replaced.
pub async fn comparisons_come_back(ports: &Stores) -> Result<()> {
    let kept = &ports.reconciliations;
    let plays = Source::Plays;
    assert_eq!(kept.reconciliations(plays, None, 10).await?, []);
    for n in 1..=5_i64 {
        let record = json!({"n": n, "text": "ü'\"\u{1f3b5}"});
        let number = kept
            .add(plays, &format!("id {n}"), n * 100, &record)
            .await?;
        assert_eq!(number, n.unsigned_abs());
        // An answer that was lost is asked for again.
        let again = kept
            .add(plays, &format!("id {n}"), n * 100, &record)
            .await?;
        assert_eq!(again, number);
    }
    let other = kept.add(Source::Efforts, "id 1", 7, &json!({})).await?;
    assert_eq!(other, 1, "each source has its own numbers");
    let numbers = async |before, limit| {
        let found = kept.reconciliations(plays, before, limit).await?;
        Ok::<_, stores::Error>(found.iter().map(|one| one.number).collect::<Vec<_>>())
    };
    assert_eq!(numbers(None, 3).await?, [5, 4, 3]);
    assert_eq!(numbers(Some(3), 3).await?, [2, 1]);
    assert_eq!(numbers(Some(1), 3).await?, [0_u64; 0]);
    kept.replace(plays, 4, &json!({"n": "other"})).await?;
    let found = kept.reconciliations(plays, Some(5), 1).await?;
    assert_eq!(found[0].record, json!({"n": "other"}));
    assert_eq!((found[0].id.as_str(), found[0].at_ms), ("id 4", 400));
    let none = kept.replace(plays, 9, &json!({})).await;
    assert_eq!(none.expect_err("there is none").kind(), ErrorKind::Reject);
    Ok(())
}

/// Old ones go, the oldest first, up to the first that is younger; numbers go on.
pub async fn old_comparisons_go(ports: &Stores) -> Result<()> {
    let kept = &ports.reconciliations;
    let source = Source::Plays;
    let none = kept.aged(source, i64::MAX).await?;
    assert_eq!((none.all, none.oldest_ms, none.aged), (0, None, 0));
    // A clock went back in between.
    for (n, at_ms) in [100, 200, 50, 300, 400].into_iter().enumerate() {
        kept.add(source, &format!("{n}"), at_ms, &json!({})).await?;
    }
    let aged = kept.aged(source, 250).await?;
    assert_eq!(
        (aged.all, aged.oldest_ms.is_some(), aged.aged),
        (5, true, 3)
    );
    assert_eq!(kept.aged(source, 150).await?.aged, 1);
    assert_eq!(kept.forget_aged(source, 250, 2).await?, 2);
    assert_eq!(kept.forget_aged(source, 250, 2).await?, 1);
    assert_eq!(kept.forget_aged(source, 250, 2).await?, 0);
    let left = kept.reconciliations(source, None, 10).await?;
    let left: Vec<u64> = left.iter().map(|one| one.number).collect();
    assert_eq!(left, [5, 4]);
    assert_eq!(kept.forget_aged(source, i64::MAX, 10).await?, 2);
    assert_eq!(kept.add(source, "new", 500, &json!({})).await?, 6);
    Ok(())
}

/// Notes are changed over what was seen, and by nobody else.
pub async fn notes_are_changed_over_what_was_seen(ports: &Stores) -> Result<()> {
    let kept = &ports.reconciliations;
    let (one, two) = (json!({"a": 1}), json!({"a": [2, null]}));
    assert_eq!(kept.note("s", "n").await?, None);
    assert!(!kept.change_note("s", "n", Some(1), Some(&one)).await?);
    assert!(kept.change_note("s", "n", None, Some(&one)).await?);
    assert!(!kept.change_note("s", "n", None, Some(&two)).await?);
    assert!(kept.change_note("s", "n", Some(1), Some(&two)).await?);
    assert!(!kept.change_note("s", "n", Some(1), Some(&one)).await?);
    let now = kept.note("s", "n").await?.expect("a note");
    assert_eq!((now.version, now.value), (2, two));
    for name in ["a", "b", "c"] {
        assert!(kept.change_note("s", name, None, Some(&one)).await?);
    }
    assert!(kept.change_note("t", "a", None, Some(&one)).await?);
    let names = async |after, limit| {
        let found = kept.notes("s", after, limit).await?;
        Ok::<_, stores::Error>(found.into_iter().map(|(name, _)| name).collect::<Vec<_>>())
    };
    assert_eq!(names(None, 10).await?, ["a", "b", "c", "n"]);
    assert_eq!(names(Some("a"), 2).await?, ["b", "c"]);
    assert!(!kept.change_note("s", "n", Some(1), None).await?);
    assert!(kept.change_note("s", "n", Some(2), None).await?);
    assert_eq!(kept.note("s", "n").await?, None);
    Ok(())
}

/// Of two who write at once each gets a number of its own, and one note is written by one of them.
pub async fn two_record_side_by_side(one: &Stores, other: &Stores) -> Result<()> {
    let source = Source::Plays;
    let add = async |of: &Stores, who: &str| {
        let mut numbers = Vec::new();
        for n in 0..8 {
            let id = format!("{who}{n}");
            numbers.push(of.reconciliations.add(source, &id, n, &json!(id)).await?);
        }
        Ok::<_, stores::Error>(numbers)
    };
    let (mine, theirs) = tokio::join!(add(one, "a"), add(other, "b"));
    let mut all: Vec<u64> = mine?.into_iter().chain(theirs?).collect();
    all.sort_unstable();
    assert_eq!(all, (1..=16).collect::<Vec<u64>>());
    let found = one
        .reconciliations
        .reconciliations(source, None, 100)
        .await?;
    assert_eq!(found.len(), 16);
    let (a, b) = (json!("a"), json!("b"));
    let (mine, theirs) = tokio::join!(
        one.reconciliations.change_note("s", "n", None, Some(&a)),
        other.reconciliations.change_note("s", "n", None, Some(&b)),
    );
    assert!(mine? != theirs?, "one of them");
    Ok(())
}
