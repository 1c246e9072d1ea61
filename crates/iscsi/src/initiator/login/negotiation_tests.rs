//! Results key by key: what the function allows, what it does not, what is said about it.

use super::*;

fn begun() -> Negotiation {
    Negotiation::begin(&Wishes::default(), SessionType::Normal, true).0
}

fn taken(key: &str, value: &str) -> Result<(SessionParameters, Reason), LoginError> {
    let mut negotiation = begun();
    negotiation.take(key, value, &mut Vec::new())?;
    let traced =
        negotiation.trace().into_iter().find(|traced| traced.name == key).expect("the key was taken");
    Ok((negotiation.session(), traced.reason))
}

#[test]
fn functions_allow_what_they_give() {
    let (session, reason) = taken("MaxBurstLength", "262144").unwrap();
    assert_eq!((session.max_burst_length, reason), (262_144, Reason::TargetWantsLess));
    let (session, reason) = taken("DefaultTime2Wait", "5").unwrap();
    assert_eq!((session.default_time2wait_s, reason), (5, Reason::TargetWantsMore));
    let (session, reason) = taken("InitialR2T", "Yes").unwrap();
    assert!(session.initial_r2t && reason == Reason::TargetWantsMore);
    let (session, reason) = taken("ImmediateData", "No").unwrap();
    assert!(!session.immediate_data && reason == Reason::TargetWantsLess);
    assert_eq!(taken("InitialR2T", "No").unwrap().1, Reason::Agreed);
    assert_eq!(taken("HeaderDigest", "CRC32C").unwrap().1, Reason::TargetsChoice);
}

#[test]
fn functions_forbid_what_they_cannot_give() {
    // We offered DataPDUInOrder=Yes, whose function is Or; No cannot be its result.
    for (key, value) in [("DataPDUInOrder", "No"), ("MaxConnections", "2"), ("DefaultTime2Retain", "21")] {
        let error = taken(key, value).unwrap_err();
        assert!(error.to_string().contains("no result that the key's function allows"), "{error}");
    }
}

#[test]
fn a_required_digest_has_to_be_agreed_to() {
    let wishes = Wishes { header_digest: super::super::DigestWish::Required, ..Wishes::default() };
    for answer in [None, Some("Reject"), Some("NotUnderstood")] {
        let (mut negotiation, _) = Negotiation::begin(&wishes, SessionType::Normal, true);
        if let Some(answer) = answer {
            negotiation.take("HeaderDigest", answer, &mut Vec::new()).unwrap();
        }
        let error = negotiation.connection().unwrap_err();
        assert!(error.to_string().contains("CRC32C is required"), "{error}");
    }
}

#[test]
fn bursts_keep_their_order() {
    let mut negotiation = begun();
    negotiation.take("MaxBurstLength", "4096", &mut Vec::new()).unwrap();
    negotiation.take("FirstBurstLength", "262144", &mut Vec::new()).unwrap();
    assert_eq!(negotiation.session().first_burst_length, 4096);
}
