//! Sessions that do nothing, and units that nobody uses: what they cost, and whether logins notice.

use std::fmt::Write as _;

use anyhow::Result;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::super::generator::Idle;
use super::super::report::{Bar, Figure, Row, Section, Unit};
use super::super::sample::Samples;
use super::super::{Findings, Stand};
use super::{LOGIN_BAR, configured, login_figures, probe, probes};

const IDLE_SESSIONS: u64 = 10_000;
const IDLE_SESSIONS_QUICK: u64 = 100;
/// Resident memory for each of them.
const IDLE_BAR: Bar = Bar::AtMost(65_536.0);

const UNITS: u64 = 4_096;
const UNITS_QUICK: u64 = 64;

/// Descriptors for a connection on each side, and some.
const SPARE_DESCRIPTORS: u64 = 200;

/// So many descriptors as there may be; returns how many sessions that lets one process hold.
fn sessions_max() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    // Children inherit it. Where even that is refused the old limit stays, and is what counts.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).saturating_sub(SPARE_DESCRIPTORS)
}

/// One round with idle sessions.
struct Held {
    all: Idle,
    bytes_each: f64,
    /// Logins beside them.
    fresh: Idle,
}

pub(super) fn sessions(stand: &Stand<'_>, findings: &mut Findings) -> Result<Section> {
    let wanted = stand.or_quick(IDLE_SESSIONS, IDLE_SESSIONS_QUICK);
    let count = wanted.min(sessions_max());
    if count < wanted {
        findings.skipped.push(format!("{} of {wanted} idle sessions: no more descriptors", wanted - count));
    }
    let rounds = (0..stand.rounds()).map(|_| hold(stand, count)).collect::<Result<Vec<Held>>>()?;
    let memory = Samples::of(rounds.iter().map(|held| held.bytes_each).collect());
    let (all, fresh): (Vec<Idle>, Vec<Idle>) = rounds.into_iter().map(|held| (held.all, held.fresh)).unzip();
    let mut section = Section::new("Idle sessions");
    let figures =
        [Figure::new("memory each", Unit::Bytes, memory).map(|figure| figure.with_bar(Some(IDLE_BAR)))]
            .into_iter()
            .chain(login_figures("their logins", &all, None))
            .chain(login_figures("a login beside them", &fresh, Some(LOGIN_BAR)));
    section.rows.push(Row::new(count.to_string(), figures));
    Ok(section)
}

fn hold(stand: &Stand<'_>, count: u64) -> Result<Held> {
    let limits = "[limits]\nconnections_max = 20000\nhalf_open_max = 20000\n";
    let target = configured(stand, limits)?;
    // Whoever comes first pays for what all share.
    probe(stand, &target)?;
    let before = target.resident_bytes()?;
    let (holder, all) = stand.generator().idle(target.url(), count, &stand.path("idle.log"))?;
    let after = target.resident_bytes()?;
    let fresh = probe(stand, &target)?;
    drop(holder);
    target.stop()?;
    Ok(Held { bytes_each: (after - before) / all.sessions.max(1) as f64, all, fresh })
}

pub(super) fn units(stand: &Stand<'_>, _: &mut Findings) -> Result<Section> {
    let count = stand.or_quick(UNITS, UNITS_QUICK);
    let mut text = String::new();
    for number in 1..count {
        let _ = write!(text, "[[target.lun]]\nnumber = {number}\nstore = \"null:1G\"\n");
    }
    let (mut each, mut sessions, mut logins) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..stand.rounds() {
        let one = configured(stand, "")?;
        let all = configured(stand, &text)?;
        each.push((all.resident_bytes()? - one.resident_bytes()?) / (count - 1) as f64);
        let before = all.resident_bytes()?;
        let (holder, login) = stand.generator().idle(all.url(), probes(stand), &stand.path("units.log"))?;
        sessions.push((all.resident_bytes()? - before) / login.sessions.max(1) as f64);
        drop(holder);
        logins.push(login);
        one.stop()?;
        all.stop()?;
    }
    let mut section = Section::new("Logical units");
    let session = Figure::new("memory of a session", Unit::Bytes, Samples::of(sessions));
    let session = session.map(|figure| figure.with_bar(Some(IDLE_BAR)));
    let figures = [Figure::new("memory each", Unit::Bytes, Samples::of(each)), session]
        .into_iter()
        .chain(login_figures("login", &logins, Some(LOGIN_BAR)));
    section.rows.push(Row::new(count.to_string(), figures));
    Ok(section)
}
