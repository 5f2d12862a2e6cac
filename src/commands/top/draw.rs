//! Draws the model.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Size};
use ratatui::style::Stylize;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Paragraph, Wrap};

use super::model::{HELP, Mode, Model, Page, TABS};

/// Lines for a long sentence.
const SENTENCE_LINES_MAX: u16 = 2;

/// The height from which the figures of the broker may have a second line.
const TALL: u16 = 20;

/// Whether a screen of this size can show anything.
pub(super) fn is_large_enough(size: Size) -> bool {
    size.width >= 20 && size.height >= 6
}

/// Draws everything into a frame of any size.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model) {
    let area = frame.area();
    if !is_large_enough(area.as_size()) {
        frame.render_widget("too small", area);
        return;
    }
    let head = model.head();
    let figures = head[1..].join("; ");
    let lines = |text: &str| if text.len() > area.width.into() { SENTENCE_LINES_MAX } else { 1 };
    let figures_lines = if area.height < TALL { 1 } else { lines(&figures) };
    let detail = model.detail();
    let has_detail = matches!(model.page, Page::Group(_) | Page::Topic(_));
    let [top, below, tabs, body, text, foot] = Layout::vertical([
        Constraint::Length(lines(&head[0])),
        Constraint::Length(figures_lines),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(if has_detail { SENTENCE_LINES_MAX } else { 0 }),
        Constraint::Length(1),
    ])
    .areas(area);
    let wrapped = |text: Span<'static>| Paragraph::new(text).wrap(Wrap { trim: true });
    let sentence = head[0].clone();
    let is_well = sentence.starts_with("All is well");
    let sentence = if is_well { sentence.green() } else { sentence.red().bold() };
    frame.render_widget(wrapped(sentence), top);
    frame.render_widget(wrapped(figures.dim()), below);
    frame.render_widget(tab_line(model), tabs);
    let table: Text<'_> = match model.mode {
        Mode::Help => HELP.iter().copied().collect(),
        _ => rows(model, body.as_size()),
    };
    frame.render_widget(table, body);
    frame.render_widget(wrapped(detail.into()), text);
    frame.render_widget(Paragraph::new(model.foot()).reversed(), foot);
}

fn tab_line(model: &Model) -> Line<'static> {
    let open = match &model.page {
        Page::Group(group) => format!("{group} "),
        Page::Topic(topic) => format!("{topic} "),
        _ => String::new(),
    };
    let tabs = TABS.iter().flat_map(|(page, name)| {
        if *page == model.tab() {
            [format!("[{name}] ").bold(), Span::raw(open.clone())]
        } else {
            [format!(" {name}  ").into(), Span::default()]
        }
    });
    tabs.collect()
}

/// The lines around the selected row.
fn rows(model: &Model, size: Size) -> Text<'static> {
    let height = size.height.into();
    let lines = model.lines(size.width.into());
    let selected = Some(model.selected);
    let at = lines.iter().position(|(row, _)| *row == selected).unwrap_or(0);
    let shown = lines.into_iter().skip((at + 1).saturating_sub(height)).take(height);
    let line = |(row, text): (Option<usize>, String)| match row {
        None => Line::from(text).bold(),
        row if row == selected => Line::from(text).reversed(),
        _ => Line::from(text),
    };
    shown.map(line).collect()
}
