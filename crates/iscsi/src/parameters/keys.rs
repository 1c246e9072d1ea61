//! The one table of text keys (RFC 7143, chapters 12 and 13): how each is settled, where and by whom it may be sent.
//!
//! The table only says; `negotiation` does. What this target wants is not here either: see `TargetLimits`.

use lunette_wire::initiator::LoginStage;

use super::KeyError;

/// A text key that RFC 7143 (or RFC 7144) defines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the RFC's names")]
pub enum Key {
    AuthMethod,
    ChapAlgorithm,
    ChapIdentifier,
    ChapChallenge,
    ChapName,
    ChapResponse,
    HeaderDigest,
    DataDigest,
    MaxConnections,
    SendTargets,
    TargetName,
    InitiatorName,
    TargetAlias,
    InitiatorAlias,
    TargetAddress,
    TargetPortalGroupTag,
    InitialR2T,
    ImmediateData,
    MaxRecvDataSegmentLength,
    MaxBurstLength,
    FirstBurstLength,
    DefaultTime2Wait,
    DefaultTime2Retain,
    MaxOutstandingR2T,
    DataPduInOrder,
    DataSequenceInOrder,
    ErrorRecoveryLevel,
    SessionType,
    TaskReporting,
    ProtocolLevel,
    NodeArchitecture,
    IfMarker,
    OfMarker,
    IfMarkInt,
    OfMarkInt,
}

/// How a key gets its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Said by one side; no answer is due.
    Declaration,
    /// A number that one side says about itself.
    DeclaredNumber {
        /// Smallest and largest admissible value.
        range: (u32, u32),
        /// In force until something else is said.
        default: u32,
    },
    /// The result is the smaller of both sides' numbers.
    Minimum {
        /// Smallest and largest admissible value.
        range: (u32, u32),
        /// In force when nobody offers the key.
        default: u32,
    },
    /// The result is the larger of both sides' numbers.
    Maximum {
        /// Smallest and largest admissible value.
        range: (u32, u32),
        /// In force when nobody offers the key.
        default: u32,
    },
    /// Yes only if both sides say so.
    And {
        /// In force when nobody offers the key.
        default: bool,
    },
    /// Yes if either side says so.
    Or {
        /// In force when nobody offers the key.
        default: bool,
    },
    /// The first value of the offer that the other side takes.
    List {
        /// In force when nobody offers the key.
        default: &'static str,
    },
    /// Belongs to an authentication method (12.1).
    Authentication,
    /// Withdrawn by RFC 7143; answered as 13.25 says.
    Obsolete {
        /// The one answer.
        answer: &'static str,
    },
}

/// When a key may be sent (chapter 13, "Use").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// IO: in any login.
    Login,
    /// LO: in the login of a session's first connection.
    LeadingLogin,
    /// ALL: in login and full feature phase.
    Always,
    /// FFPO: in the full feature phase.
    FullFeature,
}

/// Who may send a key first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Senders {
    /// The initiator alone.
    Initiator,
    /// The target alone.
    Target,
    /// Either side.
    Both,
}

/// What a value holds for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// SW: the whole session.
    Session,
    /// CO: the connection.
    Connection,
}

/// The login stages in which a key may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stages {
    /// SecurityNegotiation alone (chapter 12).
    Security,
    /// LoginOperationalNegotiation alone.
    Operational,
    /// "Any-Stage".
    Any,
    /// None: the key is not for the login.
    Never,
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The key.
    pub key: Key,
    /// Its name on the wire.
    pub name: &'static str,
    /// How it gets its value.
    pub rule: Rule,
    /// When it may be sent.
    pub when: Use,
    /// The login stages in which it may be sent.
    pub stages: Stages,
    /// Who may send it first.
    pub senders: Senders,
    /// What it holds for.
    pub scope: Scope,
    /// "Irrelevant when: SessionType=Discovery".
    pub irrelevant_in_discovery: bool,
}

