//! A target's answers to the initiator's login, then to SendTargets.
//!
//! Input: one byte that says who logs in, then for each answer one byte of choice, one of length, and the text. Headers are
//! mostly right, so that the text is what is tried; every choice with the top bit set brings a header of raw bytes.

use std::time::Duration;

use lunette_iscsi::chap::{ChapCredential, ChapNonce, Secret};
use lunette_iscsi::initiator::discovery::{ANSWER_LENGTH_MAX, Discovery, DiscoveryStep, Question};
use lunette_iscsi::initiator::login::{
    Credentials, EXCHANGES_MAX, Login, LoginPdu, LoginSettings, Outcome, Purpose, Step, Wishes,
};
use lunette_iscsi::login::LOGIN_SEGMENT_MAX;
use lunette_iscsi::name::IscsiName;
use lunette_wire::initiator::LoginStage;
use lunette_wire::target::{LoginResponse, Numbers, TextResponse};
use lunette_wire::{BHS_LENGTH, Cid, CmdSn, InitiatorPdu, Isid, StatSn, TargetPdu, TargetTransferTag, Tsih};

use super::Input;

fn settings(who: u8) -> Option<LoginSettings> {
    let credential =
        |name: &str, secret: &str| ChapCredential { name: name.to_owned(), secret: Secret::new(secret) };
    let name = IscsiName::parse("iqn.2026-11.io.lunette:fuzz").ok()?;
    let mut credentials = Credentials::new(credential("user", "0123456789ab"));
    credentials.target = (who & 2 != 0).then(|| credential("target", "ba9876543210"));
    Some(LoginSettings {
        initiator_name: name.clone(),
        initiator_alias: None,
        purpose: if who & 4 != 0 { Purpose::Discovery(None) } else { Purpose::Normal(name) },
        isid: Isid::default(),
        tsih: Tsih(u16::from(who & 8)),
        cid: Cid(0),
        cmd_sn: CmdSn(1),
        exp_stat_sn: None,
        wishes: Wishes::default(),
        credentials: (who & 1 != 0).then_some(credentials),
        skips_security: who & 16 != 0,
    })
}

/// A header that goes with the last request.
fn response(choice: u8, request: &LoginPdu, stat_sn: u32) -> LoginResponse {
    let request = &request.pdu;
    LoginResponse {
        transit: choice & 1 != 0,
        is_continued: choice & 2 != 0,
        current_stage: request.current_stage,
        next_stage: if choice & 4 != 0 { LoginStage::FullFeature } else { LoginStage::Operational },
        isid: request.isid,
        tsih: if request.tsih == Tsih(0) && choice & 4 != 0 { Tsih(1) } else { request.tsih },
        initiator_task_tag: request.initiator_task_tag,
        numbers: Numbers { stat_sn: StatSn(stat_sn), ..Numbers::default() },
        status_class: u8::from(choice & 0x20 != 0),
        ..LoginResponse::default()
    }
}

/// Plays one connection of the initiator's.
///
/// # Panics
/// A property does not hold.
pub fn discovery(data: &[u8]) {
    let mut input = Input(data);
    let Some(settings) = settings(input.byte()) else { return };
    let Ok((mut login, mut request)) = Login::begin(settings, ChapNonce::from([9; 33]), Duration::ZERO)
    else {
        return;
    };
    for stat_sn in 0..=EXCHANGES_MAX {
        assert!(request.text.len() <= LOGIN_SEGMENT_MAX);
        if input.is_empty() {
            return;
        }
        let (choice, length) = (input.byte(), usize::from(input.byte()));
        let step = if choice & 0x80 != 0 {
            let bhs = input.array::<BHS_LENGTH>();
            match TargetPdu::decode(&bhs) {
                Ok(TargetPdu::LoginResponse(response)) => {
                    login.received(Duration::ZERO, &response, input.bytes(length))
                }
                _ => login.other_pdu(bhs[0] & 0x3f),
            }
        } else {
            let length = if choice & 0x10 != 0 { length * 16 } else { length };
            let response = response(choice, &request, stat_sn);
            login.received(Duration::ZERO, &response, input.bytes(length))
        };
        match step {
            Step::Send(next) => request = next,
            Step::Done(outcome) => {
                assert!(outcome.session.first_burst_length <= outcome.session.max_burst_length);
                assert!((512..1 << 24).contains(&outcome.connection.max_send_data_segment_length));
                return find(&mut input, &outcome);
            }
            Step::Moved(moved) => return assert!(!moved.portals.is_empty()),
            Step::Failed(error) => return assert!(!error.to_string().contains("0123456789ab")),
        }
    }
    panic!("a login took more than {EXCHANGES_MAX} requests");
}

/// Goes on with a discovery session.
fn find(input: &mut Input<'_>, outcome: &Outcome) {
    let (mut discovery, first, _) = Discovery::begin(outcome, &Question::All);
    let InitiatorPdu::TextRequest(first) = first else { panic!("{first:?}") };
    while !input.is_empty() {
        let (choice, length) = (input.byte(), usize::from(input.byte()));
        let pdu = if choice & 0x80 != 0 {
            let Ok(pdu) = TargetPdu::decode(&input.array::<BHS_LENGTH>()) else { return };
            pdu
        } else {
            TargetPdu::TextResponse(TextResponse {
                is_final: choice & 1 != 0,
                is_continued: choice & 2 != 0,
                initiator_task_tag: first.initiator_task_tag,
                target_transfer_tag: if choice & 4 != 0 {
                    TargetTransferTag::RESERVED
                } else {
                    TargetTransferTag(3)
                },
                ..TextResponse::default()
            })
        };
        match discovery.received(&pdu, input.bytes(length)) {
            DiscoveryStep::Send(..) | DiscoveryStep::Wait => {}
            DiscoveryStep::Done => return assert!(discovery.targets().is_some()),
            DiscoveryStep::Failed(_) => return,
        }
        let found = discovery.targets().map_or(0, <[_]>::len);
        assert!(found <= ANSWER_LENGTH_MAX);
    }
}
