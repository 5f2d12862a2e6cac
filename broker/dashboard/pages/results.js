// What was fetched: the outcomes of URLs, with filters and as they come.

import { say } from '../actions.js';
import { ask } from '../ask.js';
import { el, head, keeper, mark, replace, setText } from '../dom.js';
import { byteCount } from '../events.js';
import {
  NONE, ago, bytes, clock, count, duration, hostLink, hostOf, jobLink, plural, urlLink, visible,
} from '../format.js';
import { watch } from '../live.js';
import { poll } from '../metrics.js';
import { RIGHT } from '../outcomes.js';
import { groupOf, openResult, timeOf } from '../result.js';
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
  // Rows that come by themselves change the facts, but are not spoken.
  const spoken = el('span', { class: 'unseen', role: 'status' });
  main.append(head('Results', [facts, spoken]));
  const denied = needs(RIGHT);
  if (denied) {
    main.append(el('p', { class: 'empty' }, `The list of results ${denied}.`));
    return;
  }
  const fresh = el('button', { type: 'button', class: 'primary', hidden: true, onclick: top });
  const filter = filters(params, begin, fresh);
  const kept = el('p', { class: 'hint' });
  const none = el('span', {});
  const view = table({
    caption: 'Results, the newest first', columns: columns(signal), key: row => String(row.seq),
    empty: none,
  });
  main.append(filter.node, kept, view.node,
    el('p', { class: 'hint' }, 'A result says what came of a URL. Its content is where the ' +
      'crawler stores pages, such as the file pages.db in its data directory.'));
  let results = null;
  let waiting = 0;
  let searches = 0;
  // Ends the search whose results are not shown yet.
  let search = null;

  // Shows what matches the filters now, from the newest result on: `false` if a later search began.
  async function begin() {
    search?.abort();
    const mine = new AbortController();
    search = mine;
    const { query, has } = filter.values();
    const ends = AbortSignal.any([signal, mine.signal]);
    const next = new Results(query, has, ends);
    try {
      await searching(async () => {
        await next.start();
        await next.older(ROWS);
        replace(kept, await keptText(next.topic, ends));
        search = null;
        results = next;
        waiting = 0;
      });
    } catch (error) {
      if (!mine.signal.aborted) {
        throw error;
      }
    }
    return !mine.signal.aborted;
  }

  // Says that a search works, and then what it has found.
  async function searching(work) {
    const tell = () => {
      draw();
      setText(spoken, facts.textContent);
    };
    searches += 1;
    tell();
    try {
      await work();
    } finally {
      searches -= 1;
      tell();
    }
  }

  function draw() {
    const more = () => searching(() => results.older(ROWS))
      .catch(error => !signal.aborted && say(error.message, true));
    view.update(results?.rows ?? [], { more: results?.isWhole === false ? more : null });
    setText(facts, searches > 0 ? 'Searching…' : results ? found(results) : '');
    setText(none, facts.textContent);
    setText(fresh, `Show ${plural(waiting, 'new result')}`);
    fresh.hidden = waiting === 0;
  }

  // New rows would move the place at which the reader is.
  const isReading = () => searches > 0 || waiting > 0 ||
    document.querySelector('dialog') !== null || !document.getSelection().isCollapsed ||
    view.node.querySelector('tbody').contains(document.activeElement) ||
    view.node.matches(':hover') || view.node.getBoundingClientRect().top < 0;

  async function follow() {
    const now = results;
    const newer = await now?.newer() ?? [];
    if (now !== results || newer.length === 0) {
      return;
    }
    if (isReading()) {
      waiting += newer.length;
    } else if (now.topic === null) {
      await filter.search();
    } else {
      now.add(newer, Math.max(ROWS_MAX, now.rows.length));
    }
    draw();
    if (waiting === newer.length) {
      setText(spoken, fresh.textContent);
    }
  }

  async function top() {
    await filter.search();
    window.scrollTo(0, 0);
    main.querySelector('h1').focus({ preventScroll: true });
  }

  // The stream says whether the broker is there.
  watch({ groups: () => {} }, signal);
  await filter.search();
  await poll(follow, 2_000, signal);
}

// What was found, and how far back.
function found({ rows: { length }, begin, isWhole }) {
  if (isWhole) {
    return length === 0 ? 'No result.' : plural(length, 'result');
  }
  const since = `since number ${count(begin)}`;
  return length === 0 ? `No result ${since}; Show more looks further back.`
    : `${plural(length, 'result')} ${since}`;
}

// The form with the filters, which are also in the address: `{node, values(), search()}`. `run`
// shows what matches them, or resolves to `false`; the button `fresh` is beside that of the form.
function filters(params, run, fresh) {
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
  const search = async () => {
    replace(error);
    const given = fields.map(([name, , input]) => [name, input.value.trim()])
      .filter(([, value]) => value !== '');
    const query = new URLSearchParams(given).toString();
    try {
      if (await run()) {
        history.replaceState(null, '', `#/results${query && `?${query}`}`);
      }
    } catch (refusal) {
      replace(error, refusal.message);
    }
  };
  const onsubmit = event => {
    event.preventDefault();
    search();
  };
  const node = el('form', { class: 'inputs', role: 'search', onsubmit },
    fields.map(([name, label, input]) => el('div', { class: 'field' },
      el('label', { for: `result-${name}` }, label), input)),
    el('div', { class: 'actions' }, el('button', { type: 'submit' }, 'Search'), fresh), error);
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
  return { node, values, search };
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
  // A node of a row stays the same one, so that no click on it is lost.
  const once = (make, nodes = new WeakMap()) =>
    row => nodes.get(row) ?? nodes.set(row, make(row)).get(row);
  const opener = row => el('button', {
    type: 'button', class: 'quiet', 'aria-haspopup': 'dialog',
    onclick: () => openResult(row, signal),
  }, el('span', { class: 'unseen' }, `Open result ${count(row.seq)}, `), clock(timeOf(row)));
  // The key of a group may be another one than the host.
  const groups = keeper();
  const host = row => {
    const name = hostOf(row.url);
    const node = el('span', {}, name ? visible(name) : NONE);
    if (name && row.group) {
      groups(row.group, () => groupOf(row, signal)).then(
        ({ key }) => key === 'host' && replace(node, hostLink(name, row.group)), () => {});
    }
    return node;
  };
  return [
    { title: 'Time', text: once(opener), number: true },
    { title: 'URL', text: row => urlLink(row.url) },
    { title: 'Outcome', text: row => mark(...outcomeMark(row)) },
    { title: 'Status', text: row => visible(row.status ?? NONE), number: true },
    { title: 'Changed', text: row => visible(row.changed ?? NONE) },
    { title: 'Took', text: row => duration(Number(row.ms ?? NaN)), number: true },
    { title: 'Size', text: row => bytes(Number(row.bytes ?? NaN)), number: true },
    { title: 'Host', text: once(host) },
    { title: 'Job', text: row => jobLink(row['in-job']) },
  ];
}
