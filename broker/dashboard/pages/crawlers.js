// The workers of a group: what each holds, how fast it is, and a button that drains it.

import { groupChoice } from '../choice.js';
import { el, head, replace } from '../dom.js';
import { count, plural } from '../format.js';
import { list } from '../list.js';
import { watch } from '../live.js';
import { membersTable } from '../members.js';

export function title() {
  return 'Crawlers';
}

export async function show(main, params, signal) {
  const facts = el('span', {});
  const place = el('div', { class: 'panel' });
  let shown = null;
  main.append(head('Crawlers', facts));
  const choice = await groupChoice({ show: showGroup }, signal);
  main.append(choice, place, el('p', { class: 'hint' },
    'A drained crawler gets no further task and ends those that it has; the others take over its ' +
    'hosts. When it is drained, it can be stopped without loss.'));

  function showGroup(group) {
    shown?.abort();
    shown = new AbortController();
    const part = AbortSignal.any([signal, shown.signal]);
    const view = membersTable(group);
    const gone = el('p', { class: 'note', hidden: true }, 'This group does not exist any more.');
    facts.textContent = '';
    replace(place, gone, view.node);
    const members = list({
      path: `/groups/${encodeURIComponent(group)}/members`, field: 'members',
      key: row => row.member, limit: 1000, onRead: () => sum(members.rows()),
    }, view, part);
    watch({
      [`members:${group}`]: answer => {
        gone.hidden = Boolean(answer);
        view.node.hidden = !answer;
        if (answer) {
          members.fresh(answer);
        } else {
          facts.textContent = '';
        }
      },
    }, part);
  }

  function sum(rows) {
    const present = rows.filter(row => row.state !== 'away');
    const of = field => present.reduce((total, row) => total + row[field], 0);
    facts.textContent = `${plural(present.length, 'worker')} connected; ` +
      `${count(of('held'))} of ${plural(of('credit'), 'task')} held`;
  }
}
