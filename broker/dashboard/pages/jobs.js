// All jobs, the newest first.

import { button } from '../actions.js';
import { ask, walk } from '../ask.js';
import {
  GROUP, Trend, bar, controls, endedUrls, isHeld, jobPath, openUrls, timeToGo, took,
} from '../crawl.js';
import { el, head, mark, replace, setText } from '../dom.js';
import { clock, count, duration, jobLink, rate } from '../format.js';
import { openJob } from '../job-forms.js';
import { watch } from '../live.js';
import { poll } from '../metrics.js';
import { me } from '../session.js';
import { table } from '../table.js';
import { state } from '../words.js';

export function title() {
  return 'Jobs';
}

export async function show(main, params, signal) {
  const trends = new Map();
  const trend = job => {
    const id = `${job.job} ${job.number}`;
    if (!trends.has(id)) {
      trends.set(id, new Trend());
    }
    return trends.get(id);
  };
  // Jobs with a host that a rule without an end holds: what ends of them says nothing of their end.
  let held = new Set();
  const buttons = cached();
  const list = table({
    caption: `Jobs of ${GROUP}`, filter: true, key: job => job.job,
    empty: 'No jobs yet. Open one here, or with tidings crawl URL.',
    columns: [
      { title: 'Job', text: job => jobLink(job.job), sort: job => job.job },
      { title: 'Pass', text: job => count(job.pass), sort: job => job.pass, number: true },
      { title: 'State', text: job => mark(...state('job', job.state)), sort: job => job.state },
      { title: 'Ended', text: bar, sort: job => endedUrls(job) / Math.max(job.found, 1) },
      { title: 'Pages a second', number: true, sort: job => job.rate,
        text: job => (job.state === 'done' ? '' : rate(job.rate)) },
      { title: 'Failed', text: job => count(job.failed), sort: job => job.failed, number: true },
      { title: 'Opened', text: job => clock(Date.parse(job.opened)),
        sort: job => Date.parse(job.opened) },
      { title: 'Took', text: job => duration(took(job)), sort: took, number: true },
      { title: 'To go at this rate',
        text: job => (held.has(job.job) ? 'held by a rule' : timeToGo(job, trend(job))) },
      { title: 'Actions', text: buttons },
    ],
  });
  const more = el('p', { class: 'hint' });
  const part = el('span', {});
  replace(main, head('Jobs', null, openButton()), list.node, more);

  // The live list has the newest jobs. Older ones are asked for once.
  let older = [];
  let newest = [];
  const draw = () => {
    const names = new Set(newest.map(({ job }) => job));
    list.update([...newest, ...older.filter(({ job }) => !names.has(job))]);
  };
  const readOlder = async () => {
    const all = [];
    for await (const { jobs } of walk('/jobs', { signal, query: { limit: 1000 } })) {
      all.push(...jobs);
    }
    older = all;
    replace(more, `All ${count(older.length)} jobs were read. The newest 100 are updated.`);
    draw();
  };
  const showAll = button({ label: 'Show all', run: readOlder });
  watch({
    jobs: answer => {
      const { jobs = [], matched = 0 } = answer ?? {};
      const now = performance.now();
      newest = jobs.map(job => {
        trend(job).add(now, openUrls(job), job.completed, job.pass);
        return { ...job, rate: trend(job).rate() };
      });
      // Numbers rise, so the live list lacks of those above its last one what was deleted.
      const numbers = new Set(jobs.map(({ number }) => number));
      const last = matched > jobs.length ? jobs.at(-1).number : 0;
      older = older.filter(({ number }) => number < last || numbers.has(number));
      draw();
      if (matched > jobs.length && older.length === 0) {
        setText(part, `The newest ${count(jobs.length)} of ${count(matched)}. `);
        if (!more.contains(showAll)) {
          replace(more, part, showAll);
        }
      }
    },
  }, signal);
  const holds = async query => {
    const { keys } = await ask(`/groups/${GROUP}/keys`, { signal, query: { ...query, limit: 1 } });
    return keys.some(isHeld);
  };
  await poll(async () => {
    const names = newest.filter(job => timeToGo(job, trend(job))).map(({ job }) => job);
    const found = new Set();
    // The broker compares all hosts for each answer, and most groups have none that is held.
    for (const job of names.length > 0 && await holds() ? names : []) {
      if (await holds({ job })) {
        found.add(job);
      }
    }
    held = found;
  }, 5_000, signal);
}

// A list that is drawn each second keeps its buttons while a job stays in its state.
function cached() {
  const known = new Map();
  return job => {
    const id = `${job.job} ${job.pass} ${job.state}`;
    const same = known.get(job.job);
    if (same?.id === id) {
      same.job = job;
      return same.node;
    }
    const own = { id, job };
    own.node = el('span', { class: 'actions' }, controls(() => own.job));
    known.set(job.job, own);
    return own.node;
  };
}

// A client that may have any job may open one; the broker judges the name.
function openButton() {
  const { can = {}, permissions = [] } = me() ?? {};
  const mayAny = can.all || permissions === null ||
    permissions.some(right => right.startsWith('job:'));
  return button({
    label: 'Open a job…', right: mayAny ? null : 'job:NAME', run: async () => {
      const name = await openJob();
      if (name) {
        location.hash = jobPath(name);
      }
    },
  });
}
