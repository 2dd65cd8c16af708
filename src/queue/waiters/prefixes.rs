//! Beginnings of queue names, and what many of them stand for together.

use std::sync::Arc;

use crate::job::QueuePattern;

/// Prefixes of queue names in their order, without those that begin with another: a name begins with one of them at most.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prefixes(Vec<Arc<str>>);

impl FromIterator<Arc<str>> for Prefixes {
    fn from_iter<I: IntoIterator<Item = Arc<str>>>(all: I) -> Self {
        let mut all: Vec<Arc<str>> = all.into_iter().collect();
        all.sort_unstable();
        // In their order, a prefix comes right before everything that begins with it.
        all.dedup_by(|next, outer| next.starts_with(&**outer));
        Self(all)
    }
}

impl Prefixes {
    /// Returns the prefixes among these patterns.
    pub fn of(patterns: &[QueuePattern]) -> Self {
        let prefix = |pattern: &QueuePattern| match pattern {
            QueuePattern::Prefix(prefix) => Some(prefix.clone()),
            QueuePattern::One(_) => None,
        };
        patterns.iter().filter_map(prefix).collect()
    }

    /// Returns each of them, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.iter()
    }

    /// Returns how many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the index of the one that this name begins with.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        // It is the last one that does not come behind the name: what stands between it and the name begins with it.
        let index = self.0.partition_point(|prefix| &**prefix <= name).checked_sub(1)?;
        self.0.get(index).filter(|prefix| name.starts_with(&***prefix)).map(|_| index)
    }

    /// Returns whether this name begins with one of them.
    pub fn stand_for(&self, name: &str) -> bool {
        self.index_of(name).is_some()
    }

    /// Returns whether all names that begin with one of them come before this one.
    pub fn end_before(&self, name: &str) -> bool {
        self.0.last().is_none_or(|last| &**last < name && !name.starts_with(&**last))
    }

    /// Returns what all of them begin with.
    pub fn common(&self) -> &str {
        let (Some(first), Some(last)) = (self.0.first(), self.0.last()) else { return "" };
        let alike = first.bytes().zip(last.bytes()).take_while(|(one, other)| one == other).count();
        first.get(..alike).unwrap_or_default()
    }
}

/// Returns each text that this name begins with, from the empty one to the whole name.
pub fn beginnings(name: &str) -> impl Iterator<Item = &str> {
    (0..=name.len()).filter_map(move |length| name.get(..length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(texts: &[&str]) -> Prefixes {
        texts.iter().map(|text| Arc::<str>::from(*text)).collect()
    }

    #[test]
    fn a_name_begins_with_one_of_them_at_most() {
        let all = prefixes(&["mail.out.", "b", "mail.", "zoo", "mail.", "mail", "b.c", "maim"]);
        assert_eq!(all, prefixes(&["b", "mail", "maim", "zoo"]));
        assert_eq!((all.count(), all.iter().next().map(|first| &**first)), (4, Some("b")));
        for (name, index) in [
            ("a", None),
            ("b", Some(0)),
            ("b.c.d", Some(0)),
            ("c", None),
            ("mai", None),
            ("mail", Some(1)),
            ("mail.out.x", Some(1)),
            ("maim.x", Some(2)),
            ("zo", None),
            ("zooz", Some(3)),
            ("zz", None),
        ] {
            assert_eq!((all.index_of(name), all.stand_for(name)), (index, index.is_some()), "{name}");
        }
        assert_eq!(prefixes(&["a", "", "b"]), prefixes(&[""]));
        assert_eq!(prefixes(&[""]).index_of("x"), Some(0));
        assert_eq!(prefixes(&[]).index_of("x"), None);
    }

    #[test]
    fn a_walk_over_names_may_end_behind_the_last() {
        let all = prefixes(&["b", "mail."]);
        for name in ["a", "b.c", "mail", "mail.", "mail.z"] {
            assert!(!all.end_before(name), "{name}");
        }
        assert!(all.end_before("mail_") && all.end_before("z"));
        assert!(prefixes(&[]).end_before("a") && !prefixes(&[""]).end_before("z"));
    }

    #[test]
    fn what_all_of_them_begin_with_is_known() {
        assert_eq!(prefixes(&["mail.a.", "mail.b.", "mail.abc"]).common(), "mail.");
        assert_eq!(prefixes(&["mail."]).common(), "mail.");
        assert_eq!(prefixes(&["a", "b"]).common(), "");
        assert_eq!(prefixes(&[]).common(), "");
    }

    #[test]
    fn a_name_has_beginnings() {
        assert_eq!(beginnings("abc").collect::<Vec<_>>(), ["", "a", "ab", "abc"]);
    }
}
