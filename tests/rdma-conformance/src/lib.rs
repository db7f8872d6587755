//! The conformance suite of RDMA providers: one case for each promise of [`Provider`].
//!
//! A provider's crate implements [`Fabric`] and has one line:
//!
//! ```ignore
//! nvmeof_rdma_conformance::conformance_suite!([TcpFabric::new()]);
//! ```
//!
//! The expression gives all fabrics that each case runs on, one after the
//! other: a simulation gives one for each seed. Each case is a `#[test]` named
//! for what it checks. Around every case the [`Rig`] checks what always holds:
//! each work request comes back once, in order, with its buffer, and `Closed`
//! is the last event of a queue pair.
//!
//! This crate has no tests of its own and knows no provider: each provider's crate runs
//! the suite from its `tests/`.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "a test suite fails by panicking"
)]

pub mod answering;
pub mod closing;
pub mod connecting;
mod deviations;
pub mod load;
pub mod logging;
pub mod one_sided;
mod outstanding;
mod pattern;
pub mod pending;
pub mod protection;
pub mod refusing;
mod rig;
pub mod sending;
pub mod sharing;
mod side;
pub mod soak;
mod soak_actions;

use std::os::fd::BorrowedFd;
use std::time::Duration;

pub use deviations::Deviations;
pub use pattern::check as check_pattern;
pub use rig::{Link, Rig};
pub use side::End;

use nvmeof_rdma::{Address, Provider};

/// Where two providers meet, and the time that passes there.
pub trait Fabric {
    /// What to print when a case fails: the kind, and the seed if there is
    /// one.
    fn describe(&self) -> String;

    /// Makes two providers that reach each other. Called once.
    fn pair(&mut self) -> (Box<dyn Provider>, Box<dyn Provider>);

    /// An address the provider at `end` can listen on and the other can
    /// reach, with port 0.
    fn addr(&self, end: End) -> Address;

    /// Whether the providers serve Unix sockets as well as IP addresses.
    fn serves_unix(&self) -> bool {
        false
    }

    /// Where the devices below keep less than the letter of the contract.
    fn deviations(&self) -> Deviations {
        Deviations::NONE
    }

    /// Where the random numbers of a case start; a simulation's own seed.
    fn seed(&self) -> u64 {
        1
    }

    /// The time, to be handed to the providers.
    fn now(&self) -> Duration;

