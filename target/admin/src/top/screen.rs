//! The terminal: what is drawn where, and which keys there are.

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

/// Lines for what happened.
const EVENTS: u16 = 4;

/// Shows the target until somebody has seen enough.
///
/// # Errors
/// When the target does not answer at first, or the terminal fails.
pub(super) fn run(
    look: &mut dyn FnMut() -> Result<Snapshot, String>,
    interval: Duration,
) -> Result<(), String> {
    let mut before = look()?;
    let mut shown = Shows {
        rates: Rates::between(&Snapshot::default(), &before),
        ..Shows::default()
    };
    let mut terminal =
        ratatui::try_init().map_err(|error| format!("the terminal: {}", explain(&error)))?;
    let mut next = Instant::now() + interval;
    let result = loop {
        if let Err(error) = terminal.draw(|frame| draw(frame, &shown)) {
            break Err(format!("the terminal: {}", explain(&error)));
        }
        match pressed(next.saturating_duration_since(Instant::now())) {
            Ok(Some(key)) if shown.view.press(key) => break Ok(()),
            Ok(_) => {}
            Err(error) => break Err(format!("the terminal: {}", explain(&error))),
        }
        if Instant::now() < next {
            continue;
        }
        next = Instant::now() + interval;
        if !shown.view.paused {
            shown.take(look(), &mut before);
        }
    };
    ratatui::restore();
    result
}

/// Everything that is drawn.
#[derive(Debug, Default)]
pub(super) struct Shows {
    pub(super) rates: Rates,
    pub(super) view: View,
    pub(super) events: Events,
}

impl Shows {
    /// One more look.
    pub(super) fn take(&mut self, looked: Result<Snapshot, String>, before: &mut Snapshot) {
        match looked {
            Ok(now) => {
                self.view.trouble = None;
                self.events.add(before, &now);
                self.rates = Rates::between(before, &now);
                *before = now;
            }
            // What was seen last stays, and retrying.
            Err(why) => self.view.trouble = Some(why),
        }
    }
}

/// The key that somebody presses within a time; `None` when it is no key of
/// ours, or none.
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
        KeyCode::Char('c') if control => Some(Key::End),
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::End),
        KeyCode::Char('s') => Some(Key::Sort),
        KeyCode::Char('r') => Some(Key::Reverse),
        KeyCode::Char('p' | ' ') => Some(Key::Pause),
        KeyCode::Up | KeyCode::Char('k') => Some(Key::Up),
        KeyCode::Down | KeyCode::Char('j') => Some(Key::Down),
        _ => None,
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, shows: &Shows) {
    let Shows {
        rates,
        view,
        events,
    } = shows;
    let head = lines::head(rates, view);
    let high = u16::try_from(head.len()).unwrap_or(u16::MAX);
    let [above, middle, below, last] = parts(frame.area(), high);
    show(frame, above, &head);
    rows(frame, middle, rates, view);
    let told: Vec<Line> = events.lines().take(EVENTS.into()).map(event).collect();
    show(frame, below, &told);
    let order = if view.reversed { "lowest" } else { "highest" };
    let keys = format!(
        "q ends  s sorts ({}, {order} first)  r turns  p pauses  ↑↓ scroll",
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

/// Lines of a terminal on which there is room for everything.
const ROOMY: u16 = 20;
/// Lines of both tables, at least.
const TABLES: u16 = 6;
/// Lines of totals, which are there on the smallest terminal.
const TOTALS: u16 = 3;

/// Where the head is, which would like to be so `high`, then tables, events and
/// keys. On a small terminal keys, events and threads give way, in the end all but
/// totals.
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

/// Namespaces, and hosts below: each has half of the room, or what the other
/// leaves.
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

/// The head of a table, and the rows from number `from` on, but never less than
/// there is room for.
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
    let text = lines::ended(text, usize::MAX);
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
