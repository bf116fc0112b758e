//! Draws charts as SVG for the HTML page. The crate `plotters` draws them with placeholder colours,
//! which are then replaced by classes of the style sheet. The style sheet defines the colours for
//! light and dark mode.
//!
//! Each report section chooses the shapes of its charts. A chart may have a strip: a narrow bar
//! above the plot. Axes are in `chart/axis.rs`.

pub(crate) mod axis;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use axis::Axis;

/// Drawing units per pixel. Plotters draws at whole units, so one unit per pixel would make curves
/// jagged.
const SCALE: i32 = 4;
/// Width of the area left of the plot, for the labels of the y axis, in pixels.
const LEFT: i32 = 58;
/// Height of the area below the plot, for the labels of the x axis, in pixels.
const BELOW: i32 = 20;
/// Width of the margin right of the plot, for the last label of the x axis, in pixels.
const RIGHT: i32 = 22;
/// Height of the margin above the plot and its strip, in pixels.
const ABOVE: i32 = 8;
/// Gap between the strip and the plot, in pixels.
const STRIP_GAP: i32 = 2;
/// Length of the tick marks of both axes, in pixels.
const TICK: i32 = 3;
/// Radius of a point without neighbours in a curve, in pixels.
const LONE_POINT_RADIUS: i32 = 2;
const FONT: &str = "sans-serif";
/// Font size in pixels.
const FONT_SIZE: i32 = 12;
/// Width in pixels from which a chart is a wide one.
const WIDE_MIN: i32 = 700;

/// The role of a colour. The style sheet defines the colour itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ink {
    /// Labels.
    Text,
    /// Grid lines.
    Grid,
    /// Planned values.
    Plan,
    /// A time that a dashed line marks, such as the start of a stage.
    Annotation,
    /// Values within limits.
    Good,
    /// Failures.
    Bad,
    /// Calls rejected by a rate limit.
    Limited,
    /// Warm-up.
    Shade,
    /// One of several curves.
    Series(usize),
}

/// Number of colours for curves.
pub(crate) const HUES: usize = 8;
/// Number of distinct curve styles: each colour solid and dashed. Further curves repeat the styles.
const SERIES_STYLES: usize = 2 * HUES;

/// All inks except [`Ink::Series`], with their class names.
const NAMED_INKS: [(Ink, &str); 8] = [
    (Ink::Text, "text"),
    (Ink::Grid, "grid"),
    (Ink::Plan, "plan"),
    (Ink::Annotation, "stage"),
    (Ink::Good, "good"),
    (Ink::Bad, "bad"),
    (Ink::Limited, "limited"),
    (Ink::Shade, "shade"),
];

impl Ink {
    /// Returns the class name in the style sheet, without the prefix `s-` (stroke) or `f-` (fill).
    pub(crate) fn class(self) -> String {
        match self {
            Ink::Series(index) => format!("c{}", index % SERIES_STYLES),
            named => NAMED_INKS[named.index()].1.to_owned(),
        }
    }

    /// Returns the index in [`NAMED_INKS`].
    fn index(self) -> usize {
        NAMED_INKS.iter().position(|(ink, _)| *ink == self).unwrap_or(0)
    }

    /// Returns a number that identifies the ink in its placeholder colour.
    fn number(self) -> u8 {
        // The named inks have numbers below 16.
        let number = match self {
            Ink::Series(index) => 16 + index % SERIES_STYLES,
            named => 1 + named.index(),
        };
        u8::try_from(number).unwrap_or(0)
    }

    /// Returns a placeholder colour, in which only the blue part depends on the ink.
    /// [`apply_theme`] replaces it by the class in the finished SVG.
    fn colour(self, opacity: f64) -> RGBAColor {
        RGBColor(1, 2, self.number()).mix(opacity)
    }

    /// Returns all inks.
    fn all() -> impl Iterator<Item = Ink> {
        NAMED_INKS.into_iter().map(|(ink, _)| ink).chain((0..SERIES_STYLES).map(Ink::Series))
    }
}

/// Points in the units of the axes.
pub(crate) type Points = Vec<(f64, f64)>;

/// A shape of a chart. Later shapes of a list are drawn on top of earlier shapes.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// A curve with a gap for each missing point. The number is the width in tenths of a pixel.
    Curve(Vec<Option<(f64, f64)>>, Ink, u32),
    /// The area between a curve and the bottom. The number is the opacity, from 0 to 1.
    Area(Points, Ink, f64),
    /// A rectangle over the whole height, between two x values. The last number is the opacity.
    Band((f64, f64), Ink, f64),
    /// A cell of the strip along the top edge, between two x values. The last number is the
    /// opacity.
    Cell((f64, f64), Ink, f64),
    /// A vertical line over the whole height at an x value, with an optional label at its top.
    Mark(f64, Ink, Option<String>),
    /// A single point, with its radius in pixels. If `filled` is false, only its outline is drawn.
    Dot { at: (f64, f64), ink: Ink, radius: i32, filled: bool },
}

