//! `tailback top`

mod draw;
mod feed;
mod keys;
mod screens;
mod state;
mod terminal;

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use self::feed::{Focus, Update, feed};
use self::state::State;
use self::terminal::{Terminal, ended};
use super::events::Stream;
use super::failure::{DONE, Failure};
use super::{Context, Run};

/// How often the view is drawn at most.
const FRAME: Duration = Duration::from_millis(100);
/// How often it is drawn at least, for ages.
const TICK: Duration = Duration::from_secs(1);

/// Arguments of `top`.
#[derive(Debug, clap::Args)]
pub struct Top {
    /// The queues: names, or prefixes such as mail.*; all if none are named
    queues: Vec<String>,
    /// What the queues are sorted by
    #[arg(long, value_enum, default_value_t = state::Sort::Ready)]
    sort: state::Sort,
}

impl Run for Top {
    async fn run(self, context: &Context) -> Result<u8, Failure> {
        if context.out.is_json || !context.out.is_terminal() {
            let text = "top needs a terminal; scripts take `tailback stats --json` or `tailback tail --json`";
            return Err(Failure::Usage(text.to_owned()));
        }
        let mut stream = Stream::new(context.client.clone(), &self.queues, None);
        stream.connect().await?; // before the terminal is taken
        let (focus, on) = watch::channel(Focus::None);
        let (tell, mut told) = mpsc::channel(64);
        feed(context.client.clone(), stream, on, tell);
        let mut state = State::new(context.client.url(), self.sort, context.out.has_colours, focus);
        let mut terminal = Terminal::take()?;
        let (mut tick, mut end) = (interval(TICK), std::pin::pin!(ended()));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut drawn, mut is_stale) = (Instant::now(), true);
        loop {
            tokio::select! {
                () = &mut end => return Ok(DONE),
                event = terminal.event() => match event {
                    Some(event) if state.take_input(&event) => return Ok(DONE),
                    Some(_) => is_stale = true,
                    // The terminal is gone.
                    None => return Ok(DONE),
                },
                Some(news) = told.recv() => {
                    if let Update::Over(failure) = news {
                        return Err(failure);
                    }
                    state.take(news);
                    is_stale = true;
                },
                _ = tick.tick() => is_stale = true,
                () = sleep_until(drawn + FRAME), if is_stale => {
                    terminal.draw(&mut state)?;
                    (drawn, is_stale) = (Instant::now(), false);
                },
            }
        }
    }
}
