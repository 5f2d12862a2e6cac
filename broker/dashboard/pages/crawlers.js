// The workers of a group: what each holds, how fast it is, and a button that drains it.

import { groupPage } from '../choice.js';
import { el, replace } from '../dom.js';
import { count, plural } from '../format.js';
import { list } from '../list.js';
import { watch } from '../live.js';
import { isConnected, membersTable } from '../members.js';

export function title() {
  return 'Crawlers';
}

export function show(main, params, signal) {
  return groupPage(main, 'Crawlers', { show: showGroup }, signal);
}

async function showGroup(group, { place, facts }, signal) {
  const view = membersTable(group);
  const gone = el('p', { class: 'note', hidden: true }, 'This group does not exist any more.');
  replace(place, gone, view.node, el('p', { class: 'hint' },
    'A drained crawler gets no further task and ends those that it has; the others take over its ' +
    'hosts. When it is drained, it can be stopped without loss.'));
  const members = list({
    path: `/groups/${encodeURIComponent(group)}/members`, field: 'members',
    key: row => row.member, limit: 1000,
    onRead: () => { facts.textContent = sum(members.rows()); },
  }, view, signal);
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
  }, signal);
}

function sum(rows) {
  const present = rows.filter(isConnected);
  const of = field => present.reduce((total, row) => total + row[field], 0);
  return `${plural(present.length, 'worker')} connected; ` +
    `${count(of('held'))} of ${plural(of('credit'), 'task')} held`;
}
