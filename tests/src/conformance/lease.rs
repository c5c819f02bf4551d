//! Laws of the lease port.

use std::time::{Duration, Instant};

use stores::lease::LeaseGuard;
use stores::{Result, Stores};

/// Maximum time until a lease that was dropped without a release is free.
const DROP_RELEASE_MAX: Duration = Duration::from_secs(60);

/// A lease has one holder at a time, and other processes learn who holds it. It is free after its
/// release, or soon after it was dropped. Names are independent.
pub async fn one_holder_at_a_time(ports: &Stores, other_ports: &Stores) -> Result<()> {
    let lease = ports.leases.acquire("batch-plays", "batch 17").await?;
    let lease = lease.expect("the lease is free");
    let refusal = other_ports
        .leases
        .acquire("batch-plays", "batch 18")
        .await?;
    assert_held_by(refusal, "batch 17");
    let refusal = ports.leases.acquire("batch-plays", "batch 19").await?;
    assert_held_by(refusal, "batch 17");
    for stores in [ports, other_ports] {
        let holder = stores.leases.holder("batch-plays").await?;
        assert!(holder.is_some_and(|holder| holder.starts_with("batch 17")));
        assert_eq!(stores.leases.holder("batch-efforts").await?, None);
    }
    let other_lease = other_ports
        .leases
        .acquire("archive-plays", "archive 3")
        .await?;
    let other_lease = other_lease.expect("another name is another lease");
    assert!(!lease.lost().is_cancelled());
    lease.release().await;
    for stores in [ports, other_ports] {
        assert_eq!(stores.leases.holder("batch-plays").await?, None);
    }
    let next = other_ports.leases.acquire("batch-plays", "20").await?;
    let next = next.expect("it was let go");
    let refusal = ports.leases.acquire("batch-plays", "batch 21").await?;
    assert_held_by(refusal, "20");
    drop(next);
    let begun = Instant::now();
    loop {
        if let Ok(lease) = ports.leases.acquire("batch-plays", "batch 22").await? {
            lease.release().await;
            break;
        }
        assert!(begun.elapsed() < DROP_RELEASE_MAX, "it was dropped");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    other_lease.release().await;
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
        assert!(ports.leases.holder(name).await.is_err(), "{name:?}");
    }
    Ok(())
}
