//! The embedded stores obey the laws of the ports.

mod files;

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use stores::Result;
use stores::embedded::Embedded;
use stores::log::LogRead;
use tempfile::TempDir;
use tests::conformance::{self, Ports};

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

async fn ports(folder: &Path) -> Result<Ports> {
    let embedded = Embedded::open(folder).await?;
    Ok(Ports {
        log: Arc::clone(&embedded.log) as Arc<dyn LogRead>,
        ingest: embedded.log,
        live: embedded.live,
        views: embedded.views,
        canon: embedded.canon,
        archive: embedded.archive,
        leases: embedded.leases,
    })
}

/// A test for each law of a port.
macro_rules! laws {
    ($($port:ident { $($law:ident)* } and with two { $($law_of_two:ident)* })*) => {$(
        mod $port {
            use super::*;
            $(
                #[tokio::test]
                async fn $law() -> Result<()> {
                    let folder = folder();
                    conformance::$port::$law(&ports(folder.path()).await?).await
                }
            )*
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $law_of_two() -> Result<()> {
                    let folder = folder();
                    let one = ports(folder.path()).await?;
                    conformance::$port::$law_of_two(&one, &ports(folder.path()).await?).await
                }
            )*
        }
    )*};
}

laws! {
    log {
        records_come_back
        groups_follow_each_other
        times_never_fall
        fetch_keeps_its_limits
        out_of_range_is_told
        moments_lead_to_offsets
        topics_stay_as_they_are
        a_refused_append_writes_nothing
        sizes_do_not_matter
    } and with two {
        appends_do_not_mix
    }
    live {
        a_missing_slot_takes_nothing
        ranges_are_half_open
        partitions_are_asked
        overflow_changes_nothing
        large_batches_add_up
        garbage_goes
    } and with two {
        one_worker_wins
        reads_see_one_moment
    }
    states {
        the_newest_state_of_an_epoch_stays
        states_of_partitions_are_asked
        many_states_are_put
    } and with two {}
    editions {
        editions_come_back
        garbage_is_what_no_head_leads_to
        garbage_may_be_named_again
        who_was_overtaken_changes_no_head
        many_keys_are_listed
        forgotten_boards_are_deleted
    } and with two {}
    runs {
        runs_go_their_way
        only_the_next_run
        the_last_proposal_stands
        stamps_rise
        newest_never_goes_back
        an_abandoned_run_is_over
        stories_are_told
        old_runs_may_be_left_out
    } and with two {
        one_proposal_is_sealed
    }
    views {
        rows_come_back
        the_larger_stamp_stays
        results_are_recorded
        rows_of_earlier_results_are_found
        publishing_needs_a_run
        large_loads_are_whole
    } and with two {}
    canon {
        nothing_is_there_at_first
        only_some_sources_have_groups
        values_come_back
        versions_decide
        stored_versions_are_told
        rows_never_move
        athletes_touch_their_groups
        the_outbox_keeps_until_told
    } and with two {}
    canon_reads {
        dumps_are_in_order
        many_groups_are_read
        rows_of_groups_are_bounded
    } and with two {
        changes_are_seen_by_all
        reads_show_one_moment
    }
    canon_connect {
        connecting_keeps_to_the_capacity
        a_capacity_stays_until_a_line_says_more
        revoking_takes_back_everything
    } and with two {
        places_are_given_once
    }
    lease {
        odd_names_are_refused
    } and with two {
        one_holder_at_a_time
    }
    archive {
        objects_come_back
        folders_are_listed
        row_groups_come_back
    } and with two {
        one_creates
    }
}

/// Random histories, each on a slot of its own.
#[test]
fn live_state_follows_the_model() {
    let histories = conformance::live_model::histories();
    each_history(&histories, async |stores, number, calls| {
        conformance::live_model::follows_the_model(&*stores.live, number, calls).await
    });
}

/// Random histories, each with ids of its own.
#[test]
fn entities_follow_the_model() {
    let histories = conformance::canon_calls::histories();
    each_history(&histories, async |stores, number, calls| {
        let number = i64::from(number);
        conformance::canon_model::follows_the_model(&*stores.canon, number, calls).await
    });
}

/// Runs random histories one after the other on the same stores; each has a number.
fn each_history<S: Strategy>(
    histories: &S,
    follow: impl AsyncFn(&Embedded, u32, &S::Value) -> Result<()>,
) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let folder = folder();
    let embedded = runtime
        .block_on(Embedded::open(folder.path()))
        .expect("the stores");
    let number = std::cell::Cell::new(0);
    let config = ProptestConfig {
        cases: 40,
        max_shrink_iters: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let outcome = TestRunner::new(config).run(histories, |calls| {
        let mine = number.replace(number.get() + 1);
        let history = follow(&embedded, mine, &calls);
        let done =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(history)));
        match done {
            Ok(done) => {
                done.expect("the store answers");
                Ok(())
            }
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                Err(TestCaseError::fail(text))
            }
        }
    });
    outcome.expect("every history follows the model");
}
