//! How a measurement inside an emulated network learns whether the link was kept meanwhile: it asks whoever carries the packets.
//!
//! The one who is asked listens at both ends on a socket with a name that is the network namespace's own, so that there is nothing in
//! the file system, and nobody outside of the network can ask. Who begins to measure connects and is told the link; when he has
//! ended he sends a line, and is told what is wrong with his figures. A proxy answers in the same way, on a socket with another
//! name ([`super::notice`]).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use lunette_link::Link;
use lunette_wan::{Emulator, Watcher};
use serde::{Deserialize, Serialize};

use super::connections;
use crate::banner::printable;

/// The name of the socket, in each network namespace another one.
const NAME: &[u8] = b"lunette-wan-link";

/// How long an answer may take. The question takes as long as the measurement.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The longest line that is read.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Measurements that are told apart at one time; more are not answered.
const MEASUREMENTS_MAX: usize = 64;

/// The link of a network as it is now.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Current {
    pub(super) link: Link,
    /// How often it was changed so far, or somebody tried.
    pub(super) changes: u64,
}

/// The same for those who change it and those who look.
#[derive(Debug, Clone)]
pub(super) struct SharedLink(Arc<Mutex<Current>>);

impl SharedLink {
    pub(super) fn new(link: &Link) -> Self {
        Self(Arc::new(Mutex::new(Current { link: link.clone(), changes: 0 })))
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link of this moment.
    pub(super) fn current(&self) -> Current {
        self.lock().clone()
    }

    /// Has the link changed. One that is as it was is no change; one that fails half-way is.
    ///
    /// # Errors
    /// Those of `reshape`, which does it.
    pub(super) fn change(&self, link: Link, reshape: impl FnOnce(&Link) -> io::Result<()>) -> io::Result<()> {
        if self.lock().link != link {
            // Before it is done: who ends meanwhile has had a part of it.
            self.lock().changes += 1;
        }
        reshape(&link)?;
        self.lock().link = link;
        Ok(())
    }
}

/// What is told at the beginning.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Begun {
    pub(super) link: String,
}

/// What is told at the end.
#[derive(Debug, Serialize, Deserialize)]
struct Ended {
    doubt: Option<String>,
}

fn address() -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(NAME)
}

/// Answers at both ends of a network, as long as this process lives.
///
/// # Errors
/// There are too many descriptors or threads.
pub(super) fn listen(emulator: &Emulator, link: &SharedLink) -> io::Result<()> {
    let watcher = Arc::new(emulator.watcher()?);
    let listeners =
        [emulator.near(), emulator.far()].map(|end| end.within(|| UnixListener::bind_addr(&address()?)));
    listeners.into_iter().try_for_each(|listener| answer(listener?, &watcher, link))
}

/// Answers whoever connects, as long as this process lives.
///
/// # Errors
/// There are too many threads.
pub(super) fn answer(listener: UnixListener, watcher: &Arc<Watcher>, link: &SharedLink) -> io::Result<()> {
    let (watcher, link, measurements) = (Arc::clone(watcher), link.clone(), Arc::new(()));
    let answer = move || {
        for stream in connections(&listener) {
            // Each has one.
            if Arc::strong_count(&measurements) > MEASUREMENTS_MAX {
                continue;
            }
            let (watcher, link, held) = (Arc::clone(&watcher), link.clone(), Arc::clone(&measurements));
            let one = move || {
                // Whoever goes without the answer is no matter.
                let _ = attend(&stream, &watcher, &link);
                drop(held);
            };
            // Who is not answered says nothing of the link.
            let _ = thread::Builder::new().name("wan-measurement".to_owned()).spawn(one);
        }
    };
    thread::Builder::new().name("wan-witness".to_owned()).spawn(answer).map(drop)
}

