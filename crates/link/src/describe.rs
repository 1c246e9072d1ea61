//! Links as people write them: `rate=155M,rtt=50ms,loss=0.01%,mtu=1500`, or a named link and what differs from it:
//! `oc3-50,loss=0.1%`. A key with `up.` or `down.` before it is for one direction.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::chance::Probability;
use crate::loss::Loss;
use crate::named::named_links;
use crate::ports::IscsiPorts;
use crate::quantity::{BYTES_MAX, Bytes, QuantityError, Rate, Time, parse_bytes, parse_time};
use crate::shape::{Jitter, Link, Reorder, Shape};

/// Why a text does not describe a link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The first part is neither a name nor a key with its value.
    #[error("{name:?} is no named link; there are {}", names())]
    Name {
        /// What was given.
        name: String,
    },
    /// A part is not `key=value`.
    #[error("{part:?} is not key=value, such as rtt=50ms")]
    NoValue {
        /// What was given.
        part: String,
    },
    /// There is no such key.
    #[error(
        "{key:?} is no property of a link; there are rate, rtt, delay, jitter, loss, duplicate, corrupt, reorder, queue, reserve, iscsi-port, overhead (each also with up. or down. before it, but rtt) and mtu"
    )]
    Key {
        /// What was given.
        key: String,
    },
    /// A key has no such value.
    #[error("{key}={value}: {source}")]
    Value {
        /// The key.
        key: String,
        /// What was given.
        value: String,
        /// What is wrong with it.
        source: QuantityError,
    },
    /// A key has a value of another form.
    #[error("{key}={value}: {wanted}")]
    Form {
        /// The key.
        key: String,
        /// What was given.
        value: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// The same key twice.
    #[error("{key} is given twice")]
    Twice {
        /// The key.
        key: String,
    },
    /// Two keys that say the same.
    #[error("{one} and {other} both say the delay: give one of them")]
    Delays {
        /// The first.
        one: String,
        /// The other.
        other: String,
    },
    /// A key of one direction that a later one of both would undo.
    #[error(
        "{other} says what {one} says before it, for both directions: give one of them, or {one} behind {other}"
    )]
    Undone {
        /// The first.
        one: String,
        /// The other.
        other: String,
    },
    /// More jitter than delay.
    #[error(
        "a jitter of {jitter} is more than the delay of {delay} each way; a packet cannot arrive before it was sent"
    )]
    Jitter {
        /// The jitter.
        jitter: String,
        /// The delay.
        delay: String,
    },
    /// Ports of iSCSI where nothing is reserved for it.
    #[error("iscsi-port says nothing without reserve: nothing else distinguishes iSCSI")]
    NoReserve,
    /// A queue, or a share of the rate, without a rate.
    #[error("{key} says nothing without a rate: nobody waits where sending takes no time")]
    NoRate {
        /// The key.
        key: &'static str,
    },
}

fn names() -> String {
    named_links().iter().map(|named| named.name).collect::<Vec<_>>().join(", ")
}

/// The least that a queue has where none is given. Senders on the same machine offer packets in bursts, which on a real
/// network their own transmitters would spread out; a queue of 64 KiB drops a fifth of what one TCP connection sends.
const QUEUE_BYTES_MIN: u64 = 256 << 10;

/// And the shortest time that it can fill, for the same reason on faster links.
const QUEUE_TIME_MIN: Duration = Duration::from_millis(5);

/// The shortest packet that every IPv4 link must carry without a fragment is 68 bytes (RFC 791); below 576 TCP gains nothing.
const MTU_MIN: u16 = 576;

/// What TUN devices carry, and IPv4 can say.
const MTU_MAX: u16 = 65_535;

/// The directions that a key speaks of.
#[derive(Clone, Copy)]
struct Directions {
    up: bool,
    down: bool,
}

struct Draft {
    link: Link,
    /// Whether the queues, up and down, were given.
    queues: [bool; 2],
}

impl FromStr for Link {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let mut parts = text.split(',').map(str::trim).peekable();
        let base = match parts.next_if(|first| !first.contains('=')) {
            Some(name) => named(name)?,
            None => "",
        };
        let mut draft = Draft {
            link: Self { mtu: 1500, up: Shape::default(), down: Shape::default() },
            queues: [false; 2],
        };
        draft.apply(base.split(',').filter(|part| !part.is_empty()))?;
        draft.apply(parts)?;
        draft.complete()
    }
}

fn named(name: &str) -> Result<&'static str, LinkError> {
    let found = named_links().iter().find(|named| named.name == name);
    found.map(|named| named.description).ok_or_else(|| LinkError::Name { name: name.to_owned() })
}

