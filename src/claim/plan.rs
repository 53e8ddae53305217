//! Allocation → plan.
