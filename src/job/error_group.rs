//! Groups of errors: what is left of a message without what is different each time.
//!
//! | in a message | in its group |
//! |---|---|
//! | a text in quotes, of up to 200 characters | `<text>` |
//! | a UUID; letters and digits mixed, 16 or more | `<id>` |
//! | `0x…`; hexadecimal digits, 8 or more, with a digit among them | `<hex>` |
//! | an IP address with its port, an e-mail address | `<address>` |
//! | digits, also with dots between or letters beside them | `<n>` |
//! | white space | one space |
//!
//! The rest stays, up to [`GROUP_MAX`] bytes.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use super::{JobId, QueueName, Timestamp};

/// The longest group, in bytes.
pub const GROUP_MAX: usize = 512;
/// The longest text between quotes that is one, in bytes.
const QUOTED_MAX: usize = 200;
/// From how many letters and digits on a word with both is an id.
const ID_MIN: usize = 16;
/// From how many hexadecimal digits on a word is a number.
const HEX_MIN: usize = 8;

/// How many groups are counted at once. Where there are more, those that were met once only are counted together.
const COUNTED_MAX: usize = 5000;
/// How many queues a group names, and how many jobs.
const NAMED_MAX: usize = 10;

/// A job that is dead.
#[derive(Debug, Clone)]
pub struct Death {
    /// The job.
    pub id: JobId,
    /// Its queue.
    pub queue: QueueName,
    /// When it died, where that is known.
    pub at: Option<Timestamp>,
    /// Its last error; empty where it has none.
    pub error: String,
}

/// The dead of one error.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ErrorGroup {
    /// The group of the error.
    pub error: String,
    /// How many jobs died of it.
    pub count: u64,
    /// When the first of them died.
    pub first_seen: Option<Timestamp>,
    /// When the last of them died.
    pub last_seen: Option<Timestamp>,
    /// Some of their queues.
    pub queues: BTreeSet<QueueName>,
    /// Some of them.
    pub samples: Vec<JobId>,
}

impl ErrorGroup {
    fn add(&mut self, death: Death) {
        self.seen(1, death.at, death.at);
        if self.queues.len() < NAMED_MAX {
            self.queues.insert(death.queue);
        }
        if self.samples.len() < NAMED_MAX {
            self.samples.push(death.id);
        }
    }

    fn seen(&mut self, count: u64, first: Option<Timestamp>, last: Option<Timestamp>) {
        self.count += count;
        self.first_seen = [self.first_seen, first].into_iter().flatten().min();
        self.last_seen = self.last_seen.max(last);
    }

    /// Counts another group with this one, whose queues and jobs are not named.
    fn absorb(&mut self, other: &Self) {
        self.seen(other.count, other.first_seen, other.last_seen);
    }
}

/// The dead, counted by their errors.
#[derive(Debug, Default)]
pub struct Tally {
    groups: HashMap<String, ErrorGroup>,
    /// How many of them were met once only.
    singles: usize,
    other: ErrorGroup,
    counted: u64,
}

impl Tally {
    /// Counts a dead job.
    pub fn add(&mut self, death: Death) {
        self.counted += 1;
        let error = of(&death.error);
        if let Some(group) = self.groups.get_mut(&error) {
            self.singles -= usize::from(group.count == 1);
            return group.add(death);
        }
        if self.groups.len() >= COUNTED_MAX && self.singles > 0 {
            self.singles = 0;
            let other = &mut self.other;
            self.groups.retain(|_, group| {
                let is_frequent = group.count > 1;
                if !is_frequent {
                    other.absorb(group);
                }
                is_frequent
            });
        }
        if self.groups.len() >= COUNTED_MAX {
            return self.other.seen(1, death.at, death.at);
        }
        let mut group = ErrorGroup { error: error.clone(), ..ErrorGroup::default() };
        group.add(death);
        self.groups.insert(error, group);
        self.singles += 1;
    }

    /// Returns how many jobs were counted.
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// Returns the largest groups, the largest first, and what is counted together beside them, if there is anything.
    pub fn largest(self, most: usize) -> (Vec<ErrorGroup>, Option<ErrorGroup>) {
        let mut other = self.other;
        let mut groups: Vec<ErrorGroup> = self.groups.into_values().collect();
        groups.sort_unstable_by(|a, b| b.count.cmp(&a.count).then_with(|| a.error.cmp(&b.error)));
        groups.drain(most.min(groups.len())..).for_each(|group| other.absorb(&group));
        (groups, Some(other).filter(|other| other.count > 0))
    }
}

