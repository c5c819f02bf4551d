//! Laws of the keys port.

use schemas::access::Scopes;
use stores::keys::{AdminAction, ApiKey, ApiKeyRecord, KeyState, RotateOutcome, Token};
use stores::{Result, Stores};

const LIMIT: usize = 100;

fn drawn(name: &str, scopes: &str, created_at_ms: i64) -> ApiKeyRecord {
    let token = Token::generate();
    ApiKeyRecord {
        digest: token.digest(),
        key: ApiKey {
            id: token.id().to_owned(),
            name: name.to_owned(),
            scopes: scopes.parse::<Scopes>().expect("scopes"),
            created_at_ms,
            created_by: "me, Müller".to_owned(),
            expires_at_ms: None,
            revoked_at_ms: None,
            revoked_by: None,
            replaced_by: None,
            used_at_ms: None,
        },
    }
}

fn summaries(actions: &[AdminAction]) -> Vec<(&str, &str, i64)> {
    let actions = actions.iter();
    actions
        .map(|one| (one.action.as_str(), one.target.as_str(), one.at_ms))
        .collect()
}

/// A key is found by its id as it was added, and listed before older keys.
pub async fn keys_are_found(ports: &Stores) -> Result<()> {
    let keys = &*ports.keys;
    assert!(!keys.has_keys().await?);
    assert_eq!(keys.keys(None, LIMIT).await?, []);
    let all = "read:*,read:owner:1,read:owner:Ä,ingest,admin";
    let mut added = Vec::new();
    for (number, scopes) in ["ingest", all, ""].into_iter().enumerate() {
        let mut kept = drawn(&format!("key {number}"), scopes, 1_000);
        kept.key.expires_at_ms = (number == 1).then_some(i64::MAX);
        keys.add_key(&kept).await?;
        added.push(kept);
    }
    assert!(keys.has_keys().await?);
    for kept in &added {
        assert_eq!(keys.key(&kept.key.id).await?.as_ref(), Some(kept));
    }
    for unknown in ["", "'", &Token::generate().id().to_uppercase()] {
        assert_eq!(keys.key(unknown).await?, None);
    }
    let newest_first: Vec<ApiKey> = added.iter().rev().map(|kept| kept.key.clone()).collect();
    assert_eq!(keys.keys(None, LIMIT).await?, newest_first);
    assert_eq!(keys.keys(None, 2).await?, newest_first[..2]);
    let after = Some(newest_first[0].id.as_str());
    assert_eq!(keys.keys(after, 1).await?, newest_first[1..2]);
    assert_eq!(keys.keys(Some("unknown"), LIMIT).await?, []);
    // An existing id cannot be added again, and the key stays unchanged.
    let mut other = drawn("other", "admin", 1);
    other.key.id.clone_from(&added[0].key.id);
    assert!(keys.add_key(&other).await.is_err());
    assert_eq!(keys.key(&other.key.id).await?.as_ref(), added.first());
    assert_eq!(keys.actions(None, LIMIT).await?.len(), 3);
    Ok(())
}

/// A revoked key stays revoked, and keeps the name of the first revoker.
pub async fn keys_are_revoked(ports: &Stores) -> Result<()> {
    let keys = &*ports.keys;
    let kept = drawn("a key", "admin", 1_000);
    let id = kept.key.id.as_str();
    assert_eq!(keys.revoke_key(id, "nobody", 1).await?, None);
    keys.add_key(&kept).await?;
    let revoked = ApiKey {
        revoked_at_ms: Some(2_000),
        revoked_by: Some("first".to_owned()),
        ..kept.key.clone()
    };
    for (by, at_ms) in [("first", 2_000), ("second", 3_000)] {
        let found = keys.revoke_key(id, by, at_ms).await?;
        assert_eq!(found.as_ref(), Some(&revoked));
    }
    assert_eq!(revoked.state(1), KeyState::Revoked);
    assert_eq!(keys.keys(None, LIMIT).await?, [revoked]);
    assert!(
        keys.has_keys().await?,
        "it is not as if there never was one"
    );
    let actions = keys.actions(None, LIMIT).await?;
    let expected = [("keys.revoke", id, 2_000), ("keys.create", id, 1_000)];
    assert_eq!(summaries(&actions), expected);
    Ok(())
}

