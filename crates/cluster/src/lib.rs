//! The cluster map and the control plane.
