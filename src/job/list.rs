//! Reading lists whose length is limited. One element too many is kept, for the check of the length to find; what comes behind that
//! takes no memory: a short text can have millions of elements, each of which takes many times its text.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

/// Reads a list that may have `MAX` elements. Of a longer one, the first `MAX` + 1 are returned.
pub fn at_most<'de, const MAX: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    from.deserialize_seq(AtMost::<MAX, T>(PhantomData))
}

/// The same where there may be none.
pub fn at_most_if_any<'de, const MAX: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Vec<T>>, D::Error> {
    Ok(Option::<Bounded<MAX, T>>::deserialize(from)?.map(|Bounded(list)| list))
}

struct Bounded<const MAX: usize, T>(Vec<T>);

impl<'de, const MAX: usize, T: Deserialize<'de>> Deserialize<'de> for Bounded<MAX, T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        at_most::<MAX, T, D>(from).map(Self)
    }
}

struct AtMost<const MAX: usize, T>(PhantomData<T>);

impl<'de, const MAX: usize, T: Deserialize<'de>> Visitor<'de> for AtMost<MAX, T> {
    type Value = Vec<T>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while list.len() <= MAX {
            match elements.next_element()? {
                Some(element) => list.push(element),
                None => return Ok(list),
            }
        }
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Lists {
        #[serde(deserialize_with = "at_most::<3, _, _>")]
        some: Vec<u8>,
        #[serde(default, deserialize_with = "at_most_if_any::<3, _, _>")]
        any: Option<Vec<u8>>,
    }

    fn read(text: &str) -> Result<Lists, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn one_element_too_many_is_kept() {
        let lists =
            |some: &[u8], any: Option<&[u8]>| Ok(Lists { some: some.to_vec(), any: any.map(<[u8]>::to_vec) });
        assert_eq!(read(r#"{"some":[]}"#), lists(&[], None));
        assert_eq!(read(r#"{"some":[1,2,3],"any":null}"#), lists(&[1, 2, 3], None));
        assert_eq!(read(r#"{"some":[1,2,3,4],"any":[]}"#), lists(&[1, 2, 3, 4], Some(&[])));
        let long = r#"{"some":[1,2,3,4,5,"x",[]],"any":[1,2,3,4,5]}"#;
        assert_eq!(read(long), lists(&[1, 2, 3, 4], Some(&[1, 2, 3, 4])));
        for text in [
            r#"{"any":[]}"#,
            r#"{"some":{}}"#,
            r#"{"some":null}"#,
            r#"{"some":[1,2,3,4,}"#,
            r#"{"some":[300]}"#,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