/// A rotated key stays valid for a while next to its replacement. It can be rotated once, and not
/// after it expired.
pub async fn keys_are_rotated(ports: &Stores) -> Result<()> {
    let keys = &*ports.keys;
    let (old, new) = (
        drawn("a key", "admin", 1_000),
        drawn("a key", "admin", 2_000),
    );
    let (id, other) = (old.key.id.as_str(), new.key.id.as_str());
    assert_eq!(
        keys.rotate_key(id, 9_000, &new).await?,
        RotateOutcome::Unknown
    );
    assert_eq!(keys.key(other).await?, None);
    keys.add_key(&old).await?;
    let replaced = ApiKey {
        expires_at_ms: Some(9_000),
        replaced_by: Some(other.to_owned()),
        ..old.key.clone()
    };
    let done = keys.rotate_key(id, 9_000, &new).await?;
    assert_eq!(done, RotateOutcome::Done(replaced.clone()));
    assert_eq!(keys.key(other).await?.as_ref(), Some(&new));
    let third = drawn("a key", "admin", 3_000);
    let over = keys.rotate_key(id, 10_000, &third).await?;
    assert_eq!(over, RotateOutcome::Inactive(replaced));
    assert_eq!(keys.key(&third.key.id).await?, None);
    // A key that expires sooner keeps its expiry; an expired key cannot be replaced.
    let mut soon = drawn("soon", "ingest", 3_000);
    soon.key.expires_at_ms = Some(5_000);
    keys.add_key(&soon).await?;
    let at = |created_at_ms| drawn("later", "ingest", created_at_ms);
    let late = keys.rotate_key(&soon.key.id, 9_000, &at(5_000)).await?;
    assert!(matches!(late, RotateOutcome::Inactive(_)), "{late:?}");
    let done = keys.rotate_key(&soon.key.id, 9_000, &at(4_000)).await?;
    let RotateOutcome::Done(ends) = done else {
        panic!("it is valid: {done:?}");
    };
    assert_eq!(ends.expires_at_ms, Some(5_000));
    let revoked = drawn("revoked", "ingest", 3_000);
    keys.add_key(&revoked).await?;
    keys.revoke_key(&revoked.key.id, "me", 3_500).await?;
    let over = keys.rotate_key(&revoked.key.id, 9_000, &at(4_000)).await?;
    assert!(matches!(over, RotateOutcome::Inactive(_)), "{over:?}");
    Ok(())
}

/// Of two concurrent rotations of a key one succeeds.
pub async fn one_of_two_rotates(ports: &Stores, others: &Stores) -> Result<()> {
    let keys = &*ports.keys;
    let old = drawn("a key", "admin", 1_000);
    keys.add_key(&old).await?;
    let new = [0, 1].map(|_| drawn("a key", "admin", 2_000));
    let id = old.key.id.as_str();
    let (one, other) = tokio::join!(
        keys.rotate_key(id, 9_000, &new[0]),
        others.keys.rotate_key(id, 9_000, &new[1])
    );
    let done = [one?, other?].map(|rotated| matches!(rotated, RotateOutcome::Done(_)));
    assert_eq!(done.iter().filter(|done| **done).count(), 1, "{done:?}");
    assert_eq!(keys.keys(None, LIMIT).await?.len(), 2);
    Ok(())
}

/// The last use of a key only increases.
pub async fn uses_are_recorded(ports: &Stores) -> Result<()> {
    let keys = &*ports.keys;
    let kept = drawn("a key", "admin", 1_000);
    keys.add_key(&kept).await?;
    keys.record_key_use("unknown", 5).await?;
    for (at_ms, noted) in [(5, 5), (7, 7), (6, 7)] {
        keys.record_key_use(&kept.key.id, at_ms).await?;
        let found = keys.key(&kept.key.id).await?;
        assert_eq!(found.and_then(|kept| kept.key.used_at_ms), Some(noted));
    }
    Ok(())
}

/// Administrative actions are listed newest first, as recorded.
pub async fn actions_are_recorded(ports: &Stores) -> Result<()> {
    let keys = &*ports.keys;
    assert_eq!(keys.actions(None, LIMIT).await?, []);
    for number in 0..5 {
        let action = AdminAction {
            number: 0,
            at_ms: 1_000 + number,
            actor: "Ä".to_owned(),
            action: format!("a.{number}"),
            target: "t".to_owned(),
            detail: (number == 2).then(|| "more".to_owned()),
        };
        keys.record_action(&action).await?;
    }
    let all = keys.actions(None, LIMIT).await?;
    let names: Vec<&str> = all.iter().map(|one| one.action.as_str()).collect();
    assert_eq!(names, ["a.4", "a.3", "a.2", "a.1", "a.0"]);
    assert!(all.is_sorted_by(|one, next| one.number > next.number));
    let details: Vec<bool> = all.iter().map(|one| one.detail.is_some()).collect();
    assert_eq!(details, [false, false, true, false, false]);
    assert_eq!(keys.actions(None, 2).await?, all[..2]);
    assert_eq!(keys.actions(Some(all[1].number), 2).await?, all[2..4]);
    Ok(())
}
