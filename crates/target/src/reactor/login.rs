//! Logins on a reactor (RFC 7143, 6.3): the directory of targets, reinstatement, the step into full feature phase.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use lunette_iscsi::chap::ChapNonce;
use lunette_iscsi::login::{Login, LoginFailure, LoginOutcome, LoginReply, LoginStatus, LoginStep};
use lunette_iscsi::parameters::{SessionType, TargetLimits};
use lunette_iscsi::session::{Payload, Session, SessionSettings};
use lunette_scsi::{Lun, LunMap, Nexus, TargetPort};
use lunette_wire::frame::Digests;
use lunette_wire::initiator::LoginRequest;
use lunette_wire::target::Numbers;
use lunette_wire::{Bhs, Tsih};
use tracing::{debug, info};

use super::connection::{Connection, Disconnect, Stage, Token};
use super::heralds::SessionHerald;
use super::hoard::Hoard;
use super::session::{Attachment, Link, TargetSession};
use super::soliciting::Unasked;
use super::visitor::Visitor;
use super::{Message, Reactor, Waiter};
use crate::access::Caller;
use crate::registry::{Claim, SessionEnd, SessionKey, SessionPlace};
use crate::seldom::Ration;
use crate::server::Shared;
use crate::task_times::SessionName;

/// What an initiator sees of which target.
pub(super) struct View {
    target_index: usize,
    /// The portal group that it came through.
    port: TargetPort,
    pub(super) units: Arc<LunMap>,
}

impl Reactor {
    /// One Login Request of a connection that has not logged in.
    pub(super) fn login_pdu(&mut self, index: usize, bhs: &Bhs, text: &[u8]) -> Result<(), Disconnect> {
        let request = LoginRequest::decode(bhs).map_err(|fault| Disconnect::Login(fault.to_string()))?;
        self.time_login(index);
        let Some(connection) = self.connections.get_mut(index) else { return Ok(()) };
        let Stage::Login(login) = &mut connection.stage else { return Ok(()) };
        let (peer, local, group) = (connection.peer, connection.local, connection.group);
        let visitor = Visitor { shared: &self.shared, peer, local, group, now: self.now };
        match login.step(&request, text, &visitor) {
            LoginStep::Respond(mut reply) => {
                if let Some(numbers) = self.numbers_to_join(index, &request) {
                    (reply.pdu.numbers.exp_cmd_sn, reply.pdu.numbers.max_cmd_sn) = numbers;
                }
                self.send_login(index, reply);
            }
            LoginStep::Fail(reply, failure) => self.fail_login(index, reply, &failure),
            LoginStep::Drop(failure) => return Err(Disconnect::Login(failure.to_string())),
            LoginStep::Ready(outcome) => self.enter(index, outcome),
        }
        Ok(())
    }

    /// A PDU that is no Login Request: dropped without a word where nobody has begun to log in, refused later (4.2.4).
    pub(super) fn other_pdu(&mut self, index: usize, opcode: u8) -> Result<(), Disconnect> {
        let Some(connection) = self.connections.get_mut(index) else { return Ok(()) };
        let (reply, failure) = match &mut connection.stage {
            Stage::Login(login) => match login.other_pdu(opcode) {
                LoginStep::Fail(reply, failure) => (reply, failure),
                _ => return Err(Disconnect::NotALogin(opcode)),
            },
            Stage::AwaitingReinstatement(outcome) => {
                let reason = format!("a PDU with opcode {opcode:#04x} came before the last answer");
                let failure = LoginFailure::new(LoginStatus::InvalidDuringLogin, reason);
                (outcome.refuse(&failure), failure)
            }
            Stage::FullFeature { .. } | Stage::Closing => return Ok(()),
        };
        self.fail_login(index, reply, &failure);
        Ok(())
    }

    /// A session that a login was waiting for is gone: the login tries again.
    pub(super) fn retry_login(&mut self, token: Token) {
        let Some(connection) = self.connection(token) else { return };
        if let Stage::AwaitingReinstatement(_) = connection.stage
            && let Stage::AwaitingReinstatement(outcome) =
                std::mem::replace(&mut connection.stage, Stage::Closing)
        {
            self.enter(token.index, outcome);
        }
    }

    pub(super) fn send_login(&mut self, index: usize, reply: LoginReply) {
        self.answer_login(index);
        let Some(connection) = self.connections.get_mut(index) else { return };
        let bhs = reply.pdu.encode(reply.text.len());
        let payload = if reply.text.is_empty() { Payload::None } else { Payload::Bytes(reply.text) };
        // Digests begin with the full feature phase (13.1).
        connection.transmitter.push(&bhs, payload, Digests::default());
        if !std::mem::replace(&mut connection.is_dirty, true) {
            self.dirty.push(index);
        }
    }

