//! A login that both sides agree on, before the last reply: the driver has its say here (session reinstatement, a
//! TSIH, limits on sessions), then takes the reply.

use lunette_wire::target::{LoginResponse, Numbers};
use lunette_wire::{Cid, CmdSn, Isid, StatSn, Tsih};

use super::{LoginFailure, LoginReply, TargetEntry};
use crate::name::IscsiName;
use crate::parameters::{ConnectionParameters, SessionParameters, SessionType};

/// What was agreed, and the reply that is ready to be sent.
#[derive(Debug, Clone)]
pub struct LoginOutcome {
    /// Who logs in.
    pub initiator_name: IscsiName,
    /// InitiatorAlias, for display only.
    pub initiator_alias: Option<String>,
    /// X#NodeArchitecture, for the log only (13.26.2).
    pub initiator_architecture: Option<String>,
    /// The target and what the directory said about it; none in a discovery session that named none.
    pub target: Option<(IscsiName, TargetEntry)>,
    /// What the session is for.
    pub session_type: SessionType,
    /// With the names, what tells an initiator's sessions apart (6.3.1).
    pub isid: Isid,
    /// Zero asks for a new session (or the reinstatement of one), another value names the session to join (6.3.1).
    pub tsih: Tsih,
    /// The connection's name in its session.
    pub cid: Cid,
    /// The session's parameters; meaningless where a session is joined.
    pub session: SessionParameters,
    /// The connection's parameters.
    pub connection: ConnectionParameters,
    /// The numbers for the last reply of a new session. Where one is joined, ExpCmdSN and MaxCmdSN are that session's.
    pub numbers: Numbers,
    /// StatSN of the first response in the full feature phase.
    pub next_stat_sn: StatSn,
    /// CmdSN of the first command of a new session (11.12.8).
    pub cmd_sn: CmdSn,
    /// What has arrived on the connection whose place this one takes, if there is one (11.12.9).
    pub exp_stat_sn: StatSn,
    /// The CHAP name that was proven; none where nobody was asked. All connections of a session have the same (9.2).
    pub user: Option<String>,
    /// The last reply, but for TSIH and numbers.
    pub(super) reply: LoginReply,
}

impl LoginOutcome {
    /// The last reply of an accepted login: with it the connection is in the full feature phase (T5, S5 of 8.1.4).
    /// `tsih` is the session's handle and not zero (11.13.3).
    #[must_use]
    pub fn accept(&self, tsih: Tsih, numbers: Numbers) -> LoginReply {
        debug_assert_ne!(tsih, Tsih(0));
        let pdu = LoginResponse { tsih, numbers, ..self.reply.pdu };
        LoginReply { pdu, text: self.reply.text.clone() }
    }

    /// The last reply of a login that this side will not have after all (T7 of 8.1.4). The connection is closed behind
    /// it.
    #[must_use]
    pub fn refuse(&self, failure: &LoginFailure) -> LoginReply {
        LoginReply::refusal(self.reply.pdu, failure)
    }
}

impl LoginReply {
    /// A response that ends the login: T, C and the stages are reserved in it (6.3.1). Only a redirection has a text.
    pub(super) fn refusal(pdu: LoginResponse, failure: &LoginFailure) -> Self {
        let pdu = LoginResponse {
            transit: false,
            is_continued: false,
            current_stage: Default::default(),
            next_stage: Default::default(),
            status_class: failure.status.class(),
            status_detail: failure.status.detail(),
            ..pdu
        };
        Self { pdu, text: failure.text().to_vec() }
    }
}