    /// Lets time pass until something may have happened: until one of `fds`
    /// is readable, but about a millisecond at most; in a simulation, where that is no
    /// measure, until one is or nothing is under way any more. Not beyond `until`, where
    /// a simulation may stop at whatever happens before. Returns whether something may
    /// have happened.
    fn pause(&mut self, fds: &[BorrowedFd<'_>], until: Option<Duration>) -> bool;
}

/// One case of the suite.
pub type Case = fn(&mut Rig<'_>);

/// Runs `case` on each of `fabrics`.
pub fn run<F: Fabric>(fabrics: impl IntoIterator<Item = F>, case: Case) {
    for mut fabric in fabrics {
        // Shown when the case fails.
        println!("on {}", fabric.describe());
        let mut rig = Rig::new(&mut fabric);
        case(&mut rig);
        rig.finish();
    }
}

/// Makes one `#[test]` for each case of the suite, in a module `conformance`.
/// `$fabrics` is an expression that gives the fabrics to run on, evaluated
/// anew in each test.
#[macro_export]
macro_rules! conformance_suite {
    ($fabrics:expr) => {
        $crate::conformance_suite!(conformance, $fabrics);
    };
    ($name:ident, $fabrics:expr) => {
        $crate::conformance_suite! { @groups $name, $fabrics,
            connecting {
                private_data_travels_both_ways,
                full_private_data_travels_both_ways,
                a_rejection_carries_private_data,
                a_request_says_how_many_reads_the_peer_wants,
                nobody_listening_is_a_network_failure,
                a_listener_that_is_gone_takes_nobody,
                a_used_address_is_refused,
                addresses_of_another_kind_are_refused,
                either_side_may_listen,
                connections_do_not_mix,
                receives_wait_for_the_first_message,
                the_passive_side_may_post_first,
            }
            pending {
                a_peer_that_gives_up_ends_its_request,
                requests_may_be_disconnected,
                requests_that_wait_are_bounded,
                many_requests_at_once_are_answered_one_by_one,
            }
            sending {
                messages_arrive_in_order,
                head_and_body_are_one_message,
                an_empty_message_arrives,
                a_message_may_fill_the_receive,
                only_what_is_in_view_is_sent_and_filled,
                large_messages_arrive,
                the_solicited_flag_arrives,
                a_message_too_long_for_the_receive_is_a_fault,
                a_message_without_a_receive_is_a_fault,
            }
            sharing {
                queue_pairs_draw_from_one_queue,
                a_message_waits_for_a_shared_receive,
                shared_receives_outlive_a_queue_pair,
                a_shared_queue_goes_with_its_last_queue_pair,
                shared_receives_are_refused_when_they_must_be,
                only_requests_can_draw,
                a_fault_costs_others_no_receive,
                few_shared_receives_serve_many,
            }
            one_sided {
                a_write_lands_at_its_place,
                writes_of_all_sizes_arrive,
                reads_of_all_sizes_arrive,
                a_read_fills_what_is_in_view,
                a_send_comes_after_the_writes_before_it,
                reads_beyond_the_depth_wait_their_turn,
                reads_are_lowered_to_what_both_can_do,
                both_sides_read_and_write_at_once,
                all_kinds_complete_in_order,
            }
            answering {
                an_answer_is_data_and_then_a_message,
                answers_keep_their_order,
                answers_are_refused_and_come_back,
                the_message_comes_back_last,
            }
            protection {
                writes_outside_are_faults,
                reads_outside_are_faults,
                addresses_do_not_wrap,
                unknown_keys_are_faults,
                withdrawn_keys_are_faults,
                invalidated_keys_are_faults,
                keys_of_other_queue_pairs_are_faults,
                rights_are_kept,
                a_send_may_invalidate_a_key,
                invalidating_what_is_not_there_is_a_fault,
                invalidating_for_another_queue_pair_is_a_fault,
                withdrawing_stops_a_write_half_way,
                withdrawing_under_a_read_is_safe,
                keys_are_not_used_again_soon,
            }
            closing {
                everything_comes_back_before_closed,
                what_was_submitted_arrives_before_the_end,
                both_sides_may_disconnect_at_once,
                connecting_may_be_given_up,
                a_peer_that_vanishes_is_noticed,
                exposed_memory_survives_its_queue_pair,
                names_of_closed_queue_pairs_are_refused,
                other_connections_live_on,
                dropping_a_provider_frees_everything,
            }
            refusing {
                full_queues_refuse_and_recover,
                memory_that_is_not_registered_is_refused,
                work_before_the_connection_stands_is_refused,
                accepting_needs_preparing,
                answering_twice_is_refused,
                sizes_beyond_the_limits_are_refused,
                work_longer_than_its_target_is_refused,
                who_exposes_nothing_is_refused,
                the_key_table_has_an_end,
            }
            load {
                writes_wait_for_a_peer_that_sleeps,
                messages_both_ways_keep_their_order,
                connections_come_and_go,
                the_descriptor_wakes,
                who_goes_to_sleep_is_woken,
                a_provider_at_rest_has_nothing_to_do,
            }
            logging {
                lines_about_a_peer_say_whose_it_is,
            }
            soak {
                a_random_mix_agrees_with_the_model,
                a_random_mix_survives_random_ends,
            }
        }
    };
    (@groups $name:ident, $fabrics:expr, $($group:ident { $($case:ident,)* })*) => {
        mod $name {
            $(mod $group {
                #[allow(unused_imports, reason = "the expression may need none")]
                use super::super::*;
                $(#[test]
                fn $case() {
                    $crate::run($fabrics, $crate::$group::$case);
                })*
            })*
        }
    };
}