impl Draft {
    fn apply<'a>(&mut self, parts: impl Iterator<Item = &'a str>) -> Result<(), LinkError> {
        let mut seen = Vec::new();
        for part in parts {
            let (key, value) =
                part.split_once('=').ok_or_else(|| LinkError::NoValue { part: part.to_owned() })?;
            if seen.contains(&key) {
                return Err(LinkError::Twice { key: key.to_owned() });
            }
            if let Some(one) = seen.iter().find(|one| both_say_the_delay(one, key)) {
                return Err(LinkError::Delays { one: (*one).to_owned(), other: key.to_owned() });
            }
            if let Some(one) = seen.iter().find(|one| is_undone_by(one, key)) {
                return Err(LinkError::Undone { one: (*one).to_owned(), other: key.to_owned() });
            }
            seen.push(key);
            self.set(key, value)?;
        }
        Ok(())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), LinkError> {
        let bad = |source| LinkError::Value { key: key.to_owned(), value: value.to_owned(), source };
        let form = |wanted| LinkError::Form { key: key.to_owned(), value: value.to_owned(), wanted };
        match key {
            "mtu" => {
                let mtu = value.parse().ok().filter(|mtu| (MTU_MIN..=MTU_MAX).contains(mtu));
                self.link.mtu = mtu.ok_or_else(|| form("an MTU is a number of bytes from 576 to 65535"))?;
                return Ok(());
            }
            "rtt" => {
                let half = parse_time(value).map_err(bad)? / 2;
                (self.link.up.delay, self.link.down.delay) = (half, half);
                return Ok(());
            }
            _ => {}
        }
        let (directions, property) = match key.split_once('.') {
            Some(("up", property)) => (Directions { up: true, down: false }, property),
            Some(("down", property)) => (Directions { up: false, down: true }, property),
            _ => (Directions { up: true, down: true }, key),
        };
        let shapes = [(directions.up, &mut self.link.up), (directions.down, &mut self.link.down)];
        for (index, (is_meant, shape)) in shapes.into_iter().enumerate() {
            if !is_meant {
                continue;
            }
            match property {
                "rate" => shape.rate = Some(value.parse::<Rate>().map_err(bad)?),
                "delay" => shape.delay = parse_time(value).map_err(bad)?,
                "jitter" => shape.jitter = jitter(value).map_err(bad)?,
                "loss" => shape.loss = loss(value).ok_or_else(|| form(LOSS_FORM))?,
                "duplicate" => shape.duplicate = value.parse().map_err(bad)?,
                "corrupt" => shape.corrupt = value.parse().map_err(bad)?,
                "reorder" => shape.reorder = reorder(value).ok_or_else(|| form(REORDER_FORM))?,
                "reserve" => shape.reserved = Some(value.parse().map_err(bad)?),
                "iscsi-port" => shape.iscsi_ports = value.parse().map_err(form)?,
                "overhead" => {
                    let bytes = value.parse().ok().filter(|bytes| *bytes <= 1000);
                    shape.overhead_bytes = bytes.ok_or_else(|| form("a number of bytes from 0 to 1000"))?;
                }
                "queue" => {
                    shape.queue_bytes = parse_bytes(value).map_err(bad)?;
                    self.queues[index] = true;
                }
                _ => return Err(LinkError::Key { key: key.to_owned() }),
            }
        }
        Ok(())
    }

    fn complete(mut self) -> Result<Link, LinkError> {
        let round_trip = self.link.round_trip();
        for (shape, has_queue) in [&mut self.link.up, &mut self.link.down].into_iter().zip(self.queues) {
            if shape.jitter.most > shape.delay {
                let text = |time| Time(time).to_string();
                return Err(LinkError::Jitter { jitter: text(shape.jitter.most), delay: text(shape.delay) });
            }
            if shape.reserved.is_none() && shape.iscsi_ports != IscsiPorts::default() {
                return Err(LinkError::NoReserve);
            }
            match shape.rate {
                None if has_queue => return Err(LinkError::NoRate { key: "queue" }),
                None if shape.reserved.is_some() => return Err(LinkError::NoRate { key: "reserve" }),
                None => {}
                // What is under way in a round trip: the usual measure for a drop-tail queue.
                Some(rate) if !has_queue => {
                    let round_trips_worth = rate.bytes_in(round_trip.max(QUEUE_TIME_MIN));
                    shape.queue_bytes = round_trips_worth.clamp(QUEUE_BYTES_MIN, BYTES_MAX);
                }
                Some(_) => {}
            }
        }
        Ok(self.link)
    }
}

