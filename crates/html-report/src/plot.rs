//! Plots, drawn by the crate `kuva` as SVG within the page.
//!
//! A plot is as wide as a phone, so its text is legible there at its natural size. On a wide screen
//! plots stand side by side. Colours are variables of the page's style, so one drawing serves
//! light, dark and print; each series also has a shape of its own, so it can be told without
//! colours.

use kuva::backend::svg::SvgBackend;
use kuva::plot::LinePlot;
use kuva::plot::scatter::{MarkerShape, ScatterPlot};
use kuva::render::layout::{Layout, TickFormat};
use kuva::render::plots::Plot as Drawn;
use kuva::render::render::render_multiple;
use kuva::render::theme::Theme;
use maud::{Markup, PreEscaped, html};
use std::sync::Arc;

/// In CSS pixels, as all that follow.
const WIDTH: f64 = 340.0;
const HEIGHT: f64 = 240.0;
/// The height of a line of a plot with names down the side.
const LINE: f64 = 26.0;
/// The room for these names.
const NAMES: f64 = 182.0;
const TEXT: u32 = 11;
/// The most points of a line that have a dot each.
const MOST_DOTS: usize = 32;
/// The shapes of series, in kuva and as characters of the legend.
const SHAPES: [(MarkerShape, char); 7] = [
    (MarkerShape::Circle, '●'),
    (MarkerShape::Square, '■'),
    (MarkerShape::Triangle, '▲'),
    (MarkerShape::Diamond, '◆'),
    (MarkerShape::TriangleDown, '▼'),
    (MarkerShape::Cross, '×'),
    (MarkerShape::Plus, '+'),
];

/// The series that have a look of their own, by name: in each list those that play one part in
/// different plots. So the old way is red everywhere, and ours is blue. Others take the next look.
const LOOKS: [&[&str]; 6] = [
    &[
        "one lock, a flush each",
        "frame source, cleared",
        "address-space lock",
        "readers take the lock",
        "BTreeMap",
    ],
    &[
        "lazy",
        "quicklist",
        "fast",
        "readers without a lock",
        "maple, shared, held",
        "ours",
        "Samara",
    ],
    &["nodes and pools", "the pins alone", "maple, one owner", "Linux 6.12, lean", "Linux"],
    &["brie_tree", "Linux 6.12, Debian's"],
    &[
        "one lock, a flush each, published",
        "frame source, cleared, published",
        "Linux's rbtree, published",
    ],
    &["lazy, published", "quicklist, published", "Linux's maple tree, published"],
];

/// The number of the look of a series, the one at `at` among its plot's.
fn look(name: &str, at: usize) -> usize {
    let known = LOOKS.iter().position(|names| names.contains(&name));
    known.unwrap_or(if at == 0 { 1 } else { at + 5 }) % SHAPES.len()
}