/// Returns the group of an error message.
pub fn of(message: &str) -> String {
    let mut group = String::new();
    let mut rest = message.trim();
    while !rest.is_empty() && group.len() < GROUP_MAX {
        let before = rest_before(message, rest);
        let (part, length) = next(rest, before);
        group.push_str(&part);
        rest = &rest[length..];
    }
    let mut end = group.len().min(GROUP_MAX);
    while !group.is_char_boundary(end) {
        end -= 1;
    }
    group.truncate(end);
    group.truncate(group.trim_end().len());
    group
}

/// Returns the character before the rest of a message.
fn rest_before(message: &str, rest: &str) -> Option<char> {
    let at = rest.as_ptr() as usize - message.as_ptr() as usize;
    message[..at].chars().next_back()
}

/// Returns what the beginning of a text becomes, and how long that is.
fn next(text: &str, before: Option<char>) -> (String, usize) {
    let Some(first) = text.chars().next() else { return (String::new(), 0) };
    if first.is_whitespace() {
        return (" ".to_owned(), text.len() - text.trim_start().len());
    }
    if let Some(length) = quoted(text, first, before) {
        return ("<text>".to_owned(), length);
    }
    let length = text.find(|c: char| !is_of_word(c)).unwrap_or(text.len());
    if length == 0 {
        return (first.to_string(), first.len_utf8());
    }
    // What ends a sentence is no part of its last word.
    let word = text[..length].trim_end_matches(['.', ':', '-', '@']);
    if word.is_empty() {
        return (text[..length].to_owned(), length); // at once: thousands of dots are not looked at again for each of them
    }
    (of_word(word), word.len())
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '-' | '_' | '@' | '[' | ']' | '+')
}

/// Returns how long the text in quotes is that begins here. An apostrophe within a word is no quote.
fn quoted(text: &str, first: char, before: Option<char>) -> Option<usize> {
    let closing = match first {
        '"' | '`' => first,
        '\'' if !before.is_some_and(char::is_alphanumeric) => first,
        '“' => '”',
        '«' => '»',
        _ => return None,
    };
    let inner = &text[first.len_utf8()..];
    let mut near = inner.char_indices().take_while(|(at, _)| *at <= QUOTED_MAX);
    let (end, _) = near.find(|(_, c)| *c == closing)?;
    let after = inner[end + closing.len_utf8()..].chars().next();
    let is_closed = closing != '\'' || !after.is_some_and(char::is_alphanumeric);
    is_closed.then_some(first.len_utf8() + end + closing.len_utf8())
}

/// Returns what becomes of a word.
fn of_word(word: &str) -> String {
    let is_address = word.parse::<SocketAddr>().is_ok()
        || word.parse::<IpAddr>().is_ok()
        || word.split_once('@').is_some_and(|(name, host)| !name.is_empty() && host.contains('.'));
    if is_address {
        return "<address>".to_owned();
    }
    if is_uuid(word) {
        return "<id>".to_owned();
    }
    let mut out = String::new();
    let mut rest = word;
    while !rest.is_empty() {
        let length = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        if length == 0 {
            out.push_str(&rest[..1]); // a sign, which is ASCII
            rest = &rest[1..];
            continue;
        }
        let part = &rest[..length];
        rest = &rest[length..];
        if part.bytes().all(|byte| byte.is_ascii_digit()) && out.ends_with("<n>.") {
            out.pop(); // 1.2.3 is one number
        } else {
            out.push_str(&of_part(part));
        }
    }
    out
}

/// The same for letters and digits without anything between them.
fn of_part(part: &str) -> String {
    let has_digit = part.bytes().any(|byte| byte.is_ascii_digit());
    let has_letter = part.bytes().any(|byte| byte.is_ascii_alphabetic());
    let is_hex = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let of_0x = part.strip_prefix("0x").or_else(|| part.strip_prefix("0X"));
    if of_0x.is_some_and(|digits| !digits.is_empty() && is_hex(digits)) {
        return "<hex>".to_owned();
    }
    if has_digit && has_letter && part.len() >= HEX_MIN && is_hex(part) {
        return "<hex>".to_owned();
    }
    if has_digit && has_letter && part.len() >= ID_MIN {
        return "<id>".to_owned();
    }
    let mut out = String::new();
    for c in part.chars() {
        match c.is_ascii_digit() {
            false => out.push(c),
            true if out.ends_with("<n>") => {}
            true => out.push_str("<n>"),
        }
    }
    out
}

