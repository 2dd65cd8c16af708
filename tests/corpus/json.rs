//! JSON texts, written from RFC 8259: valid ones, invalid ones, and those on which parsers differ.

/// JSON values that must be accepted.
#[rustfmt::skip]
const ACCEPTED: &[&str] = &[
    "null", "true", "false", "0", "-0", "0.0", "-0.0", "1e0", "1E+2", "1e-2", "0e1", "0E+999", "1.10", "1e5", "100000.0",
    "0.1e1", "1.7976931348623157e308", "5e-324", "2.2250738585072011e-308", "1e-400", "[]", "{}", "[[]]", "[{}]", "{\"\":0}",
    "{\"a\":{\"b\":[]}}", " 1 ", "\t1\n", "\r\n[ 1 , 2 ]\r\n", "\"\"", "\" \"", "\"\\u0000\"", "\"a\\u0000b\"",
    r#""\"\\\/\b\f\n\r\t""#, r#""\u0022\u005c\u002F""#, r#""\uD83D\uDE00""#, r#""\ud83d\ude00""#, "\"\u{1f600}\"", "\"\u{7f}\"",
    "\"\u{2028}\u{2029}\"", "\"\u{feff}\"", "\"\u{ffff}\"", "\"\u{10ffff}\"", r#""\uFFFE""#, r#""\uFDD0""#, "[null,null]",
    "[1,\"1\",1.0,true,null,[],{}]", r#"{"$gt":""}"#, r#"{"$ne":null}"#, r#"{"$where":"sleep(1000)"}"#, r#"{"$in":[1]}"#,
    r#"{"$set":{"state":"done"}}"#, r#"{"$regex":".*"}"#, r#"{"$expr":{"$eq":[1,1]}}"#, r#"{"$literal":1}"#, r#"["$x","$$NOW","$$ROOT"]"#,
    r#"{"$oid":"507f1f77bcf86cd799439011"}"#, r#"{"$date":"2026-01-01T00:00:00Z"}"#, r#"{"$numberLong":"1"}"#,
    r#"{"$binary":{"base64":"AA==","subType":"00"}}"#, r#"{"$undefined":true}"#, r#"{"$minKey":1}"#, r#"{"$code":"function(){}"}"#,
    r#"{"$add":["$payload",1]}"#, r#"{"$function":{"body":"x","args":[],"lang":"js"}}"#, r#"{"_id":"x"}"#, r#"{"a.b":1}"#,
    r#"{"a.$[].b":1}"#, r#"{".":1}"#, r#"{"..":1}"#, r#"{"a\u0000b":1}"#, r#"{"\u0000":1}"#, r#"{"__proto__":{"admin":true}}"#,
    r#"{"constructor":{"prototype":{"x":1}}}"#, r#"{"toString":1}"#, r#"{"length":-1}"#, r#"{"0":1,"1":2}"#, r#"{"a":1,"A":2}"#,
    r#"{"payload":1,"state":"done"}"#, r#"{"e\u0301":1,"\u00e9":2}"#, r#"{"$":1}"#, r#"{"$$NOW":1}"#, r#"{"$ref":"jobs","$id":1}"#,
];

/// Bounds of the types that a number may be read into.
#[rustfmt::skip]
const BOUNDS: &[i128] = &[
    1_i128 << 7, 1 << 8, 1 << 15, 1 << 16, 1 << 24, 1 << 31, 1 << 32, 1 << 53, 1 << 63, 1 << 64, 1 << 96, 1000, 1_000_000,
    60_000, 86_400_000, 31_536_000_000, 8_640_000_000_000_000, 253_402_300_800_000,
];

/// Texts that are not JSON, whatever stands around them in a body.
#[rustfmt::skip]
const REFUSED: &[&str] = &[
    "01", "-01", "+1", ".5", "1.", "1.e1", "-.5", "1e", "1e+", "1E-", "1ee2", "1e1.5", "-", "--1", "- 1", "-a", "0x10", "0b1", "0o7", "1_000",
    "1 000", "1,5e", "NaN", "-NaN", "Infinity", "-Infinity", "nan", "inf", "-inf", "\u{ff11}", "True", "TRUE", "NULL", "None", "nul",
    "nulll", "tru", "truetrue", "undefined", "'a'", "`a`", "a", "\"a", "a\"", "\"a\" \"b\"", r#""\x41""#, r#""\u12""#, r#""\u00G0""#, r#""\uD""#,
    r#""\u{41}""#, r#""\'""#, r#""\ ""#, r#""\a""#, r#""\0""#, r#""\"#, r#""\u"#, "\"\\\u{e9}\"", "[1,]", "[,1]", "[1,,2]", "[1 2]", "[1;2]", "[",
    "]", "[[", "[]]", "[1}", "{", "}", "{]", "[}", "{\"a\"}", "{\"a\":}", "{a:1}", "{'a':1}", "{\"a\":1,}", "{,}", "{,\"a\":1}", "{\"a\" 1}",
    "{\"a\"::1}", "{\"a\":1 \"b\":2}", "{1:2}", "{null:1}", "{\"a\":1:2}", "{:1}", "{\"a\",1}", "// x\n1", "1//", "/* x */1", "1/**/", "#1", "<!-- -->1",
    "1 2", "1\u{0}", "\u{0}1", "\u{0}", " ", "\n", ",", ":", "[\u{0}]", "\u{feff}1", "1\u{feff}", "\u{b}1", "\u{c}1", "\u{a0}1", "\u{2028}1", "\u{3000}1",
    "\u{85}1", "\u{200b}1", "(1)", "[1]x", "{}x", "{}{}", "[][]", "true false", "function(){}", "new Date()", "ObjectId(\"x\")", "<a/>", "!!1", "&a 1",
    "*a", "---\n1", "=1", "%s", "$x", "@x", "\u{1f600}", "e1", "E5", "1f", "1L", "1n", "0.0.0", "1.2.3", "0-1", "1-", "\"\n\"", "\"\r\"", "\"\t\"",
];

