//! Which settings lift a limit, one after the other, until the line is full.

use super::both_ways::BothWays;
use super::{Expected, Limit, NetworkPath, Settings, expect_mix};
use crate::{Kind, Sizes};

/// The most commands that are advised: what a session of Lunette's initiator and target holds.
pub const WINDOW_MAX: u32 = 4096;
/// The most connections: what a session of Lunette's may have.
pub const CONNECTIONS_MAX: u16 = 32;
/// The largest FirstBurstLength that is advised, in bytes. The key goes to 2^24 - 1 (RFC 7143, 13.14), but a target has to have
/// memory for the unasked data of each command of a window.
pub const FIRST_BURST_BYTES_MAX: u32 = 1 << 20;
/// The largest MaxBurstLength, in bytes: the largest multiple of 4096 that the key can say (RFC 7143, 13.13).
pub const BURST_BYTES_MAX: u32 = (1 << 24) - 4096;
/// The most R2Ts of one command: more than most initiators have.
pub const OUTSTANDING_R2T_MAX: u16 = 16;
/// The largest TCP window, in bytes: what the window scale option can say (RFC 7323, 2.3).
pub const TCP_WINDOW_BYTES_MAX: u64 = 65_535 << 14;
/// How many more commands are advised than just fill the line: they cost both ends some time, and do not come evenly.
const WINDOW_ROOM: f64 = 1.25;
/// What the last change must bring to be advised: a hundredth.
const WORTH: f64 = 1.01;
/// Far more changes than there are to be made.
const CHANGES_MAX: usize = 16;

/// What is done, over what, with what.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Question<'a> {
    /// The network as reads have it, whose data comes down, and as writes have it, whose data goes up.
    pub paths: [NetworkPath; 2],
    /// What both sides have agreed on; MaxRecvDataSegmentLength is the target's.
    pub settings: Settings,
    /// MaxRecvDataSegmentLength of the initiator, in bytes.
    pub read_segment_bytes: u32,
    /// The sizes of commands, with their weights.
    pub sizes: &'a Sizes,
    /// The share of commands that read, 0 to 1.
    pub read_share: f64,
}

/// A setting that is to be another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// InitialR2T=No and ImmediateData=Yes: the data of a write goes with it, up to FirstBurstLength.
    Unasked {
        /// FirstBurstLength, in bytes.
        first_burst_length: u32,
    },
    /// MaxBurstLength, in bytes: fewer R2Ts.
    Burst(u32),
    /// MaxOutstandingR2T: several R2Ts of one write at once.
    OutstandingR2t(u16),
    /// So many commands under way.
    Window(u32),
    /// So many bytes of each connection under way: TCP's buffers at both ends.
    TcpWindow(u64),
    /// So many connections of the session, or sessions.
    Connections(u16),
}

/// One change, and what is to be expected of it and all before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// What is changed.
    pub change: Change,
    /// Data per second then, in bytes.
    pub bytes_per_s: f64,
    /// What is the limit then.
    pub limit: Limit,
    /// It is no more than that ([`Question::is_upper_bound`]).
    pub is_upper_bound: bool,
}

/// What is to be expected, and what lifts it.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    /// Data per second as it is, in bytes.
    pub bytes_per_s: f64,
    /// What is the limit.
    pub limit: Limit,
    /// A read that is alone, and a write; of several sizes, their mean.
    pub alone: [Expected; 2],
    /// Changes, one after the other; each makes it faster.
    pub steps: Vec<Step>,
    /// More connections than there are then, as many as losses alone would call for: nobody knows what they bring
    /// ([`Question::waits_in_order`]).
    pub connections_may_help: Option<u16>,
}

