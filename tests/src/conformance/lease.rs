//! Laws of the lease port.

use std::time::{Duration, Instant};

use stores::lease::LeaseGuard;
use stores::{Result, Stores};

/// Maximum time until a lease that was dropped without a release is free.
const DROP_RELEASE_MAX: Duration = Duration::from_secs(60);

/// A lease has one holder at a time, and other processes learn who holds it. It is free after its
/// release, or soon after it was dropped. Names are independent.
pub async fn one_holder_at_a_time(one: &Stores, other: &Stores) -> Result<()> {
    let held = one.leases.acquire("batch-plays", "batch 17").await?;
    let held = held.expect("the lease is free");
    let refusal = other.leases.acquire("batch-plays", "batch 18").await?;
    assert_held_by(refusal, "batch 17");
    let refusal = one.leases.acquire("batch-plays", "batch 19").await?;
    assert_held_by(refusal, "batch 17");
    let another = other.leases.acquire("archive-plays", "archive 3").await?;
    let another = another.expect("another name is another lease");
    assert!(!held.lost().is_cancelled());
    held.release().await;
    let next = other.leases.acquire("batch-plays", "20").await?;
    let next = next.expect("it was let go");
    let refusal = one.leases.acquire("batch-plays", "batch 21").await?;
    assert_held_by(refusal, "20");
    drop(next);
    let begun = Instant::now();
    loop {
        if let Ok(held) = one.leases.acquire("batch-plays", "batch 22").await? {
            held.release().await;
            break;
        }
        assert!(begun.elapsed() < DROP_RELEASE_MAX, "it was dropped");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    another.release().await;
    Ok(())
}

/// Checks that the refusal begins with the holder; the time of acquisition may follow.
#[track_caller]
fn assert_held_by(refusal: std::result::Result<Box<dyn LeaseGuard>, String>, holder: &str) {
    let refusal = refusal.expect_err("it is held, also for its own process");
    assert!(
        refusal == holder || refusal.starts_with(&format!("{holder} (since ")),
        "{refusal}"
    );
}

/// Invalid names are refused.
pub async fn invalid_names_are_refused(ports: &Stores) -> Result<()> {
    for name in ["", "../escape", "a/b", ".", "a b"] {
        assert!(
            ports.leases.acquire(name, "somebody").await.is_err(),
            "{name:?}"
        );
    }
    Ok(())
}