fn is_uuid(word: &str) -> bool {
    let parts: Vec<&str> = word.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    lengths == [8, 4, 4, 4, 12] && word.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_different_each_time_is_left_out() {
        for (message, group) in [
            ("", ""),
            ("timeout after 30s", "timeout after <n>s"),
            ("timeout after 5000 ms.", "timeout after <n> ms."),
            ("user 42 not found", "user <n> not found"),
            ("user 'Ann O.' not found", "user <text> not found"),
            ("can't open \"/tmp/x 1\": it's gone", "can't open <text>: it's gone"),
            ("connect to 10.0.0.7:5432 refused", "connect to <address> refused"),
            ("connect to [::1]:80, 2001:db8::1", "connect to <address>, <address>"),
            ("no mailbox ann@example.com!", "no mailbox <address>!"),
            ("order 123e4567-e89b-12d3-a456-426614174000 is closed", "order <id> is closed"),
            ("job 01K9Z3V8QJX5T7N2M4R6W8Y0AB: lost", "job <id>: lost"),
            ("at 0x7ffee4b2, block deadbeef42", "at <hex>, block <hex>"),
            ("version 1.12.3-rc4", "version <n>-rc<n>"),
            ("a  b\n\tc ", "a b c"),
            ("deadbeef and facade stay", "deadbeef and facade stay"),
            ("HTTP 503: ¡überlastet! 7€", "HTTP <n>: ¡überlastet! <n>€"),
            ("worker-17.example.com died", "worker-<n>.example.com died"),
            ("..", ".."),
        ] {
            assert_eq!(of(message), group, "{message}");
        }
    }

    fn death(n: usize, error: String) -> Death {
        let id = format!("J{n:08}").parse().unwrap();
        let queue = format!("q{}", n % 20).parse().unwrap();
        Death { id, queue, at: Some(Timestamp::from_millis(n as i64)), error }
    }

    #[test]
    fn the_dead_are_counted_by_their_errors() {
        let mut tally = Tally::default();
        for n in 0..60 {
            tally.add(death(n, if n % 3 == 0 { format!("user {n} is gone") } else { "no route".to_owned() }));
        }
        let (groups, other) = tally.largest(1);
        assert_eq!((groups[0].error.as_str(), groups[0].count), ("no route", 40));
        assert_eq!((groups[0].queues.len(), groups[0].samples.len()), (NAMED_MAX, NAMED_MAX));
        let at = |ms| Some(Timestamp::from_millis(ms));
        assert_eq!((groups[0].first_seen, groups[0].last_seen), (at(1), at(59)));
        let other = other.unwrap();
        assert_eq!((other.count, other.first_seen, other.last_seen), (20, at(0), at(57)));
        assert_eq!(Tally::default().largest(1), (Vec::new(), None));
    }

    #[test]
    fn many_different_errors_are_bounded_and_none_is_lost() {
        let letters = |n: usize| format!("{n:06}").bytes().map(|b| char::from(b + 49)).collect::<String>();
        let mut tally = Tally::default();
        for n in 0..100_000 {
            tally.add(death(n, if n % 10 == 9 { "often".to_owned() } else { letters(n) }));
            assert!(tally.groups.len() <= COUNTED_MAX);
        }
        assert_eq!(tally.counted(), 100_000);
        let (groups, other) = tally.largest(10);
        assert_eq!((groups[0].error.as_str(), groups[0].count), ("often", 10_000));
        let all = groups.iter().map(|group| group.count).sum::<u64>() + other.map_or(0, |other| other.count);
        assert_eq!(all, 100_000);
    }

    #[test]
    fn groups_of_any_text_are_bounded() {
        let texts =
            ["é".repeat(5000), "'".repeat(5000), "9a".repeat(5000), ".-".repeat(5000), "<".repeat(600)];
        for text in texts {
            let group = of(&text);
            assert!(group.len() <= GROUP_MAX, "{}", group.len());
        }
        assert_eq!(of(&format!("{} 1", "x".repeat(600))).len(), GROUP_MAX);
    }
}
