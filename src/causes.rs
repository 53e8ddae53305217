//! An error with all that is behind it, as one line for people.

use std::error::Error;
use std::iter;

/// The message of an error and those of its causes, outermost first: `cannot write the record: no space left on device`.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let chain = iter::successors(Some(error), |error| (*error).source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
