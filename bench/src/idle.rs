//! `lunette-bench idle`: many sessions that do nothing but answer the target's pings, to see what they cost it.

use std::io;
use std::os::unix::net::UnixStream;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use lunette_wire::TargetPdu;
use serde::Serialize;

use crate::link::Link;
use crate::load::quantile;
use crate::login::{Terms, login};
use crate::url::Url;
use crate::wait::{Wait, Waiter};

/// What `idle` is told.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Where the target is: iscsi://host:port/target-name/lun; the unit is not touched
    url: Url,
    /// How many sessions
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    sessions: u32,
}

/// The line that says that all sessions are there.
#[derive(Debug, Serialize)]
struct Ready {
    sessions: u32,
    login_us: LoginTimes,
}

/// From `connect` to the last login response, in microseconds.
#[derive(Debug, Serialize)]
struct LoginTimes {
    median: f64,
    p99: f64,
    max: f64,
}

/// The key of the end of standard input; sessions count from 0.
const END: u64 = u64::MAX;

/// Logs in, says so, and holds the sessions until standard input ends.
///
/// # Errors
/// A login fails, or the target ends a session.
pub(crate) fn run(options: &Options) -> Result<()> {
    crate::limits::raise_open_files();
    let mut links = Vec::new();
    let mut login_us = Vec::new();
    for number in 0..options.sessions {
        let logged_in = login(&options.url, number, &Terms::default(), 1);
        let logged_in = logged_in.with_context(|| format!("session {number}"))?;
        login_us.push(logged_in.took.as_secs_f64() * 1e6);
        links.push(logged_in.link);
    }
    let times = LoginTimes {
        median: quantile(&login_us, 0.5),
        p99: quantile(&login_us, 0.99),
        max: quantile(&login_us, 1.0),
    };
    let ready = Ready { sessions: options.sessions, login_us: times };
    println!("{}", serde_json::to_string(&ready)?);
    hold(&mut links)?;
    for (number, link) in links.iter_mut().enumerate() {
        let is_answered = link.logout().with_context(|| format!("logging out session {number}"))?;
        ensure!(is_answered, "the target closed session {number} instead of answering its logout");
    }
    Ok(())
}

fn hold(links: &mut [Link]) -> Result<()> {
    let mut waiter = Waiter::new(Wait::Block)?;
    let (end, input) = UnixStream::pair()?;
    waiter.add(&end, END)?;
    thread::spawn(move || {
        // However standard input ends, this drops our end of the pair, which is the sign.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        drop(input);
    });
    for (key, link) in (0..).zip(links.iter()) {
        waiter.add(&link.stream, key)?;
    }
    loop {
        for index in 0..waiter.wait()? {
            match waiter.ready(index) {
                Some(END) => return Ok(()),
                Some(key) => {
                    let Some(link) = links.get_mut(usize::try_from(key)?) else { continue };
                    serve(link).with_context(|| format!("session {key}"))?;
                }
                None => {}
            }
        }
    }
}

/// Receives one PDU, which is there at least in part, and answers it.
fn serve(link: &mut Link) -> Result<()> {
    match link.receive()? {
        (TargetPdu::NopIn(ping), _) => link.answer(&ping),
        (other, _) => bail!("not expected now: {other:?}"),
    }
}
