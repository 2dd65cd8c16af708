//! What the view shows, asked of the server in the background.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use crate::cli::client::{Call, Client, query, segment};
use crate::cli::events::{Event, News, Stream};
use crate::cli::failure::Failure;
use crate::cli::jobs::Page;
use crate::cli::stats::Figures;
use crate::cli::view::Job;

/// How often figures are asked for.
const EVERY: Duration = Duration::from_secs(2);
/// How many jobs of a queue are shown.
const JOBS: &str = "100";

/// What one looks at closely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Focus {
    /// Nothing.
    None,
    /// A queue, and its jobs in this state, if one is chosen.
    Queue(String, Option<&'static str>),
    /// A job.
    Job(String),
}

/// What the server has sent.
pub enum Update {
    /// A message of the stream.
    Event(Box<Event>),
    /// The stream is lost.
    Lost(String),
    /// It is there again.
    Connected,
    /// The figures of all queues, or why there are none.
    Figures(Result<Box<Figures>, Failure>),
    /// A queue and some of its jobs, or why not.
    Queue(Focus, Result<Box<(Figures, Page)>, Failure>),
    /// A job, or why not.
    Job(Focus, Result<Box<Job>, Failure>),
    /// It makes no sense to go on.
    Over(Failure),
}

impl Update {
    /// Returns whether the server has answered, whatever it was.
    pub fn is_answer(&self) -> bool {
        let is_so = |failure: Option<&Failure>| {
            !matches!(failure, Some(Failure::Unreachable(_) | Failure::Unconnected(_)))
        };
        match self {
            Self::Event(_) | Self::Connected => true,
            Self::Lost(_) | Self::Over(_) => false,
            Self::Figures(figures) => is_so(figures.as_ref().err()),
            Self::Queue(_, queue) => is_so(queue.as_ref().err()),
            Self::Job(_, job) => is_so(job.as_ref().err()),
        }
    }
}

/// Begins to ask.
pub fn feed(client: Client, mut stream: Stream, focus: watch::Receiver<Focus>, tell: mpsc::Sender<Update>) {
    let to = tell.clone();
    tokio::spawn(async move {
        loop {
            let told = match stream.follow().await {
                Ok(News::Event(event)) => Update::Event(event),
                Ok(News::Lost(failure)) => Update::Lost(failure.to_string()),
                Ok(News::Connected) => Update::Connected,
                Err(failure) => Update::Over(failure),
            };
            if to.send(told).await.is_err() {
                return;
            }
        }
    });
    let (to, of_figures) = (tell.clone(), client.clone());
    tokio::spawn(async move {
        loop {
            let figures = of_figures.call(&Call::get("/stats").within(EVERY * 5)).await;
            let figures = figures.and_then(|answer| answer.read().map(Box::new));
            if to.send(Update::Figures(figures)).await.is_err() {
                return;
            }
            sleep(EVERY).await;
        }
    });
    tokio::spawn(look_closely(client, focus, tell));
}

async fn look_closely(client: Client, mut focus: watch::Receiver<Focus>, tell: mpsc::Sender<Update>) {
    loop {
        let on = focus.borrow_and_update().clone();
        let asked = async {
            match &on {
                Focus::None => std::future::pending().await,
                Focus::Queue(name, state) => {
                    let of = queue(&client, name, *state).await;
                    Update::Queue(on.clone(), of.map(Box::new))
                }
                Focus::Job(id) => {
                    let call = Call::get(format!("/v1/jobs/{}", segment(id))).within(EVERY * 5);
                    let job = client.call(&call).await.and_then(|answer| answer.read().map(Box::new));
                    Update::Job(on.clone(), job)
                }
            }
        };
        // Another one is asked for at once.
        let told = tokio::select! {
            told = asked => told,
            changed = focus.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        if tell.send(told).await.is_err() {
            return;
        }
        if let Ok(Err(_)) = timeout(EVERY, focus.changed()).await {
            return;
        }
    }
}

async fn queue(client: &Client, name: &str, state: Option<&str>) -> Result<(Figures, Page), Failure> {
    let path = format!("/v1/queues/{}", segment(name));
    let figures = client.call(&Call::get(format!("{path}/stats")).within(EVERY * 5)).await?.read()?;
    let own = |text: &str| Some(text.to_owned());
    let parameters = [("state", state.map(str::to_owned)), ("payload", own("head")), ("limit", own(JOBS))];
    let jobs = client.call(&Call::get(query(&format!("{path}/jobs"), &parameters)).within(EVERY * 5)).await?;
    Ok((figures, jobs.read()?))
}
