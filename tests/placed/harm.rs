//! The moments at which a verb may fail, and the ways.

use std::fmt;

use crate::common::fail_point::FailPoint;
use crate::common::proxy::Fault;
use crate::common::steps::Step;

/// When it happens.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Moment {
    /// At a command to MongoDB.
    Command(Step),
    /// At a pause point of the server.
    Point(String),
    /// While the server finds out what became of a command whose reply was lost.
    Second(Step, Box<Moment>),
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(step) => step.fmt(f),
            Self::Point(name) => write!(f, "·{name}"),
            Self::Second(first, then) => write!(f, "{first}, cut after → {then}"),
        }
    }
}

macro_rules! harms {
    ($($(#[doc = $doc:literal])* $harm:ident $text:literal,)*) => {
        /// What happens.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Harm { $($(#[doc = $doc])* $harm,)* }

        impl Harm {
            pub const ALL: &[Self] = &[$(Self::$harm,)*];

            /// Its name in tables.
            pub fn name(self) -> &'static str {
                match self { $(Self::$harm => $text,)* }
            }
        }
    };
}

harms! {
    /// The connection is reset before MongoDB sees the command.
    CutBefore "cut before",
    /// The command is carried out; its reply is lost with the connection.
    CutAfter "cut after",
    /// The same, and the connection stays open: the server waits until its deadline.
    Swallowed "no reply",
    /// The mongod steps down, as its fail point says.
    StepDown "step-down",
    /// The mongod says that there was a write conflict.
    Conflict "conflict",
    /// The mongod closes the connection instead.
    Closed "closed",
    /// The command is carried out, and its write concern is not confirmed.
    Unconfirmed "unconfirmed",
    /// Each try is cut before MongoDB sees it.
    CutBeforeAlways "cut before, always",
    /// Each try is carried out, and its reply is lost.
    CutAfterAlways "cut after, always",
    /// The command is held for longer than the lease, and arrives then.
    Late "late",
    /// The reply is held for longer than the lease.
    LateReply "late reply",
    /// The server is cut off for longer than the lease; the command never arrives.
    PartedBefore "parted before",
    /// The server is cut off for longer than the lease once the command is carried out.
    PartedAfter "parted after",
    /// The server stands still (SIGSTOP) for longer than the lease.
    Stopped "stopped",
    /// The task alone stands still for longer than the lease.
    Paused "paused",
    /// The client closes its connection.
    ClientGone "client gone",
    /// kill -9; the command never arrives.
    KilledBefore "killed before",
    /// kill -9 once the command is carried out.
    KilledAfter "killed after",
}

impl Harm {
    /// Whether the first server is away for longer than a short lease.
    pub fn is_lasting(self) -> bool {
        self >= Self::Late
    }

    /// Whether this can happen at that moment.
    pub fn fits(self, moment: &Moment) -> bool {
        match moment {
            Moment::Point(_) => {
                matches!(self, Self::Stopped | Self::Paused | Self::ClientGone | Self::KilledAfter)
            }
            Moment::Second(_, then) => {
                let is_one = matches!(
                    self,
                    Self::CutAfter
                        | Self::LateReply
                        | Self::PartedBefore
                        | Self::Stopped
                        | Self::Paused
                        | Self::KilledAfter
                );
                is_one && self.fits(then)
            }
            Moment::Command(_) if self == Self::Paused => false,
            Moment::Command(step) if !step.writes() => matches!(
                self,
                Self::CutBefore
                    | Self::Swallowed
                    | Self::StepDown
                    | Self::CutBeforeAlways
                    | Self::LateReply
                    | Self::PartedBefore
                    | Self::Stopped
                    | Self::ClientGone
                    | Self::KilledBefore
            ),
            // The mongod confirms no single command of a transaction.
            Moment::Command(step) => {
                self != Self::Unconfirmed || !step.in_transaction || step.name == "commitTransaction"
            }
        }
    }

    /// What the proxy does, and whether it does it each time.
    pub fn fault(self) -> (Fault, bool) {
        match self {
            Self::CutBefore => (Fault::CutBefore, false),
            Self::CutAfter => (Fault::CutAfter, false),
            Self::Swallowed => (Fault::SwallowReply, false),
            Self::StepDown => (Fault::Mongod(FailPoint::Error(189)), false),
            Self::Conflict => (Fault::Mongod(FailPoint::Error(112)), false),
            Self::Closed => (Fault::Mongod(FailPoint::Closed), false),
            Self::Unconfirmed => (Fault::Mongod(FailPoint::Unconfirmed), false),
            Self::CutBeforeAlways => (Fault::CutBefore, true),
            Self::CutAfterAlways => (Fault::CutAfter, true),
            Self::Late | Self::ClientGone => (Fault::HoldBefore, false),
            Self::PartedBefore | Self::KilledBefore => (Fault::HoldThenCut, false),
            Self::PartedAfter => (Fault::HoldThenLose, false),
            Self::LateReply | Self::Stopped | Self::KilledAfter | Self::Paused => (Fault::HoldAfter, false),
        }
    }

    /// What a pause point is to do. The test itself stops and kills, so that it knows when.
    pub fn action(self) -> &'static str {
        "pause"
    }
}
