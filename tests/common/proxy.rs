//! A TCP proxy between one server and its MongoDB, which fails where a test wants it to: at the next command of a
//! kind, before it reaches MongoDB or after MongoDB has carried it out.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mongodb::bson::RawBsonRef;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::op_msg::Message;

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
    /// The reply is lost, and the connection stays open.
    SwallowReply,
}

impl Fault {
    fn is_before(self) -> bool {
        matches!(self, Self::CutBefore | Self::HoldBefore | Self::HoldThenCut)
    }
}

/// A command as rules see it.
struct Command {
    name: String,
    collection: String,
}

struct Rule {
    name: String,
    /// Empty: any.
    collection: String,
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
        let patience = Duration::from_secs(30);
        let met = tokio::time::timeout(patience, met.wait_for(|met| *met > 0)).await;
        met.expect("no command met the fault").unwrap();
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
}

impl State {
    /// The fault that strikes this command. It is counted as soon as a command is found to be its own, and reported
    /// when it strikes.
    fn strike(&self, command: &Command) -> Option<Strike> {
        let mut rules = self.rules.lock().unwrap();
        rules.retain(|rule| rule.released.has_changed().is_ok());
        let rule = rules.iter_mut().find(|rule| {
            let fits = rule.collection.is_empty() || rule.collection == command.collection;
            rule.left > 0 && rule.name == command.name && fits
        })?;
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
        if !matches!(self.fault, Fault::CutBefore | Fault::CutAfter | Fault::SwallowReply) {
            let _ = self.released.wait_for(|released| *released).await; // or the test is over
        }
        match self.fault {
            Fault::HoldThenCut | Fault::CutBefore | Fault::CutAfter => {
                Err(io::ErrorKind::ConnectionReset.into())
            }
            Fault::SwallowReply => Ok(false),
            Fault::HoldBefore | Fault::HoldAfter => Ok(true),
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
        let (state, target) = (Arc::<State>::default(), target.to_owned());
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
        format!("mongodb://127.0.0.1:{}/{database}?directConnection=true", self.port)
    }

    /// Strikes the next command of this name, and on this collection where one is given.
    pub fn next(&self, name: &str, collection: &str, fault: Fault) -> Placed {
        self.strike(name, collection, fault, 1)
    }

    /// Strikes every command of this name until the fault is dropped.
    pub fn every(&self, name: &str, collection: &str, fault: Fault) -> Placed {
        self.strike(name, collection, fault, usize::MAX)
    }

    fn strike(&self, name: &str, collection: &str, fault: Fault, left: usize) -> Placed {
        let (met, seen) = watch::channel(0);
        let (release, released) = watch::channel(false);
        let (name, collection) = (name.to_owned(), collection.to_owned());
        self.state.rules.lock().unwrap().push(Rule { name, collection, fault, left, met, released });
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
    let replies: Arc<Mutex<HashMap<i32, Strike>>> = Arc::default();
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
    replies: &Mutex<HashMap<i32, Strike>>,
    mut passing: watch::Receiver<bool>,
) -> io::Result<()> {
    loop {
        let Ok(message) = Message::read(&mut from).await else {
            // What was sent last is carried out all the same.
            tokio::time::sleep(Duration::from_secs(1)).await;
            return Ok(());
        };
        pass(state, &mut passing).await?;
        match command(&message).and_then(|command| state.strike(&command)) {
            Some(strike) if strike.fault.is_before() => {
                strike.carry_out().await?;
            }
            Some(strike) => drop(replies.lock().unwrap().insert(message.id(), strike)),
            None => {}
        }
        to.write_all(&message.0).await?;
    }
}

async fn answers(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    state: &State,
    replies: &Mutex<HashMap<i32, Strike>>,
    mut passing: watch::Receiver<bool>,
) -> io::Result<()> {
    loop {
        let message = Message::read(&mut from).await?;
        pass(state, &mut passing).await?;
        let strike = replies.lock().unwrap().remove(&message.reply_to());
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

/// The command of a message, if it has one.
fn command(message: &Message) -> Option<Command> {
    let (name, value) = message.document()?.iter().next()?.ok()?;
    let collection = match value {
        RawBsonRef::String(collection) => collection.to_owned(),
        _ => String::new(),
    };
    Some(Command { name: name.to_string(), collection })
}
