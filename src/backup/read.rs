//! Reads a backup line by line, and refuses whatever is not as it was written.

use std::collections::HashMap;
use std::fmt;
use std::io::{BufRead, BufReader, Read};

use anyhow::{Context as _, bail};
use sha2::{Digest as _, Sha256};

use super::line::{self, End, FORMAT, Head, Of, VERSION};
use super::tally::Tally;
use super::write::hex;
use crate::job::QueueName;
use crate::job::settings::dead_letter_circle;
use crate::store::picture::{Item, Kind};

/// The longest line. The longest that is written is an answer with what was popped at once, 64 MiB before it is escaped.
const LINE_BYTES: u64 = 512 << 20;
const BUFFER: usize = 1 << 20;

/// What is to be done about a file that is damaged.
const DAMAGED: &str = "the file is damaged or was changed; use another copy of it";
/// The same of one that breaks off.
const TRUNCATED: &str = "the backup breaks off: it was not written or copied to its end. Use a complete copy";

/// A backup that is being read.
pub struct Backup<R> {
    lines: Lines<R>,
    head: Head,
    /// The last thing, after which others must come.
    last: Option<(Kind, (String, String))>,
    dead_letters: HashMap<QueueName, QueueName>,
    tally: Tally,
    is_whole: bool,
}

impl<R: Read> Backup<R> {
    /// Reads the first line.
    pub fn open(from: R) -> anyhow::Result<Self> {
        let mut lines = Lines {
            from: BufReader::with_capacity(BUFFER, from),
            sum: Sha256::new(),
            number: 0,
            line: Vec::new(),
        };
        if !lines.advance()? {
            bail!("the input is empty, and no backup");
        }
        let text = lines.text()?;
        let head: Head = match line::parse::<Of>(text) {
            Ok(Of { kind }) if kind == "head" => line::parse(text).map_err(|why| lines.wrong(why))?,
            _ => bail!("line 1 is not the head of a Tailback backup, which `tailback export` writes"),
        };
        if head.format != FORMAT || head.version == 0 {
            bail!(
                "line 1 says that this is {:?} in version {}, and no backup of Tailback",
                head.format,
                head.version
            );
        }
        if head.version > VERSION {
            bail!(
                "the backup has version {} of the format (it was written by Tailback {}), and this Tailback, {}, reads up to \
                 {VERSION}: use a newer one",
                head.version,
                head.tailback,
                env!("CARGO_PKG_VERSION")
            );
        }
        lines.count_line();
        let (dead_letters, tally) = (HashMap::new(), Tally::default());
        Ok(Self { lines, head, last: None, dead_letters, tally, is_whole: true })
    }

    /// Returns the first line.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Returns whether everything that the store had could be read as it was, once all of the backup has been read.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Returns what was read so far.
    pub fn into_tally(self) -> Tally {
        self.tally
    }

    /// Returns the next thing; `None` only behind the last line, once everything has proved to be complete.
    pub fn next_item(&mut self) -> anyhow::Result<Option<Item>> {
        if !self.lines.advance()? {
            bail!("{TRUNCATED}");
        }
        let text = self.lines.text()?;
        let of: Of = line::parse(text).map_err(|why| self.lines.wrong(why))?;
        if of.kind == "end" {
            let end: End = line::parse(text).map_err(|why| self.lines.wrong(why))?;
            return self.end(&end).map(|()| None);
        }
        let Some(kind) = Kind::from_word(&of.kind) else {
            return Err(self.lines.wrong(format!("kind: {:?} is none that this version knows", of.kind)));
        };
        let (item, own) =
            line::read(kind, text).map_err(|why| self.lines.wrong(format!("{}: {why}", of.kind)))?;
        let name = item.name();
        if let Some((before, last)) = &self.last
            && (*before > kind || *before == kind && !self.follows(last, &name))
        {
            let why = format!("{} is there twice, or not in its place", item.title());
            return Err(self.lines.wrong(why));
        }
        if let Item::Settings(queue, stored) = &item
            && let Some(dead_letter) = &stored.settings.dead_letter
        {
            self.dead_letters.insert(queue.clone(), dead_letter.clone());
        }
        if kind > Kind::Settings {
            self.check_circles()?;
        }
        self.last = Some((kind, name));
        self.tally.add(&item, &own);
        self.lines.count_line();
        Ok(Some(item))
    }

    /// Whether a name comes behind another one, in the order of the store that was read: MongoDB has one text for both parts.
    fn follows(&self, last: &(String, String), name: &(String, String)) -> bool {
        let joined = |(first, second): &(String, String)| match second.as_str() {
            "" => first.clone(),
            second => format!("{first}/{second}"),
        };
        match self.head.store.as_str() {
            "mongodb" => joined(last) < joined(name),
            _ => last < name,
        }
    }

    /// Refuses dead-letter queues that make a circle, once all settings have been read.
    fn check_circles(&mut self) -> anyhow::Result<()> {
        let all = std::mem::take(&mut self.dead_letters);
        for (queue, dead_letter) in &all {
            let next = |queue: &QueueName| anyhow::Ok(all.get(queue).cloned());
            if let Some(circle) = dead_letter_circle(queue, dead_letter, next)? {
                let circle: Vec<&str> = circle.iter().map(QueueName::as_str).collect();
                bail!(
                    "the dead-letter queues of the backup make a circle, {}; change the dead_letter of one of them where it was \
                     taken, and take another",
                    circle.join(" → ")
                );
            }
        }
        Ok(())
    }

    fn end(&mut self, end: &End) -> anyhow::Result<()> {
        self.check_circles()?;
        let sum = hex(&self.lines.sum.clone().finalize());
        if end.counts != self.tally.counts() {
            bail!(
                "the last line counts {:?}, and there are {:?}: {DAMAGED}",
                end.counts,
                self.tally.counts()
            );
        }
        if end.sha256 != sum {
            bail!("the lines do not have the SHA-256 that the last one says: {DAMAGED}");
        }
        self.is_whole = end.left_out + end.salvaged == 0;
        match self.lines.advance()? {
            true => Err(self.lines.wrong("stands behind the end of the backup")),
            false => Ok(()),
        }
    }
}

struct Lines<R> {
    from: BufReader<R>,
    /// Of the lines that count.
    sum: Sha256,
    number: u64,
    line: Vec<u8>,
}

impl<R: Read> Lines<R> {
    /// Reads the next line; false where there is none.
    fn advance(&mut self) -> anyhow::Result<bool> {
        self.line.clear();
        self.number += 1;
        let read = (&mut self.from).take(LINE_BYTES + 1).read_until(b'\n', &mut self.line);
        read.with_context(|| format!("line {} cannot be read", self.number))?;
        match self.line.last() {
            None => Ok(false),
            Some(b'\n') => Ok(true),
            Some(_) if self.line.len() as u64 > LINE_BYTES => {
                bail!("line {} is longer than {} MiB: {DAMAGED}", self.number, LINE_BYTES >> 20)
            }
            Some(_) => bail!("line {} has no end: {TRUNCATED}", self.number),
        }
    }

    /// Returns the last line without its end.
    fn text(&self) -> anyhow::Result<&str> {
        let text = self.line.strip_suffix(b"\n").unwrap_or_default();
        std::str::from_utf8(text).map_err(|_| self.wrong("is not UTF-8"))
    }

    /// Adds the last line to the sum.
    fn count_line(&mut self) {
        self.sum.update(&self.line);
    }

    /// Returns the error of the last line.
    fn wrong(&self, why: impl fmt::Display) -> anyhow::Error {
        anyhow::anyhow!("line {}: {why:.500}", self.number)
    }
}
