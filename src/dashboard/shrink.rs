//! What browsers load has no comments and no indentation: a third less to send. The files in `ui/` are written for people.
//!
//! It goes by lines, and relies on how the files are formatted: a comment stands on lines of its own, or is a type
//! (`/** @type {…} */`) within one, and no text literal spans lines. The tests hold all files to that.

/// Returns a script or a style without comments, indentation and empty lines.
pub fn shrink(text: &str) -> String {
    let mut shrunk = String::with_capacity(text.len());
    let mut is_comment = false;
    for line in text.lines().map(str::trim) {
        let begins = is_comment || line.starts_with("/*");
        let ends = line.ends_with("*/");
        is_comment = begins && !ends && !has_code_behind(line);
        if (begins && (ends || is_comment)) || line.is_empty() || line.starts_with("//") {
            continue;
        }
        shrunk.push_str(&without_types(line));
        shrunk.push('\n');
    }
    shrunk
}

/// Returns a style without these, and without the ends of lines where a rule or a declaration ends or goes on: they mean nothing there. A script keeps
/// its lines, so that errors name the right lines.
pub fn shrink_style(text: &str) -> String {
    let mut shrunk = String::with_capacity(text.len());
    for line in shrink(text).lines() {
        shrunk.push_str(line);
        if !line.ends_with([';', '{', '}', ',']) {
            shrunk.push('\n');
        }
    }
    shrunk
}

/// Returns whether something follows a comment that a line begins with.
fn has_code_behind(line: &str) -> bool {
    line.split_once("*/").is_some_and(|(_, rest)| !rest.trim().is_empty())
}

/// Returns a line without the comments in it that are types.
fn without_types(line: &str) -> String {
    let mut rest = line;
    let mut shrunk = String::with_capacity(line.len());
    while let Some((before, (_, after))) =
        rest.split_once("/** @").and_then(|(before, of)| Some((before, of.split_once("*/")?)))
    {
        shrunk.push_str(before);
        rest = after.trim_start();
    }
    shrunk.push_str(rest);
    shrunk
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_indentation_are_left_out() {
        let text = "// Why.\nimport { a } from './b.js';\n\n/**\n * Says.\n * @param {string} of\n */\nexport function f(of) {\n  \
                    /** @type {any} */ const x = /** @type {any} */ (of); // stays\n  return x;\n}\n";
        assert_eq!(
            shrink(text),
            "import { a } from './b.js';\nexport function f(of) {\nconst x = (of); // stays\nreturn x;\n}\n"
        );
        assert_eq!(
            shrink("/* One. */\na { b: c; }\n\n/* Two\n   lines. */\n  d { }\n"),
            "a { b: c; }\nd { }\n"
        );
        assert_eq!(shrink("x = 'http://a'; y = a /* b */ + c;\n"), "x = 'http://a'; y = a /* b */ + c;\n");
    }

    #[test]
    fn a_style_has_no_lines_where_they_mean_nothing() {
        let text = "/* Why. */\na,\nb {\n  c: d;\n  grid:\n    'x y'\n    'z z';\n}\n";
        assert_eq!(shrink_style(text), "a,b {c: d;grid:\n'x y'\n'z z';}");
    }

    /// Returns whether a text literal goes on behind this line, or comes from before it, other than with code in it (`${…}`).
    fn has_text_over_its_end(line: &str) -> bool {
        if line.matches('`').count().is_multiple_of(2) {
            return false;
        }
        let open = |part: &str| part.matches("${").count() as i64 - part.matches('}').count() as i64;
        let (before, after) = (line.split('`').next().unwrap_or(""), line.rsplit('`').next().unwrap_or(""));
        open(after) <= 0 && open(before) >= 0
    }

    #[test]
    fn text_over_the_end_of_a_line_is_found() {
        assert!(has_text_over_its_end("const a = `b"));
        assert!(has_text_over_its_end("  c`;"));
        assert!(!has_text_over_its_end("const a = `b ${list"));
        assert!(!has_text_over_its_end("  .join(', ')} c`,"));
        assert!(!has_text_over_its_end("const a = `b ${c}`;"));
    }

    /// Returns whether a line would be taken for a comment as a whole, though there is code between two comments.
    fn is_lost(line: &str) -> bool {
        line.starts_with("/*") && line.ends_with("*/") && has_code_behind(line)
    }

    #[test]
    fn code_between_comments_is_found() {
        assert!(is_lost("/** @type {any} */ let a = 1; /* why */"));
        assert!(!is_lost("/** @type {any} */ let a = 1;"));
        assert!(!is_lost("/** Why. */"));
    }

    #[test]
    fn what_it_relies_on_holds_for_all_files() {
        for name in super::super::Files::iter().filter(|name| name.ends_with(".js")) {
            let file = super::super::Files::get(&name).unwrap();
            let text = std::str::from_utf8(&file.data).unwrap();
            for (n, line) in text.lines().enumerate() {
                assert!(!is_lost(line.trim()), "{name}:{}: code between two comments is lost", n + 1);
            }
            for (n, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().starts_with(['*', '/']))
            {
                assert!(!has_text_over_its_end(line), "{name}:{}: a text literal spans lines", n + 1);
                assert!(
                    !line.contains("'/*") && !line.contains("`/*"),
                    "{name}:{}: a text begins like a comment",
                    n + 1
                );
            }
        }
    }
}
