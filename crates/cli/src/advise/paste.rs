//! Changes as commands for the initiators that people have. Names, units, defaults and ranges are those of iscsid.conf (open-iscsi
//! 2.1), Microsoft's iSCSI initiator, and the parameters and advanced options of ESXi 7 and 8. Nothing is set below its default, and
//! what belongs to a whole host never below what it is.

use std::fmt::Display;

use lunette_target::config::Limits;
use lunette_workload::model::Settings;
use lunette_workload::model::advice::Change;
use serde::Serialize;

/// Commands for one system. What is not known here is in capitals.
#[derive(Debug, Serialize)]
pub(super) struct Commands {
    pub(super) system: &'static str,
    pub(super) lines: Vec<String>,
}

/// A change of these settings in words.
pub(super) fn words(change: Change, settings: &Settings) -> String {
    match change {
        Change::Unasked { first_burst_length } => {
            let burst = if first_burst_length > settings.max_burst_length {
                format!(", MaxBurstLength={first_burst_length}")
            } else {
                String::new()
            };
            format!("InitialR2T=No, ImmediateData=Yes, FirstBurstLength={first_burst_length}{burst}")
        }
        Change::Burst(bytes) => format!("MaxBurstLength={bytes}"),
        Change::OutstandingR2t(count) => format!("MaxOutstandingR2T={count}"),
        Change::Window(count) => format!("{count} commands under way"),
        Change::TcpWindow(bytes) => format!("TCP buffers for {bytes} bytes under way"),
        Change::Connections(count) => format!("{count} connections"),
    }
}

/// The commands of each system that has some, for this target, which lets so many commands in where it was asked.
pub(super) fn commands(changes: &[Change], target: &str, window: Option<u32>) -> Vec<Commands> {
    let gathered = |lines_of: &dyn Fn(Change) -> Vec<String>| {
        changes.iter().flat_map(|change| lines_of(*change)).collect::<Vec<_>>()
    };
    let all = [
        ("Linux, open-iscsi", linux_all(changes, target)),
        ("Windows, PowerShell; then restart", windows_all(changes, target)),
        ("ESXi, in its shell", esxi_all(changes)),
        ("Lunette as the initiator", gathered(&initiator)),
        ("Lunette as the target, in its configuration", target_table(changes, window)),
        ("A Linux host, at both ends", gathered(&tcp_buffers)),
    ];
    let told = all.into_iter().filter(|(_, lines)| !lines.is_empty());
    told.map(|(system, lines)| Commands { system, lines }).collect()
}

/// A value within what a system takes, and a remark where that is less than what is wanted.
fn within<T: Ord + Copy + Display>(wanted: T, max: T) -> (T, Option<String>) {
    let remark = (wanted > max).then(|| format!("# {max} is the most here, and less than {wanted}"));
    (wanted.min(max), remark)
}

/// node.session.cmds_max: a power of two, 128 by default, 2048 at most; node.session.queue_depth: 32 by default, 1024 at most.
const LINUX_COMMANDS: (u32, u32) = (128, 2048);
const LINUX_DEPTH: (u32, u32) = (32, 1024);
const LINUX_FIRST_BURST: u32 = 262_144;
const LINUX_MAX_BURST: u32 = 16_776_192;
/// `node.conn[0].tcp.window_size` by default, in bytes: SO_RCVBUF and SO_SNDBUF of each connection (usr/io.c), which do not grow then
/// (tcp(7), tcp_moderate_rcvbuf).
pub(super) const LINUX_WINDOW_SIZE: u64 = 512 << 10;

fn linux_all(changes: &[Change], target: &str) -> Vec<String> {
    let mut lines: Vec<String> = changes.iter().flat_map(|change| linux(*change, target)).collect();
    if !lines.is_empty() {
        lines.push(
            "# First unmount the disk, and stop what uses it: to log out takes it away, whoever writes to it"
                .to_owned(),
        );
        lines.push(format!("iscsiadm --mode node --targetname {target} --logout"));
        lines.push(format!("iscsiadm --mode node --targetname {target} --login"));
    }
    lines
}

