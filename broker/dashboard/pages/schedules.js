// URLs that are fetched again and again: when, how they ended last; add, change and end.

import { button, confirm, refreshed } from '../actions.js';
import { publish, feedOf, reschedule, rightTo, schedule } from '../announce.js';
import { ask } from '../ask.js';
import { groupPage } from '../choice.js';
import { el, keeper, mark, replace, unseen } from '../dom.js';
import { NONE, count, duration, hostLink, urlLink, visible } from '../format.js';
import { list } from '../list.js';
import { watch } from '../live.js';
import { poll } from '../metrics.js';
import { answersOf, outcomeMark } from '../results.js';
import { searchForm } from '../search.js';
import { needs } from '../session.js';
import { table } from '../table.js';

export function title() {
  return 'Schedules';
}

export function show(main, params, signal) {
  return groupPage(main, 'Schedules', { show: showGroup }, signal);
}

async function showGroup(name, { place, facts }, signal) {
  const group = await ask(`/groups/${encodeURIComponent(name)}`, { signal });
  const topic = feedOf(group);
  const right = rightTo(topic, 'every');
  const missing = needs('sub:page-ready');
  const results = missing ? null : answersOf({ where: `group=${name}` }, signal);
  const last = new Map();
  const keep = keeper();

  const rowButton = ({ url }, label, run) => button({
    label: [label, unseen(` ${visible(url)}`)], right,
    run: async () => refreshed(await run(), rows.reload),
  });
  const end = async ({ url }) => {
    const text = `${visible(url)} is no longer fetched by itself. If it waits, it is fetched once.`;
    if (!await confirm({ title: 'End this schedule?', text, action: 'End it' })) {
      return undefined;
    }
    await publish(topic, url, { every: '0' });
    return `The schedule of ${visible(url)} ends.`;
  };
  const view = table({
    caption: `Schedules of ${name}`,
    columns: [
      { title: 'URL', text: row => urlLink(row.url), sort: row => row.url },
      { title: 'Host', text: row => hostLink(row.key, name), sort: row => row.key },
      { title: 'Every', text: row => visible(row.every), sort: row => row.every },
      { title: 'Due', number: true, text: due, sort: row => row['due-ms'] },
      { title: 'Last outcome', text: row => lastOf(last.get(row.url)) },
      { title: 'Priority', number: true, text: row => count(row.prio), sort: row => row.prio },
      {
        title: 'Actions', text: row => keep(`${row.every} ${row.url}`, () =>
          el('span', { class: 'actions' },
            rowButton(row, 'Change…', () => reschedule(group, row)),
            rowButton(row, 'End…', () => end(row)))),
      },
    ],
    key: row => row.url, empty: 'No schedule.',
  });
  const rows = list({
    path: `/groups/${encodeURIComponent(name)}/schedules`, field: 'schedules',
    key: row => row.url,
    onRead: ({ matched }) => {
      facts.textContent = matched === undefined ? '' : `${count(matched)} in ${name}`;
    },
  }, view, signal);
  replace(place,
    el('h2', { class: 'unseen' }, `Schedules of ${name}`),
    searchForm(query => rows.reload(query)),
    view.node,
    button({
      label: 'Add a schedule…', right,
      run: async () => refreshed(await schedule(group), rows.reload),
    }),
    el('p', { class: 'hint' }, missing ? `The last outcome ${missing}.`
      : 'The last outcome is one of the newest 10,000 results.'));
  // The stream says whether the broker is there.
  watch({ [`group:${name}`]: () => {} }, signal);
  await poll(async () => {
    const newest = await results?.() ?? [];
    last.clear();
    newest.forEach(result => last.set(result.schedule ?? result.url, result));
    await rows.refresh();
  }, 5_000, signal);
}

function due(row) {
  if (row.entry !== undefined) {
    return 'waits or is under way';
  }
  return `in ${duration(row['due-ms'])}${row.skips ? ', skipped once' : ''}`;
}

function lastOf(result) {
  if (!result) {
    return NONE;
  }
  const [kind, text] = outcomeMark(result);
  return mark(kind, `${text}${result.changed === 'no' ? ', not changed' : ''}`);
}
