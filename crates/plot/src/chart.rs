//! Figures: panels of grouped bars or lines, with axes, units and a legend.
//!
//! Colours are Okabe and Ito's, which people with any colour vision can tell apart; lines differ in
//! dashes as well.

use crate::svg::{Anchor, Canvas};

const PANEL_LEFT: f64 = 62.0;
const PANEL_TOP: f64 = 30.0;
const PANEL_BOTTOM: f64 = 44.0;
const PANEL_RIGHT: f64 = 14.0;
const SMALL: f64 = 10.5;
const GRID: &str = "#ddd";

/// How a series looks.
#[derive(Clone, Debug)]
pub struct Style {
    /// In the legend.
    pub name: String,
    /// As in `fill`.
    pub colour: &'static str,
    /// As in `stroke-dasharray`.
    pub dash: &'static str,
}

/// The look of the n-th series.
pub fn style(index: usize, name: &str) -> Style {
    const LOOKS: [(&str, &str); 7] = [
        ("#666666", ""),
        ("#E69F00", "7 3"),
        ("#D55E00", "2 2"),
        ("#0072B2", ""),
        ("#009E73", "9 3 2 3"),
        ("#CC79A7", "4 2"),
        ("#56B4E9", "1 3"),
    ];
    let (colour, dash) = LOOKS[index % LOOKS.len()];
    Style { name: name.to_owned(), colour, dash }
}

/// What a panel shows.
#[derive(Clone, Debug)]
pub enum Plot {
    /// Bars by category; `values[series][category]`.
    Bars {
        /// Labels under the groups.
        categories: Vec<String>,
        /// By series, then by category.
        values: Vec<Vec<f64>>,
    },
    /// Points joined by lines, by series; `logarithmic` is the scale of x, base 2.
    Lines {
        /// By series.
        points: Vec<Vec<(f64, f64)>>,
        /// Scale of x.
        logarithmic: bool,
    },
}

/// One coordinate system.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Above it.
    pub title: String,
    /// What x is.
    pub x_label: String,
    /// What y is, with the unit.
    pub y_label: String,
    /// A horizontal line to compare with.
    pub reference: Option<f64>,
    /// Top of the scale, if panels shall have the same.
    pub y_max: Option<f64>,
    /// The data.
    pub plot: Plot,
}

/// Panels in a grid under a common title and legend.
#[derive(Clone, Debug)]
pub struct Figure {
    /// In the first line.
    pub title: String,
    /// Under the title: mode and assumptions.
    pub note: String,
    /// Series of all panels; a legend is drawn if there are several.
    pub styles: Vec<Style>,
    /// Panels side by side.
    pub columns: usize,
    /// Width and height of a panel.
    pub panel: (f64, f64),
    /// In rows from the upper left.
    pub panels: Vec<Panel>,
}

impl Figure {
    /// The figure as SVG.
    pub fn draw(&self) -> String {
        let columns = self.columns.clamp(1, self.panels.len().max(1));
        let rows = self.panels.len().div_ceil(columns);
        let (width, height) = self.panel;
        let head = if self.styles.len() > 1 { 74.0 } else { 52.0 };
        let total = (width * columns as f64).max(480.0) + 16.0;
        let mut canvas = Canvas::new(total, head + height * rows as f64 + 8.0);
        canvas.bold(12.0, 22.0, 15.0, Anchor::Start, &self.title);
        canvas.text(12.0, 40.0, 11.0, Anchor::Start, &self.note);
        if self.styles.len() > 1 {
            self.legend(&mut canvas);
        }
        for (index, panel) in self.panels.iter().enumerate() {
            let (column, row) = (index % columns, index / columns);
            let origin = (8.0 + width * column as f64, head + height * row as f64);
            Frame::new(panel, origin, self.panel).draw(&mut canvas, &self.styles);
        }
        canvas.finish()
    }