/// Creates a curve without gaps. `width` is in tenths of a pixel.
pub(crate) fn curve(points: Points, ink: Ink, width: u32) -> Shape {
    Shape::Curve(points.into_iter().map(Some).collect(), ink, width)
}

/// A chart.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    /// Title and label for screen readers.
    pub(crate) title: String,
    /// Width and height in pixels. The page scales the chart to the available width.
    size: (i32, i32),
    x: Axis,
    y: Axis,
    /// Height in pixels of the strip along the top edge for [`Shape::Cell`]s; 0 without a strip.
    strip: i32,
    shapes: Vec<Shape>,
}

impl Chart {
    /// Creates a chart from its title, its size in pixels, its axes and its shapes.
    pub(crate) fn new(
        title: impl Into<String>,
        size: (i32, i32),
        (x, y): (Axis, Axis),
        shapes: Vec<Shape>,
    ) -> Chart {
        Chart { title: title.into(), size, x, y, strip: 0, shapes }
    }

    /// Adds a strip along the top edge, with its height in pixels.
    pub(crate) fn with_strip(self, strip: i32) -> Chart {
        Chart { strip, ..self }
    }
}

/// The area that plotters draws on, in drawing units.
type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
/// An error of plotters.
type Fault = DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>;

impl Chart {
    /// Returns the chart as an SVG element.
    pub(crate) fn to_svg(&self) -> String {
        let mut svg = String::new();
        let (width, height) = self.size;
        {
            let size = (units(width), units(height));
            let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
            // Drawing into memory fails only if the area is too small for the labels. In that case
            // the page has no chart.
            let drawn = self.draw(&root).and_then(|()| root.present());
            if drawn.is_err() {
                return String::new();
            }
        }
        apply_theme(svg, self)
    }

    /// Draws the axes, the shapes, and the labels of marks.
    fn draw(&self, root: &Area<'_>) -> Result<(), Fault> {
        let (x, y) = (&self.x, &self.y);
        let mut chart = ChartBuilder::on(root)
            .margin_top((self.strip + ABOVE) * SCALE)
            .margin_right(RIGHT * SCALE)
            .set_label_area_size(LabelAreaPosition::Left, LEFT * SCALE)
            .set_label_area_size(LabelAreaPosition::Bottom, BELOW * SCALE)
            .build_cartesian_2d(x.clone(), y.clone())?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(Ink::Grid.colour(1.0).stroke_width(units(1)))
            .light_line_style(TRANSPARENT)
            .axis_style(Ink::Grid.colour(1.0).stroke_width(units(1)))
            .label_style((FONT, FONT_SIZE * SCALE).with_color(Ink::Text.colour(1.0)))
            .x_label_formatter(&|value| x.label(*value))
            .y_label_formatter(&|value| y.label(*value))
            .set_all_tick_mark_size(TICK * SCALE)
            .draw()?;
        let plot = chart.plotting_area();
        let to_units =
            |point: (f64, f64)| plot.map_coordinate(&(x.clamp(point.0), y.clamp(point.1)));
        for shape in &self.shapes {
            self.draw_shape(root, shape, &to_units)?;
        }
        // Labels are drawn last, on top of the curves.
        for shape in &self.shapes {
            if let Shape::Mark(x, ink, Some(text)) = shape {
                self.write_mark(root, (*x, *ink), text, &to_units)?;
            }
        }
        Ok(())
    }

