// One job: how far it is, when it ends, what failed, and what holds it up.

import { button, confirm } from '../actions.js';
import { ask } from '../ask.js';
import {
  GROUP, Trend, bar, controls, endSentence, jobPath, openUrls, took,
} from '../crawl.js';
import { el, figures, head, mark, panel, replace } from '../dom.js';
import { NONE, bytes, clock, count, duration, rate, urlLink, visible } from '../format.js';
import { outcomePanels } from '../failures.js';
import { hostsTable } from '../hosts.js';
import { LIMITS, SCOPES, changeJob, openJob } from '../job-forms.js';
import { watch } from '../live.js';
import { poll } from '../metrics.js';
import { plot } from '../plot.js';
import { bumpWaiting } from '../waiting.js';
import { SINCE, state } from '../words.js';

const OUTCOMES = {
  completed: 'fetched', redirects: 'led elsewhere', failed: 'failed',
  robots: 'not allowed by robots.txt', scope: 'out of scope', blocked: 'blocked by a rule',
  trap: 'one of endlessly many', budget: 'over the budget', duplicates: 'the same as another',
  cancelled: 'cancelled',
};
const CLASSES = {
  'status-2xx': '2xx, a page', 'status-3xx': '3xx, elsewhere or as before',
  'status-4xx': '4xx, refused', 'status-5xx': '5xx, an error of the server',
};

export function title({ job }) {
  return `Job ${job}`;
}

export async function show(main, { job: name }, signal) {
  const trend = new Trend();
  const facts = el('span', {});
  const actions = el('div', { class: 'actions' });
  const gone = el('p', { class: 'note', hidden: true }, 'There is no such job now.');
  const numbers = el('div', {});
  const sentence = el('p', { class: 'note' });
  const outcomes = el('div', {});
  const settings = el('div', {});
  const pages = outcomePanels(signal);
  const keys = hostsTable(GROUP);
  let waiting = [];
  let job = null;
  const parts = el('div', { hidden: true }, sentence, numbers, pages.times,
    el('div', { class: 'grid' },
      plot({
        title: 'Waiting and crawled', of: `job:${name}`, unit: count, series: [
          { column: 'unfinished', label: 'waiting' }, { column: 'completed', label: 'crawled' },
          { column: 'failed', label: 'failed' },
        ],
      }, signal),
      panel('What came of its URLs', outcomes)),
    pages.failures,
    el('div', { class: 'grid' }, keys.node, pages.hosts),
    el('div', { class: 'grid' }, panel('Settings', settings), pages.seeds));
  replace(main, head(`Job ${visible(name)}`, facts, actions), gone, parts);

  const draw = () => {
    trend.add(Date.now(), openUrls(job), job.completed, job.pass);
    replace(facts, mark(...state('job', job.state)), `, pass ${count(job.pass)}`);
    replace(numbers, figures(keyFigures(job, trend)));
    const said = endSentence(job, trend, waiting);
    if (sentence.textContent !== said) {
      replace(sentence, said);
    }
    replace(outcomes, outcomeList(job));
    replace(settings, settingList(job));
  };
  watch({
    [`job:${name}`]: next => {
      gone.hidden = Boolean(next);
      parts.hidden = !next;
      const isOther = job?.state !== next?.state || job?.pass !== next?.pass;
      job = next;
      if (!job) {
        [facts, actions].forEach(node => replace(node));
        return;
      }
      if (isOther) {
        replace(actions, pageControls(() => job));
      }
      draw();
      pages.update(job);
    },
  }, signal);
  await seed(trend, name, signal);
  await poll(async () => {
    if (!gone.hidden) {
      waiting = [];
      keys.update(waiting);
      return;
    }
    const query = { job: name, limit: 50 };
    ({ keys: waiting } = await ask(`/groups/${GROUP}/keys`, { query, signal }));
    keys.update(waiting);
    if (job) {
      draw();
    }
  }, 3_000, signal);
}

