//! A proxy before a mongod that makes one step of a transaction fail.
//!
//! Errors and connections that close before a command runs come from the mongod's own fail point `failCommand`; replies
//! that get lost, and sessions that are killed, from here. A server has one `failCommand`: it is set only while the
//! command that it is meant for is on its way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use mongodb::Client;
use mongodb::bson::{Document, doc};
use mongodb::options::ClientOptions;
use tokio::io::AsyncWriteExt as _;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::common::op_msg::Message;

/// Held while `failCommand` is set.
static FAIL_POINT: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The mongod answers with this error, before it runs the command.
    Error(i32),
    /// The mongod closes the connection before it runs the command.
    Closed,
    /// The mongod runs the command; its reply gets lost with the connection.
    LostReply,
    /// The session is killed, and its transaction with it. A commit gets lost as well.
    Killed,
    /// The commit is carried out, and its write concern is not confirmed.
    Unconfirmed,
    /// From here on the mongod cannot be reached.
    Away,
}

/// In each attempt.
pub const ALWAYS: usize = usize::MAX;

/// Where it goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Before the transaction begins.
    Begin,
    /// At this command of the transaction.
    Command(usize),
    /// At its commit.
    Commit,
}

/// What is to go wrong in the next call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    pub step: Step,
    pub fault: Fault,
    /// How often, at most.
    pub times: usize,
}

#[derive(Default)]
struct State {
    plan: Option<Plan>,
    /// How many commands each transaction has sent, by session and number.
    sent: HashMap<String, usize>,
    /// How often the plan was carried out.
    hits: usize,
    /// Whether the mongod cannot be reached.
    is_away: bool,
    /// The sessions that had transactions.
    sessions: Vec<Document>,
    /// The commands of transactions, for a failure's message and to know how many there are.
    seen: Vec<String>,
}

struct Shared {
    app: String,
    mongod: u16,
    control: Client,
    state: Mutex<State>,
    /// Written to while `failCommand` is set, so that no other command of the store takes the fault.
    others: tokio::sync::RwLock<()>,
}

/// A proxy for one store. The store must name itself like the proxy, so that the faults are its own.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Listens before the mongod on this port.
    pub async fn start(mongod: u16, app: &str) -> Self {
        let url = format!("mongodb://127.0.0.1:{mongod}/?directConnection=true");
        let control = Client::with_options(ClientOptions::parse(url).await.unwrap()).unwrap();
        let (app, state, others) = (app.to_owned(), Mutex::default(), tokio::sync::RwLock::default());
        let shared = Arc::new(Shared { app, mongod, control, state, others });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = shared.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let shared = serving.clone();
                tokio::spawn(async move { serve(&shared, client).await });
            }
        });
        Self { port, shared }
    }

    /// The URL of a database behind it.
    pub fn url(&self, database: &str) -> String {
        let Shared { app, .. } = &*self.shared;
        format!("mongodb://127.0.0.1:{}/{database}?directConnection=true&appName={app}", self.port)
    }

    /// From now on this goes wrong, or nothing.
    pub fn plan(&self, plan: Option<Plan>) {
        let begins_away = plan.is_some_and(|plan| plan.step == Step::Begin);
        let (is_away, hits) = (begins_away, usize::from(begins_away));
        *self.shared.state.lock().unwrap() = State { plan, is_away, hits, ..State::default() };
    }

    /// From now on nothing goes wrong.
    pub fn recover(&self) {
        let mut state = self.shared.state.lock().unwrap();
        (state.plan, state.is_away) = (None, false);
    }

    /// Ends the transactions that were left open since the last plan.
    pub async fn end_sessions(&self) {
        let sessions = std::mem::take(&mut self.shared.state.lock().unwrap().sessions);
        if !sessions.is_empty() {
            let admin = self.shared.control.database("admin");
            admin.run_command(doc! { "killSessions": sessions }).await.unwrap();
        }
    }

    /// How many transactions were begun since it was planned.
    pub fn transactions(&self) -> usize {
        self.shared.state.lock().unwrap().sent.len()
    }

    /// How often it went wrong, and the commands of transactions since it was planned.
    pub fn seen(&self) -> (usize, Vec<String>) {
        let state = self.shared.state.lock().unwrap();
        (state.hits, state.seen.clone())
    }
}

