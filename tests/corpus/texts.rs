//! Hostile strings.

/// Strings that a database, a shell, a template, a path or a log may take for something else.
#[rustfmt::skip]
const MEANINGFUL: &[&str] = &[
    "$gt", "$where", "$set", "$$NOW", "$$ROOT", "$payload", "{\"$gt\":\"\"}", "[$ne]", "a.b", "a..b", ".a", "a.", "$", "$a", "a$b", "_id", "__proto__",
    "constructor", "prototype", "toString", "hasOwnProperty", "' OR '1'='1", "'; DROP TABLE jobs; --", "\"; DELETE FROM jobs; --", "1;SELECT 1", "%' --",
    "\\'", "x' AND sleep(5) --", "*", "**", "a*", "*a", "a**", "a*b", "?", "a?", "%", "_", "a%", "[a-z]", "(a+)+$", "^(a|a)*$", ".*", "\\", "\\\\", "/", "//", "../",
    "../../../etc/passwd", "..\\..\\x", "/etc/passwd", "file:///etc/passwd", "C:\\x", "\\\\host\\share", "~", "~root", "%2e%2e%2f", "%00", "%0d%0a", "%25",
    "%zz", "%", "%e9", "%c0%af", "&", "a&b=c", "a=b", "#x", ";", "|id", "`id`", "$(id)", "${jndi:ldap://x/a}", "{{7*7}}", "${7*7}", "<%= 7 %>", "#{7}", "%s%s%n",
    "%d", "{0}", "{}", "{", "}", "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "javascript:alert(1)", "<!--", "]]>", "<?xml?>",
    "<!ENTITY x SYSTEM \"file:///x\">", "http://169.254.169.254/", "mongodb://u:p@h/d", "sqlite::memory:", ":memory:", "=1+1", "@SUM(1)", "-1", "--help",
    "-rf", "\r\nset-cookie: a=b", "a\r\nx: y", "a\nb", "a\n", "\n", "\r", "\t", " ", "  ", "a b", " a", "a ", "\u{0}", "a\u{0}", "a\u{0}b", "\u{1}", "\u{7f}",
    "\u{1b}[31mred\u{1b}[0m", "\u{8}", "null", "undefined", "nil", "None", "NaN", "Infinity", "true", "false", "0", "1", "-0", "01", "1e3", "1e400", "0x10",
    "9223372036854775807", "9223372036854775808", "18446744073709551616", "-9223372036854775809", "1.0", ".5", "1,000", "CON", "NUL", "LPT1", "admin",
    "W/\"1\"", "\"1\"", "\"1\", \"2\"", "\"", "\"\"", "\"a\"b\"", "*, \"1\"", "W/*", ",", ", ,", "Bearer x", "()", "() { :; }; x",
];

/// Times, zones, cron rules, ids and cursors, valid and almost.
#[rustfmt::skip]
const SHAPED: &[&str] = &[
    "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123456789Z", "2026-01-01t00:00:00z", "2026-01-01 00:00:00Z", "2026-01-01T00:00:00", "2026-01-01",
    "2026-01-01T24:00:00Z", "2026-01-01T23:59:60Z", "2026-13-01T00:00:00Z", "2026-02-30T00:00:00Z", "2024-02-29T00:00:00Z", "2026-02-29T00:00:00Z",
    "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00+23:59", "2026-01-01T00:00:00-24:00", "2026-01-01T00:00:00+99:99", "2026-01-01T00:00:00[UTC]",
    "2026-01-01T00:00:00Z[Europe/Berlin]", "2026-01-01T00:00:00+01:00[u-ca=hebrew]", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "-0001-01-01T00:00:00Z",
    "-009999-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z", "+010000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "+999999-01-01T00:00:00Z",
    "1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00Z", "2038-01-19T03:14:08Z", "2262-04-11T23:47:16.854775808Z", "now", "today", "P1D", "PT1S", "20260101T000000Z",
    "2026-W01-1", "2026-001", "1767225600", "1767225600000", "UTC", "utc", "GMT", "Z", "Europe/Berlin", "europe/berlin", "Europe/Nowhere", "America/New_York",
    "Etc/GMT+14", "Etc/GMT-15", "UTC+1", "+01:00", "EST5EDT", "EST5EDT,M3.2.0,M11.1.0", "posixrules", "localtime", "/usr/share/zoneinfo/UTC", "../UTC", "Asia/Kathmandu",
    "Africa/Casablanca", "Pacific/Apia", "Antarctica/Troll", "* * * * *", "* * * * * *", "0 0 29 2 *", "0 0 30 2 *", "0 0 31 4 *", "60 * * * *", "* 24 * * *",
    "* * 0 * *", "* * * 13 *", "* * * * 8", "* * * * 7", "*/0 * * * *", "*/61 * * * *", "1-0 * * * *", "0-59/99999999999 * * * *", "0 0 L * *", "0 0 LW * *",
    "0 0 15W * *", "0 0 32W * *", "0 0 * * 5#6", "0 0 * * 1#0", "0 0 * * 5L", "0 0 ? * MON", "0 0 ? * ?", "0 0 1 JAN-FOO *", "0 0 * * MON-SUN", "@yearly",
    "@reboot", "@every 1s", "@", "* * * *", "* * * * * * *", "* * * * * * * *", "0  0  1  1  *", "0\t0\t1\t1\t*", "\n* * * * *", "* * * * *\n", ", * * * *", "1,,2 * * * *",
    "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33 * * * *", "+1 * * * *", "-1 * * * *", "1e1 * * * *", "0 0 1 1 * 1969",
    "0 0 0 1 1 * 9999", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01arz3ndektsv4rrffq69g5fav", "7ZZZZZZZZZZZZZZZZZZZZZZZZZ", "8ZZZZZZZZZZZZZZZZZZZZZZZZZ",
    "00000000000000000000000000", "01ARZ3NDEKTSV4RRFFQ69G5FA", "01ARZ3NDEKTSV4RRFFQ69G5FAVX", "01ARZ3NDEKTSV4RRFFQ69G5FAI", "01ARZ3NDEKTSV4RRFFQ69G5FAV.x",
    "550e8400-e29b-41d4-a716-446655440000", "507f1f77bcf86cd799439011", "AA", "AAAA", "AAA", "A", "AA==", "_-_-", "+/+/", "/////w", "MDFBUlozTkRFS1RTVjRSUkZGUTY5RzVGQVY",
    "YQ", "Kg", "AAAAAAAAAAAAAAAA", "gICA", "4oKs", "exponential", "fixed", "Fixed", "dead", "done", "ready", "reserved", "blocked", "scheduled", "DEAD", "hold", "skip",
    "allow", "once", "mail", "mail.*", "a:b", "a-b", "a_b", "-a", ".", "..", "...", "_", ":", "a/b", "a%2Fb", "a;b", "a+b", "a@b", "a~b", "jobs", "batch", "stats",
];