// What the broker remembers of the last minutes, so that an estimate need not wait for them.
async function seed(trend, name, signal) {
  try {
    const [{ columns, values }, { pass }] = await Promise.all([
      ask('/history', { query: { of: `job:${name}`, range: '5m' }, signal }),
      ask(jobPath(name), { signal }),
    ]);
    const column = wanted => values[columns.indexOf(wanted)] ?? [];
    const [open, completed] = [column('unfinished'), column('completed')];
    trend.seed(column('time').map((time, index) => ({
      at: time * 1000, open: open[index], completed: completed[index],
    })).filter(sample => sample.open !== null && sample.completed !== null), pass);
  } catch {
    // Without a history the estimate begins with what is seen from now on.
  }
}

function keyFigures(job, trend) {
  const isDone = job.state === 'done';
  return [
    ['Ended', bar(job)],
    ['Waiting', count(job.pending + job.queued)],
    ['Under way', count(job.processing)],
    ['Pages a second', isDone ? '–' : rate(trend.rate())],
    ['Crawled', count(job.completed)],
    ['Failed', count(job.failed)],
    ['Read', bytes(job.bytes), SINCE],
    ['Response time', duration(job.ms), SINCE],
    ['Took', duration(took(job)), times(job)],
  ];
}

// When the pass was opened, and when it ended.
function times({ opened, ended }) {
  const from = `from ${clock(Date.parse(opened))}`;
  return ended ? `${from} to ${clock(Date.parse(ended))}` : from;
}

// Shares of the whole as bars; what did not occur is left out.
function outcomeList(job) {
  const rows = (names, whole) => Object.entries(names).filter(([name]) => job[name] > 0)
    .map(([name, label]) => el('tr', {},
      el('th', { scope: 'row' }, label),
      el('td', { class: 'number' }, count(job[name])),
      el('td', { class: 'part' },
        el('meter', { max: whole, value: job[name], 'aria-hidden': 'true' }))));
  const sum = names => Object.keys(names).reduce((all, name) => all + (job[name] ?? 0), 0);
  const part = (caption, names) => (sum(names) === 0 ? null : el('table', { class: 'shares' },
    el('caption', {}, caption), el('tbody', {}, rows(names, sum(names)))));
  const classes = part('Status classes', CLASSES);
  const parts = [part('Outcomes', OUTCOMES), classes,
    classes && el('p', { class: 'hint' }, `They count requests ${SINCE} of the broker.`)];
  return parts.some(Boolean) ? parts : el('p', { class: 'empty' }, 'Nothing has ended yet.');
}

function settingList(job) {
  const patterns = list => (list?.length ? el('ul', { class: 'urls' }, list.map(pattern =>
    el('li', { class: 'url' }, visible(pattern)))) : null);
  const [, follows] = SCOPES.find(([word]) => word === job['scope-rule']) ?? [];
  const limits = LIMITS.filter(({ name }) => job[name] !== undefined).map(({ name, label }) =>
    [label, typeof job[name] === 'number' ? count(job[name]) : job[name]]);
  const pairs = [
    ['Follows links to', follows ?? NONE],
    ...limits,
    ['Only links that match', patterns(job.include) ?? 'all in its scope'],
    ['No links that match', patterns(job.exclude) ?? 'none'],
    ['Rendered in a browser', job.render ? el('code', {}, visible(job.render)) : 'no'],
    ['Callback', job.callback ? urlLink(job.callback) : 'none'],
  ];
  return el('dl', { class: 'pairs' }, pairs.map(([term, value]) =>
    el('div', {}, el('dt', {}, term), el('dd', {}, value))));
}

// The buttons of the page. They read the job at the time of the click.
function pageControls(now) {
  const { job: name, state: word } = now();
  const right = `job:${name}`;
  if (word !== 'done') {
    return [
      button({ label: 'Change…', right, run: () => changeJob(now()) }),
      button({ label: 'Priorities…', right: 'admin', run: () => bumpWaiting(name) }),
      controls(now),
    ].flat();
  }
  return [
    button({
      label: 'Open the next pass…', right, run: async () => {
        await openJob(now());
      },
    }),
    button({
      label: 'Delete…', right, danger: true, run: async () => {
        const isSure = await confirm({
          title: `Delete ${name}?`, action: 'Delete the job', typed: name,
          text: 'What was crawled stays stored. The job is forgotten, with all its counts.',
        });
        if (!isSure) {
          return null;
        }
        await ask(jobPath(name), { method: 'DELETE' });
        location.hash = '#/jobs';
        return null;
      },
    }),
  ];
}
