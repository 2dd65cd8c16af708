//! What goes wrong, how, and for how long.

use std::time::Duration;

use mongodb::bson::doc;
use rand::Rng as _;
use rand::rngs::StdRng;

use super::net::Link;
use super::world::World;
use crate::common::shim::DiskFault;
use crate::common::signal::Signal;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    ServerKilled,
    ServerStopped,
    ServerTerminated,
    ServersRolled,
    /// Between clients and a server: nothing passes.
    ClientsParted,
    /// Responses are held, then the connections are reset.
    ResponsesHeld,
    ResponsesLost,
    ClientsReset,
    ClientsSlow,
    ClockShifted,
    PrimaryKilled,
    SecondaryKilled,
    PrimaryStopped,
    PrimaryTerminated,
    SteppedDown,
    /// The primary and the other members do not hear each other; servers reach all.
    PrimaryParted,
    /// The primary is not heard by the others, and hears them.
    PrimaryUnheard,
    /// A server and all members.
    ServerParted,
    /// A server's commands arrive, the replies do not.
    RepliesHeld,
    RepliesLost,
    ServerReset,
    ServerSlow,
    DiskKilled,
    DiskTorn,
    PowerCut,
    DiskFull,
    DiskStalled,
}

use Kind::{
    ClientsParted, ClientsReset, ClientsSlow, ClockShifted, DiskFull, DiskKilled, DiskStalled, DiskTorn,
    PowerCut, PrimaryKilled, PrimaryParted, PrimaryStopped, PrimaryTerminated, PrimaryUnheard, RepliesHeld,
    RepliesLost, ResponsesHeld, ResponsesLost, SecondaryKilled, ServerKilled, ServerParted, ServerReset,
    ServerSlow, ServerStopped, ServerTerminated, ServersRolled, SteppedDown,
};

pub const OF_MONGO: &[Kind] = &[
    ServerKilled,
    ServerStopped,
    ServerTerminated,
    ServersRolled,
    ClientsParted,
    ResponsesHeld,
    ResponsesLost,
    ClientsReset,
    ClientsSlow,
    ClockShifted,
    PrimaryKilled,
    SecondaryKilled,
    PrimaryStopped,
    PrimaryTerminated,
    SteppedDown,
    PrimaryParted,
    PrimaryUnheard,
    ServerParted,
    RepliesHeld,
    RepliesLost,
    ServerReset,
    ServerSlow,
];
// A file has no clock but its server's: what a shift of that one does is for other tests.
pub const OF_SQLITE: &[Kind] = &[
    ServerKilled,
    ServerStopped,
    ServerTerminated,
    ClientsParted,
    ResponsesHeld,
    ResponsesLost,
    ClientsReset,
    ClientsSlow,
    DiskKilled,
    DiskTorn,
    PowerCut,
    DiskFull,
    DiskStalled,
];

fn ms(dice: &mut StdRng, from: u64, to: u64) -> Duration {
    Duration::from_millis(dice.random_range(from..to))
}

async fn lasts(dice: &mut StdRng, from: u64, to: u64) {
    tokio::time::sleep(ms(dice, from, to)).await;
}

/// Makes a fault happen, and ends it.
pub async fn strike(world: &mut World, kind: Kind, dice: &mut StdRng) {
    let n = dice.random_range(0..world.slots.len());
    match kind {
        ServerKilled => {
            world.kill_server(n).await;
            lasts(dice, 0, 800).await;
            old_or_new(world, n, dice);
            world.start_server(n).await;
        }
        ServerStopped => {
            world.signal_server(n, Signal::SIGSTOP);
            lasts(dice, 300, 4500).await;
            world.signal_server(n, Signal::SIGCONT);
        }
        ServerTerminated => restart(world, n, dice).await,
        ServersRolled => {
            for n in 0..world.slots.len() {
                restart(world, n, dice).await;
                let server = world.slots[n].server.as_ref().unwrap();
                server.until_ready().await;
            }
        }
        ClientsParted => at_gate(world, n, dice, |link| (link.sends, link.receives) = (false, false)).await,
        ResponsesHeld => at_gate(world, n, dice, |link| link.receives = false).await,
        ResponsesLost => at_gate(world, n, dice, |link| link.loses = true).await,
        ClientsReset => world.slots[n].gate.change("client", |link| link.epoch += 1),
        ClientsSlow => {
            let delay = ms(dice, 20, 300);
            at_gate(world, n, dice, |link| link.delay = delay).await;
        }
        ClockShifted => {
            let hours = [-1, 0, 1][dice.random_range(0..3)];
            world
                .slots
                .iter()
                .filter_map(|slot| slot.shim.as_ref())
                .for_each(|shim| shim.shift_clock(hours * 3_600_000));
            lasts(dice, 500, 2000).await;
        }
        DiskKilled | DiskTorn | PowerCut | DiskFull | DiskStalled => disk(world, kind, dice).await,
        _ => of_members(world, kind, n, dice).await,
    }
}

