//! `lunette advise` where nothing is measured: the model's word, as text and as JSON, and what is refused.

use std::process::{Command, Output};

use serde_json::Value;

fn advise(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lunette"));
    command.arg("advise").args(arguments).output().expect("the binary runs")
}

fn told(arguments: &[&str]) -> Value {
    let output = advise(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn a_lonely_solicited_write_is_lifted_to_the_line() {
    let arguments = [
        "--rtt",
        "50ms",
        "--rate",
        "155M",
        "--settings",
        "rfc",
        "--read",
        "0",
        "--depth",
        "1",
        "--tcp-window",
        "10000000",
    ];
    let told = told(&arguments);
    assert_eq!((&told["limit"], &told["write_round_trips"]), (&"command-window".into(), &2.into()));
    let steps = told["steps"].as_array().expect("steps");
    assert_eq!(steps.len(), 2, "{told}");
    assert_eq!(steps[1]["limit"], "link-rate");
    let rate = |value: &Value| value["mb_per_s"].as_f64().expect("a rate");
    assert!(rate(&told) < 1.0 && rate(&steps[0]) < 2.0 && rate(&steps[1]) > 18.0, "{told}");
    assert!(told["proof"].is_null() && told["seen"].is_null());
    let output = advise(&arguments);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(
        text.contains("MB/s are to be expected, limited by command-window; the line carries 18.70 MB/s"),
        "{text}"
    );
    assert!(text.contains("\n20 commands under way  ") && text.contains("InitialR2T --value No"), "{text}");
}

#[test]
fn tcp_windows_losses_and_full_lines_are_told_apart() {
    let narrow = told(&["--link", "oc3-50", "--depth", "64", "--tcp-window", "65536"]);
    assert_eq!(narrow["limit"], "tcp-window");
    let systems = narrow["commands"].as_array().expect("commands").iter();
    assert!(
        systems
            .filter_map(|commands| commands["system"].as_str())
            .any(|system| system.starts_with("A Linux host"))
    );
    let path = ["--link", "rate=155M,rtt=50ms,loss=0.1%", "--depth", "256", "--tcp-window", "100000000"];
    let lossy = |read: &'static str| [&path[..], &["--read", read]].concat();
    let reads = told(&lossy("100"));
    assert_eq!((&reads["limit"], &reads["is_upper_bound"]), (&"loss".into(), &false.into()));
    let change = reads["steps"][0]["change"].as_str().expect("a change");
    assert!(change.ends_with(" connections") && reads["steps"][0]["is_upper_bound"] == true, "{change}");
    // Writes wait for each other, and nobody knows what more connections bring them.
    let writes = told(&lossy("0"));
    assert_eq!((&writes["limit"], &writes["steps"]), (&"loss".into(), &Value::Array(Vec::new())));
    assert_eq!(writes["connections_may_help"], 32);
    let text = |arguments: &[&str]| String::from_utf8(advise(arguments).stdout).expect("text");
    let told_of = text(&lossy("0"));
    assert!(told_of.contains("No other setting lifts that.\nMore connections, up to 32, may"), "{told_of}");
    assert!(text(&lossy("100")).contains(" connections  at most 18."), "reads");
    let several = text(&[&lossy("0")[..], &["--connections", "8"]].concat());
    assert!(several.contains("\nat most ") && several.contains(" MB/s are to be expected"), "{several}");
    let full = told(&["--link", "oc3-2", "--workload", "max-throughput"]);
    assert_eq!((&full["limit"], &full["steps"]), (&"link-rate".into(), &Value::Array(Vec::new())));
}

#[test]
fn reads_have_the_way_down_and_writes_the_way_up() {
    let told = |link: &str, read: &str| {
        told(&["--link", link, "--read", read, "--depth", "256", "--tcp-window", "100000000"])
    };
    let is = |value: &Value, expected: f64| {
        let value = value.as_f64().expect("a number");
        assert!((value / expected - 1.0).abs() < 0.01, "{value} instead of {expected}");
    };
    // 1448 bytes of data in a packet of 1500: 0.12 MB/s for each Mb/s.
    let line = |mbit: f64| mbit / 8.0 * 1448.0 / 1500.0;
    let narrow = "up.rate=10M,down.rate=100M,rtt=20ms";
    for (read, mbit) in [("100", 100.0), ("0", 10.0)] {
        let told = told(narrow, read);
        is(&told["mb_per_s"], line(mbit));
        assert_eq!(told["limit"], "link-rate", "{told}");
    }
    // 12.1 MB/s were expected here before acknowledgements counted, and 6 were measured.
    let mix = told(narrow, "90");
    let rate = mix["mb_per_s"].as_f64().expect("a number");
    assert!(rate > 5.0 && rate < 7.0 && mix["limit"] == "link-rate", "{mix}");
    // On the way up also go acknowledgements of 52 bytes for every second segment.
    let half = told("up.rate=10M,rtt=20ms", "50");
    let up_bytes = 0.5 * 1500.0 / 1448.0 + 0.5 * 52.0 / (2.0 * 1448.0);
    is(&half["mb_per_s"], 10.0 / 8.0 / up_bytes);
    is(&half["path"]["up"]["line_mb_per_s"], line(10.0));
    assert!(half["path"]["down"]["rate_bits_per_s"].is_null(), "{half}");
    // Data that is lost on the way up is that of writes.
    let lossy = "rate=100M,rtt=50ms,up.loss=1%";
    is(&told(lossy, "100")["mb_per_s"], line(100.0));
    assert_eq!(told(lossy, "0")["limit"], "loss");
    let output = advise(&["--link", "lte"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.starts_with("path: 15.0 Mb/s up, 50.0 Mb/s down, 45.000 ms there and back"), "{text}");
    assert!(text.contains(", 0.1000 % lost, "), "{text}");
    assert!(text.contains("the line carries 1.81 MB/s of data up, 6.02 MB/s of data down."), "{text}");
}

#[test]
fn damage_and_bursts_count_and_the_rest_is_named() {
    let of = |loss: &str| told(&["--link", &format!("rate=155M,rtt=50ms,{loss}"), "--read", "100"]);
    let rate = |told: &Value| told["mb_per_s"].as_f64().expect("a rate");
    let (lost, damaged) = (of("loss=0.1%"), of("corrupt=0.1%"));
    assert_eq!((rate(&lost), &damaged["limit"]), (rate(&damaged), &"loss".into()), "{damaged}");
    // As many are lost, five at a time.
    let bursts = of("loss=0.02%/20%/100%");
    assert!(rate(&bursts) > rate(&lost) * 2.0, "{bursts}");
    assert_eq!(lost["not_modelled"], Value::Array(Vec::new()));
    let odd = ["--link", "rate=155M,rtt=50ms,jitter=1ms,up.reorder=1%/5ms", "--read", "100"];
    assert_eq!(told(&odd)["not_modelled"], Value::from(vec!["jitter", "reorder"]));
    let text = String::from_utf8(advise(&odd).stdout).expect("text");
    assert!(text.contains("\nnot in the model: jitter, reorder of the link\n"), "{text}");
    assert_eq!(
        (&bursts["is_upper_bound"], &bursts["not_modelled"]),
        (&false.into(), &Value::Array(Vec::new()))
    );
    // A hundred packets in a row are all that TCP has under way.
    let long =
        ["--link", "rate=155M,rtt=50ms,jitter=1ms,loss=0.01%/1%/100%", "--read", "100", "--depth", "32"];
    let named = told(&long);
    assert_eq!(named["not_modelled"], Value::from(vec!["jitter", "timeouts"]));
    assert_eq!(named["is_upper_bound"], true);
    let text = String::from_utf8(advise(&long).stdout).expect("text");
    assert!(
        text.contains("jitter of the link\nnot in the model: timeouts of TCP") && text.contains("at most 3."),
        "{text}"
    );
    for lost in ["loss=100%", "loss=1%/0%/100%", "corrupt=100%", "up.loss=100%"] {
        let output = advise(&["--link", &format!("rate=155M,rtt=50ms,{lost}")]);
        let told = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.code() == Some(2) && told.contains("loses all packets"), "{lost}: {told}");
    }
}

#[test]
fn a_workload_is_a_profile_or_sizes_and_other_flags_change_it() {
    let workload = |arguments: &[&str]| {
        let told = told(&[&["--link", "oc3-50"], arguments].concat());
        let (workload, window) = (&told["workload"], &told["settings"]["window"]);
        (workload["sizes"].clone(), workload["read_percent"].clone(), window.clone())
    };
    let is = |sizes: &str, read: u64, window: u64| (sizes.into(), read.into(), window.into());
    assert_eq!(workload(&[]), is("64K", 50, 32));
    assert_eq!(workload(&["--workload", "web-server"]), is("8K", 95, 4));
    // As `lunette bench` has it.
    assert_eq!(workload(&["--profile", "web-server"]), is("8K", 95, 4));
    let changed = ["--workload", "web-server", "--depth", "9", "--read", "10", "--size", "1M"];
    assert_eq!(workload(&changed), is("1M", 10, 9));
    assert_eq!(workload(&["--workload", "4K:60,64K:40"]), is("4K:60,64K:40", 50, 32));
    let output = advise(&["--link", "oc3-50", "--workload", "4K:60,64K:40", "--depth", "1"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(
        text.contains("workload: 4K:60,64K:40, 28672 bytes on average, 50 % reads, 1 under way"),
        "{text}"
    );
    assert!(text.contains("Alone and on average, a read takes 51.5"), "{text}");
    assert!(text.contains("lunette attach URL DIRECTORY --depth "), "{text}");
}

/// open-iscsi and ESXi give their connections buffers of their own, which do not grow: over a long line these are the limit, whatever this
/// machine's TCP may.
#[test]
fn initiators_with_fixed_buffers_are_told_how_to_lift_them() {
    let of = |whose: &str, read: &str| {
        let line = ["--rate", "155M", "--rtt", "50ms", "--depth", "64", "--read", read];
        told(&[&line[..], &["--settings", whose]].concat())
    };
    let number = |value: &Value| value.as_f64().expect("a number");
    for (whose, down, up, cure) in [
        ("linux", 524_288.0, 786_432.0, "node.conn[0].tcp.window_size --value 0"),
        ("esxi", 262_144.0, 614_400.0, "--option=/ISCSI/SocketRcvBufLenKB --int-value="),
    ] {
        for (read, way, most) in [("100", "down", down), ("0", "up", up)] {
            let told = of(whose, read);
            let window = number(&told["path"][way]["tcp_window_bytes"]);
            assert!(window <= most, "{told}");
            assert_eq!(told["limit"], "tcp-window", "{told}");
            assert!((number(&told["mb_per_s"]) / (window / 0.05e6) - 1.0).abs() < 0.01, "{told}");
            let step = &told["steps"][0];
            let change = step["change"].as_str().expect("a change");
            assert!(change.starts_with("TCP buffers for ") && step["limit"] == "link-rate", "{told}");
            assert!(told["commands"].to_string().contains(cure), "{told}");
        }
    }
    // What is given is what there is.
    let line = ["--rate", "155M", "--rtt", "50ms", "--depth", "64", "--read", "100"];
    let given = told(&[&line[..], &["--tcp-window", "3145728"]].concat());
    assert_eq!(
        (&given["path"]["down"]["tcp_window_bytes"], &given["limit"]),
        (&3_145_728.into(), &"link-rate".into())
    );
    let output = advise(&[&line[..], &["--settings", "esxi"]].concat());
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains(", TCP windows of ") && text.contains(" bytes up, "), "{text}");
    assert!(text.contains(" MB/s are to be expected, limited by tcp-window"), "{text}");
}

#[test]
fn each_initiator_has_its_own_defaults() {
    for (whose, first_burst, max_burst, r2ts) in [
        ("rfc", 65_536, 262_144, 1),
        ("linux", 262_144, 16_776_192, 1),
        ("windows", 65_536, 262_144, 16),
        ("esxi", 262_144, 262_144, 1),
        ("lunette", 262_144, 16_773_120, 16),
    ] {
        let told = told(&["--link", "oc3-50", "--settings", whose]);
        let settings = &told["settings"];
        assert_eq!(settings["first_burst_length"], first_burst, "{whose}");
        assert_eq!(settings["max_burst_length"], max_burst, "{whose}");
        assert_eq!(settings["max_outstanding_r2t"], r2ts, "{whose}");
        assert_eq!(settings["initial_r2t"], whose == "rfc", "{whose}");
    }
}

/// 4 GiB under way are more than is tried, and some may make no network at all: both get the advice, and the reason.
#[test]
fn an_advice_without_its_proof_is_given_all_the_same() {
    let arguments = ["--rtt", "50ms", "--rate", "10G", "--depth", "4096", "--size", "1M", "--prove"];
    let output = advise(&arguments);
    let (text, reason) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.code() == Some(125) && reason.contains("there is no proof: "), "{reason}");
    assert!(text.contains("MB/s are to be expected") && !text.contains("emulated"), "{text}");
    let output = advise(&[&arguments[..], &["--json"]].concat());
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let reason: Value = serde_json::from_slice(&output.stderr).expect("JSON");
    assert_eq!((&told["settings"]["window"], &told["proof"]), (&4096.into(), &Value::Null));
    assert_eq!(reason["status"], 125);
}

#[test]
fn a_long_first_burst_raises_the_burst_as_well() {
    let arguments = ["--rtt", "50ms", "--rate", "1G", "--read", "0", "--size", "512K", "--depth", "4"];
    let told = told(&[&arguments[..], &["--settings", "rfc"]].concat());
    let change = told["steps"][0]["change"].as_str().expect("a change");
    assert!(change.ends_with("FirstBurstLength=524288, MaxBurstLength=524288"), "{change}");
}

#[test]
fn what_is_no_network_and_no_workload_is_refused() {
    for (arguments, reason) in [
        (&["--rtt", "50ms"][..], "--rate <RATE>"),
        (&["--rtt", "50ms", "--rate", "fast"], "a rate is a number of bits per second"),
        (&["--rtt", "50ms,loss=1%", "--rate", "1G"], "--link takes a whole link"),
        (&["--link", "rtt=50ms"], "a link without a rate where its data goes has no limit"),
        (&["--link", "up.rate=1G,rtt=50ms", "--read", "100"], "a link without a rate where its data goes"),
        (&["--link", "oc3-50", "--rate", "1G"], "cannot be used with"),
        (&["--link", "oc3-50", "--size", "sql-64k"], "is no mix of sizes"),
        (&["--link", "oc3-50", "--workload", "sql"], "is no profile; there are max-throughput, "),
        (&["--link", "oc3-50", "--workload", "sql"], "sizes with their weights, as 4K:60,64K:40"),
        (&["--link", "oc3-50", "--workload", "4K:"], "is no mix of sizes"),
        (&["--link", "oc3-50", "--settings", "bsd"], "windows"),
        (&["--link", "oc3-50", "--seed", "7"], "--prove"),
        (&["--link", "oc3-50", "--depth", "0"], "0 is not in 1..=4096"),
    ] {
        let output = advise(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && text.contains(reason), "{arguments:?}: {text}");
    }
}
