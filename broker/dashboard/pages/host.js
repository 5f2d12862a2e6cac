// One host of a group: why it waits, its rule, its last answers, what waits for it, its schedules.

import { button, refreshed } from '../actions.js';
import { announce, feedOf, rightTo } from '../announce.js';
import { ask } from '../ask.js';
import { el, figures, head, mark, panel, replace, replaceControls } from '../dom.js';
import {
  NONE, count, duration, groupLink, jobLink, oneWord, plural, resultsLink, urlLink, visible,
} from '../format.js';
import { list } from '../list.js';
import { watch } from '../live.js';
import { poll } from '../metrics.js';
import { answersOf, outcomeMark } from '../results.js';
import { endRule, endText, noteText, ruleOf, ruleText, setRule } from '../rules.js';
import { needs } from '../session.js';
import { table } from '../table.js';
import { dropWaiting } from '../waiting.js';
import { state, waits } from '../words.js';

export function title({ key }) {
  return key;
}

export async function show(main, { group, key }, signal) {
  const path = `/groups/${encodeURIComponent(group)}`;
  const now = el('div', {});
  const why = el('span', {});
  const rulePlace = el('div', {});
  const actions = el('div', { class: 'buttons' });
  const settings = await ask(path, { signal });
  const topic = feedOf(settings);
  const hasHosts = settings.key === 'host';
  main.append(
    head(visible(key), [
      el('span', {}, 'host of the group ', groupLink(group)), why,
    ], actions),
    now, rulePlace);

  const tasks = table({
    caption: 'What waits, is under way, or was given up', columns: taskColumns(),
    key: row => String(row.entry), empty: 'Nothing waits for this host.', filter: true,
  });
  const waiting = list({
    path: `${path}/tasks`, query: { key }, field: 'tasks', key: row => row.entry, limit: 50,
  }, tasks, signal);
  const schedules = table({
    caption: 'Schedules', columns: scheduleColumns(), key: row => row.url,
    empty: 'No schedule for this host.',
  });
  const scheduled = list({
    path: `${path}/schedules`, query: { key }, field: 'schedules', key: row => row.url, limit: 50,
  }, schedules, signal);
  const answers = table({
    caption: 'Last answers', columns: answerColumns(), key: row => String(row.seq),
    empty: 'No answer among the newest 10,000 results.',
  });
  const missing = needs('sub:page-ready');
  main.append(
    hasHosts && panel('Last answers',
      missing ? el('p', { class: 'hint' }, `This list ${missing}.`)
        : [answers.node, resultsLink({ host: key }, 'All results of this host')]),
    panel('Waiting, under way, or given up', tasks.node),
    panel('Schedules', schedules.node));

  let rule = null;
  let found = {};
  const ways = ['block', 'pause', 'slow'].map(kind => button({
    label: { block: 'Block…', pause: 'Pause…', slow: 'Slow down…' }[kind], right: 'admin',
    danger: kind === 'block', run: async () => refreshed(await change(kind), readAll),
  }));
  const dropping = button({
    label: 'Drop what waits…', right: 'admin', danger: true,
    run: async () => refreshed(await dropWaiting(group, key, signal), readAll),
  });
  const ending = button({
    label: 'End the rule…', right: 'admin',
    run: async () => refreshed(await endRule(group, key), readAll),
  });
  const announcing = button({
    label: 'Announce a URL…', right: rightTo(topic),
    run: () => announce(settings, hasHosts ? `http://${key}/` : ''),
  });
  async function readRule() {
    rule = await ruleOf(group, key, signal);
    replace(rulePlace, rule && el('p', { class: 'note' }, mark('warn', `Rule: ${ruleText(rule)}`),
      rule.key !== key && ` (of ${visible(rule.key)})`, rule.left && `, ends ${endText(rule)}`,
      rule.note && `, note: ${noteText(rule.note)}`));
    const isOwn = rule?.key === key;
    if (actions.firstChild === null || isOwn !== actions.contains(ending)) {
      replaceControls(actions, ways, isOwn && ending, dropping, announcing);
    }
  }
  async function change(kind) {
    const text = [
      kind === 'block' && found.waiting > 0 &&
        `${plural(found.waiting, 'waiting URL')} will end as blocked, in all jobs.`,
      kind !== 'slow' && 'The answer comes when the requests that are under way have ended.',
    ].filter(Boolean);
    const what = await setRule(group, { key, kind, text });
    return what && `${visible(key)}: ${what}.`;
  }
  const readRest = () => Promise.all([readRule(), readNow()]).then(() => replace(why, reason()));
  const readAll = () => Promise.all([readRest(), waiting.reload()]);

  async function readNow() {
    ({ keys: [found = {}] } = await ask(`${path}/keys`, { signal, query: { key } }));
    const rest = found['free-in'];
    replace(now, figures([
      ['Waiting', count(found.waiting ?? 0)],
      ['Under way', count(found.processing ?? 0)],
      ['Next request', rest === undefined ? NONE : `in ${duration(rest)}`],
    ]));
  }
  function reason() {
    if (rule?.block) {
      return 'A rule blocks it: nothing is requested, and nothing waits.';
    }
    return found.waiting > 0 ? `Its next URL waits: ${waits(found.because)}.`
      : 'Nothing waits for this host.';
  }
  const follow = hasHosts && !missing
    ? answersOf({ host: key, where: `group=${group}` }, signal) : null;
  // The stream says whether the broker is there, and when the group is gone.
  watch({
    [`group:${group}`]: object => object === null &&
      replace(why, mark('bad', 'This group does not exist any more.')),
  }, signal);
  await poll(async () => {
    await Promise.all([
      readRest(), waiting.refresh(), scheduled.refresh(),
      follow?.().then(rows => answers.update(rows.slice(-20).reverse())),
    ]);
  }, 5_000, signal);
}

function taskColumns() {
  return [
    { title: 'URL', text: row => urlLink(row.url), sort: row => row.url },
    { title: 'State', text: row => mark(...state('task', row.state)), sort: row => row.state },
    { title: 'Job', text: row => jobLink(row.job), sort: row => row.job },
    { title: 'Worker', text: row => row.member ?? NONE, sort: row => row.member },
    { title: 'Due', text: row => (row['due-ms'] ? `in ${duration(row['due-ms'])}` : NONE),
      sort: row => row['due-ms'] ?? 0, number: true },
    { title: 'Failures', text: row => count(row.attempts), sort: row => row.attempts,
      number: true },
    { title: 'Last failure', text: row => oneWord(row.last ?? NONE), sort: row => row.last },
  ];
}

function scheduleColumns() {
  return [
    { title: 'URL', text: row => urlLink(row.url), sort: row => row.url },
    { title: 'Every', text: row => visible(row.every) },
    { title: 'Due', text: row => `in ${duration(row['due-ms'])}`, sort: row => row['due-ms'],
      number: true },
  ];
}

function answerColumns() {
  return [
    { title: 'URL', text: row => urlLink(row.url) },
    { title: 'Outcome', text: row => mark(...outcomeMark(row)) },
    { title: 'Status', text: row => visible(row.status ?? NONE), number: true },
    { title: 'Time', text: row => duration(Number(row.ms ?? NaN)), number: true },
  ];
}
