//! Lists by name, of what a caller reaches. Names that one pattern matches lie together in the order of names, so that a list is
//! read stretch by stretch, and neither a page nor its cursor says anything about what lies between.

use std::fmt::Display;
use std::str::FromStr;

use async_trait::async_trait;

use super::{Page, Result};
use crate::job::{QueuePattern, Reach};

/// How many elements of a stretch are read at once: some more than it has, at its end.
const STEP: usize = 100;

/// A list in the order of names.
#[async_trait]
pub(super) trait ByName: Sync {
    /// What its elements are called.
    type Name: Clone + Display + FromStr + Send + Sync;
    /// Its elements.
    type Item: Send;

    /// Returns elements behind a name.
    async fn after(&self, name: Option<&Self::Name>, limit: usize) -> Result<Vec<Self::Item>>;

    /// Returns the element of this name.
    async fn at(&self, name: &Self::Name) -> Result<Option<Self::Item>>;

    /// Returns the name of an element.
    fn name(item: &Self::Item) -> &Self::Name;
}

/// Returns a page of those elements that are within reach.
pub(super) async fn page<L: ByName>(
    list: &L,
    within: &Reach,
    after: Option<&L::Name>,
    limit: usize,
) -> Result<Page<L::Item, L::Name>> {
    let mut items = Vec::new();
    match within.patterns() {
        None => items = list.after(after, limit + 1).await?,
        Some(patterns) => {
            for pattern in stretches(patterns) {
                add(list, pattern, after, limit + 1, &mut items).await?;
            }
        }
    }
    Ok(Page::cut(items, limit, |item| L::name(item).clone()))
}

/// Returns the patterns of which none lies within another, in the order of what they match.
fn stretches(patterns: &[QueuePattern]) -> Vec<&QueuePattern> {
    let mut sorted: Vec<&QueuePattern> = patterns.iter().collect();
    sorted.sort_by_key(|pattern| (beginning(pattern), matches!(pattern, QueuePattern::One(_))));
    let mut apart: Vec<&QueuePattern> = Vec::new();
    for pattern in sorted {
        if !apart.last().is_some_and(|outer| outer.covers(pattern)) {
            apart.push(pattern);
        }
    }
    apart
}

/// Returns the first text that a pattern matches.
fn beginning(pattern: &QueuePattern) -> &str {
    match pattern {
        QueuePattern::One(name) => name.as_str(),
        QueuePattern::Prefix(prefix) => prefix,
    }
}

/// Adds what a pattern matches and lies behind `after`, until there are so many items.
async fn add<L: ByName>(
    list: &L,
    pattern: &QueuePattern,
    after: Option<&L::Name>,
    most: usize,
    items: &mut Vec<L::Item>,
) -> Result<()> {
    let is_passed = |after: &&L::Name| after.to_string().as_str() >= beginning(pattern);
    let mut last = after.filter(is_passed).cloned();
    match (&last, beginning(pattern).parse::<L::Name>()) {
        (Some(last), _) if !pattern.matches_text(&last.to_string()) => return Ok(()),
        (None, Ok(first)) if items.len() < most => {
            items.extend(list.at(&first).await?);
            last = Some(first);
        }
        _ => {}
    }
    if matches!(pattern, QueuePattern::One(_)) {
        return Ok(());
    }
    while items.len() < most {
        let step = (most - items.len()).min(STEP);
        let wanted = items.len() + step;
        let part = list.after(last.as_ref(), step).await?;
        items.extend(part.into_iter().take_while(|item| pattern.matches_text(&L::name(item).to_string())));
        if items.len() < wanted {
            return Ok(()); // the end of the stretch, or of the list
        }
        last = items.last().map(|item| L::name(item).clone());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_lie_apart_and_in_order() {
        let of = |texts: &[&str]| {
            let patterns: Vec<QueuePattern> = texts.iter().map(|text| text.parse().unwrap()).collect();
            stretches(&patterns).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(&["one", "m.2*", "m.*", "m.2.x", "one", "m", "m."]), "m m.* one");
        assert_eq!(of(&["a", "*", "b*"]), "*");
    }
}