/// One connection: a request, then its reply, or several.
async fn serve(shared: &Shared, client: TcpStream) -> Option<()> {
    let mongod = TcpStream::connect(("127.0.0.1", shared.mongod)).await.ok()?;
    let ((mut requests, mut replies), (mut from, mut to)) = (client.into_split(), mongod.into_split());
    loop {
        let request = read(&mut requests).await?;
        if shared.state.lock().unwrap().is_away {
            return None;
        }
        let command = body(&request);
        let fault = command.as_ref().and_then(|command| shared.fault(command));
        match (fault, command) {
            (Some(fault), Some(command)) => {
                let reply = shared.inject(fault, &command, &request, (&mut to, &mut from)).await?;
                replies.write_all(&reply.0).await.ok()?;
            }
            (_, command) => {
                // Monitoring, which waits for news, is not among what may fail.
                let may_fail = command.is_some_and(|command| !command.contains_key("hello"));
                let _held = if may_fail { Some(shared.others.read().await) } else { None };
                to.write_all(&request.0).await.ok()?;
                loop {
                    let reply = read(&mut from).await?;
                    replies.write_all(&reply.0).await.ok()?;
                    if !reply.is_followed() {
                        break;
                    }
                }
            }
        }
    }
}

impl Shared {
    /// Whether this command is to fail, and how.
    fn fault(&self, command: &Document) -> Option<Fault> {
        let name = command.keys().next()?.clone();
        if command.get_bool("autocommit").unwrap_or(true) || name == "abortTransaction" {
            return None;
        }
        let mut state = self.state.lock().unwrap();
        let own = format!("{:?} {:?}", command.get("lsid"), command.get("txnNumber"));
        let sent = state.sent.entry(own).or_default();
        let at = if name == "commitTransaction" { Step::Commit } else { Step::Command(*sent) };
        *sent += 1;
        state.seen.push(name);
        let lsid = command.get_document("lsid").unwrap();
        if !state.sessions.contains(lsid) {
            state.sessions.push(lsid.clone());
        }
        let plan = state.plan.filter(|plan| plan.step == at && state.hits < plan.times)?;
        state.hits += 1;
        state.is_away = plan.fault == Fault::Away;
        Some(plan.fault)
    }

    /// Lets a command fail, and returns its reply, if there is one.
    async fn inject(
        &self,
        fault: Fault,
        command: &Document,
        request: &Message,
        (to, from): (&mut OwnedWriteHalf, &mut OwnedReadHalf),
    ) -> Option<Message> {
        let name = command.keys().next()?;
        let is_commit = name == "commitTransaction";
        let fail = match fault {
            Fault::Killed => {
                let lsid = command.get_document("lsid").unwrap().clone();
                let admin = self.control.database("admin");
                admin.run_command(doc! { "killSessions": [lsid] }).await.unwrap();
                if is_commit {
                    return None;
                }
                None
            }
            Fault::LostReply => {
                to.write_all(&request.0).await.ok()?;
                read(from).await?;
                return None;
            }
            Fault::Away => return None,
            Fault::Error(code) => Some(doc! { "errorCode": code }),
            Fault::Closed => Some(doc! { "closeConnection": true }),
            Fault::Unconfirmed => {
                Some(doc! { "writeConcernError": { "code": 91, "errmsg": "shutting down", "ok": 0 } })
            }
        };
        let Some(mut data) = fail else {
            to.write_all(&request.0).await.ok()?;
            return read(from).await;
        };
        data.extend(doc! { "failCommands": [name], "appName": &self.app });
        let (_held, _others) = (FAIL_POINT.lock().await, self.others.write().await);
        self.fail_command(doc! { "mode": { "times": 1 }, "data": data }).await;
        let sent = to.write_all(&request.0).await;
        let reply = match sent {
            Ok(()) => read(from).await,
            Err(_) => None,
        };
        self.fail_command(doc! { "mode": "off" }).await;
        let failed = reply.as_ref().and_then(body).is_none_or(|reply| {
            reply.contains_key("writeConcernError") || reply.get_f64("ok").is_ok_and(|ok| ok == 0.0)
        });
        if !failed {
            // Another command of the store that was on its way took the fault: the caller tries again.
            let mut state = self.state.lock().unwrap();
            state.hits = state.hits.saturating_sub(1); // the plan may be another one by now
        }
        reply
    }

    async fn fail_command(&self, settings: Document) {
        let mut command = doc! { "configureFailPoint": "failCommand" };
        command.extend(settings);
        let set = self.control.database("admin").run_command(command).await;
        set.expect("the mongod must run with --setParameter enableTestCommands=1");
    }
}

/// The next message, or nothing where the connection ends.
async fn read(from: &mut OwnedReadHalf) -> Option<Message> {
    Message::read(from).await.ok()
}

/// The document of a message, which the driver and the mongod send first.
fn body(message: &Message) -> Option<Document> {
    message.document()?.try_into().ok()
}
