//! Conformance tests: every adapter satisfies the laws of its ports.

mod embedded;
mod files;
mod servers;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use stores::{Result, Stores};
use tests::histories::history_seeds;
use tokio::runtime::Runtime;

/// New, empty stores.
pub(crate) trait Stage: Sized {
    /// Creates the stores.
    async fn create() -> Self;

    /// Opens the stores as another process does: each call opens them again.
    async fn ports(&self) -> Result<Stores>;

    /// Deletes stored data that is not deleted automatically.
    async fn clear(self) -> Result<()> {
        Ok(())
    }
}

/// A test for each law.
macro_rules! laws {
    ($stage:ty, $port:ident { $($law:ident)* } and with two { $($law_of_two:ident)* }) => {
        mod $port {
            use super::*;
            use $crate::conformance::Stage;
            $(
                #[tokio::test]
                async fn $law() -> stores::Result<()> {
                    let stage = <$stage>::create().await;
                    tests::conformance::$port::$law(&stage.ports().await?).await?;
                    stage.clear().await
                }
            )*
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $law_of_two() -> stores::Result<()> {
                    let stage = <$stage>::create().await;
                    let ports = stage.ports().await?;
                    tests::conformance::$port::$law_of_two(&ports, &stage.ports().await?).await?;
                    stage.clear().await
                }
            )*
        }
    };
}

/// A test for each law of some ports.
macro_rules! laws_of {
    ($stage:ty; $($port:ident)*) => { $($crate::conformance::laws_of!(@$port $stage);)* };
    (@log $stage:ty) => {
        $crate::conformance::laws! {
            $stage, log {
                records_round_trip
                groups_are_appended_in_order
                timestamps_never_decrease
                fetches_respect_limits
                out_of_range_offsets_fail
                records_are_deleted_from_the_beginning
                timestamps_resolve_to_offsets
                log_identity_is_verified
                topics_keep_their_partitions
                a_refused_append_writes_nothing
                records_of_any_size_are_returned
            } and with two {
                concurrent_appends_stay_in_order
            }
        }
    };
    (@live $stage:ty) => {
        $crate::conformance::laws! {
            $stage, live {
                a_missing_state_rejects_writes
                ranges_are_half_open
                queries_select_partitions
                overflow_changes_nothing
                large_batches_add_up
                garbage_is_collected
                misrouted_records_are_remembered
            } and with two {
                one_worker_wins
                reads_are_consistent
            }
        }
    };
    (@live_entries $stage:ty) => {
        $crate::conformance::laws! {
            $stage, live_entries {
                the_newest_entry_of_an_epoch_wins
                entry_queries_select_partitions
                many_entries_are_stored
                entries_of_some_members_are_read
                outbox_entries_are_removed_once
                an_outbox_ends_with_its_generation
                live_counts_change_with_their_entries
            } and with two {}
        }
    };
    (@achievements $stage:ty) => {
        $crate::conformance::laws! {
            $stage, achievements {
                achievements_are_listed_newest_first
                published_positions_are_stored
                an_athlete_is_erased
            } and with two {}
        }
    };
    (@counts $stage:ty) => {
        $crate::conformance::laws! {
            $stage, counts {
                daily_rows_round_trip
                the_larger_stamp_wins
                many_keys_are_read_at_once
                histories_follow_the_runs
            } and with two {}
        }
    };
    (@versions $stage:ty) => {
        $crate::conformance::laws! {
            $stage, versions {
                versions_round_trip
                unreferenced_nodes_are_garbage
                garbage_can_be_referenced_again
                earlier_roots_are_kept_for_a_day
                a_head_may_have_no_history
                an_old_stamp_changes_no_head
                many_keys_are_listed
                forgotten_boards_are_deleted
            } and with two {}
        }
    };
    (@runs $stage:ty) => {
        $crate::conformance::laws! {
            $stage, runs {
                runs_advance_through_their_states
                only_the_next_run_can_be_proposed
                the_last_proposal_wins
                stamps_increase
                the_newest_epoch_never_goes_back
                an_abandoned_run_is_over
                run_details_are_listed
                listings_may_omit_old_runs
                an_old_stamp_forgets_no_view
            } and with two {
                one_proposal_is_sealed
                recreated_tables_are_found
            }
        }
    };
    (@views $stage:ty) => {
        $crate::conformance::laws! {
            $stage, views {
                rows_round_trip
                the_larger_stamp_wins
                results_are_recorded
                rows_of_earlier_results_are_found
                rows_are_deleted
                publishing_needs_a_run
                large_loads_are_complete
            } and with two {}
        }
    };
    (@view_scans $stage:ty) => {
        $crate::conformance::laws! {
            $stage, view_scans {
                every_row_is_scanned_once
                wide_partitions_are_scanned
                partitions_of_one_token_are_scanned
                concurrent_writes_duplicate_no_row
                every_head_is_scanned_once
                pages_are_bounded_in_bytes
                wrong_view_kinds_are_refused
            } and with two {}
        }
    };
    (@live_scans $stage:ty) => {
        $crate::conformance::laws! {
            $stage, live_scans {
                the_newest_entries_are_scanned_in_order
                pages_carry_their_checkpoint
                large_keys_are_scanned
            } and with two {
                pages_are_consistent
                large_key_pages_are_consistent
            }
        }
    };
    (@entities $stage:ty) => {
        $crate::conformance::laws! {
            $stage, entities {
                a_new_store_is_empty
                only_some_sources_have_groups
                values_round_trip
                a_nul_character_is_stored_or_rejected
                newer_versions_win
                stored_versions_are_returned
                rows_never_move
                athletes_touch_their_groups
                the_outbox_keeps_unpublished_notifications
            } and with two {}
        }
    };
    (@entity_reads $stage:ty) => {
        $crate::conformance::laws! {
            $stage, entity_reads {
                dumps_are_in_order
                many_groups_are_read
                rows_of_groups_are_bounded
            } and with two {
                changes_are_visible_to_other_processes
                reads_are_snapshots
            }
        }
    };
    (@entity_connections $stage:ty) => {
        $crate::conformance::laws! {
            $stage, entity_connections {
                connections_respect_the_capacity
                deleted_athletes_are_connected_to_nothing
                a_capacity_stays_until_a_newer_line
                disconnecting_revokes_every_authorization
            } and with two {
                concurrent_connections_respect_the_capacity
            }
        }
    };
    (@entity_admin $stage:ty) => {
        $crate::conformance::laws! {
            $stage, entity_admin {
                changes_are_recorded
                lines_are_recorded_with_their_sender
                enforcement_can_be_switched
                requests_are_decided
                thresholds_are_recorded_once
            } and with two {
                concurrent_requests_and_decisions_apply_once
                notices_are_claimed_once
            }
        }
    };
    (@entity_recounts $stage:ty) => {
        $crate::conformance::laws! {
            $stage, entity_recounts {
                athletes_are_recounted
            } and with two {
                the_later_recount_wins
                concurrent_recounts_are_correct
            }
        }
    };
    (@entity_erasure $stage:ty) => {
        $crate::conformance::laws! {
            $stage, entity_erasure {
                an_athlete_is_deleted_from_every_table
                group_rows_are_deleted_without_notifications
            } and with two {}
        }
    };
    (@entity_expiry $stage:ty) => {
        $crate::conformance::laws! {
            $stage, entity_expiry {
                old_audit_records_expire
                decided_requests_expire
                delivered_notices_expire
            } and with two {}
        }
    };
    (@entity_names $stage:ty) => {
        $crate::conformance::laws! {
            $stage, entity_names {
                names_are_stored
                many_names_are_stored
                names_are_found
                entity_names_come_from_rows
            } and with two {}
        }
    };
    (@keys $stage:ty) => {
        $crate::conformance::laws! {
            $stage, keys {
                keys_are_found
                keys_are_revoked
                keys_are_rotated
                uses_are_recorded
                actions_are_recorded
            } and with two {
                one_of_two_rotates
            }
        }
    };
    (@records $stage:ty) => {
        $crate::conformance::laws! {
            $stage, records {
                records_change_by_version
                scans_are_ordered
                large_scopes_are_scanned
            } and with two {
                one_of_two_writers_succeeds
            }
        }
    };
    (@reconciliations $stage:ty) => {
        $crate::conformance::laws! {
            $stage, reconciliations {
                records_are_listed_newest_first
                old_records_expire
                a_repeated_addition_gets_its_number
                lagging_numbers_are_corrected
                all_number_blocks_are_visited
            } and with two {
                concurrent_records_get_own_numbers
            }
        }
    };
    (@erasures $stage:ty) => {
        $crate::conformance::laws! {
            $stage, erasures {
                erased_people_are_suppressed
                long_lists_are_read
            } and with two {
                numbers_are_unique
            }
        }
    };
    (@lease $stage:ty) => {
        $crate::conformance::laws! {
            $stage, lease {
                invalid_names_are_refused
            } and with two {
                one_holder_at_a_time
            }
        }
    };
    (@archive $stage:ty) => {
        $crate::conformance::laws! {
            $stage, archive {
                objects_round_trip
                folders_are_listed
                row_groups_are_read_in_order
                files_are_cached
            } and with two {
                one_writer_creates_an_object
            }
        }
    };
}

