//! The initiator's side of CHAP (RFC 7143, 12.1.3), which checks the target's.

use lunette_iscsi::chap::{ChapAlgorithm, Secret, decode_binary, encode_hex};
use lunette_wire::initiator::LoginStage;
use lunette_wire::target::LoginResponse;
use lunette_wire::text::{pairs, push};

use super::{ChapWish, Initiator};
use crate::double::target::TARGET_NAME;

/// The initiator's challenge for the target.
const IDENTIFIER: u8 = 0xfe;
const CHALLENGE: &[u8] = b"the initiator's challenge";

/// What the initiator waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    NotAsked,
    Method,
    Challenge,
    /// The algorithm that the target chose.
    Verdict(ChapAlgorithm),
    /// The target has not proven itself: the initiator has closed the connection.
    Rogue,
}

impl Initiator {
    /// True when the target did not prove itself.
    pub(crate) fn has_seen_a_rogue(&self) -> bool {
        self.links[0].authentication == Step::Rogue
    }

    pub(super) fn offer_chap(&mut self, at: usize) {
        let mut text = Vec::new();
        push(&mut text, "InitiatorName", "iqn.2026-11.io.lunette:double");
        if self.wish.discovery {
            push(&mut text, "SessionType", "Discovery");
        } else {
            push(&mut text, "TargetName", TARGET_NAME);
        }
        push(&mut text, "AuthMethod", "CHAP,None");
        self.links[at].authentication = Step::Method;
        self.request_login(at, LoginStage::Security, LoginStage::Operational, text);
    }

    /// Takes a Login Response of the security stage.
    pub(super) fn authenticate(&mut self, at: usize, pdu: &LoginResponse, data: &[u8]) {
        let found = pairs(data).expect("text of key=value pairs");
        let value_of = |name: &str| found.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        let wish = self.wish.chap.clone().expect("only CHAP has a security stage here");
        match self.links[at].authentication {
            Step::Method => {
                assert!(
                    value_of("TargetPortalGroupTag").is_some(),
                    "it belongs into the first response (6.3.1)"
                );
                if value_of("AuthMethod") == Some("None") {
                    assert!(pdu.transit);
                    return self.log_in(at);
                }
                assert_eq!((value_of("AuthMethod"), pdu.transit), (Some("CHAP"), false));
                let mut text = Vec::new();
                push(&mut text, "CHAP_A", wish.algorithms);
                self.links[at].authentication = Step::Challenge;
                self.request_login(at, LoginStage::Security, LoginStage::Operational, text);
            }
            Step::Challenge => {
                assert!(!pdu.transit);
                let number = value_of("CHAP_A").expect("an algorithm");
                assert!(wish.algorithms.split(',').any(|offered| offered == number), "it was not offered");
                let algorithm = ChapAlgorithm::from_number(number.parse().expect("a number")).expect("known");
                let identifier = value_of("CHAP_I").expect("an identifier").parse().expect("a byte");
                let challenge = value_of("CHAP_C").expect("a challenge");
                let challenge = decode_binary(challenge, 1024).expect("a binary value");
                assert!(challenge.len() >= 16, "too short to be never used again (RFC 1994, 2.3)");
                self.answer_challenge(at, &wish, algorithm, identifier, &challenge);
            }
            Step::Verdict(algorithm) => {
                assert!(pdu.transit && pdu.next_stage == LoginStage::Operational);
                let proof = value_of("CHAP_N").zip(value_of("CHAP_R"));
                let Some((name, secret)) = wish.target else {
                    assert_eq!(proof, None, "the target was not asked to prove itself");
                    return self.log_in(at);
                };
                let expected = algorithm.respond(IDENTIFIER, &Secret::new(secret), CHALLENGE);
                let is_proven = proof.is_some_and(|(told, response)| {
                    told == name && expected.is(&decode_binary(response, 1024).expect("a binary value"))
                });
                if is_proven {
                    self.log_in(at);
                } else {
                    self.links[at].authentication = Step::Rogue;
                }
            }
            Step::NotAsked | Step::Rogue => panic!("a response that nobody waits for: {pdu:?}"),
        }
    }

    fn answer_challenge(
        &mut self,
        at: usize,
        wish: &ChapWish,
        algorithm: ChapAlgorithm,
        identifier: u8,
        challenge: &[u8],
    ) {
        let response = algorithm.respond(identifier, &Secret::new(wish.secret), challenge);
        let mut text = Vec::new();
        push(&mut text, "CHAP_N", wish.name);
        push(&mut text, "CHAP_R", &encode_hex(response.bytes()));
        if wish.target.is_some() {
            push(&mut text, "CHAP_I", &IDENTIFIER.to_string());
            push(&mut text, "CHAP_C", &encode_hex(CHALLENGE));
        }
        self.links[at].authentication = Step::Verdict(algorithm);
        self.request_login(at, LoginStage::Security, LoginStage::Operational, text);
    }
}