fn linux(change: Change, target: &str) -> Vec<String> {
    let update = |name: &str, value: &str| {
        format!("iscsiadm --mode node --targetname {target} --op update --name node.{name} --value {value}")
    };
    let key = |name: &str, value: String| update(&format!("session.{name}"), &value);
    match change {
        Change::Unasked { first_burst_length } => {
            let first_burst_length = first_burst_length.max(LINUX_FIRST_BURST);
            let burst = (first_burst_length > LINUX_FIRST_BURST)
                .then(|| key("iscsi.MaxBurstLength", LINUX_MAX_BURST.to_string()));
            let first = [
                key("iscsi.InitialR2T", "No".to_owned()),
                key("iscsi.ImmediateData", "Yes".to_owned()),
                key("iscsi.FirstBurstLength", first_burst_length.to_string()),
            ];
            burst.into_iter().chain(first).collect()
        }
        Change::Burst(bytes) => vec![key("iscsi.MaxBurstLength", bytes.max(LINUX_MAX_BURST).to_string())],
        // The kernel takes powers of two alone.
        Change::OutstandingR2t(count) => {
            vec![key("iscsi.MaxOutstandingR2T", count.next_power_of_two().to_string())]
        }
        Change::Window(count) => {
            let (depth, remark) = within(count.max(LINUX_DEPTH.0), LINUX_DEPTH.1);
            let commands = count.clamp(LINUX_COMMANDS.0, LINUX_COMMANDS.1).next_power_of_two();
            let lines = [key("cmds_max", commands.to_string()), key("queue_depth", depth.to_string())];
            remark.into_iter().chain(lines).collect()
        }
        // A session has one connection there.
        Change::Connections(count) => vec![
            "# Each session is a disk of its own: only with multipathd, and mount the disk under /dev/mapper alone".to_owned(),
            "# Two mounts of one disk, on two of its sessions, destroy what is on it".to_owned(),
            key("nr_sessions", count.to_string()),
        ],
        // With a size of their own, connections have neither the host's buffers nor their growth.
        Change::TcpWindow(_) => vec![
            "# 0: as large as the host's TCP makes them".to_owned(),
            update("conn[0].tcp.window_size", "0"),
        ],
    }
}

/// MaxPendingRequests: 1 to 255, which is the default.
const WINDOWS_REQUESTS: u32 = 255;
const WINDOWS_FIRST_BURST: u32 = 65_536;
const WINDOWS_MAX_BURST: u32 = 262_144;
/// Where the initiator's parameters are: the instance of the class of SCSI adapters that is its driver, whose name is in many languages.
const WINDOWS_PARAMETERS: &str = r"$iscsi = (Get-ChildItem 'HKLM:\SYSTEM\CurrentControlSet\Control\Class\{4D36E97B-E325-11CE-BFC1-08002BE10318}' -ErrorAction SilentlyContinue | Where-Object { (Get-ItemProperty $_.PSPath).MatchingDeviceId -eq 'root\iscsiprt' }).PSPath + '\Parameters'";

fn windows_all(changes: &[Change], target: &str) -> Vec<String> {
    let mut lines: Vec<String> = changes.iter().flat_map(|change| windows(*change, target)).collect();
    if lines.iter().any(|line| line.contains("$iscsi")) {
        lines.insert(0, WINDOWS_PARAMETERS.to_owned());
    }
    lines
}

