//! What the API server must hear of: one Event at a time, until it is taken.
//!
//! ```text
//!  found ──▶ Event, of all that there are ──▶ the API server took it: forgotten
//!                ▲                          └▶ not: again, with those that came since
//!                └───────── a minute ───────────────┘
//! ```

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::cluster::NodeEvents;

/// Between two Events: [`NodeEvents`] leaves out what comes faster.
const BETWEEN: Duration = NodeEvents::AT_MOST_EVERY;

/// Takes what `found` waits for to `told`, in the words of `note`; it answers whether it got through. Runs until it is
/// dropped.
pub(super) async fn tell<T>(
    mut found: impl AsyncFnMut() -> Vec<T>,
    note: impl Fn(&[T]) -> String,
    mut told: impl AsyncFnMut(&str) -> bool,
) {
    let mut untold = Vec::new();
    let mut next = Instant::now();
    loop {
        tokio::select! {
            mut more = found() => untold.append(&mut more),
            () = sleep_until(next), if !untold.is_empty() => {
                if told(&note(&untold)).await {
                    untold.clear();
                }
                next = Instant::now() + BETWEEN;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_event_comes_once_a_minute_until_it_is_taken_and_leaves_nothing_out() {
        let (find, mut finds) = mpsc::unbounded_channel();
        let found = async move || vec![finds.recv().await.unwrap()];
        let (tell_test, mut told) = mpsc::unbounded_channel();
        let start = Instant::now();
        let mut attempts = 0;
        let tell_test = async move |note: &str| {
            attempts += 1;
            tell_test.send((start.elapsed().as_secs(), note.to_owned())).unwrap();
            attempts > 2
        };
        let _task = tokio::spawn(tell(found, |numbers: &[u32]| format!("{numbers:?}"), tell_test));
        find.send(0).unwrap();
        assert_eq!(told.recv().await.unwrap(), (0, "[0]".to_owned()));
        sleep(BETWEEN / 2).await;
        find.send(1).unwrap();
        assert_eq!(told.recv().await.unwrap(), (60, "[0, 1]".to_owned()));
        assert_eq!(told.recv().await.unwrap(), (120, "[0, 1]".to_owned()));
        find.send(2).unwrap();
        assert_eq!(told.recv().await.unwrap(), (180, "[2]".to_owned()));
        sleep(10 * BETWEEN).await;
        assert!(told.try_recv().is_err());
    }
}
