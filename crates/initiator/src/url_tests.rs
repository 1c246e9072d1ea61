//! URLs of all forms, and what is wrong with wrong ones.

use lunette_cases::cases;
use proptest::prelude::*;

use super::*;

const TARGET: &str = "iqn.2026-11.io.lunette:disk0";

fn url(text: &str) -> TargetUrl {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn error(text: &str) -> UrlError {
    text.parse::<TargetUrl>().expect_err(text)
}

#[test]
fn the_plain_form() {
    let found = url(&format!("iscsi://storage.example.com/{TARGET}/0"));
    assert_eq!(found.portal, Portal::new("storage.example.com", 3260));
    assert_eq!((found.target.as_str(), found.lun, found.credentials), (TARGET, Lun(0), None));
    assert_eq!(url(&format!("iscsi://192.0.2.7:860/{TARGET}/16383")).lun.number(), 16383);
    assert_eq!(url(&format!("iscsi://[2001:db8::7]:860/{TARGET}/1")).portal.host, "2001:db8::7");
    assert_eq!(url("iscsi://h/iqn.2026-11.io.lunette%3Adisk0/0").target.as_str(), TARGET);
}

#[test]
fn users_and_secrets() {
    for text in ["alice%a+secret", "alice:a+secret", "alice%a%2Bsecret"] {
        let credentials = url(&format!("iscsi://{text}@h/{TARGET}/0")).credentials.unwrap();
        assert_eq!(credentials.own.name, "alice");
        assert_eq!(credentials.own.secret, Secret::new("a+secret"));
        assert!(!credentials.is_required && credentials.target.is_none());
        assert_eq!(credentials.algorithms, ChapAlgorithm::ALL);
    }
    let text = format!(
        "iscsi://alice%one@h/{TARGET}/0?auth=chap&chap=sha256,md5&target_user=storage&target_password=tw%6f"
    );
    let credentials = url(&text).credentials.unwrap();
    assert!(credentials.is_required);
    assert_eq!(credentials.algorithms, [ChapAlgorithm::Sha256, ChapAlgorithm::Md5]);
    let target = credentials.target.unwrap();
    assert_eq!((target.name.as_str(), target.secret), ("storage", Secret::new("two")));
}

#[test]
fn secrets_from_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("secret");
    std::fs::write(&path, "from a file\n").unwrap();
    let shown = path.display();
    let credentials = url(&format!("iscsi://alice@h/{TARGET}/0?password_file={shown}")).credentials.unwrap();
    assert_eq!(credentials.own.secret, Secret::new("from a file"));
    let twice = error(&format!("iscsi://alice%x@h/{TARGET}/0?password_file={shown}"));
    assert!(matches!(twice, UrlError::Incomplete(_)), "{twice}");
    assert!(matches!(
        error(&format!("iscsi://a@h/{TARGET}/0?password_env=LUNETTE_NOT_SET")),
        UrlError::Secret(_)
    ));
}

#[test]
fn other_keys_become_options() {
    let text = format!(
        "iscsi://h/{TARGET}/0?header_digest=crc32c&data_digest=none,crc32c&connections=4&error_recovery_level=2\
         &initiator_name=iqn.2026-11.io.lunette:me&isid=8000000001ff&security_stage=always"
    );
    let options = url(&text).options();
    assert_eq!(options.wishes.header_digest, DigestWish::Required);
    assert_eq!(options.wishes.data_digest, DigestWish::Accepted);
    assert_eq!((options.connections, options.wishes.error_recovery_level), (4, 2));
    assert_eq!(options.initiator_name.as_str(), "iqn.2026-11.io.lunette:me");
    assert_eq!(options.portals[0].host, "h");
    assert_eq!(options.isid, Some(Isid([0x80, 0, 0, 0, 1, 0xff])));
    assert_eq!(options.beside(1).isid, Some(Isid([0x80, 0, 0, 0, 2, 0])));
    assert!(!options.skips_security);
    let plain = url(&format!("iscsi://h/{TARGET}/0")).options();
    assert_eq!(plain.beside(1).isid, None, "each has a random one");
    assert!(plain.skips_security);
    assert!(url(&format!("iscsi://h/{TARGET}/0?security_stage=skipped")).options().skips_security);
}

