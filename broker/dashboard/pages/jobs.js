// All jobs, the newest first.

import { button } from '../actions.js';
import { ask } from '../ask.js';
import {
  GROUP, Trend, bar, controls, endedUrls, jobPath, openUrls, timeToGo,
} from '../crawl.js';
import { el, head, mark, replace } from '../dom.js';
import { count, rate } from '../format.js';
import { openJob } from '../job-forms.js';
import { watch } from '../live.js';
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
  const buttons = cached();
  const list = table({
    caption: `Jobs of ${GROUP}`, filter: true, key: job => job.job,
    empty: 'No jobs yet. Open one here, or with tidings crawl URL.',
    columns: [
      { title: 'Job', text: job => el('a', { href: jobHref(job.job) }, job.job),
        sort: job => job.job },
      { title: 'Pass', text: job => count(job.pass), sort: job => job.pass, number: true },
      { title: 'State', text: job => mark(...state('job', job.state)), sort: job => job.state },
      { title: 'Ended', text: bar, sort: job => endedUrls(job) / Math.max(job.found, 1) },
      { title: 'Pages a second', number: true, sort: job => job.rate,
        text: job => (job.state === 'done' ? '' : rate(job.rate)) },
      { title: 'Failed', text: job => count(job.failed), sort: job => job.failed, number: true },
      { title: 'To go at this rate', text: job => timeToGo(job, trend(job)) },
      { title: 'Actions', text: buttons },
    ],
  });
  const more = el('p', { class: 'hint' });
  replace(main, head('Jobs', null, openButton()), list.node, more);

  // The live list has the newest jobs. Older ones are asked for once.
  const older = new Map();
  let newest = [];
  const draw = () => {
    const names = new Set(newest.map(({ job }) => job));
    list.update([...newest, ...[...older.values()].filter(({ job }) => !names.has(job))]);
  };
  const readOlder = async () => {
    let after = 0;
    do {
      const query = { limit: 1000, after };
      const { jobs, next } = await ask('/jobs', { query, signal });
      jobs.forEach(job => older.set(job.job, job));
      after = next;
    } while (after !== undefined);
    replace(more, `All ${count(older.size)} jobs were read. The newest 100 are updated.`);
    draw();
  };
  watch({
    jobs: ({ jobs = [], matched } = {}) => {
      const now = performance.now();
      newest = jobs.map(job => {
        trend(job).add(now, openUrls(job), job.completed, job.pass);
        return { ...job, rate: trend(job).rate() };
      });
      draw();
      if (matched > jobs.length && older.size === 0) {
        replace(more, `The newest ${count(jobs.length)} of ${count(matched)}. `,
          el('button', { type: 'button', onclick: readOlder }, 'Show all'));
      }
    },
  }, signal);
}

/** The address of the page of a job. */
const jobHref = name => `#${jobPath(name)}`;

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

// Whoever may have any job may open one; the broker judges the name.
function openButton() {
  const { can = {}, permissions = [] } = me() ?? {};
  const mayAny = can.all || permissions === null ||
    permissions.some(right => right.startsWith('job:'));
  return button({
    label: 'Open a job…', right: mayAny ? null : 'job:NAME', run: async () => {
      const name = await openJob();
      if (name) {
        location.hash = jobHref(name);
      }
    },
  });
}