/// Whether both are of both directions.
fn both_say_the_delay(one: &str, other: &str) -> bool {
    matches!((one, other), ("rtt", "delay") | ("delay", "rtt"))
}

/// Whether the second of two keys would undo what the first one says of one direction, which may follow it.
fn is_undone_by(one: &str, other: &str) -> bool {
    let of_both = one.strip_prefix("up.").or_else(|| one.strip_prefix("down."));
    of_both.is_some_and(|of_both| other == of_both || (of_both, other) == ("delay", "rtt"))
}

fn jitter(value: &str) -> Result<Jitter, QuantityError> {
    let (most, correlation) = value.split_once('/').unwrap_or((value, "0%"));
    Ok(Jitter { most: parse_time(most)?, correlation: correlation.parse()? })
}

const LOSS_FORM: &str = "a percentage (0.01%), or three or four for bursts: that the line turns bad, that it turns good, that a bad one loses a packet, and a good one (0.1%/20%/80%/0.01%)";

fn loss(value: &str) -> Option<Loss> {
    let percentages: Vec<Probability> = value.split('/').map(str::parse).collect::<Result<_, _>>().ok()?;
    match percentages[..] {
        [never] if never == Probability::NEVER => Some(Loss::None),
        [each] => Some(Loss::Independent(each)),
        [to_bad, to_good, bad] => Some(Loss::Bursts { to_bad, to_good, bad, good: Probability::NEVER }),
        [to_bad, to_good, bad, good] => Some(Loss::Bursts { to_bad, to_good, bad, good }),
        _ => None,
    }
}

const REORDER_FORM: &str = "a percentage of packets and how much later they come (1%/5ms)";

fn reorder(value: &str) -> Option<Reorder> {
    let (share, by) = value.split_once('/')?;
    Some(Reorder { share: share.parse().ok()?, by: parse_time(by).ok()? })
}

/// All that is not as in a link without properties; it reads back as the same link.
impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (up, down) = (properties(&self.up), properties(&self.down));
        for (key, value) in &up {
            let prefix = if down.contains(&(*key, value.clone())) { "" } else { "up." };
            write!(f, "{prefix}{key}={value},")?;
        }
        for (key, value) in down.iter().filter(|property| !up.contains(property)) {
            write!(f, "down.{key}={value},")?;
        }
        write!(f, "mtu={}", self.mtu)
    }
}

