//! Wires the parts.