/// Bytes that are not UTF-8: overlong, surrogates, past the last character, cut off, and other encodings.
#[rustfmt::skip]
const NOT_UTF8: &[&[u8]] = &[
    &[0xc0, 0x80], &[0xc0, 0xaf], &[0xc1, 0xbf], &[0xe0, 0x80, 0x80], &[0xe0, 0x9f, 0xbf], &[0xf0, 0x80, 0x80, 0x80],
    &[0xf0, 0x8f, 0xbf, 0xbf], &[0xed, 0xa0, 0x80], &[0xed, 0xbf, 0xbf], &[0xed, 0xa0, 0xbd, 0xed, 0xb8, 0x80], &[0xf4, 0x90, 0x80, 0x80],
    &[0xf5, 0x80, 0x80, 0x80], &[0xf8, 0x88, 0x80, 0x80, 0x80], &[0xfc, 0x84, 0x80, 0x80, 0x80, 0x80], &[0x80], &[0xbf], &[0xfe], &[0xff],
    &[0xc3], &[0xe2, 0x82], &[0xf0, 0x9f, 0x98], &[0xe9], &[0xc3, 0x28], &[0xe2, 0x28, 0xa1], &[0x81, 0x40],
];

/// Texts that some parsers accept and others refuse.
#[rustfmt::skip]
const EITHER: &[&str] = &[
    "1e309", "-1e309", "1e400", "1e999999999", "-1e999999999999999999999", "1E+10000000000000000000000000000000", "0.4e00669999999999999999999",
    "1e-99999999999999999999", r#""\uD800""#, r#""\uDFFF""#, r#""\uDE00\uD83D""#, r#""\uD83D\uD83D\uDE00""#, r#""\uD83Dx""#, r#""\uD83D\n""#,
    r#""\ud800\u0041""#, r#"{"\uD800":1}"#, r#"{"a":1,"a":2}"#, r#"{"a":1,"a":1}"#, r#"{"a":1,"\u0061":2}"#, r#"[{"":0,"":0}]"#,
    r#"{"x":{"y":1,"y":{}}}"#,
];

/// Returns JSON values that must be accepted.
pub fn accepted() -> Vec<String> {
    let mut texts: Vec<String> = ACCEPTED.iter().map(|text| (*text).to_owned()).collect();
    for &bound in BOUNDS {
        for near in [bound - 1, bound, bound + 1] {
            texts.extend([near.to_string(), format!("-{near}"), format!("{near}.0"), format!("{near}.5")]);
        }
    }
    texts.extend([4, 19, 20, 30, 400, 5000].map(|digits| "9".repeat(digits)));
    texts.extend([20, 400].map(|digits| format!("0.{}1", "0".repeat(digits))));
    for depth in [16, 100, 120, 127, 500] {
        texts.push(format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
        texts.push(format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth)));
    }
    texts.push(format!("[{}1]", "1,".repeat(5000)));
    texts.push(format!("{{{}\"z\":1}}", (0..500).map(|n| format!("\"k{n}\":{n},")).collect::<String>()));
    texts.push(format!("\"{}\"", "x".repeat(10_000)));
    texts.push(format!("{{\"{}\":1}}", "k".repeat(10_000)));
    texts.push(format!("{}1{}", " ".repeat(1000), "\n".repeat(1000)));
    texts
}

/// Returns texts that must be refused.
pub fn refused() -> Vec<Vec<u8>> {
    let mut texts: Vec<Vec<u8>> = REFUSED.iter().map(|text| text.as_bytes().to_vec()).collect();
    texts.extend((0..0x20).map(|control| vec![b'"', b'a', control, b'"']));
    for bytes in NOT_UTF8 {
        texts.push([b"\"".as_slice(), bytes, b"\""].concat());
        texts.push([b"{\"".as_slice(), bytes, b"\":1}"].concat());
        texts.push([b"1".as_slice(), bytes].concat());
    }
    texts.push(b"\xff\xfe1\0".to_vec());
    texts.push(b"\xfe\xff\x001".to_vec());
    texts.push(b"1\0".to_vec());
    texts.push(b"\x001".to_vec());
    texts.push("[".repeat(100_000).into_bytes());
    texts.push("[{\"a\":".repeat(50_000).into_bytes());
    texts.push([b"\"".as_slice(), &b"\\u00".repeat(1000)].concat());
    texts
}

/// Returns texts that some parsers accept and others refuse.
pub fn either() -> Vec<String> {
    let mut texts: Vec<String> = EITHER.iter().map(|text| (*text).to_owned()).collect();
    for depth in [128, 129, 200, 1000, 20_000] {
        texts.push(format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
        texts.push(format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth)));
    }
    texts
}
