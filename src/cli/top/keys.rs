//! What keys do.

use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::state::{Cursor, Screen, Sort, State};
use crate::cli::events::LeftOut;

/// What the keys mean, for people.
pub const HELP: [(&str, &str); 10] = [
    ("↑ ↓  j k", "choose a line"),
    ("PgUp PgDn", "a page; g G, Home End: first and last"),
    ("Enter  →", "look closely: a queue, a job"),
    ("Esc  ←", "back"),
    ("s  S", "sort by the next, the previous column"),
    ("r", "the other way round"),
    ("/", "only queues with this in their names"),
    ("f", "in a queue: jobs of the next state"),
    ("?", "this"),
    ("q", "end"),
];

impl State {
    /// Takes a key, and returns whether that was to end.
    pub fn take_input(&mut self, event: &Event) -> bool {
        let Event::Key(key) = event else { return false };
        if key.kind == KeyEventKind::Release {
            return false;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && matches!(key.code, KeyCode::Char('c' | 'd')) {
            return true;
        }
        if self.is_typing {
            self.type_filter(key);
            return false;
        }
        if std::mem::take(&mut self.is_help) {
            return key.code == KeyCode::Char('q');
        }
        match key.code {
            KeyCode::Char('q') => return true,
            KeyCode::Char('?' | 'h') => self.is_help = true,
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::PageUp => self.step(-self.a_page()),
            KeyCode::PageDown | KeyCode::Char(' ') => self.step(self.a_page()),
            KeyCode::Home | KeyCode::Char('g') => self.rewind(),
            KeyCode::End | KeyCode::Char('G') => self.step(isize::MAX / 2),
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => self.enter(),
            KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => self.back(),
            KeyCode::Char('s') if self.screen == Screen::Overview => self.sort_by(1),
            KeyCode::Char('S') if self.screen == Screen::Overview => self.sort_by(Sort::ALL.len() - 1),
            KeyCode::Char('r') if self.screen == Screen::Overview => {
                self.sort.1 = !self.sort.1;
                self.rewind();
            }
            KeyCode::Char('/') if self.screen == Screen::Overview => self.is_typing = true,
            KeyCode::Char('f') if self.screen == Screen::Queue => self.next_state(),
            _ => {}
        }
        false
    }

    fn type_filter(&mut self, key: &KeyEvent) {
        match key.code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
    }

    fn a_page(&self) -> isize {
        isize::try_from(self.page.saturating_sub(1).max(1)).unwrap_or(1)
    }

    fn step(&mut self, by: isize) {
        match self.screen {
            Screen::Overview => {
                let names: Vec<String> = self.rows().iter().map(|row| row.queue.clone()).collect();
                self.queue.step(by, names.iter().map(String::as_str));
            }
            Screen::Queue => {
                let ids: Vec<String> = self.jobs().iter().map(|job| job.id.clone()).collect();
                self.job.step(by, ids.iter().map(String::as_str));
            }
            // How far one can go is known when it is drawn.
            Screen::Job => self.scroll = self.scroll.saturating_add_signed(by),
        }
    }

    fn rewind(&mut self) {
        match self.screen {
            Screen::Overview => self.queue.rewind(),
            Screen::Queue => self.job.rewind(),
            Screen::Job => self.scroll = 0,
        }
        self.find();
    }

    /// Finds what is chosen among what there is now.
    fn find(&mut self) {
        match self.screen {
            Screen::Overview => {
                let names: Vec<String> = self.rows().iter().map(|row| row.queue.clone()).collect();
                self.queue.find(names.iter().map(String::as_str));
            }
            Screen::Queue => {
                let ids: Vec<String> = self.jobs().iter().map(|job| job.id.clone()).collect();
                self.job.find(ids.iter().map(String::as_str));
            }
            Screen::Job => {}
        }
    }

    fn enter(&mut self) {
        // A queue that is not among the fullest is found by its whole name.
        if self.screen == Screen::Overview && self.left_out != LeftOut::None && self.found().next().is_none()
        {
            self.queue.name.clone_from(&self.filter);
        }
        match self.screen {
            Screen::Overview if !self.queue.name.is_empty() => {
                self.queue.is_held = true;
                (self.screen, self.detail, self.job) = (Screen::Queue, None, Cursor::default());
            }
            Screen::Queue if !self.job.name.is_empty() => {
                self.job.is_held = true;
                (self.screen, self.one, self.scroll) = (Screen::Job, None, 0);
            }
            _ => {}
        }
        self.look();
    }

    fn back(&mut self) {
        match self.screen {
            Screen::Overview => self.filter.clear(),
            Screen::Queue => self.screen = Screen::Overview,
            Screen::Job => self.screen = Screen::Queue,
        }
        self.look();
    }

    fn sort_by(&mut self, further: usize) {
        let at = Sort::ALL.iter().position(|sort| *sort == self.sort.0).unwrap_or(0);
        self.sort = (Sort::ALL[(at + further) % Sort::ALL.len()], false);
        self.rewind();
    }
}