impl Question<'_> {
    /// What is to be expected of a read, and of a write.
    #[must_use]
    pub fn each(&self) -> [Expected; 2] {
        let [read, write] = self.settings_of_each();
        let [down, up] = &self.paths;
        [expect_mix(down, &read, Kind::Read, self.sizes), expect_mix(up, &write, Kind::Write, self.sizes)]
    }

    /// MaxRecvDataSegmentLength is that of who receives.
    fn settings_of_each(&self) -> [Settings; 2] {
        [Settings { max_recv_data_segment_length: self.read_segment_bytes, ..self.settings }, self.settings]
    }

    /// Both on their way.
    fn both_ways(&self) -> BothWays {
        BothWays::of(&self.paths, &self.each(), &self.settings_of_each(), self.sizes, self.read_share)
    }

    /// Data per second of the mix, in bytes, and what limits it, with what each direction of the path does to the other one
    /// (RFC 3449).
    #[must_use]
    pub fn expected(&self) -> (f64, Limit) {
        self.both_ways().expected()
    }

    /// Whether several connections would wait for each other's losses: a target takes the writes of a session in their order (RFC 7143,
    /// 4.2.2.1), and reads behind them, whichever connections they come on. What that leaves is not in the model.
    #[must_use]
    pub fn waits_in_order(&self) -> bool {
        self.read_share < 1.0 && self.paths[1].loss_limit().is_some()
    }

    /// Whether TCP would wait for timeouts for so long that nobody knows what is left: losses take all that a connection has under
    /// way. Of data, and of its acknowledgements, one for two packets, which go the other way.
    #[must_use]
    pub fn waits_for_timeouts(&self) -> bool {
        let connections = f64::from(self.settings.connections.max(1));
        let shares = [self.read_share, 1.0 - self.read_share];
        let asked_bytes = (f64::from(self.settings.window) / connections).max(1.0) * self.sizes.mean();
        let bytes_per_s = self.expected().0 / connections;
        let data = [0, 1].map(|way| {
            let (path, share) = (&self.paths[way], shares[way]);
            let under_way =
                if share > 0.0 { path.packets_under_way(asked_bytes * share).max(1.0) } else { 0.0 };
            (under_way, path.packets(bytes_per_s * share))
        });
        self.paths
            .iter()
            .zip([(data[0], data[1]), (data[1], data[0])])
            .any(|(path, (own, other))| path.is_in_timeouts(own.0 + other.0 / 2.0, own.1 + other.1 / 2.0))
    }

    /// Whether what is expected is what there is at most: of several connections as many times what losses leave of one, and what
    /// timeouts would leave less of.
    #[must_use]
    pub fn is_upper_bound(&self) -> bool {
        if self.waits_for_timeouts() {
            return true;
        }
        let mut one = *self;
        one.settings.connections = 1;
        let shares = [self.read_share, 1.0 - self.read_share];
        let is_lossy =
            self.paths.iter().zip(shares).any(|(path, share)| share > 0.0 && path.loss_limit().is_some());
        is_lossy && self.settings.connections > 1 && one.expected().0 < self.expected().0
    }

    /// The same with one setting changed; nothing if it is so already.
    #[must_use]
    pub fn with(&self, change: Change) -> Option<Self> {
        let mut changed = *self;
        let settings = &mut changed.settings;
        match change {
            Change::Unasked { first_burst_length } => {
                settings.initial_r2t = false;
                settings.immediate_data = true;
                settings.first_burst_length = settings.first_burst_length.max(first_burst_length);
                settings.max_burst_length = settings.max_burst_length.max(first_burst_length);
            }
            Change::Burst(bytes) => settings.max_burst_length = settings.max_burst_length.max(bytes),
            Change::OutstandingR2t(count) => {
                settings.max_outstanding_r2t = settings.max_outstanding_r2t.max(count);
            }
            Change::Window(count) => settings.window = settings.window.max(count),
            Change::Connections(count) => settings.connections = settings.connections.max(count),
            Change::TcpWindow(bytes) => {
                for path in &mut changed.paths {
                    path.tcp_window_bytes = path.tcp_window_bytes.map(|now| now.max(bytes));
                }
            }
        }
        (changed != *self).then_some(changed)
    }

    /// What could lift a limit, each as far as the line needs it, what costs nothing first.
    fn candidates(&self, limit: Limit) -> Vec<Change> {
        let Some(full) = self.full() else { return Vec::new() };
        // Acknowledgements that wait make as much more of a window necessary.
        let both = self.both_ways();
        let most = |needed: &dyn Fn(&NetworkPath, f64) -> f64| {
            let each = self.paths.iter().zip(full).enumerate();
            each.map(|(way, (path, rate))| needed(path, rate) * both.stretch(way)).fold(0.0, f64::max)
        };
        let connections = |each: fn(&NetworkPath) -> Option<f64>| {
            // Twice the line: headers take their share, and connections are not equally fast.
            let needed = most(&|path, rate| each(path).map_or(0.0, |each| rate * 2.0 / each.max(1.0)));
            Change::Connections(needed.ceil().clamp(1.0, f64::from(CONNECTIONS_MAX)) as u16)
        };
        let cures = match limit {
            Limit::Link => return Vec::new(),
            Limit::Window => {
                return self.keys().into_iter().chain([Change::Window(self.window_for(full))]).collect();
            }
            Limit::TcpWindow => {
                // A round trip's worth, and half as much again for what waits in the queue.
                let bytes = most(&|path, rate| rate * path.round_trip.as_secs_f64() * 1.5);
                let change = Change::TcpWindow(bytes.ceil().min(TCP_WINDOW_BYTES_MAX as f64) as u64);
                vec![change, connections(NetworkPath::tcp_window_limit)]
            }
            Limit::Loss => vec![connections(NetworkPath::loss_limit)],
        };
        // What limits a mix most may be of one direction, and what it waits for besides of the other.
        cures.into_iter().chain(self.keys()).collect()
    }

    /// What makes a write take fewer round trips.
    fn keys(&self) -> [Change; 3] {
        // The largest of them has to fit.
        let largest = self.sizes.largest();
        let burst = largest.min(BURST_BYTES_MAX);
        let bursts = largest.div_ceil(self.settings.max_burst_length.max(1));
        [
            Change::Unasked { first_burst_length: largest.min(FIRST_BURST_BYTES_MAX) },
            Change::Burst(burst),
            Change::OutstandingR2t(bursts.min(OUTSTANDING_R2T_MAX.into()) as u16),
        ]
    }

    /// How many connections would be more than there are, and faster if none waited for another's losses; nothing where they do not wait,
    /// and are advised.
    fn connections_that_may_help(&self) -> Option<u16> {
        let (rate, limit) = self.expected();
        if !self.waits_in_order() || !matches!(limit, Limit::Loss | Limit::TcpWindow) {
            return None;
        }
        self.candidates(limit).into_iter().find_map(|change| {
            let Change::Connections(count) = change else { return None };
            let (more, _) = self.with(change)?.expected();
            (more > rate * WORTH).then_some(count)
        })
    }

    /// What reads and writes carry by their shares once one of them fills its direction, in bytes per second; nothing where no
    /// direction with data has a rate.
    fn full(&self) -> Option<[f64; 2]> {
        let shares = [self.read_share, 1.0 - self.read_share];
        let lines = self.paths.iter().map(|path| path.payload_bytes_per_s().unwrap_or(f64::INFINITY));
        let whole = lines.zip(shares).map(|(line, share)| line / share).fold(f64::INFINITY, f64::min);
        whole.is_finite().then(|| shares.map(|share| whole * share))
    }

    /// How many commands under way carry that much.
    fn window_for(&self, full: [f64; 2]) -> u32 {
        let [read_s, write_s] = self.each().map(|expected| expected.command_time.as_secs_f64());
        let mean_s = read_s * self.read_share + write_s * (1.0 - self.read_share);
        let needed = (full.iter().sum::<f64>() * mean_s / self.sizes.mean() * WINDOW_ROOM).ceil();
        let needed = needed.clamp(1.0, f64::from(WINDOW_MAX)) as u32;
        // Of commands that are not all alike it takes more.
        if self.read_share > 0.0 && self.read_share < 1.0 {
            needed.max(self.commands_for_all())
        } else {
            needed
        }
    }

    /// How many commands leave nearly all of what the lines let through; where R2Ts that wait keep it from that, how many do without them.
    fn commands_for_all(&self) -> u32 {
        let of = |window| {
            let mut changed = *self;
            changed.settings.window = window;
            changed.both_ways()
        };
        let first = |is_enough: &dyn Fn(u32) -> bool| {
            let (mut low, mut high) = (1, WINDOW_MAX);
            while low < high {
                let middle = low.midpoint(high);
                if is_enough(middle) { high = middle } else { low = middle + 1 }
            }
            is_enough(low).then_some(low)
        };
        first(&|window| of(window).keeps_the_lines_full())
            .or_else(|| first(&|window| of(window).has_commands_for_all()))
            .unwrap_or(WINDOW_MAX)
    }
}

