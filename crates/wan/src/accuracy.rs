//! How true the emulator is on this machine: what was asked for, and what real packets of the kernel find.

mod ceiling;
mod loss;
mod rate;
mod round_trip;
mod source;

use std::io;

use lunette_link::{Link, Shape};

use crate::emulator::Emulator;

pub use ceiling::{Ceiling, ceiling};

use loss::loss;
use rate::rate;
use round_trip::round_trip;

/// Bytes of IPv4 and UDP before the data.
const HEADERS: usize = 28;

/// How many standard deviations chance may explain: it takes more in one of a thousand cases.
const CONFIDENCE: f64 = 3.3;

/// A round trip and a rate are to be right within a fiftieth.
const TOLERANCE: f64 = 0.02;

/// What measured a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// Datagrams, one at a time.
    Datagrams,
    /// Several datagrams in one call, which the kernel takes apart (UDP segmentation offload).
    Batches,
    /// One TCP connection, by the data that came and the headers that each full segment has.
    Tcp,
}

impl Means {
    /// Its name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Datagrams => "datagrams",
            Self::Batches => "batches of datagrams",
            Self::Tcp => "TCP",
        }
    }
}

/// One thing that a link promises, and what was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// What it is.
    pub what: &'static str,
    /// `ms`, `Mb/s` or `%`.
    pub unit: &'static str,
    /// What the link should do.
    pub expected: f64,
    /// What it did. `None` if this machine could not send enough to tell.
    pub measured: Option<f64>,
    /// By which means; where there is none, the last that was tried.
    pub by: Means,
    /// How far the two may be apart.
    pub tolerance: f64,
    /// How much would have to be measured at least where chance alone makes more of this than what is to be told.
    pub needs: Option<String>,
}

/// What is said of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is as it should be.
    Good,
    /// It is not.
    Off,
    /// It is within what chance makes, which is so much that another link would be, too.
    CannotTell,
    /// This machine could not send enough.
    NotKnown,
}

impl Verdict {
    /// Its name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Off => "off",
            Self::CannotTell => "cannot-tell",
            Self::NotKnown => "not-known",
        }
    }

    /// Whether nothing was found that is not as it should be, in what was measured.
    #[must_use]
    pub const fn is_no_fault(self) -> bool {
        matches!(self, Self::Good | Self::CannotTell)
    }
}

impl Figure {
    /// Whether it is as it should be.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match self.measured {
            None => Verdict::NotKnown,
            Some(measured) if (measured - self.expected).abs() > self.tolerance => Verdict::Off,
            Some(_) if self.needs.is_some() => Verdict::CannotTell,
            Some(_) => Verdict::Good,
        }
    }
}

/// Measures a link: its round trip, its rates and its losses. It takes some seconds.
///
/// # Errors
/// The network carries nothing, or sockets fail.
pub fn measure(emulator: &Emulator, link: &Link) -> io::Result<Vec<Figure>> {
    let mut figures = vec![round_trip(emulator, link)?];
    let ways = [(Way::Up, &link.up), (Way::Down, &link.down)];
    for (way, shape) in ways {
        figures.extend(rate(emulator, way, shape, link)?);
    }
    for (way, shape) in ways {
        figures.push(loss(emulator, way, shape)?);
    }
    Ok(figures)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

/// Bytes that data of UDP have on the line.
fn line_bytes(shape: &Shape, data: usize) -> usize {
    data + HEADERS + usize::from(shape.overhead_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_far_off_or_not_known_is_not_good() {
        let figure = |measured| Figure {
            what: "rate",
            unit: "Mb/s",
            expected: 100.0,
            measured,
            by: Means::Tcp,
            tolerance: 2.0,
            needs: None,
        };
        let verdicts = |figures: &[Option<f64>], needs: Option<&str>| -> Vec<Verdict> {
            let of = |measured: &Option<f64>| {
                Figure { needs: needs.map(str::to_owned), ..figure(*measured) }.verdict()
            };
            figures.iter().map(of).collect()
        };
        let (inside, outside) = ([Some(98.1), Some(101.9)], [Some(97.9), Some(102.1)]);
        assert_eq!(verdicts(&inside, None), [Verdict::Good; 2]);
        assert_eq!(verdicts(&inside, Some("more")), [Verdict::CannotTell; 2]);
        for needs in [None, Some("more")] {
            assert_eq!(verdicts(&outside, needs), [Verdict::Off; 2], "more than chance makes");
            assert_eq!(verdicts(&[None], needs), [Verdict::NotKnown]);
        }
    }
}
