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
    async fn set() -> Self;

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
                    let stage = <$stage>::set().await;
                    tests::conformance::$port::$law(&stage.ports().await?).await?;
                    stage.clear().await
                }
            )*
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $law_of_two() -> stores::Result<()> {
                    let stage = <$stage>::set().await;
                    let one = stage.ports().await?;
                    tests::conformance::$port::$law_of_two(&one, &stage.ports().await?).await?;
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
                records_come_back
                groups_follow_each_other
                times_never_fall
                fetch_keeps_its_limits
                out_of_range_is_told
                records_are_deleted_from_the_beginning
                moments_lead_to_offsets
                logs_are_recognised
                topics_stay_as_they_are
                a_refused_append_writes_nothing
                sizes_do_not_matter
            } and with two {
                appends_do_not_mix
            }
        }
    };
    (@live $stage:ty) => {
        $crate::conformance::laws! {
            $stage, live {
                a_missing_slot_takes_nothing
                ranges_are_half_open
                partitions_are_asked
                overflow_changes_nothing
                large_batches_add_up
                garbage_goes
                strays_are_remembered
            } and with two {
                one_worker_wins
                reads_see_one_moment
            }
        }
    };
    (@states $stage:ty) => {
        $crate::conformance::laws! {
            $stage, states {
                the_newest_state_of_an_epoch_stays
                states_of_partitions_are_asked
                many_states_are_put
                states_of_some_members_are_read
                what_waits_is_told_once
                an_outbox_ends_with_its_life
                sums_change_with_their_states
            } and with two {}
        }
    };
    (@achievements $stage:ty) => {
        $crate::conformance::laws! {
            $stage, achievements {
                achievements_come_newest_first
                how_far_was_told_is_noted
                an_athlete_is_erased
            } and with two {}
        }
    };
    (@counts $stage:ty) => {
        $crate::conformance::laws! {
            $stage, counts {
                rows_of_days_come_back
                the_larger_stamp_stays
                many_keys_are_asked_at_once
                histories_follow_the_runs
            } and with two {}
        }
    };
    (@editions $stage:ty) => {
        $crate::conformance::laws! {
            $stage, editions {
                editions_come_back
                garbage_is_what_no_head_leads_to
                garbage_may_be_named_again
                earlier_roots_are_kept_for_a_day
                a_head_may_be_alone
                who_was_overtaken_changes_no_head
                many_keys_are_listed
                forgotten_boards_are_deleted
            } and with two {}
        }
    };
    (@runs $stage:ty) => {
        $crate::conformance::laws! {
            $stage, runs {
                runs_go_their_way
                only_the_next_run
                the_last_proposal_stands
                stamps_rise
                newest_never_goes_back
                an_abandoned_run_is_over
                stories_are_told
                old_runs_may_be_left_out
                who_was_overtaken_forgets_nothing
            } and with two {
                one_proposal_is_sealed
                tables_that_are_made_anew_are_found
            }
        }
    };
    (@views $stage:ty) => {
        $crate::conformance::laws! {
            $stage, views {
                rows_come_back
                the_larger_stamp_stays
                results_are_recorded
                rows_of_earlier_results_are_found
                rows_are_deleted
                publishing_needs_a_run
                large_loads_are_whole
            } and with two {}
        }
    };
    (@view_scans $stage:ty) => {
        $crate::conformance::laws! {
            $stage, view_scans {
                every_row_comes_once
                wide_partitions_are_scanned
                partitions_of_one_token_are_scanned
                rows_written_meanwhile_come_at_most_once
                every_head_comes_once
                pages_are_bounded_in_bytes
                the_other_kind_is_refused
            } and with two {}
        }
    };
    (@live_scans $stage:ty) => {
        $crate::conformance::laws! {
            $stage, live_scans {
                the_newest_states_come_in_order
                pages_come_with_the_fence
                large_keys_are_scanned
            } and with two {
                pages_show_one_moment
                large_keys_show_one_moment
            }
        }
    };
    (@canon $stage:ty) => {
        $crate::conformance::laws! {
            $stage, canon {
                nothing_is_there_at_first
                only_some_sources_have_groups
                values_come_back
                a_null_sign_is_kept_or_refused
                versions_decide
                stored_versions_are_told
                rows_never_move
                athletes_touch_their_groups
                the_outbox_keeps_until_told
            } and with two {}
        }
    };
    (@canon_reads $stage:ty) => {
        $crate::conformance::laws! {
            $stage, canon_reads {
                dumps_are_in_order
                many_groups_are_read
                rows_of_groups_are_bounded
            } and with two {
                changes_are_seen_by_all
                reads_show_one_moment
            }
        }
    };
    (@canon_connect $stage:ty) => {
        $crate::conformance::laws! {
            $stage, canon_connect {
                connecting_keeps_to_the_capacity
                deleted_athletes_are_connected_to_nothing
                a_capacity_stays_until_a_line_says_more
                revoking_takes_back_everything
            } and with two {
                places_are_given_once
            }
        }
    };
    (@canon_admin $stage:ty) => {
        $crate::conformance::laws! {
            $stage, canon_admin {
                changes_are_recorded
                lines_are_recorded_with_their_sender
                enforcement_is_a_switch
                requests_are_decided
                thresholds_are_noted_once
            } and with two {
                one_asks_and_one_decides
                notices_are_claimed_once
            }
        }
    };
    (@canon_recounts $stage:ty) => {
        $crate::conformance::laws! {
            $stage, canon_recounts {
                athletes_are_counted_anew
            } and with two {
                the_later_recount_stays
                recounts_side_by_side_end_right
            }
        }
    };
    (@canon_erase $stage:ty) => {
        $crate::conformance::laws! {
            $stage, canon_erase {
                an_athlete_goes_from_every_table
                rows_of_groups_go_untold
            } and with two {}
        }
    };
    (@canon_aged $stage:ty) => {
        $crate::conformance::laws! {
            $stage, canon_aged {
                old_changes_go
                decided_requests_go
                delivered_notices_go
            } and with two {}
        }
    };
    (@canon_names $stage:ty) => {
        $crate::conformance::laws! {
            $stage, canon_names {
                names_are_given
                many_names_are_given
                names_are_found
                names_of_rows_are_theirs
            } and with two {}
        }
    };
    (@keys $stage:ty) => {
        $crate::conformance::laws! {
            $stage, keys {
                keys_are_found
                keys_are_taken_back
                keys_are_rotated
                uses_are_noted
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
                comparisons_come_back
                old_comparisons_go
                a_repeated_addition_gets_its_number
                numbers_that_lag_are_settled
                all_thousands_are_visited
            } and with two {
                two_record_side_by_side
            }
        }
    };
    (@erasures $stage:ty) => {
        $crate::conformance::laws! {
            $stage, erasures {
                erased_people_are_suppressed
                long_lists_are_read
            } and with two {
                numbers_are_given_once
            }
        }
    };
    (@lease $stage:ty) => {
        $crate::conformance::laws! {
            $stage, lease {
                odd_names_are_refused
            } and with two {
                one_holder_at_a_time
            }
        }
    };
    (@archive $stage:ty) => {
        $crate::conformance::laws! {
            $stage, archive {
                objects_come_back
                folders_are_listed
                row_groups_come_back
                files_are_remembered
            } and with two {
                one_creates
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
    let stage = runtime.block_on(S::set());
    let ports = runtime.block_on(stage.ports()).expect("the stores");
    let number = Cell::new(0);
    let cases = u32::try_from(history_seeds(cases.into(), 1).count()).expect("a number of cases");
    let config = ProptestConfig {
        cases,
        max_shrink_iters: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let outcome = TestRunner::new(config).run(histories, |calls| {
        let mine = number.replace(number.get() + 1);
        let history = follow(&ports, mine, &calls);
        match catch_unwind(AssertUnwindSafe(|| runtime.block_on(history))) {
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
    use tests::conformance::canon_calls::histories;
    use tests::conformance::canon_model::follows_the_model;
    each_history::<S, _>(&histories(), cases, async |ports, number, calls| {
        follows_the_model(&*ports.entities, i64::from(number), calls).await
    });
}