/// Characters that are not what they look like.
#[rustfmt::skip]
const UNUSUAL: &[&str] = &[
    "\u{e9}", "e\u{301}", "\u{df}", "\u{130}", "\u{131}", "\u{fb01}", "\u{1d400}", "\u{ff41}", "\u{430}", "\u{1f600}", "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467}",
    "\u{1f1e9}\u{1f1ea}", "\u{200b}", "\u{200d}", "\u{200e}a", "\u{202e}abc", "\u{2066}a\u{2069}", "\u{feff}a", "\u{2028}", "\u{2029}", "\u{85}", "\u{a0}", "\u{3000}",
    "\u{180e}", "\u{fffd}", "\u{fffe}", "\u{ffff}", "\u{fdd0}", "\u{10ffff}", "\u{e000}", "\u{f8ff}", "\u{ad}", "\u{34f}", "\u{1f}a", "\u{9f}",
    "Z\u{334}\u{353}a\u{335}\u{33a}l\u{336}\u{320}g\u{337}\u{32d}o\u{338}\u{331}", "\u{fdfd}", "\u{5d0}\u{5d1}", "\u{627}\u{644}", "\u{4e2d}\u{6587}", "\u{65e5}\u{672c}", "\u{d55c}",
    "\u{e01}\u{e34}", "\u{2f800}", "\u{212a}", "\u{17f}", "\u{2160}", "\u{661}\u{662}", "\u{ff11}", "\u{b2}", "\u{bd}", "\u{1680}", "\u{e0041}", "\u{fe0f}",
];

/// What stands before and behind a string.
#[rustfmt::skip]
const WRAPS: [(&str, &str); 20] = [
    ("", "\u{0}"), ("\u{0}", ""), ("", "\n"), ("\n", ""), ("", " "), (" ", ""), ("", "*"), ("$", ""), (".", ""), ("", "."), ("", "\u{301}"), ("\u{feff}", ""),
    ("'", "'"), ("\"", "\""), ("%", ""), ("", "%00"), ("-", ""), ("", ","), ("[", "]"), ("{", "}"),
];

/// Returns the strings, some of them wrapped, and some that are long.
pub fn all() -> Vec<String> {
    let mut texts: Vec<String> =
        [MEANINGFUL, SHAPED, UNUSUAL].concat().iter().map(|text| (*text).to_owned()).collect();
    for text in [
        "mail",
        "$gt",
        "a.b",
        "__proto__",
        "\u{1f600}",
        "2026-01-01T00:00:00Z",
        "0 0 29 2 *",
        "UTC",
        "01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "dead",
        "1",
    ] {
        for (before, after) in WRAPS {
            texts.push(format!("{before}{text}{after}"));
        }
    }
    for length in [63, 64, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025, 4096, 9000] {
        texts.push("a".repeat(length));
        texts.push("\u{e9}".repeat(length / 2));
    }
    texts.push("\u{1f600}".repeat(64));
    texts.push("\u{0}".repeat(128));
    texts.push("a.".repeat(64));
    texts.push("* ".repeat(120));
    texts.push("1,".repeat(120));
    texts.push("a\u{301}".repeat(100));
    texts.push(String::new());
    texts
}
