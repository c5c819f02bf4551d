//! The laws of the lease port.

use stores::{Result, Stores};

/// A lease has one holder at a time, others are told who it is, and it is free again once it is let
/// go; names do not bind each other.
pub async fn one_holder_at_a_time(one: &Stores, other: &Stores) -> Result<()> {
    let held = one.leases.acquire("batch-plays", "batch 17").await?;
    let held = held.expect("nobody holds it");
    let told = other.leases.acquire("batch-plays", "batch 18").await?;
    assert_eq!(told.expect_err("it is held"), "batch 17");
    let told = one.leases.acquire("batch-plays", "batch 19").await?;
    assert_eq!(
        told.expect_err("it is held, also for its own process"),
        "batch 17"
    );
    let another = other.leases.acquire("archive-plays", "archive 3").await?;
    assert!(another.is_ok(), "another name is another lease");
    drop(held);
    let next = other.leases.acquire("batch-plays", "20").await?;
    let next = next.expect("it was let go");
    let told = one.leases.acquire("batch-plays", "batch 21").await?;
    assert_eq!(told.expect_err("it is held"), "20");
    drop(next);
    Ok(())
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
