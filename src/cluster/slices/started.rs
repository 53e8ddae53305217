//! Which of two plugins a slice is from.
//!
//! During a rolling update an old plugin and a new one publish the same pool for a while. As long as they lay it out alike,
//! neither has anything to write. If they do not, each would repair what the other one wrote, so one has to give way: the
//! one that was started first, because it goes. So every slice says when its writer was started.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::Change;

/// What follows the driver's name in the name of the annotation.
const ANNOTATION: &str = "publisher-started";

/// When a plugin was started, in nanoseconds of Unix time: the two run on one node, and so by one clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Started(u128);

// === impl Started ===

impl Started {
    /// For a plugin that is started now.
    pub fn now() -> Self {
        Self(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos())
    }

    /// Has the slices of these changes say so.
    pub fn sign(self, driver: &str, changes: &mut [Change]) {
        for change in changes {
            if let Change::Update { object, .. } | Change::Create { object, .. } = change {
                object["metadata"]["annotations"][annotation(driver)] = self.0.to_string().into();
            }
        }
    }

    /// Whether these changes, not signed yet, would undo what a plugin wrote that was started later. A time that has not
    /// come yet says that the node's clock was wrong, and counts for nothing.
    pub fn is_superseded_in(self, driver: &str, changes: &[Change], existing: &[Value]) -> bool {
        let now = Self::now();
        let later = |slice: &Value| {
            let started = slice["metadata"]["annotations"][annotation(driver)].as_str().and_then(|at| at.parse().ok());
            started.map(Self).is_some_and(|started| self < started && started <= now)
        };
        changes.iter().any(|change| match change {
            Change::Update { object, .. } => later(object),
            Change::Delete { name, .. } => {
                existing.iter().any(|slice| slice["metadata"]["name"] == **name && later(slice))
            }
            Change::Create { .. } => false,
        })
    }
}

fn annotation(driver: &str) -> String {
    format!("{driver}/{ANNOTATION}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DRIVER: &str = "gpu.nvidia.com";

    fn update(object: Value) -> Change {
        Change::Update { index: 0, name: "a".to_owned(), object }
    }

    #[test]
    fn the_plugin_that_was_started_first_gives_way() {
        let (old, new) = (Started(1), Started(2));
        for (first, second, gives_way) in [(old, new, true), (new, old, false), (old, old, false)] {
            let mut changes = [update(json!({"metadata": {"annotations": {"of": "others"}}}))];
            second.sign(DRIVER, &mut changes);
            assert_eq!(changes[0].body()["metadata"]["annotations"]["of"], "others");
            assert_eq!(first.is_superseded_in(DRIVER, &changes, &[]), gives_way, "{first:?} {second:?}");
            let delete = Change::Delete { name: "a".to_owned(), options: json!({}) };
            let mut existing = changes[0].body().clone();
            existing["metadata"]["name"] = "a".into();
            assert_eq!(first.is_superseded_in(DRIVER, &[delete], &[existing]), gives_way, "{first:?} {second:?}");
        }
    }

    #[test]
    fn what_is_missing_unsigned_or_from_the_future_is_nobodys() {
        let tomorrow = Started(Started::now().0 + 86_400_000_000_000);
        let mut changes = [update(json!({"metadata": {}}))];
        assert!(!Started(1).is_superseded_in(DRIVER, &changes, &[]));
        tomorrow.sign(DRIVER, &mut changes);
        assert!(!Started(1).is_superseded_in(DRIVER, &changes, &[]));
        let mut create = [Change::Create { index: 0, object: json!({"metadata": {}}) }];
        Started(2).sign(DRIVER, &mut create);
        assert!(!Started(1).is_superseded_in(DRIVER, &create, &[]));
    }
}