    /// Draws a shape. `to_units` converts values of the axes to a position in drawing units.
    fn draw_shape(
        &self,
        root: &Area<'_>,
        shape: &Shape,
        to_units: &dyn Fn((f64, f64)) -> (i32, i32),
    ) -> Result<(), Fault> {
        let (bottom, top) = (self.y.from, self.y.to);
        match shape {
            Shape::Curve(points, ink, width) => {
                let style = ink.colour(1.0).stroke_width(*width * SCALE.unsigned_abs() / 10);
                for segment in points.split(Option::is_none).filter(|segment| !segment.is_empty()) {
                    let positions: Vec<_> =
                        segment.iter().flatten().map(|point| to_units(*point)).collect();
                    match positions.as_slice() {
                        [single_point] => root.draw(&Circle::new(
                            *single_point,
                            LONE_POINT_RADIUS * SCALE,
                            style.filled(),
                        ))?,
                        _ => root.draw(&PathElement::new(positions, style))?,
                    }
                }
            }
            Shape::Area(points, ink, opacity) => {
                let (Some(first_point), Some(last_point)) = (points.first(), points.last()) else {
                    return Ok(());
                };
                let mut outline = vec![to_units((first_point.0, bottom))];
                outline.extend(points.iter().map(|point| to_units(*point)));
                outline.push(to_units((last_point.0, bottom)));
                root.draw(&Polygon::new(outline, ink.colour(*opacity)))?;
            }
            Shape::Band(x, ink, opacity) => {
                let corners = [to_units((x.0, top)), to_units((x.1, bottom))];
                root.draw(&Rectangle::new(corners, ink.colour(*opacity).filled()))?;
            }
            Shape::Cell(x, ink, opacity) => {
                let (left, right) = (to_units((x.0, top)), to_units((x.1, top)));
                // A cell is at least one pixel wide.
                let right = right.0.max(left.0 + SCALE);
                let corners = [
                    (left.0, left.1 - (self.strip + STRIP_GAP) * SCALE),
                    (right, left.1 - STRIP_GAP * SCALE),
                ];
                root.draw(&Rectangle::new(corners, ink.colour(*opacity).filled()))?;
            }
            Shape::Mark(x, ink, _) => {
                let ends = vec![to_units((*x, top)), to_units((*x, bottom))];
                // The widths are in drawing units: 4 units are 1 pixel, and 6 are 1.5 pixels.
                let width = if *ink == Ink::Annotation { 4 } else { 6 };
                root.draw(&PathElement::new(ends, ink.colour(1.0).stroke_width(width)))?;
            }
            Shape::Dot { at: point, ink, radius, filled } => {
                let style = ink.colour(1.0).stroke_width(units(2));
                let style = if *filled { style.filled() } else { style };
                root.draw(&Circle::new(to_units(*point), *radius * SCALE, style))?;
            }
        }
        Ok(())
    }

    /// Writes the label of a mark at the top of its line.
    fn write_mark(
        &self,
        root: &Area<'_>,
        (x, ink): (f64, Ink),
        text: &str,
        to_units: &dyn Fn((f64, f64)) -> (i32, i32),
    ) -> Result<(), Fault> {
        let (left, top) = to_units((x, self.y.to));
        // The label of a broken threshold is one line below the labels of stages. In the right
        // fifth of the chart, a label is left of its line. Offsets are in pixels.
        let offset_y = if ink == Ink::Bad { 19 } else { 3 };
        let near_right_edge = x > self.x.from + 0.8 * (self.x.to - self.x.from);
        let (side, offset_x) = if near_right_edge { (HPos::Right, -4) } else { (HPos::Left, 4) };
        let colour = if ink == Ink::Annotation { Ink::Text } else { ink }.colour(1.0);
        let style = TextStyle::from((FONT, FONT_SIZE * SCALE).into_font())
            .color(&colour)
            .pos(Pos::new(side, VPos::Top));
        let position = (left + offset_x * SCALE, top + offset_y * SCALE);
        root.draw(&plotters::element::Text::new(text.to_owned(), position, style))?;
        Ok(())
    }
}

/// Converts pixels to drawing units.
fn units(pixels: i32) -> u32 {
    (pixels * SCALE).unsigned_abs()
}

/// Replaces placeholder colours by classes. Removes the fixed size and attributes with default
/// values.
fn apply_theme(mut svg: String, chart: &Chart) -> String {
    for ink in Ink::all() {
        let colour = format!("\"#0102{:02X}\"", ink.number());
        let class = ink.class();
        svg = svg.replace(&format!("stroke={colour}"), &format!("class=\"s-{class}\""));
        svg = svg.replace(&format!("fill={colour}"), &format!("class=\"f-{class}\""));
    }
    let (width, height) = (units(chart.size.0), units(chart.size.1));
    let fixed_size_tag = format!("<svg width=\"{width}\" height=\"{height}\"");
    let title = maud::html! { (chart.title) }.into_string();
    // On a narrow screen, the style sheet keeps a chart wide enough for its labels.
    let class = if chart.size.0 >= WIDE_MIN { "class=\"wide\" " } else { "" };
    let labelled_tag = format!("<svg {class}role=\"img\" aria-label=\"{title}\"");
    svg.replace(&fixed_size_tag, &labelled_tag)
        .replace(" xmlns=\"http://www.w3.org/2000/svg\"", "")
        .replace(" font-family=\"sans-serif\"", "")
        .replace(" opacity=\"1\"", "")
        .replace(" stroke=\"none\"", "")
        .replace(">\n", ">")
        .replace("\n</text>", "</text>")
}