pub(crate) use {laws, laws_of};

/// Runs numbered random histories one after the other on the same stores.
pub(crate) fn each_history<S: Stage, H: Strategy>(
    histories: &H,
    cases: u32,
    follow: impl AsyncFn(&Stores, u32, &H::Value) -> Result<()>,
) {
    let runtime = Runtime::new().expect("a runtime");
    let stage = runtime.block_on(S::create());
    let ports = runtime.block_on(stage.ports()).expect("the stores");
    let next_number = Cell::new(0);
    let cases = u32::try_from(history_seeds(cases.into(), 1).count()).expect("a number of cases");
    let config = ProptestConfig {
        cases,
        max_shrink_iters: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let outcome = TestRunner::new(config).run(histories, |calls| {
        let history_number = next_number.replace(next_number.get() + 1);
        let history = follow(&ports, history_number, &calls);
        match catch_unwind(AssertUnwindSafe(|| runtime.block_on(history))) {
            Ok(result) => {
                result.expect("the store answers");
                Ok(())
            }
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                Err(TestCaseError::fail(text))
            }
        }
    });
    outcome.expect("every history follows the model");
    runtime.block_on(stage.clear()).expect("deleting");
}

/// Runs random histories, each in its own partition.
pub(crate) fn live_state_follows_the_model<S: Stage>(cases: u32) {
    use tests::conformance::live_model::{follows_the_model, histories};
    each_history::<S, _>(&histories(), cases, async |ports, number, calls| {
        follows_the_model(&*ports.live, number, calls).await
    });
}

/// Runs random histories, each with its own ids.
pub(crate) fn entities_follow_the_model<S: Stage>(cases: u32) {
    use tests::conformance::entity_calls::histories;
    use tests::conformance::entity_model::follows_the_model;
    each_history::<S, _>(&histories(), cases, async |ports, number, calls| {
        follows_the_model(&*ports.entities, i64::from(number), calls).await
    });
}