fn properties(shape: &Shape) -> Vec<(&'static str, String)> {
    let mut list = Vec::new();
    let chance = |key, probability: Probability| {
        (probability != Probability::NEVER).then(|| (key, probability.to_string()))
    };
    if let Some(rate) = shape.rate {
        list.push(("rate", rate.to_string()));
        list.push(("queue", Bytes(shape.queue_bytes).to_string()));
    }
    list.extend(shape.reserved.map(|share| ("reserve", share.to_string())));
    if shape.iscsi_ports != IscsiPorts::default() {
        list.push(("iscsi-port", shape.iscsi_ports.to_string()));
    }
    list.extend((shape.overhead_bytes > 0).then(|| ("overhead", shape.overhead_bytes.to_string())));
    list.extend((shape.delay > Duration::ZERO).then(|| ("delay", Time(shape.delay).to_string())));
    if shape.jitter.most > Duration::ZERO {
        list.push(("jitter", format!("{}/{}", Time(shape.jitter.most), shape.jitter.correlation)));
    }
    match shape.loss {
        Loss::None => {}
        Loss::Independent(each) => list.push(("loss", each.to_string())),
        Loss::Bursts { to_bad, to_good, bad, good } => {
            let good = if good == Probability::NEVER { String::new() } else { format!("/{good}") };
            list.push(("loss", format!("{to_bad}/{to_good}/{bad}{good}")));
        }
    }
    list.extend(chance("duplicate", shape.duplicate));
    list.extend(chance("corrupt", shape.corrupt));
    if shape.reorder.share != Probability::NEVER {
        list.push(("reorder", format!("{}/{}", shape.reorder.share, Time(shape.reorder.by))));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(text: &str) -> Link {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_link_is_read_in_full() {
        let link = link(
            "rate=155M,rtt=50ms,jitter=2ms/25%,loss=0.1%/20%/80%,reorder=1%/5ms,down.rate=1G,up.queue=64K,mtu=9000,overhead=38,reserve=60%",
        );
        assert_eq!((link.mtu, link.round_trip()), (9000, Duration::from_millis(50)));
        assert_eq!(link.up.rate, Some("155M".parse().unwrap()));
        assert_eq!(link.down.rate, Some("1G".parse().unwrap()));
        assert_eq!((link.up.queue_bytes, link.down.queue_bytes), (65_536, 6_250_000));
        assert_eq!(link.up.jitter.most, Duration::from_millis(2));
        assert!((link.up.jitter.correlation.get() - 0.25).abs() < 1e-9);
        assert!((link.down.loss.mean() - 0.001 / 0.201 * 0.8).abs() < 1e-9);
        let elliott: Link = "loss=0.1%/20%/80%/0.01%".parse().unwrap();
        assert!((elliott.up.loss.mean() - (0.001 * 0.8 + 0.2 * 0.0001) / 0.201).abs() < 1e-9);
        assert_eq!((link.up.overhead_bytes, link.up.reorder.by), (38, Duration::from_millis(5)));
        assert!(link.up.reserved.is_some_and(|share| (share.get() - 0.6).abs() < 1e-9));
    }

    #[test]
    fn what_follows_a_name_differs_from_it() {
        let (plain, lossy) = (link("oc3-50"), link("oc3-50,loss=0.1%"));
        assert_eq!(plain.up.loss, Loss::None);
        assert!((lossy.up.loss.mean() - 0.001).abs() < 1e-9);
        assert_eq!(lossy.up.rate, plain.up.rate);
        assert_eq!(link("oc3-50,delay=1ms").round_trip(), Duration::from_millis(2));
        assert_eq!(
            link("oc3-50,rtt=100ms").up.queue_bytes,
            2 * plain.up.queue_bytes,
            "it follows the round trip"
        );
    }

    #[test]
    fn links_read_back_as_they_are_printed() {
        for text in named_links().iter().map(|named| named.name).chain([
            "mtu=576",
            "up.loss=1%,down.rate=2M,down.queue=3K",
            "rate=1.5M,rtt=3us,duplicate=1%,corrupt=0.5%,reserve=50%",
            "loss=0.1%/20%/80%",
            "rate=1M,reserve=50%,iscsi-port=3261/3260,down.iscsi-port=860",
            "up.loss=0.1%/20%/80%/0.01%",
            "rate=100G,rtt=100ms",
        ]) {
            let once = link(text);
            assert_eq!(link(&once.to_string()), once, "{text}: {once}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, says) in [
            ("", "\"\" is no named link; there are local, "),
            ("oc4", "\"oc4\" is no named link"),
            ("rate=155M,oc3-50", "\"oc3-50\" is not key=value"),
            ("speed=1", "\"speed\" is no property of a link"),
            ("left.rate=1M", "\"left.rate\" is no property"),
            ("up.mtu=1500", "\"up.mtu\" is no property"),
            ("rate=fast", "rate=fast: a rate is a number of bits"),
            ("rtt=50", "rtt=50: a time is a number with us, ms or s"),
            ("loss=1", "loss=1: a percentage"),
            ("loss=1%/2%", "loss=1%/2%: a percentage"),
            ("loss=1%/2%/3%/4%/5%", "loss=1%/2%/3%/4%/5%: a percentage"),
            ("reorder=1%", "reorder=1%: a percentage of packets and how much later"),
            ("mtu=100", "mtu=100: an MTU is"),
            ("overhead=1001", "overhead=1001: a number of bytes"),
            ("rtt=1ms,rtt=2ms", "rtt is given twice"),
            ("rtt=10ms,delay=1ms", "rtt and delay both say the delay: give one of them"),
            ("delay=10ms,rtt=1ms", "delay and rtt both say the delay: give one of them"),
            ("oc3-50,up.delay=1ms,loss=1%,rtt=10ms", "rtt says what up.delay says before it"),
            (
                "up.delay=9ms,delay=1ms",
                "delay says what up.delay says before it, for both directions: give one of them, or up.delay behind delay",
            ),
            ("rate=1M,down.loss=1%,loss=0.1%", "loss says what down.loss says before it"),
            ("rate=2000G", "rate=2000G: a rate is a number of bits per second, from 1K to 1000G"),
            ("rtt=1ms,jitter=1ms", "a jitter of 1ms is more than the delay of 500us"),
            ("rate=1M,reserve=5%,iscsi-port=0", "iscsi-port=0: 1 to 16 different TCP ports"),
            ("rate=1M,iscsi-port=3261", "iscsi-port says nothing without reserve"),
            ("queue=64K", "queue says nothing without a rate"),
            ("reserve=50%", "reserve says nothing without a rate"),
        ] {
            let error = text.parse::<Link>().unwrap_err().to_string();
            assert!(error.starts_with(says), "{text}: {error}");
        }
    }
}
