//! The laws of the lease port.

use std::time::{Duration, Instant};

use stores::lease::Held;
use stores::{Result, Stores};

/// How long a lease that was only dropped may still be held.
const A_MOMENT: Duration = Duration::from_secs(60);

/// A lease has one holder at a time, others are told who it is, and it is free again once it is let
/// go, or soon after it was dropped; names do not bind each other.
pub async fn one_holder_at_a_time(one: &Stores, other: &Stores) -> Result<()> {
    let held = one.leases.acquire("batch-plays", "batch 17").await?;
    let held = held.expect("nobody holds it");
    let told = other.leases.acquire("batch-plays", "batch 18").await?;
    assert_told(told, "batch 17");
    let told = one.leases.acquire("batch-plays", "batch 19").await?;
    assert_told(told, "batch 17");
    let another = other.leases.acquire("archive-plays", "archive 3").await?;
    let another = another.expect("another name is another lease");
    assert!(!held.lost().is_cancelled());
    held.let_go().await;
    let next = other.leases.acquire("batch-plays", "20").await?;
    let next = next.expect("it was let go");
    let told = one.leases.acquire("batch-plays", "batch 21").await?;
    assert_told(told, "20");
    drop(next);
    let begun = Instant::now();
    loop {
        if let Ok(held) = one.leases.acquire("batch-plays", "batch 22").await? {
            held.let_go().await;
            break;
        }
        assert!(begun.elapsed() < A_MOMENT, "it was dropped");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    another.let_go().await;
    Ok(())
}

/// Who holds it stands first; since when may follow.
#[track_caller]
fn assert_told(told: std::result::Result<Box<dyn Held>, String>, holder: &str) {
    let told = told.expect_err("it is held, also for its own process");
    assert!(
        told == holder || told.starts_with(&format!("{holder} (since ")),
        "{told}"
    );
}

/// What can't be a name is refused.
pub async fn odd_names_are_refused(ports: &Stores) -> Result<()> {
    for name in ["", "../escape", "a/b", ".", "a b"] {
        assert!(
            ports.leases.acquire(name, "somebody").await.is_err(),
            "{name:?}"
        );
    }
    Ok(())
}
