//! What is said to one iSNS server and heard from it, by whichever way; and what people are told of that.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use lunette_isns::{Client, Event, News, ServerRequest};
use tracing::{debug, error, info, warn};

use crate::config::IsnsServer;
use crate::seldom::{Ration, Seldom};

/// The state of a talk.
#[derive(Debug)]
pub(super) struct Talk<'a> {
    server: &'a IsnsServer,
    started: Instant,
    pub(super) client: Client,
    /// The addresses of the server, as of the last connection.
    addresses: Vec<IpAddr>,
    /// The server is on this machine, and may have the address that it calls.
    is_here: bool,
    /// The last failure was told; the next ones are the same story.
    has_complained: bool,
    /// That inquiries come was told for this registration.
    has_told_of_inquiries: bool,
    strays: Seldom,
    doubts: Seldom,
    changes: Ration,
}

impl<'a> Talk<'a> {
    pub(super) fn new(server: &'a IsnsServer) -> Self {
        Self {
            server,
            started: Instant::now(),
            client: Client::default(),
            addresses: Vec::new(),
            is_here: false,
            has_complained: false,
            has_told_of_inquiries: false,
            strays: Seldom::default(),
            doubts: Seldom::default(),
            changes: Ration::default(),
        }
    }

    /// The client's time.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Who the server is: its addresses, and the two ends of the connection to one of them.
    pub(super) fn meet(&mut self, addresses: &[SocketAddr], peer: IpAddr, local: IpAddr) {
        self.addresses = addresses.iter().map(|address| address.ip().to_canonical()).collect();
        self.is_here = peer == local || peer.is_loopback();
    }

    /// Whether it is the server that speaks from `peer` to our address `own`.
    pub(super) fn is_server(&self, peer: IpAddr, own: IpAddr) -> bool {
        self.addresses.contains(&peer.to_canonical()) || (self.is_here && peer == own)
    }

    /// Something that is not of the server, or cannot be read.
    pub(super) fn stray(&mut self, peer: SocketAddr, reason: &str) {
        if let Some(times) = self.strays.note(Instant::now()) {
            warn!(server = %self.server, %peer, times, reason, "a message at the port for an iSNS server is passed over");
        }
    }

    pub(super) fn complain(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.has_complained, true) {
            warn!(server = %self.server, reason, "cannot register with the iSNS server; trying again from time to time");
        }
    }

    /// An address where nothing can be heard of the server.
    pub(super) fn deaf(&self, address: SocketAddr, error: &io::Error) {
        warn!(server = %self.server, %address, %error, "cannot listen for the iSNS server's notifications");
    }

    /// What the server asks or tells; the answer.
    pub(super) fn answer(&mut self, request: &ServerRequest) -> Option<Vec<u8>> {
        let (answer, news) = self.client.asked(request);
        news.into_iter().for_each(|news| self.tell(news));
        answer
    }

    /// Tells people.
    pub(super) fn tell(&mut self, news: News) {
        let server = self.server;
        match news {
            News::Registered { with_inquiries } => {
                self.has_complained = false;
                self.has_told_of_inquiries = false;
                info!(%server, with_inquiries, "registered with the iSNS server");
            }
            News::Forgotten => info!(%server, "the iSNS server has forgotten the targets; registering again"),
            News::OutOfReach => {
                warn!(%server, "the iSNS server has forgotten the targets and cannot reach them to inquire; \
                     registering again without inquiries");
            }
            News::Reduced(status) => {
                info!(%server, status, "the iSNS server does not inquire or notify; doing without");
            }
            News::Refused(status) => error!(%server, status, "the iSNS server refuses the registration"),
            News::Deregistered => info!(%server, "taken out of the iSNS server"),
            News::Inquired if !std::mem::replace(&mut self.has_told_of_inquiries, true) => {
                info!(%server, "inquiries of the iSNS server arrive");
            }
            News::Inquired => debug!(%server, "answered an inquiry of the iSNS server"),
            News::Changed { node, event } => self.changed(&node, event),
            News::More(changes) => {
                if let Some(left_out) = self.changes.take(Instant::now()) {
                    info!(%server, changes, left_out, "the iSNS server tells of more initiators");
                }
            }
            News::Doubted => {
                if let Some(times) = self.doubts.note(Instant::now()) {
                    debug!(%server, times, "the iSNS server tells of a change of a target; asking");
                }
            }
            News::Unexpected(status) => {
                if let Some(times) = self.strays.note(Instant::now()) {
                    warn!(%server, status, times, "the iSNS server asks or tells what makes no sense; refused");
                }
            }
        }
    }

    /// An initiator came or went. That changes nothing of what it may do here.
    fn changed(&mut self, initiator: &str, event: Event) {
        let server = self.server;
        let what = match (event.is_added(), event.is_removed()) {
            (true, false) => "added",
            (false, true) => "removed",
            _ => {
                debug!(%server, initiator, "something of an initiator has changed at the iSNS server");
                return;
            }
        };
        if let Some(left_out) = self.changes.take(Instant::now()) {
            info!(%server, initiator, left_out, "an initiator was {what} at the iSNS server");
        }
    }
}
