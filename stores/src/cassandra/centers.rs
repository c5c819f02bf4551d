//! Data centers: how many of them have replicas of a keyspace, and which consistency that requires.

use std::collections::{BTreeMap, BTreeSet};

use scylla::statement::Consistency;

use super::session::Cql;
use crate::Result;

/// Returns a problem if reads may miss writes with the configured consistency, because the quorums
/// of two data centers do not overlap.
pub(super) async fn find_consistency_problem(cql: &Cql, keyspace: &str) -> Result<Option<String>> {
    let operation = "reading the replication of the keyspace";
    let text = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?";
    let row: Option<(BTreeMap<String, String>,)> =
        cql.fetch_first(operation, text, (keyspace,)).await?;
    let (replication,) = row.unwrap_or_default();
    let state = cql.session().await?.get_cluster_state();
    let nodes = state.get_nodes_info().iter();
    let cluster_centers = nodes.filter_map(|node| node.datacenter.as_deref());
    let centers = replica_centers(&replication, cluster_centers.collect());
    Ok(check_consistency(keyspace, &centers, cql.consistency()?))
}

/// Returns the data centers with replicas of a keyspace.
fn replica_centers<'a>(
    replication: &'a BTreeMap<String, String>,
    cluster_centers: BTreeSet<&'a str>,
) -> BTreeSet<&'a str> {
    let class = replication.get("class").map_or("", String::as_str);
    if !class.ends_with("NetworkTopologyStrategy") {
        // Other strategies ignore the location of nodes.
        return cluster_centers;
    }
    let replicas = replication.iter().filter(|(name, replicas)| {
        !matches!(name.as_str(), "class" | "replication_factor") && replicas.as_str() != "0"
    });
    // If racks are named, ScyllaDB appends a number per rack to the name of the data center.
    replicas
        .map(|(name, _)| name.split(':').next().unwrap_or(name))
        .collect()
}

fn check_consistency(
    keyspace: &str,
    centers: &BTreeSet<&str>,
    consistency: Consistency,
) -> Option<String> {
    if centers.len() < 2 || matches!(consistency, Consistency::Quorum | Consistency::All) {
        return None;
    }
    let names: Vec<&str> = centers.iter().copied().collect();
    Some(format!(
        "the keyspace {keyspace} has replicas in the data centers {}, and with the current \
         consistency, reads in one may miss writes in another, so results may be wrong: set \
         `consistency` to quorum (and `serial_consistency` to serial if batch runs start in several \
         data centers), or use replicas in only one data center",
        names.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_in_several_data_centers_need_a_global_quorum() {
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
        for (class, replicas, centers, is_flawed) in cases {
            let class = format!("org.apache.cassandra.locator.{class}");
            let replicas = replicas
                .iter()
                .map(|(name, n)| ((*name).to_owned(), (*n).to_owned()));
            let mut replication: BTreeMap<String, String> = replicas.collect();
            replication.insert("class".to_owned(), class);
            let cluster_centers = ["dc1", "dc2"].into_iter().take(centers).collect();
            let actual_centers = replica_centers(&replication, cluster_centers);
            for (consistency, is_local) in [
                (Consistency::LocalQuorum, true),
                (Consistency::LocalOne, true),
                (Consistency::One, true),
                (Consistency::Quorum, false),
                (Consistency::All, false),
            ] {
                let problem = check_consistency("k", &actual_centers, consistency);
                assert_eq!(
                    problem.is_some(),
                    is_flawed && is_local,
                    "{replication:?} {problem:?}"
                );
            }
        }
    }
}
