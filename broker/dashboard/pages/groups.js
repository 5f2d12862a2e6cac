// All groups: what waits, how fast it is done, and whether something stands still.

import { button, form, refreshed } from '../actions.js';
import { ask } from '../ask.js';
import { el, head, mark } from '../dom.js';
import { count, duration, groupLink, plural, rate } from '../format.js';
import { watch } from '../live.js';
import { metrics, poll } from '../metrics.js';
import { table } from '../table.js';
import { groupState, stoppedWhy } from '../words.js';

export function title() {
  return 'Groups';
}

export async function show(main, params, signal) {
  const facts = el('span', {});
  let before = null;
  const view = table({
    caption: 'Groups',
    columns: [
      { title: 'Group', text: ({ name }) => groupLink(name), sort: ({ name }) => name },
      { title: 'State', text: ({ state }) => mark(...state), sort: ({ state }) => state[1] },
      number('Waiting', 'waiting', count),
      number('Under way', 'processing', count),
      number('Done a second', 'done', rate),
      number('Failed a second', 'failed', rate),
      number('Workers', 'members', count),
      number('Dead letters', 'dead', count),
      number('Ready since', 'starved', seconds => (seconds ? duration(seconds * 1000) : '–')),
    ],
    key: ({ name }) => name, empty: 'No groups yet. A group appears with its first worker.',
    filter: true,
  });
  const hint = el('p', { class: 'hint', hidden: true }, 'Ready since: for how long something has ' +
    'waited that needs only a worker. The 100 groups with most entries have figures here, each ' +
    'group has on its page.');
  main.append(
    head('Groups', facts, button({ label: 'Make a group…', right: 'admin', run: make })),
    view.node, hint);

  async function read() {
    const [{ groups }, now] = await Promise.all([ask('/groups', { signal }), metrics(signal)]);
    const rates = now.rates(before);
    before = now;
    view.update(groups.map(name => rowOf(name, now, rates)));
    facts.textContent = plural(groups.length, 'group');
    hint.hidden = groups.length === 0;
  }
  // The stream says whether the broker is there.
  watch({ groups: () => {} }, signal);
  await poll(read, 3_000, signal);

  async function make() {
    const values = await form({
      title: 'Make a group',
      fields: [
        { name: 'group', label: 'Name', required: true },
        {
          name: 'topics', label: 'Topics', value: 'new-url', required: true,
          hint: 'Names with commas; each of their events goes to one worker of the group.',
        },
        {
          name: 'key', label: 'Key', type: 'select', value: 'host',
          options: [
            ['host', 'host: one request at a time to each host'],
            ['domain', 'domain: one request at a time to each domain'],
            ['none', 'none: events of any kind, in any number at once'],
            ['seq', 'seq: events of any kind, one after the other'],
          ],
        },
      ],
      action: 'Make',
      run: async ({ group, topics, key }) => {
        const body = { topics: topics.split(/[\s,]+/).filter(Boolean), key };
        await ask(`/groups/${encodeURIComponent(group)}`, { method: 'PUT', body });
      },
    });
    return refreshed(values && `The group ${values.group} exists.`, read);
  }
}

function number(title, field, format) {
  return { title, number: true, text: row => format(row[field]), sort: row => row[field] };
}

function rowOf(group, figures, rates) {
  const of = name => figures.of(`tidings_group_${name}`, { group });
  const speed = outcome => rates('tidings_group_answers_total', { group, outcome });
  const waiting = of('waiting_entries');
  const row = {
    name: group, waiting, processing: of('processing_entries'), members: of('members'),
    done: waiting === null ? null : speed('completed'),
    failed: waiting === null ? null : speed('failed'),
    dead: of('dead_entries'), starved: of('starved_seconds'),
  };
  return { ...row, state: groupState({ ...row, why: stoppedWhy(figures, group) }) };
}
