// One group: figures, plots, the hosts that hold it up, workers, failures, rules, settings.

import { button, confirm, form, refreshed } from '../actions.js';
import { announce, feedOf, rightTo } from '../announce.js';
import { ask } from '../ask.js';
import { remember } from '../choice.js';
import { el, figures, head, mark, panel, replace, replaceControls } from '../dom.js';
import { bytes, count, duration, plural, rate, visible } from '../format.js';
import { hostsTable, openHost } from '../hosts.js';
import { list } from '../list.js';
import { watch } from '../live.js';
import { membersTable } from '../members.js';
import { metrics, poll } from '../metrics.js';
import { REASONS } from '../outcomes.js';
import { plot, rangeSwitch } from '../plot.js';
import { rulesTable, setRule } from '../rules.js';
import { SINCE, groupState, stoppedWhy } from '../words.js';

const SETTINGS = {
  topics: ['Topics', 'Names with commas.'],
  delay: ['Delay', 'Between two requests to a host, such as 2s, 0, or default.'],
  parallel: ['Requests at once to a host', null, 'number'],
  lease: ['Lease', 'How long a task belongs to a worker that is silent, such as 60s.'],
  'max-attempts': ['Attempts', 'Failed ones, after which a URL is a dead letter.', 'number'],
  'max-losses': ['Losses', 'Lost leases, after which a URL is a dead letter.', 'number'],
  backoff: ['Backoff', 'Wait after the first failure; it doubles with each.'],
  'page-ready': ['Publishes outcomes on page-ready', null, 'select'],
  circuit: ['Rests for hosts that do not answer', null, 'select'],
};

export function title({ group }) {
  return `Group ${group}`;
}

export async function show(main, { group }, signal) {
  const path = `/groups/${encodeURIComponent(group)}`;
  const first = await ask(path, { signal });
  remember(group);
  if (first.damaged) {
    showDamaged(main, first);
    return;
  }
  const facts = el('span', {});
  const buttons = el('div', { class: 'buttons' });
  const sums = el('div', {});
  const settings = el('dl', { class: 'pairs' });
  let current = first;

  const hosts = hostsTable(group);
  const waiting = list({ path: `${path}/keys`, field: 'keys', key: row => row.key, limit: 50 },
    hosts, signal);
  const workers = membersTable(group);
  const members = list({
    path: `${path}/members`, field: 'members', key: row => row.member, limit: 1000,
  }, workers, signal);
  const rules = rulesTable(group, () => ruled.reload());
  const ruled = list({ path: `${path}/rules`, field: 'rules', key: row => row.key }, rules, signal);
  const reasons = el('div', {});
  const hasHosts = first.key === 'host' || first.key === 'domain';
  const hasKeys = first.key !== 'none' && first.key !== 'seq';

  let stopped;
  const draw = object => {
    if (object === null || object.damaged) {
      const gone = { group, problem: 'This group does not exist any more.' };
      showDamaged(main, object ?? gone);
      return;
    }
    if (!main.contains(sums)) {
      replace(main, content);
    }
    const wasPaused = buttons.firstChild === null || object.paused !== current.paused;
    current = object;
    replace(facts, mark(...groupState({ ...object, why: stopped ?? (object.paused && 'paused') })),
      `, ${plural(object.members, 'worker')}`);
    replace(sums, sumsOf(object));
    const pair = (label, value) => el('div', {},
      el('dt', {}, label), el('dd', {}, visible([value].flat().join(', '))));
    replace(settings, Object.entries(SETTINGS).map(([name, [label]]) => pair(label, object[name])),
      object.where && pair('Takes only events with', object.where));
    if (wasPaused) {
      replaceControls(buttons, actionsOf());
    }
  };

  const parts = { of: `group:${group}`, own: false };
  const content = [
    head(visible(`Group ${group}`), facts, buttons), sums,
    rangeSwitch(),
    el('div', { class: 'grid' },
      plot({ ...parts, title: 'Done and failed', unit: rate,
        series: ['done', 'failed'].map(label => ({ column: label, label })) }, signal),
      plot({ ...parts, title: 'Response time', unit: duration,
        series: ['p50', 'p95', 'p99'].map(label => ({ column: `${label}-ms`, label })) }, signal),
      plot({ ...parts, title: 'Waiting and under way', unit: count, series: [
        { column: 'waiting', label: 'waiting' }, { column: 'processing', label: 'under way' },
      ] }, signal)),
    hasKeys && panel(`${hasHosts ? 'Hosts' : 'Keys'} that hold it up`, hosts.node,
      openHost(group)),
    panel('Workers', workers.node),
    hasKeys && panel('Rules', rules.node, button({
      label: 'Add a rule…', right: 'admin',
      run: async () => refreshed(await setRule(group, {}) && 'Changed.', ruled.reload),
    })),
    el('div', { class: 'grid' },
      panel('Settings', settings, button({
        label: 'Change…', right: 'admin', run: async () => await setSettings() && 'Changed.',
      })),
      panel('Failures by reason', reasons)),
  ];
  draw(first);

  function actionsOf() {
    const { paused } = current;
    return [
      button({
        label: paused ? 'Resume' : 'Pause', right: 'admin', run: async () => {
          draw(await ask(`${path}/${paused ? 'resume' : 'pause'}`, { method: 'POST' }));
          return paused ? `${group} releases tasks again.`
            : `${group} releases no task. Workers finish what they hold.`;
        },
      }),
      hasKeys && button({
        label: 'Announce a URL…', right: rightTo(feedOf(current)), run: () => announce(current),
      }),
      button({ label: 'Purge…', right: 'admin', danger: true, run: purge }),
    ];
  }

  async function purge() {
    const before = await ask(path, { signal });
    const entries = plural(before.waiting, 'waiting entry', 'waiting entries');
    const text = `${entries} of all jobs will be dropped. Workers finish what they hold.` +
      ' This cannot be undone.';
    if (await confirm({ title: `Purge ${group}`, text, action: 'Drop them', typed: group })) {
      draw(await ask(`${path}/purge`, { method: 'POST' }));
      return `What waited in ${group} is dropped; ${count(current.waiting)} wait now.`;
    }
    return undefined;
  }

  const setSettings = () => {
    // Only what the reader changed is set, so changes of others stay.
    const before = Object.fromEntries(Object.keys(SETTINGS)
      .map(name => [name, [current[name]].flat().join(',')]));
    return form({
      title: `Settings of ${group}`,
      fields: Object.entries(SETTINGS).map(([name, [label, hint, type]]) => ({
        name, label, hint, type, required: true, options: ['on', 'off'], value: before[name],
      })),
      action: 'Change',
      run: async values => {
        const body = Object.fromEntries(Object.entries(values)
          .filter(([name, value]) => String(value) !== before[name]));
        if (body.topics) {
          body.topics = body.topics.split(/[\s,]+/).filter(Boolean);
        }
        draw(await ask(path, { method: 'PUT', body }));
      },
    });
  };

  watch({
    [`group:${group}`]: draw,
    [`members:${group}`]: answer => answer && members.fresh(answer),
    ...(hasKeys && { [`keys:${group}`]: answer => answer && waiting.fresh(answer) }),
  }, signal);
  await poll(async () => {
    const now = await metrics(signal);
    replace(reasons, reasonsOf(group, now));
    const why = stoppedWhy(now, group);
    // The object of the group says at once whether it is paused.
    stopped = why === 'paused' ? undefined : why;
    if (main.contains(sums)) {
      draw(current);
    }
    await (hasKeys && ruled.refresh());
  }, 10_000, signal);
}

