//! Rates of TCP and UDP, as iperf3 finds them at the far end.

use anyhow::{Context, Result, ensure};
use lunette_tests::need_programs;
use serde_json::Value;

use super::{json, wait_for, wan_run};

/// Bits in a second.
const RATE: f64 = 20e6;
/// A queue longer than any pause of the sender.
const LINK: &str = "rate=20M,rtt=4ms,queue=512K";
const MTU: f64 = 1500.0;

#[test]
fn tcp_has_the_rate_of_the_link() {
    need_programs!("iperf3");
    // IPv4's header has 20 bytes, that of TCP 20 and 12 of timestamps. Every kernel has Reno, which keeps a queue full.
    rate("-C reno", RATE * (MTU - 52.0) / MTU).unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn udp_has_the_rate_of_the_link() {
    need_programs!("iperf3");
    // 1472 bytes and 28 of headers fill a packet; a tenth more is sent than the link carries.
    rate("-u -b 22M -l 1472", RATE * (MTU - 28.0) / MTU).unwrap_or_else(|error| panic!("{error:#}"));
}

/// `expected` is in bits of data in a second.
fn rate(options: &str, expected: f64) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let server = directory.path().join("server.json");
    let far = format!("exec iperf3 -s -1 -J >{}", server.display());
    // The server says nothing before its end: whoever comes too early comes again.
    let near = format!(
        "n=0; until iperf3 -c $LUNETTE_FAR -t 6 {options} >&2 || test $n -ge 150; do sleep 0.2; n=$((n + 1)); done; {}",
        wait_for(&server, "\"end\":")
    );
    let Some(used) = wan_run(&directory, LINK, Some(&far), &near)? else { return Ok(()) };
    let result = json(&server)?;
    let intervals = result["intervals"].as_array().with_context(|| format!("intervals: {result}"))?;
    let sums: Vec<&Value> = intervals.iter().map(|interval| &interval["sum"]).collect();
    let of = |sum: &Value, key: &str| sum[key].as_f64().with_context(|| format!("{key}: {result}"));
    let (mut bytes, mut seconds, mut rates) = (0.0, 0.0, Vec::new());
    for sum in &sums {
        bytes += of(sum, "bytes")?;
        seconds += of(sum, "seconds")?;
        rates.push(of(sum, "bits_per_second")?);
    }
    // Some may have waited in a socket before the first interval began.
    let most = expected * seconds / 8.0 + 512e3;
    ensure!(bytes <= most, "{bytes} bytes in {seconds} s are more than the link carries: {result}");
    // The first and the last one are in part of a link that is not yet or no more full.
    if rates.len() < 4 {
        return used.figure(&format!("only {} intervals", rates.len()), false, 4.0);
    }
    let inner = rates.len() - 1;
    let rates = &mut rates[1..inner];
    rates.sort_by(f64::total_cmp);
    let median = rates[rates.len() / 2];
    let is_right = (median - expected).abs() <= expected / 50.0;
    // Beside what the link loses, the server misses what finds no room in its socket while others have the processors.
    let lost: u64 = sums.iter().filter_map(|sum| sum["lost_packets"].as_u64()).sum();
    let by_the_link =
        used.count("up", "lost")? + used.count("up", "dropped")? + used.count("up", "overrun")?;
    if !is_right && lost > by_the_link {
        let behind = lost - by_the_link;
        lunette_skip::record_lacking(&format!("{median} bit/s: {behind} packets were lost behind the link"));
        return Ok(());
    }
    used.figure(&format!("{median} bit/s and not {expected}"), is_right, 4.0)
}
