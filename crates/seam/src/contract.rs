//! The promises of a driver to a node, and their tests.
//!
//! Every driver (`rt` on io_uring, `rt` on epoll, `sim`) runs the same [`SCENARIOS`] through a
//! [`Harness`]. Simulators usually leave a gap below the message bus, and these scenarios close it:
//! results of the simulator hold for real machines only if both drivers keep the same promises.
//!
//! # The promises
//! 1. **Time.** `now` never goes back, and is never earlier than the arrival of the event's data.
//!    `Tick` comes once [`Node::wake_at`](crate::Node::wake_at) is reached, never early. The driver
//!    calls `wake_at` after each `flush`, and also before the first event.
//! 2. **Batches.** Each batch of events ends with a `flush` before the driver waits. Results that a
//!    driver has at once come as separate events: `on` is never entered from within `on`.
//! 3. **Frames** of one link arrive whole and in order, regardless of their sizes and of how the
//!    stream is split. A frame of [`SendFirst`](crate::Effect::SendFirst) may overtake frames that
//!    were sent earlier, including others of its kind. The framer returns
//!    [`Framing::Frame`](crate::Framing::Frame) once per delivered frame.
//! 4. **Links.** Ids are never reused. `LinkUp` comes first, and at most one `LinkDown` comes last.
//!    No event about a link follows its `LinkDown` or the node's own `Close`. Frames that arrived
//!    whole come before the `LinkDown` of an orderly end, unless the link is paused. Effects on a
//!    link that is gone are ignored.
//! 5. **Close** takes effect after everything that was sent before it, and all of that arrives.
//! 6. **Pause** stops frames, except those that were already received. After **Resume** they
//!    continue, and none is lost. If the peer goes away meanwhile, `LinkDown` comes at once. Its
//!    unread frames are lost, as it no longer waits for answers.
//! 7. **A dial** ends exactly once, in `LinkUp` or `DialFailed`, within about two seconds. It ends
//!    with `Refused` only if the host is up and nothing listens.
//! 8. **Bounds.** A link to a peer that does not read ends in `LinkDown` with `Stuck` at the
//!    configured number of queued bytes. A framer's error ends in `LinkDown` with `Garbage`. If the
//!    node bounds unsent data ([`UnsentLimits`](crate::UnsentLimits)), a driver may stop reading
//!    from such a peer earlier, and may close its link when too much waits for all of them.
//! 9. **Strangers**, if the node bounds them ([`Strangers`](crate::Strangers)): one that sends no
//!    frame in time is closed, and so is the oldest when there are too many, both with `LinkDown`
//!    and `Stranger`. A longer body than allowed is `Garbage`. After `Welcome` a link is no longer
//!    a stranger.
//! 10. **Devices.** Each operation ends in exactly one `DiskDone`. A read sees every write that had
//!     ended before the read was emitted. `Flush` makes durable what had ended before it was
//!     emitted; a write with `durable` needs no flush. A range that leaves the device, or is not a
//!     multiple of its block size, ends in `OutOfRange`. After a `Punch` has ended well, its range
//!     reads as zeros until it is written, and nothing beside it has changed. If it ends in
//!     `Unsupported`, nothing has changed at all.
//! 11. **Reframe** takes effect before the next frame is cut, and only on its link. A peer that
//!     waits for an answer before it sends more is cut in the new mode from then on.
//!
//! The scenarios assume a working network: run them in the simulator without faults.

mod check;
mod probe;
mod roles;

pub use check::Place;
pub use probe::{Probe, ProbeFramer};

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;
use roles::{
    Answerer, Asker, Churner, Closer, Dialer, Flooder, Guest, Host, Pauser, Puncher, Stream,
    Teller, Ticker, Torn, Writer,
};

/// Time that a harness lets one scenario run, by the driver's own clock.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// The configuration that a scenario needs for its drivers.
#[derive(Clone, Debug)]
pub struct Setup {
    /// `Limits::link_queue` of every driver.
    pub link_queue: u64,
    /// Each probe gets the device of the probe at the same index in the last run, in the state that
    /// a crash of its host would leave. Otherwise devices are new and read as zeros.
    pub keep_disks: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup { link_queue: 256 << 20, keep_disks: false }
    }
}

/// Runs probes on one driver.
pub trait Harness {
    /// Runs each probe as a separate node until all are done ([`Probe::is_done`]) or [`DEADLINE`]
    /// has passed, and returns them in the same order.
    ///
    /// Once all are done, no probe gets further events (the end of another one's driver, say).
    ///
    /// Each probe gets one listener for [`crate::Port::Ours`] and one device of at least 64 MiB.
    /// All listeners are open, and each probe has received its [`Place`] through [`Probe::meet`],
    /// before the first probe runs.
    fn run(&mut self, setup: &Setup, probes: Vec<Probe>) -> Vec<Probe>;

