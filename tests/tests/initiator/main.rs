//! Lunette's initiator (`lunette-initiator`) against our target in this process, tgtd and istgt, and against targets that
//! break the rules.

mod caches;
mod changing;
mod commands;
mod elsewhere;
mod engine;
mod erasing;
mod examples;
mod exchanged;
mod faces;
mod guard;
mod hostile;
mod killed;
mod leaving;
mod login;
mod multipath;
mod opening;
mod other_group;
mod overdue;
mod pauses;
mod recovery;
mod resets;
mod short_writes;
mod slow_line;
mod slower_way;
mod watch;