    fn legend(&self, canvas: &mut Canvas) {
        let mut x = 14.0;
        for style in &self.styles {
            canvas.rect(x, 53.0, 11.0, 11.0, style.colour, "");
            canvas.text(x + 16.0, 63.0, 11.5, Anchor::Start, &style.name);
            x += 34.0 + 6.6 * style.name.len() as f64;
        }
    }
}

/// A panel with its place and scales.
struct Frame<'a> {
    panel: &'a Panel,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    y_max: f64,
    step: f64,
}

impl<'a> Frame<'a> {
    fn new(panel: &'a Panel, origin: (f64, f64), size: (f64, f64)) -> Frame<'a> {
        let highest = match &panel.plot {
            Plot::Bars { values, .. } => values.iter().flatten().copied().fold(0.0, f64::max),
            Plot::Lines { points, .. } => {
                points.iter().flatten().map(|point| point.1).fold(0.0, f64::max)
            }
        };
        let highest = panel.y_max.unwrap_or(highest).max(panel.reference.unwrap_or(0.0));
        let step = nice_step(highest);
        Frame {
            panel,
            left: origin.0 + PANEL_LEFT,
            right: origin.0 + size.0 - PANEL_RIGHT,
            top: origin.1 + PANEL_TOP,
            bottom: origin.1 + size.1 - PANEL_BOTTOM,
            y_max: (highest / step).ceil().max(1.0) * step,
            step,
        }
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom - (value / self.y_max).clamp(0.0, 1.0) * (self.bottom - self.top)
    }

    fn draw(&self, canvas: &mut Canvas, styles: &[Style]) {
        let middle = (self.left + self.right) / 2.0;
        canvas.bold(middle, self.top - 10.0, 12.0, Anchor::Middle, &self.panel.title);
        let lines = (self.y_max / self.step).round() as usize;
        for line in 0..=lines {
            let value = line as f64 * self.step;
            let y = self.y(value);
            canvas.line((self.left, y), (self.right, y), GRID, 1.0);
            canvas.text(self.left - 5.0, y + 3.5, SMALL, Anchor::End, &number(value));
        }
        canvas.upwards(self.left - 46.0, (self.top + self.bottom) / 2.0, 11.0, &self.panel.y_label);
        canvas.text(middle, self.bottom + 34.0, 11.0, Anchor::Middle, &self.panel.x_label);
        match &self.panel.plot {
            Plot::Bars { categories, values } => self.bars(canvas, styles, categories, values),
            Plot::Lines { points, logarithmic } => self.lines(canvas, styles, points, *logarithmic),
        }
        if let Some(value) = self.panel.reference {
            let y = self.y(value);
            canvas.path(&[(self.left, y), (self.right, y)], "#000", "3 3");
        }
        canvas.line((self.left, self.bottom), (self.right, self.bottom), "#222", 1.0);
        canvas.line((self.left, self.top), (self.left, self.bottom), "#222", 1.0);
    }

    fn bars(
        &self,
        canvas: &mut Canvas,
        styles: &[Style],
        categories: &[String],
        values: &[Vec<f64>],
    ) {
        let group = (self.right - self.left) / categories.len().max(1) as f64;
        let bar = group * 0.84 / values.len().max(1) as f64;
        // Labels that would touch are left out, at even distances.
        let every = ((6.5 * categories.iter().map(|c| c.len()).max().unwrap_or(1) as f64 + 4.0)
            / group)
            .ceil() as usize;
        for (index, category) in categories.iter().enumerate() {
            let x = self.left + group * index as f64;
            if index.is_multiple_of(every.max(1)) {
                canvas.text(x + group / 2.0, self.bottom + 15.0, SMALL, Anchor::Middle, category);
            }
            for ((series, values), style) in values.iter().enumerate().zip(styles) {
                let value = values.get(index).copied().unwrap_or(0.0);
                let hint = format!("{}, {category}: {}", style.name, number(value));
                let (at, y) = (x + group * 0.08 + bar * series as f64, self.y(value));
                canvas.rect(at, y, bar * 0.94, self.bottom - y, style.colour, &hint);
            }
        }
    }

    fn lines(
        &self,
        canvas: &mut Canvas,
        styles: &[Style],
        points: &[Vec<(f64, f64)>],
        logarithmic: bool,
    ) {
        let scale = |x: f64| if logarithmic { x.max(f64::MIN_POSITIVE).log2() } else { x };
        let all = || points.iter().flatten().map(|point| point.0);
        let (least, most) =
            all().map(scale).fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(x), b.max(x)));
        if least > most {
            return;
        }
        let span = (most - least).max(f64::MIN_POSITIVE);
        let place =
            |x: f64| self.left + 8.0 + (scale(x) - least) / span * (self.right - self.left - 16.0);
        let mut ticks: Vec<f64> = if logarithmic {
            all().collect()
        } else {
            let step = nice_step(most - least);
            (0..)
                .map(|i| (least / step).ceil() * step + step * f64::from(i))
                .take_while(|x| *x <= most)
                .collect()
        };
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        for tick in ticks {
            canvas.line((place(tick), self.bottom), (place(tick), self.bottom + 4.0), "#222", 1.0);
            canvas.text(place(tick), self.bottom + 16.0, SMALL, Anchor::Middle, &number(tick));
        }
        for (points, style) in points.iter().zip(styles) {
            let placed: Vec<(f64, f64)> =
                points.iter().map(|(x, y)| (place(*x), self.y(*y))).collect();
            canvas.path(&placed, style.colour, style.dash);
            if placed.len() <= 16 {
                placed.iter().for_each(|at| canvas.dot(*at, 2.6, style.colour));
            }
        }
    }
}

