//! What becomes of a query that fails.
//!
//! ```text
//!  answer                      fact is
//!  a value                     the value
//!  NOT_SUPPORTED, no symbol    none: the GPU or its driver does not have it
//!  any other code              what the last scan knew of the same UUID
//! ```

use super::error::{Code, Error};
use crate::device::LeftOut;

/// Collects what could not be read of one owner.
pub(super) struct Notes {
    owner: String,
    pub(super) left_out: Vec<LeftOut>,
    /// Some query said that the GPU is lost.
    pub(super) lost: bool,
}

// === impl Notes ===

impl Notes {
    pub(super) fn new(owner: String) -> Self {
        Self { owner, left_out: Vec::new(), lost: false }
    }

    /// A fact that every GPU has. Where it cannot be read it is the `last` one, with a note; where the GPU or its driver
    /// does not have it, `None`, with a note too. Fails only for a stale library.
    pub(super) fn fact<T>(
        &mut self,
        what: &str,
        answer: Result<T, Error>,
        last: Option<T>,
    ) -> Result<Option<T>, Error> {
        match answer {
            Ok(fact) => Ok(Some(fact)),
            Err(error) if error.is_stale() => Err(error),
            Err(error) => {
                self.lost |= error.code() == Some(Code::GPU_IS_LOST);
                let last = last.filter(|_| !error.is_absent());
                let mut note = LeftOut::new(format!("the {what} of {}", self.owner), &error);
                if last.is_some() {
                    note.why.push_str("; the last known one stays");
                }
                // A query that fails on 18 links fails for one reason.
                if !self.left_out.contains(&note) {
                    self.left_out.push(note);
                }
                Ok(last)
            }
        }
    }

    /// A fact that only some GPUs and drivers have: its absence is not worth a note.
    pub(super) fn feature<T>(
        &mut self,
        what: &str,
        answer: Result<T, Error>,
        last: Option<T>,
    ) -> Result<Option<T>, Error> {
        match answer {
            Err(error) if error.is_absent() => Ok(None),
            answer => self.fact(what, answer, last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_query_costs_its_fact_alone() {
        let mut notes = Notes::new("GPU-1".to_owned());
        for code in [3, 15, 25, 28, 999, 4711] {
            let error = Error::Call { call: "nvmlDeviceGetBrand", gpu: None, code: Code(code) };
            assert_eq!(notes.fact("brand", Err::<u32, _>(error), None).unwrap(), None);
        }
        assert_eq!(notes.left_out.len(), 6);
        assert_eq!(notes.left_out[0].what, "the brand of GPU-1");
    }

    #[test]
    fn a_fact_that_fails_stays_what_it_was_and_one_that_is_not_supported_does_not() {
        let mut notes = Notes::new("GPU-1".to_owned());
        let error = |code| Error::Call { call: "nvmlDeviceGetBrand", gpu: None, code: Code(code) };
        assert_eq!(notes.fact("brand", Err(error(999)), Some("Tesla")).unwrap(), Some("Tesla"));
        assert_eq!(notes.fact("brand", Err(error(3)), Some("Tesla")).unwrap(), None);
        assert_eq!(notes.fact("brand", Ok("Nvidia"), Some("Tesla")).unwrap(), Some("Nvidia"));
        let [kept, lost] = &notes.left_out[..] else { panic!("{:?}", notes.left_out) };
        assert!(kept.why.ends_with("; the last known one stays") && !lost.why.contains("stays"));
    }

    #[test]
    fn a_stale_library_ends_the_scan() {
        let mut notes = Notes::new("GPU-1".to_owned());
        let error = Error::Call { call: "nvmlDeviceGetBrand", gpu: None, code: Code::LIB_RM_VERSION_MISMATCH };
        assert!(notes.fact("brand", Err(error), Some(1)).is_err());
    }

    #[test]
    fn a_missing_feature_is_no_news_but_a_failing_one_is() {
        let mut notes = Notes::new("GPU-1".to_owned());
        let failed = |code| Err::<u32, _>(Error::Call { call: "nvmlDeviceGetMigMode", gpu: None, code: Code(code) });
        for absent in [failed(3), failed(13), Err(Error::Symbol { call: "nvmlDeviceGetMigMode" })] {
            assert_eq!(notes.feature("MIG mode", absent, Some(1)).unwrap(), None);
        }
        assert_eq!(notes.left_out, []);
        assert_eq!(notes.feature("MIG mode", failed(999), None).unwrap(), None);
        assert_eq!(notes.left_out.len(), 1);
    }
}
