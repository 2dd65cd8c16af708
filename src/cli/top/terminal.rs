//! The terminal: taken, and given back as it was, however this ends.

use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::state::State;
use crate::cli::failure::Failure;

/// How often the thread that reads keys looks whether it is still needed.
const LOOK: Duration = Duration::from_millis(200);

/// The terminal while it shows this view. Dropping it gives it back.
pub struct Terminal {
    screen: DefaultTerminal,
    events: mpsc::UnboundedReceiver<Event>,
}

impl Terminal {
    /// Takes the terminal. A panic restores it before its message is printed.
    pub fn take() -> Result<Self, Failure> {
        let screen = ratatui::try_init().map_err(|error| Failure::Failed(format!("no terminal: {error}")))?;
        let (send, events) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            while !send.is_closed() {
                match event::poll(LOOK) {
                    Ok(false) => {}
                    Ok(true) => {
                        let Ok(event) = event::read() else { return };
                        if send.send(event).is_err() {
                            return;
                        }
                    }
                    Err(_) => return,
                }
            }
        });
        Ok(Self { screen, events })
    }

    /// Returns the next key or size; nothing where the terminal is gone.
    pub async fn event(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Draws the view.
    pub fn draw(&mut self, state: &mut State) -> Result<(), Failure> {
        self.screen.draw(|frame| state.draw(frame))?;
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Returns once a signal asks this program to end.
pub async fn ended() {
    let signals = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
    let waits = signals.into_iter().flatten().map(|mut signal| Box::pin(async move { signal.recv().await }));
    futures::future::select_all(waits).await;
}
