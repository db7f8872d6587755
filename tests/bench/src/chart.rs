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
    /// What the vertical axis shows.
    pub(crate) y: String,
    /// Whether it is logarithmic; otherwise it begins at 0.
    pub(crate) logarithmic: bool,
    pub(crate) lines: Vec<Line>,
}

/// One line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// Whether it is what others are compared with: drawn in the colour of the next
    /// one, in dashes.
    pub(crate) yardstick: bool,
    /// Values in the order of the places; `None` where there is none.
    pub(crate) values: Vec<Option<f64>>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
/// Colours that people with colour blindness can distinguish (Okabe and Ito).
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
        let scale = Scale::of(self);
        self.grid(&mut svg, &scale);
        let mut colour = 0;
        for (at, line) in self.lines.iter().enumerate() {
            let name = COLOURS.get(colour % COLOURS.len()).copied();
            let pen = Pen {
                colour: name.unwrap_or("black"),
                dashes: if line.yardstick { DASHES } else { "" },
            };
            colour += usize::from(!line.yardstick);
            self.line(&mut svg, line, pen, &scale);
            #[allow(clippy::cast_precision_loss, reason = "a few lines")]
            let y = TOP + 10.0 + 18.0 * at as f64;
            let x = WIDTH - RIGHT + 12.0;
            let above = y - 4.0;
            let _ = writeln!(
                svg,
                "<line x1=\"{x}\" y1=\"{above:.1}\" x2=\"{}\" y2=\"{above:.1}\"{pen}/>",
                x + 20.0
            );
            text(&mut svg, (x + 26.0, y), "start", &line.name);
        }
        svg.push_str("</svg>\n");
        svg
    }

    #[allow(clippy::cast_precision_loss, reason = "a few places")]
    fn across(&self, place: usize) -> f64 {
        let room = WIDTH - LEFT - RIGHT;
        LEFT + room * (place as f64 + 0.5) / self.places.len().max(1) as f64
    }

    fn grid(&self, svg: &mut String, scale: &Scale) {
        for value in scale.marks() {
            let y = scale.up(value);
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

    fn line(&self, svg: &mut String, line: &Line, pen: Pen, scale: &Scale) {
        let mut points = String::new();
        for (place, value) in line.values.iter().enumerate() {
            if let Some(value) = value {
                let (x, y) = (self.across(place), scale.up(*value));
                let _ = write!(points, "{x:.1},{y:.1} ");
                let _ = writeln!(
                    svg,
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{}\"/>",
                    pen.colour
                );
            }
        }
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\"{pen}/>",
            points.trim_end()
        );
    }
}

/// How a line is drawn; shown as the attributes that say so.
#[derive(Clone, Copy)]
struct Pen {
    colour: &'static str,
    dashes: &'static str,
}

const DASHES: &str = " stroke-dasharray=\"6 4\"";

impl std::fmt::Display for Pen {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { colour, dashes } = self;
        write!(out, " stroke=\"{colour}\" stroke-width=\"2\"{dashes}")
    }
}

/// The vertical axis: round values at its ends, and every value between them.
#[derive(Clone, Copy, Debug)]
struct Scale {
    bottom: f64,
    top: f64,
    logarithmic: bool,
}

impl Scale {
    fn of(chart: &Chart) -> Self {
        let values = chart.lines.iter().flat_map(|line| line.values.iter());
        let values = values.flatten().copied().filter(|value| *value > 0.0);
        let (least, most) = values.fold((f64::MAX, 0.0), |(least, most), value| {
            (f64::min(least, value), f64::max(most, value))
        });
        let logarithmic = chart.logarithmic;
        let (bottom, top) = match (most > 0.0, logarithmic) {
            (false, _) => (0.0, 1.0),
            (true, false) => (0.0, above(most, &[1.0, 2.0, 2.5, 5.0, 10.0])),
            (true, true) => (below(least), above(most, &STEPS)),
        };
        Self {
            bottom,
            // Two ends, also of one value.
            top: if top > bottom { top } else { bottom * 10.0 },
            logarithmic: logarithmic && bottom > 0.0,
        }
    }

