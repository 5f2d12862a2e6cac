// Plots of GET /history: drawn by uPlot, and readable without seeing them.

import { ask } from './ask.js';
import { el, replace, setText } from './dom.js';
import { bytes, clock, count } from './format.js';

// A classic script of index.html, as its authors publish it.
const { uPlot } = window;

const RANGES = {
  '5m': { label: '5 min', seconds: 300, refresh: 2_000 },
  '1h': { label: '1 h', seconds: 3_600, refresh: 10_000 },
  '24h': { label: '24 h', seconds: 86_400, refresh: 60_000 },
};
const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3]];
const HEIGHT = 150;
// Steps of the axis of time, in seconds.
const MINUTES = [1, 2, 5, 10, 15, 30, 60, 120, 240, 360, 720, 1440].map(minutes => minutes * 60);
// Steps of an axis that counts things or bytes.
const WHOLE = [...Array(12).keys()].flatMap(power => [1, 2, 5].map(step => step * 10 ** power));

// All plots show the same time, so that they can be compared; also on the next page.
const shared = new EventTarget();
let chosen = null;
let plots = 0;

/** A switch of the time that all plots show. */
export function rangeSwitch(range = '5m') {
  plots += 1;
  const name = `range-${plots}`;
  return el('fieldset', { class: 'range' },
    el('legend', { class: 'unseen' }, 'Time that the plots show'),
    Object.entries(RANGES).map(([value, { label }]) => el('label', {},
      el('input', {
        type: 'radio', name, value, checked: value === (chosen ?? range),
        onchange: () => choose(value),
      }), el('span', {}, label))));
}

function choose(range) {
  chosen = range;
  for (const input of document.querySelectorAll('.range input')) {
    input.checked = input.value === range;
  }
  shared.dispatchEvent(new Event('range'));
}

/**
 * A plot. `series`: `{column, label}`; `unit`: a function of `format.js`. With `own: false` it has
 * no switch of its own, for a page that shows one `rangeSwitch()` for all.
 */
export function plot({ title, of, range = '5m', series, unit, own = true }, signal) {
  plots += 1;
  const id = `plot-${plots}`;
  const shown = () => RANGES[chosen ?? range];
  let data = [[], ...series.map(() => [])];
  let chart = null;
  let at = null;
  const legend = series.map(({ label }, index) => ({
    mark: el('i', { class: `line s${index % 4}` }),
    value: el('b', {}), label,
  }));
  const moment = el('span', { class: 'moment' });
  const summary = el('p', { id: `${id}-summary`, class: 'unseen' });
  const box = el('div', {
    class: 'chart', tabindex: '0', role: 'slider', 'aria-labelledby': id,
    'aria-describedby': `${id}-summary`, 'aria-orientation': 'horizontal',
    'aria-valuemin': 0, 'aria-valuemax': 0, 'aria-valuenow': 0,
    onkeydown: event => key(event), onblur: () => point(null),
  });
  const rows = el('tbody', {});
  const list = el('div', { class: 'data', id: `${id}-data`, tabindex: '0', role: 'group',
    'aria-labelledby': id, hidden: true },
    el('table', {},
      el('caption', { class: 'unseen' }, title),
      el('thead', {}, el('tr', {}, ['Time', ...series.map(each => each.label)].map(text =>
        el('th', { scope: 'col' }, text)))), rows));
  const toggle = el('button', {
    type: 'button', class: 'quiet', 'aria-expanded': 'false', 'aria-controls': `${id}-data`,
    'aria-label': `Show ${title} as a table`, onclick: () => {
      list.hidden = !list.hidden;
      toggle.setAttribute('aria-expanded', String(!list.hidden));
      listRows();
    },
  }, 'Table');
  const node = el('figure', { class: 'plot' },
    el('figcaption', {}, el('span', { id, class: 'title' }, title), own && rangeSwitch(range)),
    box,
    el('div', { class: 'legend' },
      legend.map(each => el('span', {}, each.mark, each.label, ' ', each.value)), moment, toggle),
    summary, list);

  function key(event) {
    const last = data[0].length - 1;
    const from = at ?? last;
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: 10, PageDown: -10 };
    const next = event.key === 'Home' ? 0 : event.key === 'End' ? last
      : event.key in steps ? from + steps[event.key] : null;
    if (next !== null && last >= 0) {
      event.preventDefault();
      point(Math.max(0, Math.min(last, next)), true);
    } else if (event.key === 'Escape') {
      point(null);
    }
  }

  // Shows the values at an index, or the newest ones.
  function point(index, moveCursor = false) {
    at = index;
    const last = data[0].length - 1;
    const now = Math.min(index ?? last, last);
    legend.forEach(({ value }, line) => setText(value, unit(data[line + 1][now])));
    const time = now >= 0 ? clock(data[0][now] * 1000) : '';
    setText(moment, index === null ? '' : `at ${time}`);
    box.setAttribute('aria-valuemax', Math.max(last, 0));
    box.setAttribute('aria-valuenow', Math.max(now, 0));
    box.setAttribute('aria-valuetext', now < 0 ? 'no figures yet' : `${time}: ${legend
      .map(({ label, value }) => `${label} ${value.textContent}`).join(', ')}`);
    if (moveCursor && chart) {
      chart.setCursor({ left: chart.valToPos(data[0][now], 'x'), top: -10 }, false);
    }
  }

  function listRows() {
    if (!list.hidden) {
      replace(rows, data[0].map((time, index) => el('tr', {},
        el('th', { scope: 'row' }, clock(time * 1000)),
        series.map((_, line) => el('td', {}, unit(data[line + 1][index]))))).reverse());
    }
  }

  function draw() {
    if (signal.aborted || box.clientWidth === 0) {
      return;
    }
    chart?.destroy();
    chart = new uPlot(options(box, series, legend, unit, () => shown().seconds,
      index => point(index)), data, box);
  }

  async function refresh() {
    if (document.hidden || signal.aborted) {
      return;
    }
    const wanted = chosen;
    try {
      const { columns, values } = await history(of, wanted ?? range);
      if (wanted !== chosen) {
        return;
      }
      const column = name => values[columns.indexOf(name)] ?? (values[0] ?? []).map(() => null);
      data = [values[0] ?? [], ...series.map(each => column(each.column))];
    } catch {
      // The page says by itself when the broker is away or the subject is gone.
      return;
    }
    if (chart) {
      chart.setData(data);
    } else {
      draw();
    }
    point(at);
    setText(summary, sentence(data, series, unit, shown().label));
    listRows();
  }

  let timer = null;
  const schedule = () => {
    clearInterval(timer);
    timer = setInterval(refresh, shown().refresh);
    refresh();
  };
  const observer = new ResizeObserver(() => {
    if (chart) {
      chart.setSize({ width: box.clientWidth, height: HEIGHT });
    } else {
      draw();
    }
  });
  observer.observe(box);
  shared.addEventListener('range', schedule, { signal });
  document.addEventListener('theme', draw, { signal });
  document.addEventListener('visibilitychange', refresh, { signal });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw, { signal });
  signal.addEventListener('abort', () => {
    clearInterval(timer);
    observer.disconnect();
    chart?.destroy();
  }, { once: true });
  schedule();
  return node;
}

