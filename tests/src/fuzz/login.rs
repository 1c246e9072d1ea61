//! A login from its first PDU, then text negotiation in the full feature phase.
//!
//! Input: for each request one byte of choice, one of length, one of flags, and the text. Headers are mostly right,
//! so that the text is what is tried; every choice with the top bit set brings a header of raw bytes.

use std::sync::Arc;

use lunette_iscsi::chap::{ChapAlgorithm, ChapCredential, ChapNonce, ChapPolicy, ChapUser, Secret};
use lunette_iscsi::login::{
    LOGIN_SEGMENT_MAX, Login, LoginStep, LookupFailure, Redirection, TargetDirectory, TargetEntry,
};
use lunette_iscsi::parameters::TargetLimits;
use lunette_iscsi::text::{TextFacts, TextNegotiation, TextStep};
use lunette_wire::initiator::{LoginRequest, LoginStage, TextRequest};
use lunette_wire::{BHS_LENGTH, InitiatorPdu, TargetTransferTag, Tsih};

use super::Input;

/// More requests than any login may take.
const REQUESTS_MAX: usize = 200;

struct Directory;

impl TargetDirectory for Directory {
    fn find(&self, name: &str, _initiator: &str) -> Result<TargetEntry, LookupFailure> {
        match name.len() % 4 {
            0 => Err(LookupFailure::NotFound),
            1 => Err(LookupFailure::Forbidden),
            _ => Ok(TargetEntry {
                portal_group_tag: 1,
                alias: Some("an alias".to_owned()),
                // Every other of these names is served elsewhere.
                moved: "192.0.2.7"
                    .parse()
                    .ok()
                    .filter(|_| name.len() % 8 > 3)
                    .and_then(|address| Redirection::new(false, vec![address])),
            }),
        }
    }

    /// Names of a length that leaves 3 are for those who know the secret of `user`; it is "0123456789ab".
    fn authentication(&self, target: Option<&str>) -> Option<Arc<ChapPolicy>> {
        let credential =
            |name: &str, secret: &str| ChapCredential { name: name.to_owned(), secret: Secret::new(secret) };
        (target?.len() % 4 == 3).then(|| {
            Arc::new(ChapPolicy {
                users: vec![ChapUser {
                    credential: credential("user", "0123456789ab"),
                    initiators: Vec::new(),
                }],
                own: Some(credential("target", "ba9876543210")),
                algorithms: ChapAlgorithm::ALL.to_vec(),
            })
        })
    }
}

/// Plays one connection.
///
/// # Panics
/// A property does not hold.
pub fn login(data: &[u8]) {
    let mut input = Input(data);
    let mut login = Login::new(TargetLimits::default(), 1, ChapNonce::from([0; 33]));
    for _ in 0..REQUESTS_MAX {
        if input.is_empty() {
            return;
        }
        let (choice, length) = (input.byte(), input.byte());
        let step = if choice & 0x80 != 0 {
            let bhs = input.array::<BHS_LENGTH>();
            match InitiatorPdu::decode(&bhs) {
                Ok(InitiatorPdu::LoginRequest(request)) => {
                    login.step(&request, input.bytes(length.into()), &Directory)
                }
                _ => login.other_pdu(bhs[0] & 0x3f),
            }
        } else {
            let request = LoginRequest {
                transit: choice & 1 != 0,
                is_continued: choice & 2 != 0,
                current_stage: if choice & 4 != 0 { LoginStage::Operational } else { LoginStage::Security },
                next_stage: if choice & 8 != 0 { LoginStage::FullFeature } else { LoginStage::Operational },
                ..LoginRequest::default()
            };
            // Sixteen times the length reaches the bounds on text.
            let length = if choice & 16 != 0 { usize::from(length) * 16 } else { length.into() };
            login.step(&request, input.bytes(length), &Directory)
        };
        let reply = match step {
            LoginStep::Respond(reply) => reply,
            LoginStep::Fail(reply, _) => {
                assert_ne!(reply.pdu.status_class, 0, "a refusal says so");
                return assert!(reply.text.len() <= LOGIN_SEGMENT_MAX);
            }
            LoginStep::Drop(_) => return,
            LoginStep::Ready(outcome) => {
                let reply = outcome.accept(Tsih(1), outcome.numbers);
                assert!(reply.pdu.transit && reply.text.len() <= LOGIN_SEGMENT_MAX);
                assert!(outcome.session.first_burst_length <= outcome.session.max_burst_length);
                assert_eq!(outcome.session.error_recovery_level, 0);
                let is_locked = outcome.target.as_ref().is_some_and(|(name, _)| name.as_str().len() % 4 == 3);
                let is_here = |(_, entry): &(_, TargetEntry)| entry.moved.is_none();
                assert!(outcome.target.as_ref().is_none_or(is_here), "who is sent elsewhere gets no session");
                assert_eq!(outcome.user.as_deref(), is_locked.then_some("user"), "nobody gets past CHAP");
                assert!((512..1 << 24).contains(&outcome.connection.max_send_data_segment_length));
                return negotiate_further(&mut input, outcome.connection.max_send_data_segment_length);
            }
        };
        assert_eq!(reply.pdu.status_class, 0);
        assert!(reply.text.len() <= LOGIN_SEGMENT_MAX);
    }
    panic!("a login took more than {REQUESTS_MAX} requests");
}

fn negotiate_further(input: &mut Input<'_>, max_send_data_segment_length: u32) {
    let targets = [("iqn.2026-11.io.lunette:disk0".to_owned(), vec!["127.0.0.1:3260,1".to_owned()])];
    let mut negotiation = TextNegotiation::default();
    let mut open_tag = TargetTransferTag::RESERVED;
    while !input.is_empty() {
        let (choice, length) = (input.byte(), usize::from(input.byte()));
        let request = TextRequest {
            is_final: choice & 1 != 0,
            is_continued: choice & 2 != 0,
            target_transfer_tag: if choice & 4 != 0 { open_tag } else { TargetTransferTag::RESERVED },
            ..TextRequest::default()
        };
        let facts = TextFacts {
            session_type: Default::default(),
            target: Some("iqn.2026-11.io.lunette:disk0"),
            targets: &targets,
            max_send_data_segment_length,
            declares: (choice & 8 != 0).then_some(4096),
        };
        match negotiation.step(&request, input.bytes(length), &facts) {
            TextStep::Reply { is_final, text, target_transfer_tag, .. } => {
                assert!(text.len() <= max_send_data_segment_length as usize);
                assert_eq!(is_final, target_transfer_tag == TargetTransferTag::RESERVED);
                open_tag = target_transfer_tag;
            }
            TextStep::Reject(_) => open_tag = TargetTransferTag::RESERVED,
        }
    }
}
