//! One direction of the network: the thread that carries its packets, and what others have to do with it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lunette_link::{Counts, Pipe, Shape};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::carrier::{Carried, Carrier, ReshapeOrder};
use crate::device::Device;
use crate::error::WanError;

/// How often somebody who waits for a thread looks whether it still runs.
const LOOK_AFTER: Duration = Duration::from_millis(50);

/// What may be on the wire of one direction, in bytes: 10 Gb/s for more than half a second. Who sends and heeds nothing could
/// fill all memory with a long delay.
const WIRE_BYTES_MAX: u64 = 1 << 30;

/// What one direction has carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    /// What became of the packets.
    pub counts: Counts,
    /// How long after its time a packet went out: the median.
    pub lateness_median: Duration,
    /// That of 99 in 100.
    pub lateness_p99: Duration,
    /// The longest.
    pub lateness_max: Duration,
    /// How long packets waited until this process took them in, each as long as the mean of some milliseconds, or as the thread was
    /// stopped for if that was longer than one: the median.
    pub intake_lateness_median: Duration,
    /// That of 99 in 100.
    pub intake_lateness_p99: Duration,
    /// The longest.
    pub intake_lateness_max: Duration,
    /// Packets that were lost beside the link: the kernel dropped them before they came to it, because this process was busy, or
    /// refused them at the other end, or what it handed over was no packet. They say nothing about the link.
    pub overrun: u64,
    /// Those of them that were refused at the other end; of packets that were handed over together all count if one was.
    pub refused: u64,
    /// Packets that took this machine longer than the link's transmitter: 32 or more were due at once, and it was at work for a
    /// quarter of the time at least. It cannot carry such a stream at the link's rate, however late each packet was.
    pub outpaced: u64,
}

/// Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Direction {
    carried: Arc<Mutex<Carried>>,
    order: Arc<ReshapeOrder>,
    /// Writing a byte has the thread look at the order; closing it ends the thread.
    wake: Option<OwnedFd>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Direction {
    /// Begins to carry what the one device gives to the other. The name is the thread's.
    pub(crate) fn start(
        name: &str,
        [from, to]: [&Arc<Device>; 2],
        shape: &Shape,
        seed: u64,
    ) -> Result<Self, WanError> {
        let carried = Arc::new(Mutex::new(Carried::new()?));
        let (woken, wake) = pipe_with(PipeFlags::CLOEXEC).map_err(WanError::of("a pipe"))?;
        let order = Arc::new(ReshapeOrder::default());
        let carrier = Carrier {
            from: Arc::clone(from),
            to: Arc::clone(to),
            pipe: Pipe::new(shape.clone(), seed).bounded(WIRE_BYTES_MAX),
            carried: Arc::clone(&carried),
            wake: woken,
            order: Arc::clone(&order),
            began: Instant::now(),
            apart_until: Duration::ZERO,
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || carrier.run());
        let thread = thread.map_err(WanError::of("a thread"))?;
        Ok(Self { carried, order, wake: Some(wake), thread: Some(thread) })
    }

    /// Has the thread take another link, and waits until it has.
    ///
    /// # Errors
    /// The thread has ended.
    pub(crate) fn reshape(&self, shape: &Shape) -> io::Result<()> {
        let Some(wake) = &self.wake else { return Ok(()) };
        let mut ordered = self.order.shape.lock().unwrap_or_else(PoisonError::into_inner);
        *ordered = Some(shape.clone());
        rustix::io::write(wake, &[0])?;
        while ordered.is_some() {
            if !self.carries() {
                return Err(io::Error::other("the network carries nothing any more"));
            }
            let waited = self.order.taken.wait_timeout(ordered, LOOK_AFTER);
            ordered = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    pub(crate) fn carries(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// What the thread has seen so far, for whoever looks.
    pub(crate) const fn carried(&self) -> &Arc<Mutex<Carried>> {
        &self.carried
    }

    /// `dropped` is what the kernel did not hand over.
    pub(crate) fn statistics(&self, dropped: u64) -> Statistics {
        self.carried.lock().unwrap_or_else(PoisonError::into_inner).statistics(dropped)
    }

    /// # Errors
    /// A device had failed.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.wake = None;
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a carrier panicked")))
    }
}

impl Drop for Direction {
    fn drop(&mut self) {
        // Whoever wants to know calls `end`.
        let _ = self.end();
    }
}
