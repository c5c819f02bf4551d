//! Data centers: in how many of them a keyspace has copies, and what that asks of the consistency.

use std::collections::{BTreeMap, BTreeSet};

use scylla::statement::Consistency;

use super::session::Cql;
use crate::Result;

/// What is wrong where what is written may not be seen by who reads: a quorum of one data center has
/// nothing in common with that of another.
pub(super) async fn flaw(cql: &Cql, keyspace: &str) -> Result<Option<String>> {
    let doing = "reading how the keyspace is replicated";
    let text = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?";
    let row: Option<(BTreeMap<String, String>,)> = cql.first(doing, text, (keyspace,)).await?;
    let (replication,) = row.unwrap_or_default();
    let state = cql.session().await?.get_cluster_state();
    let nodes = state.get_nodes_info().iter();
    let of_cluster = nodes.filter_map(|node| node.datacenter.as_deref());
    let centers = with_copies(&replication, of_cluster.collect());
    Ok(flaw_of(keyspace, &centers, cql.consistency()?))
}

/// The data centers in which a keyspace has copies.
fn with_copies<'a>(
    replication: &'a BTreeMap<String, String>,
    of_cluster: BTreeSet<&'a str>,
) -> BTreeSet<&'a str> {
    let class = replication.get("class").map_or("", String::as_str);
    if !class.ends_with("NetworkTopologyStrategy") {
        // The others don't look where a node is.
        return of_cluster;
    }
    let copies = replication.iter().filter(|(name, copies)| {
        !matches!(name.as_str(), "class" | "replication_factor") && copies.as_str() != "0"
    });
    // ScyllaDB numbers the racks of a data center behind its name, if they are named.
    copies
        .map(|(name, _)| name.split(':').next().unwrap_or(name))
        .collect()
}

fn flaw_of(keyspace: &str, centers: &BTreeSet<&str>, consistency: Consistency) -> Option<String> {
    if centers.len() < 2 || matches!(consistency, Consistency::Quorum | Consistency::All) {
        return None;
    }
    let names: Vec<&str> = centers.iter().copied().collect();
    Some(format!(
        "the keyspace {keyspace} has copies in the data centers {}, and with the present consistency \
         what is written in one may not be seen in another, so answers could be wrong: set \
         `consistency` to quorum (and `serial_consistency` to serial where batch runs start in several \
         data centers), or keep the copies in one",
        names.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_in_several_data_centers_need_a_quorum_of_all() {
        let cases = [
            (
                "SimpleStrategy",
                vec![("replication_factor", "3")],
                1,
                false,
            ),
            ("SimpleStrategy", vec![("replication_factor", "3")], 2, true),
            ("NetworkTopologyStrategy", vec![("dc1", "3")], 2, false),
            (
                "NetworkTopologyStrategy",
                vec![("dc1", "3"), ("dc2", "0")],
                2,
                false,
            ),
            (
                "NetworkTopologyStrategy",
                vec![("dc1", "3"), ("dc2", "1")],
                2,
                true,
            ),
            (
                "NetworkTopologyStrategy",
                vec![("dc1:0", "r1"), ("dc1:1", "r2")],
                2,
                false,
            ),
        ];
        for (class, copies, centers, is_flawed) in cases {
            let class = format!("org.apache.cassandra.locator.{class}");
            let copies = copies
                .iter()
                .map(|(of, n)| ((*of).to_owned(), (*n).to_owned()));
            let mut replication: BTreeMap<String, String> = copies.collect();
            replication.insert("class".to_owned(), class);
            let of_cluster = ["dc1", "dc2"].into_iter().take(centers).collect();
            let found = with_copies(&replication, of_cluster);
            for (consistency, can_be) in [
                (Consistency::LocalQuorum, true),
                (Consistency::LocalOne, true),
                (Consistency::One, true),
                (Consistency::Quorum, false),
                (Consistency::All, false),
            ] {
                let flaw = flaw_of("k", &found, consistency);
                assert_eq!(
                    flaw.is_some(),
                    is_flawed && can_be,
                    "{replication:?} {flaw:?}"
                );
            }
        }
    }
}
