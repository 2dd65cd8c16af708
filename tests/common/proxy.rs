//! A TCP proxy between one server and its MongoDB, which fails where a test wants it to: at the next command of a
//! kind, or at one step of what the test watches; before it reaches MongoDB or after MongoDB has carried it out.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mongodb::Client;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OnceCell, OwnedRwLockReadGuard, RwLock, oneshot, watch};
use tokio::task::JoinHandle;

use super::fail_point::{FailPoint, control};
use super::op_msg::Message;
use super::server::PATIENCE;
use super::steps::{Command, Step, Watch};

/// What is to happen to a command, or to its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection is reset before MongoDB sees the command.
    CutBefore,
    /// The same, and not before the test says so.
    HoldThenCut,
    /// The connection is reset once MongoDB has replied; the reply is lost.
    CutAfter,
    /// The command waits in the proxy until it is released, whatever has become of the server meanwhile.
    HoldBefore,
    /// The reply waits in the proxy until it is released.
    HoldAfter,
    /// The reply waits until it is released, and is lost with the connection.
    HoldThenLose,
    /// The reply is lost, and the connection stays open.
    SwallowReply,
    /// The mongod itself fails the command, by its fail point.
    Mongod(FailPoint),
}

impl Fault {
    fn is_before(self) -> bool {
        matches!(self, Self::CutBefore | Self::HoldBefore | Self::HoldThenCut)
    }
}

/// Which command a fault is for.
enum Target {
    /// One of this name, and on this collection unless that is empty.
    Named(String, String),
    /// This step of what is watched.
    Step(Step),
    /// This step, and whatever comes after it that is like it.
    From(Step),
}

impl Target {
    fn is(&self, command: &Command, step: Option<&Step>) -> bool {
        match self {
            Self::Named(name, collection) => {
                *name == command.name && (collection.is_empty() || *collection == command.collection)
            }
            Self::Step(target) => step == Some(target),
            Self::From(target) => step.is_some_and(|step| step.is_again(target)),
        }
    }
}

struct Rule {
    target: Target,
    fault: Fault,
    left: usize,
    met: watch::Sender<usize>,
    released: watch::Receiver<bool>,
}

/// A fault that waits for its command. Dropped, it strikes no more, and lets go of what it holds.
pub struct Placed {
    met: watch::Receiver<usize>,
    released: watch::Sender<bool>,
}

impl Placed {
    /// Waits until it has struck.
    pub async fn met(&self) {
        let mut met = self.met.clone();
        let met = tokio::time::timeout(PATIENCE, met.wait_for(|met| *met > 0)).await;
        met.expect("no command met the fault").unwrap();
    }

    /// Whether it has struck, or strikes within this time.
    pub async fn met_within(&self, patience: Duration) -> bool {
        let mut met = self.met.clone();
        tokio::time::timeout(patience, met.wait_for(|met| *met > 0)).await.is_ok()
    }

    /// How often it has struck.
    pub fn times(&self) -> usize {
        *self.met.borrow()
    }

    /// Lets go of what it holds.
    pub fn release(&self) {
        self.released.send_replace(true);
    }
}

#[derive(Default)]
struct State {
    rules: Mutex<Vec<Rule>>,
    /// What every message waits before it passes.
    delay: Mutex<Duration>,
    watch: Mutex<Watch>,
    /// The name by which the mongod knows the connections of this proxy.
    app: String,
    mongod: String,
    control: OnceCell<Client>,
    /// Read while a command is at the mongod, written while its fail point is set for another one.
    at_mongod: Arc<RwLock<()>>,
}

/// What waits for the reply to a command.
#[derive(Default)]
struct Reply {
    strike: Option<Strike>,
    _at_mongod: Option<OwnedRwLockReadGuard<()>>,
    came: Option<oneshot::Sender<()>>,
}

type Replies = Mutex<HashMap<i32, Reply>>;