    pub(super) fn fail_login(&mut self, index: usize, reply: LoginReply, failure: &LoginFailure) {
        self.send_login(index, reply);
        if let Some(connection) = self.connections.get_mut(index) {
            connection.close_after_sending(Disconnect::Login(failure.to_string()), None);
        }
    }

    /// Both sides agree: finds the session's place (6.3.1), ending an older session of the same identity first (6.3.5).
    fn enter(&mut self, index: usize, outcome: Box<LoginOutcome>) {
        let Some(connection) = self.connections.get(index) else { return };
        let local = connection.local;
        let key = SessionKey {
            initiator: outcome.initiator_name.as_str().to_owned(),
            isid: outcome.isid,
            at: outcome.target.as_ref().map_or(SessionEnd::Portal(local), |(name, entry)| {
                SessionEnd::Target {
                    name: name.as_str().to_owned(),
                    portal_group_tag: entry.portal_group_tag,
                }
            }),
        };
        let view = match self.admit(&outcome, connection) {
            Ok(view) => view,
            Err(failure) => return self.fail_login(index, outcome.refuse(&failure), &failure),
        };
        if outcome.tsih != Tsih(0) {
            return self.join(index, outcome, &key, view.as_ref());
        }
        let claimant = (outcome.user.as_deref(), outcome.session_type == SessionType::Discovery);
        match self.shared.registry.claim(&key, claimant, self.index) {
            Claim::Granted(place) => self.begin_session(index, &outcome, view, (key, place)),
            Claim::Taken(place) => {
                let Some(connection) = self.connections.get_mut(index) else { return };
                let waiter = Waiter { reactor: self.index, connection: connection.token };
                connection.stage = Stage::AwaitingReinstatement(outcome);
                self.shared.reactors[place.reactor].send(Message::EndSession { place, waiter });
            }
            Claim::Anothers => {
                let reason = "another CHAP user has a session under this initiator name and ISID";
                let failure = LoginFailure::new(LoginStatus::AuthenticationFailure, reason);
                self.fail_login(index, outcome.refuse(&failure), &failure);
            }
            Claim::Full => {
                let failure =
                    LoginFailure::new(LoginStatus::OutOfResources, "all 65,535 session handles are in use");
                self.fail_login(index, outcome.refuse(&failure), &failure);
            }
        }
    }

    /// What whoever has logged in sees of the target, now that it is known who that is; nothing in a discovery session.
    fn admit(&self, outcome: &LoginOutcome, connection: &Connection) -> Result<Option<View>, LoginFailure> {
        let Some((name, entry)) =
            outcome.target.as_ref().filter(|_| outcome.session_type == SessionType::Normal)
        else {
            return Ok(None);
        };
        let failure =
            |status, reason: &str| LoginFailure::new(status, format!("target {} {reason}", name.as_str()));
        let target_index = self.shared.targets.iter().position(|target| target.name == name.as_str());
        let target_index =
            target_index.ok_or_else(|| failure(LoginStatus::NotFound, "is not served here"))?;
        let admission = self.shared.targets[target_index].admission.get();
        admission
            .admit(&connection.caller(outcome.initiator_name.as_str()), outcome.user.as_deref())
            .zip(TargetPort::new(entry.portal_group_tag))
            .map(|(units, port)| Some(View { target_index, port, units }))
            .ok_or_else(|| failure(LoginStatus::AuthorizationFailure, "is closed to this initiator"))
    }

    fn begin_session(
        &mut self,
        index: usize,
        outcome: &LoginOutcome,
        view: Option<View>,
        (key, place): (SessionKey, SessionPlace),
    ) {
        let Some(connection) = self.connections.get(index) else {
            return self.shared.registry.release(&key, place);
        };
        let token = connection.token;
        let caller = connection.caller(outcome.initiator_name.as_str());
        // A discovery session sees no units, and is no I_T nexus.
        let attachment = view.map(|view| self.attachment(outcome, &caller, view, place));
        let settings = self.settings(attachment.as_ref());
        let numbers = Numbers {
            max_cmd_sn: outcome.cmd_sn.plus(u32::from(settings.window_depth) - 1),
            ..outcome.numbers
        };
        let core = Session::new(
            outcome.session_type,
            outcome.session,
            settings,
            (outcome.cid, outcome.connection, outcome.next_stat_sn),
            outcome.cmd_sn,
            self.now,
        );
        let initiator = outcome.initiator_name.as_str().to_owned();
        let recovers = outcome.session.error_recovery_level > 0;
        let session = self.sessions.insert(TargetSession {
            core,
            place,
            key,
            attachment,
            initiator,
            user: outcome.user.clone(),
            links: vec![Link::new(outcome.cid, token)],
            pool: self.shared.pool.share(),
            told_functions: Ration::default(),
            postponed: 0,
            withheld: VecDeque::new(),
            contexts: Vec::new(),
            unasked: Unasked::default(),
            hoard: Hoard::default(),
            unbegun: Hoard::default(),
            keeper: recovers.then(|| self.shared.kept_reads.keeper()),
            retained: None,
            waiters: Vec::new(),
            joiners: Vec::new(),
        });
        let Some(peer) = self.begin_full_feature(index, session, outcome, (place.tsih, numbers)) else {
            return;
        };
        let initiator = outcome.initiator_name.as_str();
        let user = outcome.user.as_deref();
        match (&outcome.target, outcome.session_type) {
            (Some((target, _)), SessionType::Normal) => {
                info!(%peer, %initiator, target = target.as_str(), user, reactor = self.index, "logged in");
            }
            _ => debug!(%peer, %initiator, "discovery session"),
        }
        debug!(session = ?outcome.session, connection = ?outcome.connection, "negotiated");
    }