fn windows(change: Change, target: &str) -> Vec<String> {
    let set = |name: &str, value: u32| format!("Set-ItemProperty $iscsi {name} {value}");
    // A value that is not there is less than any.
    let raise = |name: &str, value: u32| {
        format!("if ((Get-ItemProperty $iscsi).{name} -lt {value}) {{ {} }}", set(name, value))
    };
    match change {
        Change::Unasked { first_burst_length } => {
            let burst = (first_burst_length > WINDOWS_MAX_BURST).then(|| raise("MaxBurstLength", first_burst_length));
            let first = [
                set("InitialR2T", 0),
                set("ImmediateData", 1),
                raise("FirstBurstLength", first_burst_length.max(WINDOWS_FIRST_BURST)),
            ];
            burst.into_iter().chain(first).collect()
        }
        Change::Burst(bytes) => vec![raise("MaxBurstLength", bytes.max(WINDOWS_MAX_BURST))],
        // It offers 16 by itself.
        Change::OutstandingR2t(_) => Vec::new(),
        Change::Window(count) => {
            let (count, remark) = within(count.max(WINDOWS_REQUESTS), WINDOWS_REQUESTS);
            remark.into_iter().chain([raise("MaxPendingRequests", count)]).collect()
        }
        Change::TcpWindow(_) => vec!["netsh interface tcp set global autotuninglevel=normal".to_owned()],
        // Sessions that are there stay, so that a second time adds none.
        Change::Connections(count) => vec![
            "# Each session is a disk of its own without the feature Multipath-IO; two writers on one disk destroy what is on it".to_owned(),
            "# First: Install-WindowsFeature Multipath-IO, and restart; and take the disk offline, as it becomes another one".to_owned(),
            "Enable-MSDSMAutomaticClaim -BusType iSCSI".to_owned(),
            format!("$sessions = @(Get-IscsiSession | Where-Object TargetNodeAddress -eq '{target}').Count"),
            format!(
                "for (; $sessions -lt {count}; $sessions++) {{ Connect-IscsiTarget -NodeAddress '{target}' -IsMultipathEnabled $true -IsPersistent $true }}"
            ),
        ],
    }
}

/// MaxOutstandingR2T: 1 to 8.
const ESXI_R2T_MAX: u16 = 8;
/// iscsivmk_LunQDepth: 128 by default, and how many of them several machines may use.
const ESXI_DEPTH: (u32, u32) = (128, 255);
/// How many of them the machines on one disk have while several want some, by default.
const ESXI_SHARED_DEPTH: u32 = 32;
/// FirstBurstLength and MaxBurstLength by default; the first must not be above the second.
const ESXI_BURST: u32 = 262_144;
/// /ISCSI/SocketRcvBufLenKB: 256 to 6144; /ISCSI/SocketSndBufLenKB: 600 to 6144. The least of each is its default, and what all versions
/// before 7.0 U3d have (Broadcom's article 313806, which also has it that such a buffer carries as much as it is large).
pub(super) const ESXI_BUFFER_KIB: (u64, u64, u64) = (256, 600, 6144);

/// Paths to one disk.
const ESXI_PORTS_MAX: u16 = 8;

/// What is set is for all targets of a host: each line looks first.
const ESXI_RAISES: &str = "# In the ESXi Shell, these raise what is less, and lower nothing; anywhere else, list what there is first, and set only what is more";
const ESXI_RESTART: &str = "# Then restart the host";

fn esxi_all(changes: &[Change]) -> Vec<String> {
    let mut lines: Vec<String> = changes.iter().flat_map(|change| esxi(*change)).collect();
    if !lines.is_empty() {
        lines.push(ESXI_RESTART.to_owned());
    }
    // A disk takes no more than its adapter, which has its new depth after the restart.
    lines.extend(changes.iter().filter_map(|change| esxi_shared_depth(*change)));
    if lines.iter().any(|line| line.starts_with(ESXI_IF)) {
        lines.insert(0, ESXI_RAISES.to_owned());
    }
    lines
}

const ESXI_IF: &str = "[ ";

