//! Finding targets by a name service (iSNS, RFC 4171; RFC 7143, 4.2.7): one connection, one question.
//!
//! What is said is `lunette_isns::Search`'s affair.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use lunette_iscsi::initiator::discovery::{DiscoveredTarget, Portal};
use lunette_iscsi::name::IscsiName;
use lunette_isns::{FoundTarget, Message, Reader, Search, SearchStep};

use crate::wire::{connect, resolve};
use crate::{Error, Options, Phase};

/// The port of iSNS servers (RFC 4171, 2.9).
pub const ISNS_PORT: u16 = lunette_isns::DEFAULT_PORT;

/// Asks an iSNS server for the targets that this initiator may see, and their portals. The target and the portals of `options`
/// do not matter, nor do its credentials: iSNS has none.
///
/// An initiator that the server does not know, and shows nothing for that reason, is registered for the time of the question.
///
/// ```no_run
/// use lunette_initiator::{ISNS_PORT, Options, Portal, discover_isns};
///
/// let options = Options::new("iqn.2026-11.io.lunette:any".parse()?, "192.0.2.10".parse()?);
/// for target in discover_isns(&Portal::new("192.0.2.1", ISNS_PORT), &options)? {
///     println!("{} at {:?}", target.name.as_str(), target.portals);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error`] of the connection; [`Error::NameService`] where the server refuses, or speaks something else.
pub fn discover_isns(server: &Portal, options: &Options) -> Result<Vec<DiscoveredTarget>, Error> {
    let stream = connect(server, &resolve(server)?, options.timing.connect)?;
    let mut talk = Talk {
        stream,
        server,
        reader: Reader::default(),
        limit: options.timing.login,
        deadline: Instant::now() + options.timing.login,
    };
    let (mut search, mut request) = Search::begin(options.initiator_name.as_str());
    loop {
        talk.send(&request)?;
        let step = loop {
            match search.received(&talk.response()?) {
                SearchStep::Wait => {}
                step => break step,
            }
        };
        match step {
            SearchStep::Send(next) => request = next,
            SearchStep::Done(found) => return Ok(found.into_iter().filter_map(discovered).collect()),
            SearchStep::Refused(status) => {
                return Err(talk.fault(format!("refuses the question ({})", meaning(status))));
            }
            // Left behind above.
            SearchStep::Wait => {}
        }
    }
}

/// A target with a name that iSCSI has; others are passed over.
fn discovered(found: FoundTarget) -> Option<DiscoveredTarget> {
    let portals = found.portals.into_iter().map(|(at, portal_group_tag)| Portal {
        portal_group_tag,
        ..Portal::new(at.ip().to_string(), at.port())
    });
    Some(DiscoveredTarget { name: IscsiName::from_peer(&found.name).ok()?, portals: portals.collect() })
}

/// A status, for people (RFC 4171, 5.4).
fn meaning(status: u32) -> String {
    let text = match status {
        6 => "it does not know this initiator",
        7 => "no name was given",
        8 => "this initiator may not ask",
        11 => "it has failed",
        12 => "it is busy",
        _ => return format!("status {status}"),
    };
    format!("status {status}: {text}")
}

/// A connection to a server, with a deadline for all of it.
struct Talk<'a> {
    stream: TcpStream,
    server: &'a Portal,
    reader: Reader,
    limit: Duration,
    deadline: Instant,
}

impl Talk<'_> {
    fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let left = self.left()?;
        let sent = self.stream.set_write_timeout(Some(left)).and_then(|()| self.stream.write_all(bytes));
        sent.map_err(|error| self.failed(error))
    }

    /// The next answer. What a server asks over this connection is nothing that a question needs.
    fn response(&mut self) -> Result<lunette_isns::Response, Error> {
        let mut bytes = [0; 4096];
        loop {
            match self.reader.message().map_err(|fault| self.fault(fault.to_string()))? {
                Some(Message::Response(response)) => return Ok(response),
                Some(Message::Request(_)) => continue,
                None => {}
            }
            let left = self.left()?;
            let read = self.stream.set_read_timeout(Some(left)).and_then(|()| self.stream.read(&mut bytes));
            match read {
                Ok(0) => return Err(self.fault("closes the connection".to_owned())),
                Ok(count) => self.reader.extend(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    /// What is left of the time; never zero, which would mean "for ever".
    fn left(&self) -> Result<Duration, Error> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(self.late()) } else { Ok(left.max(Duration::from_millis(1))) }
    }

    fn late(&self) -> Error {
        Error::Timeout { portal: self.server.clone(), phase: Phase::Discovery, after: self.limit }
    }

    fn failed(&self, error: std::io::Error) -> Error {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => self.late(),
            _ => self.fault(error.to_string()),
        }
    }

    fn fault(&self, reason: String) -> Error {
        Error::NameService { server: self.server.clone(), reason }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// What is made of a server that answers with this.
    fn answered(bytes: &'static [u8]) -> Error {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            stream.write_all(bytes).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            // Whatever else comes is read, so that what was said arrives.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let portal = Portal::new("127.0.0.1", address.port());
        let name = "iqn.2026-11.io.lunette:x".parse().unwrap();
        let error = discover_isns(&portal, &Options::new(name, portal.clone()));
        server.join().unwrap();
        error.unwrap_err()
    }

    #[test]
    fn what_is_no_name_service_is_told_as_such() {
        let error = answered(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        assert!(error.to_string().contains("does not speak iSNS"), "{error}");
        assert!(error.advice().contains("3205"));
        let error = answered(b"");
        assert!(matches!(error, Error::NameService { .. }), "{error}");
    }
}
