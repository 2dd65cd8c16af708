//! Text of others, made fit for a terminal: nothing in it moves the cursor, changes colours or the direction of writing.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Returns the text with everything escaped that a terminal obeys or that hides what is written: controls, and marks that
/// change the direction or cannot be seen. It stays on one line.
pub fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            c if is_hostile(c) => shown.extend(c.escape_unicode()),
            c => shown.push(c),
        }
    }
    shown
}

/// The same of a text of several lines, which stay lines.
pub fn shown_lines(text: &str) -> String {
    text.split('\n').map(|line| shown(line.strip_suffix('\r').unwrap_or(line))).collect::<Vec<_>>().join("\n")
}

/// Returns a text of several lines that quotes some of these words: they are shown as `shown` does, and each stays on its line.
pub fn shown_words<'w>(text: &str, words: impl Iterator<Item = &'w str>) -> String {
    let mut text = text.to_owned();
    for word in words {
        // Of `--name=value` either part may be quoted alone.
        let parts = word.split_once('=').map_or([word, ""], |(name, value)| [value, name]);
        for part in [word].into_iter().chain(parts).filter(|part| part.contains(is_hostile)) {
            text = text.replace(part, &shown(part));
        }
    }
    shown_lines(&text)
}

/// Returns JSON that says the same, with everything that is no white space escaped that a terminal obeys or that hides what is written.
pub fn shown_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\n' | '\r' | '\t' => shown.push(c),
            c if is_hostile(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    shown.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => shown.push(c),
        }
    }
    shown
}

fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// Returns how many cells of a terminal a text takes.
pub fn width(text: &str) -> usize {
    text.width()
}

/// Returns the beginning of a text that takes at most so many cells; where something is cut off, the last one is `…`.
pub fn cut(text: &str, cells: usize) -> String {
    if width(text) <= cells {
        return text.to_owned();
    }
    let (mut cut, mut used) = (String::new(), 1);
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used > cells {
            break;
        }
        cut.push(c);
    }
    if cells > 0 {
        cut.push('…');
    }
    cut
}

/// Splits a text into lines of so many cells: behind a space, where one is near the end of a line.
pub fn wrapped(text: &str, cells: usize) -> Vec<String> {
    let cells = cells.max(2);
    let (mut lines, mut line, mut used) = (Vec::new(), String::new(), 0);
    for c in text.chars() {
        let wide = c.width().unwrap_or(0);
        if used + wide > cells {
            let space = line.rfind(' ').map(|at| at + 1).filter(|at| c != ' ' && *at > line.len() * 2 / 3);
            let rest = line.split_off(space.unwrap_or(line.len()));
            lines.push(std::mem::replace(&mut line, rest));
            used = width(&line);
        }
        line.push(c);
        used += wide;
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_says_the_same_to_a_terminal() {
        let json = "{\n\"a\": \"\u{9b}2J \u{202e}x\u{7f} \u{e0001} ü 日 \\\"\"}";
        let shown = shown_json(json);
        assert!(!shown.chars().any(|c| c != '\n' && is_hostile(c)), "{shown:?}");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&shown), read(json));
        assert!(shown.contains("\\u009b2J \\u202ex\\u007f"), "{shown}");
    }

    #[test]
    fn what_a_terminal_obeys_is_escaped() {
        assert_eq!(shown("a\u{1b}]0;owned\u{7}b\r\n\u{9b}2J"), "a\\u{1b}]0;owned\\u{7}b\\r\\n\\u{9b}2J");
        assert_eq!(
            shown("invoice\u{202e}fdp.exe\u{e0041}\u{200b}"),
            "invoice\\u{202e}fdp.exe\\u{e0041}\\u{200b}"
        );
        assert_eq!(shown("grüße 日本 👍🏽"), "grüße 日本 👍🏽");
        assert_eq!(shown_lines("a\r\nb\u{1b}\n"), "a\nb\\u{1b}\n");
    }

    #[test]
    fn texts_are_cut_by_cells() {
        assert_eq!(cut("日本語", 6), "日本語");
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(cut("abc", 0), "");
        for cells in 0..12 {
            assert!(width(&cut("a日b本c語dé👍", cells)) <= cells, "{cells}");
        }
    }

    #[test]
    fn texts_are_wrapped_by_cells_and_lose_nothing() {
        assert_eq!(wrapped("one two three", 9), ["one two ", "three"]);
        assert_eq!(wrapped("a bcdefghijklm", 9), ["a bcdefgh", "ijklm"]);
        assert_eq!(wrapped("日本語", 5), ["日本", "語"]);
        let text = "a日b本 c語dé👍 and some more words";
        for cells in 2..40 {
            let lines = wrapped(text, cells);
            assert!(lines.iter().all(|line| width(line) <= cells) && lines.concat() == text, "{lines:?}");
        }
    }
}