// Plots of the same subject on one page share their requests.
const pending = new Map();

function history(of, range) {
  const subject = `${of} ${range}`;
  if (!pending.has(subject)) {
    pending.set(subject, ask('/history', { query: { of, range } }));
    setTimeout(() => pending.delete(subject), 900);
  }
  return pending.get(subject);
}

function sentence(data, series, unit, range) {
  const parts = series.map(({ label }, index) => {
    const known = data[index + 1].filter(value => value !== null);
    if (known.length === 0) {
      return `${label}: nothing known`;
    }
    const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
    return `${label}: now ${unit(data[index + 1].at(-1))}, least ${unit(Math.min(...known))}, ` +
      `most ${unit(Math.max(...known))}, mean ${unit(mean)}`;
  });
  return `The last ${range}. ${parts.join('; ')}. Arrow keys read single values.`;
}

// The samples between gaps, to which no line leads.
const isolated = ({ data }, line) => data[line].flatMap((value, at, all) =>
  (value !== null && (all[at - 1] ?? all[at + 1] ?? null) === null ? [at] : []));

function options(box, series, legend, unit, seconds, onPoint) {
  const style = getComputedStyle(box);
  const colours = legend.map(each => getComputedStyle(each.mark).color);
  const font = `11px ${style.fontFamily}`;
  const axis = { stroke: style.color, font, ticks: { show: false } };
  const ticks = new Intl.DateTimeFormat('en-GB', { timeStyle: 'short' });
  return {
    width: box.clientWidth, height: HEIGHT, legend: { show: false },
    padding: [8, 20, 0, 0], cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
    scales: {
      x: { range: (_, min, max) => (max === null ? [0, 1] : [max - seconds(), max]) },
      y: { range: (_, min, max) => [0, max > 0 ? max * 1.1 : 1] },
    },
    axes: [
      { ...axis, grid: { show: false }, size: 28, gap: 8, space: 42, incrs: MINUTES,
        values: (_, splits) => splits.map(value => ticks.format(value * 1000)) },
      { ...axis, grid: { stroke: style.borderTopColor, width: 1 }, gap: 6, space: 28,
        ...(unit === count || unit === bytes ? { incrs: WHOLE } : {}),
        values: (_, splits) => splits.map(value => unit(value)),
        size: (_, values) => 14 + 6.4 * Math.max(3, ...(values ?? []).map(text => text.length)) },
    ],
    series: [{}, ...series.map((_, index) => ({
      stroke: colours[index], width: 1.5, dash: DASHES[index % 4], spanGaps: false,
      points: { show: false, filter: isolated, size: 5, fill: colours[index] },
      fill: series.length === 1 ? colours[index].replace(/^rgb\((.*)\)$/, 'rgba($1, 0.1)') : null,
    }))],
    hooks: { setCursor: [chart => onPoint(chart.cursor.left >= 0 ? chart.cursor.idx : null)] },
  };
}