/// What is to be expected, and which changes lift it: at each limit the first of its candidates that brings something, keys before
/// more commands, because they cost nothing.
#[must_use]
pub fn advise(question: &Question<'_>) -> Advice {
    let (bytes_per_s, limit) = question.expected();
    let (alone, steps) = (question.each(), Vec::new());
    let mut advice = Advice { bytes_per_s, limit, alone, steps, connections_may_help: None };
    let mut now = *question;
    for _ in 0..CHANGES_MAX {
        let (rate, limit) = now.expected();
        let better = now.candidates(limit).into_iter().find_map(|change| {
            let changed = now.with(change)?;
            if matches!(change, Change::Connections(_)) && now.waits_in_order() {
                return None;
            }
            let (bytes_per_s, limit) = changed.expected();
            let is_upper_bound = changed.is_upper_bound();
            (bytes_per_s > rate).then_some((changed, Step { change, bytes_per_s, limit, is_upper_bound }))
        });
        let Some((changed, step)) = better else { break };
        now = changed;
        advice.steps.push(step);
    }
    // One that brings little by itself may open the way for the next one; at the end it is not worth its trouble.
    while let Some((last, before)) = advice.steps.split_last() {
        let without = before.last().map_or(bytes_per_s, |step| step.bytes_per_s);
        if last.bytes_per_s > without * WORTH {
            break;
        }
        advice.steps.pop();
    }
    let last = advice.steps.iter().try_fold(*question, |now, step| now.with(step.change));
    advice.connections_may_help = last.and_then(|last| last.connections_that_may_help());
    advice
}