impl Row {
    /// Holds an initiator's use of the key in a login stage against the table.
    ///
    /// # Errors
    /// [`KeyError::Sender`] and [`KeyError::Stage`]: both are protocol errors (6.3).
    pub(crate) fn check_login(&self, stage: LoginStage) -> Result<(), KeyError> {
        if self.senders == Senders::Target {
            return Err(KeyError::Sender(self.name));
        }
        let is_allowed = match self.stages {
            Stages::Any => true,
            Stages::Security => stage == LoginStage::Security,
            Stages::Operational => stage == LoginStage::Operational,
            Stages::Never => false,
        };
        if is_allowed { Ok(()) } else { Err(KeyError::Stage(self.name)) }
    }
}

/// MaxRecvDataSegmentLength and the burst lengths have one range (13.12 to 13.14).
const LENGTHS: (u32, u32) = (512, (1 << 24) - 1);

/// An operational key of the leading login that has no meaning in a discovery session; most keys are like that.
const fn session(key: Key, name: &'static str, rule: Rule) -> Row {
    Row {
        key,
        name,
        rule,
        when: Use::LeadingLogin,
        stages: Stages::Operational,
        senders: Senders::Both,
        scope: Scope::Session,
        irrelevant_in_discovery: true,
    }
}

/// As `session`, but meant for discovery sessions too.
const fn every_session(key: Key, name: &'static str, rule: Rule) -> Row {
    Row { irrelevant_in_discovery: false, ..session(key, name, rule) }
}

/// A key that says who or what somebody is, in either stage.
const fn declared(key: Key, name: &'static str, senders: Senders, when: Use) -> Row {
    Row { senders, when, stages: Stages::Any, ..every_session(key, name, Rule::Declaration) }
}

/// A key of the operational stage that holds for the connection.
const fn connection(key: Key, name: &'static str, rule: Rule, when: Use) -> Row {
    Row { scope: Scope::Connection, when, ..every_session(key, name, rule) }
}

/// A key of the security stage.
const fn security(key: Key, name: &'static str, rule: Rule) -> Row {
    Row { stages: Stages::Security, ..connection(key, name, rule, Use::Login) }
}

const fn minimum(low: u32, high: u32, default: u32) -> Rule {
    Rule::Minimum { range: (low, high), default }
}

const fn obsolete(key: Key, name: &'static str, answer: &'static str) -> Row {
    connection(key, name, Rule::Obsolete { answer }, Use::Login)
}