    /// Returns true if the harness supports `keep_disks`.
    fn keeps_disks(&self) -> bool {
        false
    }
}

/// One scenario. It panics if the driver breaks a promise.
pub struct Scenario {
    /// Name of the promise that it tests.
    pub name: &'static str,
    run: fn(&mut dyn Harness),
}

impl Scenario {
    /// Runs the scenario.
    pub fn check(&self, harness: &mut dyn Harness) {
        (self.run)(harness);
    }
}

macro_rules! scenario {
    ($name:ident) => {
        Scenario { name: stringify!($name), run: $name }
    };
}

/// All scenarios.
pub const SCENARIOS: &[Scenario] = &[
    scenario!(frames_arrive_whole_and_in_order),
    scenario!(overtaking_frames_arrive_once_and_between_frames),
    scenario!(frames_of_many_links_do_not_mix),
    scenario!(thousands_of_small_frames_arrive),
    scenario!(links_come_and_go),
    scenario!(data_sent_before_close_arrives_and_silence_follows),
    scenario!(half_a_frame_is_no_frame),
    scenario!(a_paused_link_reports_the_end_of_its_peer),
    scenario!(garbage_ends_the_link),
    scenario!(frames_are_cut_in_the_mode_that_was_agreed),
    scenario!(a_dial_without_a_listener_is_refused),
    scenario!(ticks_are_never_early_and_always_come),
    scenario!(ticks_come_in_time_on_a_busy_driver),
    scenario!(a_paused_link_is_silent_and_loses_nothing),
    scenario!(a_queue_up_to_its_bound_is_not_stuck),
    scenario!(a_peer_that_never_reads_is_stuck),
    scenario!(a_silent_stranger_is_closed),
    scenario!(the_oldest_stranger_makes_room),
    scenario!(a_strangers_long_body_is_garbage),
    scenario!(device_operations_end_once_and_are_seen),
    scenario!(flushed_writes_survive),
    scenario!(space_that_was_given_back_reads_as_zeros),
];

fn play(harness: &mut dyn Harness, name: &str, setup: Setup, roles: Vec<Box<dyn roles::Role>>) {
    let probes = roles.into_iter().map(Probe::new).collect();
    let faults: Vec<String> = harness
        .run(&setup, probes)
        .iter()
        .enumerate()
        .flat_map(|(i, p)| p.faults().into_iter().map(move |f| format!("\n  probe {i}: {f}")))
        .collect();
    assert!(faults.is_empty(), "driver contract, {name}:{}", faults.concat());
}

macro_rules! play {
    ($harness:ident, $name:ident, $setup:expr, $($role:expr),+) => {
        play($harness, stringify!($name), $setup, alloc::vec![$(Box::new($role) as Box<dyn roles::Role>),+])
    };
}

fn frames_arrive_whole_and_in_order(h: &mut dyn Harness) {
    let mixed = || Stream::new(1, 400, Stream::MIXED);
    play!(h, frames_arrive_whole_and_in_order, Setup::default(), mixed().dialing(1, 1), mixed());
}

fn overtaking_frames_arrive_once_and_between_frames(h: &mut dyn Harness) {
    let name = "overtaking_frames_arrive_once_and_between_frames";
    let mixed = || Stream::new(1, 400, Stream::MIXED).overtaking();
    let roles: Vec<Box<dyn roles::Role>> =
        alloc::vec![Box::new(mixed().dialing(1, 1)), Box::new(mixed())];
    play(h, name, Setup::default(), roles);
}

fn frames_of_many_links_do_not_mix(h: &mut dyn Harness) {
    let some = || Stream::new(30, 60, Stream::MEDIUM);
    play!(h, frames_of_many_links_do_not_mix, Setup::default(), some().dialing(1, 30), some());
}

fn thousands_of_small_frames_arrive(h: &mut dyn Harness) {
    let many = || Stream::new(1, 8000, Stream::SMALL);
    play!(h, thousands_of_small_frames_arrive, Setup::default(), many().dialing(1, 1), many());
}

fn links_come_and_go(h: &mut dyn Harness) {
    play!(
        h,
        links_come_and_go,
        Setup::default(),
        Churner::dialing(1, 150),
        Churner::accepting(150)
    );
}

fn data_sent_before_close_arrives_and_silence_follows(h: &mut dyn Harness) {
    let name = "data_sent_before_close_arrives_and_silence_follows";
    let roles: Vec<Box<dyn roles::Role>> =
        alloc::vec![Box::new(Closer::new(1, 300)), Box::new(Teller::new(100, 300))];
    play(h, name, Setup::default(), roles);
}

fn half_a_frame_is_no_frame(h: &mut dyn Harness) {
    play!(
        h,
        half_a_frame_is_no_frame,
        Setup::default(),
        Torn::half(1),
        Torn::victim(crate::DownReason::Closed)
    );
}

