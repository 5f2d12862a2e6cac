// All topics: what they keep, who reads them, and which reader falls behind.

import { button, form } from '../actions.js';
import { ask } from '../ask.js';
import { el, head, mark, replace } from '../dom.js';
import { bytes, count, rate } from '../format.js';
import { watch } from '../live.js';
import { metrics, poll } from '../metrics.js';
import { table } from '../table.js';
import { settingFields } from '../topic-settings.js';
import { state } from '../words.js';

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
      { title: 'Rate', text: topic => rate(topic.rate), sort: topic => topic.rate, number: true },
      { title: 'Kept', text: topic => count(topic.kept), sort: topic => topic.kept, number: true },
      { title: 'On disk', text: topic => bytes(topic['log-bytes']),
        sort: topic => topic['log-bytes'], number: true },
      { title: 'Readers', text: topic => count(topic.readers), sort: topic => topic.readers,
        number: true },
      { title: 'Cursor furthest behind', number: true, sort: topic => behind.get(topic.topic),
        text: topic => (behind.has(topic.topic) ? count(behind.get(topic.topic)) : '–') },
      { title: 'Keeps', text: topic => keeps(topic) },
      { title: 'Sync', text: topic => topic.sync, sort: topic => topic.sync },
    ],
  });
  let topics = [];
  let behind = new Map();
  replace(main, head('Topics', null, button({
    label: 'Make a topic…', right: 'admin', run: async () => {
      const values = await makeTopic();
      if (values) {
        location.hash = topicHref(values.topic);
      }
    },
  })), list.node);
  watch({
    topics: object => {
      topics = object?.topics ?? [];
      list.update(topics);
    },
  }, signal);
  await poll(async () => {
    const now = await metrics(signal);
    behind = new Map(now.all('tidings_topic_cursor_behind_events_max')
      .map(({ labels, value }) => [labels.topic, value]));
    list.update(topics);
  }, 5_000, signal);
}

const topicHref = name => `#/topics/${encodeURIComponent(name)}`;

function keeps(topic) {
  return [topic['retain-age'], topic['retain-bytes']].filter(value => value && value !== '0')
    .join(', ') || 'everything';
}

function makeTopic() {
  return form({
    title: 'Make a topic', action: 'Make it',
    fields: [{ name: 'topic', label: 'Name', required: true }, ...settingFields({})],
    run: async ({ topic, ...settings }) => {
      const body = Object.fromEntries(Object.entries(settings).filter(([, value]) => value));
      await ask(`/topics/${encodeURIComponent(topic)}`, { method: 'PUT', body });
    },
  });
}