function showDamaged(main, { group, problem, remedy }) {
  replace(main, head(visible(`Group ${group}`), mark('bad', remedy ? 'rejects work' : 'gone')),
    el('p', { class: 'note' }, visible(problem)), remedy && el('p', {}, visible(remedy)));
}

function sumsOf(object) {
  const responses = ['2xx', '3xx', '4xx', '5xx'].map(name => [name, object[`status-${name}`]])
    .filter(([, number]) => number !== undefined);
  return figures([
    ['Waiting', count(object.waiting)],
    ['Under way', count(object.processing)],
    ['Done', count(object.completed)],
    ['Failed', count(object.failed)],
    ['Dead letters', el('a', { href: '#/dead' }, count(object['dead-kept']))],
    ['Schedules', el('a', { href: '#/schedules' }, count(object.scheduled))],
    ['Hosts', count(object.keys)],
    object['keys-down'] > 0 && ['Hosts that do not answer', count(object['keys-down'])],
    ['Leases lost', count(object.lost)],
    ...responses.map(([name, number]) => [`Answers ${name}`, count(number), SINCE]),
    object.bytes !== undefined && ['Pages', bytes(object.bytes), SINCE],
    object['render-waiting'] > 0 && ['Wait for a browser', count(object['render-waiting'])],
  ].filter(Boolean));
}

function reasonsOf(group, all) {
  const found = all.all('tidings_group_failures_total', { group }).filter(({ value }) => value > 0)
    .sort((a, b) => b.value - a.value);
  return found.length === 0 ? el('p', { class: 'hint' }, 'No failure since the broker started.')
    : el('dl', { class: 'pairs' }, found.map(({ labels, value }) => el('div', {},
      el('dt', {}, REASONS[labels.reason] ?? visible(labels.reason)),
      el('dd', {}, count(value)))));
}
