//! The login of the tests' initiator: security stage with or without CHAP, operational stage (RFC 7143, 6.3).

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use lunette_iscsi::chap::{CHAP_VALUE_LENGTH_MAX, ChapAlgorithm, Secret, decode_binary, encode_hex};
use lunette_wire::frame::Digests;
use lunette_wire::initiator::{LoginRequest, LoginStage};
use lunette_wire::target::LoginResponse;
use lunette_wire::{Cid, CmdSn, InitiatorPdu, InitiatorTaskTag, Isid, StatSn, TargetPdu, Tsih, text};

use super::Initiator;
use crate::connection::Connection;
use crate::lunette::TARGET_NAME;

/// How to log in.
#[derive(Debug, Clone)]
pub struct LoginOptions {
    /// The initiator's name.
    pub initiator_name: String,
    /// The target's name; `None` for a discovery session.
    pub target_name: Option<String>,
    /// Ask for header and data digests.
    pub digests: Digests,
    /// The last byte of the ISID: sessions of one initiator name differ in it.
    pub isid_qualifier: u8,
    /// Keys for the operational stage that replace or join the usual ones.
    pub keys: Vec<(String, String)>,
    /// All keys of the operational stage, as they stand here and in this order, instead of the usual ones.
    pub offers: Option<Vec<(String, String)>>,
    /// Begin with the operational stage, as who does not authenticate may.
    pub skips_security: bool,
    /// Go from the security stage to full feature phase: nothing is offered, and nothing declared. Without CHAP.
    pub skips_operational: bool,
    /// The number of the first command; where a session is joined, of its next one.
    pub first_cmd_sn: CmdSn,
    /// The session to join; zero begins a new one.
    pub tsih: Tsih,
    /// The connection's name in its session.
    pub cid: Cid,
    /// What has arrived on the connection that this one takes the place of (RFC 7143, 11.12.9).
    pub exp_stat_sn: StatSn,
    /// Log in with CHAP.
    pub chap: Option<ChapOptions>,
}

/// What the initiator knows for CHAP, one-way or mutual (RFC 7143, 12.1.3).
#[derive(Debug, Clone)]
pub struct ChapOptions {
    /// CHAP_A.
    pub algorithms: String,
    /// Its name and secret.
    pub user: (String, String),
    /// The target's name and secret, if the target has to prove them.
    pub target: Option<(String, String)>,
}

impl Default for LoginOptions {
    fn default() -> Self {
        Self {
            initiator_name: "iqn.2026-11.io.lunette:tests".to_owned(),
            target_name: Some(TARGET_NAME.to_owned()),
            digests: Digests::default(),
            isid_qualifier: 1,
            keys: Vec::new(),
            offers: None,
            skips_security: false,
            skips_operational: false,
            first_cmd_sn: CmdSn(1),
            tsih: Tsih(0),
            cid: Cid(0),
            exp_stat_sn: StatSn(0),
            chap: None,
        }
    }
}

