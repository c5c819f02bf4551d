//! Laws of the keys port.

use schemas::access::Scopes;
use stores::keys::{AdminAction, ApiKey, ApiKeyRecord, KeyState, RotateOutcome, Token};
use stores::{Result, Stores};

const LIMIT: usize = 100;

fn generate_key(name: &str, scopes: &str, created_at_ms: i64) -> ApiKeyRecord {
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
        .map(|action| (action.action.as_str(), action.target.as_str(), action.at_ms))
        .collect()
}

/// A key is found by its id as it was added, and listed before older keys.
pub async fn keys_are_found(ports: &Stores) -> Result<()> {
    let keys = &*ports.keys;
    assert!(!keys.has_keys().await?);
    assert_eq!(keys.keys(None, LIMIT).await?, []);
    let all_scopes = "read:*,read:owner:1,read:owner:Ä,ingest,admin";
    let mut added = Vec::new();
    for (number, scopes) in ["ingest", all_scopes, ""].into_iter().enumerate() {
        let mut record = generate_key(&format!("key {number}"), scopes, 1_000);
        record.key.expires_at_ms = (number == 1).then_some(i64::MAX);
        keys.add_key(&record).await?;
        added.push(record);
    }
    assert!(keys.has_keys().await?);
    for record in &added {
        assert_eq!(keys.key(&record.key.id).await?.as_ref(), Some(record));
    }
    for unknown in ["", "'", &Token::generate().id().to_uppercase()] {
        assert_eq!(keys.key(unknown).await?, None);
    }
    let newest_first: Vec<ApiKey> = added
        .iter()
        .rev()
        .map(|record| record.key.clone())
        .collect();
    assert_eq!(keys.keys(None, LIMIT).await?, newest_first);
    assert_eq!(keys.keys(None, 2).await?, newest_first[..2]);
    let after = Some(newest_first[0].id.as_str());
    assert_eq!(keys.keys(after, 1).await?, newest_first[1..2]);
    assert_eq!(keys.keys(Some("unknown"), LIMIT).await?, []);
    // An existing id cannot be added again, and the key stays unchanged.
    let mut other = generate_key("other", "admin", 1);
    other.key.id.clone_from(&added[0].key.id);
    assert!(keys.add_key(&other).await.is_err());
    assert_eq!(keys.key(&other.key.id).await?.as_ref(), added.first());
    assert_eq!(keys.actions(None, LIMIT).await?.len(), 3);
    Ok(())
}

