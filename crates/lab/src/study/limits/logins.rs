//! What limits a part of a login: round trips of the network, the target or the initiator, where their times make what came.

use lunette_link::Link;

use super::{Named, busy};
use crate::report::figure_text;
use crate::study::Cell;
use crate::study::judgement::UNEXPLAINED;
use crate::study::probe::{EXCHANGES, HANDSHAKE, INITIATOR_TOOK, LoginPhase, LoginProbe, TARGET_TOOK};
use crate::study::result::CellResult;

/// How far what came may be off what these times make, as a share of it, and by how much in any case, in milliseconds: they are those of
/// few exchanges, of which each has its own jitter and waking.
const OFF: f64 = 0.2;
const OFF_MS: f64 = 0.3;

/// Whatever had the most of the time, if all three together make it; else a busy machine, or nobody knows.
///
/// A round trip is what 48 bytes took by plain TCP before this login, and the link's where nobody has looked; the one that begins a
/// connection is what that took by plain TCP. The two ends tell their times for the whole login, so that a part has no more than these of
/// each.
pub(super) fn of_login(cell: &Cell, login: &LoginProbe, result: &CellResult) -> Named {
    let figure = |name: &str| result.further.iter().find(|one| one.name == name).map(|one| one.measured);
    let Some(link) = cell.link.as_deref().and_then(|link| link.parse::<Link>().ok()) else {
        return Named::only(UNEXPLAINED);
    };
    let each_ms = result.echo_us.map_or(link.round_trip().as_secs_f64() * 1e3, |us| us / 1e3);
    let jitter_ms = (link.up.jitter.most + link.down.jitter.most).as_secs_f64() * 1e3;
    // What it is itself, by what this end or the other says.
    let itself = match login.phase {
        LoginPhase::Target => Some(("target", "the target itself says so")),
        LoginPhase::Initiator | LoginPhase::Rest => {
            Some(("initiator", "nothing was sent and answered in it"))
        }
        _ => None,
    };
    if let Some((limit, because)) = itself {
        return if result.has_busy_machine() { busy(result) } else { Named::by(limit, because.to_owned()) };
    }
    let exchanges = figure(EXCHANGES).unwrap_or_default();
    let handshake_ms = figure(HANDSHAKE);
    let round_trips_ms = exchanges * each_ms + handshake_ms.map_or(0.0, |ms| ms - each_ms);
    let of_target = figure(TARGET_TOOK).filter(|_| has_target(login.phase)).unwrap_or_default();
    let of_initiator = figure(INITIATOR_TOOK).filter(|_| has_initiator(login.phase)).unwrap_or_default();
    let tolerance = (result.measured * OFF).max(OFF_MS);
    let missing = (result.measured - round_trips_ms).max(0.0);
    let (target, initiator) = (of_target.min(missing), of_initiator.min(missing));
    let is_short = round_trips_ms - result.measured > tolerance.max(exchanges * jitter_ms);
    let limit = if is_short || missing - target - initiator > tolerance {
        UNEXPLAINED
    } else if missing <= tolerance || round_trips_ms >= target.max(initiator) {
        "round-trips"
    } else if target >= initiator {
        "target"
    } else {
        "initiator"
    };
    if limit != "round-trips" && result.has_busy_machine() {
        return busy(result);
    }
    let mut because = format!(
        "{exchanges} round trips of {} ms, which 48 bytes took by plain TCP, make {} ms",
        figure_text(each_ms),
        figure_text(round_trips_ms)
    );
    if let Some(ms) = handshake_ms {
        because += &format!(" where the first is that of a connection, {} ms", figure_text(ms));
    }
    if has_target(login.phase) {
        because += &format!(", the target took {} ms of both stages", figure_text(of_target));
    }
    if has_initiator(login.phase) {
        because += &format!(", and the initiator {} ms between all exchanges", figure_text(of_initiator));
    }
    Named::by(limit, because)
}

/// Whether some of the target's own time in the two stages is in it.
const fn has_target(phase: LoginPhase) -> bool {
    !matches!(phase, LoginPhase::TcpConnect | LoginPhase::FirstIo | LoginPhase::SendTargets)
}

/// Whether some of what the initiator does between its exchanges is in it.
const fn has_initiator(phase: LoginPhase) -> bool {
    !matches!(phase, LoginPhase::TcpConnect | LoginPhase::Waiting)
}