impl LoginOptions {
    /// The keys of the operational stage.
    fn operational_keys(&self) -> Vec<(String, String)> {
        if let Some(offers) = &self.offers {
            return offers.clone();
        }
        let digest = |wanted| if wanted { "CRC32C" } else { "None" };
        let mut offered: BTreeMap<&str, &str> = BTreeMap::from([
            ("HeaderDigest", digest(self.digests.header)),
            ("DataDigest", digest(self.digests.data)),
            ("MaxRecvDataSegmentLength", "262144"),
        ]);
        let is_leading = self.tsih == Tsih(0);
        if is_leading {
            offered.insert("ErrorRecoveryLevel", "0");
        }
        if self.target_name.is_some() && is_leading {
            offered.extend([
                ("InitialR2T", "Yes"),
                ("ImmediateData", "Yes"),
                ("MaxBurstLength", "262144"),
                ("FirstBurstLength", "65536"),
                ("MaxOutstandingR2T", "1"),
                ("MaxConnections", "1"),
            ]);
        }
        offered.extend(self.keys.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        offered.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }
}

impl Initiator {
    /// Connects and logs in: security stage, operational stage, full feature phase.
    ///
    /// # Errors
    /// The target refuses, or does not speak iSCSI.
    pub fn login(portal: SocketAddr, options: &LoginOptions) -> Result<Self> {
        let mut initiator = Self {
            connection: Connection::open(portal)?,
            negotiated: BTreeMap::new(),
            next_tag: 1,
            cmd_sn: options.first_cmd_sn,
            exp_cmd_sn: options.first_cmd_sn,
            max_cmd_sn: options.first_cmd_sn,
            tsih: options.tsih,
            exp_stat_sn: options.exp_stat_sn,
            tasks: BTreeMap::new(),
            completions: VecDeque::new(),
            events: Vec::new(),
        };
        let session_type = if options.target_name.is_some() { "Normal" } else { "Discovery" };
        let mut keys =
            vec![("InitiatorName", options.initiator_name.as_str()), ("SessionType", session_type)];
        keys.extend(options.target_name.as_deref().map(|name| ("TargetName", name)));
        if !options.skips_security {
            keys.push(("AuthMethod", if options.chap.is_some() { "CHAP" } else { "None" }));
        }
        match &options.chap {
            _ if options.skips_security => {}
            Some(chap) => {
                initiator.login_request(options, LoginStage::Security, LoginStage::Security, &keys)?;
                initiator.authenticate(options, chap)?;
            }
            None if options.skips_operational => {
                initiator.login_stage(options, LoginStage::Security, LoginStage::FullFeature, &keys)?;
                return Ok(initiator);
            }
            None => initiator.login_stage(options, LoginStage::Security, LoginStage::Operational, &keys)?,
        }
        if !options.skips_security {
            keys.clear();
        }
        let offers = options.operational_keys();
        keys.extend(offers.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        initiator.login_stage(options, LoginStage::Operational, LoginStage::FullFeature, &keys)?;
        let agreed = |key: &str| initiator.negotiated.get(key).is_some_and(|value| value == "CRC32C");
        let digests = Digests { header: agreed("HeaderDigest"), data: agreed("DataDigest") };
        ensure!(digests == options.digests, "digests were asked for, and not agreed on");
        initiator.connection.use_digests(digests);
        Ok(initiator)
    }

    /// Answers the target's challenge, and has it answer ours where that is wished.
    fn authenticate(&mut self, options: &LoginOptions, chap: &ChapOptions) -> Result<()> {
        let value_of = |initiator: &Self, key: &str| {
            initiator.negotiated.get(key).cloned().with_context(|| format!("the target sends no {key}"))
        };
        let algorithms = [("CHAP_A", chap.algorithms.as_str())];
        self.login_request(options, LoginStage::Security, LoginStage::Security, &algorithms)?;
        let algorithm = ChapAlgorithm::from_number(value_of(self, "CHAP_A")?.parse()?).context("CHAP_A")?;
        let challenge = decode_binary(&value_of(self, "CHAP_C")?, CHAP_VALUE_LENGTH_MAX)?;
        let identifier = value_of(self, "CHAP_I")?.parse()?;
        let (user, secret) = &chap.user;
        let response = encode_hex(algorithm.respond(identifier, &Secret::new(secret), &challenge).bytes());
        let mut keys = vec![("CHAP_N", user.as_str()), ("CHAP_R", &response)];
        let own_challenge = [!identifier; 16];
        let (number, own_challenge_text) = (identifier.to_string(), encode_hex(&own_challenge));
        if chap.target.is_some() {
            keys.extend([("CHAP_I", number.as_str()), ("CHAP_C", &own_challenge_text)]);
        }
        self.login_stage(options, LoginStage::Security, LoginStage::Operational, &keys)?;
        if let Some((name, secret)) = &chap.target {
            ensure!(value_of(self, "CHAP_N")? == *name, "the target gives another name");
            let received = decode_binary(&value_of(self, "CHAP_R")?, CHAP_VALUE_LENGTH_MAX)?;
            let expected = algorithm.respond(identifier, &Secret::new(secret), &own_challenge);
            ensure!(expected.is(&received), "the target does not prove itself");
        }
        Ok(())
    }

    fn login_stage(
        &mut self,
        options: &LoginOptions,
        current_stage: LoginStage,
        next_stage: LoginStage,
        keys: &[(&str, &str)],
    ) -> Result<()> {
        let response = self.login_request(options, current_stage, next_stage, keys)?;
        ensure!(
            response.transit && response.next_stage == next_stage,
            "the target stays in {current_stage:?}"
        );
        Ok(())
    }

    /// One request, which wants to go on where the two stages differ, and its answer.
    fn login_request(
        &mut self,
        options: &LoginOptions,
        current_stage: LoginStage,
        next_stage: LoginStage,
        keys: &[(&str, &str)],
    ) -> Result<LoginResponse> {
        let mut data = Vec::new();
        keys.iter().for_each(|(key, value)| text::push(&mut data, key, value));
        let request = LoginRequest {
            transit: current_stage != next_stage,
            current_stage,
            next_stage,
            // Type "random" (RFC 7143, 11.12.5): no registered number of anybody is used.
            isid: Isid([0x80, 0x12, 0x34, 0x56, 0, options.isid_qualifier]),
            tsih: options.tsih,
            initiator_task_tag: InitiatorTaskTag(0),
            cid: options.cid,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            ..LoginRequest::default()
        };
        self.connection.send(&InitiatorPdu::LoginRequest(request), &data)?;
        let (TargetPdu::LoginResponse(response), data) = self.connection.receive()? else {
            bail!("a login request was answered by something else");
        };
        ensure!(
            response.status_class == 0,
            "login refused: status {:02x}{:02x}",
            response.status_class,
            response.status_detail
        );
        for (key, value) in text::pairs(&data)? {
            self.negotiated.insert(key.to_owned(), value.to_owned());
        }
        self.exp_stat_sn = response.numbers.stat_sn.next();
        self.exp_cmd_sn = response.numbers.exp_cmd_sn;
        self.max_cmd_sn = response.numbers.max_cmd_sn;
        self.tsih = response.tsih;
        Ok(response)
    }
}
