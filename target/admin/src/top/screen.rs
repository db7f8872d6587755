//! The terminal: layout and keys.

use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use nvmeof_rdma::explain;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as Shown, Text};
use ratatui::widgets::Paragraph;

use super::events::Events;
use super::lines::{self, Kind, Line};
use super::rates::Rates;
use super::view::{Key, View};
use nvmeof_target_api::Snapshot;

/// Lines of events.
const EVENTS: u16 = 4;

/// Shows the target until the user quits.
///
/// # Errors
/// The first request fails, or the terminal does.
pub(super) fn run(
    poll: &mut dyn FnMut() -> Result<Snapshot, String>,
    interval: Duration,
) -> Result<(), String> {
    let mut before = poll()?;
    let mut shown = Display {
        rates: Rates::between(&Snapshot::default(), &before),
        ..Display::default()
    };
    let mut terminal =
        ratatui::try_init().map_err(|error| format!("terminal: {}", explain(&error)))?;
    let mut next = Instant::now() + interval;
    let result = loop {
        if let Err(error) = terminal.draw(|frame| draw(frame, &shown)) {
            break Err(format!("terminal: {}", explain(&error)));
        }
        match pressed(next.saturating_duration_since(Instant::now())) {
            Ok(Some(key)) if shown.view.press(key) => break Ok(()),
            Ok(_) => {}
            Err(error) => break Err(format!("terminal: {}", explain(&error))),
        }
        if Instant::now() < next {
            continue;
        }
        next = Instant::now() + interval;
        if !shown.view.paused {
            shown.update(poll(), &mut before);
        }
    };
    ratatui::restore();
    result
}

/// Everything that is drawn.
#[derive(Debug, Default)]
pub(super) struct Display {
    pub(super) rates: Rates,
    pub(super) view: View,
    pub(super) events: Events,
}

impl Display {
    /// Applies a response or its error.
    pub(super) fn update(&mut self, polled: Result<Snapshot, String>, before: &mut Snapshot) {
        match polled {
            Ok(now) => {
                self.view.trouble = None;
                self.events.add(before, &now);
                self.rates = Rates::between(before, &now);
                *before = now;
            }
            // The last state stays visible; the next interval retries.
            Err(why) => self.view.trouble = Some(why),
        }
    }
}

/// Waits for a key; `None`: no key, or one without a function.
fn pressed(time: Duration) -> std::io::Result<Option<Key>> {
    if !event::poll(time)? {
        return Ok(None);
    }
    match event::read()? {
        Event::Key(key) if key.kind == KeyEventKind::Press => Ok(meaning(key)),
        _ => Ok(None),
    }
}

pub(super) fn meaning(key: KeyEvent) -> Option<Key> {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') if control => Some(Key::Quit),
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::Quit),
        KeyCode::Char('s') => Some(Key::Sort),
        KeyCode::Char('r') => Some(Key::Reverse),
        KeyCode::Char('p' | ' ') => Some(Key::Pause),
        KeyCode::Up | KeyCode::Char('k') => Some(Key::Up),
        KeyCode::Down | KeyCode::Char('j') => Some(Key::Down),
        _ => None,
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, display: &Display) {
    let Display {
        rates,
        view,
        events,
    } = display;
    let head = lines::head(rates, view);
    let high = u16::try_from(head.len()).unwrap_or(u16::MAX);
    let [above, middle, below, last] = parts(frame.area(), high);
    show(frame, above, &head);
    rows(frame, middle, rates, view);
    let recent: Vec<Line> = events.lines().take(EVENTS.into()).map(event).collect();
    show(frame, below, &recent);
    let order = if view.reversed { "lowest" } else { "highest" };
    let keys = format!(
        "q quit  s sort ({}, {order} first)  r reverse  p pause  ↑↓ scroll",
        view.sort.name()
    );
    show(
        frame,
        last,
        &[Line {
            text: keys,
            kind: Kind::Head,
        }],
    );
}

/// Lines of a terminal that shows everything.
const ROOMY: u16 = 20;
/// Minimum of lines for both tables.
const TABLES: u16 = 6;
/// Lines of totals, which even the smallest terminal shows.
const TOTALS: u16 = 3;

/// The areas of the head, which has `high` lines, of tables, events and keys. A small
/// terminal omits events, then keys and reactors, and finally all but the totals.
fn parts(area: Rect, high: u16) -> [Rect; 4] {
    let is_roomy = area.height >= ROOMY;
    let (events, gap) = if is_roomy { (EVENTS, 1) } else { (0, 0) };
    let keys = u16::from(area.height > TABLES + TOTALS);
    let left = area.height.saturating_sub(events + gap + keys);
    let head = high.min(left.saturating_sub(TABLES).max(TOTALS)).min(left);
    let areas = Layout::vertical([
        Constraint::Length(head),
        Constraint::Length(gap),
        Constraint::Fill(1),
        Constraint::Length(events),
        Constraint::Length(keys),
    ]);
    let [above, _, middle, below, last] = areas.areas(area);
    [above, middle, below, last]
}

/// Namespaces, and hosts below them. Each table has half of the lines, or those that the
/// other one leaves.
fn rows(frame: &mut Frame<'_>, area: Rect, rates: &Rates, view: &View) {
    let names = lines::name_columns(rates, area.width.into());
    let namespaces = lines::table("NAMESPACE", &view.sorted(&rates.namespaces), names);
    let hosts = lines::table("HOST", &view.sorted(&rates.hosts), names);
    let most = usize::from(area.height);
    let half = most / 2;
    let of_hosts = hosts
        .len()
        .min(half.max(most.saturating_sub(namespaces.len())));
    let of_hosts = u16::try_from(of_hosts).unwrap_or(u16::MAX);
    let areas = Layout::vertical([Constraint::Min(0), Constraint::Length(of_hosts)]);
    let [above, below] = areas.areas(area);
    show(
        frame,
        above,
        &scrolled(&namespaces, view.from, above.height),
    );
    show(frame, below, &scrolled(&hosts, view.from, below.height));
}

/// The header of a table, and rows from number `from` on, or from an earlier one if rows
/// would leave lines empty.
fn scrolled(lines: &[Line], from: usize, room: u16) -> Vec<Line> {
    let Some((head, rows)) = lines.split_first() else {
        return Vec::new();
    };
    let room = usize::from(room).saturating_sub(1);
    let from = from.min(rows.len().saturating_sub(room));
    let shown = rows.iter().skip(from).take(room);
    std::iter::once(head).chain(shown).cloned().collect()
}

fn event(text: &str) -> Line {
    let text = lines::shortened(text, usize::MAX);
    let kind = Kind::Plain;
    Line { text, kind }
}

fn show(frame: &mut Frame<'_>, area: Rect, lines: &[Line]) {
    let shown = lines.iter().map(|line| {
        let style = match line.kind {
            Kind::Plain => Style::new(),
            Kind::Head => Style::new().add_modifier(Modifier::REVERSED),
            Kind::Alarm => Style::new().fg(Color::Red),
        };
        Shown::styled(line.text.clone(), style)
    });
    frame.render_widget(Paragraph::new(Text::from_iter(shown)), area);
}