#[test]
fn keys_of_data_transfer_are_offered_as_the_url_has_them() {
    let text = format!(
        "iscsi://h/{TARGET}/0?initial_r2t=yes&immediate_data=no&first_burst_length=65536&max_burst_length=262144\
         &max_recv_data_segment_length=131072&max_outstanding_r2t=1"
    );
    let wishes = url(&text).options().wishes;
    assert!(wishes.initial_r2t && !wishes.immediate_data);
    assert_eq!((wishes.first_burst_length, wishes.max_burst_length), (65_536, 262_144));
    assert_eq!((wishes.max_recv_data_segment_length, wishes.max_outstanding_r2t), (131_072, 1));
    // One of the two lengths alone leaves them in their order (RFC 7143, 13.14).
    for (key, first, max) in
        [("max_burst_length=512", 512, 512), ("first_burst_length=16777215", 16_777_215, 16_777_215)]
    {
        let wishes = url(&format!("iscsi://h/{TARGET}/0?{key}")).options().wishes;
        assert_eq!((wishes.first_burst_length, wishes.max_burst_length), (first, max), "{key}");
    }
}

#[test]
fn wrong_urls_are_told_apart() {
    for (text, word) in [
        ("http://h/iqn.a/0", "begins with iscsi://"),
        ("iscsi://h", "names no target"),
        ("iscsi://h/iqn.a", "names no target"),
        ("iscsi://h//0", "names no target"),
        ("iscsi:///iqn.a/0", "no address"),
        ("iscsi://h:0/iqn.a/0", "no address"),
        ("iscsi://h,1/iqn.a/0", "no address"),
        ("iscsi://h/iqn.a/", "no logical unit number"),
        ("iscsi://h/iqn.a/16384", "no logical unit number"),
        ("iscsi://h/iqn.a/+1", "no logical unit number"),
        ("iscsi://h/iqn a/1", "white"),
        ("iscsi://h/iqn.%zz/1", "hexadecimal"),
        ("iscsi://h/iqn.a/0?speed=fast", "none of auth"),
        ("iscsi://h/iqn.a/0?auth=krb5", "chap, or none"),
        ("iscsi://h/iqn.a/0?auth=chap", "needs a user"),
        ("iscsi://a@h/iqn.a/0", "no secret"),
        ("iscsi://a%b@h/iqn.a/0?auth=none", "chap, or none"),
        ("iscsi://a%bb@h/iqn.a/0?target_user=x", "belong together"),
        ("iscsi://a%bb@h/iqn.a/0?chap=md4", "md5, sha1"),
        ("iscsi://h/iqn.a/0?connections=33", "1 to 32"),
        ("iscsi://h/iqn.a/0?isid=8000000000001", "12 hexadecimal"),
        ("iscsi://h/iqn.a/0?isid=me", "12 hexadecimal"),
        ("iscsi://h/iqn.a/0?security_stage=no", "always or skipped"),
        ("iscsi://h/iqn.a/0?initial_r2t=1", "yes or no"),
        ("iscsi://h/iqn.a/0?max_burst_length=511", "512 to 16777215"),
        ("iscsi://h/iqn.a/0?max_recv_data_segment_length=16777216", "512 to 16777215"),
        ("iscsi://h/iqn.a/0?max_outstanding_r2t=0", "1 to 65535"),
        ("iscsi://h/iqn.a/0?first_burst_length=1024&max_burst_length=512", "may not be longer"),
        ("iscsi://h/iqn.a/0?header_digest=crc64", "crc32c"),
        ("iscsi://h/iqn.a/0?connections=1&connections=1", "twice"),
    ] {
        let found = error(text).to_string();
        let is_named = found.contains(word) || (word == "white" && found.contains("character"));
        assert!(is_named, "{text}: {found}");
    }
}

#[test]
fn no_secret_is_shown() {
    let found =
        url(&format!("iscsi://alice%hunter22@h/{TARGET}/0?target_user=storage&target_password=swordfish"));
    let shown = format!("{found} {found:?} {:?}", found.options());
    assert!(!shown.contains("hunter22") && !shown.contains("swordfish"), "{shown}");
    let wrong = error("iscsi://alice%hunter22@h/iqn.a/x?target_user=s&target_password=swordfish");
    assert!(!format!("{wrong} {wrong:?}").contains("hunter22"));
    let wrong = error("iscsi://alice%hunter%2@h/iqn.a/0");
    assert!(!format!("{wrong} {wrong:?}").contains("hunter"));
}

