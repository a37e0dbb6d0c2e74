//! Figures of reports as SVG: panels of grouped bars or lines, with axes, units and a legend.
//!
//! A [`Figure`] holds [`Panel`]s of one [`Plot`] each, whose series look as its [`Style`]s say;
//! [`Figure::draw`] gives the file. What it is not: it reads and writes nothing, and knows nothing
//! of what the numbers are.
#![forbid(unsafe_code)]

mod chart;
mod svg;

pub use chart::{Figure, Panel, Plot, Style, style};
