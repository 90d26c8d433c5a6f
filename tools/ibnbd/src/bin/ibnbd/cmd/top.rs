// SPDX-License-Identifier: GPL-2.0

//! `top`.

mod channels;
mod rates;

use std::io::{self, IsTerminal};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::widgets::{Block, Row, Table as Shown};
use ratatui::Frame;

use super::Done;
use crate::cli::Format;
use crate::context::Context;
use crate::fail::{Failure, USAGE};
use crate::out::Table;
use rates::Sample;

pub(crate) const HELP: &str = "\
Percentiles are those of the interval, as limits of the driver's counts: reads/writes in microseconds.
q, Esc or Ctrl-C ends it.

Examples:
  ibnbd top
  ibnbd top --interval 10
  ibnbd top --batch 3 -o csv                  three samples, for programs";

#[derive(Args, Debug)]
pub(crate) struct Top {
    /// Seconds from one sample to the next
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) interval: u64,
    /// Prints that many samples instead of drawing them
    #[arg(short, long, value_name = "N")]
    pub(crate) batch: Option<u64>,
}

pub(super) fn top(context: &Context, words: &Top) -> Done {
    let interval = Duration::from_secs(words.interval);
    if let Some(count) = words.batch {
        context.need_format("top --batch", &[Format::Table, Format::Csv])?;
        return batch(context, interval, count);
    }
    context.need_format("top", &[Format::Table])?;
    if !io::stdout().is_terminal() {
        let failure = Failure::new(USAGE, "top", "standard output is not a terminal");
        return Err(failure.todo("take --batch N to print N samples"));
    }
    let mut terminal = ratatui::init();
    let result = live(context, interval, &mut terminal);
    ratatui::restore();
    result.map_err(|error| Failure::system("cannot draw", &error))?;
    Ok(0)
}

fn batch(context: &Context, interval: Duration, count: u64) -> Done {
    let mut before = Sample::take(context);
    for number in 0..count {
        thread::sleep(interval);
        let now = Sample::take(context);
        let tables = rates::tables(&before, &now);
        if number > 0 {
            context.print("\n")?;
        }
        context.print(&crate::out::joined(context, tables.into())?)?;
        before = now;
    }
    Ok(0)
}

fn live(
    context: &Context,
    interval: Duration,
    terminal: &mut ratatui::DefaultTerminal,
) -> io::Result<()> {
    let mut before = Sample::take(context);
    let mut tables = rates::tables(&before, &before);
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| draw(frame, &tables))?;
        if event::poll(next.saturating_duration_since(Instant::now()))? {
            if ends(&event::read()?) {
                return Ok(());
            }
            continue;
        }
        let now = Sample::take(context);
        tables = rates::tables(&before, &now);
        before = now;
        next = Instant::now() + interval;
    }
}

fn ends(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let interrupted =
        key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press
        && (interrupted || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}

fn draw(frame: &mut Frame<'_>, [disks, sessions, channels, paths]: &[Table; 4]) {
    let height = |table: &Table| {
        u16::try_from(table.rows().len())
            .unwrap_or(u16::MAX)
            .saturating_add(3)
    };
    let heights = [
        Constraint::Max(height(disks)),
        Constraint::Max(height(sessions)),
        // Only while there are any.
        Constraint::Max(if channels.is_empty() {
            0
        } else {
            height(channels)
        }),
        Constraint::Min(0),
    ];
    let [above, middle, messages, below] = Layout::vertical(heights).areas(frame.area());
    frame.render_widget(shown(disks, " disks "), above);
    frame.render_widget(shown(sessions, " sessions "), middle);
    frame.render_widget(shown(channels, " channels "), messages);
    frame.render_widget(shown(paths, " paths; q ends "), below);
}

/// A table whose columns are as wide as what is in them.
fn shown<'a>(table: &'a Table, title: &'a str) -> Shown<'a> {
    let columns = table.columns();
    let mut widths: Vec<usize> = columns.iter().map(|name| name.len()).collect();
    for row in table.rows() {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let widths = widths
        .into_iter()
        .map(|width| Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX)));
    let rows = table
        .rows()
        .iter()
        .map(|row| Row::new(row.iter().map(|cell| crate::out::visible(cell))));
    let head = Row::new(columns.iter().map(|name| name.to_uppercase()))
        .style(Style::new().add_modifier(Modifier::BOLD));
    Shown::new(rows, widths)
        .header(head)
        .column_spacing(2)
        .block(Block::bordered().title(title))
}

#[cfg(test)]
mod tests {
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyEvent, KeyEventKind};
    use ratatui::Terminal;

    use super::*;

    fn screen(width: u16, height: u16) -> String {
        let (before, now) = rates::tests::samples();
        let tables = rates::tables(&before, &now);
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &tables)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_screen_has_disks_sessions_channels_and_paths() {
        let text = screen(160, 25);
        let place = |word: &str| text.find(word).unwrap_or_else(|| panic!("{word}: {text}"));
        let order = [
            " disks ",
            " sessions ",
            "3/3",
            " channels ",
            "loader (7)",
            " paths; q ends ",
            "10.0.3.2",
        ]
        .map(place);
        assert!(order.is_sorted(), "{text}");
        assert!(
            text.contains("480.0 KiB/s") && text.contains("500/90"),
            "{text}"
        );
    }

    #[test]
    fn a_small_screen_is_no_harm() {
        for (width, height) in [(1, 1), (20, 3), (80, 7), (300, 2)] {
            screen(width, height);
        }
    }

    #[test]
    fn keys_end_it() {
        let press = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        assert!(ends(&press(KeyCode::Char('q'), KeyModifiers::NONE)));
        assert!(ends(&press(KeyCode::Esc, KeyModifiers::NONE)));
        assert!(ends(&press(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(!ends(&press(KeyCode::Char('c'), KeyModifiers::NONE)));
        assert!(!ends(&Event::Resize(1, 1)));
        let mut release = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE);
        release.kind = KeyEventKind::Release;
        assert!(!ends(&Event::Key(release)));
    }
}
