// What was fetched: the outcomes of URLs, with filters and as they come.

import { say } from '../actions.js';
import { ask } from '../ask.js';
import { el, head, mark, replace, setText } from '../dom.js';
import { byteCount } from '../events.js';
import {
  NONE, ago, bytes, clock, count, duration, hostLink, jobLink, plural, urlLink, visible,
} from '../format.js';
import { watch } from '../live.js';
import { poll } from '../metrics.js';
import { RIGHT } from '../outcomes.js';
import { openResult, timeOf } from '../result.js';
import { Results, outcomeMark } from '../results.js';
import { needs } from '../session.js';
import { table } from '../table.js';

// Rows of one step, and rows that are kept of those that come by themselves.
const ROWS = 100;
const ROWS_MAX = 500;

const OUTCOMES = ['done', 'redirect', 'failed', 'robots', 'scope', 'trap'];
const CHANGES = ['new', 'yes', 'no'];

export function title() {
  return 'Results';
}

export async function show(main, params, signal) {
  const facts = el('span', {});
  main.append(head('Results', facts));
  const denied = needs(RIGHT);
  if (denied) {
    main.append(el('p', { class: 'empty' }, `The list of results ${denied}.`));
    return;
  }
  const filter = filters(params, () => begin());
  const kept = el('p', { class: 'hint' });
  const fresh = el('button', { type: 'button', class: 'primary', hidden: true, onclick: top });
  const view = table({
    caption: 'Results, the newest first', columns: columns(signal), key: row => String(row.seq),
    empty: 'No result.',
  });
  main.append(filter.node, kept, el('div', { class: 'fresh' }, fresh), view.node,
    el('p', { class: 'hint' }, 'A result says what came of a URL. Its content is where the ' +
      'crawler stores pages, such as the file pages.db in its data directory.'));
  let results = null;
  let waiting = 0;
  let shown = new AbortController();

  // Shows what matches the filters now, from the newest result on.
  async function begin() {
    shown.abort();
    shown = new AbortController();
    const { query, has } = filter.values();
    const next = new Results(query, has, AbortSignal.any([signal, shown.signal]));
    await next.start();
    await next.older(ROWS);
    results = next;
    waiting = 0;
    draw();
    replace(kept, await keptText(results.topic, signal));
  }

  function draw() {
    const more = () => results.older(ROWS).then(draw)
      .catch(error => !signal.aborted && say(error.message, true));
    view.update(results.rows, { more: results.isWhole ? null : more });
    setText(facts, results.isWhole ? plural(results.rows.length, 'result')
      : `${count(results.rows.length)} of those since number ${count(results.begin)}`);
    setText(fresh, `Show ${plural(waiting, 'new result')}`);
    fresh.hidden = waiting === 0;
  }

  // New rows would move the place at which the reader is.
  const isReading = () => waiting > 0 || document.querySelector('dialog') !== null ||
    view.node.querySelector('tbody').contains(document.activeElement) ||
    view.node.getBoundingClientRect().top < 0;

  async function follow() {
    const now = results;
    const newer = await now.newer();
    if (now !== results || newer.length === 0) {
      return;
    }
    if (now.topic === null) {
      await begin();
    } else if (isReading()) {
      waiting += newer.length;
    } else {
      now.add(newer, Math.max(ROWS_MAX, now.rows.length));
    }
    draw();
  }

  async function top() {
    await begin();
    window.scrollTo(0, 0);
    main.querySelector('h1').focus({ preventScroll: true });
  }

  await begin();
  // The stream says whether the broker is there.
  watch({ groups: () => {} }, signal);
  await poll(follow, 2_000, signal);
}

// The form with the filters, which are also in the address: `{node, values()}`.
function filters(params, run) {
  const text = (name, label) => [name, label, el('input', {
    id: `result-${name}`, autocomplete: 'off', spellcheck: 'false', value: params[name] ?? '',
  })];
  const choice = (name, label, words) => [name, label, el('select', {
    id: `result-${name}`,
  }, ['', ...words].map(word =>
    el('option', { value: word, selected: word === params[name] }, word || 'any')))];
  const fields = [
    text('job', 'Job'), text('host', 'Host'), choice('outcome', 'Outcome', OUTCOMES),
    choice('changed', 'Changed', CHANGES), text('text', 'Text in the URL'),
  ];
  const error = el('p', { class: 'error', role: 'alert' });
  const onsubmit = async event => {
    event.preventDefault();
    replace(error);
    const given = fields.map(([name, , input]) => [name, input.value.trim()])
      .filter(([, value]) => value !== '');
    const query = new URLSearchParams(given).toString();
    history.replaceState(null, '', `#/results${query && `?${query}`}`);
    try {
      await run();
    } catch (refusal) {
      replace(error, refusal.message);
    }
  };
  const node = el('form', { class: 'inputs', role: 'search', onsubmit },
    fields.map(([name, label, input]) => el('div', { class: 'field' },
      el('label', { for: `result-${name}` }, label), input)),
    el('div', { class: 'actions' }, el('button', { type: 'submit' }, 'Search')), error);
  const values = () => {
    const { job, host, outcome, changed, text: part } = Object.fromEntries(
      fields.map(([name, , input]) => [name, input.value.trim()]));
    const where = [
      job && `in-job=${job}`, outcome && `outcome=${outcome}`, changed && `changed=${changed}`,
    ].filter(Boolean);
    const wanted = part.toLowerCase();
    return {
      query: { where, host: host.toLowerCase() || null },
      has: ({ url }) => url.toLowerCase().includes(wanted),
    };
  };
  return { node, values };
}

// What is kept, and since when.
async function keptText(topic, signal) {
  if (topic === null) {
    return 'The topic page-ready has no result yet. Groups with page-ready=off publish none.';
  }
  const limits = `The topic page-ready keeps results for ${topic['retain-age']}, up to ` +
    bytes(byteCount(topic['retain-bytes']));
  const query = { from: 'first', limit: 1, wait: 0 };
  const { events: [oldest] } = await ask('/topics/page-ready', { query, signal });
  return !oldest ? `${limits}. There is none at present.`
    : `${limits}. The oldest one, number ${count(oldest.seq)}, is ` +
      `${ago(Date.now() - Date.parse(oldest.time)).replace(/ ago$/, ' old')}.`;
}

function columns(signal) {
  // A button stays the same one, so that no click on it is lost.
  const buttons = new WeakMap();
  const open = row => buttons.get(row) ?? buttons.set(row, opener(row)).get(row);
  const opener = row => el('button', {
    type: 'button', class: 'quiet', 'aria-haspopup': 'dialog',
    onclick: () => openResult(row, signal),
  }, el('span', { class: 'unseen' }, `Open result ${count(row.seq)}, `), clock(timeOf(row)));
  return [
    { title: 'Time', text: open, number: true },
    { title: 'URL', text: row => urlLink(row.url) },
    { title: 'Outcome', text: row => mark(...outcomeMark(row)) },
    { title: 'Status', text: row => visible(row.status ?? NONE), number: true },
    { title: 'Changed', text: row => visible(row.changed ?? NONE) },
    { title: 'Took', text: row => duration(Number(row.ms ?? NaN)), number: true },
    { title: 'Size', text: row => bytes(Number(row.bytes ?? NaN)), number: true },
    { title: 'Host', text: row => (URL.canParse(row.url)
      ? hostLink(new URL(row.url).hostname, row.group) : NONE) },
    { title: 'Job', text: row => jobLink(row['in-job']) },
  ];
}