#[cfg(test)]
mod tests {
    use super::super::{Bursts, CongestionControl};
    use super::*;
    use proptest::prelude::*;
    use std::sync::LazyLock;
    use std::time::Duration;

    static SIZES: LazyLock<Sizes> = LazyLock::new(|| Sizes::one(65_536));

    /// The defaults of chapter 13 with one command, on a line of 155 Mb/s and 50 ms.
    fn question() -> Question<'static> {
        Question {
            paths: [NetworkPath {
                rate_bits_per_s: Some(155e6),
                round_trip: Duration::from_millis(50),
                mtu_bytes: 1500,
                overhead_bytes: 0,
                loss: 0.0,
                losses_together: 1.0,
                bursts: None,
                congestion_control: CongestionControl::Cubic,
                tcp_window_bytes: None,
                queue_bytes: None,
            }; 2],
            settings: Settings {
                initial_r2t: true,
                immediate_data: false,
                first_burst_length: 65_536,
                max_burst_length: 262_144,
                max_outstanding_r2t: 1,
                max_recv_data_segment_length: 8192,
                connections: 1,
                window: 1,
            },
            read_segment_bytes: 262_144,
            sizes: &SIZES,
            read_share: 0.0,
        }
    }

    #[test]
    fn r2ts_go_first_then_the_window_opens_until_the_line_is_full() {
        let advice = advise(&question());
        let changes: Vec<_> = advice.steps.iter().map(|step| step.change).collect();
        assert_eq!(changes[0], Change::Unasked { first_burst_length: 65_536 });
        let [_, Change::Window(window)] = changes[..] else { panic!("{changes:?}") };
        // 18.7 MB/s in 53.5 ms are 1.0 MB, or 15.3 commands of 64 KiB.
        assert_eq!(window, 20);
        assert_eq!((advice.limit, advice.steps[1].limit), (Limit::Window, Limit::Link));
        assert!((advice.bytes_per_s / 0.63e6 - 1.0).abs() < 0.02, "{}", advice.bytes_per_s);
    }

    #[test]
    fn tcp_and_losses_have_their_own_cures() {
        let mut narrow = question();
        narrow.settings.window = 64;
        narrow.paths[1].tcp_window_bytes = Some(65_536);
        let steps = advise(&narrow).steps;
        assert!(matches!(steps[0].change, Change::TcpWindow(bytes) if bytes > 900_000), "{steps:?}");
        let mut lossy = question();
        lossy.settings.window = 512;
        lossy.paths = lossy.paths.map(|path| NetworkPath { loss: 0.001, ..path });
        let writes = advise(&lossy);
        assert_eq!(
            (&*writes.steps, writes.connections_may_help, writes.limit),
            (&[][..], Some(32), Limit::Loss)
        );
        lossy.read_share = 1.0;
        let reads = advise(&lossy);
        assert!(matches!(reads.steps[0].change, Change::Connections(2..=32)), "{reads:?}");
        assert_eq!(reads.connections_may_help, None);
    }

    #[test]
    fn more_connections_may_help_only_where_what_is_left_is_theirs_to_lift() {
        let sizes = Sizes::one(59_392);
        let mut lossy = question();
        lossy.sizes = &sizes;
        (lossy.settings.initial_r2t, lossy.settings.immediate_data) = (false, true);
        (lossy.settings.first_burst_length, lossy.settings.max_recv_data_segment_length) = (262_144, 262_144);
        lossy.paths =
            lossy.paths.map(|path| NetworkPath { loss: 0.001, tcp_window_bytes: Some(100_000_000), ..path });
        // One command has all but what losses leave: a second one brings next to nothing, and is taken back.
        let alone = advise(&lossy);
        assert_eq!((&*alone.steps, alone.limit), (&[][..], Limit::Window));
        assert_eq!(alone.connections_may_help, None);
        // With more headers losses are the limit, and lifting it brings as little.
        lossy.settings.max_recv_data_segment_length = 8192;
        let alone = advise(&lossy);
        assert_eq!((&*alone.steps, alone.limit, alone.connections_may_help), (&[][..], Limit::Loss, None));
        lossy.settings.window = 32;
        let many = advise(&lossy);
        assert_eq!((many.limit, many.connections_may_help), (Limit::Loss, Some(32)));
        // All that there may be are there.
        lossy.settings.connections = CONNECTIONS_MAX;
        assert_eq!(advise(&lossy).connections_may_help, None);
    }

    #[test]
    fn several_connections_with_losses_are_an_upper_bound() {
        let mut several = question();
        (several.settings.window, several.settings.connections) = (512, 8);
        assert!(!several.is_upper_bound() && !several.waits_in_order(), "nothing is lost");
        several.paths[1].loss = 0.001;
        assert!(several.is_upper_bound() && several.waits_in_order());
        // The data of reads comes the other way, and a mix has writes.
        assert!(!Question { read_share: 1.0, ..several }.is_upper_bound());
        assert!(!Question { read_share: 1.0, ..several }.waits_in_order());
        assert!(Question { read_share: 0.9, ..several }.waits_in_order());
        // One command at a time is not faster on several.
        several.settings.window = 1;
        assert!(!several.is_upper_bound());
        (several.settings.window, several.settings.connections) = (512, 1);
        assert!(!several.is_upper_bound());
    }

    #[test]
    fn bursts_as_long_as_what_is_under_way_are_promised_nothing() {
        let mut read = question();
        (read.settings.window, read.read_share) = (32, 1.0);
        let of = |go_on: f64| {
            let bursts = Some(Bursts { begin: 1e-4, go_on });
            let loss = 1e-4 / (1e-4 + 1.0 - go_on);
            NetworkPath { loss, losses_together: 1.0 / (1.0 - go_on), bursts, ..read.paths[0] }
        };
        let nothing_lost = read.paths[0];
        let is_bound = |paths| {
            let question = Question { paths, ..read };
            assert_eq!(question.waits_for_timeouts(), question.is_upper_bound());
            question.is_upper_bound()
        };
        assert!(!is_bound([nothing_lost; 2]) && !is_bound([of(0.9); 2]));
        assert!(is_bound([of(0.99); 2]) && is_bound([of(0.99), nothing_lost]));
        // Who has no acknowledgement sends nothing.
        assert!(is_bound([nothing_lost, of(0.999)]));
        assert!(
            advise(&Question { paths: [of(0.999); 2], ..read }).steps.iter().all(|step| step.is_upper_bound)
        );
    }

    #[test]
    fn each_direction_is_filled_by_its_own_share() {
        let mut slow_up = question();
        slow_up.paths[1].rate_bits_per_s = Some(15.5e6);
        let last = |read_share| {
            let steps = advise(&Question { read_share, ..slow_up }).steps;
            let Some(Step { change: Change::Window(window), limit, .. }) = steps.last() else {
                panic!("{steps:?}")
            };
            (*window, *limit)
        };
        // Down 18.7 MB/s in 53.5 ms for each, up 1.87 MB/s in 85.3 ms, and of both twice that in 69.5 ms on average.
        assert_eq!([1.0, 0.0, 0.5].map(last), [20, 4, 5].map(|window| (window, Limit::Link)));
    }

    #[test]
    fn a_full_line_needs_nothing() {
        let mut full = question();
        (full.settings.window, full.read_share) = (64, 1.0);
        let advice = advise(&full);
        assert_eq!((advice.limit, advice.steps.len()), (Limit::Link, 0));
    }

    #[test]
    fn a_mix_is_lifted_as_far_as_its_largest_size_needs() {
        let sizes: Sizes = "4K:90,512K:10".parse().unwrap();
        let mut mixed = question();
        (mixed.sizes, mixed.settings.initial_r2t, mixed.settings.immediate_data) = (&sizes, false, true);
        // 65,536 bytes go unasked, which is all of most writes, and not of those that carry most of the data.
        let changes: Vec<_> = advise(&mixed).steps.iter().map(|step| step.change).collect();
        assert_eq!(changes[0], Change::Unasked { first_burst_length: 524_288 }, "{changes:?}");
        let window = |question: &Question<'_>| {
            advise(question).steps.iter().find_map(|step| match step.change {
                Change::Window(count) => Some(count),
                _ => None,
            })
        };
        // 18.7 MB/s in the 53.1 ms that one of the mean size of 56,115 bytes takes.
        assert_eq!((window(&mixed), window(&question())), (Some(23), Some(20)));
    }

    #[test]
    fn keys_help_a_mix_whose_losses_have_no_cure() {
        let sizes = Sizes::one(184_320);
        let mut mixed = question();
        (mixed.sizes, mixed.read_share, mixed.settings.window) = (&sizes, 0.02, 15);
        mixed.settings.initial_r2t = false;
        mixed.paths = mixed.paths.map(|path| NetworkPath { round_trip: Duration::from_micros(104), ..path });
        mixed.paths[0].rate_bits_per_s = Some(346e6);
        (mixed.paths[1].rate_bits_per_s, mixed.paths[1].loss) = (Some(86e9), 1e-6);
        let advice = advise(&mixed);
        assert_eq!(advice.limit, Limit::Loss);
        let [Step { change: Change::Unasked { .. }, bytes_per_s, .. }] = advice.steps[..] else {
            panic!("{advice:?}")
        };
        assert!(bytes_per_s > advice.bytes_per_s * 1.15, "{advice:?}");
    }

    #[test]
    fn as_many_commands_are_advised_as_writes_need_that_wait_with_their_r2ts() {
        let sizes = Sizes::one(1_267_712);
        let mut mixed = question();
        (mixed.sizes, mixed.read_share, mixed.settings.initial_r2t) = (&sizes, 0.09, false);
        mixed.paths = [4.9e9, 80e9].map(|rate| NetworkPath {
            rate_bits_per_s: Some(rate),
            round_trip: Duration::from_micros(1837),
            queue_bytes: Some(48_900_000),
            ..mixed.paths[0]
        });
        let advice = advise(&mixed);
        // The last 200 KiB of each write are asked for; 32 commands would do if that waited for nobody.
        let [_, Step { change: Change::Window(36), limit: Limit::Link, .. }] = advice.steps[..] else {
            panic!("{advice:?}")
        };
    }

    proptest! {
        #![proptest_config(lunette_cases::cases(500))]

        #[test]
        fn each_step_brings_something_and_the_last_limit_has_no_cure_left(
            rates in prop::array::uniform2(1e5_f64..1e11),
            rtt_us in 1_u64..1_000_000,
            losses in prop::array::uniform2(prop::sample::select(vec![0.0, 1e-6, 1e-4, 1e-2])),
            tcp_window in prop::option::of(1_u64 << 14..=TCP_WINDOW_BYTES_MAX),
            queue in prop::option::of(1_u64 << 14..1 << 26),
            sizes_kib in prop::collection::vec((1_u32..8192, 1_u32..100), 1..4),
            window in 1_u32..300,
            read_percent in 0_u32..=100,
            keys: (bool, bool),
        ) {
            let mix = sizes_kib.iter().map(|(kib, weight)| format!("{kib}K:{weight}")).collect::<Vec<_>>().join(",");
            let sizes: Sizes = mix.parse().expect("sizes");
            let mut question = question();
            for ((path, rate), loss) in question.paths.iter_mut().zip(rates).zip(losses) {
                path.rate_bits_per_s = Some(rate);
                path.round_trip = Duration::from_micros(rtt_us);
                path.loss = loss;
                path.tcp_window_bytes = tcp_window;
                path.queue_bytes = queue;
            }
            question.sizes = &sizes;
            question.settings.window = window;
            (question.settings.initial_r2t, question.settings.immediate_data) = keys;
            question.read_share = f64::from(read_percent) / 100.0;
            let advice = advise(&question);
            let mut before = advice.bytes_per_s;
            prop_assert!(before > 0.0 && before.is_finite());
            for step in &advice.steps {
                prop_assert!(step.bytes_per_s > before, "{:?}", advice);
                before = step.bytes_per_s;
            }
            prop_assert!(advice.steps.len() < CHANGES_MAX);
            let applied = advice.steps.iter().try_fold(question, |now, step| now.with(step.change));
            let Some(applied) = applied else { return Err(TestCaseError::fail("a step changes nothing")) };
            let Settings { window, connections, first_burst_length, max_burst_length, max_outstanding_r2t, .. } =
                applied.settings;
            prop_assert!(window <= WINDOW_MAX && connections <= CONNECTIONS_MAX);
            prop_assert!(first_burst_length <= max_burst_length && max_burst_length <= BURST_BYTES_MAX);
            prop_assert!(max_outstanding_r2t <= OUTSTANDING_R2T_MAX);
            let tcp_windows = applied.paths.map(|path| path.tcp_window_bytes.unwrap_or_default());
            prop_assert!(tcp_windows.iter().all(|bytes| *bytes <= TCP_WINDOW_BYTES_MAX));
            if let Some(count) = advice.connections_may_help {
                let (rate, limit) = applied.expected();
                prop_assert!(matches!(limit, Limit::Loss | Limit::TcpWindow), "{:?}", advice);
                let more = applied.with(Change::Connections(count)).map_or(0.0, |more| more.expected().0);
                prop_assert!(more > rate, "{:?}", advice);
            }
            // Who has taken it needs no more, and nothing within the ranges is much faster.
            prop_assert!(advise(&applied).steps.is_empty(), "{:?}", applied);
            let mut widest = applied;
            widest.settings.initial_r2t = false;
            widest.settings.first_burst_length = FIRST_BURST_BYTES_MAX.max(first_burst_length);
            widest.settings.max_burst_length = BURST_BYTES_MAX;
            widest.settings.max_outstanding_r2t = OUTSTANDING_R2T_MAX;
            widest.settings.window = WINDOW_MAX;
            if !applied.waits_in_order() {
                widest.settings.connections = CONNECTIONS_MAX;
            }
            for path in &mut widest.paths {
                path.tcp_window_bytes = Some(TCP_WINDOW_BYTES_MAX);
            }
            prop_assert!(widest.expected().0 <= applied.expected().0 * 1.1, "{:?} {:?}", widest.expected(), applied);
        }
    }
}