/// A command for a value that is now less: `awk` finds that in what `list` says. Where it finds none, nothing is set.
fn esxi_raise(list: &str, awk: &str, value: u64, set: &str) -> String {
    format!(r#"{ESXI_IF}"$(esxcli {list} | awk {awk})" -lt {value} ] && esxcli {set}{value}"#)
}

fn esxi(change: Change) -> Vec<String> {
    let key = |key: &str, value: u32| {
        esxi_raise(
            "iscsi adapter param get --adapter=ADAPTER",
            &format!("'$1 == \"{key}\" {{ print $2 }}'"),
            value.into(),
            &format!("iscsi adapter param set --adapter=ADAPTER --key={key} --value="),
        )
    };
    match change {
        // InitialR2T=No and ImmediateData=Yes are fixed there.
        Change::Unasked { first_burst_length: bytes } if bytes > ESXI_BURST => {
            vec![key("MaxBurstLength", bytes), key("FirstBurstLength", bytes)]
        }
        Change::Burst(bytes) if bytes > ESXI_BURST => vec![key("MaxBurstLength", bytes)],
        Change::Unasked { .. } | Change::Burst(_) => Vec::new(),
        Change::OutstandingR2t(count) => {
            let (count, remark) = within(count, ESXI_R2T_MAX);
            remark.into_iter().chain([key("MaxOutstandingR2T", count.into())]).collect()
        }
        Change::Window(count) => {
            let (depth, remark) = within(count, ESXI_DEPTH.1);
            // Without --append the module would lose all its other parameters. `esxcli` has it since 6.0: PowerCLI's form of the command
            // takes an argument more there than for 5.x, and scripts say `set -a -m MODULE -p ...`. Of a parameter that was never set
            // the list has no value, and what stands there instead is no number.
            let raise = (depth > ESXI_DEPTH.0).then(|| {
                esxi_raise(
                    "system module parameters list --module=iscsi_vmk",
                    "'$1 == \"iscsivmk_LunQDepth\" { print $3 + 0 }'",
                    depth.into(),
                    "system module parameters set --module=iscsi_vmk --append --parameter-string=iscsivmk_LunQDepth=",
                )
            });
            remark.into_iter().chain(raise).collect()
        }
        Change::TcpWindow(bytes) => {
            let (receive, send, max) = ESXI_BUFFER_KIB;
            let (kib, remark) = within(bytes.div_ceil(1024), max);
            let option = |name: &str, default: u64| {
                let raise = || {
                    esxi_raise(
                        &format!("system settings advanced list --option=/ISCSI/{name}"),
                        "'$1 == \"Int\" { print $3 }'",
                        kib,
                        &format!("system settings advanced set --option=/ISCSI/{name} --int-value="),
                    )
                };
                (kib > default).then(raise)
            };
            let options: Vec<String> =
                [option("SocketRcvBufLenKB", receive), option("SocketSndBufLenKB", send)]
                    .into_iter()
                    .flatten()
                    .collect();
            let fixed = (!options.is_empty()).then(|| "# Before 7.0 U3d, these cannot be set".to_owned());
            remark.into_iter().chain(fixed).chain(options).collect()
        }
        Change::Connections(count) => {
            let (count, remark) = within(count, ESXI_PORTS_MAX);
            let port =
                |at| format!("esxcli iscsi networkportal add --adapter=ADAPTER --nic=VMKERNEL_PORT_{at}");
            remark.into_iter().chain((1..=count).map(port)).collect()
        }
    }
}

/// How many commands the machines on one disk have while several want some.
fn esxi_shared_depth(change: Change) -> Option<String> {
    let Change::Window(count) = change else { return None };
    (count > ESXI_SHARED_DEPTH).then(|| {
        esxi_raise(
            "storage core device list --device=DEVICE",
            "-F ': ' '/No of outstanding IOs with competing worlds/ { print $2 }'",
            count.min(ESXI_DEPTH.1).into(),
            "storage core device set --device=DEVICE --sched-num-req-outstanding=",
        )
    })
}

/// `lunette attach --depth`: 16 by default, and as many as it carries out at once. `lunette read`, `write` and `copy` measure for
/// themselves how many they need.
const ATTACH_DEPTH: (u32, u32) = (16, lunette_attach::nbd::DEPTH_MAX as u32);

fn initiator(change: Change) -> Vec<String> {
    match change {
        // It offers these by itself, and it is the target that has to take them.
        Change::Unasked { .. } | Change::Burst(_) | Change::OutstandingR2t(_) | Change::TcpWindow(_) => {
            Vec::new()
        }
        Change::Window(count) => {
            let (depth, remark) = within(count.max(ATTACH_DEPTH.0), ATTACH_DEPTH.1);
            let attach = format!("lunette attach URL DIRECTORY --depth {depth}");
            remark.into_iter().chain([attach, format!("lunette bench URL --depth {count}")]).collect()
        }
        Change::Connections(count) => vec![
            format!("lunette attach 'URL?connections={count}' DIRECTORY"),
            format!("lunette bench URL --connections {count}"),
        ],
    }
}

/// What the target does not grant by default, and of commands under way what it does not grant.
fn target_table(changes: &[Change], window: Option<u32>) -> Vec<String> {
    let granted = Limits::default();
    let window = window.unwrap_or(granted.window_depth.into());
    let lines = changes.iter().filter_map(|change| match *change {
        Change::Unasked { first_burst_length } if first_burst_length > granted.first_burst_length_bytes => {
            Some(format!("first_burst_length_bytes = {first_burst_length}"))
        }
        Change::Window(count) if count > window => Some(format!("window_depth = {count}")),
        Change::Connections(count) if count > granted.max_connections => {
            Some(format!("max_connections = {count}"))
        }
        _ => None,
    });
    let lines: Vec<String> = lines.collect();
    let head = ["# A file has one such table", "[limits]"].map(str::to_owned);
    let head = (!lines.is_empty()).then_some(head);
    head.into_iter().flatten().chain(lines).collect()
}

/// The largest buffers of Linux by default, of one that receives and one that sends: 6 MiB and 4 MiB, or more (tcp(7)).
const LINUX_BUFFERS: (u64, u64) = (6 << 20, 4 << 20);
/// The largest that tcp_rmem and tcp_wmem take.
const LINUX_BUFFER_MAX: u64 = i32::MAX as u64;
const BUFFERS_SUFFICE: &str = "# The default is enough: if these change nothing, look for a program that sets SO_RCVBUF or SO_SNDBUF, and at the other end";

/// Half of a receive buffer is the system's own, and a quarter of a send buffer (tcp(7)). They are for all connections of the host,
/// so that a command only ever raises them.
fn tcp_buffers(change: Change) -> Vec<String> {
    let Change::TcpWindow(bytes) = change else { return Vec::new() };
    let (receive, receive_remark) = within(bytes.saturating_mul(2), LINUX_BUFFER_MAX);
    let (send, send_remark) = within((bytes / 3).saturating_mul(4), LINUX_BUFFER_MAX);
    let suffices =
        (receive <= LINUX_BUFFERS.0 && send <= LINUX_BUFFERS.1).then(|| BUFFERS_SUFFICE.to_owned());
    let raise = |name: &str, bytes: u64| {
        format!(
            "read -r least usual most < /proc/sys/net/ipv4/{name} && [ \"$most\" -ge {bytes} ] || sysctl --write net.ipv4.{name}=\"$least $usual {bytes}\""
        )
    };
    let remarks = [suffices, receive_remark.or(send_remark)].into_iter().flatten();
    remarks.chain([raise("tcp_rmem", receive), raise("tcp_wmem", send)]).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn text(changes: &[Change], system: &str) -> String {
        let all = commands(changes, "TARGET", None);
        let found = all.iter().find(|commands| commands.system.starts_with(system));
        found.map(|commands| commands.lines.join("\n")).unwrap_or_default()
    }

    #[test]
    fn values_are_what_each_system_takes() {
        let changes = [Change::Window(5000), Change::TcpWindow(3_000_000_000), Change::Connections(4)];
        let linux = text(&changes, "Linux");
        assert!(linux.contains("node.session.cmds_max --value 2048"), "{linux}");
        assert!(
            linux.contains("node.session.queue_depth --value 1024") && linux.contains("# 1024 is the most")
        );
        assert!(linux.contains("node.session.nr_sessions --value 4") && linux.ends_with("TARGET --login"));
        let host = text(&changes, "A Linux host");
        assert!(
            host.contains("# 2147483647 is the most here") && host.contains("$usual 2147483647\""),
            "{host}"
        );
        assert!(linux.contains("node.conn[0].tcp.window_size --value 0"), "{linux}");
        let windows = text(&changes, "Windows");
        assert!(windows.starts_with("$iscsi = ") && windows.contains("MaxPendingRequests 255"), "{windows}");
        assert!(
            windows.contains("$sessions -lt 4; $sessions++) { Connect-IscsiTarget -NodeAddress 'TARGET' ")
        );
        let esxi = text(&changes, "ESXi");
        assert!(
            esxi.contains("iscsivmk_LunQDepth=255") && esxi.contains("SocketRcvBufLenKB --int-value=6144")
        );
        assert!(esxi.contains("# 6144 is the most here, and less than 2929688\n"), "{esxi}");
        assert_eq!(esxi.matches("networkportal add").count(), 4);
        let many = text(&[Change::Connections(9)], "ESXi");
        assert!(many.starts_with("# 8 is the most here, and less than 9\n"), "{many}");
        assert_eq!(many.matches("networkportal add").count(), 8);
        assert_eq!(
            text(&changes, "Lunette as the target"),
            "# A file has one such table\n[limits]\nwindow_depth = 5000"
        );
        assert_eq!(
            text(&changes, "Lunette as the initiator"),
            "# 256 is the most here, and less than 5000\nlunette attach URL DIRECTORY --depth 256\nlunette bench URL --depth 5000\n\
             lunette attach 'URL?connections=4' DIRECTORY\nlunette bench URL --connections 4"
        );
    }

    #[test]
    fn keys_are_within_their_ranges_and_order() {
        let changes = [
            Change::Unasked { first_burst_length: 1 << 20 },
            Change::Burst(1 << 21),
            Change::OutstandingR2t(11),
        ];
        let linux = text(&changes, "Linux");
        assert!(
            linux.contains("MaxOutstandingR2T --value 16")
                && linux.contains("MaxBurstLength --value 16776192")
        );
        assert!(linux.contains("InitialR2T --value No"));
        let esxi = text(&changes, "ESXi");
        let place = |what: &str| esxi.find(what).unwrap();
        assert!(
            place("MaxBurstLength --value=1048576") < place("FirstBurstLength --value=1048576"),
            "{esxi}"
        );
        assert!(esxi.contains("MaxOutstandingR2T --value=8") && !esxi.contains("InitialR2T"));
        assert!(esxi.contains("# 8 is the most here, and less than 11\n"), "{esxi}");
        assert!(text(&changes, "Windows").contains("$iscsi InitialR2T 0"));
        assert_eq!(text(&changes, "Lunette as the initiator"), "");
        assert_eq!(
            text(&changes, "Lunette as the target"),
            "# A file has one such table\n[limits]\nfirst_burst_length_bytes = 1048576"
        );
    }

    #[test]
    fn small_changes_need_few_commands_and_none_needs_none() {
        assert!(commands(&[], "TARGET", None).is_empty());
        assert_eq!(text(&[Change::Window(1)], "Lunette as the target"), "");
        assert!(text(&[Change::Window(1)], "Linux").contains("cmds_max --value 128\n"));
        assert!(
            text(&[Change::Window(1)], "Lunette as the init")
                .starts_with("lunette attach URL DIRECTORY --depth 16\n")
        );
        // What ESXi does by itself.
        let defaults = [
            Change::Window(32),
            Change::TcpWindow(262_144),
            Change::Burst(262_144),
            Change::Unasked { first_burst_length: 262_144 },
        ];
        for change in defaults {
            assert_eq!(text(&[change], "ESXi"), "");
        }
        let some = text(&[Change::Window(64)], "ESXi");
        assert!(some.contains("--sched-num-req-outstanding=64") && !some.contains("LunQDepth"), "{some}");
        assert!(!some.contains("restart"), "{some}");
        let one_way = text(&[Change::TcpWindow(500 << 10)], "ESXi");
        assert!(
            one_way.contains("SocketRcvBufLenKB --int-value=500") && !one_way.contains("SocketSnd"),
            "{one_way}"
        );
        let short = [Change::Unasked { first_burst_length: 8192 }, Change::Burst(8192)];
        assert!(
            !commands(&short, "TARGET", None)
                .iter()
                .any(|commands| commands.lines.join(" ").contains("8192"))
        );
    }
    /// RFC 7143, 13.14: FirstBurstLength is not above MaxBurstLength, also where nothing but unasked data is advised.
    #[test]
    fn a_long_first_burst_comes_with_a_burst_as_long() {
        let alone = [Change::Unasked { first_burst_length: 524_288 }];
        for (system, burst, first) in [
            ("Linux, open", "MaxBurstLength --value 16776192", "FirstBurstLength --value 524288"),
            ("Windows", "MaxBurstLength 524288", "FirstBurstLength 524288"),
            ("ESXi", "MaxBurstLength --value=524288", "FirstBurstLength --value=524288"),
        ] {
            let told = text(&alone, system);
            assert!(told.find(burst).unwrap() < told.find(first).unwrap(), "{told}");
        }
        let short = [Change::Unasked { first_burst_length: 262_144 }];
        assert!(
            commands(&short, "TARGET", None).iter().all(|told| !told.lines.concat().contains("MaxBurst"))
        );
        let mut settings = Settings {
            initial_r2t: true,
            immediate_data: true,
            first_burst_length: 65_536,
            max_burst_length: 262_144,
            max_outstanding_r2t: 1,
            max_recv_data_segment_length: 8192,
            connections: 1,
            window: 1,
        };
        assert!(words(alone[0], &settings).ends_with("FirstBurstLength=524288, MaxBurstLength=524288"));
        settings.max_burst_length = 524_288;
        assert!(words(alone[0], &settings).ends_with("FirstBurstLength=524288"));
    }

    #[test]
    fn what_may_destroy_a_disk_is_said_before_it() {
        for (changes, system, dangerous) in [
            (Change::Window(1), "Linux, open", "--logout"),
            (Change::Connections(2), "Linux, open", "nr_sessions"),
            (Change::Connections(2), "Windows", "Connect-IscsiTarget"),
        ] {
            let told = text(&[changes], system);
            assert!(
                told.find("\n# ").or(told.strip_prefix("# ").map(|_| 0)).unwrap()
                    < told.find(dangerous).unwrap(),
                "{told}"
            );
        }
    }

    /// What `esxcli` is told to set when the commands are pasted on a host that lists such values.
    fn pasted_on_esxi(changes: &[Change], listed: &[(&str, &str)]) -> String {
        let lists =
            listed.iter().map(|(of, says)| format!("*'{of}'*) echo '{says}';;\n")).collect::<String>();
        let script = format!(
            "esxcli() {{ case \"$*\" in\n*' set '*) echo \"$*\" >&3;;\n{lists}*) echo 'Unknown command' >&2; return 1;; esac; }}\n{}\n",
            text(changes, "ESXi")
        );
        let output = Command::new("sh").args(["-c", &format!("exec 3>&1\n{script}true")]).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn what_all_of_an_esxi_host_has_is_raised_and_never_lowered_nor_lost() {
        let depths = |module: &str, disk: &str| {
            let module = format!(
                "Name                    Type  Value  Description\n----------------------  ----  -----  -----------\n\
                 iscsivmk_HostQDepth     int   1024   Maximum Outstanding Commands Per Adapter\n\
                 iscsivmk_LunQDepth      int   {module}  Maximum Outstanding Commands Per LUN"
            );
            let disk = format!(
                "naa.6\n   Queue Full Threshold: 0\n   No of outstanding IOs with competing worlds: {disk}"
            );
            let listed = [
                ("system module parameters list --module=iscsi_vmk", &*module),
                ("storage core device list --device=DEVICE", &*disk),
            ];
            pasted_on_esxi(&[Change::Window(200)], &listed)
        };
        let module = "system module parameters set --module=iscsi_vmk --append --parameter-string=iscsivmk_LunQDepth=200\n";
        let disk = "storage core device set --device=DEVICE --sched-num-req-outstanding=200\n";
        for never_set in ["   ", "128"] {
            assert_eq!(depths(never_set, "32"), format!("{module}{disk}"));
        }
        assert_eq!(depths("255", "32"), disk);
        assert_eq!((depths("512", "256"), depths("200", "200")), (String::new(), String::new()));
        // The disk takes no more than the adapter, which has its new depth after the restart.
        let told = text(&[Change::Window(200)], "ESXi");
        let place = |what: &str| told.find(what).unwrap();
        assert!(place("LunQDepth=200") < place("# Then restart the host"), "{told}");
        assert!(place("# Then restart the host") < place("--sched-num-req-outstanding"), "{told}");
        assert!(
            told.starts_with("# In the ESXi Shell, these raise what is less, and lower nothing"),
            "{told}"
        );

        let buffers = |receive: &str, send: &str| {
            let says = |now: &str| {
                format!(
                    "   Path: /ISCSI/Socket\n   Type: integer\n   Int Value: {now}\n   Default Int Value: 1\n"
                )
            };
            let (receive, send) = (says(receive), says(send));
            let listed = [
                ("list --option=/ISCSI/SocketRcvBufLenKB", &*receive),
                ("list --option=/ISCSI/SocketSndBufLenKB", &*send),
            ];
            pasted_on_esxi(&[Change::TcpWindow(1_401_500)], &listed)
        };
        let set =
            |name: &str| format!("system settings advanced set --option=/ISCSI/{name} --int-value=1369\n");
        assert_eq!(buffers("256", "600"), set("SocketRcvBufLenKB") + &set("SocketSndBufLenKB"));
        assert_eq!(buffers("2048", "1368"), set("SocketSndBufLenKB"));
        assert_eq!(buffers("6144", "1369"), "");
        // Versions that do not have them, and lists that say something else.
        assert_eq!(pasted_on_esxi(&[Change::TcpWindow(1_401_500), Change::Window(200)], &[]), "");

        let keys = "Name                Current  Default\nFirstBurstLength    262144   262144\nMaxBurstLength      16777215  262144\n\
                    MaxOutstandingR2T   4        1";
        let listed = [("iscsi adapter param get --adapter=ADAPTER", keys)];
        let changes = [Change::Unasked { first_burst_length: 1 << 20 }, Change::OutstandingR2t(4)];
        assert_eq!(
            pasted_on_esxi(&changes, &listed),
            "iscsi adapter param set --adapter=ADAPTER --key=FirstBurstLength --value=1048576\n"
        );
    }

    /// What `sysctl` is told when the commands are pasted on a host with such buffers.
    fn pasted(bytes: u64, host: &str) -> String {
        let lines = text(&[Change::TcpWindow(bytes)], "A Linux host");
        let script = lines.lines().map(|line| match line.split_once("< /proc/sys/net/ipv4/tcp_") {
            Some((read, rest)) => format!("echo '{host}' | {{ {read} {}; }}\n", &rest["rmem".len()..]),
            None => format!("{line}\n"),
        });
        let script = format!("sysctl() {{ echo \"$2\"; }}\n{}", script.collect::<String>());
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn buffers_of_a_host_are_raised_and_never_lowered() {
        let raised = "net.ipv4.tcp_rmem=4096 131072 2803000\nnet.ipv4.tcp_wmem=4096 131072 1868664\n";
        assert_eq!(pasted(1_401_500, "4096\t131072\t65536"), raised);
        for host in ["4096 131072 6291456", "4096 131072 33554432", "4096 131072 2803000"] {
            assert_eq!(pasted(1_401_500, host), "");
        }
        // In between, only the one that has to be.
        assert_eq!(pasted(1_401_500, "8192 65536 2000000"), "net.ipv4.tcp_rmem=8192 65536 2803000\n");
        let small = text(&[Change::TcpWindow(1_401_500)], "A Linux host");
        let large = text(&[Change::TcpWindow(9_000_000)], "A Linux host");
        assert!(small.starts_with("# The default is enough") && !large.contains('#'), "{small}\n{large}");
    }
}
