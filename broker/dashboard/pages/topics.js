// All topics: what they keep, who reads them, and which reader falls behind.

import { button, filled, form } from '../actions.js';
import { ask } from '../ask.js';
import { el, head, mark, replace } from '../dom.js';
import { byteCount } from '../events.js';
import { bytes, count, rate, visible } from '../format.js';
import { watch } from '../live.js';
import { poll } from '../metrics.js';
import { sparkline } from '../sparkline.js';
import { table } from '../table.js';
import { settingFields } from '../topic-settings.js';
import { state } from '../words.js';

// Topics whose cursors are read, a request each.
const TOPICS_READ = 60;

export function title() {
  return 'Topics';
}

export async function show(main, params, signal) {
  const list = table({
    caption: 'Topics of this broker', filter: true, key: topic => topic.topic,
    empty: 'No topics yet. The first event makes its topic.',
    columns: [
      { title: 'Topic', sort: topic => topic.topic,
        text: topic => el('a', { href: topicHref(topic.topic) }, topic.topic) },
      { title: 'State', text: topic => mark(...state('topic', topic.state)),
        sort: topic => topic.state },
      { title: 'Rate', sort: topic => topic.rate, number: true, text: topic => el('span', {},
        lines.get(topic.topic)?.cloneNode(true), el('span', { class: 'rate' }, rate(topic.rate))) },
      { title: 'Kept', text: topic => count(topic.kept), sort: topic => topic.kept, number: true },
      { title: 'On disk', text: topic => bytes(topic['log-bytes']),
        sort: topic => topic['log-bytes'], number: true },
      { title: 'Readers', text: topic => count(topic.readers), sort: topic => topic.readers,
        number: true },
      { title: 'Cursors', text: topic => count(cursors.get(topic.topic)?.length), number: true,
        sort: topic => cursors.get(topic.topic)?.length },
      { title: 'Furthest behind', text: topic => last(cursors.get(topic.topic)),
        sort: topic => cursors.get(topic.topic)?.[0]?.behind },
      { title: 'Keeps', text: topic => keeps(topic) },
      { title: 'Sync', text: topic => topic.sync, sort: topic => topic.sync },
    ],
  });
  let topics = [];
  const cursors = new Map();
  // The rates of the last 5 minutes, for the topics of which the broker has them.
  let lines = new Map();
  replace(main, head('Topics', null, button({
    label: 'Make a topic…', right: 'admin', run: async () => {
      const values = await makeTopic();
      if (values) {
        location.hash = topicHref(values.topic);
      }
    },
  })), list.node);
  const update = object => {
    topics = object?.topics ?? [];
    list.update(topics);
  };
  watch({ topics: update }, signal);
  update(await ask('/topics', { signal }));
  await poll(async () => {
    lines = await readLines(signal);
    for (const { topic } of topics.slice(0, TOPICS_READ)) {
      cursors.set(topic, await readCursors(topic, signal));
    }
    list.update(topics);
  }, 10_000, signal);
}

// One answer has the figures of all topics, at most 40.
async function readLines(signal) {
  const { columns: [, ...topics], values: [times, ...rates] } =
    await ask('/history', { signal, query: { of: 'topics' } });
  return new Map(topics.map((topic, index) => [topic, sparkline(times, rates[index],
    most => `in the last 5 minutes at most ${rate(most)}`)]));
}

// The list of all topics does not have their cursors.
async function readCursors(topic, signal) {
  try {
    const state = await ask(`/topics/${encodeURIComponent(topic)}/state`, { signal });
    return state.cursors.sort((a, b) => b.behind - a.behind);
  } catch (error) {
    if (error.status === 404) {
      return [];
    }
    throw error;
  }
}

const last = cursors => (cursors?.[0] ? `${visible(cursors[0].cursor)}: ${count(cursors[0].behind)}`
  : '');

const topicHref = name => `#/topics/${encodeURIComponent(name)}`;

function keeps(topic) {
  return [topic['retain-age'], bytes(byteCount(topic['retain-bytes']))]
    .filter(value => value !== '0').join(', ');
}

function makeTopic() {
  return form({
    title: 'Make a topic', action: 'Make it',
    fields: [{ name: 'topic', label: 'Name', required: true }, ...settingFields({})],
    run: async ({ topic, ...settings }) => {
      await ask(`/topics/${encodeURIComponent(topic)}`, { method: 'PUT', body: filled(settings) });
    },
  });
}