impl State {
    /// The fault that strikes this command. It is counted as soon as a command is found to be its own, and reported
    /// when it strikes.
    fn strike(&self, command: &Command, message: &Message) -> Option<Strike> {
        let step = self.watch.lock().unwrap().note(command, message);
        let mut rules = self.rules.lock().unwrap();
        rules.retain(|rule| rule.released.has_changed().is_ok());
        let rule = rules.iter_mut().find(|rule| rule.left > 0 && rule.target.is(command, step.as_ref()))?;
        rule.left -= 1;
        let Rule { fault, met, released, .. } = rule;
        Some(Strike { fault: *fault, met: met.clone(), released: released.clone() })
    }
}

/// A fault and the command that it strikes.
struct Strike {
    fault: Fault,
    met: watch::Sender<usize>,
    released: watch::Receiver<bool>,
}

impl Strike {
    /// Whether the message passes, after a while; an error: the connection breaks.
    async fn carry_out(mut self) -> io::Result<bool> {
        self.met.send_modify(|met| *met += 1);
        if matches!(
            self.fault,
            Fault::HoldBefore | Fault::HoldAfter | Fault::HoldThenCut | Fault::HoldThenLose
        ) {
            let _ = self.released.wait_for(|released| *released).await; // or the test is over
        }
        match self.fault {
            Fault::HoldThenCut | Fault::HoldThenLose | Fault::CutBefore | Fault::CutAfter => {
                Err(io::ErrorKind::ConnectionReset.into())
            }
            Fault::SwallowReply => Ok(false),
            Fault::HoldBefore | Fault::HoldAfter | Fault::Mongod(_) => Ok(true),
        }
    }
}

