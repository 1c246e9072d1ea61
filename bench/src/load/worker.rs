//! One thread of the load generator: its sessions, one epoll instance, one clock.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use lunette_wire::frame::Digests;

use super::session::{Session, Shared};
use super::statistics::Statistics;
use super::{Limit, Options, Outcome};
use crate::link::PATIENCE;
use crate::wait::Waiter;

/// What one read takes at most: a deep queue of small answers, and still in the second-level cache.
const SCRATCH_BYTES: usize = 256 << 10;

/// From this average size on, read data is thrown away in the kernel: below, the extra system calls cost more than they
/// save (docs/decisions/0012-own-load-generator.md).
const DISCARD_MEAN_BYTES: u32 = 64 << 10;

/// One thread with its sessions.
pub(super) struct Worker {
    sessions: Vec<Session>,
    /// Of each session; a connection's key is its place in the row of all of them.
    connections: usize,
    shared: Shared,
    waiter: Waiter,
    /// No transfer begins after this.
    end: Option<Instant>,
}

impl Worker {
    /// Waits for the others when all is prepared; the clock starts then.
    pub(super) fn new(
        options: &Options,
        limit: Limit,
        mut sessions: Vec<Session>,
        barrier: &Barrier,
    ) -> Result<Self> {
        let mix = &options.block_bytes;
        let prepared = Waiter::new(options.wait).map_err(anyhow::Error::from).and_then(|waiter| {
            let connections = sessions.iter_mut().flat_map(|session| session.connections());
            for (key, connection) in (0..).zip(connections) {
                waiter.add(&connection.link.stream, key)?;
            }
            Ok(waiter)
        });
        let pattern =
            (0..mix.largest()).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let scratch = vec![0; SCRATCH_BYTES].into_boxed_slice();
        let statistics = Statistics::new();
        // Before the barrier nothing may return, or the others would wait for ever.
        barrier.wait();
        let began = Instant::now();
        let (counted, end) = match limit {
            Limit::Time { warmup, measured } => {
                let end = began + warmup + measured;
                (began + warmup..end, Some(end))
            }
            // Longer than anybody measures.
            Limit::Count(_) => (began..began + Duration::from_secs(1 << 30), None),
        };
        let mean_bytes = u32::midpoint(mix.smallest(), mix.largest());
        let discards = options.read_percent > 0
            && mean_bytes >= DISCARD_MEAN_BYTES
            && !options.take
            && !Digests::from(options.digests).data;
        let shared = Shared { scratch, pattern, statistics, counted, discards };
        Ok(Self { sessions, connections: options.connections.into(), shared, waiter: prepared?, end })
    }

    pub(super) fn run(mut self) -> Result<Outcome> {
        let Self { sessions, connections, shared, waiter, end } = &mut self;
        for (number, session) in sessions.iter_mut().enumerate() {
            session.start(shared)?;
            watch(waiter, session, number * *connections)?;
        }
        let mut open = sessions.len();
        let mut last_event = Instant::now();
        while open > 0 {
            let count = waiter.wait()?;
            let now = Instant::now();
            if end.is_some_and(|end| now >= end) {
                *end = None;
                sessions.iter_mut().for_each(Session::wind_down);
                open = sessions.iter().filter(|session| !session.is_done()).count();
            }
            if count > 0 {
                last_event = now;
            } else if now - last_event > PATIENCE {
                bail!("no answer within {} s", PATIENCE.as_secs());
            }
            for index in 0..count {
                let Some(key) = waiter.ready(index) else { break };
                let (number, connection) =
                    (usize::try_from(key)? / *connections, usize::try_from(key)? % *connections);
                let Some(session) = sessions.get_mut(number) else { continue };
                let was_done = session.is_done();
                session.turn(connection, shared)?;
                watch(waiter, session, number * *connections)?;
                open -= usize::from(session.is_done() && !was_done);
            }
        }
        Ok((self.shared.statistics, self.sessions))
    }
}

/// Waits for room to write exactly where there is something left to write; the keys begin with `first_key`.
fn watch(waiter: &Waiter, session: &mut Session, first_key: usize) -> Result<()> {
    for (key, connection) in (first_key as u64..).zip(session.connections()) {
        if let Some(is_blocked) = connection.blocked_anew() {
            waiter.watch(&connection.link.stream, key, true, is_blocked)?;
        }
    }
    Ok(())
}