/// Every key, in the order of the clauses.
pub const TABLE: &[Row] = &[
    security(Key::AuthMethod, "AuthMethod", Rule::List { default: "None" }),
    security(Key::ChapAlgorithm, "CHAP_A", Rule::Authentication),
    security(Key::ChapIdentifier, "CHAP_I", Rule::Authentication),
    security(Key::ChapChallenge, "CHAP_C", Rule::Authentication),
    security(Key::ChapName, "CHAP_N", Rule::Authentication),
    security(Key::ChapResponse, "CHAP_R", Rule::Authentication),
    connection(Key::HeaderDigest, "HeaderDigest", Rule::List { default: "None" }, Use::Login),
    connection(Key::DataDigest, "DataDigest", Rule::List { default: "None" }, Use::Login),
    session(Key::MaxConnections, "MaxConnections", minimum(1, 65535, 1)),
    Row {
        stages: Stages::Never,
        ..declared(Key::SendTargets, "SendTargets", Senders::Initiator, Use::FullFeature)
    },
    declared(Key::TargetName, "TargetName", Senders::Both, Use::Login),
    declared(Key::InitiatorName, "InitiatorName", Senders::Initiator, Use::Login),
    declared(Key::TargetAlias, "TargetAlias", Senders::Target, Use::Always),
    declared(Key::InitiatorAlias, "InitiatorAlias", Senders::Initiator, Use::Always),
    declared(Key::TargetAddress, "TargetAddress", Senders::Target, Use::Always),
    declared(Key::TargetPortalGroupTag, "TargetPortalGroupTag", Senders::Target, Use::Login),
    session(Key::InitialR2T, "InitialR2T", Rule::Or { default: true }),
    session(Key::ImmediateData, "ImmediateData", Rule::And { default: true }),
    connection(
        Key::MaxRecvDataSegmentLength,
        "MaxRecvDataSegmentLength",
        Rule::DeclaredNumber { range: LENGTHS, default: 8192 },
        Use::Always,
    ),
    session(Key::MaxBurstLength, "MaxBurstLength", minimum(LENGTHS.0, LENGTHS.1, 262_144)),
    session(Key::FirstBurstLength, "FirstBurstLength", minimum(LENGTHS.0, LENGTHS.1, 65536)),
    every_session(Key::DefaultTime2Wait, "DefaultTime2Wait", Rule::Maximum { range: (0, 3600), default: 2 }),
    every_session(Key::DefaultTime2Retain, "DefaultTime2Retain", minimum(0, 3600, 20)),
    session(Key::MaxOutstandingR2T, "MaxOutstandingR2T", minimum(1, 65535, 1)),
    session(Key::DataPduInOrder, "DataPDUInOrder", Rule::Or { default: true }),
    session(Key::DataSequenceInOrder, "DataSequenceInOrder", Rule::Or { default: true }),
    every_session(Key::ErrorRecoveryLevel, "ErrorRecoveryLevel", minimum(0, 2, 0)),
    declared(Key::SessionType, "SessionType", Senders::Initiator, Use::LeadingLogin),
    session(Key::TaskReporting, "TaskReporting", Rule::List { default: "RFC3720" }),
    session(Key::ProtocolLevel, "iSCSIProtocolLevel", minimum(0, 31, 1)),
    every_session(Key::NodeArchitecture, "X#NodeArchitecture", Rule::Declaration),
    obsolete(Key::IfMarker, "IFMarker", "No"),
    obsolete(Key::OfMarker, "OFMarker", "No"),
    obsolete(Key::IfMarkInt, "IFMarkInt", "Reject"),
    obsolete(Key::OfMarkInt, "OFMarkInt", "Reject"),
];

/// The row of the key with this name, if the RFCs define one.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.name == name)
}

/// The row of a key.
#[must_use]
pub fn row(key: Key) -> &'static Row {
    // `every_key_has_its_row` holds the table to the order of the enum.
    &TABLE[key as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_its_row() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.key as usize, index, "{} is out of order", row.name);
            assert_eq!(by_name(row.name), Some(row));
        }
        assert_eq!(TABLE.len(), Key::OfMarkInt as usize + 1);
    }

    #[test]
    fn names_are_standard_labels_or_the_one_exception() {
        for row in TABLE {
            let is_label = row.name.len() <= 63
                && row.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-+@_".contains(&byte));
            assert!(is_label || row.key == Key::NodeArchitecture, "{}", row.name);
            let is_capital = row.name.starts_with(|first: char| first.is_ascii_uppercase());
            assert!(is_capital || row.key == Key::ProtocolLevel, "{}", row.name);
        }
    }

    #[test]
    fn defaults_are_in_range() {
        for row in TABLE {
            if let Rule::Minimum { range, default }
            | Rule::Maximum { range, default }
            | Rule::DeclaredNumber { range, default } = row.rule
            {
                assert!(range.0 <= default && default <= range.1, "{}", row.name);
            }
        }
    }

    #[test]
    fn stages_and_senders_are_enforced() {
        let check = |key, stage| row(key).check_login(stage);
        let (security, operational) = (LoginStage::Security, LoginStage::Operational);
        assert_eq!(check(Key::InitiatorName, security), Ok(()));
        assert_eq!(check(Key::InitiatorName, operational), Ok(()));
        assert_eq!(check(Key::AuthMethod, operational), Err(KeyError::Stage("AuthMethod")));
        assert_eq!(check(Key::HeaderDigest, security), Err(KeyError::Stage("HeaderDigest")));
        assert_eq!(check(Key::SendTargets, operational), Err(KeyError::Stage("SendTargets")));
        assert_eq!(check(Key::TargetAlias, operational), Err(KeyError::Sender("TargetAlias")));
    }
}