fn a_paused_link_reports_the_end_of_its_peer(h: &mut dyn Harness) {
    let (name, why) = ("a_paused_link_reports_the_end_of_its_peer", crate::DownReason::Closed);
    let roles: Vec<Box<dyn roles::Role>> =
        alloc::vec![Box::new(Torn::half(1)), Box::new(Torn::victim(why).pausing())];
    play(h, name, Setup::default(), roles);
}

fn garbage_ends_the_link(h: &mut dyn Harness) {
    play!(
        h,
        garbage_ends_the_link,
        Setup::default(),
        Torn::garbage(1),
        Torn::victim(crate::DownReason::Garbage)
    );
}

fn frames_are_cut_in_the_mode_that_was_agreed(h: &mut dyn Harness) {
    let name = "frames_are_cut_in_the_mode_that_was_agreed";
    let roles: Vec<Box<dyn roles::Role>> =
        alloc::vec![Box::new(Asker::new(1, 300)), Box::new(Answerer::new(300))];
    play(h, name, Setup::default(), roles);
}

fn a_dial_without_a_listener_is_refused(h: &mut dyn Harness) {
    play!(h, a_dial_without_a_listener_is_refused, Setup::default(), Dialer::new(20));
}

fn ticks_are_never_early_and_always_come(h: &mut dyn Harness) {
    play!(h, ticks_are_never_early_and_always_come, Setup::default(), Ticker::new(false));
}

fn ticks_come_in_time_on_a_busy_driver(h: &mut dyn Harness) {
    play!(h, ticks_come_in_time_on_a_busy_driver, Setup::default(), Ticker::new(true));
}

fn a_paused_link_is_silent_and_loses_nothing(h: &mut dyn Harness) {
    let sender = Stream::new(1, 3000, Stream::BLOCKS).dialing(1, 1).one_way();
    play!(
        h,
        a_paused_link_is_silent_and_loses_nothing,
        Setup::default(),
        sender,
        Pauser::new(3000)
    );
}

fn a_queue_up_to_its_bound_is_not_stuck(h: &mut dyn Harness) {
    let setup = Setup { link_queue: 1 << 20, ..Setup::default() };
    let some = || Stream::new(1, 10, Stream::LARGE);
    play!(h, a_queue_up_to_its_bound_is_not_stuck, setup, some().dialing(1, 1), some());
}

fn a_peer_that_never_reads_is_stuck(h: &mut dyn Harness) {
    let setup = Setup { link_queue: 1 << 20, ..Setup::default() };
    play!(h, a_peer_that_never_reads_is_stuck, setup, Flooder::new(1, 1 << 20), Pauser::forever());
}

fn a_silent_stranger_is_closed(h: &mut dyn Harness) {
    let name = "a_silent_stranger_is_closed";
    let roles: Vec<Box<dyn roles::Role>> =
        alloc::vec![Box::new(Guest::silent(1, 3)), Box::new(Host::impatient(3))];
    play(h, name, Setup::default(), roles);
}

fn the_oldest_stranger_makes_room(h: &mut dyn Harness) {
    let name = "the_oldest_stranger_makes_room";
    let roles: Vec<Box<dyn roles::Role>> =
        alloc::vec![Box::new(Guest::crowding(1, 20)), Box::new(Host::crowded(20))];
    play(h, name, Setup::default(), roles);
}

fn a_strangers_long_body_is_garbage(h: &mut dyn Harness) {
    let name = "a_strangers_long_body_is_garbage";
    let roles: Vec<Box<dyn roles::Role>> =
        alloc::vec![Box::new(Guest::wordy(1)), Box::new(Host::terse())];
    play(h, name, Setup::default(), roles);
}

fn device_operations_end_once_and_are_seen(h: &mut dyn Harness) {
    play!(h, device_operations_end_once_and_are_seen, Setup::default(), Writer::new(200, false));
}

fn flushed_writes_survive(h: &mut dyn Harness) {
    if h.keeps_disks() {
        play!(h, flushed_writes_survive, Setup::default(), Writer::new(50, false));
        let again = Setup { keep_disks: true, ..Setup::default() };
        play!(h, flushed_writes_survive, again, Writer::new(50, true));
    }
}

fn space_that_was_given_back_reads_as_zeros(h: &mut dyn Harness) {
    let name = "space_that_was_given_back_reads_as_zeros";
    let run = |h: &mut dyn Harness, setup: Setup, only_read: bool| {
        let roles: Vec<Box<dyn roles::Role>> = alloc::vec![Box::new(Puncher::new(200, only_read))];
        play(h, name, setup, roles);
    };
    run(h, Setup::default(), false);
    if h.keeps_disks() {
        run(h, Setup { keep_disks: true, ..Setup::default() }, true);
    }
}