    /// Sends the last reply of a login and lets its connection be one of the session's; answers who is at the other end.
    pub(super) fn begin_full_feature(
        &mut self,
        index: usize,
        session: usize,
        outcome: &LoginOutcome,
        (tsih, numbers): (Tsih, Numbers),
    ) -> Option<SocketAddr> {
        self.send_login(index, outcome.accept(tsih, numbers));
        self.tell_login(index, SessionName { isid: outcome.isid, tsih }, outcome.cid);
        let connection = self.connections.get_mut(index)?;
        connection.digests = outcome.connection.digests;
        connection.stage = Stage::FullFeature { session, cid: outcome.cid };
        connection.has_logged_in = true;
        let peer = connection.peer;
        self.declare_what_is_new(index, session);
        // Where nothing was declared the default counts, whatever would have been (13.12).
        self.connections.get_mut(index)?.segment_max = outcome.connection.max_recv_data_segment_length;
        Some(peer)
    }

    /// What joins a session to what its initiator sees of a target.
    fn attachment(
        &self,
        outcome: &LoginOutcome,
        caller: &Caller<'_>,
        view: View,
        place: SessionPlace,
    ) -> Attachment {
        let View { target_index, port: target_port, units } = view;
        let target = Arc::clone(&self.shared.targets[target_index]);
        // The name of an initiator port (4.4.2): the initiator's name, ",i,0x", and the ISID.
        let port = format!("{},i,0x{}", outcome.initiator_name.as_str(), outcome.isid);
        let waker: Arc<dyn lunette_scsi::Wake> = Arc::clone(&self.mailbox) as _;
        let nexus = Nexus::mapped(Arc::clone(&target.device), target_port, Arc::clone(&units), port);
        let mut nexus = nexus.waking(waker).of_party(&caller.party(outcome.user.as_deref()));
        if target.scsi_events {
            let herald = SessionHerald::new(Arc::clone(&self.mailbox), place);
            nexus = nexus.heralded(&(Arc::new(herald) as _));
        }
        Attachment { nexus, view: units, target, target_index }
    }

    fn settings(&self, attachment: Option<&Attachment>) -> SessionSettings {
        let limits = &self.shared.config.limits;
        let seconds = |seconds: u32| std::time::Duration::from_secs(seconds.into());
        SessionSettings {
            window_depth: limits.window_depth,
            nop_interval: (limits.nop_interval_s > 0).then(|| seconds(limits.nop_interval_s)),
            nop_timeout: seconds(limits.nop_timeout_s),
            kept_read_bytes_max: self.shared.kept_reads.bytes_max(),
            same_unit: |left, right| {
                let [left_number, right_number] = [left, right].map(|lun| Lun::from_bytes(lun.0).number());
                left == right || (left_number.is_some() && left_number == right_number)
            },
            // A reset of the target reaches every unit: it is not for who is kept away from some.
            may_reset_target: attachment.is_some_and(|attachment| attachment.view.shows_everything()),
        }
    }
}

/// A login in its first stage, with the limits of the configuration and random numbers of the kernel's. It declares
/// `segment_max` bytes as MaxRecvDataSegmentLength.
///
/// # Errors
/// The kernel gives no random numbers.
pub(super) fn new_login(shared: &Shared, group: u16, segment_max: u32) -> io::Result<Login> {
    let mut random = [0; 33];
    getrandom::fill(&mut random).map_err(io::Error::from)?;
    let limits = shared.config.limits.to_target_limits();
    let limits = TargetLimits { max_recv_data_segment_length: segment_max, ..limits };
    Ok(Login::new(limits, group, ChapNonce::from(random)))
}
