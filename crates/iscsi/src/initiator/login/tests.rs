//! The initiator's login against the target's (`crate::login`), and against answers that our own target never gives.

mod chap;
mod foreign;
mod hostile;
mod pair;

use std::sync::Arc;

use lunette_wire::target::Numbers;
use lunette_wire::text::push;

use super::*;
use crate::chap::{ChapCredential, Secret};

pub(super) const TARGET: &str = "iqn.2026-11.io.lunette:disk0";

pub(super) fn name(text: &str) -> IscsiName {
    IscsiName::parse(text).unwrap()
}

pub(super) fn settings() -> LoginSettings {
    LoginSettings {
        initiator_name: name("iqn.2026-11.io.lunette:initiator"),
        initiator_alias: None,
        purpose: Purpose::Normal(name(TARGET)),
        isid: Isid([0x80, 1, 2, 3, 4, 5]),
        tsih: Tsih(0),
        cid: Cid(1),
        exp_stat_sn: None,
        cmd_sn: CmdSn(0xffff_fffe),
        wishes: Wishes::default(),
        credentials: None,
        skips_security: false,
    }
}

pub(super) fn nonce(fill: u8) -> ChapNonce {
    ChapNonce::from([fill; 33])
}

pub(super) fn begin(settings: LoginSettings) -> (Login, LoginPdu) {
    Login::begin(settings, nonce(0xa5), Duration::ZERO).unwrap()
}

pub(super) fn credential(name: &str, secret: &str) -> ChapCredential {
    ChapCredential { name: name.to_owned(), secret: Secret::new(secret) }
}

pub(super) fn text(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut text = Vec::new();
    pairs.iter().for_each(|(key, value)| push(&mut text, key, value));
    text
}

/// What the first offer of a request's text says about a key.
pub(super) fn said<'a>(pdu: &'a LoginPdu, key: &str) -> Option<&'a str> {
    pairs(&pdu.text).unwrap().into_iter().find(|(name, _)| *name == key).map(|(_, value)| value)
}

/// A made-up target that answers whatever a test says, with right numbers.
pub(super) struct Puppet {
    pub(super) login: Login,
    pub(super) last: LoginPdu,
    responses: u32,
}

impl Puppet {
    pub(super) fn new(settings: LoginSettings) -> Self {
        let (login, last) = begin(settings);
        Self { login, last, responses: 0 }
    }

    /// One that has got the initiator into the operational stage.
    pub(super) fn operational(settings: LoginSettings) -> Self {
        let mut puppet = Self::new(settings);
        puppet.sends(LoginStage::Operational, &[("AuthMethod", "None"), ("TargetPortalGroupTag", "1")]);
        puppet
    }

    /// A response that goes with the last request, to `next` unless that is the security stage.
    pub(super) fn response(&mut self, next: LoginStage) -> LoginResponse {
        let request = &self.last.pdu;
        self.responses += 1;
        LoginResponse {
            transit: next != LoginStage::Security,
            current_stage: request.current_stage,
            next_stage: next,
            isid: request.isid,
            tsih: if next == LoginStage::FullFeature { Tsih(7) } else { request.tsih },
            initiator_task_tag: request.initiator_task_tag,
            numbers: Numbers {
                stat_sn: StatSn(self.responses.wrapping_add(0xffff_fffd)),
                exp_cmd_sn: request.cmd_sn,
                max_cmd_sn: request.cmd_sn.plus(31),
            },
            ..LoginResponse::default()
        }
    }

    pub(super) fn answers(&mut self, next: LoginStage, pairs: &[(&str, &str)]) -> Step {
        let response = self.response(next);
        self.login.received(Duration::from_millis(self.responses.into()), &response, &text(pairs))
    }

    /// The answer is taken, and leads to another request.
    pub(super) fn sends(&mut self, next: LoginStage, pairs: &[(&str, &str)]) {
        match self.answers(next, pairs) {
            Step::Send(pdu) => self.last = pdu,
            other => panic!("{other:?}"),
        }
    }

    /// The last answer of the login.
    pub(super) fn ends(&mut self, pairs: &[(&str, &str)]) -> Outcome {
        match self.answers(LoginStage::FullFeature, pairs) {
            Step::Done(outcome) => *outcome,
            other => panic!("{other:?}"),
        }
    }

    /// The answer ends the login badly.
    pub(super) fn fails(&mut self, next: LoginStage, pairs: &[(&str, &str)]) -> LoginError {
        match self.answers(next, pairs) {
            Step::Failed(error) => error,
            other => panic!("{other:?}"),
        }
    }
}

pub(super) const HERE: LoginStage = LoginStage::Security;
pub(super) const OPERATIONAL: LoginStage = LoginStage::Operational;
pub(super) const FULL: LoginStage = LoginStage::FullFeature;

pub(super) type Policy = Option<Arc<crate::chap::ChapPolicy>>;
