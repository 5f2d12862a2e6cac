// The live tail of a topic: its stream with filters, and single events opened.

import { stream } from './ask.js';
import { el, replace, setText } from './dom.js';
import { openEvent } from './event-dialog.js';
import { parse } from './events.js';
import { count, plural, urlLink, visible } from './format.js';
import { needs } from './session.js';

const ROWS = 500;
const REDRAW = 250;
const ATTRIBUTES_SHOWN = 300;

/** The tail of a topic: `{node, stop}`. Ends when `signal` aborts. */
export function tail(topic, signal) {
  const denied = needs(`sub:${topic}`);
  if (denied) {
    const node = el('p', { class: 'empty' }, `The list of its events ${denied}.`);
    return { node, stop: () => {} };
  }
  const path = `/topics/${encodeURIComponent(topic)}/events`;
  const status = el('span', { class: 'hint', role: 'status' });
  const counts = el('span', { class: 'hint' });
  const rows = el('tbody', {});
  const pause = el('button', { type: 'button', onclick: () => (attempt ? stop() : start(next())) },
    'Pause');
  const fields = {
    host: field('tail-host', 'Host', 'example.org'),
    prefix: field('tail-prefix', 'Begins with', 'https://example.org/'),
    where: field('tail-where', 'Attributes', 'outcome=failed'),
    from: field('tail-from', 'From', 'first, last, -20, 4711 or a time',
      '-20: the newest 20; also first, last, a seq or a time.'),
  };
  fields.from.input.value = '-20';
  let attempt = null;
  let last = null;
  let buffer = [];
  let received = 0;
  let passed = 0;
  let missing = 0;
  let problem = null;

  const next = () => (last === null ? fields.from.input.value.trim() : String(last + 1));

  function start(from) {
    attempt?.abort();
    const own = new AbortController();
    attempt = own;
    problem = null;
    const value = name => fields[name].input.value.trim() || null;
    const query = {
      from: from || null, host: value('host'), prefix: value('prefix'),
      where: value('where')?.split(/\s+/u),
    };
    stream(path, {
      signal: AbortSignal.any([signal, own.signal]), query,
      onEvent: (type, data, id) => own === attempt && take(type, data, Number(id)),
      onState: isConnected => {
        problem = isConnected ? null : 'Not connected; trying again.';
        say();
      },
    }).catch(error => {
      if (own === attempt) {
        attempt = null;
        problem = error.message;
        say();
      }
    });
    say();
  }

  function stop() {
    attempt?.abort();
    attempt = null;
    say();
  }

  function take(type, data, seq) {
    last = seq;
    if (type === 'message') {
      received += 1;
    } else {
      const { from, to } = JSON.parse(data);
      missing += to - from + 1;
    }
    buffer.push({ type, data, seq });
    if (buffer.length > ROWS) {
      buffer.shift();
      passed += 1;
    }
  }

  function draw() {
    if (buffer.length > 0) {
      rows.prepend(...buffer.reverse().map(row));
      buffer = [];
      while (rows.childElementCount > ROWS) {
        rows.lastElementChild.remove();
      }
    }
    say();
  }

  function say() {
    const words = [
      plural(received, 'event'),
      rows.childElementCount >= ROWS ? `the newest ${ROWS} are kept` : null,
      missing > 0 ? `${plural(missing, 'seq')} are missing` : null,
      passed > 0 ? `${count(passed)} came too fast to be shown` : null,
    ].filter(Boolean).join('; ');
    // The counts change too often to be spoken.
    setText(status, problem ?? (attempt ? '' : 'Paused.'));
    setText(counts, `${words}.`);
    setText(pause, attempt ? 'Pause' : 'Resume');
  }

  function restart(event) {
    event.preventDefault();
    last = null;
    buffer = [];
    received = 0;
    passed = 0;
    missing = 0;
    replace(rows);
    start(next());
  }

  const timer = setInterval(draw, REDRAW);
  let wasRunning = false;
  const onVisibility = () => {
    if (document.hidden) {
      wasRunning = attempt !== null;
      stop();
    } else if (wasRunning) {
      start(next());
    }
  };
  document.addEventListener('visibilitychange', onVisibility);
  signal.addEventListener('abort', () => {
    clearInterval(timer);
    document.removeEventListener('visibilitychange', onVisibility);
  }, { once: true });
  start(next());
  const node = el('div', {},
    el('form', { class: 'inputs', onsubmit: restart },
      Object.values(fields).map(({ node }) => node),
      el('div', { class: 'actions' }, el('button', { type: 'submit' }, 'Show'), pause, status,
        counts)),
    el('div', { class: 'table-box tail', tabindex: '0', role: 'group', 'aria-label': 'Events' },
      el('table', {},
        el('caption', { class: 'unseen' }, `Events of ${visible(topic)}, the newest first`),
        el('thead', {}, el('tr', {}, ['Seq', 'Event', 'Attributes'].map(text =>
          el('th', { scope: 'col', class: text === 'Seq' ? 'number' : null }, text)))),
        rows)));
  return { node, stop };
}

function field(id, label, example, hint = null) {
  const input = el('input', {
    id, type: 'text', autocomplete: 'off', spellcheck: 'false', placeholder: example,
    'aria-describedby': hint && `${id}-hint`,
  });
  return {
    input, node: el('div', { class: 'field' }, el('label', { for: id }, label), input,
      hint && el('span', { class: 'hint', id: `${id}-hint` }, hint)),
  };
}

const WORDS = {
  lag: ['Lag', 'are gone: retention deleted them before they were read'],
  gap: ['Gap', 'are empty: nothing was published with them'],
};

function row({ type, data, seq }) {
  if (WORDS[type]) {
    const { from, to } = JSON.parse(data);
    const [name, meaning] = WORDS[type];
    return el('tr', { class: 'missed' },
      el('th', { scope: 'row', class: 'number' }, count(seq)),
      el('td', { colspan: '2' }, el('b', {}, name),
        `: the seqs ${count(from)} to ${count(to)} ${meaning}.`));
  }
  const { target, attributes } = parse(data);
  const words = [...attributes].map(([name, value]) => `${name}=${value}`).join(' ');
  const shown = text => (text.length > ATTRIBUTES_SHOWN
    ? `${visible(text.slice(0, ATTRIBUTES_SHOWN))}…` : visible(text));
  return el('tr', {},
    el('th', { scope: 'row', class: 'number' }, el('button', {
      type: 'button', class: 'quiet', 'aria-haspopup': 'dialog',
      onclick: () => openEvent({ title: `Event ${count(seq)}`, seq, payload: data }),
    }, el('span', { class: 'unseen' }, 'Open event '), count(seq))),
    target === null ? el('td', { colspan: '2' }, shown(data)) : [
      el('td', {}, target.length > ATTRIBUTES_SHOWN ? shown(target) : urlLink(target)),
      el('td', { class: 'attributes' }, shown(words)),
    ]);
}
