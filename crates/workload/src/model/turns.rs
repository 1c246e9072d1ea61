//! Commands that take turns at stations, of which each serves one at a time: mean value analysis (Reiser and Lavenberg, 1980).

/// Commands per second of so many that take turns at stations, each of which serves one command at a time for as long as is said
/// here, in seconds; and each command is besides on its own for `alone_s`. Infinite where none of it takes any time.
///
/// By mean value analysis, as for writes with R2Ts: who comes to a station finds there what is there on average with one command
/// fewer, of which the part that is being served is half done.
#[must_use]
pub fn in_turns(commands: u32, alone_s: f64, stations_s: &[f64]) -> f64 {
    let mut queues = vec![0.0_f64; stations_s.len()];
    let slowest = stations_s.iter().copied().fold(0.0, f64::max);
    let mut rate = 0.0_f64;
    for present in 1..=commands.max(1) {
        let wait =
            |(queue, service): (&f64, &f64)| ((queue - (rate * service).min(1.0) / 2.0) * service).max(0.0);
        let waits: Vec<f64> = queues.iter().zip(stations_s).map(wait).collect();
        let turn_s = alone_s + stations_s.iter().sum::<f64>() + waits.iter().sum::<f64>();
        rate = (f64::from(present) / turn_s).min(1.0 / slowest);
        if rate.is_infinite() {
            return rate;
        }
        for (queue, (service, wait)) in queues.iter_mut().zip(stations_s.iter().zip(&waits)) {
            *queue = rate * (service + wait);
        }
    }
    rate
}

/// Commands per second of so many that take turns on a line, each of which takes it twice: for a moment with its header, and for `line_s`
/// with its data; infinite without a line. `command_time_s` is the time of one that is alone.
///
/// Who comes to the line finds there what is there on average with one command fewer (mean value analysis; Reiser and Lavenberg,
/// 1980), of which the part that is on its way is half done.
pub(super) fn meeting(window: u32, command_time_s: f64, line_s: f64) -> f64 {
    if line_s <= 0.0 {
        return f64::INFINITY;
    }
    let (mut rate, mut queue) = (0.0, 0.0);
    for commands in 1..=window.max(1) {
        let busy = (rate * line_s).min(1.0);
        let wait_s = ((queue - busy / 2.0) * line_s).max(0.0);
        rate = (f64::from(commands) / (command_time_s + 2.0 * wait_s)).min(1.0 / line_s);
        queue = rate * (line_s + wait_s);
    }
    rate
}

#[cfg(test)]
mod tests {
    use super::super::tests::assert_near;
    use super::*;

    #[test]
    fn who_takes_turns_waits_for_others_where_stations_are_busy() {
        let near =
            |value: f64, wanted: f64| assert!((value / wanted - 1.0).abs() < 1e-9, "{value}, {wanted}");
        near(in_turns(1, 0.002, &[0.001, 0.001]), 250.0);
        // Far more than a station serves, and far fewer.
        near(in_turns(500, 0.002, &[0.001, 0.0001]), 1000.0);
        let few = in_turns(2, 1.0, &[0.001]);
        assert!(few < 2.0 / 1.001 + 1e-9 && few > 1.99, "{few}");
        // Where two limits meet, neither is reached.
        let met = in_turns(8, 0.006, &[0.001, 0.001]);
        assert!((600.0..1000.0).contains(&met), "{met}");
        assert!(in_turns(3, 0.0, &[0.0]).is_infinite() && in_turns(3, 0.0, &[]).is_infinite());
    }

    #[test]
    fn commands_wait_behind_the_data_of_others() {
        let line_s = 0.0035;
        let rate = |window| meeting(window, 0.1035, line_s);
        // Alone nobody waits; with many the line is full; in between neither limit is reached.
        assert_near(rate(1), 1.0 / 0.1035);
        assert_near(rate(200), 1.0 / line_s);
        let bound = (32.0 / 0.1035_f64).min(1.0 / line_s);
        // If all go together, the line has nothing to do for one of the two round trips.
        let together = 32.0 / (32.0 * line_s + 0.05);
        assert!(rate(32) < 0.95 * bound && rate(32) > 1.25 * together, "{} of {bound}", rate(32));
        assert_eq!(meeting(32, 0.1, 0.0), f64::INFINITY);
    }
}
