// The first page: whether all is well, key figures, plots, and the groups.

import { ask } from '../ask.js';
import { GROUP } from '../crawl.js';
import { el, figures, head, mark, replace } from '../dom.js';
import { bytes, count, duration, groupLink, jobLink, rate } from '../format.js';
import { watch } from '../live.js';
import { metrics, poll } from '../metrics.js';
import { plot, rangeSwitch } from '../plot.js';
import { table } from '../table.js';
import { groupState, state, stoppedWhy } from '../words.js';
import { firstSteps } from './first-steps.js';

// Problems that are shown; more are counted.
const MOST = 10;

export function title() {
  return 'Overview';
}

export async function show(main, params, signal) {
  const verdict = el('div', { class: 'verdict', role: 'status' });
  const numbers = el('div', {});
  const start = el('div', {});
  const list = groupTable();
  const work = jobTable();
  work.node.hidden = true;
  replace(main,
    head('Overview', null, rangeSwitch()), verdict, start, numbers,
    el('div', { class: 'grid plots' }, plots(signal)), list.node, work.node);
  watch({ stats: object => say(verdict, object.problems) }, signal);
  let before = null;
  let isNew = true;
  await poll(async () => {
    const now = await metrics(signal);
    const rates = now.rates(before);
    before = now;
    replace(numbers, figures(keyFigures(now, rates)));
    const answers = (group, outcome) => rates('tidings_group_answers_total', { group, outcome });
    list.update(groups(now).map(group => ({
      ...group,
      doneRate: answers(group.name, 'completed'), failedRate: answers(group.name, 'failed'),
    })));
    isNew = isNew && await isEmpty(now, signal);
    if (!isNew) {
      replace(start);
    } else if (!start.firstChild) {
      replace(start, firstSteps(await ask('./', { signal })));
    }
    await updateJobs(work, now, signal);
  }, 3_000, signal);
}

// The sentence stands still while nothing changes, so that a screen reader says it once.
function say(node, found) {
  const texts = found.map(({ text }) => text).join('\n') || 'All is well.';
  if (node.dataset.texts === texts) {
    return;
  }
  node.dataset.texts = texts;
  replace(node, found.length === 0 ? el('p', {}, mark('ok', 'All is well.'))
    : el('ul', {}, found.slice(0, MOST).map(({ kind, text, page }) =>
      el('li', {}, mark(kind, page ? el('a', { href: `#/${page}` }, text) : text))),
    found.length > MOST && el('li', {}, `And ${count(found.length - MOST)} more.`)));
}

function keyFigures(now, rates) {
  const { of, sum } = now;
  const since = Date.now() - of('process_start_time_seconds') * 1000;
  return [
    ...crawling(now, rates),
    ['Waiting', count(sum('tidings_group_waiting_entries'))],
    ['Under way', count(sum('tidings_group_processing_entries'))],
    ['Workers', count(sum('tidings_group_members'))],
    ['From clients', rate(rates('tidings_events_published_total'))],
    ['Delivered', rate(rates('tidings_events_delivered_total'))],
    ['Connections', count(sum('tidings_connections'))],
    ['Memory', bytes(of('process_resident_memory_bytes'))],
    ['Stored', bytes(sum('tidings_log_bytes'))],
    ['Disk free', bytes(of('tidings_disk_free_bytes'))],
    ['Running for', duration(since)],
  ];
}

// What the crawlers do, once they have a group.
function crawling({ of }, rates) {
  const gauge = name => of(`tidings_group_${name}`, { group: GROUP });
  if (gauge('keys') === null) {
    return [];
  }
  const answers = outcome => rate(rates('tidings_group_answers_total', { group: GROUP, outcome }));
  const resting = gauge('keys') - gauge('ready_keys') - gauge('processing_entries');
  return [
    ['Pages', answers('completed')],
    ['Failed', answers('failed')],
    ['Hosts resting', count(Math.max(resting, 0))],
  ];
}

function plots(signal) {
  const common = { of: 'stats', own: false };
  return [
    plot({ ...common, title: 'Events', unit: rate, series: [
      { column: 'published', label: 'published by clients' },
      { column: 'delivered', label: 'delivered' },
    ] }, signal),
    plot({ ...common, title: 'Work', unit: rate, series: [
      { column: 'done', label: 'done' }, { column: 'failed', label: 'failed' },
    ] }, signal),
    plot({ ...common, title: 'Time of a commit to the disk', unit: duration, series: [
      { column: 'commit-p50-ms', label: 'p50' },
      { column: 'commit-p99-ms', label: 'p99' },
    ] }, signal),
    plot({ ...common, title: 'Memory', unit: bytes, series: [
      { column: 'memory', label: 'resident' },
    ] }, signal),
    plot({ ...common, title: 'Connections', unit: count, series: [
      { column: 'connections', label: 'open' },
    ] }, signal),
  ];
}

/** The groups that have series of their own, as objects, those with most to do first. */
function groups({ all, of }) {
  return all('tidings_group_waiting_entries').filter(each => each.labels.group).map(each => {
    const labels = { group: each.labels.group };
    const gauge = name => of(`tidings_group_${name}`, labels) ?? 0;
    return {
      name: labels.group, why: stoppedWhy({ of }, labels.group), waiting: each.value,
      processing: gauge('processing_entries'), members: gauge('members'),
      dead: gauge('dead_entries'),
    };
  }).sort((a, b) => b.waiting + b.processing - a.waiting - a.processing
    || a.name.localeCompare(b.name));
}

function groupTable() {
  const number = (title, value, text = row => count(value(row))) =>
    ({ title, number: true, sort: value, text });
  return table({
    caption: 'Groups',
    key: row => row.name,
    empty: 'No groups yet. The group of the crawlers exists from the first URL on.',
    columns: [
      { title: 'Group', text: row => groupLink(row.name), sort: row => row.name },
      { title: 'State', text: row => mark(...groupState(row)), sort: row => groupState(row)[1] },
      number('Waiting', row => row.waiting),
      number('Under way', row => row.processing),
      number('Workers', row => row.members),
      number('Done a second', row => row.doneRate, row => rate(row.doneRate)),
      number('Failed a second', row => row.failedRate, row => rate(row.failedRate)),
      number('Dead letters', row => row.dead),
    ],
  });
}

function jobTable() {
  return table({
    caption: 'Newest jobs',
    key: row => row.job,
    empty: 'No jobs yet.',
    columns: [
      { title: 'Job', text: row => jobLink(row.job) },
      { title: 'State', text: row => mark(...state('job', row.state)) },
      { title: 'Done', number: true, text: row => count(row.completed) },
      { title: 'Failed', number: true, text: row => count(row.failed) },
      { title: 'To do', number: true,
        text: row => count(row.pending + row.queued + row.processing) },
    ],
  });
}

async function updateJobs(list, now, signal) {
  if (now.sum('tidings_jobs', { group: GROUP }) > 0) {
    const { jobs } = await ask('/jobs', { query: { limit: 5 }, signal });
    list.update(jobs);
    list.node.hidden = jobs.length === 0;
  }
}

async function isEmpty(now, signal) {
  if (now.of('tidings_events_published_total') > 0) {
    return false;
  }
  const { topics } = await ask('/topics', { signal });
  return topics.every(topic => topic.next <= 1);
}