/// Answers one measurement.
fn attend(mut stream: &UnixStream, watcher: &Watcher, link: &SharedLink) -> io::Result<()> {
    let (mark, begun) = (watcher.mark()?, link.current());
    send(stream, &Begun { link: begun.link.to_string() })?;
    if stream.read(&mut [0])? == 0 {
        return Ok(());
    }
    let keeping = watcher.since(&mark)?;
    let doubt = if link.current() == begun {
        keeping.doubt(&begun.link).map(|doubt| doubt.to_string())
    } else {
        Some("the link was changed while this was measured".to_owned())
    };
    send(stream, &Ended { doubt })
}

pub(super) fn send<T: Serialize>(mut stream: &UnixStream, what: &T) -> io::Result<()> {
    stream.write_all((serde_json::to_string(what)? + "\n").as_bytes())
}

pub(super) fn receive<T: for<'de> Deserialize<'de>>(stream: &UnixStream) -> io::Result<T> {
    let mut line = String::new();
    BufReader::new(Read::take(stream, LINE_BYTES_MAX)).read_line(&mut line)?;
    serde_json::from_str(&line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// A measurement that has begun inside an emulated network.
pub(crate) struct Witness {
    stream: UnixStream,
    link: String,
}

impl Witness {
    /// Begins.
    ///
    /// # Errors
    /// Nobody answers who carries packets: a sentence that stands for the doubt, which then is not known.
    pub(crate) fn call() -> Result<Self, String> {
        let called = address().and_then(|address| Self::begin(UnixStream::connect_addr(&address)?));
        called.map_err(|error| unheard(&error))
    }

    /// Begins with who answers at a stream.
    ///
    /// # Errors
    /// He does not.
    pub(super) fn begin(stream: UnixStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let Begun { link } = receive(&stream)?;
        Ok(Self { stream, link })
    }

    /// What is between both ends, as whoever carries it says.
    pub(super) fn link(&self) -> &str {
        &self.link
    }

    /// The same, where results have another name for that.
    pub(super) fn named(self, link: String) -> Self {
        Self { link, ..self }
    }

    /// Ends: the link, and what is wrong with figures that were taken over it since, if anything is.
    pub(crate) fn end(mut self) -> (String, Option<String>) {
        let asked = self.stream.write_all(b"\n").and_then(|()| receive::<Ended>(&self.stream));
        let doubt = match asked {
            Ok(Ended { doubt }) => doubt.map(|doubt| printable(&doubt)),
            Err(error) => Some(unheard(&error)),
        };
        (self.link, doubt)
    }
}

/// What is told where it is not known whether there is a doubt.
pub(super) fn unheard(error: &io::Error) -> String {
    let why = match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("no answer in {} s", PATIENCE.as_secs())
        }
        io::ErrorKind::ConnectionRefused => "no emulated network is around this process".to_owned(),
        _ => error.to_string(),
    };
    format!("nobody says how the link was kept: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(text: &str) -> Link {
        text.parse().expect("a link")
    }

    #[test]
    fn a_link_that_was_changed_and_changed_back_is_not_as_it_was() {
        let shared = SharedLink::new(&link("oc3-2"));
        let begun = shared.current();
        shared.change(link("oc3-2"), |_| Ok(())).expect("it is changed");
        assert_eq!(shared.current(), begun, "the same one again");
        shared.change(link("oc3-50"), |_| Ok(())).expect("it is changed");
        assert_eq!(shared.current(), Current { link: link("oc3-50"), changes: 1 });
        shared.change(link("oc3-2"), |_| Ok(())).expect("it is changed");
        assert_eq!(shared.current(), Current { link: begun.link.clone(), changes: 2 });
    }

    #[test]
    fn a_change_counts_before_it_is_done_and_if_it_fails() {
        let shared = SharedLink::new(&link("oc3-2"));
        let begun = shared.current();
        let failed = shared.change(link("oc3-50"), |_| {
            assert_ne!(shared.current(), begun);
            Err(io::ErrorKind::Other.into())
        });
        assert!(failed.is_err());
        assert_eq!(shared.current(), Current { link: begun.link.clone(), changes: 1 });
    }
}
