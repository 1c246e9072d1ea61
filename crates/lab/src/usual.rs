//! What one of many round trips in a row usually takes.

use std::time::Duration;

/// Of fewer the middle one is taken: one of them that something held up would be a good part of their mean.
const MEAN_MIN: usize = 20;
/// What takes so many times as long as the middle one is a packet that was lost, or a machine that stood still.
const HELD_UP: u32 = 10;

/// The mean of all that nothing held up, for that is what a rate is made of: where a few in a hundred take three times as long as
/// the others, no rate is that of the middle one. Of a few only, the middle one; nothing without any.
pub(crate) fn usual(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort();
    let middle = *times.get(times.len() / 2)?;
    if times.len() < MEAN_MIN {
        return Some(middle);
    }
    times.truncate(times.partition_point(|time| *time < middle * HELD_UP).max(1));
    let sum: Duration = times.iter().sum();
    u32::try_from(times.len()).ok().map(|count| sum / count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual_us(us: &[u64]) -> Option<u128> {
        usual(us.iter().copied().map(Duration::from_micros).collect()).map(|time| time.as_micros())
    }

    #[test]
    fn of_a_few_the_middle_one_is_taken() {
        assert_eq!(usual_us(&[105, 90, 104, 9000, 106]), Some(105));
        assert_eq!((usual_us(&[70]), usual_us(&[])), (Some(70), None));
    }

    #[test]
    fn of_many_it_is_what_their_rate_is_made_of_without_those_that_were_held_up() {
        let mut us = vec![100; 30];
        us.extend([300; 10]);
        assert_eq!(usual_us(&us), Some(150), "and not the 100 of the middle one");
        us.extend([1000, 200_000]);
        assert_eq!(usual_us(&us), Some(150), "two were lost");
        assert_eq!(usual_us(&[0; 20]), Some(0));
    }
}
