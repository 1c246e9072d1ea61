//! Any seed at ErrorRecoveryLevel 2 (RFC 7143, chapter 7): PDUs that get lost, data whose digest is wrong, connections that
//! break, in any order; once that stops, every command is answered, with the right data, no number is missing and nothing
//! is kept.

use lunette_cases::cases;
use lunette_iscsi::parameters::TargetLimits;
use lunette_iscsi::session::SessionSettings;
use proptest::prelude::*;

use crate::double::Rng;
use crate::double::recovering::Recovering;

/// What happens now and then: once in so many moves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Faults {
    /// A PDU of the target's is lost, or one of the initiator's has a wrong digest.
    pub(crate) lost: u32,
    /// A connection breaks.
    pub(crate) broken: u32,
}

fn run(seed: u64, faults: Faults, connections: u16) {
    let mut rng = Rng(seed);
    let depth = 1 + rng.below(12) as u16;
    let limits = TargetLimits {
        command_window: depth.into(),
        max_recv_data_segment_length: 512 + 4 * rng.below(300),
        error_recovery_level: 2,
        default_time2retain_s: 3600,
        ..TargetLimits::default()
    };
    let settings = SessionSettings { window_depth: depth, nop_interval: None, ..SessionSettings::default() };
    let mut world = Recovering::new(rng.next(), limits, settings, connections);
    world.go(600, faults);
    world.finish();
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn what_is_lost_is_recovered(seed: u64, connections in 1u16..4) {
        run(seed, Faults { lost: 12, broken: u32::MAX }, connections);
    }

    #[test]
    fn what_a_broken_connection_leaves_goes_on(seed: u64, connections in 1u16..4) {
        run(seed, Faults { lost: u32::MAX, broken: 40 }, connections);
    }

    #[test]
    fn everything_at_once_is_recovered(seed: u64, connections in 1u16..4) {
        run(seed, Faults { lost: 15, broken: 60 }, connections);
    }
}
