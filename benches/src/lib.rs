//! Criterion benches and side-by-side runs.
