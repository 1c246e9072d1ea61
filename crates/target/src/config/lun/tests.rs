//! The grammar of `--lun`, its messages, and that what is printed parses again.

use lunette_cases::cases;
use proptest::prelude::*;

use super::*;

fn flag(text: &str) -> LunFlag {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn unit(text: &str) -> UnitConfig {
    flag(text).unit
}

fn file(path: &str, create_bytes: Option<u64>) -> StoreSpec {
    StoreSpec::File { path: path.into(), create_bytes }
}

#[test]
fn three_words_are_enough() {
    let flag = flag("disk0.img");
    assert_eq!(flag.number, None);
    assert_eq!(flag.unit.store, file("disk0.img", None));
    assert_eq!(flag.unit.write_mode, WriteMode::Through);
    assert_eq!(flag.unit.engine, EngineKind::Auto);
    assert!(!flag.unit.read_only);
    assert_eq!(flag.unit.block_length_bytes, None);
}

#[test]
fn numbers_stores_and_options_are_read() {
    let parsed = flag(
        "7=file:vm.img,size=20G,block=4096,protection=3,provisioning=thick,write=back,engine=sync,serial=A-1,vendor=ACME,product=A B",
    );
    assert_eq!(parsed.number, Some(7));
    assert_eq!(parsed.unit.store, file("vm.img", Some(20 << 30)));
    assert_eq!(parsed.unit.block_length_bytes, Some(4096));
    assert_eq!(parsed.unit.protection, Some(ProtectionType::Type3));
    assert_eq!(parsed.unit.provisioning, Provisioning::Thick);
    assert_eq!(parsed.unit.write_mode, WriteMode::Back);
    assert_eq!(parsed.unit.engine, EngineKind::Sync);
    assert_eq!(parsed.unit.serial.as_deref(), Some("A-1"));
    assert_eq!(parsed.unit.vendor.as_deref(), Some("ACME"));
    assert_eq!(parsed.unit.product.as_deref(), Some("A B"));
    assert_eq!(unit("1=mem:1G").store, StoreSpec::Memory { size_bytes: 1 << 30 });
    assert_eq!(unit("2=null:1T").store, StoreSpec::Null { size_bytes: 1 << 40 });
    let device = unit("3=/dev/loop0,ro");
    assert_eq!(device.store, StoreSpec::BlockDevice { path: "/dev/loop0".into() });
    assert!(device.read_only);
}

#[test]
fn a_number_is_digits_before_the_first_equals_sign() {
    assert_eq!(flag("0=a.img").number, Some(0));
    assert_eq!(flag("a=b.img").unit.store, file("a=b.img", None));
    assert_eq!(flag("1=2=b.img").unit.store, file("2=b.img", None));
    assert_eq!(flag("file:1=b.img").unit.store, file("1=b.img", None));
    assert_eq!(flag("=b.img").unit.store, file("=b.img", None));
}

#[test]
fn commas_are_escaped() {
    assert_eq!(unit(r"a\,ro.img").store, file("a,ro.img", None));
    assert_eq!(unit(r"a\\,ro").store, file(r"a\", None));
    assert!(unit(r"a\\,ro").read_only);
    assert_eq!(unit(r"a\b\").store, file(r"a\b\", None));
    assert_eq!(unit(r"a,serial=1\,2").serial.as_deref(), Some("1,2"));
}

#[test]
fn errors_point_at_the_place() {
    let shown = |text: &str| text.parse::<LunFlag>().unwrap_err().to_string();
    assert_eq!(
        shown("0=vm.img,wirte=back"),
        "\"wirte\" is not an option; options are ro, removable, size=, block=, protection=, provisioning=, write=, engine=, serial=, vendor=, product= \
         (a comma of a path is written \\,)\n  0=vm.img,wirte=back\n           ^^^^^"
    );
    assert_eq!(
        shown("vm.img,size=10GB"),
        "\"GB\" is not a unit of size; use K, M, G, T or P (each 1024 times the one before), for example 10G\n  \
         vm.img,size=10GB\n              ^^^^"
    );
    assert_eq!(
        shown("3=men:1G"),
        "men: is not a kind of store; there are file:PATH, device:PATH, mem:SIZE and null:SIZE (an image with a \
         colon in its name is given as file:men:...)\n  3=men:1G\n    ^^^"
    );
    assert_eq!(
        shown("99999=vm.img"),
        "99999 is not a LUN; they are numbered 0 to 16383\n  99999=vm.img\n  ^^^^^"
    );
    assert_eq!(
        shown("vm.img,engine=magic"),
        "engine=magic is not known; use auto, sync, threads, direct or uring\n  vm.img,engine=magic\n                ^^^^^"
    );
}

#[test]
fn each_fault_is_named() {
    for (text, part) in [
        ("", "the path is missing"),
        ("5=", "the path is missing"),
        ("file:,ro", "the path is missing"),
        ("mem", "mem needs its size, as in mem:1G"),
        ("null:", "null needs its size, as in null:1G"),
        ("mem:lots", "a size is a number"),
        ("mem:0", "the size is zero"),
        ("mem:1G,size=1G", "behind its colon"),
        ("null:1G,size=1G", "behind its colon"),
        ("/dev/sdz,size=1G", "a block device has its own size"),
        ("a.img,", "there is no option behind this comma"),
        ("a.img,,ro", "there is no option behind this comma"),
        ("a.img,ro=yes", "ro stands alone"),
        ("a.img,ro,ro", "ro is given twice"),
        ("a.img,size=1G,size=2G", "size is given twice"),
        ("a.img,size", "size needs a value, as in size=10G"),
        ("a.img,vendor", "vendor needs a value, as in vendor=ACME"),
        ("a.img,size=", "a size is a number"),
        ("a.img,block=1024", "512 or 4096"),
        ("a.img,write=never", "use through"),
        ("a.img,engine=warp", "use auto, sync"),
        ("a.img,serial=", "1 to 64 printable"),
        ("a.img,vendor=TOOLONG89", "1 to 8 printable"),
        ("a.img,product=12345678901234567", "1 to 16 printable"),
        ("a\0.img", "NUL"),
    ] {
        let error = text.parse::<LunFlag>().expect_err(text).to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn examples_in_messages_are_good() {
    for key in ["size", "block", "write", "engine", "serial", "vendor", "product"] {
        assert!(format!("a.img,{}", example(key)).parse::<LunFlag>().is_ok(), "{key}");
        assert!(example(key).starts_with(key) && OPTIONS.contains(&format!("{key}=")), "{key}");
    }
}

#[test]
fn free_numbers_are_dealt_out_from_the_lowest() {
    let flags = ["a", "1=b", "c", "0=d", "e"].map(flag).to_vec();
    let numbers: Vec<u16> =
        LunFlag::number_all(flags).expect("there are enough").iter().map(|unit| unit.lun).collect();
    assert_eq!(numbers, [2, 1, 3, 0, 4]);
    let too_many = vec![flag("a"); usize::from(LUN_MAX) + 2];
    assert!(LunFlag::number_all(too_many).unwrap_err().to_string().contains("at most 16384"));
}

fn any_store() -> impl Strategy<Value = StoreSpec> {
    let path = || "[^\0]{1,12}|[0-9]=[a-z]|(mem|null|file|x):[0-9]{0,2}|/dev/[a-z]{1,3}";
    prop_oneof![
        (path(), proptest::option::of(1..=i64::MAX as u64))
            .prop_map(|(path, create_bytes)| file(&path, create_bytes)),
        path().prop_map(|path| StoreSpec::BlockDevice { path: path.into() }),
        (1..=i64::MAX as u64).prop_map(|size_bytes| StoreSpec::Memory { size_bytes }),
        (1..=i64::MAX as u64).prop_map(|size_bytes| StoreSpec::Null { size_bytes }),
    ]
}

fn any_text(length_max: usize) -> impl Strategy<Value = Option<String>> {
    let text = format!("[!-~]([ -~]{{0,{}}}[!-~])?", length_max - 2);
    proptest::option::of(proptest::string::string_regex(&text).unwrap())
}

prop_compose! {
    fn any_flag()(
        number in proptest::option::of(0..=LUN_MAX),
        store in any_store(),
        read_only: bool,
        removable: bool,
        block_length_bytes in proptest::option::of(prop_oneof![Just(512), Just(4096)]),
        protection in proptest::option::of(prop_oneof![Just(ProtectionType::Type1), Just(ProtectionType::Type3)]),
        provisioning in prop_oneof![Just(Provisioning::Thin), Just(Provisioning::Thick)],
        write_mode in prop_oneof![Just(WriteMode::Through), Just(WriteMode::Back)],
        engine in proptest::sample::select(&EngineKind::ALL[..]),
        serial in any_text(SERIAL_LENGTH_MAX),
        vendor in any_text(VENDOR_LENGTH_MAX),
        product in any_text(PRODUCT_LENGTH_MAX),
    ) -> LunFlag {
        let unit = UnitConfig {
            lun: 0, store, read_only, removable, block_length_bytes, protection, provisioning, write_mode, engine, serial, vendor, product,
        };
        LunFlag { number, unit }
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn what_is_printed_parses_again(flag in any_flag()) {
        prop_assert_eq!(flag.to_string().parse::<LunFlag>(), Ok(flag));
    }

    #[test]
    fn any_text_has_an_answer(text in "([0-9]{1,3}=)?(file:|mem:|null:|device:)?\\PC{0,20}([,\\\\=]\\PC{0,8}){0,4}") {
        match text.parse::<LunFlag>() {
            Ok(flag) => prop_assert_eq!(flag.to_string().parse::<LunFlag>(), Ok(flag)),
            Err(error) => prop_assert!(error.to_string().lines().count() >= 3),
        }
    }
}
