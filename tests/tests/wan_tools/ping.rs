//! Round trips and losses, as ping finds them.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use lunette_tests::need_programs;

use super::{Used, wan_run};

/// How many standard deviations chance may explain.
const CONFIDENCE: f64 = 3.3;

/// The last digit of a time from 10 to 100 ms, in milliseconds.
const DIGIT_MS: f64 = 0.1;

/// The numbers of the requests that were answered.
fn answers(output: &str) -> Result<BTreeSet<u64>> {
    let lines = output.lines().filter_map(|line| line.split_once(" icmp_seq=")?.1.split_once(" ttl="));
    lines.map(|(number, _)| Ok(number.parse()?)).collect()
}

#[test]
fn round_trips_are_those_of_the_link() {
    need_programs!("ping");
    for (link, round_trip_ms) in [("oc3-10", 10.0), ("oc3-50", 50.0)] {
        round_trips(link, round_trip_ms).unwrap_or_else(|error| panic!("{link}: {error:#}"));
    }
}

fn round_trips(link: &str, round_trip_ms: f64) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let near = "ping -n -c 100 -i 0.02 -W 10 $LUNETTE_FAR";
    let Some(used) = wan_run(&directory, link, None, near)? else { return Ok(()) };
    // The summary has microseconds; the lines have three digits.
    let summary = used.output.split_once("min/avg/max/mdev = ").and_then(|(_, rest)| rest.split_once('/'));
    let shortest: f64 = summary.with_context(|| format!("no answers: {}", used.output))?.0.parse()?;
    // The clock of the day may be slewed by 500 parts in a million.
    ensure!(shortest >= round_trip_ms * 0.999, "{shortest} ms is too short");
    let tolerance = f64::max(0.3, round_trip_ms / 50.0);
    let is_right = |time: f64| time - round_trip_ms <= tolerance;
    used.figure(
        &format!("the shortest round trip of {link} is {shortest} ms"),
        is_right(shortest),
        round_trip_ms,
    )?;
    let median = median(&used.output)?;
    let what = format!("the median round trip of {link} is {median} ms");
    used.figure(&what, is_right(median - DIGIT_MS / 2.0), round_trip_ms)
}

/// The median of the times of the answers, in milliseconds.
fn median(output: &str) -> Result<f64> {
    let times = output.lines().filter_map(|line| line.split_once(" time=")?.1.split_once(" ms"));
    let mut times: Vec<f64> = times.map(|(time, _)| Ok(time.parse()?)).collect::<Result<_>>()?;
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().with_context(|| format!("no answers: {output}"))
}

#[test]
fn losses_are_as_many_as_the_link_has_and_the_same_ones_by_its_seed() {
    need_programs!("ping");
    losses().unwrap_or_else(|error| panic!("{error:#}"));
}

fn losses() -> Result<()> {
    const COUNT: u64 = 1000;
    const SHARE: f64 = 0.1;
    // What the kernel has sent by itself before has had its draw of the seed's chances.
    let near = format!(
        "echo 1 >/proc/sys/net/ipv6/conf/near/disable_ipv6; sleep 0.5; grep near: /proc/net/dev; \
         ping -n -c {COUNT} -i 0.002 -W 10 $LUNETTE_FAR || test $? = 1"
    );
    let mut runs = Vec::new();
    for _ in 0..2 {
        let directory = tempfile::tempdir()?;
        let Some(used) = wan_run(&directory, "delay=1ms,up.loss=10%", None, &near)? else {
            return Ok(());
        };
        let (before, lost) = lost(&used, COUNT)?;
        if used.count("up", "overrun")? > 0 || used.count("up", "offered")? != before + COUNT {
            lunette_skip::record_lacking(&format!("packets besides those of ping: {}", used.report));
            return Ok(());
        }
        // At its end ping waits for twice the longest round trip only.
        let lost_by_link = used.count("up", "lost")?;
        if lost.len() as u64 > lost_by_link {
            lunette_skip::record_lacking(&format!("ping misses {}, of {lost_by_link} lost", lost.len()));
            return Ok(());
        }
        ensure!(lost.len() as u64 + before >= lost_by_link, "{} and not {lost_by_link}", lost.len());
        let deviation = (COUNT as f64 * SHARE * (1.0 - SHARE)).sqrt();
        let off = (lost.len() as f64 - COUNT as f64 * SHARE).abs();
        ensure!(off <= CONFIDENCE * deviation, "{} of {COUNT} are lost", lost.len());
        runs.push((before, lost));
    }
    let from = runs.iter().map(|(before, _)| before + 1).max().context("runs")?;
    let to = runs.iter().map(|(before, _)| before + COUNT).min().context("runs")?;
    let places: Vec<BTreeSet<u64>> = runs
        .iter()
        .map(|(before, lost)| lost.iter().map(|number| number + before).collect::<BTreeSet<_>>())
        .map(|places| places.range(from..=to).copied().collect())
        .collect();
    ensure!(places[0] == places[1], "the same seed has lost others: {places:?}");
    Ok(())
}

/// How many packets were sent before the first request, and which requests had no answer.
fn lost(used: &Used, count: u64) -> Result<(u64, BTreeSet<u64>)> {
    let row = used.output.lines().find_map(|line| line.trim_start().strip_prefix("near:"));
    // The tenth column has the packets sent (proc(5)).
    let before = row.and_then(|row| row.split_ascii_whitespace().nth(9)?.parse().ok()).context("packets")?;
    let answered = answers(&used.output)?;
    Ok((before, (1..=count).filter(|number| !answered.contains(number)).collect()))
}
