//! Finding targets: a discovery session from login to logout (RFC 7143, 4.3, appendix C).

use std::time::Instant;

use lunette_iscsi::initiator::discovery::{
    DiscoveredTarget, Discovery, DiscoveryError, DiscoveryStep, Portal, Question,
};
use lunette_iscsi::initiator::login::Purpose;
use lunette_wire::TargetPdu;

use crate::connect::{Connected, Connector, Exchange, Goal, Learnt, LoginRecord, no_random};
use crate::identity::random_isid;
use crate::wire::Wire;
use crate::{Error, Options, Phase};

/// Asks the portals of `options` for targets; the target in it does not matter. A target without an address is at the
/// portal that was asked, and so is an address that means every address of the target's host.
///
/// ```no_run
/// use lunette_initiator::{Options, discover};
///
/// let anything = "iqn.2026-11.io.lunette:any".parse()?;
/// for target in discover(&Options::new(anything, "192.0.2.10".parse()?))? {
///     println!("{} at {:?}", target.name.as_str(), target.portals);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error`] of the connection, the login or the answer.
pub fn discover(options: &Options) -> Result<Vec<DiscoveredTarget>, Error> {
    discover_trace(options).1
}

/// The same, with a record of the login and of what was asked behind it: each step with its time.
///
/// # Errors
/// What it failed with is the second part; the record has what was said until then.
pub fn discover_trace(options: &Options) -> (LoginRecord, Result<Vec<DiscoveredTarget>, Error>) {
    let mut record = LoginRecord::default();
    let found = find(options, &mut record);
    (record, found)
}

fn find(options: &Options, record: &mut LoginRecord) -> Result<Vec<DiscoveredTarget>, Error> {
    let isid = options.isid.map_or_else(random_isid, Ok).map_err(no_random)?;
    let goal = Goal::leading(Purpose::Discovery(None), isid);
    let start = Instant::now();
    let connected = Connector::new(options, &Learnt::default(), record).log_in(&goal, 0)?;
    let asked = match connected.address {
        Some(address) => Portal::new(address.ip().to_string(), address.port()),
        None => connected.portal.clone(),
    };
    let mut targets = ask(connected, options, start, &mut record.exchanges)?;
    for target in &mut targets {
        if target.portals.is_empty() {
            target.portals.push(asked.clone());
        }
        for portal in &mut target.portals {
            if portal.host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_unspecified()) {
                portal.host.clone_from(&asked.host);
            }
        }
    }
    Ok(targets)
}

/// Asks, and notes when what was sent and answered.
fn ask(
    connected: Connected,
    options: &Options,
    start: Instant,
    exchanges: &mut Vec<Exchange>,
) -> Result<Vec<DiscoveredTarget>, Error> {
    let Connected { stream, portal, outcome, .. } = connected;
    let mut wire = Wire::new(stream, portal.clone(), options.timing.login);
    wire.phase = Phase::Discovery;
    wire.digests = outcome.connection.digests;
    wire.data_segment_length_max = outcome.connection.max_recv_data_segment_length;
    let failed = |error| Error::Discovery { portal: portal.clone(), error };
    let (mut discovery, request, text) = Discovery::begin(&outcome, &Question::All);
    wire.send(&request.encode(text.len()), &text)?;
    exchanges.push(Exchange { sent: start.elapsed(), answered: None });
    loop {
        let step = match wire.receive() {
            Ok((bhs, data)) => {
                if let Some(exchange) = exchanges.last_mut() {
                    exchange.answered = Some(start.elapsed());
                }
                let pdu = TargetPdu::decode(&bhs).map_err(|error| wire.format(error.to_string()))?;
                discovery.received(&pdu, &data)
            }
            // What was asked for is there; that the farewell is not answered changes nothing.
            Err(_) if discovery.targets().is_some() => DiscoveryStep::Done,
            Err(error) => return Err(error),
        };
        match step {
            DiscoveryStep::Send(pdu, data) => {
                let sent = wire.send(&pdu.encode(data.len()), &data);
                exchanges.push(Exchange { sent: start.elapsed(), answered: None });
                if discovery.targets().is_none() {
                    sent?;
                }
            }
            DiscoveryStep::Wait => {}
            DiscoveryStep::Done => break,
            DiscoveryStep::Failed(error) => return Err(failed(error)),
        }
    }
    let found = discovery.targets().map(<[_]>::to_vec);
    found.ok_or_else(|| failed(DiscoveryError::Ended))
}
