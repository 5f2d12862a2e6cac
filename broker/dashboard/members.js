// The workers of a group, with a button that drains each.

import { button } from './actions.js';
import { ask } from './ask.js';
import { el, keeper, mark, unseen } from './dom.js';
import { NONE, ago, bytes, count, plural, rate, visible } from './format.js';
import { table } from './table.js';
import { state } from './words.js';

/** A table for the rows of `GET /groups/{group}/members`. */
export function membersTable(group) {
  const keep = keeper();
  // A total that is left out is 0.
  const total = field => ({
    number: true, text: row => count(row[field] ?? 0), sort: row => row[field] ?? 0,
  });
  return table({
    caption: 'Workers',
    columns: [
      { title: 'Worker', text: row => visible(row.name ?? row.member),
        sort: row => row.name ?? row.member },
      { title: 'State', text: row => (isGone(row) ? mark('off', 'drained, not connected')
        : mark(...state('member', row.state))), sort: row => row.state },
      { title: 'Holds', text: load, sort: row => row.held },
      { title: 'Rate', number: true, text: row => rate(row.rate ?? 0),
        sort: row => row.rate ?? 0 },
      { title: 'Done', ...total('done') },
      { title: 'Failed', ...total('failed') },
      { title: 'Lost', ...total('lost') },
      { title: 'Heard', number: true, text: row => ago(row['heard-ms']),
        sort: row => row['heard-ms'] },
      { title: 'Member', text: row => row.member, sort: row => row.member },
      { title: 'Address', text: row => visible(row.address ?? NONE), sort: row => row.address },
      { title: 'Action', text: row => keep(`${row.member} ${isDrained(row)}`,
        () => drainButton(group, row)) },
    ],
    key: row => row.member, empty: 'No worker takes tasks of this group.', filter: true,
  });
}

// How full a worker is. One that is away has no credit. One with a rule of its own renders tasks of
// which the broker does not know that they need a browser, unless the worker reports it.
function load(row) {
  const { held, credit, render, rendering } = row;
  const pages = row['browser-pages'] ?? (rendering > 0 || held === 0 ? rendering : null);
  const waiting = row['browser-waiting'] ? `, ${count(row['browser-waiting'])} wait for one` : '';
  const text = `${count(held)} of ${count(credit)}` + (render
    ? `, ${pages === null ? NONE : count(pages)} of ${count(render)} in a browser${waiting}${browsers(row)}` : '');
  return el('span', { class: 'load' },
    el('meter', { max: Math.max(credit, 1), value: held, 'aria-label': 'Tasks held' }), text);
}

// What a worker reports about its browsers.
function browsers(row) {
  if (row.browsers === undefined) return '';
  const left = row['browser-pages-left'];
  const pages = left === undefined ? '' : `${plural(left, 'page')} left, `;
  return ` (${plural(row.browsers, 'browser')}, ${bytes(row['browser-bytes'])}, ${pages}` +
    `${plural(row['browser-restarts'], 'restart')})`;
}

// A drained worker stays in the list after it has left, without its address.
const isGone = row => row.state === 'drained' && row.address === undefined;

/** Whether a worker is connected: a row of the table. */
export const isConnected = row => row.state !== 'away' && !isGone(row);

const isDrained = row => row.state === 'draining' || row.state === 'drained';

function drainButton(group, row) {
  const { member, name } = row;
  const again = isDrained(row);
  const action = again ? 'undrain' : 'drain';
  const shown = visible(name ?? member);
  return button({
    label: again ? ['Give tasks again', unseen(` to ${shown}`)] : ['Drain', unseen(` ${shown}`)],
    right: 'admin',
    run: async () => {
      const path = `/groups/${encodeURIComponent(group)}/${action}`;
      await ask(path, { method: 'POST', query: { member } });
      return again ? `${shown} gets tasks again.`
        : `${shown} gets no further task. It can be stopped without loss when it is drained.`;
    },
  });
}
