//! `bench scale`: many sessions, many units, logins, the tail, a stream beside a small reader, the price of staying awake, and
//! overload.

mod awake;
mod idle;
mod latency;
mod overload;
mod sessions;

use anyhow::Result;
use lunette_tests::lunette::Lunette;

use super::generator::Idle;
use super::report::{Bar, Figure, Section, Unit};
use super::sample::Samples;
use super::targets::Target;
use super::{Findings, Stand};

/// What stands under the tables.
pub(crate) const SETTING: &str =
    "Memory units over loopback, and where a row says so a file in the page cache with `write=back`.";

const KIB: u64 = 1 << 10;

/// Logins that are measured where there is something beside them.
const PROBES: u64 = 200;
const PROBES_QUICK: u64 = 10;
/// Of a login from `connect` to its last response.
const LOGIN_BAR: Bar = Bar::AtMost(5_000.0);

type Part = fn(&Stand<'_>, &mut Findings) -> Result<Section>;

const PARTS: &[(&str, Part)] = &[
    ("sessions", sessions::sessions),
    ("connections", sessions::connections),
    ("idle sessions", idle::sessions),
    ("units", idle::units),
    ("latency", latency::measure),
    ("awake", awake::paced),
    ("queues", awake::queues),
    ("rivals", awake::rivals),
    ("overload", overload::measure),
];

pub(crate) fn measure(stand: &Stand<'_>, findings: &mut Findings) -> Result<()> {
    for (name, part) in PARTS {
        if stand.wants(name) {
            eprintln!("{name}");
            match part(stand, findings) {
                Ok(section) => findings.sections.push(section),
                // One part that fails says so and does not take the others with it.
                Err(error) => findings.skip(name, &error),
            }
        }
    }
    Ok(())
}

/// Lunette with memory as unit 0, and what else a configuration file says behind that.
fn configured(stand: &Stand<'_>, more: &str) -> Result<Target> {
    Target::launched(Lunette::command(stand.lunette()).configuration(more))
}

/// How many logins [`probe`] measures.
fn probes(stand: &Stand<'_>) -> u64 {
    stand.or_quick(PROBES, PROBES_QUICK)
}

/// Some logins, one after the other, and out again.
fn probe(stand: &Stand<'_>, target: &Target) -> Result<Idle> {
    let (holder, idle) = stand.generator().idle(target.url(), probes(stand), &stand.path("probe.log"))?;
    drop(holder);
    Ok(idle)
}

/// Two figures of logins with a bar each, from one probe a round: the median, and what one in a hundred exceeds.
fn login_figures(name: &str, probes: &[Idle], bar: Option<Bar>) -> [Option<Figure>; 2] {
    let figure = |what: &str, of: fn(&Idle) -> f64| {
        let samples = Samples::of(probes.iter().map(of).collect());
        let figure = Figure::new(format!("{name}, {what}"), Unit::Microseconds, samples);
        figure.map(|figure| figure.with_bar(bar))
    };
    [figure("median", |idle| idle.login_us.median), figure("99 %", |idle| idle.login_us.p99)]
}

#[cfg(test)]
mod tests {
    use super::super::generator::LoginTimes;
    use super::*;

    #[test]
    fn the_bar_of_logins_stands_on_the_99th_percentile_too() {
        let idle = |median, p99| Idle { sessions: 1, login_us: LoginTimes { median, p99 } };
        let probes = [idle(300.0, 700.0), idle(400.0, 6_000.0), idle(500.0, 9_000.0)];
        let cells =
            |bar| login_figures("a login", &probes, bar).map(|figure| figure.expect("samples").to_string());
        assert_eq!(cells(Some(LOGIN_BAR)), ["400 µs (50 %) ≤ 5000 µs", "**6000 µs (138 %) > 5000 µs**"]);
        assert_eq!(cells(None), ["400 µs (50 %)", "6000 µs (138 %)"]);
    }
}