/// Each as it may be typed, right or wrong in some other place, and what is shown of it.
#[test]
fn secrets_are_hidden_in_whatever_is_no_url() {
    for (text, shown) in [
        ("iscsi://alice%S3cret@h/iqn.x:a/x", "iscsi://alice%***@h/iqn.x:a/x"),
        (
            "iscsi://alice:S3cret@[2001:db8::7]:3260/iqn.x:a/x",
            "iscsi://alice:***@[2001:db8::7]:3260/iqn.x:a/x",
        ),
        ("iscsi://a%S3/c:r@e?t@h/iqn.x:a/0", "iscsi://a%***@e?***"),
        ("iscsi://alice%S3@cret@h/iqn.x:a/0", "iscsi://alice%***@h/iqn.x:a/0"),
        ("iscsi://alice%S3?cret@h/iqn.x:a/0", "iscsi://alice%***"),
        ("iscsi://alice%S3cret/iqn.x:a/0", "iscsi://alice%***"),
        ("iscsi://alice:S3cret/iqn.x:a/0", "iscsi://alice:***"),
        ("scsi://alice%S3cret@h/iqn.x:a/0", "scsi://alice%***@h/iqn.x:a/0"),
        ("alice%S3cret@h/iqn.x:a/0?target_password=S3cret", "alice%***@h/iqn.x:a/0?target_password=***"),
        ("iscsi://alice@h/iqn.x:a/0", "iscsi://alice@h/iqn.x:a/0"),
        ("iscsi://h:99999/iqn.x%3Aa/x?auth=no", "iscsi://h:99999/iqn.x%3Aa/x?auth=no"),
        ("iscsi://[fe80::1%eth0]:1/iqn.x:a/x", "iscsi://[fe80::1%eth0]:1/iqn.x:a/x"),
        (
            "iscsi://h/i/0?target_user=t&target_password=S3c&ret&password=S3cret&isid=7&S3cret",
            "iscsi://h/i/0?target_user=t&target_password=***&***&password=***&isid=7&***",
        ),
        ("iscsi://", "iscsi://"),
        ("a file: 5%", "a file: 5%"),
    ] {
        assert_eq!(without_secrets(text), shown);
    }
}

#[test]
fn what_is_wrong_with_a_url_shows_no_secret() {
    for text in [
        "iscsi://alice%S3cret@h/iqn.x:a/x",
        "iscsi://alice%S3cret/iqn.x:a/0",
        "iscsi://alice:S3cret/iqn.x:a/0",
        "iscsi://alice%a@S3cret@h/iqn.x:a/0",
        "iscsi://alice%a?S3cret@h/iqn.x:a/0",
        "iscsi://alice%a@h/iqn.x:a/0?target_user=t&target_password=a&S3cret",
        "iscsi://alice%a@h/iqn.x:a/0?password=S3cret",
    ] {
        let message = error(text).to_string();
        assert!(!message.contains("S3c"), "{text}: {message}");
    }
    assert!(error("iscsi://127.0.0.1:99999/iqn.x:a/0").to_string().contains("99999"));
}

#[test]
fn logical_units_have_two_forms() {
    assert_eq!(Lun(5).field(), LunField([0, 5, 0, 0, 0, 0, 0, 0]));
    assert_eq!(Lun(256).field(), LunField([0x41, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!((Lun::new(16383), Lun::new(16384)), (Some(Lun(16383)), None));
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn whatever_is_typed_behind_a_user_is_hidden(
        before in "(iscsi://)?[a-z]{0,5}", secret in "[a-z/?@&=:%]{0,8}", after in "@[a-z]{1,5}(/[a-z:.]{0,9}){0,2}",
    ) {
        let shown = without_secrets(&format!("{before}%{secret}S3CRET{after}"));
        prop_assert!(!shown.contains("S3CRET"), "{}", shown);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "(iscsi://)?[a-z%:@/?&=.0-9\\[\\]é-]{0,60}") {
        let _ = text.parse::<TargetUrl>();
    }

    #[test]
    fn what_is_shown_is_read_again(host in "[a-z][a-z0-9.]{0,20}", port in 1u16.., lun in 0u16..16384) {
        let found = url(&format!("iscsi://{host}:{port}/{TARGET}/{lun}"));
        prop_assert_eq!(url(&found.to_string()), found);
    }
}
