//! The fail point `failCommand` of a mongod that runs with `enableTestCommands=1`.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use mongodb::Client;
use mongodb::bson::{Document, doc};
use mongodb::options::ClientOptions;
use tokio::sync::{Mutex, RwLock, oneshot};

/// A mongod has one such fail point.
static IN_USE: LazyLock<Arc<Mutex<()>>> = LazyLock::new(Arc::default);

/// What the mongod does instead of a command, or in addition to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailPoint {
    /// It replies with this error, and does not run the command.
    Error(i32),
    /// It closes the connection, and does not run the command.
    Closed,
    /// It runs the command, and says that its write concern is not confirmed.
    Unconfirmed,
}

impl FailPoint {
    /// Sets it for the next command of this name from these connections, until `reply` ends. No other command of theirs
    /// reaches the mongod in between, so that none takes the fault.
    pub async fn set(
        self,
        control: &Client,
        app: &str,
        command: &str,
        others: &Arc<RwLock<()>>,
        reply: oneshot::Receiver<()>,
    ) {
        let in_use = IN_USE.clone().lock_owned().await;
        let alone = others.clone().write_owned().await;
        let mut data = match self {
            Self::Error(code) => doc! { "errorCode": code },
            Self::Closed => doc! { "closeConnection": true },
            Self::Unconfirmed => {
                doc! { "writeConcernError": { "code": 91, "errmsg": "shutting down", "ok": 0 } }
            }
        };
        data.extend(doc! { "failCommands": [command], "appName": app });
        fail_command(control, doc! { "mode": { "times": 1 }, "data": data }).await;
        let control = control.clone();
        tokio::spawn(async move {
            let _ = reply.await; // or the connection was closed
            fail_command(&control, doc! { "mode": "off" }).await;
            drop((in_use, alone));
        });
    }
}

/// A command that the mongod holds back.
pub struct Held(Client);

impl Held {
    /// Whether it has come: it waits, or has waited.
    pub async fn has_come(&self) -> bool {
        let wait = doc! { "waitForFailPoint": "failCommand", "timesEntered": 1_i64, "maxTimeMS": 200 };
        self.0.database("admin").run_command(wait).await.is_ok()
    }
}

/// Holds back the next command of this name on this collection (`DATABASE.COLLECTION`) for so long, and runs it then: on a mongod
/// of a test's own, whose first fault it is.
pub async fn hold(control: &Client, command: &str, namespace: &str, time: Duration) -> Held {
    let time_ms = i64::try_from(time.as_millis()).unwrap();
    let mut data = doc! { "blockConnection": true, "blockTimeMS": time_ms };
    data.extend(doc! { "failCommands": [command], "namespace": namespace });
    fail_command(control, doc! { "mode": { "times": 1 }, "data": data }).await;
    Held(control.clone())
}

/// A client of the mongod itself, past all that a driver does to find a primary.
pub async fn control(mongod: &str) -> Client {
    let url = format!("mongodb://{mongod}/?directConnection=true");
    Client::with_options(ClientOptions::parse(url).await.unwrap()).unwrap()
}

async fn fail_command(control: &Client, settings: Document) {
    let mut command = doc! { "configureFailPoint": "failCommand" };
    command.extend(settings);
    let set = control.database("admin").run_command(command).await;
    set.expect("the mongod must run with --setParameter enableTestCommands=1");
}