/// Where there is an older build, the second server is one at first, and every other time.
fn old_or_new(world: &mut World, n: usize, dice: &mut StdRng) {
    world.slots[n].is_old = n == 1 && dice.random_bool(0.5);
}

async fn restart(world: &mut World, n: usize, dice: &mut StdRng) {
    world.terminate_server(n).await;
    old_or_new(world, n, dice);
    world.start_server(n).await;
}

/// Changes the link between clients and a server for a while; then connections are reset half of the time.
async fn at_gate(world: &mut World, n: usize, dice: &mut StdRng, change: impl FnOnce(&mut Link)) {
    let gate = &world.slots[n].gate;
    gate.change("client", change);
    tokio::time::sleep(ms(dice, 200, 2500)).await;
    if dice.random_bool(0.5) {
        gate.change("client", |link| link.epoch += 1);
    }
    gate.heal();
}

async fn of_members(world: &mut World, kind: Kind, n: usize, dice: &mut StdRng) {
    let Some(primary) = world.primary().await else { return };
    let other = (primary + 1 + dice.random_range(0..2)) % 3;
    let server = world.slots[n].name.clone();
    match kind {
        PrimaryKilled | SecondaryKilled => {
            let victim = if kind == PrimaryKilled { primary } else { other };
            world.members[victim].mongod.kill();
            lasts(dice, 500, 4000).await;
            world.launch_member(victim);
        }
        PrimaryStopped => {
            world.members[primary].mongod.freeze();
            lasts(dice, 500, 6000).await;
            world.members[primary].mongod.thaw();
        }
        PrimaryTerminated => {
            world.members[primary].mongod.terminate().await;
            world.launch_member(primary);
        }
        SteppedDown => {
            let step_down = doc! { "replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 2 };
            let _ = world.members[primary].mongod.command(step_down).await;
        }
        PrimaryParted | PrimaryUnheard => {
            part(world, primary, kind == PrimaryParted);
            lasts(dice, 1000, 6000).await;
            world.members.iter().for_each(|member| member.gate.heal());
        }
        _ => {
            let delay = ms(dice, 10, 150);
            let change = move |link: &mut Link| match kind {
                ServerParted => (link.sends, link.receives) = (false, false),
                RepliesHeld => link.receives = false,
                RepliesLost => link.loses = true,
                ServerReset => link.epoch += 1,
                _ => link.delay = delay,
            };
            world.members.iter().for_each(|member| member.gate.change(&server, change));
            if kind != ServerReset {
                lasts(dice, 300, 3500).await;
            }
            world.members.iter().for_each(|member| member.gate.heal());
        }
    }
}

/// Cuts a member off from the others, or only what it says.
pub fn part(world: &World, member: usize, is_whole: bool) {
    let name = world.members[member].name.clone();
    for other in (0..3).filter(|other| *other != member) {
        world.members[other].gate.change(&name, |link| {
            link.sends = false;
            link.receives = !is_whole;
        });
        let other_name = &world.members[other].name;
        world.members[member].gate.change(other_name, |link| {
            link.receives = false;
            link.sends = !is_whole;
        });
    }
}

async fn disk(world: &mut World, kind: Kind, dice: &mut StdRng) {
    let fault = match (kind, dice.random_bool(0.5)) {
        (DiskKilled, true) => DiskFault::KillBefore,
        (DiskKilled, false) => DiskFault::KillAfter,
        (DiskTorn, _) => DiskFault::Torn,
        (PowerCut, true) => DiskFault::PowerCut,
        (PowerCut, false) => DiskFault::PowerCutPartly,
        (DiskFull, _) => DiskFault::FullFrom,
        _ => DiskFault::StallFrom,
    };
    let shim = world.slots[0].shim.as_ref().unwrap();
    shim.arm(fault, shim.count() + dice.random_range(1..60));
    lasts(dice, 500, 2500).await;
    world.slots[0].shim.as_ref().unwrap().heal();
    if fault.kills() {
        world.kill_server(0).await;
        world.start_server(0).await;
    }
}