/// A revoked key stays revoked, and keeps the name of the first revoker.
pub async fn keys_are_revoked(ports: &Stores) -> Result<()> {
    let keys = &*ports.keys;
    let record = generate_key("a key", "admin", 1_000);
    let id = record.key.id.as_str();
    assert_eq!(keys.revoke_key(id, "nobody", 1).await?, None);
    keys.add_key(&record).await?;
    let revoked = ApiKey {
        revoked_at_ms: Some(2_000),
        revoked_by: Some("first".to_owned()),
        ..record.key.clone()
    };
    for (by, at_ms) in [("first", 2_000), ("second", 3_000)] {
        let actual = keys.revoke_key(id, by, at_ms).await?;
        assert_eq!(actual.as_ref(), Some(&revoked));
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
        generate_key("a key", "admin", 1_000),
        generate_key("a key", "admin", 2_000),
    );
    let (id, new_id) = (old.key.id.as_str(), new.key.id.as_str());
    assert_eq!(
        keys.rotate_key(id, 9_000, &new).await?,
        RotateOutcome::Unknown
    );
    assert_eq!(keys.key(new_id).await?, None);
    keys.add_key(&old).await?;
    let replaced = ApiKey {
        expires_at_ms: Some(9_000),
        replaced_by: Some(new_id.to_owned()),
        ..old.key.clone()
    };
    let outcome = keys.rotate_key(id, 9_000, &new).await?;
    assert_eq!(outcome, RotateOutcome::Done(replaced.clone()));
    assert_eq!(keys.key(new_id).await?.as_ref(), Some(&new));
    let third = generate_key("a key", "admin", 3_000);
    let rejected = keys.rotate_key(id, 10_000, &third).await?;
    assert_eq!(rejected, RotateOutcome::Inactive(replaced));
    assert_eq!(keys.key(&third.key.id).await?, None);
    // A key that expires sooner keeps its expiry; an expired key cannot be replaced.
    let mut soon = generate_key("soon", "ingest", 3_000);
    soon.key.expires_at_ms = Some(5_000);
    keys.add_key(&soon).await?;
    let key_created_at = |created_at_ms| generate_key("later", "ingest", created_at_ms);
    let late = keys
        .rotate_key(&soon.key.id, 9_000, &key_created_at(5_000))
        .await?;
    assert!(matches!(late, RotateOutcome::Inactive(_)), "{late:?}");
    let outcome = keys
        .rotate_key(&soon.key.id, 9_000, &key_created_at(4_000))
        .await?;
    let RotateOutcome::Done(rotated) = outcome else {
        panic!("it is valid: {outcome:?}");
    };
    assert_eq!(rotated.expires_at_ms, Some(5_000));
    let revoked = generate_key("revoked", "ingest", 3_000);
    keys.add_key(&revoked).await?;
    keys.revoke_key(&revoked.key.id, "me", 3_500).await?;
    let rejected = keys
        .rotate_key(&revoked.key.id, 9_000, &key_created_at(4_000))
        .await?;
    assert!(
        matches!(rejected, RotateOutcome::Inactive(_)),
        "{rejected:?}"
    );
    Ok(())
}

/// Of two concurrent rotations of a key one succeeds.
pub async fn one_of_two_rotates(ports: &Stores, other_ports: &Stores) -> Result<()> {
    let keys = &*ports.keys;
    let old = generate_key("a key", "admin", 1_000);
    keys.add_key(&old).await?;
    let new = [0, 1].map(|_| generate_key("a key", "admin", 2_000));
    let id = old.key.id.as_str();
    let (first, second) = tokio::join!(
        keys.rotate_key(id, 9_000, &new[0]),
        other_ports.keys.rotate_key(id, 9_000, &new[1])
    );
    let succeeded = [first?, second?].map(|rotated| matches!(rotated, RotateOutcome::Done(_)));
    assert_eq!(
        succeeded.iter().filter(|succeeded| **succeeded).count(),
        1,
        "{succeeded:?}"
    );
    assert_eq!(keys.keys(None, LIMIT).await?.len(), 2);
    Ok(())
}

/// The last use of a key only increases.
pub async fn uses_are_recorded(ports: &Stores) -> Result<()> {
    let keys = &*ports.keys;
    let record = generate_key("a key", "admin", 1_000);
    keys.add_key(&record).await?;
    keys.record_key_use("unknown", 5).await?;
    for (at_ms, expected) in [(5, 5), (7, 7), (6, 7)] {
        keys.record_key_use(&record.key.id, at_ms).await?;
        let actual = keys.key(&record.key.id).await?;
        assert_eq!(
            actual.and_then(|record| record.key.used_at_ms),
            Some(expected)
        );
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
    let actions = keys.actions(None, LIMIT).await?;
    let names: Vec<&str> = actions
        .iter()
        .map(|action| action.action.as_str())
        .collect();
    assert_eq!(names, ["a.4", "a.3", "a.2", "a.1", "a.0"]);
    assert!(actions.is_sorted_by(|action, next| action.number > next.number));
    let details: Vec<bool> = actions
        .iter()
        .map(|action| action.detail.is_some())
        .collect();
    assert_eq!(details, [false, false, true, false, false]);
    assert_eq!(keys.actions(None, 2).await?, actions[..2]);
    assert_eq!(
        keys.actions(Some(actions[1].number), 2).await?,
        actions[2..4]
    );
    Ok(())
}
