//! The conformance suite of RDMA providers: one case for each promise of [`Provider`].
//!
//! A provider's crate implements [`Fabric`] and contains one line:
//!
//! ```ignore
//! nvmeof_rdma_conformance::conformance_suite!([TcpFabric::new()]);
//! ```
//!
//! The expression yields all fabrics for each case: a simulation yields one for each seed.
//! Each case is a `#[test]` named for what it checks. The [`Rig`] checks the general promises
//! around every case: each work request returns once, in order, with its buffer, and `Closed`
//! is the last event of a queue pair.
//!
//! This crate has no tests of its own and contains no provider: each provider's crate runs
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
pub mod withdrawing;

use std::os::fd::BorrowedFd;
use std::time::Duration;

pub use deviations::Deviations;
pub use pattern::check as check_pattern;
pub use rig::{Link, Rig};
pub use side::Endpoint;

use nvmeof_rdma::{Address, Provider};

/// A pair of connected providers, and their clock.
pub trait Fabric {
    /// Text to print when a case fails: the kind, and the seed if there is one.
    fn describe(&self) -> String;

    /// Creates two providers that can connect to each other. Called once.
    fn pair(&mut self) -> (Box<dyn Provider>, Box<dyn Provider>);

    /// An address the provider at `end` can listen on and the other can
    /// reach, with port 0.
    fn addr(&self, end: Endpoint) -> Address;

    /// Whether the providers serve Unix sockets as well as IP addresses.
    fn serves_unix(&self) -> bool {
        false
    }

    /// Deviations of the devices from the contract.
    fn deviations(&self) -> Deviations {
        Deviations::NONE
    }

    /// Seed of the random numbers of a case; a simulation has its own.
    fn seed(&self) -> u64 {
        1
    }

    /// The time for the providers.
    fn now(&self) -> Duration;

    /// Lets time pass until there may be events: until one of `fds` is readable, but about a
    /// millisecond at most; in a simulation, until one is readable or nothing is in flight
    /// any more. Not beyond `until`, where a simulation may stop at any earlier event.
    /// Returns whether there may be events.
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

/// Defines one `#[test]` for each case of the suite, in a module `conformance`. `$fabrics` is
/// an expression that yields the fabrics, evaluated anew in each test.
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
                rejection_carries_private_data,
                request_reports_reads_of_peer,
                connect_without_listener_is_network_failure,
                closed_listener_refuses_connections,
                address_in_use_is_refused,
                unsupported_kind_of_address_is_refused,
                either_side_may_listen,
                messages_stay_on_their_connection,
                early_receives_get_first_message,
                passive_side_may_post_first,
            }
            pending {
                request_ends_when_peer_closes,
                requests_may_be_disconnected,
                pending_requests_are_bounded,
                many_requests_get_individual_responses,
            }
            sending {
                messages_arrive_in_order,
                head_and_body_are_one_message,
                messages_without_body_keep_order,
                messages_without_body_are_refused,
                empty_message_arrives,
                message_may_fill_receive,
                only_view_is_sent_and_filled,
                large_messages_arrive,
                solicited_flag_arrives,
                message_longer_than_receive_is_a_fault,
                message_without_receive_is_a_fault,
            }
            sharing {
                queue_pairs_share_one_queue,
                message_waits_for_shared_receive,
                shared_receives_outlive_queue_pair,
                shared_queue_ends_with_last_queue_pair,
                invalid_shared_receives_are_refused,
                only_requests_can_use_shared_queue,
                fault_costs_others_no_receive,
                few_shared_receives_serve_many_queue_pairs,
            }
            one_sided {
                write_is_placed_at_its_address,
                writes_of_all_sizes_arrive,
                reads_of_all_sizes_arrive,
                read_fills_only_view,
                send_arrives_after_earlier_writes,
                reads_beyond_depth_are_queued,
                reads_are_lowered_to_common_limit,
                both_sides_read_and_write_at_once,
                all_kinds_complete_in_order,
            }
            answering {
                response_is_data_then_message,
                responses_keep_order,
                refused_and_unsent_responses_return,
                response_message_returns_last,
            }
            protection {
                writes_outside_are_faults,
                reads_outside_are_faults,
                addresses_do_not_wrap,
                unknown_keys_are_faults,
                withdrawn_keys_are_faults,
                invalidated_keys_are_faults,
                keys_of_other_queue_pairs_are_faults,
                exposed_regions_are_for_trusted_peer_only,
                access_rights_are_enforced,
                send_may_invalidate_key,
                invalidating_unknown_key_is_a_fault,
                invalidating_for_another_queue_pair_is_a_fault,
                withdraw_stops_write_in_progress,
                withdraw_during_read_is_safe,
                keys_are_reused_late,
            }
            withdrawing {
                withdrawn_key_is_unknown_at_once,
                withdrawn_buffers_return_once_before_closed,
                withdrawn_buffer_returns_when_peer_dies,
                owner_that_withdraws_is_woken,
                key_may_be_invalidated_while_withdrawn,
            }
            closing {
                everything_returns_before_closed,
                submitted_work_arrives_before_end,
                both_sides_may_disconnect_at_once,
                owner_that_disconnects_does_not_sleep,
                connecting_may_be_canceled,
                death_of_peer_is_detected,
                exposed_memory_survives_its_queue_pair,
                closed_queue_pair_ids_are_refused,
                other_connections_are_not_affected,
                dropped_provider_frees_everything,
            }
            refusing {
                full_queues_refuse_and_recover,
                unregistered_memory_is_refused,
                work_before_establishment_is_refused,
                accept_without_prepare_is_refused,
                second_response_to_request_is_refused,
                sizes_beyond_the_limits_are_refused,
                work_longer_than_remote_memory_is_refused,
                expose_without_reserved_keys_is_refused,
                key_table_is_bounded,
            }
            load {
                writes_wait_for_sleeping_peer,
                messages_both_ways_keep_order,
                connection_slots_are_reused,
                descriptor_becomes_readable_for_events,
                sleeping_side_is_woken,
                idle_provider_has_nothing_to_do,
            }
            logging {
                log_lines_about_peer_name_its_host,
            }
            soak {
                random_work_agrees_with_model,
                random_work_survives_random_ends,
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
