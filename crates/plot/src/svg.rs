//! SVG elements as text.

use std::fmt::{Display, Write};

/// Where a text begins or ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A drawing under way. Coordinates are pixels from the upper left corner.
#[derive(Debug)]
pub(crate) struct Canvas {
    width: f64,
    height: f64,
    body: String,
}

impl Canvas {
    /// An empty white drawing.
    pub(crate) fn new(width: f64, height: f64) -> Canvas {
        Canvas { width, height, body: String::new() }
    }

    /// A filled rectangle; `hint` is shown by viewers that show hints.
    pub(crate) fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str, hint: &str) {
        let hint = if hint.is_empty() {
            String::new()
        } else {
            format!("<title>{}</title>", escape(hint))
        };
        self.put(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{fill}\">{hint}</rect>",
            width.max(0.0),
            height.max(0.0)
        ));
    }

    /// A straight line.
    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str, width: f64) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.put(format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{stroke}\" stroke-width=\"{width}\"/>"
        ));
    }

    /// A line through points; `dash` as in `stroke-dasharray`.
    pub(crate) fn path(&mut self, points: &[(f64, f64)], stroke: &str, dash: &str) {
        let list: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.put(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"1.8\" stroke-dasharray=\"{dash}\"/>",
            list.join(" ")
        ));
    }

    /// A filled circle.
    pub(crate) fn dot(&mut self, at: (f64, f64), radius: f64, fill: &str) {
        self.put(format_args!(
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius}\" fill=\"{fill}\"/>",
            at.0, at.1
        ));
    }

    /// A line of text whose base line is at `y`.
    pub(crate) fn text(&mut self, x: f64, y: f64, size: f64, anchor: Anchor, text: &str) {
        self.styled(x, y, size, anchor, "", text);
    }

    /// A bold line of text.
    pub(crate) fn bold(&mut self, x: f64, y: f64, size: f64, anchor: Anchor, text: &str) {
        self.styled(x, y, size, anchor, " font-weight=\"bold\"", text);
    }

    /// A line of text that runs upwards, centred on the point.
    pub(crate) fn upwards(&mut self, x: f64, y: f64, size: f64, text: &str) {
        let style = format!(" transform=\"rotate(-90 {x:.1} {y:.1})\"");
        self.styled(x, y, size, Anchor::Middle, &style, text);
    }

    /// The whole file.
    pub(crate) fn finish(self) -> String {
        let Canvas { width, height, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"Helvetica, Arial, sans-serif\" fill=\"#222\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
        )
    }

    fn styled(&mut self, x: f64, y: f64, size: f64, anchor: Anchor, style: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\"{style}>{}</text>",
            escape(text)
        ));
    }

    fn put(&mut self, element: impl Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.body, "{element}");
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_the_file_is_whole() {
        let mut canvas = Canvas::new(100.0, 50.0);
        canvas.text(1.0, 2.0, 10.0, Anchor::Middle, "a < b & c");
        canvas.rect(0.0, 0.0, -3.0, 1.0, "#000", "4 > 3");
        let file = canvas.finish();
        assert!(file.starts_with("<svg ") && file.ends_with("</svg>\n"));
        assert!(file.contains("a &lt; b &amp; c") && file.contains("<title>4 &gt; 3</title>"));
        assert!(file.contains("width=\"0.0\""), "a negative width became 0");
    }
}
