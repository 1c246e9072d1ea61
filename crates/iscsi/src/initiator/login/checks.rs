//! What a Login Response may say in its header (RFC 7143, 6.3, 11.13), and how much of it there may be.

use lunette_wire::initiator::LoginStage;
use lunette_wire::target::LoginResponse;

use super::{EXCHANGES_MAX, Login, LoginError, Moved, Refusal, Step, TAG, VERSION};
use crate::login::{LOGIN_SEGMENT_MAX, LOGIN_TEXT_MAX};

impl Login {
    /// A response that is the last one: a redirection or a refusal.
    pub(super) fn ending(&self, response: &LoginResponse, text: &[u8]) -> Result<Option<Step>, LoginError> {
        let code = u16::from_be_bytes([response.status_class, response.status_detail]);
        match response.status_class {
            0 => Ok(None),
            1 => Moved::read(response.status_detail == 2, text).map(|moved| Some(Step::Moved(moved))),
            _ => Err(LoginError::Refused {
                refusal: Refusal {
                    code,
                    algorithm: self.told.algorithm,
                    has_credentials: self.settings.credentials.is_some(),
                },
            }),
        }
    }

    pub(super) fn count(&mut self, length: usize) -> Result<(), LoginError> {
        self.text_length = self.text_length.saturating_add(length);
        let endless = |what: String| Err(LoginError::Endless(what));
        if length > LOGIN_SEGMENT_MAX {
            return endless(format!(
                "sent {length} bytes of text at once, where {LOGIN_SEGMENT_MAX} are the limit"
            ));
        }
        if self.text_length > LOGIN_TEXT_MAX {
            return endless(format!("sent more than {LOGIN_TEXT_MAX} bytes of text"));
        }
        if self.requests >= EXCHANGES_MAX {
            return endless(format!("is not through after {EXCHANGES_MAX} responses"));
        }
        Ok(())
    }

    /// The fields that all responses have to echo, or to count on.
    pub(super) fn check_header(&mut self, response: &LoginResponse) -> Result<(), LoginError> {
        let fault = |what: &str| Err(LoginError::protocol(what.to_owned()));
        if response.initiator_task_tag != TAG {
            return fault("a response has another Initiator Task Tag than the request (11.13)");
        }
        // Numbers and echoes are only valid in a success (11.13.5).
        if response.status_class != 0 {
            return Ok(());
        }
        if response.isid != self.settings.isid {
            return fault("a response has another ISID than the request (11.13.2)");
        }
        if response.version_active != VERSION {
            return fault("it wants a version of the protocol that nobody has (11.13.1)");
        }
        let stat_sn = response.numbers.stat_sn;
        if self.stat_sn.is_some_and(|expected| expected != stat_sn) {
            return fault("its status numbers do not follow each other (4.2.2.2)");
        }
        self.stat_sn = Some(stat_sn.next());
        Ok(())
    }

    /// Holds CSG, NSG, T and C against 6.3 and 11.13.
    pub(super) fn check_stage(&self, response: &LoginResponse, stage: LoginStage) -> Result<(), LoginError> {
        let fault = |what: &str| Err(LoginError::protocol(what.to_owned()));
        if response.current_stage != stage {
            return fault("a response belongs to a stage that the login is not in (6.3)");
        }
        if response.transit && response.is_continued {
            return fault("a response has both the T and the C bit set (6.2)");
        }
        if response.transit && self.asked_for != Some(response.next_stage) {
            return fault("a response goes to a stage that we did not ask for (11.13.6)");
        }
        Ok(())
    }
}