/// A step of 1, 2 or 5 times a power of ten that divides a scale into at most six parts.
fn nice_step(highest: f64) -> f64 {
    if !highest.is_finite() || highest <= 0.0 {
        return 1.0;
    }
    let raw = highest / 6.0;
    let power = 10f64.powf(raw.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|factor| factor * power >= raw * 0.999)
        .unwrap_or(10.0);
    factor * power
}

/// Three digits, with k and M.
pub(crate) fn number(value: f64) -> String {
    let trim = |text: String| {
        if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            text
        }
    };
    match value.abs() {
        v if v >= 1e6 => format!("{}M", trim(format!("{:.1}", value / 1e6))),
        v if v >= 1e4 => format!("{}k", trim(format!("{:.1}", value / 1e3))),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 1.0 => trim(format!("{value:.1}")),
        _ => trim(format!("{value:.3}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_numbers() {
        for (highest, step) in
            [(6.0, 1.0), (1.0, 0.2), (35.0, 10.0), (0.0, 1.0), (f64::NAN, 1.0), (3000.0, 500.0)]
        {
            assert!((nice_step(highest) - step).abs() < 1e-9, "{highest}: {}", nice_step(highest));
        }
        for (value, text) in
            [(0.0, "0"), (1.25, "1.2"), (150.0, "150"), (20_000.0, "20k"), (0.05, "0.05")]
        {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn a_figure_has_what_it_was_given() {
        let panel = |plot| Panel {
            title: "part".into(),
            x_label: "block size".into(),
            y_label: "MB/s".into(),
            reference: Some(1.0),
            y_max: None,
            plot,
        };
        let bars = Plot::Bars {
            categories: vec!["4K".into(), "64K".into()],
            values: vec![vec![1.0, 2.0], vec![3.0]],
        };
        let lines =
            Plot::Lines { points: vec![vec![(1.0, 1.0), (64.0, 5.0)], vec![]], logarithmic: true };
        let figure = Figure {
            title: "Figure".into(),
            note: "blocking".into(),
            styles: vec![style(0, "round-robin"), style(1, "lcam")],
            columns: 2,
            panel: (300.0, 240.0),
            panels: vec![panel(bars), panel(lines)],
        };
        let svg = figure.draw();
        for text in
            ["Figure", "blocking", "round-robin", "lcam, 4K: 3", "64K", "MB/s", "block size"]
        {
            assert!(svg.contains(text), "{text} is missing");
        }
        assert_eq!(svg.matches("<polyline").count(), 2 + 2, "two lines and two references");
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }
}
