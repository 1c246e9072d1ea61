//! CHAP on the initiator's side (RFC 7143, 12.1.3): the keys that answer the target's challenge, and whether the target
//! proves itself in return.
//!
//! When keys are sent is the login's affair. One algorithm, SHA-256, is all that a measurement needs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use lunette_iscsi::chap::{
    CHAP_VALUE_LENGTH_MAX, ChapAlgorithm, ChapCredential, ChapNonce, Secret, decode_binary, encode_hex,
};

const ALGORITHM: ChapAlgorithm = ChapAlgorithm::Sha256;

/// Names and secrets as the command line tells them.
#[derive(Debug, Args)]
pub(crate) struct ChapOptions {
    /// Log in with CHAP under this name
    #[arg(long, value_name = "NAME", requires = "chap_secret_file")]
    chap_user: Option<String>,
    /// A file with that user's secret as its only line
    #[arg(long, value_name = "FILE", requires = "chap_user")]
    chap_secret_file: Option<PathBuf>,
    /// Mutual CHAP: the name under which the target has to prove itself
    #[arg(long, value_name = "NAME", requires_all = ["chap_user", "chap_mutual_secret_file"])]
    chap_mutual: Option<String>,
    /// A file with the target's secret as its only line
    #[arg(long, value_name = "FILE", requires = "chap_mutual")]
    chap_mutual_secret_file: Option<PathBuf>,
}

impl ChapOptions {
    /// Reads the secrets; `None` where no user is named.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn chap(&self) -> Result<Option<Chap>> {
        let credential = |name: &Option<String>, file: &Option<PathBuf>| {
            name.as_ref().zip(file.as_ref()).map(|(name, file)| read(name, file)).transpose()
        };
        let target = credential(&self.chap_mutual, &self.chap_mutual_secret_file)?;
        let user = credential(&self.chap_user, &self.chap_secret_file)?;
        Ok(user.map(|user| Chap { user, target }))
    }
}

fn read(name: &str, file: &Path) -> Result<ChapCredential> {
    let text =
        std::fs::read(file).with_context(|| format!("cannot read the secret file {}", file.display()))?;
    Ok(ChapCredential { name: name.to_owned(), secret: Secret::new(text.trim_ascii_end()) })
}

/// Who logs in.
#[derive(Debug)]
pub(crate) struct Chap {
    user: ChapCredential,
    /// What the target has to prove, in mutual CHAP.
    target: Option<ChapCredential>,
}

impl Chap {
    /// The value of CHAP_A: what this side can do.
    pub(crate) fn algorithms() -> String {
        ALGORITHM.number().to_string()
    }

    /// The keys that answer the target's challenge; in mutual CHAP with `own`, the challenge for the target.
    ///
    /// # Errors
    /// There is no challenge, or one for another algorithm.
    pub(crate) fn answer(
        &self,
        answers: &BTreeMap<String, String>,
        own: &ChapNonce,
    ) -> Result<Vec<(&'static str, String)>> {
        let algorithm = value(answers, "CHAP_A")?;
        ensure!(
            algorithm == Self::algorithms(),
            "the target picks CHAP_A={algorithm}, which was not offered"
        );
        let identifier = value(answers, "CHAP_I")?.parse().context("CHAP_I")?;
        let challenge = decode_binary(value(answers, "CHAP_C")?, CHAP_VALUE_LENGTH_MAX).context("CHAP_C")?;
        let response = ALGORITHM.respond(identifier, &self.user.secret, &challenge);
        let mut keys = vec![("CHAP_N", self.user.name.clone()), ("CHAP_R", encode_hex(response.bytes()))];
        if self.target.is_some() {
            let challenge = encode_hex(&own.challenge);
            keys.extend([("CHAP_I", own.identifier.to_string()), ("CHAP_C", challenge)]);
        }
        Ok(keys)
    }

    /// Holds the target's response to `own` against its secret; without mutual CHAP nothing is asked of it.
    ///
    /// # Errors
    /// The target does not prove itself.
    pub(crate) fn verify(&self, answers: &BTreeMap<String, String>, own: &ChapNonce) -> Result<()> {
        let Some(target) = &self.target else { return Ok(()) };
        let name = value(answers, "CHAP_N")?;
        ensure!(name == target.name, "the target calls itself {name:?}, not {:?}", target.name);
        let received = decode_binary(value(answers, "CHAP_R")?, CHAP_VALUE_LENGTH_MAX).context("CHAP_R")?;
        let expected = ALGORITHM.respond(own.identifier, &target.secret, &own.challenge);
        ensure!(expected.is(&received), "the target does not prove itself: its secret is another one");
        Ok(())
    }
}

fn value<'a>(answers: &'a BTreeMap<String, String>, key: &str) -> Result<&'a str> {
    answers.get(key).map(String::as_str).with_context(|| format!("the target sends no {key}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: ChapNonce = ChapNonce { identifier: 9, challenge: [7; 32] };

    fn answers(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn chap(is_mutual: bool) -> Chap {
        let credential =
            |name: &str, secret| ChapCredential { name: name.to_owned(), secret: Secret::new(secret) };
        Chap {
            user: credential("host", "of the user"),
            target: is_mutual.then(|| credential("disk", "of the target")),
        }
    }

    #[test]
    fn a_challenge_is_answered_and_only_mutual_chap_brings_another() {
        let challenge = answers(&[("CHAP_A", "7"), ("CHAP_I", "3"), ("CHAP_C", "0x0102")]);
        let one_way = chap(false).answer(&challenge, &OWN).unwrap();
        let response = ALGORITHM.respond(3, &Secret::new("of the user"), &[1, 2]);
        assert_eq!(one_way, [("CHAP_N", "host".to_owned()), ("CHAP_R", encode_hex(response.bytes()))]);
        let mutual = chap(true).answer(&challenge, &OWN).unwrap();
        assert_eq!(mutual[..2], one_way);
        assert_eq!(mutual[2..], [("CHAP_I", "9".to_owned()), ("CHAP_C", encode_hex(&[7; 32]))]);
    }

    #[test]
    fn what_is_no_challenge_is_an_error() {
        for (pairs, wanted) in [
            (&[("CHAP_I", "3"), ("CHAP_C", "0x01")][..], "no CHAP_A"),
            (&[("CHAP_A", "5"), ("CHAP_I", "3"), ("CHAP_C", "0x01")], "CHAP_A=5"),
            (&[("CHAP_A", "7"), ("CHAP_I", "256"), ("CHAP_C", "0x01")], "CHAP_I"),
            (&[("CHAP_A", "7"), ("CHAP_I", "3"), ("CHAP_C", "0x")], "CHAP_C"),
        ] {
            let message = chap(false).answer(&answers(pairs), &OWN).unwrap_err().to_string();
            assert!(message.contains(wanted), "{message}");
        }
    }

    #[test]
    fn the_target_has_to_prove_itself_in_mutual_chap() {
        let response = |secret| encode_hex(ALGORITHM.respond(9, &Secret::new(secret), &[7; 32]).bytes());
        let proof = |name, secret| answers(&[("CHAP_N", name), ("CHAP_R", &response(secret))]);
        let verify = |answers| chap(true).verify(&answers, &OWN);
        verify(proof("disk", "of the target")).unwrap();
        assert!(verify(proof("disk", "of the user")).is_err());
        assert!(verify(proof("tape", "of the target")).is_err());
        assert!(verify(answers(&[("CHAP_N", "disk")])).is_err());
        assert!(verify(answers(&[])).is_err());
        chap(false).verify(&answers(&[]), &OWN).unwrap();
    }
}