/// The points of one implementation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// The horizontal axis.
#[derive(Clone, Debug)]
pub(crate) enum X {
    /// Each step is twice the last: numbers of CPUs, sizes.
    Twice(&'static str),
    /// Each step is ten times the last.
    Tenfold(&'static str),
    Linear(&'static str),
    /// Names. The points are at 0, 1, and so on.
    Names(Vec<String>),
}

/// A plot of some series. Lines join their points, unless the horizontal axis has names.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) x: X,
    /// The unit of the vertical axis.
    pub(crate) unit: String,
    pub(crate) log: bool,
    pub(crate) series: Vec<Series>,
}

impl Plot {
    /// The plot with its legend. Values of 0 and below have no place on a logarithmic axis: if
    /// there are any, the axis is linear.
    pub(crate) fn figure(&self) -> Markup {
        let named = self.series.len() > 1;
        figure(&self.title, &self.unit, &self.scene(), if named { &self.series } else { &[] })
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        self.series.iter().flat_map(|series| series.points.iter().map(|point| point.1))
    }

    fn scene(&self) -> String {
        let log = self.log && self.values().all(|value| value > 0.0);
        let place = |x: f64| match self.x {
            X::Twice(_) => x.log2(),
            X::Tenfold(_) => x.log10(),
            X::Linear(_) | X::Names(_) => x,
        };
        let named = matches!(self.x, X::Names(_));
        let mut drawn = Vec::new();
        for (at, series) in self.series.iter().enumerate() {
            let look = look(&series.name, at);
            let points: Vec<(f64, f64)> =
                series.points.iter().map(|point| (place(point.0), point.1)).collect();
            if !named {
                let line = LinePlot::new().with_data(points.iter().copied());
                let line = line.with_color(colour(look)).with_stroke_width(1.8);
                drawn.push(Drawn::Line(line));
            }
            // Of many points the line shows more than the dots.
            if points.len() <= MOST_DOTS {
                let dots = ScatterPlot::new().with_data(points).with_color(colour(look));
                let dots = dots.with_marker(SHAPES[look].0).with_size(3.5);
                drawn.push(Drawn::Scatter(dots));
            }
        }
        let layout = base(&drawn, HEIGHT).with_y_tick_format(TickFormat::Custom(Arc::new(short)));
        let layout = if log {
            layout.with_log_y()
        } else {
            layout.with_y_axis_min(self.values().fold(0.0, f64::min))
        };
        SvgBackend::new().render_scene(&render_multiple(drawn, self.across(layout)))
    }

    /// Sets the horizontal axis.
    fn across(&self, layout: Layout) -> Layout {
        let places = || self.series.iter().flat_map(|series| series.points.iter().map(|p| p.0));
        let (least, most) =
            places().fold((f64::MAX, f64::MIN), |(least, most), x| (least.min(x), most.max(x)));
        let ticked = |layout: Layout, base: f64| {
            let (low, high) = (least.log(base).floor(), most.log(base).ceil().max(1.0));
            let step = ((high - low) / 6.0).ceil().max(1.0);
            layout
                .with_x_axis_min(low - 0.15)
                .with_x_axis_max(high + 0.15)
                .with_x_tick_step(step)
                .with_x_tick_format(powers(base))
        };
        match &self.x {
            X::Twice(label) => ticked(layout, 2.0).with_x_label(*label),
            X::Tenfold(label) => ticked(layout, 10.0).with_x_label(*label),
            X::Linear(label) => layout
                .with_x_label(*label)
                .with_x_axis_min(least.min(0.0))
                .with_x_axis_max(most.max(1.0) * 1.03)
                .with_x_tick_format(TickFormat::Custom(Arc::new(short))),
            X::Names(list) => layout
                .with_x_axis_min(-0.5)
                .with_x_axis_max(list.len() as f64 - 0.5)
                .with_x_tick_step(1.0)
                .with_x_tick_format(names(list.clone())),
        }
    }
}

/// A plot with names down the side, one a line, and dots at the values of each series.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    pub(crate) title: String,
    pub(crate) unit: String,
    pub(crate) names: Vec<String>,
    /// The points are of the name with this number, and the value.
    pub(crate) series: Vec<Series>,
}

impl Lines {
    /// The plot with its legend, on a logarithmic axis.
    pub(crate) fn figure(&self) -> Markup {
        figure(&self.title, &self.unit, &self.scene(), &self.series)
    }

