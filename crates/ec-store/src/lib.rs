//! Erasure coding, stripe layout, the PG write protocol, the per-core executor and the fragment store.
