// One topic: its cursors, its events as they come, and its settings.

import { button, confirm, filled, form, refreshed } from '../actions.js';
import { ask } from '../ask.js';
import { about } from '../crawl.js';
import { el, figures, head, mark, panel, replace } from '../dom.js';
import { byteCount, milliseconds, size } from '../events.js';
import { bytes, clock, count, plural, rate, visible } from '../format.js';
import { watch } from '../live.js';
import { poll } from '../metrics.js';
import { plot, rangeSwitch } from '../plot.js';
import { table } from '../table.js';
import { tail } from '../tail.js';
import { settingFields } from '../topic-settings.js';
import { state } from '../words.js';

export function title({ topic }) {
  return `Topic ${topic}`;
}

export async function show(main, { topic: name }, signal) {
  const path = `/topics/${encodeURIComponent(name)}`;
  const facts = el('span', {});
  const numbers = el('div', {});
  const gone = el('p', { class: 'note', hidden: true });
  let topic = null;
  const cursors = cursorTable(() => topic);
  const events = tail(name, signal);
  const read = async () => {
    try {
      topic = await ask(`${path}/state`, { signal });
    } catch (error) {
      if (error.status !== 404) {
        throw error;
      }
      topic = null;
    }
    gone.hidden = topic !== null;
    // It has figures and settings with its first event.
    [parts, ...ofTopic].forEach(node => { node.hidden = topic === null; });
    replace(gone, topic ? null : 'There is no such topic now. The first event makes it.');
    replace(facts, topic && mark(...state('topic', topic.state)));
    replace(numbers, topic && figures(keyFigures(topic)));
    cursors.update(topic?.cursors ?? []);
  };
  const publishes =
    button({ label: 'Publish…', right: `pub:${name}`, run: () => publish(name, path) });
  const ofTopic = [
    button({
      label: 'Settings…', right: 'admin',
      run: async () => refreshed(await change(name, path, topic), read),
    }),
    button({
      label: 'Delete…', right: 'admin', danger: true,
      run: () => remove(name, path, topic, events.stop),
    }),
  ];
  const series = (text, column, unit) => plot(
    { title: text, of: `topic:${name}`, unit, own: false,
      series: [{ column, label: text.toLowerCase() }] }, signal);
  const parts = el('div', { hidden: true }, numbers,
    el('div', { class: 'grid' },
      series('Published', 'published', rate), series('On disk', 'log-bytes', bytes)),
    cursors.node, panel('Events as they come', events.node));
  replace(main, head(`Topic ${visible(name)}`, facts, [rangeSwitch(), publishes, ofTopic]), gone,
    parts);
  watch({ ready: () => {} }, signal);
  await poll(read, 2_000, signal);
}

function keyFigures(topic) {
  const age = topic['retain-age'];
  return [
    ['Rate', rate(topic.rate)],
    ['Kept', count(topic.kept), topic.kept > 0
      ? `from ${count(topic.first)} to ${count(topic.next - 1)}` : null],
    ['On disk', bytes(topic['log-bytes']), plural(topic.segments, 'file')],
    ['In memory', bytes(topic.bytes)],
    ['Readers', count(topic.readers)],
    ['Keeps', size(topic['retain-bytes']), age === '0' ? 'at any age' : `for ${age}`],
    ['Sync', topic.sync],
  ];
}

function cursorTable(now) {
  return table({
    caption: 'Durable cursors', key: cursor => cursor.cursor,
    empty: 'No durable cursors. A subscriber with a name has one.',
    columns: [
      { title: 'Cursor', text: cursor => visible(cursor.cursor), sort: cursor => cursor.cursor },
      { title: 'Next', text: cursor => count(cursor.next), sort: cursor => cursor.next,
        number: true },
      { title: 'Behind', text: cursor => count(cursor.behind), sort: cursor => cursor.behind,
        number: true },
      { title: 'Now', text: cursor => (cursor.held ? mark('ok', 'is read') : mark('off', 'rests')),
        sort: cursor => cursor.held },
      { title: 'Moved', text: cursor => moment(cursor.moved) },
      { title: 'Retention', text: cursor => retention(now(), cursor) },
    ],
  });
}

const moment = text => (Number.isNaN(Date.parse(text)) ? visible(text) : clock(Date.parse(text)));

// When the next event of a cursor is deleted, as far as the size and the rate of the topic say it.
function retention(topic, cursor) {
  if (cursor.behind === 0) {
    return 'has read everything';
  }
  if (cursor.next < topic.first) {
    return mark('bad', `has lost ${plural(topic.first - cursor.next, 'event')}`);
  }
  const limits = [];
  const size = byteCount(topic['retain-bytes']);
  // A topic in memory has no log.
  const stored = topic['log-bytes'] || topic.bytes;
  const mean = topic.kept > 0 ? stored / topic.kept : 0;
  if (size && topic.rate > 0 && mean > 0) {
    const room = Math.max(0, size - stored) + (cursor.next - topic.first) * mean;
    limits.push(room / (topic.rate * mean) * 1000);
  }
  const age = milliseconds(topic['retain-age']);
  if (age && topic.rate > 0) {
    limits.push(Math.max(0, age - cursor.behind / topic.rate * 1000));
  }
  if (limits.length > 0) {
    const left = Math.min(...limits);
    const time = left < 60_000 ? 'less than 1 min' : `about ${about(left)}`;
    return mark(left < 86_400_000 ? 'warn' : 'ok', `its next event is deleted in ${time}`);
  }
  const time = age ? `within ${topic['retain-age']}` : 'when the topic is full';
  return `its next event is deleted ${time}`;
}

async function publish(name, path) {
  let said = null;
  await form({
    title: `Publish on ${name}`, action: 'Publish',
    fields: [{
      name: 'lines', label: 'Events', type: 'textarea', required: true,
      hint: 'One a line: a text, or a URL with attributes such as item=7.',
    }],
    run: async ({ lines }) => {
      const { seqs } = await ask(path, { method: 'POST', body: lines });
      said = seqs.length === 1 ? `Published as ${count(seqs[0])}.`
        : `${plural(seqs.length, 'event')} published, the last as ${count(seqs.at(-1))}.`;
    },
  });
  return said;
}

async function change(name, path, topic) {
  const values = await form({
    title: `Settings of ${name}`, action: 'Save', fields: settingFields(topic ?? {}),
    run: async given => {
      const body = Object.fromEntries(Object.entries(filled(given))
        .filter(([field, value]) => value !== topic?.[field]));
      await ask(path, { method: 'PUT', body });
    },
  });
  return values && `${name} has these settings now.`;
}

async function remove(name, path, topic, stop) {
  const isSure = await confirm({
    title: `Delete ${name}?`, action: 'Delete the topic', typed: name,
    text: plural(topic?.kept ?? 0, 'event') +
      ` and ${plural(topic?.cursors.length ?? 0, 'cursor')}` +
      ' will be gone. This cannot be undone.',
  });
  if (isSure) {
    stop();
    await removeUnread(path);
    location.hash = '#/topics';
  }
  return null;
}

// A topic that is read cannot be deleted; the broker takes a moment to see that the tail has ended.
async function removeUnread(path) {
  for (let tries = 1; ; tries += 1) {
    try {
      return await ask(path, { method: 'DELETE' });
    } catch (error) {
      if (error.code !== 'busy' || tries === 5) {
        throw error;
      }
      await new Promise(resolve => setTimeout(resolve, 300));
    }
  }
}