    /// Where a value is.
    fn up(&self, value: f64) -> f64 {
        let part = match self.logarithmic {
            true => {
                (value.max(self.bottom) / self.bottom).log10() / (self.top / self.bottom).log10()
            }
            false => value / self.top,
        };
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part
    }

    /// The values that have a line across.
    fn marks(&self) -> Vec<f64> {
        if !self.logarithmic {
            return (0..=5)
                .map(|step| self.top * f64::from(step) / 5.0)
                .collect();
        }
        let mut marks = Vec::new();
        let mut mark = self.bottom;
        // Round as decimals are not in binary.
        while mark <= self.top * 1.001 {
            marks.push(mark);
            mark = above(mark * 1.001, &STEPS);
        }
        marks
    }
}

/// The marks of a logarithmic axis within each power of ten.
const STEPS: [f64; 4] = [1.0, 2.0, 5.0, 10.0];

/// The power of ten at or below a value.
fn unit(value: f64) -> f64 {
    10f64.powf(value.log10().floor())
}

/// The first of some steps within a power of ten that is not below a value.
fn above(value: f64, steps: &[f64]) -> f64 {
    let mut marks = steps.iter().map(|step| step * unit(value));
    marks.find(|mark| *mark >= value).unwrap_or(value)
}

/// The last step of a logarithmic axis that is not above a value.
fn below(value: f64) -> f64 {
    let marks = STEPS.iter().rev().map(|step| step * unit(value));
    let mut marks = marks.filter(|mark| *mark <= value);
    marks.next().unwrap_or(unit(value))
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
                yardstick: false,
                values: values.to_vec(),
            }],
            ..Chart::default()
        }
    }

    #[test]
    fn points_are_at_their_values() {
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
            let scale = Scale::of(&chart(&[Some(most)]));
            assert!((scale.top - top).abs() < 1e-9, "{most}: {scale:?}");
        }
    }

    #[test]
    fn logarithmic_axis_spans_all_values() {
        for (least, most, marks) in [
            (
                0.2,
                61.0,
                &["0.2", "0.5", "1", "2", "5", "10", "20", "50", "100"][..],
            ),
            (9.2, 12.0, &["5", "10", "20"]),
            (1.0, 1.0, &["1", "2", "5", "10"]),
        ] {
            let chart = Chart {
                logarithmic: true,
                ..chart(&[Some(least), None, Some(most)])
            };
            let scale = Scale::of(&chart);
            let found: Vec<String> = scale.marks().into_iter().map(number).collect();
            assert_eq!(found, marks, "{least} {most}");
            let ends = [scale.bottom, scale.top].map(|end| scale.up(end));
            assert_eq!(ends, [HEIGHT - BOTTOM, TOP]);
            assert!(scale.up(least) <= ends[0] && scale.up(most) >= ends[1]);
        }
        // Ten times as much is as far up wherever it is.
        let scale = Scale {
            bottom: 0.1,
            top: 100.0,
            logarithmic: true,
        };
        let third = (HEIGHT - BOTTOM - TOP) / 3.0;
        assert!((scale.up(1.0) - scale.up(10.0) - third).abs() < 1e-9);
    }

    #[test]
    fn yardstick_is_dashed_in_the_colour_of_its_contestant() {
        let mut chart = chart(&[Some(1.0)]);
        let yardstick = Line {
            yardstick: true,
            ..Line::default()
        };
        chart.lines.insert(0, yardstick.clone());
        chart.lines.extend([yardstick, Line::default()]);
        let svg = chart.to_svg();
        let lines = svg.lines().filter(|line| line.starts_with("<polyline"));
        let pens: Vec<_> = lines
            .map(|line| {
                (
                    line.contains("dash"),
                    COLOURS.iter().position(|it| line.contains(it)),
                )
            })
            .collect();
        let [first, second] = [Some(0), Some(1)];
        assert_eq!(
            pens,
            [
                (true, first),
                (false, first),
                (true, second),
                (false, second)
            ]
        );
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([0.0, 1.5, 200.0].map(number), ["0", "1.5", "200"]);
    }
}