/// See the module's documentation. Dropping it cuts every connection.
pub struct Proxy {
    port: u16,
    state: Arc<State>,
    /// Whether messages pass.
    passing: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Between a server and the MongoDB at `host:port`.
    pub async fn start(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        static PROXIES: AtomicU32 = AtomicU32::new(0);
        let app = format!("proxy-{}-{}", std::process::id(), PROXIES.fetch_add(1, Ordering::Relaxed));
        let state = Arc::new(State { app, mongod: target.to_owned(), ..State::default() });
        let target = target.to_owned();
        let (passing, seen) = watch::channel(true);
        let shared = state.clone();
        let accepting = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let (state, target, passing) = (shared.clone(), target.clone(), seen.clone());
                tokio::spawn(async move {
                    if let Ok(server) = TcpStream::connect(target).await {
                        connection(client, server, state, passing).await;
                    }
                });
            }
        });
        Self { port, state, passing, accepting }
    }

    /// In front of the MongoDB of this URL.
    pub async fn before(url: &str) -> Self {
        let hosts = url.strip_prefix("mongodb://").unwrap();
        Self::start(hosts.split(['/', ',', '?']).next().unwrap()).await
    }

    /// The URL of the same database by way of the proxy. The driver must not look for the members by itself.
    pub fn url(&self, url: &str) -> String {
        let hosts = url.strip_prefix("mongodb://").unwrap();
        let database = hosts.split(['/', '?']).nth(1).unwrap();
        format!(
            "mongodb://127.0.0.1:{}/{database}?directConnection=true&appName={}",
            self.port, self.state.app
        )
    }

    /// Strikes the next command of this name, and on this collection where one is given.
    pub fn next(&self, name: &str, collection: &str, fault: Fault) -> Placed {
        self.strike(Target::Named(name.to_owned(), collection.to_owned()), fault, 1)
    }

    /// Strikes every command of this name until the fault is dropped.
    pub fn every(&self, name: &str, collection: &str, fault: Fault) -> Placed {
        self.strike(Target::Named(name.to_owned(), collection.to_owned()), fault, usize::MAX)
    }

    /// From now on commands that contain one of these texts are steps, and so are those of their transactions.
    pub fn watch(&self, texts: &[String]) {
        *self.state.watch.lock().unwrap() = Watch::new(texts);
    }

    /// The steps so far.
    pub fn steps(&self) -> Vec<Step> {
        self.state.watch.lock().unwrap().steps()
    }

    /// The sessions whose transactions were among the steps.
    pub fn sessions(&self) -> Vec<mongodb::bson::Document> {
        self.state.watch.lock().unwrap().sessions()
    }

    /// Strikes at this step.
    pub fn at(&self, step: &Step, fault: Fault) -> Placed {
        self.strike(Target::Step(step.clone()), fault, 1)
    }

    /// Strikes at this step, and whenever it is tried again, until the fault is dropped.
    pub fn from(&self, step: &Step, fault: Fault) -> Placed {
        self.strike(Target::From(step.clone()), fault, usize::MAX)
    }

    fn strike(&self, target: Target, fault: Fault, left: usize) -> Placed {
        let (met, seen) = watch::channel(0);
        let (release, released) = watch::channel(false);
        self.state.rules.lock().unwrap().push(Rule { target, fault, left, met, released });
        Placed { met: seen, released: release }
    }

    /// From now on nothing passes in either direction. Connections stay open, and what is sent waits.
    pub fn part(&self) {
        self.passing.send_replace(false);
    }

    /// Everything passes again, also what has waited.
    pub fn heal(&self) {
        self.passing.send_replace(true);
    }

    /// Every message waits so long before it passes.
    pub fn slow(&self, delay: Duration) {
        *self.state.delay.lock().unwrap() = delay;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Carries messages both ways until either side closes, or a fault cuts it.
async fn connection(client: TcpStream, server: TcpStream, state: Arc<State>, passing: watch::Receiver<bool>) {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let replies = Replies::default();
    // Both halves of both sockets are dropped with the first direction that ends.
    tokio::select! {
        _ = commands(from_client, to_server, &state, &replies, passing.clone()) => {}
        _ = answers(from_server, to_client, &state, &replies, passing) => {}
    }
}

async fn commands(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    state: &State,
    replies: &Replies,
    mut passing: watch::Receiver<bool>,
) -> io::Result<()> {
    loop {
        let Ok(message) = Message::read(&mut from).await else {
            // What was sent last is carried out all the same.
            tokio::time::sleep(Duration::from_secs(1)).await;
            return Ok(());
        };
        pass(state, &mut passing).await?;
        if let Some(command) = Command::of(&message) {
            let mut strike = state.strike(&command, &message);
            if strike.as_ref().is_some_and(|strike| strike.fault.is_before())
                && let Some(strike) = strike.take()
            {
                strike.carry_out().await?;
            }
            let mut reply = Reply::default();
            if let Some(Strike { fault: Fault::Mongod(fail_point), ref met, .. }) = strike {
                met.send_modify(|met| *met += 1); // there may be no reply
                let (came, waits) = oneshot::channel();
                reply.came = Some(came);
                let control = state.control.get_or_init(|| control(&state.mongod)).await;
                fail_point.set(control, &state.app, &command.name, &state.at_mongod, waits).await;
            } else if !command.waits_for_news() {
                reply._at_mongod = Some(state.at_mongod.clone().read_owned().await);
            }
            reply.strike = strike;
            replies.lock().unwrap().insert(message.id(), reply);
        }
        to.write_all(&message.0).await?;
    }
}

async fn answers(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    state: &State,
    replies: &Replies,
    mut passing: watch::Receiver<bool>,
) -> io::Result<()> {
    loop {
        let message = Message::read(&mut from).await?;
        // Whoever waits for this reply, or for none to be on its way, goes on.
        let strike = replies.lock().unwrap().remove(&message.reply_to()).and_then(|reply| reply.strike);
        pass(state, &mut passing).await?;
        if let Some(strike) = strike
            && !strike.carry_out().await?
        {
            continue;
        }
        to.write_all(&message.0).await?;
    }
}

async fn pass(state: &State, passing: &mut watch::Receiver<bool>) -> io::Result<()> {
    let gone = |_| io::Error::from(io::ErrorKind::ConnectionReset);
    passing.wait_for(|passing| *passing).await.map_err(gone)?;
    let delay = *state.delay.lock().unwrap();
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    Ok(())
}