    fn scene(&self) -> String {
        let last = self.names.len() as f64;
        let mut drawn = Vec::new();
        for (at, series) in self.series.iter().enumerate() {
            let look = look(&series.name, at);
            let points =
                series.points.iter().map(|&(name, value)| (value.log10(), last - 1.0 - name));
            let dots = ScatterPlot::new().with_data(points).with_color(colour(look)).with_size(4.0);
            drawn.push(Drawn::Scatter(dots.with_marker(SHAPES[look].0)));
        }
        let values = || self.series.iter().flat_map(|series| &series.points).map(|point| point.1);
        let least = values().fold(f64::MAX, f64::min).log10().floor();
        let most = values().fold(f64::MIN, f64::max).log10().ceil().max(least + 1.0);
        let layout = base(&drawn, LINE * last + 60.0)
            .with_x_axis_min(least)
            .with_x_axis_max(most)
            .with_x_tick_step(1.0)
            .with_x_tick_format(powers(10.0))
            .with_y_axis_min(-0.5)
            .with_y_axis_max(last - 0.5)
            .with_y_tick_step(1.0)
            .with_force_margins(NAMES, 16.0)
            .with_y_tick_format(names(self.names.iter().rev().cloned().collect()));
        SvgBackend::new().render_scene(&render_multiple(drawn, layout))
    }
}

/// Ticks with names, at 0, 1, and so on.
fn names(names: Vec<String>) -> TickFormat {
    TickFormat::Custom(Arc::new(move |place: f64| {
        let whole = (place - place.round()).abs() < 0.01 && place > -0.1;
        names.get(place.round() as usize).filter(|_| whole).cloned().unwrap_or_default()
    }))
}

/// Ticks at the logarithms of whole powers.
fn powers(base: f64) -> TickFormat {
    TickFormat::Custom(Arc::new(move |power: f64| {
        let whole = (power - power.round()).abs() < 0.01;
        if whole { short(base.powf(power.round())) } else { String::new() }
    }))
}

/// A drawing with its title, and a legend: the names of these series, each with its shape and
/// colour.
fn figure(title: &str, unit: &str, svg: &str, series: &[Series]) -> Markup {
    html! {
        figure.plot {
            figcaption { b { (title) } ", " (unit) }
            (picture(svg, &format!("{title}, in {unit}")))
            @if !series.is_empty() {
                ul.legend {
                    @for (at, series) in series.iter().enumerate() {
                        li { span style={ "color:" (colour(look(&series.name, at))) } {
                                (SHAPES[look(&series.name, at)].1) } " "
                            (series.name) }
                    }
                }
            }
        }
    }
}

fn base(drawn: &[Drawn], height: f64) -> Layout {
    let variable = |name: &str| format!("var(--{name})");
    let theme = Theme {
        background: "none".into(),
        axis_color: variable("axis"),
        grid_color: variable("grid"),
        tick_color: variable("axis"),
        text_color: variable("ink"),
        font_family: Some("system-ui, sans-serif".into()),
        ..Theme::light()
    };
    Layout::auto_from_plots(drawn)
        .with_width(WIDTH)
        .with_height(height)
        .with_theme(theme)
        .with_tick_size(TEXT)
        .with_label_size(TEXT)
}

/// The colour of a look.
fn colour(look: usize) -> String {
    format!("var(--s{})", look + 1)
}

/// The drawing as a part of the page: it scales, and has a name for readers that do not see it.
fn picture(svg: &str, label: &str) -> Markup {
    let head = svg.split_once('>').map_or("", |(head, _)| head);
    let body = svg.split_once('>').map_or(svg, |(_, body)| body);
    let size = |name: &str| {
        let value =
            head.split_once(&format!(" {name}=\"")).and_then(|(_, rest)| rest.split_once('"'));
        value.map_or("0", |(value, _)| value)
    };
    let (width, height) = (size("width"), size("height"));
    html! {
        svg viewBox={ "0 0 " (width) " " (height) } width=(width) height=(height) role="img"
            aria-label=(label) font-family="system-ui, sans-serif" fill="var(--ink)" {
            (PreEscaped(body.trim_end().trim_end_matches("</svg>")))
        }
    }
}

/// A value as a tick: `0.5`, `20`, `3k`, `1M`.
pub(crate) fn short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        1e9.. => (value / 1e9, "G"),
        1e6.. => (value / 1e6, "M"),
        1e3.. => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{value:.3}");
    let text = if value.abs() >= 0.001 || value == 0.0 { text } else { format!("{value:e}") };
    match text.contains('.') && !text.contains('e') {
        true => format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.')),
        false => text + unit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_short() {
        let values = [0.0, 0.5, 1.0, 20.0, 3000.0, 2.5e6, 1e9, 1e-5];
        assert_eq!(values.map(short), ["0", "0.5", "1", "20", "3k", "2.5M", "1G", "1e-5"]);
    }

    fn plot(points: &[(f64, f64)]) -> Plot {
        Plot {
            title: "a <b>".into(),
            x: X::Twice("CPUs"),
            unit: "ns".into(),
            log: true,
            series: ["BTreeMap", "brie_tree"]
                .map(|name| Series { name: name.into(), points: points.to_vec() })
                .into(),
        }
    }

    #[test]
    fn a_plot_has_its_axes_points_and_legend() {
        let text = plot(&[(1.0, 20.0), (2.0, 300.0), (8.0, 4000.0)]).figure().into_string();
        for expected in [">CPUs<", ">8<", ">1k<", "var(--s4)", "aria-label=\"a &lt;b&gt;, in ns\""]
        {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert_eq!(text.matches("<circle").count(), 3, "{text}");
        assert_eq!(text.matches("</svg>").count(), 1);
        assert!(text.contains("◆</span> brie_tree"), "{text}");
    }

    /// 0 interrupts are a figure, not a hole in the plot.
    #[test]
    fn zeros_make_the_axis_linear() {
        let text = plot(&[(1.0, 0.0), (2.0, 60.0)]).figure().into_string();
        assert_eq!(text.matches("<circle").count(), 2, "{text}");
        assert!(text.contains(">0<") && text.contains(">20<"), "{text}");
    }
}
