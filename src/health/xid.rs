//! XIDs: the driver's numbers for what went wrong with a GPU, and what this plugin makes of each by default.
//!
//! The table follows NVIDIA's catalogue of XIDs. Three things decide: what a program did to itself says nothing about the
//! GPU; what the driver only notes does no harm; everything else, and what nobody has heard of yet, keeps new claims away
//! until a probe says that the GPU is well. `docs/health.md` is made from it.

use std::fmt;

use super::policy::Response;

/// An XID. At most 999: so many can be told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Xid(u32);

/// What is known of some XIDs that are handled alike.
#[derive(Debug, PartialEq, Eq)]
pub struct Group {
    /// In ascending order.
    pub numbers: &'static [u32],
    /// What has happened, as a clause of ASCII text.
    pub about: &'static str,
    /// What is done unless the operator says otherwise.
    pub response: Response,
    /// What it takes to forget it.
    pub clears: Clears,
    /// What an operator does.
    pub advice: &'static str,
}

/// Which probe clears an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clears {
    /// One that the GPU answers, unless the driver asks for a recovery action.
    Answer,
    /// One in which the driver says that it needs no recovery action. Drivers that do not know recovery actions cannot
    /// say so: then the GPU has to be lost, or NVML closed, and to answer again.
    Recovery,
}

/// NVML's own number for an XID that it does not know.
const UNKNOWN: u32 = 999;

/// Every XID of which something is known. A number is in one group.
pub const GROUPS: [Group; 14] = [
    Group {
        numbers: &[
            8, 13, 25, 31, 32, 39, 40, 41, 43, 45, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89,
            96, 97, 98, 99, 100, 101, 102, 103, 104, 105, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135, 139,
        ],
        about: "a program failed or was ended",
        response: Response::Ignore,
        clears: Clears::Answer,
        advice: "Look at the program's own log.",
    },
    Group {
        numbers: &[37, 38, 44, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 157, 160, 161],
        about: "the driver noted something that does no harm",
        response: Response::Ignore,
        clears: Clears::Answer,
        advice: "Nothing; report it to NVIDIA if it comes again and again.",
    },
    Group {
        numbers: &[63],
        about: "a bad piece of memory was recorded for replacement",
        response: Response::Ignore,
        clears: Clears::Answer,
        advice: "Nothing. If a reset is due for it, the cause `row-remap-pending` says so.",
    },
    Group {
        numbers: &[154],
        about: "the driver wants another recovery action than before",
        response: Response::Ignore,
        clears: Clears::Answer,
        advice: "Nothing. The GPU is probed at once, and the cause `recovery-action` says what is due.",
    },
    Group {
        numbers: &[94],
        about: "a memory error was contained; the program that met it was ended",
        response: Response::Warn,
        clears: Clears::Answer,
        advice: "Nothing; reset the GPU at the next opportunity if `row-remap-pending` shows.",
    },
    Group {
        numbers: &[109],
        about: "a context switch timed out",
        response: Response::Warn,
        clears: Clears::Answer,
        advice: "Reset the GPU if `recovery-action` says so; look at the program otherwise.",
    },
    Group {
        numbers: &[46, 62, 110, 119, 120, 143, 155, 156, 158],
        about: "the GPU or its firmware stopped working",
        response: Response::NoSchedule,
        clears: Clears::Recovery,
        advice: "Drain the GPU and reset it. If that fails, restart the node.",
    },
    Group {
        numbers: &[48, 95, 140, 171, 172],
        about: "memory errors could not be corrected",
        response: Response::NoSchedule,
        clears: Clears::Recovery,
        advice: "Drain the GPU and reset it, so that the bad memory is replaced by spare rows.",
    },
    Group {
        numbers: &[64],
        about: "bad memory could not be recorded for replacement",
        response: Response::NoSchedule,
        clears: Clears::Recovery,
        advice: "Drain the GPU and reset it. If it comes again, have the board replaced.",
    },
    Group {
        numbers: &[74, 136, 144, 145, 146, 147, 148, 149, 150],
        about: "an NVLink failed",
        response: Response::NoSchedule,
        clears: Clears::Recovery,
        advice: "Look at `nvidia-smi nvlink --status` and at the log of the fabric manager; reset the GPU.",
    },
    Group {
        numbers: &[79],
        about: "the GPU has fallen off the bus",
        response: Response::NoSchedule,
        clears: Clears::Recovery,
        advice: "Restart the node. If it comes again: power, cooling, seating of the board.",
    },
    Group {
        numbers: &[54],
        about: "the GPU's extra power is not connected",
        response: Response::NoSchedule,
        clears: Clears::Recovery,
        advice: "Check the board's power cables.",
    },
    Group {
        numbers: &[78, 142, 159],
        about: "the driver and the machine do not fit together",
        response: Response::NoSchedule,
        clears: Clears::Recovery,
        advice: "Check the versions of driver and firmware; ask NVIDIA.",
    },
    Group {
        numbers: &[151],
        about: "the keys of confidential computing are used up",
        response: Response::NoSchedule,
        clears: Clears::Recovery,
        advice: "Restart the virtual machine.",
    },
];

/// All other XIDs: also those that newer drivers will report.
pub const OTHER: Group = Group {
    numbers: &[],
    about: "an error that this plugin does not know",
    response: Response::NoSchedule,
    clears: Clears::Recovery,
    advice: "Look it up in NVIDIA's catalogue of XIDs.",
};

// === impl Xid ===

impl Xid {
    /// From the number that NVML reports. What is larger than any XID counts as unknown, 999.
    pub fn new(number: u64) -> Self {
        Self(u32::try_from(number).unwrap_or(UNKNOWN).min(UNKNOWN))
    }

    /// The number.
    pub fn number(self) -> u32 {
        self.0
    }

    /// What is known of it.
    pub fn group(self) -> &'static Group {
        static OTHERS: Group = OTHER;
        GROUPS.iter().find(|group| group.numbers.contains(&self.0)).unwrap_or(&OTHERS)
    }
}

impl fmt::Display for Xid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_number_is_in_one_group() {
        let numbers: Vec<_> = GROUPS.iter().flat_map(|group| group.numbers).collect();
        assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), numbers.len());
        assert!(GROUPS.iter().all(|group| group.numbers.is_sorted() && !group.numbers.is_empty()));
    }

    /// Those that both of NVIDIA's plugins pass over must not keep claims away here either.
    #[test]
    fn what_nvidias_plugins_ignore_keeps_no_claim_away() {
        for number in [13, 31, 43, 45, 68, 109] {
            assert!(Xid::new(number).group().response < Response::NoSchedule, "{number}");
        }
    }

    #[test]
    fn what_needs_a_reset_or_nobody_knows_keeps_claims_away_until_the_driver_is_content() {
        for number in [46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158, 0, 1, 162, 999, 1 << 40]
        {
            let Group { response, clears, .. } = Xid::new(number).group();
            assert_eq!((*response, *clears), (Response::NoSchedule, Clears::Recovery), "{number}");
        }
    }

    #[test]
    fn a_number_that_cannot_be_an_xid_is_the_unknown_one() {
        assert_eq!([999, 1000, 1 << 32, u64::MAX].map(|number| Xid::new(number).number()), [999; 4]);
        assert_eq!(Xid::new(79).number(), 79);
    }
}
