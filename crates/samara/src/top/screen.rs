//! The picture of `samara top`: figures with their course, calls a second, and owners.

use std::collections::VecDeque;

use html_report::size;
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Style, Stylize},
    text::Line,
    widgets::{Block, Cell, Paragraph, Row, Sparkline, Table},
};
use trace::{record::Op, report::View};

/// The pictures that a course shows.
const KEPT: usize = 240;

/// The memory and faults of a process, from /proc.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Resident {
    pub(super) bytes: u64,
    pub(super) faults: u64,
}

/// All that is drawn.
pub(super) struct Screen {
    title: String,
    view: View,
    resident: Resident,
    /// Since the picture before: calls and faults a second.
    rates: Vec<(Op, f64)>,
    faults: f64,
    /// The newest is the last.
    courses: [VecDeque<u64>; 3],
}

impl Screen {
    pub(super) fn new(pid: u32, name: &str) -> Screen {
        Screen {
            title: format!(" {name} ({pid}): maps and resident pages, not malloc; q leaves it "),
            view: View::default(),
            resident: Resident::default(),
            rates: Vec::new(),
            faults: 0.0,
            courses: Default::default(),
        }
    }

    /// The screen is now this one.
    pub(super) fn next(&mut self, view: View, resident: Resident) {
        let seconds = view.elapsed.saturating_sub(self.view.elapsed).as_secs_f64().max(1e-3);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let before = |op| self.view.calls.get(op).copied().unwrap_or(0);
        self.rates = view.calls.iter().map(|(op, &now)| (*op, rate(now, before(op)))).collect();
        self.rates.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        // The faults before this command began are no rate.
        let first = self.resident.faults == 0;
        self.faults = if first { 0.0 } else { rate(resident.faults, self.resident.faults) };
        let calls: f64 = self.rates.iter().map(|(_, rate)| rate).sum();
        let newest = [resident.bytes, calls as u64, self.faults as u64];
        for (course, value) in self.courses.iter_mut().zip(newest) {
            course.push_back(value);
            if course.len() > KEPT {
                course.pop_front();
            }
        }
        (self.view, self.resident) = (view, resident);
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let rows = Layout::vertical([Constraint::Length(1), Constraint::Length(6), Constraint::Min(3)]);
    let [head, courses, rest] = rows.areas(frame.area());
    let columns = Layout::horizontal([Constraint::Length(26), Constraint::Min(20)]);
    let [calls, owners] = columns.areas(rest);
    frame.render_widget(Paragraph::new(Line::from(screen.title.as_str()).bold()), head);
    draw_courses(frame, courses, screen);
    draw_calls(frame, calls, screen);
    draw_owners(frame, owners, screen);
}

fn draw_courses(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let calls: f64 = screen.rates.iter().map(|(_, rate)| rate).sum();
    let titles = [
        format!(
            " resident {} of {} in {} VMAs ",
            size(screen.resident.bytes),
            size(screen.view.mapped as u64),
            screen.view.vmas,
        ),
        format!(" calls {calls:.0}/s, {} failed ", screen.view.refused),
        format!(" faults {:.0}/s ", screen.faults),
    ];
    let areas: [Rect; 3] = Layout::horizontal([Constraint::Fill(1); 3]).areas(area);
    for ((title, course), area) in titles.into_iter().zip(&screen.courses).zip(areas) {
        // As many as fit, the newest at the right.
        let fit = usize::from(area.width.saturating_sub(2));
        let shown: Vec<u64> =
            course.iter().copied().skip(course.len().saturating_sub(fit)).collect();
        let line = Sparkline::default().data(&shown).style(Style::new().cyan());
        frame.render_widget(line.block(Block::bordered().title(title)), area);
    }
}

fn draw_calls(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let row = |(op, rate): &(Op, f64)| Row::new([op.name().to_owned(), format!("{rate:>10.0}")]);
    let widths = [Constraint::Min(10), Constraint::Length(10)];
    let table = Table::new(screen.rates.iter().map(row), widths)
        .header(Row::new(["call", "  a second"]).bold())
        .block(Block::bordered().title(" calls "));
    frame.render_widget(table, area);
}

fn draw_owners(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let row = |owner: &trace::report::OwnerNow| {
        let by = owner.by.as_ref().map(|by| format!(", by {by}")).unwrap_or_default();
        Row::new([
            Cell::from(format!("{:>10}", size(owner.mapped))),
            Cell::from(format!("{:>10}", size(owner.at_peak))),
            Cell::from(format!("{:>8}", owner.calls)),
            Cell::from(format!("{}{by}", owner.site)),
        ])
    };
    let widths = [
        Constraint::Length(10),
        Constraint::Length(10),
        Constraint::Length(8),
        Constraint::Min(10),
    ];
    let table = Table::new(screen.view.owners.iter().map(row), widths)
        .header(Row::new(["    mapped", "   at peak", "   calls", "owner"]).bold())
        .block(Block::bordered().title(" owners "));
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::{Terminal, backend::TestBackend};
    use std::time::Duration;
    use trace::report::OwnerNow;

    fn picture(screen: &Screen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, screen)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn rates_are_those_since_the_picture_before() {
        let mut screen = Screen::new(7, "a.out");
        let owner =
            OwnerNow { site: "main (a.c:3)".into(), mapped: 3 << 20, ..OwnerNow::default() };
        let view = |seconds, calls| View {
            elapsed: Duration::from_secs(seconds),
            calls: [(Op::Mmap, calls), (Op::Brk, 1)].into(),
            vmas: 21,
            mapped: 5 << 30,
            owners: vec![owner.clone()],
            ..View::default()
        };
        screen.next(view(1, 1000), Resident { bytes: 1 << 20, faults: 5000 });
        assert!(picture(&screen, 100, 20).contains("faults 0/s"));
        screen.next(view(3, 1500), Resident { bytes: 7 << 20, faults: 5100 });
        let text = picture(&screen, 100, 20);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for expected in [
            "a.out (7)",
            "resident 7.0 MiB of 5.0 GiB in",
            "calls 250/s, 0 failed",
            "faults 50/s",
            "mmap 250",
            "brk 0",
            "3.0 MiB 0 B 0 main (a.c:3)",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        for _ in 0..1000 {
            screen.next(view(4, 1500), Resident::default());
        }
        assert!(screen.courses.iter().all(|course| course.len() == KEPT));
    }

    #[test]
    fn any_size_of_a_terminal_is_drawn() {
        for (width, height) in [(1, 1), (3, 2), (20, 5), (300, 100)] {
            picture(&Screen::new(1, "x"), width, height);
        }
    }
}
