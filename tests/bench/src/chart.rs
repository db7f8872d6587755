//! Line charts as SVG.

use std::fmt::Write as _;

/// A chart whose horizontal axis has a place for each of a few values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// What the horizontal axis shows.
    pub(crate) x: String,
    /// The values on it, in order.
    pub(crate) places: Vec<String>,
    /// What the vertical axis shows; it begins at 0.
    pub(crate) y: String,
    pub(crate) lines: Vec<Line>,
}

/// One line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// Values in the order of the places; `None` where there is none.
    pub(crate) values: Vec<Option<f64>>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
/// Colours that people with colour blindness tell apart (Okabe and Ito).
const COLOURS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
];

impl Chart {
    pub(crate) fn to_svg(&self) -> String {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        text(&mut svg, (WIDTH / 2.0, 22.0), "middle", &self.title);
        let middle = LEFT + (WIDTH - LEFT - RIGHT) / 2.0;
        text(&mut svg, (middle, HEIGHT - 12.0), "middle", &self.x);
        text(&mut svg, (8.0, TOP - 12.0), "start", &self.y);
        let top = self.top();
        self.grid(&mut svg, top);
        for (at, line) in self.lines.iter().enumerate() {
            let colour = COLOURS.get(at % COLOURS.len()).copied().unwrap_or("black");
            self.line(&mut svg, line, colour, top);
            #[allow(clippy::cast_precision_loss, reason = "a few lines")]
            let y = TOP + 10.0 + 18.0 * at as f64;
            let x = WIDTH - RIGHT + 12.0;
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{:.1}\" width=\"14\" height=\"3\" fill=\"{colour}\"/>",
                y - 5.0
            );
            text(&mut svg, (x + 20.0, y), "start", &line.name);
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// The end of the vertical axis: round, and above every value.
    fn top(&self) -> f64 {
        let values = self.lines.iter().flat_map(|line| line.values.iter());
        let most = values.flatten().copied().fold(0.0, f64::max);
        if most <= 0.0 {
            return 1.0;
        }
        let unit = 10f64.powf(most.log10().floor());
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
        steps
            .into_iter()
            .map(|step| step * unit)
            .find(|top| *top >= most)
            .unwrap_or(most)
    }

    #[allow(clippy::cast_precision_loss, reason = "a few places")]
    fn across(&self, place: usize) -> f64 {
        let room = WIDTH - LEFT - RIGHT;
        LEFT + room * (place as f64 + 0.5) / self.places.len().max(1) as f64
    }

    fn grid(&self, svg: &mut String, top: f64) {
        for step in 0..=5 {
            let value = top * f64::from(step) / 5.0;
            let y = up(value, top);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>",
                WIDTH - RIGHT
            );
            text(svg, (LEFT - 6.0, y + 4.0), "end", &number(value));
        }
        for (place, name) in self.places.iter().enumerate() {
            text(
                svg,
                (self.across(place), HEIGHT - BOTTOM + 18.0),
                "middle",
                name,
            );
        }
    }

    fn line(&self, svg: &mut String, line: &Line, colour: &str, top: f64) {
        let mut points = String::new();
        for (place, value) in line.values.iter().enumerate() {
            if let Some(value) = value {
                let (x, y) = (self.across(place), up(*value, top));
                let _ = write!(points, "{x:.1},{y:.1} ");
                let _ = writeln!(
                    svg,
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
                );
            }
        }
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            points.trim_end()
        );
    }
}

fn up(value: f64, top: f64) -> f64 {
    HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top
}

fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(values: &[Option<f64>]) -> Chart {
        Chart {
            title: "a < b & c".to_owned(),
            places: vec!["1".to_owned(), "16".to_owned(), "128".to_owned()],
            lines: vec![Line {
                name: "ours".to_owned(),
                values: values.to_vec(),
            }],
            ..Chart::default()
        }
    }

    #[test]
    fn points_are_where_their_values_are() {
        let svg = chart(&[Some(0.0), None, Some(180.0)]).to_svg();
        // 0 at the bottom; of 200, which is the top, 180 are nine tenths.
        assert!(svg.contains("points=\"140.0,350.0 420.0,71.0\""), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("a &lt; b &amp; c"), "{svg}");
    }

    #[test]
    fn axis_ends_above_every_value() {
        for (most, top) in [
            (0.9, 1.0),
            (1.3, 2.0),
            (2.1, 2.5),
            (733.0, 1000.0),
            (0.0, 1.0),
        ] {
            let found = chart(&[Some(most)]).top();
            assert!((found - top).abs() < 1e-9, "{most}: {found}");
        }
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([0.0, 1.5, 200.0].map(number), ["0", "1.5", "200"]);
    }
}
